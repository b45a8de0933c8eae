"""The global posterior: draws, summaries, assignment of rows, save and load, DataTree."""

from __future__ import annotations

from silomix.posterior.diagnosis import (
    PolishTrace,
    PosteriorDiagnostics,
    Provenance,
    count_bytes,
    make_provenance,
)
from silomix.posterior.global_posterior import Assignment, Parts, Posterior, backend_of, ordered
from silomix.posterior.membership import row_membership, to_four_decimals
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
