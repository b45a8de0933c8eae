"""Bayesian clustering across data silos that may not pool their rows."""

from silomix import metrics
from silomix.api import sample
from silomix.errors import SilomixError
from silomix.relabel import local_posterior
from silomix.simulate import simulate, simulate_like
from silomix.study import (
    Ball,
    Divergence,
    Evidence,
    FewRounds,
    Hungarian,
    Lbfgs,
    Psgd,
    make_study,
    read_study,
    write_study,
)
from silomix.types import (
    Diagnostics,
    Draws,
    LocalPosterior,
    Partition,
    Prior,
    Schedule,
    Schema,
    Shard,
    Variable,
)

__version__ = "0.1.0"

__all__ = [
    "Ball",
    "Diagnostics",
    "Divergence",
    "Draws",
    "Evidence",
    "FewRounds",
    "Hungarian",
    "Lbfgs",
    "LocalPosterior",
    "Partition",
    "Prior",
    "Psgd",
    "Schedule",
    "Schema",
    "Shard",
    "SilomixError",
    "Variable",
    "local_posterior",
    "make_study",
    "metrics",
    "read_study",
    "sample",
    "simulate",
    "simulate_like",
    "write_study",
]
