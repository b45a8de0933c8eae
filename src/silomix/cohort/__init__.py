"""A synthetic cohort like the application of Fendler et al. (2026), with known clusters."""

from __future__ import annotations

from silomix.cohort.calibrate import Planted, planted
from silomix.cohort.compare import best_labels, compare_with_published
from silomix.cohort.facts import Facts, read_facts
from silomix.cohort.simulate import (
    CONDITIONS,
    OUTSIDE,
    PUBLISHED_ROWS,
    CohortTruth,
    simulate_cohort,
)
from silomix.cohort.writing import truth_files, write_cohort

__all__ = [
    "CONDITIONS",
    "OUTSIDE",
    "PUBLISHED_ROWS",
    "CohortTruth",
    "Facts",
    "Planted",
    "best_labels",
    "compare_with_published",
    "planted",
    "read_facts",
    "simulate_cohort",
    "truth_files",
    "write_cohort",
]
