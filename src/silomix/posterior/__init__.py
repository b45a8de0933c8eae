"""The global posterior: draws, summaries, assignment of rows, files, DataTree."""

from __future__ import annotations

from silomix.posterior.global_posterior import Assignment, Posterior
from silomix.posterior.saved_file import load
from silomix.posterior.verdict import PolishTrace, PosteriorDiagnostics, Provenance

__all__ = ["Assignment", "PolishTrace", "Posterior", "PosteriorDiagnostics", "Provenance", "load"]
