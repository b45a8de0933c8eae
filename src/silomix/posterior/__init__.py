"""The global posterior: draws, summaries, assignment of rows, save and load, DataTree."""

from __future__ import annotations

from silomix.posterior.diagnosis import PolishTrace, PosteriorDiagnostics
from silomix.posterior.frames import backend_of
from silomix.posterior.loading import load
from silomix.posterior.membership import row_membership, to_four_decimals
from silomix.posterior.ordering import Parts, ordered
from silomix.posterior.provenance import Provenance, count_bytes, fingerprint, make_provenance
from silomix.posterior.record import Assignment, Posterior
from silomix.posterior.saving import save

__all__ = [
    "Assignment",
    "Parts",
    "PolishTrace",
    "Posterior",
    "PosteriorDiagnostics",
    "Provenance",
    "backend_of",
    "count_bytes",
    "fingerprint",
    "load",
    "make_provenance",
    "ordered",
    "row_membership",
    "save",
    "to_four_decimals",
]
