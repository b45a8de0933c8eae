"""Whether a message that could be read also makes sense: the checks at both doors.

`silomix.messages.schema` sees to types and to the shapes within one record; here questions are held
against the study, in the silo, and answers against question and study, at the coordinator.
Each check yields what is wrong, as the end of a sentence, and may rely on the checks before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import MessageError
from silomix.messages.binary import digest as digest_question
from silomix.messages.documents import shorten
from silomix.messages.records import (
    REFUSALS,
    AssignReply,
    AssignRows,
    CountDistinctRows,
    DistinctRows,
    DivergenceCost,
    DivergenceReply,
    LogLikelihood,
    LogLikelihoodReply,
    PolishReply,
    PolishRound,
    Query,
    Received,
    Refused,
    SampleLocally,
    ShareReleases,
)
from silomix.release import Release
from silomix.study import Lbfgs, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from silomix.messages.envelope import Envelope
    from silomix.study import Study

    Problems = Iterator[str]

NORMALISED = 1e-4
"""Draws in single precision of a variable with a thousand levels sum to one this closely."""

MOST_DRAWS = 100_000
MOST_LABELS = 255
"""Clusters of a polish round: labels are stored in one byte."""
MOST_MATCHED = 2**30
"""Numbers that a silo makes of what it is shown, 8 bytes each."""
LARGEST_TOTAL = 2**53
"""Rows, as a float counts them."""
SMALLEST = float(np.finfo(np.float64).tiny)
LARGEST = 1e100
"""No likelihood, slope or cost is larger; sums of what is smaller stay finite."""


@dataclass(frozen=True)
class Terms:
    """What the study says that questions and answers are held against.

    Attributes
    ----------
    silo, place : the silo in question.
    offsets : (variable + 1,), where each variable's levels start.
    components : the most clusters a silo can have.
    """

    study: Study
    silo: str
    place: int
    offsets: NDArray[np.int64]
    components: int

    @property
    def levels(self) -> int:
        """D, the number of level columns."""
        return int(self.offsets[-1])

    @property
    def silos(self) -> int:
        """S, the number of silos."""
        return len(self.study.silos)

    @property
    def most_clusters(self) -> int:
        """No study has more global clusters: every silo's may all be its own."""
        return self.components * self.silos

    @property
    def most_draws(self) -> int:
        """More draws than anybody asks for."""
        schedule = self.study.sampling
        return max(MOST_DRAWS, self.study.kept_draws, schedule.kept * schedule.chains)


def check_envelope(
    envelope: Envelope, study: Study, silo: str, number: int, query: Query | None = None
) -> None:
    """Refuse a message of another study or silo, or to another question.

    Parameters
    ----------
    query : the question that it must answer; None where it must be a question.

    Raises
    ------
    MessageError
        Saying whose message it is.
    """
    for word, found, wanted in (
        ("study", envelope.study, digest(study)),
        ("silo", envelope.silo, silo),
        ("question", envelope.number, number),
    ):
        if found != wanted:
            raise MessageError(
                f"{silo}: the {envelope.kind} is of {word} {shorten(found)} and not of "
                f"{shorten(wanted)}; put the message of the right {word} in its place"
            )
    if query is None and envelope.answers:
        raise MessageError(
            f"{silo}: the {envelope.kind} is an answer; put question {number} in its place"
        )
    if query is not None and envelope.answers != digest_question(query):
        raise MessageError(
            f"{silo}: the {envelope.kind} answers another question {number} than is asked now; "
            "delete it, and have the silo answer again"
        )


def check_query(query: Any, study: Study, silo: str) -> None:
    """Refuse, in the silo, a question that the study does not ask or that does not fit it.

    Raises
    ------
    MessageError
        Naming the silo, the kind of question, and what to do.
    """
    kind = type(query).__name__
    if type(query) not in ASKED:
        raise MessageError(f"{silo}: a {kind} is no question; have the coordinator ask one")
    problem = next(_query_problems(query, _terms(study, silo)), None)
    if problem is not None:
        raise MessageError(
            f"{silo}: the question {kind} {problem}; make sure that the coordinator has the same "
            "study file, and have it ask again"
        )


def check_reply(reply: Any, query: Query, study: Study, silo: str) -> None:
    """Refuse, at the coordinator, an answer that does not fit the question or the study.

    A `Refused` is an answer to any question.

    Raises
    ------
    MessageError
        Naming the silo, the kind of answer, and what to do.
    """
    kind = type(reply).__name__
    problem = next(_reply_problems(reply, query, _terms(study, silo)), None)
    if problem is not None:
        raise MessageError(
            f"{silo}: the answer {kind} to {type(query).__name__} {problem}; have the silo answer "
            "this question again, with the same study file"
        )


def _terms(study: Study, silo: str) -> Terms:
    if silo not in study.silos:
        raise MessageError(
            f"{silo}: no silo of this study has that name; its silos are {', '.join(study.silos)}"
        )
    offsets = study.table_schema.offsets
    return Terms(study, silo, study.silos.index(silo), offsets, study.model.components)


def _query_problems(query: Any, terms: Terms) -> Problems:
    needed = ASKED[type(query)](terms.study)
    if needed:
        yield f"is not asked in a study with {needed}"
    yield from QUERY_CHECKS[type(query)](query, terms)


def _reply_problems(reply: Any, query: Query, terms: Terms) -> Problems:
    if isinstance(reply, Refused):
        if reply.code not in REFUSALS:
            yield f"has the unknown code {shorten(reply.code)}"
        return
    wanted = REPLIES[type(query)]
    if type(reply) is not wanted:
        yield f"should be a {wanted.__name__}"
    yield from REPLY_CHECKS[type(query)](reply, query, terms)


def _has_consensus(study: Study) -> str:
    return "" if study.strategy == "consensus" else 'strategy = "exact"'


def _has_divergence(study: Study) -> str:
    method = study.matching.method
    return _has_consensus(study) or ("" if method == "divergence" else f'matching = "{method}"')


def _has_oracle(study: Study, *oracles: str) -> str:
    settings = study.aggregation
    if _has_consensus(study):
        return _has_consensus(study)
    if settings.method != "vcmc":
        return f'aggregation = "{settings.method}"'
    return "" if settings.oracle in oracles else f'oracle = "{settings.oracle}"'


def _has_polish(study: Study) -> str:
    exact = study.strategy == "exact"
    return "polish = 0" if study.polish.rounds == 0 and not exact else ""


ASKED: dict[type, Callable[[Study], str]] = {
    SampleLocally: _has_consensus,
    DivergenceCost: _has_divergence,
    ShareReleases: lambda study: _has_oracle(study, "federated"),
    LogLikelihood: lambda study: _has_oracle(study, "federated"),
    CountDistinctRows: lambda study: _has_oracle(study, "contingency"),
    PolishRound: _has_polish,
    AssignRows: lambda _: "",
}
"""For each question, the setting under which a study does not ask it, or nothing."""

REPLIES: dict[type, type] = {
    SampleLocally: Release,
    DivergenceCost: DivergenceReply,
    ShareReleases: Received,
    LogLikelihood: LogLikelihoodReply,
    CountDistinctRows: DistinctRows,
    PolishRound: PolishReply,
    AssignRows: AssignReply,
}
"""The answer to each question."""


def _nothing(*_: object) -> Problems:
    yield from ()


def _shape(name: str, array: NDArray[Any], wanted: tuple[int | None, ...]) -> Problems:
    """Yield a problem unless the shape is the wanted one; None is any length from 1 on."""
    fits = array.ndim == len(wanted) and all(
        length == want if want is not None else length > 0
        for length, want in zip(array.shape, wanted, strict=True)
    )
    if not fits:
        words = ", ".join("any" if want is None else str(want) for want in wanted)
        yield f"has {name} of shape {array.shape} where ({words}) is wanted"


def _range(name: str, value: float, least: float, most: float) -> Problems:
    if not least <= value <= most:
        yield f"has {name} {value:,}; it must be from {least:,} to {most:,}"


def _values(name: str, array: NDArray[Any], least: float, most: float) -> Problems:
    """Yield a problem unless all values are finite and within limits."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        yield f"has {name} that are not finite"
    if array.size and array.min() < least:
        yield f"has {name} down to {array.min():,}; they must be at least {least:,}"
    if array.size and array.max() > most:
        yield f"has {name} up to {array.max():,}; they must be at most {most:,}"


def _simplex(name: str, array: NDArray[Any], axis: int = -1) -> Problems:
    """Yield a problem unless the values are shares that sum to one along the axis."""
    yield from _values(name, array, 0.0, 1.0 + NORMALISED)
    yield from _ones(name, array.sum(axis=axis, dtype=np.float64))


def _profiles(name: str, array: NDArray[Any], terms: Terms) -> Problems:
    """Yield a problem unless each variable's probabilities, on the last axis, sum to one."""
    yield from _values(name, array, 0.0, 1.0 + NORMALISED)
    totals = np.add.reduceat(array, terms.offsets[:-1], axis=-1, dtype=np.float64)
    yield from _ones(name, totals)


def _ones(name: str, totals: NDArray[np.float64]) -> Problems:
    far = np.abs(totals - 1.0)
    if not (far <= NORMALISED).all():
        yield f"has {name} that sum to {totals.flat[int(far.argmax())]:g} instead of one"


def _divergence_query(query: DivergenceCost, terms: Terms) -> Problems:
    names = [release.silo for release in query.releases]
    yield from _range("releases", len(names), 1, terms.silos - 1)
    if len(set(names)) < len(names) or not set(names) < set(terms.study.silos):
        yield "shows releases of one silo twice, or of silos that are not the study's"
    if terms.silo in names:
        yield "shows the silo its own release, which is not part of the reference yet"
    yield from _shown(query, terms)
    known = 0
    for group in query.groups:
        new = np.sort(group[group >= known])
        if len(np.unique(group)) < len(group) or not np.array_equal(
            new, known + np.arange(len(new))
        ):
            yield "has groups with two clusters of one silo, or with no cluster"
        known += len(new)
    restarts = getattr(terms.study.matching, "restarts", 1)
    yield from _range("round", query.round, 0, restarts * terms.silos)


def _shown(query: DivergenceCost | ShareReleases, terms: Terms) -> Problems:
    """Yield what is wrong with the releases that a question shows, and with their groups."""
    if len(query.groups) != len(query.releases):
        yield f"has groups of {len(query.groups)} silos and {len(query.releases)} releases"
    for release, group in zip(query.releases, query.groups, strict=True):
        place = terms.study.silos.index(release.silo)
        whose = Terms(terms.study, release.silo, place, terms.offsets, terms.components)
        for problem in _release(release, None, whose):
            yield f"shows a release of {release.silo!r} that {problem}"
        yield from _shape(f"groups of {release.silo!r}", group, (release.clusters,))
    yield from _values("groups", np.concatenate(query.groups), 0, terms.most_clusters - 1)


def _share_query(query: ShareReleases, terms: Terms) -> Problems:
    names = [release.silo for release in query.releases]
    if names != list(terms.study.silos):
        yield f"shows the releases of {len(names)} silos that are not the study's, in its order"
    yield from _shown(query, terms)
    together = np.concatenate(query.groups)
    clusters = int(together.max()) + 1
    if len(np.unique(together)) < clusters:
        yield f"has {clusters} groups, and some of them have no cluster"
    yield from _range("draws", query.draws, 1, terms.most_draws)
    numbers = terms.silos * query.draws * clusters * terms.levels
    if numbers > MOST_MATCHED:
        yield f"asks for {numbers:,} numbers of draws; at most {MOST_MATCHED:,} are made"


def _log_likelihood_query(query: LogLikelihood, terms: Terms) -> Problems:
    yield from _shape("weights", query.weights, (None, terms.silos))
    starts = len(query.weights)
    yield from _shape("profiles", query.profiles, (starts, terms.silos, None))
    solver = terms.study.aggregation.solver
    # each point is an answer of its own: no more than an honest coordinator asks about at once
    most = 1 if isinstance(solver, Lbfgs) else solver.starts
    yield from _range("starts", starts, 1, most)
    yield from _range("clusters", query.profiles.shape[2], 1, terms.most_clusters)
    yield from _range("last", query.last, 1, terms.most_draws)
    yield from _range("first", query.first, 0, query.last - 1)
    yield from _simplex("weights", query.weights)
    yield from _simplex("profiles", query.profiles, axis=1)


def _polish_query(query: PolishRound, terms: Terms) -> Problems:
    study = terms.study
    exact = study.strategy == "exact"
    yield from _shape("probabilities", query.probabilities, (None, None, terms.levels))
    chains, clusters, _ = query.probabilities.shape
    yield from _shape("weights", query.weights, (chains, clusters))
    most = study.polish.most if study.polish.rounds == "until" else study.polish.rounds
    yield from _range("round", query.round, 1, study.sampling.iterations if exact else most)
    most_chains = max(study.polish.chains, study.kept_draws)
    if exact:
        most_chains = study.sampling.chains
    yield from _range("chains", chains, 1, most_chains)
    yield from _range("clusters", clusters, 1, min(terms.most_clusters, MOST_LABELS))
    sweeps = 1 if exact else study.polish.inner_sweeps
    yield from _range("inner_sweeps", query.inner_sweeps, 1, sweeps)
    if exact != (query.alpha is None):
        yield f"has alpha {query.alpha} in a study with strategy {study.strategy!r}"
    if query.alpha is not None and not 0.0 < query.alpha <= study.model.alpha:
        yield f"has alpha {query.alpha:g}; it must be above 0 and at most {study.model.alpha:g}"
    yield from _simplex("weights", query.weights)
    yield from _profiles("probabilities", query.probabilities, terms)


def _assign_query(query: AssignRows, terms: Terms) -> Problems:
    yield from _shape("probabilities", query.probabilities, (None, None, terms.levels))
    draws, clusters, _ = query.probabilities.shape
    yield from _shape("weights", query.weights, (draws, clusters))
    yield from _range("draws", draws, 1, terms.most_draws)
    yield from _range("clusters", clusters, 1, terms.most_clusters)
    matched = terms.study.assign == "matching" and terms.study.strategy == "consensus"
    if matched != (query.groups is not None):
        state = "lacks" if matched else "has"
        yield f"{state} groups in a study with assign {terms.study.assign!r}"
    yield from _simplex("weights", query.weights)
    yield from _profiles("probabilities", query.probabilities, terms)
    if query.groups is not None:
        yield from _range("local clusters", len(query.groups), 1, terms.components)
        yield from _values("groups", query.groups, 0, clusters - 1)


QUERY_CHECKS: dict[type, Callable[[Any, Terms], Problems]] = {
    SampleLocally: _nothing,
    DivergenceCost: _divergence_query,
    ShareReleases: _share_query,
    LogLikelihood: _log_likelihood_query,
    CountDistinctRows: _nothing,
    PolishRound: _polish_query,
    AssignRows: _assign_query,
}


def _release(reply: Release, _: SampleLocally | None, terms: Terms) -> Problems:
    study = terms.study
    if (reply.silo, reply.place) != (terms.silo, terms.place):
        yield f"is of {shorten(reply.silo)}, place {reply.place}"
    if reply.study != digest(study):
        yield f"was made for study {shorten(reply.study)}"
    if reply.tier != study.tier:
        yield f"is of tier {shorten(reply.tier)} instead of {study.tier!r}"
    clusters = reply.clusters
    yield from _range("clusters", clusters, 1, terms.components)
    for name, columns in (
        ("medians", terms.levels),
        ("mean", terms.levels),
        ("effective_counts", terms.levels),
        ("concentration", len(terms.offsets) - 1),
    ):
        yield from _shape(name, getattr(reply, name), (clusters, columns))
    yield from _values("sizes", reply.sizes, 1, LARGEST_TOTAL // clusters)
    if reply.rows != reply.sizes.sum():
        yield f"has {reply.rows:,} rows and sizes that sum to {reply.sizes.sum():,}"
    yield from _values("medians", reply.medians, 0.0, 1.0)
    yield from _profiles("mean", reply.mean, terms)
    yield from _values("concentration", reply.concentration, 0.0, LARGEST_TOTAL)
    yield from _values("effective_counts", reply.effective_counts, 0.0, LARGEST_TOTAL)
    yield from _range("prior_draws", reply.diagnostics.prior_draws, 0.0, 1.0)
    yield from _range("agreement", reply.diagnostics.agreement, -1.0, 1.0)
    yield from _range("full", reply.diagnostics.full, 0.0, 1.0)
    yield from _range("sweeps", reply.diagnostics.sweeps, 0, LARGEST_TOTAL)
    yield from _released_draws(reply, terms)


def _released_draws(reply: Release, terms: Terms) -> Problems:
    weights, probabilities = reply.weights, reply.probabilities
    if (weights is not None, probabilities is not None) != (reply.tier == "draws",) * 2:
        yield f"has draws that do not go with tier {reply.tier!r}"
    if weights is not None and probabilities is not None:
        yield from _shape("weights", weights, (None, reply.clusters))
        yield from _shape(
            "probabilities", probabilities, (len(weights), reply.clusters, terms.levels)
        )
        yield from _range("draws", len(weights), 1, terms.most_draws)
        yield from _simplex("weights", weights)
        yield from _profiles("probabilities", probabilities, terms)


def _divergence_reply(reply: DivergenceReply, query: DivergenceCost, terms: Terms) -> Problems:
    size = len(reply.cost)
    yield from _shape("cost", reply.cost, (size, size))
    known = query.clusters
    yield from _range("clusters", size, known + 1, max(known, terms.components) + 1)
    yield from _values("cost", reply.cost, -LARGEST, LARGEST)


def _log_likelihood_reply(reply: LogLikelihoodReply, query: LogLikelihood, _: Terms) -> Problems:
    yield from _shape("value", reply.value, query.weights.shape[:1])
    yield from _shape("weights", reply.weights, query.weights.shape)
    yield from _shape("profiles", reply.profiles, query.profiles.shape)
    for name in ("value", "weights", "profiles"):
        yield from _values(name, getattr(reply, name), -LARGEST, LARGEST)


def _distinct_reply(reply: DistinctRows, _: CountDistinctRows, terms: Terms) -> Problems:
    sizes = np.diff(terms.offsets)
    yield from _shape("codes", reply.codes, (None, len(sizes)))
    yield from _shape("counts", reply.counts, (len(reply.codes),))
    yield from _values("counts", reply.counts, 1, LARGEST_TOTAL)
    if reply.counts.sum(dtype=np.float64) > LARGEST_TOTAL:
        yield "has counts that sum to more rows than there can be"
    # one code more than there are levels: a missing cell
    last = sizes if terms.study.missing == "marginalise" else sizes - 1
    high = np.flatnonzero((reply.codes > last).any(axis=0))
    if len(high):
        variable = int(high[0])
        code = int(reply.codes[:, variable].max())
        name = terms.study.variables[variable].name
        yield f"has code {code} for {shorten(name)}, which has {sizes[variable]} levels"


def _polish_reply(reply: PolishReply, query: PolishRound, terms: Terms) -> Problems:
    chains, clusters, levels = query.probabilities.shape
    yield from _shape("least", reply.least, (clusters, levels))
    yield from _shape("above", reply.above, (chains, clusters, levels))
    yield from _shape("members", reply.members, (chains, clusters))
    yield from _shape("weights", reply.weights, (chains, clusters))
    yield from _shape("log_likelihood", reply.log_likelihood, (chains,))
    yield from _values("members", reply.members, 0, LARGEST_TOTAL // clusters)
    yield from _values("least", reply.least, 0, LARGEST_TOTAL // levels)
    yield from _values("above", reply.above, 0, LARGEST_TOTAL // levels)
    rows = reply.members.sum(axis=1, dtype=np.int64)
    if rows[0] == 0 or (rows != rows[0]).any():
        yield f"has members that sum to {rows.min():,} in one chain and {rows.max():,} in another"
    cells = np.add.reduceat(reply.counts, terms.offsets[:-1], axis=-1)
    if (cells > reply.members[:, :, None]).any():
        yield "counts more cells of a variable than its cluster has members"
    yield from _simplex("weights", reply.weights)
    if query.alpha is None and not np.array_equal(reply.weights, query.weights):
        yield "has other weights than it was given"
    yield from _values("log_likelihood", reply.log_likelihood, -LARGEST, LARGEST)


def _assign_reply(reply: AssignReply, query: AssignRows, _: Terms) -> Problems:
    clusters = query.probabilities.shape[1]
    yield from _shape("sizes", reply.sizes, (clusters,))
    yield from _values("sizes", reply.sizes, -1, LARGEST_TOTAL // clusters)


REPLY_CHECKS: dict[type, Callable[[Any, Any, Terms], Problems]] = {
    SampleLocally: _release,
    DivergenceCost: _divergence_reply,
    ShareReleases: _nothing,
    LogLikelihood: _log_likelihood_reply,
    CountDistinctRows: _distinct_reply,
    PolishRound: _polish_reply,
    AssignRows: _assign_reply,
}
