"""Answer a coordinator's questions about the silo's rows: `answer(query, silo)`.

Each question is first held against the silo's policy: may it be asked, how often, and is what it
shows something that the policy would have let out itself?
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix import messages
from silomix.errors import MessageError, PolicyRefusal, SilomixError, as_logged, hiding_cells
from silomix.kernels.arrays import Reals, sum_by
from silomix.kernels.reproducible import chain_key, fold
from silomix.messages import released_draws
from silomix.messages.container import digest_record
from silomix.messages.message_checks import breaches, check_query
from silomix.messages.released_draws import has_rules, with_own_counts
from silomix.model.draws import MatchedDraws, to_four_decimals
from silomix.model.sentences import plural
from silomix.silo.cost import check_cost, question_cost
from silomix.silo.ledger import counting, note_left
from silomix.silo.ledger_file import FAILED
from silomix.silo.local import Silo, kept_posterior
from silomix.silo.release import check_tier, release_row_counts
from silomix.study.policy import UNLIMITED, Policy, check_study, echo

if TYPE_CHECKING:
    from collections.abc import Callable

    from silomix.study import Study

# Stands where a chain's number would, far from any.
POLISH_STREAM = 1 << 20
DIVERGENCE_STREAM = 0x646976

# Codes of refusals that depend on the rows.
FAILURES = ("too-few-rows", "data", "failed")

log = logging.getLogger("silomix.silo.answer")


def answer(query: messages.Query, silo: Silo) -> Any:
    """Answer one question about the silo's rows, if its policy lets it.

    A question that fails on the rows says something about them: it counts as answered.

    Raises
    ------
    PolicyRefusal
        When it does not.
    """
    permit(query, silo)
    try:
        reply = HANDLERS[type(query)](query, silo)
    except Exception:
        if silo.account is not None:
            note_left(silo.account, FAILED)
        raise
    if silo.account is not None and not isinstance(reply, messages.Received):
        note_left(silo.account, type(reply).__name__)
    return reply


def answer_or_refuse(query: messages.Query, silo: Silo) -> Any:
    """Answer a question from elsewhere; whatever goes wrong, only a code leaves.

    The text of an error goes to the silo's own log, without cells of the table.
    """
    try:
        with hiding_cells():
            check_query(query, silo.study, silo.name)
            return answer(query, silo)
    except Exception as error:
        code = refusal_code(error)
        parts = silo.name, type(query).__name__, code, as_logged(error)
        log.error("%s: %s refused: %s\n%s", *parts)  # noqa: TRY400
        return messages.Refused(code)


def refusal_code(error: Exception) -> str:
    """Code of an error, all that may be said of it outside: one of `silomix.messages.REFUSALS`."""
    return error.code if isinstance(error, SilomixError) else "failed"


def permit(query: messages.Query, silo: Silo) -> None:
    """Refuse a question that the silo's policy does not allow, or not once more.

    None of this looks at the rows, so a refusal tells nothing of them and is not counted. A
    question asked twice gets the same answer and counts once; one about several points counts as
    many times.
    """
    check_study(silo.study, silo.policy, silo.name)
    check_kind(type(query), silo.policy, silo.name)
    shared = silo.store.shared
    if isinstance(query, messages.LogLikelihood) and (shared is None or shared.key != query.shared):
        text = f"{silo.name}: it was not shown the releases of this question; share them first"
        raise PolicyRefusal(text, code="order")
    if isinstance(query, messages.SampleLocally):
        # a policy may have become stricter since the release was made
        check_tier(silo.study.tier, silo.policy, silo.name)
    if isinstance(query, messages.ShareReleases | messages.DivergenceCost):
        for release in query.releases:
            if release.place != silo.place:
                _check_shown(release, silo)
    check_cost(question_cost(query, silo), silo, f"answering {type(query).__name__}")
    _count(query, silo)


def check_kind(question: type, policy: Policy, silo: str) -> None:
    """Refuse a kind of question of which the policy allows none."""
    kind = LIMITED.get(question)
    if kind is not None and getattr(policy.exchanges, kind) == 0:
        raise PolicyRefusal(
            f"{silo}: its policy does not allow {kind}; its owner can change "
            f"exchanges.{kind} in the policy file, or the study can do without"
        )


def check_allowed(study: Study, policy: Policy, silo: str) -> None:
    """Refuse a study that the policy does not let the silo answer to its end, before any work."""
    check_study(study, policy, silo)
    if study.strategy == "consensus":
        check_tier(study.tier, policy, silo)
    asked = study.questions | ({messages.PolishRound.__name__} if study.most_rounds else set())
    for question in LIMITED:
        if question.__name__ in asked:
            check_kind(question, policy, silo)


def _check_shown(release: messages.Release, silo: Silo) -> None:
    """Refuse another silo's release that this silo's own policy would not have let out.

    Its sender may have made it up, of single rows; see `silomix.messages.message_checks`.
    """
    for problem in breaches(release, silo.policy, silo.study.pooled_model.family):
        raise PolicyRefusal(
            f"{silo.name}: the release that it is shown as that of {release.silo!r} {problem}, and "
            f"its own policy {silo.policy.name!r} would not let that out; ask where it comes from, "
            "let all silos have the same minimum_count and round_to, or show no releases",
            code="shown",
        )


def count_answered(query: messages.Query, reply: Any, silo: Silo) -> None:
    """Count a question that was answered before the silo's ledger knew of it."""
    if isinstance(reply, messages.Refused) and reply.code not in FAILURES:
        return
    if silo.account is not None and not isinstance(reply, messages.Received):
        record = FAILED if isinstance(reply, messages.Refused) else type(reply).__name__
        note_left(silo.account, record, has_left=True)
    _count(query, silo, has_left=True)


def _count(query: messages.Query, silo: Silo, *, has_left: bool = False) -> None:
    """Count a question before it is answered; refuse it where the policy's limit is reached."""
    kind = LIMITED.get(type(query))
    limit: int = getattr(silo.policy.exchanges, kind) if kind else UNLIMITED
    if kind is None or limit >= UNLIMITED:
        return
    question, weight, unit = digest_record(query), 1, "question"
    if isinstance(query, messages.LogLikelihood):  # a gradient at each starting point of each draw
        weight, unit = len(query.weights) * (query.last - query.first), "point"
    if silo.account is None:
        counted = silo.store.counting(kind)
    else:
        counted = counting(silo.account, kind, has_left=has_left)
    with counted as asked:
        left = limit - sum(asked.values())
        if question in asked:
            return
        if weight > left and not has_left:
            spent = "and all were asked"
            if left > 0:
                spent = f"of which {left:,} are left, and this question is about {weight:,}"
            raise PolicyRefusal(
                f"{silo.name}: its policy allows {plural(limit, unit)} about {kind} {spent}; "
                "ask fewer in this study, or let the policy's owner allow more",
                code="limit",
            )
        asked[question] = weight


def shown_draws(silo: Silo) -> MatchedDraws:
    """Matched draws of the releases that the silo was shown, made once."""
    store = silo.store
    if store.matched is None and store.shared is not None:
        store.matched = released_draws.shared_draws(store.shared, silo.study.pooled_model)
    assert store.matched is not None  # `permit` refused questions about others
    return store.matched


def _release(_: messages.SampleLocally, silo: Silo) -> messages.Release:
    return replace(kept_posterior(silo).release, policy=echo(silo.policy))


def _divergence(query: messages.DivergenceCost, silo: Silo) -> messages.DivergenceReply:
    kept, study = kept_posterior(silo), silo.study
    influence = getattr(study.matching, "reference", "mean")
    known = released_draws.make_reference(query, influence, study.pooled_model, len(study.silos))
    rng = np.random.default_rng([study.seed, DIVERGENCE_STREAM, silo.place, query.round])
    weights = kept.weights.mean(axis=0)
    cost = released_draws.divergence_cost(known, silo.rows, weights, kept.parameters, rng)
    return messages.DivergenceReply(cost)


def _share(query: messages.ShareReleases, silo: Silo) -> messages.Received:
    if not released_draws.same_draws(query.releases[silo.place], kept_posterior(silo).release):
        raise MessageError(
            f"{silo.name}: the release that the coordinator shows as its own is not the one that "
            "it made; show the one that it sent"
        )
    silo.store.share(query)
    return messages.Received()


def _log_likelihood(query: messages.LogLikelihood, silo: Silo) -> messages.LogLikelihoodReply:
    matched = shown_draws(silo)
    draws, clusters = matched.weights.shape[1:]
    if query.last > draws or query.profiles.shape[2] != clusters:
        raise MessageError(
            f"{silo.name}: the question is about draws up to {query.last} of "
            f"{query.profiles.shape[2]} clusters; it was shown {draws} draws of {clusters}"
        )
    some = matched.some(query.first, query.last)
    expected = partial(silo.rows.expected, threads=silo.threads)
    parts = released_draws.mean_log_likelihood(
        some, query.weights, query.profiles, silo.rows.family, expected
    )
    return messages.LogLikelihoodReply(*parts)


def _distinct_rows(_: messages.CountDistinctRows, silo: Silo) -> messages.DistinctRows:
    rows, counts = silo.rows.distinct
    return messages.DistinctRows(rows, release_row_counts(counts, silo.policy, silo.name))


def _polish(query: messages.PolishRound, silo: Silo) -> messages.PolishReply:
    key = fold(chain_key(silo.study.seed, silo.place, POLISH_STREAM), query.round)
    start, alpha = (query.weights, query.parameters), query.alpha or 0.0
    drawn = silo.rows.draw_labels(key, start, alpha, query.inner_sweeps, silo.threads)
    return messages.PolishReply.of(*drawn)


def _assign(query: messages.AssignRows, silo: Silo) -> messages.Received:
    if query.groups is None:
        assign = partial(silo.rows.membership, query.weights, threads=silo.threads)
        assigned, study = assign(query.parameters), silo.study
        by_draws = study.strategy == "consensus" and study.polish.rounds == 0
        # the profiles were made from the silo's rounded release: it knows its own clusters better
        if by_draws and study.aggregation.own_profiles and has_rules(kept_posterior(silo).release):
            assigned = assign(_own_profiles(query, assigned.membership, silo))
        membership = to_four_decimals(assigned.membership)
    else:
        membership = np.zeros((silo.shard.rows, query.parameters.shape[1]), dtype=np.float32)
        membership[np.arange(silo.shard.rows), query.groups[kept_posterior(silo).labels]] = 1.0
    silo.store.assign(membership)
    return messages.Received()


def _own_profiles(query: messages.AssignRows, membership: Reals, silo: Silo) -> Reals:
    """Profiles that the silo assigns its rows by: they stay here.

    Parameters
    ----------
    membership : (row, cluster), by the profiles of the question; they say which global cluster a
        local one is.
    """
    kept = kept_posterior(silo)
    rows = sum_by(kept.labels, membership, kept.release.clusters)
    known, study = (kept.release, kept.parameters, rows.argmax(axis=1)), silo.study
    return with_own_counts(query.parameters, *known, study.pooled_model, len(study.silos))


# What answers each question, and which of a policy's limits counts it.
QUESTIONS: dict[type, tuple[Callable[[Any, Silo], Any], str | None]] = {
    messages.SampleLocally: (_release, None),
    messages.DivergenceCost: (_divergence, "divergence"),
    messages.ShareReleases: (_share, "sharing"),
    messages.LogLikelihood: (_log_likelihood, "gradients"),
    messages.CountDistinctRows: (_distinct_rows, "distinct_rows"),
    messages.PolishRound: (_polish, "polish"),
    messages.AssignRows: (_assign, None),
}
HANDLERS = {question: handler for question, (handler, _) in QUESTIONS.items()}
LIMITED = {question: kind for question, (_, kind) in QUESTIONS.items() if kind}
