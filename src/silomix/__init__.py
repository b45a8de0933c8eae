"""Bayesian clustering across data silos that may not pool their rows."""

from importlib import import_module
from typing import TYPE_CHECKING

from silomix import metrics
from silomix.api import fit, sample
from silomix.cohort import simulate_cohort
from silomix.errors import SilomixError
from silomix.outside import compare_outside
from silomix.policy import Policy, read_policy, write_policy
from silomix.posterior import Posterior, load
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

if TYPE_CHECKING:
    from silomix import ehr, plots, rivals
    from silomix.estimator import FederatedMixture

__version__ = "0.1.0"

__all__ = [
    "Ball",
    "Diagnostics",
    "Divergence",
    "Draws",
    "Evidence",
    "FederatedMixture",
    "FewRounds",
    "Hungarian",
    "Lbfgs",
    "LocalPosterior",
    "Partition",
    "Policy",
    "Posterior",
    "Prior",
    "Psgd",
    "Schedule",
    "Schema",
    "Shard",
    "SilomixError",
    "Variable",
    "compare_outside",
    "ehr",
    "fit",
    "load",
    "local_posterior",
    "make_study",
    "metrics",
    "plots",
    "read_policy",
    "read_study",
    "rivals",
    "sample",
    "simulate",
    "simulate_cohort",
    "simulate_like",
    "write_policy",
    "write_study",
]


def __getattr__(name: str) -> object:
    """Import what needs an extra, or time to load, when it is asked for."""
    if name == "FederatedMixture":
        from silomix.estimator import FederatedMixture

        return FederatedMixture
    if name in {"ehr", "plots", "rivals"}:
        return import_module(f"silomix.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
