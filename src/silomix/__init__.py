"""Bayesian clustering across data silos that may not pool their rows."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from silomix.errors import SilomixError
from silomix.model.draws import Diagnostics, Draws, LocalPosterior, Partition, Schedule
from silomix.model.schema import Prior, Schema, Shard, Variable
from silomix.simulate import simulate, simulate_like

if TYPE_CHECKING:
    from silomix import ehr, rivals
    from silomix.api import fit, sample
    from silomix.estimator import FederatedMixture
    from silomix.model import metrics
    from silomix.paper import Ball, Divergence, FewRounds, Hungarian, Psgd
    from silomix.posterior import Posterior, load
    from silomix.report import plots
    from silomix.report.outside_variables import compare_outside, regress_membership
    from silomix.silo.relabel import local_posterior
    from silomix.simulate.cohort import simulate_cohort
    from silomix.study import Evidence, Lbfgs, make_study, read_study, write_study
    from silomix.study.policy import Policy, read_policy, write_policy
    from silomix.transports.combination import combine

__version__ = "0.2.0"

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
    "combine",
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
    "regress_membership",
    "rivals",
    "sample",
    "simulate",
    "simulate_cohort",
    "simulate_like",
    "write_policy",
    "write_study",
]


# Modules of the names that are slow to import, or need an extra.
_HOMES = {
    **dict.fromkeys(("fit", "sample"), "api"),
    **dict.fromkeys(("Ball", "Divergence", "FewRounds", "Hungarian", "Psgd"), "paper"),
    **dict.fromkeys(("Evidence", "Lbfgs", "make_study", "read_study", "write_study"), "study"),
    **dict.fromkeys(("Policy", "read_policy", "write_policy"), "study.policy"),
    **dict.fromkeys(("Posterior", "load"), "posterior"),
    **dict.fromkeys(("compare_outside", "regress_membership"), "report.outside_variables"),
    "FederatedMixture": "estimator",
    "combine": "transports.combination",
    "local_posterior": "silo.relabel",
    "simulate_cohort": "simulate.cohort",
}


def __getattr__(name: str) -> object:
    """Import a name of `_HOMES`, or a module, when it is asked for."""
    if name in _HOMES:
        return getattr(import_module(f"silomix.{_HOMES[name]}"), name)
    home = {"metrics": "model.metrics", "plots": "report.plots"}.get(name, name)
    if not name.startswith("_") and find_spec(f"silomix.{home}"):
        return import_module(f"silomix.{home}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
