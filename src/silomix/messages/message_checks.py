"""Checks of questions and answers beyond the declarations of their records.

Silos check questions against the study, and coordinators check answers against question and study.
Types, bounds, sums, and lengths within one record were checked when it was read. Each check yields
problems, as the ends of sentences, and may rely on earlier checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix import messages
from silomix.errors import MessageError
from silomix.families.disclosure import breach
from silomix.families.release_rounding import least_units
from silomix.messages.container import MOST_ROWS, Envelope, axis_lengths, digest_record, shorten
from silomix.study import Study, digest
from silomix.study.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from silomix.families.product import Product
    from silomix.messages import Release

    Problems = Iterator[str]

MOST_DRAWS = 100_000
# Clusters of a polish round: labels are stored in one byte.
MOST_LABELS = 255
# Most numbers in the matched draws that a silo makes, 8 bytes each.
MOST_MATCHED = 2**30
# Tolerance of the number of a silo's rows, as a share of the number that the study states.
ROWS_APART = 0.1
# Tolerance of sums of counts, for rounding errors.
SAME = 1e-6


class Terms(NamedTuple):
    """Study and silo against which questions and answers are checked."""

    study: Study
    silo: str

    @property
    def family(self) -> Product:
        """Family of the study's variables."""
        return self.study.pooled_model.family

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """Bounds on the lengths of axes, which no honest coordinator exceeds."""
        study = self.study
        schedule, components = study.sampling, study.model.components
        family, silos = self.family, len(study.silos)
        chains = max(study.polish.chains, study.kept_draws)
        return {
            "parameter": (int(family.parameters.sum()),) * 2,
            "statistic": (int(family.statistics.sum()),) * 2,
            "variable": (len(family.variables),) * 2,
            "silo": (silos, silos),
            # no two silos may have a cluster in common
            "cluster": (1, components * silos),
            "local_cluster": (1, components),
            "draw": (1, max(MOST_DRAWS, study.kept_draws, schedule.kept * schedule.chains)),
            "chain": (1, schedule.chains if study.strategy == "exact" else chains),
            # the silo answers about each point separately
            "start": (1, max((asked.points for asked in study.asked), default=1)),
        }


def check_envelope(
    envelope: Envelope, study: Study, silo: str, number: int, query: messages.Query | None = None
) -> None:
    """Refuse a message of another study or silo, or to another question.

    Parameters
    ----------
    query : the question that it must answer; None where it must be a question.

    Raises
    ------
    MessageError
        Naming what differs.
    """
    answers = "" if query is None else digest_record(query)
    for word, actual, expected in (
        ("study", envelope.study, digest(study)),
        ("silo", envelope.silo, silo),
        ("question", envelope.number, number),
        (f"another version of question {number},", envelope.answers, answers),
    ):
        if actual != expected:
            raise MessageError(
                f"{silo}: the {envelope.kind} is of {word} {actual!r} and not of {expected!r}; put "
                "the right message in its place, or delete it, and have the silo answer again"
            )


def check_query(query: Any, study: Study, silo: str) -> None:
    """In the silo: refuse a question that does not fit the study.

    Raises
    ------
    MessageError
        Naming the silo, the kind of question, and what to do.
    """
    for problem in _query_problems(query, Terms(study, silo)):
        raise MessageError(
            f"{silo}: the question {type(query).__name__} {problem}; make sure that the "
            "coordinator has the same study file, and have it ask again"
        )


def check_reply(reply: Any, query: messages.Query, study: Study, silo: str) -> None:
    """At the coordinator: refuse an answer that does not fit the question or the study.

    A `Refused` is an answer to any question.

    Raises
    ------
    MessageError
        Naming the silo, the kind of answer, and what to do.
    """
    for problem in _reply_problems(reply, query, Terms(study, silo)):
        raise MessageError(
            f"{silo}: the answer {type(reply).__name__} to {type(query).__name__} {problem}; have "
            "the silo answer this question again, with the same study file"
        )


def _query_problems(query: Any, terms: Terms) -> Problems:
    study = terms.study
    if type(query) not in CHECKS:
        yield "is not a question"
    if terms.silo not in study.silos:
        yield f"is for a silo that is not in this study, which has {', '.join(study.silos)}"
    asked = {"SampleLocally", *study.questions} if study.strategy == "consensus" else set()
    if type(query) not in ALWAYS_ASKED and type(query).__name__ not in asked:
        chosen = f"strategy {study.strategy!r}, matching {study.matching!r}"
        yield f"is not asked in a study of {chosen} and aggregation {study.aggregation!r}"
    yield from CHECKS[type(query)][0](query, terms)


def _reply_problems(reply: Any, query: messages.Query, terms: Terms) -> Problems:
    expected = messages.REPLIES[type(query)]
    if isinstance(reply, messages.Refused):
        if reply.code not in messages.REFUSALS:
            yield f"has the unknown code {shorten(reply.code)}"
    elif type(reply) is not expected:
        yield f"should be a {expected.__name__}"
    else:
        yield from CHECKS[type(query)][1](reply, query, terms)


# Questions that do not depend on the methods of the study.
ALWAYS_ASKED = (messages.PolishRound, messages.AssignRows)


def _fits(record: Any, terms: Terms, **bounds: tuple[int, int]) -> Problems:
    """Yield axes of wrong lengths, and impossible parameters.

    Parameters
    ----------
    bounds : least and largest lengths of axes that differ from those of the terms.
    """
    bounds = terms.bounds | bounds
    for axis, length in axis_lengths(record).items():
        yield from _range(f"{axis}s", length, *bounds.get(axis, (1, MOST_ROWS)))
    yield from _odd_parameters(record, terms.family)


def _odd_parameters(record: Any, family: Product) -> Problems:
    """Yield problems of the parameters, mean statistics and draws of a record."""
    if isinstance(record, messages.Release):
        has_draws = {record.weights is not None, record.parameters is not None}
        if has_draws != {record.tier == "draws"}:
            yield f"has draws that do not go with tier {record.tier!r}"
    for name, problem_of in (("parameters", family.problems), ("mean", family.mean_problems)):
        values = getattr(record, name, None)
        if values is not None and (problem := problem_of(values)):
            yield f"{problem} ({name})"


def _range(name: str, value: float, least: float, most: float) -> Problems:
    if not least <= value <= most:
        yield f"has {name} {value:,}; it must be from {least:,} to {most:,}"


def _rows(rows: float, terms: Terms, slack: float = 0) -> Problems:
    """Yield a problem if a number of rows is impossible, or differs from the one that is stated.

    Parameters
    ----------
    slack : tolerance for rounding, at most the stated number itself.
    """
    yield from _range("rows", rows, 1, MOST_ROWS)
    stated = (terms.study.rows or {}).get(terms.silo)
    if stated is not None and abs(rows - stated) > ROWS_APART * stated + min(slack, stated):
        yield (
            f"has {rows:,.0f} rows, and the study states {stated:,} for this silo: ask the silo "
            "which table it used, or make a new study with the right number"
        )


def _divergence_query(query: messages.DivergenceCost, terms: Terms) -> Problems:
    names = [release.silo for release in query.releases]
    other_silos = {*terms.study.silos} - {terms.silo}
    if not names or len(set(names)) < len(names) or not other_silos.issuperset(names):
        yield "shows no releases, one twice, the silo's own, or one from outside the study"
    yield from _shown(query, terms)
    clusters = 0
    for group in query.groups:
        new = np.sort(group[group >= clusters])
        due = clusters + np.arange(len(new))
        if len(np.unique(group)) < len(group) or not np.array_equal(new, due):
            yield "has groups with two clusters of one silo, or with no cluster"
        clusters += len(new)
    restarts = getattr(terms.study.matching, "restarts", 1)
    yield from _range("round", query.round, 0, restarts * len(terms.study.silos))


def _shown(query: messages.DivergenceCost | messages.ShareReleases, terms: Terms) -> Problems:
    """Yield problems of the releases that a question shows, and of their groups."""
    if len(query.groups) != len(query.releases):
        yield f"has groups of {len(query.groups)} silos and {len(query.releases)} releases"
    for release, group in zip(query.releases, query.groups, strict=True):
        for problem in _release(release, Terms(terms.study, release.silo)):
            yield f"shows a release of {release.silo!r} that {problem}"
        yield from _range("clusters in a group", len(group), release.clusters, release.clusters)
        yield from _range("groups", group.max(), 0, terms.bounds["cluster"][1] - 1)


def _share_query(query: messages.ShareReleases, terms: Terms) -> Problems:
    names = [release.silo for release in query.releases]
    if names != list(terms.study.silos):
        yield f"shows the releases of {len(names)} silos that are not the study's, in its order"
    yield from _shown(query, terms)
    together = np.concatenate(query.groups)
    clusters = int(together.max()) + 1
    if len(np.unique(together)) < clusters:
        yield f"has {clusters} groups, and some of them have no cluster"
    yield from _range("draws", query.draws, *terms.bounds["draw"])
    numbers = len(names) * query.draws * clusters * terms.bounds["parameter"][1]
    yield from _range("numbers in its draws", numbers, 1, MOST_MATCHED)


def _log_likelihood_query(query: messages.LogLikelihood, terms: Terms) -> Problems:
    yield from _fits(query, terms)
    yield from _range("last", query.last, *terms.bounds["draw"])
    yield from _range("first", query.first, 0, query.last - 1)


def _polish_query(query: messages.PolishRound, terms: Terms) -> Problems:
    study, exact = terms.study, terms.study.strategy == "exact"
    yield from _fits(query, terms, cluster=(1, min(terms.bounds["cluster"][1], MOST_LABELS)))
    yield from _range("round", query.round, 1, study.most_rounds)
    sweeps = 1 if exact else study.polish.inner_sweeps
    yield from _range("inner_sweeps", query.inner_sweeps, 1, sweeps)
    fits = query.alpha is None if exact else 0.0 < (query.alpha or 0.0) <= study.model.alpha
    if not fits:
        yield (
            f"has alpha {query.alpha}; it must be above 0 and at most {study.model.alpha:g}, and "
            'None with strategy = "exact"'
        )


def _assign_query(query: messages.AssignRows, terms: Terms) -> Problems:
    study = terms.study
    yield from _fits(query, terms)
    matched = study.assign == "matching" and study.strategy == "consensus"
    if matched != (query.groups is not None):
        yield f"{'lacks' if matched else 'has'} groups in a study with assign {study.assign!r}"
    if query.groups is not None:
        yield from _range("groups", query.groups.max(), 0, query.weights.shape[1] - 1)


def _release(reply: Release, terms: Terms) -> Problems:
    study = terms.study
    if terms.silo not in study.silos:
        yield f"is of a silo {terms.silo!r:.70}, which the study does not have"
        return
    place = study.silos.index(terms.silo)
    due = {"silo": terms.silo, "place": place, "study": digest(study), "tier": study.tier}
    for word, expected in due.items():
        if getattr(reply, word) != expected:
            yield f"is of {word} {getattr(reply, word)!r:.70} instead of {expected!r}"
    yield from _fits(reply, terms, cluster=(1, study.model.components))
    yield from _rows(reply.rows, terms, (Policy(**reply.policy).round_to - 1) * reply.clusters)


def _release_reply(reply: Release, _: Any, terms: Terms) -> Problems:
    yield from _release(reply, terms)
    yield from _own_breaches(reply, terms.family)


def release_problems(release: Release, family: Product) -> Problems:
    """Yield problems of a release that can be detected without its study."""
    yield from _range("rows", release.rows, 1, MOST_ROWS)
    yield from _odd_parameters(release, family)
    yield from _own_breaches(release, family)


def _own_breaches(release: Release, family: Product) -> Problems:
    for problem in _broken_rules(release, Policy(**release.policy), family):
        yield f"{problem}, which violates its own policy"


def breaches(release: Release, policy: Policy, family: Product) -> Problems:
    """Yield violations of a silo's own policy by another silo's release.

    Questions about other silos' releases are answered with sums over the rows that no rule rounds.
    A silo cannot verify those releases, and fabricated ones could describe single rows; so it
    answers only about releases that its own policy would allow. That refuses the plain attack. It
    does not make the answers harmless: sums stay exact, and the number of rows of a release is a
    claim of its sender. Releases under a stricter policy pass: their profiles are rounded counts of
    their clusters, or of the pool of those, or uniform.
    """
    yield from _broken_rules(release, policy, family)
    if policy.has_rules:
        if release.weights is not None or release.parameters is not None:
            yield "has draws, to which no rule can apply"
        if (release.concentration > release.sizes[:, None] * (1 + SAME)).any():
            yield "claims more precision than its rows allow"


def _broken_rules(release: Release, policy: Policy, family: Product) -> Problems:
    if release.tier not in policy.tiers:
        yield f"is of tier {release.tier!r}"
    if not policy.has_rules:
        return
    base, least, sizes = policy.round_to, least_units(policy) * policy.round_to, release.sizes
    for size in sizes[(sizes < least) | (sizes % base > 0)]:
        yield f"has a cluster of {size:,} rows, under {least:,} or no multiple of {base:,}"
    observed, size = release.known, sizes[:, None]
    odd = (observed < least) | (observed > size - least - base) | (observed % base > 0)
    for cells in observed[odd & (observed > 0) & (observed != size)]:
        yield f"has {cells:,} known cells, too few, too near the size or no multiple of {base:,}"
    problem = breach(family, release.mean, release.concentration, observed, policy)
    if problem:
        yield problem


def _divergence_reply(
    reply: messages.DivergenceReply, query: messages.DivergenceCost, terms: Terms
) -> Problems:
    size, least = len(reply.cost), query.clusters
    yield from _range("clusters", size, least + 1, max(least, terms.study.model.components) + 1)
    yield from _fits(reply, terms, local_cluster=(size, size), reference_cluster=(size, size))


def _like_question(reply: Any, query: Any, terms: Terms) -> Problems:
    lengths = {axis: (length, length) for axis, length in axis_lengths(query).items()}
    yield from _fits(reply, terms, **lengths)


def _distinct_reply(reply: messages.DistinctRows, _: Any, terms: Terms) -> Problems:
    yield from _fits(reply, terms)
    yield from _rows(reply.counts.sum(dtype=np.float64), terms, slack=np.inf)
    sizes = terms.study.table_schema.sizes
    # the code after the last level is a missing cell
    largest = sizes if terms.study.missing == "marginalise" else sizes - 1
    for variable in np.flatnonzero((reply.rows > largest).any(axis=0)):
        code, name = reply.rows[:, variable].max(), terms.study.variables[variable].name
        yield f"has code {code} for {name!r:.60}, which has {sizes[variable]} levels"


def _polish_reply(
    reply: messages.PolishReply, query: messages.PolishRound, terms: Terms
) -> Problems:
    yield from _like_question(reply, query, terms)
    for part in (reply.least, reply.above):
        whole = np.issubdtype(part.dtype, np.integer)
        if whole != terms.family.is_categorical or (whole and part.max(initial=0) > MOST_ROWS):
            yield f"has sums of {part.dtype} up to {part.max(initial=0):g}, which no rows have"
    rows = reply.members.sum(axis=1, dtype=np.int64)
    if rows[0] == 0 or (rows != rows[0]).any():
        yield f"has members that sum to {rows.min():,} in one chain and {rows.max():,} in another"
    yield from _rows(int(rows[0]), terms)
    if (terms.family.known(reply.statistics) > reply.members[:, :, None] + SAME).any():
        yield "counts more cells of a variable than its cluster has members"
    if query.alpha is None and not np.array_equal(reply.weights, query.weights):
        yield "has other weights than it was given"


def _nothing(*_: Any) -> Problems:
    yield from ()


# Checks of each question and of its answer.
CHECKS: dict[type, tuple[Callable[[Any, Terms], Problems], Callable[..., Problems]]] = {
    messages.SampleLocally: (_nothing, _release_reply),
    messages.DivergenceCost: (_divergence_query, _divergence_reply),
    messages.ShareReleases: (_share_query, _nothing),
    messages.LogLikelihood: (_log_likelihood_query, _like_question),
    messages.CountDistinctRows: (_nothing, _distinct_reply),
    messages.PolishRound: (_polish_query, _polish_reply),
    messages.AssignRows: (_assign_query, _nothing),
}
