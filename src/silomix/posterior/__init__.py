"""The global posterior: draws, summaries, assignment of rows, save and load, DataTree."""

from __future__ import annotations

from silomix.posterior.diagnosis import PolishTrace, PosteriorDiagnostics, Provenance
from silomix.posterior.global_posterior import Assignment, Posterior
from silomix.posterior.saved_file import load

__all__ = ["Assignment", "PolishTrace", "Posterior", "PosteriorDiagnostics", "Provenance", "load"]
