"""What a study may set under a policy: nothing that wears the rules down, or a machine out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from silomix.errors import PolicyRefusal
from silomix.study.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.study import Study

LARGEST = 2**62
"""No study sets more."""

Most = Annotated[int, Field(ge=1, le=LARGEST)]
Concentration = Annotated[float, Field(gt=0, le=LARGEST)]


class Limits(Record):
    """What a study may ask of a silo: `[limits]`.

    Attributes
    ----------
    components, sweeps, chains : the most of the silo's sampler; sweeps are those of a chain.
    kept_draws : the most draws that a silo keeps over all its chains.
    points : the most starting points that one question about gradients may hold.
    smallest_prior, largest_prior : bounds of alpha and beta.
    """

    components: Most = 100
    sweeps: Most = 100_000
    chains: Most = 8
    kept_draws: Most = 5_000
    points: Most = 100
    smallest_prior: Concentration = 0.1
    largest_prior: Concentration = 1.0


NO_LIMITS = Limits(
    components=LARGEST,
    sweeps=LARGEST,
    chains=LARGEST,
    kept_draws=LARGEST,
    points=LARGEST,
    smallest_prior=1e-12,
    largest_prior=LARGEST,
)


def check_study(study: Study, limits: Limits, silo: str) -> None:
    """Refuse a study that sets more than the silo's policy lets it, before any work is done."""
    for name, value, bound in _exceeded(study, limits):
        raise PolicyRefusal(
            f"{silo}: the study sets {name} to {value:,} and the silo's policy allows {bound}; "
            "change the study, or let the policy's owner change [limits]"
        )


def _exceeded(study: Study, limits: Limits) -> Iterator[tuple[str, float, str]]:
    schedule = study.sampling
    most = {
        "components": (study.model.components, limits.components),
        "iterations": (schedule.iterations, limits.sweeps),
        "chains": (schedule.chains, limits.chains),
        "kept draws": (schedule.chains * schedule.kept, limits.kept_draws),
        "starts": (_points(study), limits.points),
    }
    for name, (value, limit) in most.items():
        if value > limit:
            yield name, value, f"at most {limit:,}"
    for name, prior in (("alpha", study.model.alpha), ("beta", study.model.beta)):
        if not limits.smallest_prior <= prior <= limits.largest_prior:
            yield name, prior, f"{limits.smallest_prior:g} to {limits.largest_prior:g}"


def _points(study: Study) -> int:
    """Return how many starting points a question of the study may be about; 0 without such."""
    settings = study.aggregation
    if settings.method != "vcmc" or settings.oracle != "federated":
        return 0
    return 1 if settings.solver.method == "lbfgs" else settings.solver.starts
