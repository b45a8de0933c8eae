"""Whether the global posterior can be trusted, and where it comes from.

The verdict is one level, its first cause, and what mends it.

The level follows what predicts a wrong result, not what is easy to compute: whether the polish's
own chains were at rest, the worst cluster and not the average; whether a silo's chains, each by
itself, find the same clusters; how sure the matching is; whether components ran out; and whether
there are rows enough. How the silos' own traces mixed matters only where no polish follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Literal, NamedTuple, TypeAlias

from silomix.kernels.arrays import Floats, Reals
from silomix.messages import Release, ReleasedDiagnostics, container
from silomix.messages.progress import duration
from silomix.model.sentences import listing, plural, spoken
from silomix.study import Study, digest

Level = Literal["trust", "care", "distrust"]
# By silo, and by kind of reply.
Counts: TypeAlias = Mapping[str, Mapping[str, int]]
LEVELS: tuple[Level, ...] = ("trust", "care", "distrust")

# Silos that a sentence names; the others are only counted.
MOST_NAMED = 3
# Share of a silo's draws without an empty component from which its components ran out.
FULL = 0.95
# Below the first a result needs care, below the second it is not to be trusted.
UNSURE = {"agreement": (0.8, 0.5), "confidence": (0.95, 0.5)}
# Standard errors that the worst cluster may move between two checks, likewise.
MOVED = (6.0, 60.0)
# Rows of the smallest cluster, likewise.
FEW_ROWS = (20, 5)


class Movement(NamedTuple):
    """How far the cluster that moved most did between the last two windows of a polish.

    Attributes
    ----------
    cluster : its number.
    share : by how much its share of all rows changed.
    variable, parameter : what changed most clearly; by : by how much, in the units of the table.
    """

    cluster: int
    share: float
    variable: str
    parameter: str
    by: float


@dataclass(frozen=True, eq=False)
class PolishTrace:
    """Movement of the draws over the polish rounds.

    Attributes
    ----------
    values : by name, (round, …): means over the chains after each round; "movement", a line for
        each check of whether they still moved.
    rounds : how many were made.
    still_moving : whether the last check found that the draws had not settled.
    chains : how many were made at once.
    spent : whether they ended because a budget of bytes allowed no more.
    worst : the cluster that moved most; None where they were too few for a check.
    seconds : of each round; None in saved files.
    """

    values: Mapping[str, Reals]
    rounds: int
    still_moving: bool
    chains: int = 1
    spent: bool = False
    worst: Movement | None = None
    seconds: float | None = field(default=None, compare=False, metadata=container.STAYS)

    @property
    def checked(self) -> bool:
        """Whether there were enough rounds to compare early ones with late ones."""
        return len(self.values.get("movement", ())) > 0

    @property
    def moved(self) -> float:
        """Movement of the worst cluster at the last check, in standard errors."""
        return float(self.values["movement"][-1][2:].max()) if self.checked else math.nan

    def renumbered(self, weights: Reals) -> PolishTrace:
        """The same with clusters numbered by size, the largest first; weights : (draw, cluster)."""
        if self.worst is None:
            return self
        sizes = weights.mean(axis=0)
        place = int((sizes > sizes[self.worst.cluster]).sum())
        return replace(self, worst=self.worst._replace(cluster=place))

    @property
    def advised(self) -> int:
        """Rounds after which it may be at rest, if it goes on to slow down as between checks."""
        made = self.rounds
        first, last = self.values["movement"][[0, -1]]
        before, now = (math.log(max(*check[2:], 1.0) / MOVED[0]) for check in (first, last))
        more = 3.0 * made
        if now < before:
            more = now * (last[0] - first[0]) / (before - now)
        return 10 * math.ceil(min(max(made + more, 1.5 * made), 10 * made) / 10)


class Cause(NamedTuple):
    """One reason not to trust a result as it is.

    Attributes
    ----------
    level : "care" or "distrust".
    sentence : what was found.
    advice : the setting that mends it, and what that costs.
    """

    level: Level
    sentence: str
    advice: str


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorDiagnostics:
    """Diagnostics of the global posterior, and the verdict.

    Attributes
    ----------
    silos : by name, what each silo says about its own run; empty where silos did not sample alone.
    elbo : (step,), the objective of the aggregation at each step of the best start; None when
        no objective was maximised.
    polish : None when no polish was asked for.
    chains : how chains that ran over all silos at once mixed; None when there were none.
    confidence : how certain the least certain match is; None where none was sampled.
    smallest : expected rows of the smallest cluster; None where it is not known.
    notes : sentences, such as that a limit of the aggregation was reached.
    """

    silos: Mapping[str, ReleasedDiagnostics]
    elbo: Floats | None = None
    polish: PolishTrace | None = None
    chains: ReleasedDiagnostics | None = None
    confidence: float | None = None
    smallest: float | None = None
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
    def runs(self) -> dict[str, ReleasedDiagnostics]:
        """By name, all runs that were judged: those of silos, and the one over all of them."""
        return dict(self.silos) | ({"all silos together": self.chains} if self.chains else {})

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Causes of doubt, the worst first."""
        doubts = [cause for cause in _causes(self) if cause.level != "trust"]
        return tuple(sorted(doubts, key=lambda cause: cause.level != "distrust"))

    @property
    def level(self) -> Level:
        """Degree of trust: "trust", "care" or "distrust"; never the first if nothing judged."""
        if not self.runs:
            return "care"
        return max((cause.level for cause in self.causes), key=LEVELS.index, default="trust")

    @property
    def trusted(self) -> bool:
        """Whether the level is "trust"."""
        return self.level == "trust"

    @property
    def verdict(self) -> str:
        """A few plain sentences."""
        return " ".join(sentences(self))

    def __repr__(self) -> str:
        return self.verdict


def sentences(diagnostics: PosteriorDiagnostics) -> Iterator[str]:
    """Yield the verdict on a posterior, a sentence at a time: the causes, then the notes."""
    causes = diagnostics.causes if diagnostics.runs else ()
    if not diagnostics.runs:
        yield "Cannot tell whether to trust it: no run was judged."
    elif not causes:
        yield f"Trust it: {_reasons(diagnostics)}."
    openings = {"care": "Use with care:", "distrust": "Do not trust this result yet:"}
    for place, cause in enumerate(causes):
        yield f"{'Also,' if place else openings[cause.level]} {cause.sentence}."
        yield f"{cause.advice}."
    if diagnostics.polish and diagnostics.rounds and not diagnostics.polish.checked:
        more = plural(diagnostics.rounds, "round")
        yield f"Whether the draws had settled was not checked: that takes more than {more}."
    yield from diagnostics.notes


def judge(value: float, limits: tuple[float, float]) -> Level:
    """Return the level of one finding; nan, where it was not made, speaks for nothing.

    Parameters
    ----------
    limits : where care begins, and where distrust does; in the order in which it gets worse.
    """
    sign = math.copysign(1.0, limits[0] - limits[1])
    care, distrust = (sign * value < sign * limit for limit in limits)
    return "distrust" if distrust else "care" if care else "trust"


def _causes(diagnostics: PosteriorDiagnostics) -> Iterator[Cause]:
    """Yield the findings, those of level "trust" among them."""
    limits, silos = UNSURE["agreement"], diagnostics.silos
    sure, polish, rows = diagnostics.confidence, diagnostics.polish, diagnostics.smallest
    if apart := [name for name, run in silos.items() if judge(run.agreement, limits) != "trust"]:
        least = min(silos[name].agreement for name in apart)
        yield Cause(
            judge(least, limits),
            f"chains of the same silo find different clusters: {_names(apart)} (adjusted Rand "
            f"index as low as {least:.2f}, at least {limits[0]} wanted)",
            "Use five times the iterations (sampling then takes about five times as long); if "
            "that does not help, the rows do not determine the clusters",
        )
    if sure is not None:
        yield Cause(
            judge(sure, UNSURE["confidence"]),
            "it is uncertain which clusters of different silos are the same (probability "
            f"{sure:.2f} for the least certain, at least {UNSURE['confidence'][0]} wanted)",
            "More rows or fewer silos would help, but not more iterations; correspondence.csv, or "
            "posterior.correspondence_frame(), shows which clusters these are",
        )
    if polish is not None and polish.still_moving:
        yield _moving(polish)
    if full := [name for name, run in silos.items() if run.full >= FULL]:
        where = f" in {_names(full)}" if len(silos) > 1 else ""
        yield Cause(
            "care",
            f"every component held rows{where}: there may be more clusters",
            "Use twice the components (sampling then takes about twice as long)",
        )
    if rows is not None:
        yield Cause(
            judge(rows, FEW_ROWS),
            f"the smallest cluster has about {plural(round(rows), 'row')}, too few to describe it",
            "Treat its numbers as a hint; only more rows would make them reliable",
        )
    # how traces mixed matters only where nothing polishes the draws afterwards
    runs = {} if diagnostics.rounds else diagnostics.runs
    if doubted := [name for name, run in runs.items() if not run.trusted]:
        yield Cause(
            "care",
            f"the traces of {_names(doubted)} had not mixed, or are too short to tell",
            "Use twice the iterations (sampling then takes about twice as long)",
        )


def _moving(polish: PolishTrace) -> Cause:
    """What had not settled, by how much, and how many more rounds may do."""
    more, worst, moved = polish.advised, polish.worst, plural(polish.rounds, "polish round")
    moved += ", all that most_bytes allows" if polish.spent else ""
    if worst is not None:
        moved += (
            f"; most of all cluster {worst.cluster}: its share of the rows by {worst.share:+.1%}, "
            f"{worst.variable} ({worst.parameter}) by {worst.by:+.2g}"
        )
    cost = f"takes about {more / polish.rounds:.0f} times as long"
    if polish.seconds is not None:
        cost = f"takes about {duration((more - polish.rounds) * polish.seconds)} more"
    return Cause(
        max("care", judge(polish.moved, MOVED), key=LEVELS.index),
        f"the draws were still moving after {moved}",
        f"Set polish to {more} (polishing then {cost})",
    )


def _names(silos: list[str]) -> str:
    return listing([spoken(name) for name in silos], MOST_NAMED, " and ")


def _reasons(diagnostics: PosteriorDiagnostics) -> str:
    silos = len(diagnostics.silos)
    every = "both" if silos == 2 else f"all {silos}"
    checked = diagnostics.polish is not None and diagnostics.polish.checked
    reasons = {
        "the chains over all silos mixed": diagnostics.chains is not None,
        "the silo's chains agree on the clusters": silos == 1,
        f"in {every} silos the chains agree on the clusters": silos > 1,
        "it is clear which clusters match across silos": silos > 1
        and diagnostics.confidence is not None,
        f"the draws had settled after {plural(diagnostics.rounds, 'polish round')}": checked,
    }
    return listing([reason for reason, holds in reasons.items() if holds], last=", and ")


@dataclass(frozen=True)
class Provenance:
    """Where a posterior comes from.

    Attributes
    ----------
    version : of silomix.
    study : digest of the study.
    seed : of all randomness.
    silos : the silos that took part, in the order of the roster and of every silo axis.
    releases : by silo, digest of its release; empty where silos made none.
    sent : by silo, and by kind of reply, the bytes that left it.
    answered : by silo, and by kind of reply, how many questions it answered.
    table : name of the file that the rows came from, if one did.
    """

    version: str
    study: str
    seed: int
    silos: tuple[str, ...]
    releases: Mapping[str, str]
    sent: Counts
    answered: Counts
    table: str = ""


def make_provenance(
    study: Study, releases: Iterable[Release], sent: Counts, answered: Counts
) -> Provenance:
    """Return the provenance of a posterior made now.

    Parameters
    ----------
    study : its settings.
    releases : of every silo that made one.
    sent : by silo and kind of reply, bytes, as `count_bytes` counts them.
    answered : by silo and kind of reply, how many.
    """
    version = metadata.version("silomix")
    digests = {release.silo: container.digest_record(release) for release in releases}
    return Provenance(version, digest(study), study.seed, study.silos, digests, sent, answered)
