"""The study file and its digest: every setting of a federated study, in one place."""

from __future__ import annotations

from silomix.study.file import digest, read_study, write_study
from silomix.study.make import KEYWORDS, PRESETS, default_thin, make_study
from silomix.study.settings import (
    AGGREGATIONS,
    MATCHINGS,
    SOLVERS,
    Aggregation,
    Ball,
    Divergence,
    Evidence,
    FewRounds,
    Hungarian,
    Lbfgs,
    LocalSettings,
    Matching,
    ModelSettings,
    Polish,
    Psgd,
    ScheduleSettings,
    Solver,
)
from silomix.study.study import Study, VariableSettings

__all__ = [
    "AGGREGATIONS",
    "KEYWORDS",
    "MATCHINGS",
    "PRESETS",
    "SOLVERS",
    "Aggregation",
    "Ball",
    "Divergence",
    "Evidence",
    "FewRounds",
    "Hungarian",
    "Lbfgs",
    "LocalSettings",
    "Matching",
    "ModelSettings",
    "Polish",
    "Psgd",
    "ScheduleSettings",
    "Solver",
    "Study",
    "VariableSettings",
    "default_thin",
    "digest",
    "make_study",
    "read_study",
    "write_study",
]
