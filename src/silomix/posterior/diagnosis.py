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
    notes : sentences, such as that a limit of the aggregation was reached.
    """

    silos: Mapping[str, ReleasedDiagnostics]
    elbo: NDArray[np.float64] | None = None
    polish: PolishTrace | None = None
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
        """Whether every silo's run mixed and the draws were not moving at the end."""
        return not self.still_moving and all(silo.trusted for silo in self.silos.values())

    @property
    def verdict(self) -> str:
        """A few plain sentences."""
        return " ".join(sentences(self))


def sentences(diagnostics: PosteriorDiagnostics) -> Iterator[str]:
    """Yield the verdict on a posterior, a sentence at a time."""
    doubted = {n: silo for n, silo in diagnostics.silos.items() if not silo.trusted}
    if diagnostics.trusted:
        yield "Trust it: " + " and ".join(_reasons(diagnostics)) + "."
    else:
        yield "Do not trust this result yet."
    if doubted:
        yield f"{_how_many(len(doubted), len(diagnostics.silos))} not to be trusted alone:"
        for name, silo in list(doubted.items())[:MOST_QUOTED]:
            yield f"{name}: {silo.verdict}"
        if len(doubted) > MOST_QUOTED:
            yield f"(And {len(doubted) - MOST_QUOTED} more.)"
    if diagnostics.still_moving:
        yield (
            f"The draws were still moving after {_rounds(diagnostics.rounds)}: allow more "
            "polish rounds."
        )
    elif diagnostics.rounds == 0:
        yield "No polish round was made: intervals near 0 and 1 may be too narrow."
    yield from diagnostics.notes


def _reasons(diagnostics: PosteriorDiagnostics) -> Iterator[str]:
    silos = len(diagnostics.silos)
    if silos:
        yield "the silo's run mixed" if silos == 1 else f"the runs of all {silos} silos mixed"
    if diagnostics.rounds:
        yield f"the draws had settled after {_rounds(diagnostics.rounds)}"
    if not silos and not diagnostics.rounds:
        yield "nothing speaks against it"


def _how_many(doubted: int, silos: int) -> str:
    if silos == 1:
        return "The silo's run is"
    return f"The run{'s' if doubted > 1 else ''} of {doubted} of {silos} silos {'are' if doubted > 1 else 'is'}"


def _rounds(rounds: int) -> str:
    return f"{rounds} polish round{'' if rounds == 1 else 's'}"
