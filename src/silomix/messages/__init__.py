"""Questions of a coordinator and answers of a silo, and the one interface between them.

Each record below is the one declaration of a message: types, axes and bounds of its fields. Both
encodings and most checks follow from that; `message_checks` adds those that shapes and bounds do
not express. Questions are idempotent and need no memory in the silo beyond its store: anything from
an earlier round comes with the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, FailFast, Field

from silomix.kernels.arrays import Codes, Floats, Ints, Reals
from silomix.messages.container import (
    CODES,
    COUNTS,
    FLOATS,
    INTEGERS,
    MOST_ROWS,
    SINGLES,
    Array,
    Number,
    Share,
    Text,
    Whole,
    digest_record,
)
from silomix.study.policy import OPEN, Policy, echo

if TYPE_CHECKING:
    from silomix.model.draws import Diagnostics

MOST_SILOS = 10_000

Tier = Literal["summary", "draws"]


@dataclass(frozen=True)
class ReleasedDiagnostics:
    """Diagnostics of a silo's run, as released.

    Attributes
    ----------
    verdict, trusted : as in `silomix.model.draws.Diagnostics`.
    rhat, ess : by trace.
    prior_draws : largest share of draws, over clusters, whose parameters come from the prior.
    agreement : adjusted Rand index of the partitions of single chains
        (`silomix.silo.partition.chain_agreement`); 1 for one chain or one cluster.
    full : share of draws in which every component was occupied, so that there may be more clusters
        than components.
    sweeps : of each of its chains, burn-in included; 0 where the policy has rules, since the length
        of an adaptive run depends on the rows.
    """

    verdict: Text
    trusted: bool
    rhat: dict[Text, float]
    ess: dict[Text, float]
    prior_draws: Share
    agreement: Annotated[float, Field(ge=-1, le=1)] = 1.0
    full: Share = 0.0
    sweeps: Annotated[int, Field(ge=0, le=MOST_ROWS)] = 0

    @classmethod
    def of(cls, diagnostics: Diagnostics, **rest: Any) -> Self:
        """The releasable part of a run's diagnostics: verdict and numbers, not traces."""
        rhat = {name: trace.rhat for name, trace in diagnostics.traces.items()}
        ess = {name: trace.ess for name, trace in diagnostics.traces.items()}
        return cls(diagnostics.verdict, diagnostics.trusted, rhat, ess, **rest)


@dataclass(frozen=True)
class Check:
    """Effect of one rule of a policy on a release.

    Attributes
    ----------
    rule, where : the rule, and the numbers to which it was applied.
    threshold : the policy's number.
    cells : number of numbers to which it was applied.
    changed : number of numbers that it changed; None where that would disclose one of them.
    result : "applied", "not needed" or "passed".
    inside : details for the silo only, which do not travel.
    """

    rule: Text
    where: Text
    threshold: Whole
    cells: Whole
    changed: Whole | None
    result: Text
    inside: Annotated[str, Field(max_length=0)] = ""


EchoedPolicy = Annotated[dict[str, Any], AfterValidator(lambda values: echo(Policy(**values)))]


@dataclass(frozen=True, eq=False)
class Release:
    """One silo's posterior, as the coordinator sees it.

    Attributes
    ----------
    silo, place : its name, and its place in the roster.
    sizes : (cluster,), rows of each local cluster.
    known : (cluster, variable), how many of these rows have a cell, 0 for too few to tell; the
        sizes where no rule changed anything.
    mean : (cluster, statistic), of a row, without the prior: of categories, the levels' shares.
    concentration : (cluster, variable), how many rows the draws are worth, without the prior: by
        the moments of the draws. Doubt about who belongs counts as less data.
    tier : "draws", or "summary" where the draws stay in the silo and are re-made from the above.
    weights, parameters : (draw, cluster) and (draw, cluster, parameter); None in tier "summary".
    diagnostics : what the silo says of its run.
    study : digest of the study it was made under.
    policy : the silo's policy, echoed: `silomix.study.policy.Policy(**policy)`.
    checks : what the policy's rules did, as far as that may be said outside.
    """

    silo: Text
    place: Whole
    sizes: Annotated[Ints, Array("cluster", INTEGERS, 1, MOST_ROWS)]
    known: Annotated[Ints, Array("cluster variable", INTEGERS, 0, MOST_ROWS)]
    mean: Annotated[Floats, Array("cluster statistic")]
    concentration: Annotated[Floats, Array("cluster variable", least=0, most=MOST_ROWS)]
    tier: Tier
    weights: Annotated[Reals, Array("draw cluster", SINGLES, sums="cluster")] | None
    parameters: Annotated[Reals, Array("draw cluster parameter", SINGLES)] | None
    diagnostics: ReleasedDiagnostics
    study: Text
    policy: EchoedPolicy = field(default_factory=lambda: echo(OPEN))
    checks: Annotated[tuple[Check, ...], FailFast()] = ()

    @property
    def rows(self) -> int:
        """n_s, the sum of the sizes: under a policy that rounds, a rounded number."""
        return int(self.sizes.sum())

    @property
    def clusters(self) -> int:
        """Number of local clusters."""
        return len(self.sizes)


Releases = Annotated[tuple[Release, ...], FailFast(), Field(max_length=MOST_SILOS)]
Groups = Annotated[
    tuple[Annotated[Ints, Array("cluster", INTEGERS, 0, MOST_ROWS)], ...],
    Field(max_length=MOST_SILOS),
]


@dataclass(frozen=True)
class SampleLocally:
    """Sample, partition, relabel; reply with a `Release`."""


@dataclass(frozen=True, eq=False)
class DivergenceCost:
    """Ask for the costs of matching a silo's clusters to those of earlier silos (algorithm 1).

    The silo computes the reference from the releases itself, so that it can check each of them
    against the rules for its own.

    Attributes
    ----------
    releases : of the silos that were matched before, in that order.
    groups : for each of them (local cluster,), the cluster of the reference that each is in.
    round : number of this question in the matching, for the random numbers.
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

    From these every silo computes the same matched draws, so that later questions need only carry
    aggregation weights.

    Attributes
    ----------
    releases : of all silos, in the order of the roster.
    groups : for each silo (local cluster,), the global cluster of each.
    draws : number of draws of each silo to make.
    """

    releases: Releases
    groups: Groups
    draws: Whole

    @cached_property
    def key(self) -> str:
        """Digest of everything that the matched draws depend on.

        A question names its sharing by this key: with a key of less, the same question about other
        releases would be taken for a repetition, and a silo would not count it.
        """
        return digest_record(self)


@dataclass(frozen=True)
class Received:
    """Confirmation by a silo, without any information about its rows."""


@dataclass(frozen=True, eq=False)
class LogLikelihood:
    """Ask for the log-likelihood of the silo's rows, and its gradient, at aggregation weights.

    Attributes
    ----------
    shared : key of the sharing whose releases the weights are for.
    first, last : the matched draws to use, `first` to before `last`.
    weights : (start, silo), λ at each starting point.
    profiles : (start, silo, cluster), μ.
    """

    shared: Text
    first: Whole
    last: Whole
    weights: Annotated[Floats, Array("start silo", sums="silo")]
    profiles: Annotated[Floats, Array("start silo cluster", sums="silo")]


@dataclass(frozen=True, eq=False)
class LogLikelihoodReply:
    """Log-likelihood of the silo's rows, averaged over draws, and its gradient.

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
    """Ask for the distinct rows and their frequencies, which are the data up to order."""


@dataclass(frozen=True, eq=False)
class DistinctRows:
    """Distinct rows and their frequencies.

    Attributes
    ----------
    rows : (distinct row, variable), as the `codes` of a `Shard`.
    counts : (distinct row,)
    """

    rows: Annotated[Codes, Array("distinct_row variable", CODES)]
    counts: Annotated[Ints, Array("distinct_row", INTEGERS, 1, MOST_ROWS)]


@dataclass(frozen=True, eq=False)
class PolishRound:
    """One Gibbs round for all chains: labels given these parameters, then counts back.

    Attributes
    ----------
    round : number of the round, for the random numbers.
    weights : (chain, cluster), this silo's weights, as it returned them in the round before; in
        the exact strategy, the global ones.
    parameters : (chain, cluster, parameter)
    alpha : concentration of the silo's weights; None when the coordinator draws them.
    inner_sweeps : label draws of the round, each followed by new weights unless
        the coordinator draws them.
    """

    round: Whole
    weights: Annotated[Floats, Array("chain cluster", sums="cluster")]
    parameters: Annotated[Floats, Array("chain cluster parameter")]
    alpha: Number | None
    inner_sweeps: Whole


@dataclass(frozen=True, eq=False)
class PolishReply:
    """Sums of the silo's rows by their last labels.

    Attributes
    ----------
    least : (cluster, statistic), the smallest sum of any chain.
    above : (chain, cluster, statistic), excess of each chain over that: chains differ little, so
        that this fits in few bytes. Whole numbers where all statistics are counts.
    members : (chain, cluster), rows by cluster.
    weights : (chain, cluster), drawn given `members`; those received when alpha was None.
    log_likelihood : (chain,), of the silo's rows at the parameters received.
    """

    least: Annotated[NDArray[Any], Array("cluster statistic", (*COUNTS, *FLOATS))]
    above: Annotated[NDArray[Any], Array("chain cluster statistic", (*COUNTS, *FLOATS), 0)]
    members: Annotated[Codes, Array("chain cluster", COUNTS, 0, MOST_ROWS)]
    weights: Annotated[Floats, Array("chain cluster", sums="cluster")]
    log_likelihood: Annotated[Floats, Array("chain")]

    @property
    def statistics(self) -> NDArray[Any]:
        """Sums over the rows of each cluster: (chain, cluster, statistic)."""
        whole = np.issubdtype(self.least.dtype, np.integer)
        return self.least.astype(np.int64 if whole else np.float64) + self.above

    @classmethod
    def of(
        cls, statistics: NDArray[Any], members: NDArray[Any], weights: Floats, likelihood: Floats
    ) -> Self:
        """Make the reply in the smallest integer types, or in single precision."""
        least = statistics.min(axis=0)
        above, counts = statistics - least, _in_few_bytes(members)
        if np.issubdtype(statistics.dtype, np.integer):
            return cls(_in_few_bytes(least), _in_few_bytes(above), counts, weights, likelihood)
        return cls(least, above.astype(np.float32), counts, weights, likelihood)


def _in_few_bytes(values: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers in the smallest type that holds them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


@dataclass(frozen=True, eq=False)
class AssignRows:
    """Ask the silo to assign its rows to clusters, and to keep the labels.

    The silo only confirms it. The coordinator chooses the profiles, so that counts of rows by
    cluster, even rounded ones, could be compared with the release and reveal single rows.

    Attributes
    ----------
    weights : (draw, cluster), this silo's own weights.
    parameters : (draw, cluster, parameter), the global profiles.
    groups : (local cluster,), the global cluster of each local one, by which rows are then assigned
        as in Fendler et al. (2026); None to assign by probability.
    """

    weights: Annotated[Reals, Array("draw cluster", FLOATS, sums="cluster")]
    parameters: Annotated[Reals, Array("draw cluster parameter", FLOATS)]
    groups: Annotated[Ints, Array("local_cluster", INTEGERS, 0, MOST_ROWS)] | None = None


@dataclass(frozen=True)
class Refused:
    """A silo's refusal: a code, never the text of an error.

    Attributes
    ----------
    code : one of `REFUSALS`.
    """

    code: Text


# Reasons that a silo may give for not answering; the details are in its own log.
REFUSALS = {
    "policy": "its policy does not allow this question",
    "limit": "its policy allows no more questions of this kind in one study",
    "shown": "it was shown a release that violates its own policy",
    "studies": "its policy allows no other study of this table, unless its owner does",
    "too-few-rows": "it has fewer rows than its policy's minimum",
    "study": "it takes part in another study",
    "question": "it could not read the question, or the question does not fit the study",
    "order": "it was not shown the releases this question refers to",
    "data": "its table does not fit the study",
    "dependency": "a package it needs is not installed there",
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
    AssignRows: Received,
}

# Every record that travels, by name; there are no others.
KINDS: dict[str, type] = {kind.__name__: kind for kind in (*REPLIES, *REPLIES.values(), Refused)}


def by_silo(query: Query | Mapping[str, Query], names: Iterable[str]) -> Mapping[str, Query]:
    """The question for each silo: the same for all, or its own."""
    return query if isinstance(query, Mapping) else dict.fromkeys(names, query)


class Silos(Protocol):
    """The one interface to the silos: ask them, and get one reply from each, by name."""

    @property
    def names(self) -> tuple[str, ...]:
        """The roster, in order."""

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask every silo one query, or each of the named silos its own; one reply from each.

        A silo that does not answer is an error, never a shorter mapping.
        """
