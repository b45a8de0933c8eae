"""The silo's side of the seam: `answer(query, silo)`, and nothing else, runs next to the rows."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import (
    DataError,
    MessageError,
    MissingDependency,
    PolicyRefusal,
    SettingsError,
    StudyMismatch,
)
from silomix.kernels.layout import lay_out
from silomix.kernels.likelihood import distinct_rows, row_table
from silomix.kernels.random_numbers import chain_key, fold
from silomix.messages import (
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
    Received,
    Refused,
    SampleLocally,
    ShareReleases,
)
from silomix.messages.door import check_query
from silomix.messages.released_draws import divergence_cost, make_reference, shared_draws
from silomix.messages.rounding import has_rules, with_own_counts
from silomix.model.families.categorical import (
    draw_given_parameters,
    mean_log_likelihood,
    some_draws,
)
from silomix.posterior import row_membership, to_four_decimals
from silomix.silo.disclosure import check_tier
from silomix.silo.ledger import check_account, note_left
from silomix.silo.local import Silo, kept_posterior
from silomix.silo.permission import permit
from silomix.silo.release import release_row_counts, release_sizes
from silomix.study import Divergence
from silomix.study.policy import echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from silomix.kernels.layout import Layout
    from silomix.kernels.likelihood import RowTable
    from silomix.messages import Query, Release
    from silomix.model.draws import MatchedDraws

# Stands where a chain's number would, far from any.
POLISH_STREAM = 1 << 20
DIVERGENCE_STREAM = 0x646976

log = logging.getLogger("silomix.silo.answer")


def answer(query: Query, silo: Silo) -> Any:
    """Answer one question about the silo's rows, if its policy lets it.

    Raises
    ------
    PolicyRefusal
        When it does not.
    """
    if silo.account is not None:
        check_account(silo.account)
    permit(query, silo)
    reply = HANDLERS[type(query)](query, silo)
    if silo.account is not None and not isinstance(reply, Received):
        note_left(silo.account, type(reply).__name__)
    return reply


def answer_or_refuse(query: Query, silo: Silo) -> Any:
    """Answer a question from elsewhere; whatever goes wrong, only a code leaves.

    The text of an error may quote a row: it goes to the silo's own log.
    """
    try:
        check_query(query, silo.study, silo.name)
        return answer(query, silo)
    except Exception as error:
        code = refusal_code(error)
        log.exception("%s: %s refused: %s", silo.name, type(query).__name__, code)
        return Refused(code)


def refusal_code(error: Exception) -> str:
    """Return what may be said of an error outside: one of `silomix.messages.REFUSALS`."""
    if isinstance(error, PolicyRefusal):
        return error.code
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return code
    return "failed"


CODES: dict[type[Exception], str] = {
    StudyMismatch: "study",
    MessageError: "question",
    DataError: "data",
    SettingsError: "study",
    MissingDependency: "dependency",
}


def laid_out(silo: Silo) -> Layout:
    """Return the silo's rows as the sampler wants them."""
    with silo.store.lock:
        if silo.store.layout is None:
            silo.store.layout = lay_out(silo.shard.codes, silo.shard.schema.sizes)
        return silo.store.layout


def counted_rows(silo: Silo) -> DistinctRows:
    """Return the silo's distinct rows."""
    with silo.store.lock:
        if silo.store.rows is None:
            silo.store.rows = DistinctRows(*distinct_rows(silo.shard.codes))
        return silo.store.rows


def _row_table(silo: Silo) -> RowTable:
    with silo.store.lock:
        if silo.store.row_table is None:
            rows = counted_rows(silo)
            silo.store.row_table = row_table(rows.codes, rows.counts, silo.shard.schema.sizes)
        return silo.store.row_table


def shown_draws(silo: Silo) -> MatchedDraws:
    """Return the matched draws of the releases that the silo was shown."""
    with silo.store.lock:
        if silo.store.matched is None and silo.store.shared is not None:
            study = silo.study
            silo.store.matched = shared_draws(
                silo.store.shared, study.prior, study.table_schema.offsets, study.seed
            )
        assert silo.store.matched is not None  # `permit` refused questions about others
        return silo.store.matched


def _release(_: SampleLocally, silo: Silo) -> Release:
    # a policy may have become stricter since the release was made
    check_tier(silo.study.tier, silo.policy, silo.name)
    return replace(kept_posterior(silo).release, policy=echo(silo.policy))


def _divergence(query: DivergenceCost, silo: Silo) -> DivergenceReply:
    kept, study = kept_posterior(silo), silo.study
    influence = study.matching.reference if isinstance(study.matching, Divergence) else "mean"
    known = make_reference(
        query.releases,
        query.groups,
        influence,
        silos=len(study.silos),
        prior=study.prior,
        offsets=study.table_schema.offsets,
        seed=study.seed,
    )
    rng = np.random.default_rng([study.seed, DIVERGENCE_STREAM, silo.place, query.round])
    mean = kept.weights.mean(axis=0)
    cost = divergence_cost(known, silo.shard, mean, kept.probabilities, study.prior.beta, rng)
    return DivergenceReply(cost)


def _share(query: ShareReleases, silo: Silo) -> Received:
    with silo.store.lock:
        silo.store.share(query)
    return Received()


def _log_likelihood(query: LogLikelihood, silo: Silo) -> LogLikelihoodReply:
    matched = shown_draws(silo)
    draws, clusters = matched.weights.shape[1:]
    if query.last > draws or query.profiles.shape[2] != clusters:
        raise MessageError(
            f"{silo.name}: the question is about draws up to {query.last} of "
            f"{query.profiles.shape[2]} clusters; it was shown {draws} draws of {clusters}"
        )
    some = some_draws(matched, query.first, query.last)
    found = mean_log_likelihood(some, query.weights, query.profiles, _row_table(silo), silo.threads)
    return LogLikelihoodReply(*found)


def _distinct_rows(_: CountDistinctRows, silo: Silo) -> DistinctRows:
    rows = counted_rows(silo)
    return replace(rows, counts=release_row_counts(rows.counts, silo.policy, silo.name))


def _polish(query: PolishRound, silo: Silo) -> PolishReply:
    key = fold(chain_key(silo.study.seed, silo.place, POLISH_STREAM), query.round)
    drawn = draw_given_parameters(
        laid_out(silo),
        key,
        query.weights,
        query.probabilities,
        alpha=query.alpha or 0.0,
        inner_sweeps=query.inner_sweeps,
        threads=silo.threads,
    )
    return PolishReply.of(*drawn)


def _assign(query: AssignRows, silo: Silo) -> AssignReply:
    clusters = query.probabilities.shape[1]
    if query.groups is None:
        find = partial(row_membership, silo.shard, query.weights, threads=silo.threads)
        found = find(query.probabilities)
        if _knows_better(silo):
            found = find(_own_profiles(query, found.membership, silo))
        membership = to_four_decimals(found.membership)
    else:
        membership = np.zeros((silo.shard.rows, clusters), dtype=np.float32)
        membership[np.arange(silo.shard.rows), query.groups[kept_posterior(silo).labels]] = 1.0
    silo.store.assign(membership)
    sizes = np.bincount(membership.argmax(axis=1), minlength=clusters)
    return AssignReply(release_sizes(sizes, silo.policy))


def _knows_better(silo: Silo) -> bool:
    """Tell whether the profiles to assign by were made from the silo's rounded release."""
    study = silo.study
    return (
        study.strategy == "consensus"
        and study.aggregation.method == "product"
        and study.polish.rounds == 0
        and has_rules(kept_posterior(silo).release)
    )


def _own_profiles(
    query: AssignRows, membership: NDArray[np.floating], silo: Silo
) -> NDArray[np.floating]:
    """Return the profiles that the silo assigns its rows by: they stay here.

    Parameters
    ----------
    membership : (row, cluster), by the profiles of the question; they say which global cluster a
        local one is.
    """
    kept, study = kept_posterior(silo), silo.study
    rows = np.zeros((kept.release.clusters, membership.shape[1]))
    np.add.at(rows, kept.labels, membership)
    return with_own_counts(
        query.probabilities,
        kept.release,
        kept.probabilities,
        rows.argmax(axis=1),
        prior=study.prior,
        silos=len(study.silos),
        offsets=study.table_schema.offsets,
        seed=study.seed,
    )


HANDLERS: dict[type, Callable[[Any, Silo], Any]] = {
    SampleLocally: _release,
    DivergenceCost: _divergence,
    ShareReleases: _share,
    LogLikelihood: _log_likelihood,
    CountDistinctRows: _distinct_rows,
    PolishRound: _polish,
    AssignRows: _assign,
}
