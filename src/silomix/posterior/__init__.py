"""The global posterior: draws, summaries, assignment of rows, save and load, DataTree."""

from __future__ import annotations

from silomix.posterior.diagnosis import PolishTrace, PosteriorDiagnostics
from silomix.posterior.frames import backend_of
from silomix.posterior.global_posterior import Assignment, Parts, Posterior, ordered
from silomix.posterior.membership import row_membership, to_four_decimals
from silomix.posterior.provenance import Provenance, count_bytes, make_provenance
from silomix.posterior.saved_file import load

__all__ = [
    "Assignment",
    "Parts",
    "PolishTrace",
    "Posterior",
    "PosteriorDiagnostics",
    "Provenance",
    "backend_of",
    "count_bytes",
    "load",
    "make_provenance",
    "ordered",
    "row_membership",
    "to_four_decimals",
]
