"""What a coordinator may ask and a silo may answer, and the one seam between them.

Each record below is the one declaration of a message: types, axes and bounds of its fields. How it
is packed, both of its forms and its checks follow from that; `silomix.messages.door` adds what
shapes and bounds do not say. Questions are idempotent and need no memory in the silo beyond its
store: what a silo must know of an earlier round comes with the question.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray  # noqa: TC002
from pydantic import AfterValidator, Field
from pydantic_core import core_schema

from silomix.kernels.arrays import Floats, Ints
from silomix.messages.axes import (
    CODES,
    COUNTS,
    FLOATS,
    INTEGERS,
    MOST_ROWS,
    Array,
    Fields,
    Number,
    Share,
    Text,
    Whole,
)
from silomix.messages.release_record import Release, ReleasedDiagnostics
from silomix.messages.rounding import Check  # noqa: TC001
from silomix.model.draws import MatchedDraws  # noqa: TC001
from silomix.study.policy import Policy, echo

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_SILOS = 10_000


@dataclass(frozen=True)
class DiagnosticsFields:
    """What is declared of `silomix.messages.release_record.ReleasedDiagnostics`."""

    verdict: Text
    trusted: bool
    rhat: dict[Text, float]
    ess: dict[Text, float]
    prior_draws: Share
    agreement: Annotated[float, Field(ge=-1, le=1)]
    full: Share
    sweeps: Annotated[int, Field(ge=0, le=MOST_ROWS)]


@dataclass(frozen=True)
class CheckFields:
    """What is declared of `messages.rounding_law.Check`: what only the silo may see is empty."""

    rule: Text
    where: Text
    threshold: Whole
    cells: Whole
    changed: Whole | None
    result: Text
    inside: Literal[""]


def _check_policy(values: dict[str, Any]) -> dict[str, Any]:
    return echo(Policy(**values))


@dataclass(frozen=True, eq=False)
class ReleaseFields:
    """What is declared of `silomix.messages.release_record.Release`."""

    silo: Text
    place: Whole
    rows: Annotated[int, Field(ge=1, le=MOST_ROWS)]
    sizes: Annotated[Ints, Array("cluster", INTEGERS, 1, MOST_ROWS)]
    medians: Annotated[Floats, Array("cluster level", least=0, most=1)]
    mean: Annotated[Floats, Array("cluster level", sums="level")]
    concentration: Annotated[Floats, Array("cluster variable", least=0, most=MOST_ROWS)]
    effective_counts: Annotated[Floats, Array("cluster level", least=0, most=MOST_ROWS)]
    tier: Literal["summary", "draws"]
    weights: Annotated[NDArray[np.floating], Array("draw cluster", FLOATS, sums="cluster")] | None
    probabilities: (
        Annotated[NDArray[np.floating], Array("draw cluster level", FLOATS, sums="level")] | None
    )
    diagnostics: Annotated[ReleasedDiagnostics, Fields(DiagnosticsFields)]
    study: Text
    policy: Annotated[dict[str, Any], AfterValidator(_check_policy)]
    checks: tuple[Annotated[Check, Fields(CheckFields)], ...]


Releases = Annotated[
    tuple[Annotated[Release, Fields(ReleaseFields)], ...], Field(max_length=MOST_SILOS)
]
Groups = Annotated[
    tuple[Annotated[Ints, Array("cluster", INTEGERS, 0, MOST_ROWS)], ...],
    Field(max_length=MOST_SILOS),
]


# Fields that do not travel.
STAYING = ("matched", "known_as")


class Stays:
    """Of a field that does not travel: on the other side it is None."""

    def __get_pydantic_core_schema__(self, *_: Any) -> core_schema.CoreSchema:
        """Have pydantic accept nothing else."""
        return core_schema.none_schema()


@dataclass(frozen=True)
class SampleLocally:
    """Sample, partition, relabel; reply with a `silomix.messages.release_record.Release`."""


@dataclass(frozen=True, eq=False)
class DivergenceCost:
    """Ask what it would cost to match a silo's clusters to those found so far (algorithm 1).

    The silo makes the reference of the releases itself, so that it can hold each of them
    against the rules that its own has to follow.

    Attributes
    ----------
    releases : of the silos that were matched before, in the order in which they were.
    groups : for each of them (local cluster,), the cluster of the reference that each is in.
    round : place of this question in the matching, for the randomness.
    """

    releases: Releases
    groups: Groups
    round: Whole

    @property
    def clusters(self) -> int:
        """Number of clusters of the reference."""
        return 1 + max(int(group.max()) for group in self.groups)


@dataclass(frozen=True, eq=False)
class DivergenceReply:
    """Cost of each pair, (local cluster, reference cluster), both padded with prior components."""

    cost: Annotated[Floats, Array("local_cluster reference_cluster")]


@dataclass(frozen=True, eq=False)
class ShareReleases:
    """Show a silo all silos' releases, and which of their clusters are the same.

    From these a silo makes the matched draws itself, the same numbers as everyone, so that the
    questions that follow need only carry aggregation weights.

    Attributes
    ----------
    releases : of all silos, in the order of the roster.
    groups : for each silo (local cluster,), the global cluster of each.
    draws : how many draws of each silo to make.
    matched : what the above come to, where asker and silo share a memory; it does not travel.
    known_as : its key, where the releases were left out; it does not travel.
    """

    releases: Releases
    groups: Groups
    draws: Whole
    matched: Annotated[MatchedDraws | None, Stays()] = None
    known_as: Annotated[str | None, Stays()] = None

    @cached_property
    def key(self) -> str:
        """Tell sharings apart by all that the draws are made of.

        A question names the sharing that it is about: with a key of less, the same question about
        other releases would pass for a repetition, and a silo would not count it.
        """
        from silomix.messages.container import digest  # which knows this record

        return self.known_as or digest(self)


@dataclass(frozen=True)
class Received:
    """The silo has what it was shown."""


@dataclass(frozen=True, eq=False)
class LogLikelihood:
    """Ask for the log-likelihood of the silo's rows, and its gradient, at aggregation weights.

    Attributes
    ----------
    shared : key of the sharing whose releases the weights are for.
    first, last : the matched draws to take, from `first` up to and without `last`.
    weights : (start, silo), λ at each starting point asked about.
    profiles : (start, silo, cluster), μ.
    """

    shared: Text
    first: Whole
    last: Whole
    weights: Annotated[Floats, Array("start silo", sums="silo")]
    profiles: Annotated[Floats, Array("start silo cluster", sums="silo")]


@dataclass(frozen=True, eq=False)
class LogLikelihoodReply:
    """Mean over draws of the silo's log-likelihood, and its gradient.

    Attributes
    ----------
    value : (start,)
    weights : (start, silo), ∂/∂λ.
    profiles : (start, silo, cluster), ∂/∂μ.
    """

    value: Annotated[Floats, Array("start")]
    weights: Annotated[Floats, Array("start silo")]
    profiles: Annotated[Floats, Array("start silo cluster")]


@dataclass(frozen=True)
class CountDistinctRows:
    """Ask how often each distinct row occurs; the answer is the data but for their order."""


@dataclass(frozen=True, eq=False)
class DistinctRows:
    """Distinct rows and how often each occurs.

    Attributes
    ----------
    codes : (distinct row, variable), as in a `Shard`.
    counts : (distinct row,)
    """

    codes: Annotated[NDArray[np.unsignedinteger], Array("distinct_row variable", CODES)]
    counts: Annotated[Ints, Array("distinct_row", INTEGERS, 1, MOST_ROWS)]


@dataclass(frozen=True, eq=False)
class PolishRound:
    """One Gibbs round for all chains: labels given these parameters, then counts back.

    Attributes
    ----------
    round : number of the round, for the randomness.
    weights : (chain, cluster), this silo's weights, as it returned them in the round before; in
        the exact strategy, the global ones.
    probabilities : (chain, cluster, level)
    alpha : concentration of the silo's weights; None when the coordinator draws them.
    inner_sweeps : label draws of the round, each followed by new weights unless
        the coordinator draws them.
    """

    round: Whole
    weights: Annotated[Floats, Array("chain cluster", sums="cluster")]
    probabilities: Annotated[Floats, Array("chain cluster level", sums="level")]
    alpha: Number | None
    inner_sweeps: Whole


@dataclass(frozen=True, eq=False)
class PolishReply:
    """What the silo's last labels add up to.

    Attributes
    ----------
    least : (cluster, level), the fewest cells by cluster in any chain.
    above : (chain, cluster, level), how many more a chain has: chains differ little, so that this
        fits in few bytes.
    members : (chain, cluster), rows by cluster.
    weights : (chain, cluster), drawn given `members`; those received when alpha was None.
    log_likelihood : (chain,), of the silo's rows at the parameters received.
    """

    least: Annotated[NDArray[np.unsignedinteger], Array("cluster level", COUNTS, 0, MOST_ROWS)]
    above: Annotated[
        NDArray[np.unsignedinteger], Array("chain cluster level", COUNTS, 0, MOST_ROWS)
    ]
    members: Annotated[NDArray[np.unsignedinteger], Array("chain cluster", COUNTS, 0, MOST_ROWS)]
    weights: Annotated[Floats, Array("chain cluster", sums="cluster")]
    log_likelihood: Annotated[Floats, Array("chain")]

    @property
    def counts(self) -> Ints:
        """Cells by cluster: (chain, cluster, level)."""
        return self.least.astype(np.int64) + self.above

    @classmethod
    def of(
        cls, counts: Ints, members: Ints, weights: Floats, log_likelihood: Floats
    ) -> PolishReply:
        """Return the reply with whole numbers in the fewest bytes that hold them."""
        least = counts.min(axis=0)
        return cls(
            _in_few_bytes(least),
            _in_few_bytes(counts - least),
            _in_few_bytes(members),
            weights,
            log_likelihood,
        )


def _in_few_bytes(values: Ints) -> NDArray[np.unsignedinteger]:
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


@dataclass(frozen=True, eq=False)
class AssignRows:
    """Ask the silo to find its rows' clusters, and to keep them.

    Attributes
    ----------
    weights : (draw, cluster), this silo's own weights.
    probabilities : (draw, cluster, level), the global profiles.
    groups : (local cluster,), the global cluster of each local one: a row then goes where its
        local cluster goes, as in Fendler et al. (2026); None to go by probability.
    """

    weights: Annotated[NDArray[np.floating], Array("draw cluster", FLOATS, sums="cluster")]
    probabilities: Annotated[
        NDArray[np.floating], Array("draw cluster level", FLOATS, sums="level")
    ]
    groups: Annotated[Ints, Array("local_cluster", INTEGERS, 0, MOST_ROWS)] | None = None


@dataclass(frozen=True, eq=False)
class AssignReply:
    """How many rows each cluster got; the rows' own labels stay in the silo.

    Attributes
    ----------
    sizes : (cluster,), rows by most probable cluster; −1 where the silo's policy withholds it.
    """

    sizes: Annotated[Ints, Array("cluster", INTEGERS, -1, MOST_ROWS)]


@dataclass(frozen=True)
class Refused:
    """A silo's answer when it has none: a code, never the text of what went wrong.

    Attributes
    ----------
    code : one of `REFUSALS`.
    """

    code: Text


# What a silo may say when it does not answer; the details are in its own log.
REFUSALS = {
    "policy": "its policy does not allow this question",
    "limit": "its policy allows no more questions of this kind in one study",
    "shown": "it was shown a release that its own policy would not let out",
    "studies": "its policy allows no other study of this table, unless its owner does",
    "too-few-rows": "it has fewer rows than its policy's minimum",
    "study": "it takes part in another study",
    "question": "it could not read the question, or the question does not fit the study",
    "order": "it was not shown the releases this question refers to",
    "data": "its table does not fit the study",
    "dependency": "a package it needs is not installed there",
    "died": "its worker died",
    "failed": "something went wrong there",
}

Query = (
    SampleLocally
    | DivergenceCost
    | ShareReleases
    | LogLikelihood
    | CountDistinctRows
    | PolishRound
    | AssignRows
)


# The answer to each question.
REPLIES: dict[type, type] = {
    SampleLocally: Release,
    DivergenceCost: DivergenceReply,
    ShareReleases: Received,
    LogLikelihood: LogLikelihoodReply,
    CountDistinctRows: DistinctRows,
    PolishRound: PolishReply,
    AssignRows: AssignReply,
}

# Every record that travels, and where its fields are declared. Nothing else does.
DECLARED: dict[type, type] = {
    kind: ReleaseFields if kind is Release else kind
    for kind in (*REPLIES, *REPLIES.values(), Refused)
}


class Silos(Protocol):
    """The one seam: ask the silos, get one reply from each, by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The roster, in order."""
        ...

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask every silo one query, or each of the named silos its own; one reply from each.

        A silo that does not answer is an error, never a shorter mapping.
        """
        ...
