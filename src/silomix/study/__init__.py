"""What was decided: every setting of a study, its file and digest; what a silo lets out."""

from __future__ import annotations

from silomix.study.keywords import make_study
from silomix.study.settings import (
    Aggregation,
    Ball,
    Divergence,
    Evidence,
    FewRounds,
    Hungarian,
    Lbfgs,
    Polish,
    Psgd,
    Study,
)
from silomix.study.study_file import digest, read_study, write_study

__all__ = [
    "Aggregation",
    "Ball",
    "Divergence",
    "Evidence",
    "FewRounds",
    "Hungarian",
    "Lbfgs",
    "Polish",
    "Psgd",
    "Study",
    "digest",
    "make_study",
    "read_study",
    "write_study",
]
