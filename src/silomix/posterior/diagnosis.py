"""Whether the global posterior can be trusted: the silos' own verdicts, the polish, the notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from silomix.release import ReleasedDiagnostics

MOST_QUOTED = 3
"""Silos whose own verdict is quoted; the others are only counted."""


@dataclass(frozen=True, eq=False)
class PolishTrace:
    """How the draws moved over the polish rounds.

    Attributes
    ----------
    values : by name, (round, …): means over the chains after each round.
    rounds : how many were made.
    still_moving : whether the draws had not settled when the rounds ended.
    """

    values: Mapping[str, NDArray[np.floating]]
    rounds: int
    still_moving: bool


@dataclass(frozen=True, eq=False)
class PosteriorDiagnostics:
    """What a person wants to know before trusting the global posterior.

    Attributes
    ----------
    silos : by name, what each silo says of its own run; empty where silos did not sample alone.
    elbo : (step,), the objective of the aggregation at each step of the best start; None when
        no objective was maximised.
    polish : None when no polish was asked for.
    chains : how chains that ran over all silos at once mixed; None when there were none.
    notes : sentences, such as that a limit of the aggregation was reached.
    """

    silos: Mapping[str, ReleasedDiagnostics]
    elbo: NDArray[np.float64] | None = None
    polish: PolishTrace | None = None
    chains: ReleasedDiagnostics | None = None
    notes: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        """Polish rounds made."""
        return self.polish.rounds if self.polish else 0

    @property
    def still_moving(self) -> bool:
        """Whether the draws had not settled when the polish rounds ended."""
        return self.polish is not None and self.polish.still_moving

    @property
    def trusted(self) -> bool:
        """Whether every run mixed and the draws were at rest; never when no run was judged."""
        runs = _runs(self)
        return bool(runs) and not self.still_moving and all(r.trusted for r in runs.values())

    @property
    def verdict(self) -> str:
        """A few plain sentences."""
        return " ".join(sentences(self))


def sentences(diagnostics: PosteriorDiagnostics) -> Iterator[str]:
    """Yield the verdict on a posterior, a sentence at a time."""
    runs = _runs(diagnostics)
    if not runs:
        yield "Cannot tell whether to trust it: no run was judged."
    elif diagnostics.trusted:
        yield f"Trust it: {_reasons(diagnostics)}."
    else:
        yield "Do not trust this result yet."
    yield from _doubts(runs)
    if diagnostics.still_moving:
        yield (
            f"The draws were still moving after {_rounds(diagnostics.rounds)}: allow more "
            "polish rounds."
        )
    if diagnostics.silos and not diagnostics.rounds:
        yield "No polish round was made: intervals near 0 and 1 may be too narrow."
    yield from diagnostics.notes


def _runs(diagnostics: PosteriorDiagnostics) -> dict[str, ReleasedDiagnostics]:
    chains = diagnostics.chains
    return dict(diagnostics.silos) | ({"all silos together": chains} if chains else {})


def _reasons(diagnostics: PosteriorDiagnostics) -> str:
    silos, rounds = len(diagnostics.silos), diagnostics.rounds
    reasons = {
        "the chains over all silos mixed": diagnostics.chains is not None,
        "the silo's run mixed": silos == 1,
        f"the runs of all {silos} silos mixed": silos > 1,
        f"the draws had settled after {_rounds(rounds)}": rounds > 0,
    }
    return " and ".join(reason for reason, holds in reasons.items() if holds)


def _doubts(runs: Mapping[str, ReleasedDiagnostics]) -> Iterator[str]:
    doubted = [f"{name}: {run.verdict}" for name, run in runs.items() if not run.trusted]
    yield from doubted[:MOST_QUOTED]
    if len(doubted) > MOST_QUOTED:
        more = len(doubted) - MOST_QUOTED
        yield f"(The same goes for {more} more of {len(runs)} silos.)"


def _rounds(rounds: int) -> str:
    return f"{rounds} polish round{'' if rounds == 1 else 's'}"
