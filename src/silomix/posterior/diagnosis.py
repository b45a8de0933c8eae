"""Whether the global posterior can be trusted: the silos' own verdicts, the polish, the notes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from silomix.diagnostics import fewest_draws, rhat_words, worst_rhat
from silomix.study.names import spoken
from silomix.words import plural

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
    values : by name, (round, …): means over the chains after each round; "movement", a line for
        each check of whether they still moved.
    rounds : how many were made.
    still_moving : whether the last check found that the draws had not settled.
    """

    values: Mapping[str, NDArray[np.floating]]
    rounds: int
    still_moving: bool

    @property
    def checked(self) -> bool:
        """Whether there were enough rounds to compare early ones with late ones."""
        return len(self.values.get("movement", ())) > 0


@dataclass(frozen=True, eq=False, repr=False)
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
        """Whether the last check of the polish found that the draws had not settled."""
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

    def __repr__(self) -> str:
        """Return the verdict, and a line for each run and for the aggregation."""
        return "\n".join([self.verdict, *_lines(self)])


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
    rounds = plural(diagnostics.rounds, "polish round")
    if diagnostics.still_moving:
        yield f"The draws were still moving after {rounds}: allow more polish rounds."
    elif diagnostics.polish and diagnostics.rounds and not diagnostics.polish.checked:
        yield (
            f"Whether the draws had settled was not checked: {rounds} "
            f"{'is' if diagnostics.rounds == 1 else 'are'} too few to tell."
        )
    if diagnostics.silos and not diagnostics.rounds:
        yield "No polish round was made: intervals near 0 and 1 may be too narrow."
    yield from diagnostics.notes


def _runs(diagnostics: PosteriorDiagnostics) -> dict[str, ReleasedDiagnostics]:
    chains = diagnostics.chains
    return dict(diagnostics.silos) | ({"all silos together": chains} if chains else {})


def _reasons(diagnostics: PosteriorDiagnostics) -> str:
    silos, rounds = len(diagnostics.silos), diagnostics.rounds
    checked = diagnostics.polish is not None and diagnostics.polish.checked
    reasons = {
        "the chains over all silos mixed": diagnostics.chains is not None,
        "the silo's run mixed": silos == 1,
        f"the runs of all {silos} silos mixed": silos > 1,
        f"the draws had settled after {plural(rounds, 'polish round')}": checked,
    }
    return " and ".join(reason for reason, holds in reasons.items() if holds)


def _doubts(runs: Mapping[str, ReleasedDiagnostics]) -> Iterator[str]:
    doubted = [f"{spoken(name)}: {run.verdict}" for name, run in runs.items() if not run.trusted]
    yield from doubted[:MOST_QUOTED]
    if len(doubted) > MOST_QUOTED:
        more = len(doubted) - MOST_QUOTED
        yield f"(The same goes for {more} more of {len(runs)} silos.)"


def _lines(diagnostics: PosteriorDiagnostics) -> Iterator[str]:
    """Yield the numbers behind the verdict, a line for each run."""
    for name, run in _runs(diagnostics).items():
        rhat, ess = worst_rhat(run.rhat.values()), fewest_draws(run.ess.values())
        told = (
            "constant traces"
            if math.isnan(rhat) or math.isnan(ess)
            else f"R-hat at most {rhat_words(rhat, 2)}, at least {ess:,.0f} effective draws"
        )
        yield f"{spoken(name)}: {'trusted' if run.trusted else 'in doubt'}, {told}"
    if diagnostics.elbo is not None and len(diagnostics.elbo):
        first, last = diagnostics.elbo[0], diagnostics.elbo[-1]
        yield f"aggregation: ELBO from {first:,.1f} to {last:,.1f}"
