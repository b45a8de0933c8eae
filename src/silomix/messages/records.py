"""What a coordinator may ask and a silo may answer, and the one seam between them.

A query is one of the records below; a reply is one record each. Queries are idempotent and need no
memory in the silo beyond its store: what a silo must know of an earlier round comes with the
question. Every transport implements `Silos.ask`; none contains statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from silomix.release import Release
    from silomix.types import MatchedDraws


@dataclass(frozen=True)
class SampleLocally:
    """Sample, partition, relabel; reply with a `silomix.release.Release`."""


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

    releases: tuple[Release, ...]
    groups: tuple[NDArray[np.int64], ...]
    round: int

    @property
    def clusters(self) -> int:
        """Number of clusters of the reference."""
        return 1 + max(int(group.max()) for group in self.groups)


@dataclass(frozen=True, eq=False)
class DivergenceReply:
    """Cost of each pair, (local cluster, reference cluster), both padded with prior components."""

    cost: NDArray[np.float64]


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

    releases: tuple[Release, ...]
    groups: tuple[NDArray[np.int64], ...]
    draws: int
    matched: MatchedDraws | None = None
    known_as: str | None = None

    @cached_property
    def key(self) -> str:
        """Tell sharings apart by all that the draws are made of.

        A question names the sharing that it is about: with a key of less, the same question about
        other releases would pass for a repetition, and a silo would not count it.
        """
        from silomix.messages.binary import digest  # the table behind it names this record

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

    shared: str
    first: int
    last: int
    weights: NDArray[np.float64]
    profiles: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LogLikelihoodReply:
    """Mean over draws of the silo's log-likelihood, and its gradient.

    Attributes
    ----------
    value : (start,)
    weights : (start, silo), ∂/∂λ.
    profiles : (start, silo, cluster), ∂/∂μ.
    """

    value: NDArray[np.float64]
    weights: NDArray[np.float64]
    profiles: NDArray[np.float64]


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

    codes: NDArray[np.unsignedinteger]
    counts: NDArray[np.int64]


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

    round: int
    weights: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    alpha: float | None
    inner_sweeps: int


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

    least: NDArray[np.unsignedinteger]
    above: NDArray[np.unsignedinteger]
    members: NDArray[np.unsignedinteger]
    weights: NDArray[np.float64]
    log_likelihood: NDArray[np.float64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Cells by cluster: (chain, cluster, level)."""
        return self.least.astype(np.int64) + self.above

    @classmethod
    def of(
        cls,
        counts: NDArray[np.int64],
        members: NDArray[np.int64],
        weights: NDArray[np.float64],
        log_likelihood: NDArray[np.float64],
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


def _in_few_bytes(values: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
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

    weights: NDArray[np.floating]
    probabilities: NDArray[np.floating]
    groups: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class AssignReply:
    """How many rows each cluster got; the rows' own labels stay in the silo.

    Attributes
    ----------
    sizes : (cluster,), rows by most probable cluster; −1 where the silo's policy withholds it.
    """

    sizes: NDArray[np.int64]


@dataclass(frozen=True)
class Refused:
    """A silo's answer when it has none: a code, never the text of what went wrong.

    Attributes
    ----------
    code : one of `REFUSALS`.
    """

    code: str


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
"""What a silo may say when it does not answer; the details are in its own log."""

Query = (
    SampleLocally
    | DivergenceCost
    | ShareReleases
    | LogLikelihood
    | CountDistinctRows
    | PolishRound
    | AssignRows
)


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
