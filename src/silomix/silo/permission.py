"""What a silo's policy lets be asked, and how often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from silomix.errors import MessageError, PolicyRefusal
from silomix.messages import (
    REPLIES,
    AssignRows,
    CountDistinctRows,
    DivergenceCost,
    LogLikelihood,
    PolishRound,
    Received,
    ShareReleases,
)
from silomix.messages.container import digest as digest_question
from silomix.messages.door import breaches
from silomix.messages.released_draws import same_draws
from silomix.model.sentences import plural
from silomix.silo.ledger import note_left
from silomix.silo.local import Silo, kept_posterior
from silomix.study.policy import UNLIMITED, check_study

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.messages import Query, Release


def permit(query: Query, silo: Silo) -> None:
    """Refuse a question that the silo's policy does not allow, or not once more.

    A question asked twice gets the same answer and counts once; one about several points counts
    as many times.
    """
    check_study(silo.study, silo.policy.limits, silo.name)
    kind = counted(query, silo)
    if kind is not None and getattr(silo.policy.exchanges, kind) == 0:
        raise PolicyRefusal(
            f"{silo.name}: its policy does not allow {kind}; its owner can change "
            f"exchanges.{kind} in the policy file, or the study can do without",
        )
    if isinstance(query, LogLikelihood):
        _check_shared(query, silo)
    if isinstance(query, ShareReleases):
        _check_own(query, silo)
    if isinstance(query, ShareReleases | DivergenceCost):
        _check_shown(query.releases, silo)
    if kind is not None:
        _count(query, kind, silo)


def _count(query: Query, kind: str, silo: Silo) -> None:
    """Write a question into the store's ledger; refuse it where the policy's limit is reached."""
    limit: int = getattr(silo.policy.exchanges, kind)
    question, weight = digest_question(query), points(query)
    with silo.store.lock:
        asked = silo.store.ledger.get(kind, {})
        if question in asked:
            return
        left = limit - sum(asked.values())
        if weight > left:
            unit = "point" if isinstance(query, LogLikelihood) else "question"
            spent = "and all were asked"
            if left > 0:
                spent = f"of which {left:,} are left, and this question is about {weight:,}"
            raise PolicyRefusal(
                f"{silo.name}: its policy allows {plural(limit, unit)} about {kind} {spent}; "
                "ask fewer in this study, or let the policy's owner allow more",
                code="limit",
            )
        silo.store.note(kind, question, weight)


def points(query: Query) -> int:
    """Return how often a question counts: a gradient at each starting point of each draw."""
    if isinstance(query, LogLikelihood):
        return len(query.weights) * (query.last - query.first)
    return 1


def count_answered(query: Query, silo: Silo) -> None:
    """Count a question that was answered before the silo's store and ledger knew of it."""
    if silo.account is not None and REPLIES[type(query)] is not Received:
        note_left(silo.account, REPLIES[type(query)].__name__, has_left=True)
    kind = counted(query, silo)
    if kind is None:
        return
    question = digest_question(query)
    with silo.store.lock:
        if question not in silo.store.ledger.get(kind, {}):
            silo.store.note(kind, question, points(query))


def counted(query: Query, silo: Silo) -> str | None:
    """Return the limit of the silo's policy that counts this question, if one does."""
    kind = LIMITED.get(type(query))
    if kind is None or getattr(silo.policy.exchanges, kind) >= UNLIMITED:
        return None
    return kind


def _check_shared(query: LogLikelihood, silo: Silo) -> None:
    """Refuse a question about other releases than those that were last shared."""
    shared = silo.store.shared
    if shared is None or shared.key != query.shared:
        raise PolicyRefusal(
            f"{silo.name}: the question refers to releases that were not shared with it; "
            "share them first",
            code="order",
        )


def _check_own(query: ShareReleases, silo: Silo) -> None:
    """Refuse a sharing in which the silo's release is not its own."""
    if not same_draws(query.releases[silo.place], kept_posterior(silo).release):
        raise MessageError(
            f"{silo.name}: the release that the coordinator shows as its own is not the one that "
            "it made; show the one that it answered"
        )


def _check_shown(releases: Sequence[Release], silo: Silo) -> None:
    """Refuse releases of others that the silo's own policy would not have let out.

    Their sender may have made them up, of single rows; see `silomix.messages.door`.
    """
    offsets = silo.study.table_schema.offsets
    for release in releases:
        if release.place == silo.place:
            continue
        for problem in breaches(release, silo.policy, offsets):
            raise PolicyRefusal(
                f"{silo.name}: the release that it is shown as that of {release.silo!r} {problem}, "
                f"and its own policy {silo.policy.name!r} would not let such a one out; use a "
                "study that shows no releases, or let all silos have the same minimum_count and "
                "round_to, and ask where that release comes from",
                code="shown",
            )


# Which of a policy's limits counts which question.
LIMITED: dict[type, str] = {
    DivergenceCost: "divergence",
    ShareReleases: "sharing",
    LogLikelihood: "gradients",
    CountDistinctRows: "distinct_rows",
    PolishRound: "polish",
    AssignRows: "assign",
}
