"""What was decided: every setting of a study, its file and digest; what a silo lets out."""

from __future__ import annotations

from silomix.study.keywords import PRESETS, SETTINGS, default_thin, make_study
from silomix.study.settings import (
    MATCHINGS,
    SOLVERS,
    Aggregation,
    Ball,
    Divergence,
    Evidence,
    FewRounds,
    Hungarian,
    Lbfgs,
    Matching,
    Polish,
    Psgd,
    Solver,
    Study,
)
from silomix.study.study_file import digest, read_study, write_study

__all__ = [
    "MATCHINGS",
    "PRESETS",
    "SETTINGS",
    "SOLVERS",
    "Aggregation",
    "Ball",
    "Divergence",
    "Evidence",
    "FewRounds",
    "Hungarian",
    "Lbfgs",
    "Matching",
    "Polish",
    "Psgd",
    "Solver",
    "Study",
    "default_thin",
    "digest",
    "make_study",
    "read_study",
    "write_study",
]
