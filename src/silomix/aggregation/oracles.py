"""Where the data term of the objective comes from.

An oracle answers a `Question` for all silos together: the mean over draws of log p(X | θ̂_t), and
its gradient in (λ, μ), at any number of points. Three of them,
the same number to rounding: `pooled` has the rows, `contingency` asks every silo once how often
each distinct row occurs, `federated` asks every silo each time and adds up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.aggregation.matched import mix, mix_gradient, some_draws
from silomix.errors import StudyMismatch
from silomix.kernels.layout import columns_of
from silomix.kernels.likelihood import expected_counts, row_table
from silomix.messages import (
    CountDistinctRows,
    DistinctRows,
    LogLikelihood,
    LogLikelihoodReply,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from silomix.kernels.likelihood import RowTable
    from silomix.messages import ShareReleases, Silos
    from silomix.types import MatchedDraws

    Oracle = Callable[["Question"], LogLikelihoodReply]


class Question(NamedTuple):
    """Where the data term is wanted.

    Attributes
    ----------
    matched : the draws the mean is over.
    first : place of the first of them among all draws that were matched.
    weights : (start, silo), λ.
    profiles : (start, silo, cluster), μ.
    """

    matched: MatchedDraws
    first: int
    weights: NDArray[np.float64]
    profiles: NDArray[np.float64]


def pooled(
    codes: NDArray[np.unsignedinteger], sizes: NDArray[np.int64], threads: int = 1
) -> Oracle:
    """Return an oracle for rows that are all here: codes (row, variable), sizes (variable,)."""
    return _of_rows(distinct_rows(codes), sizes, threads)


def contingency(silos: Silos, sizes: NDArray[np.int64], threads: int = 1) -> Oracle:
    """Ask every silo for its distinct rows, once, and return an oracle on all of them."""
    replies: Mapping[str, DistinctRows] = silos.ask(CountDistinctRows())
    for name in silos.names:
        _check_rows(name, replies[name], sizes)
    codes = np.concatenate([replies[name].codes for name in silos.names])
    counts = np.concatenate([replies[name].counts for name in silos.names])
    return _of_rows(distinct_rows(codes, counts), sizes, threads)


def federated(silos: Silos, share: ShareReleases) -> Oracle:
    """Return an oracle that asks every silo each time: sums over rows move, and no row.

    The silos are shown the releases once; the questions then carry points alone.
    """
    silos.ask(share)

    def ask(question: Question) -> LogLikelihoodReply:
        last = question.first + question.matched.weights.shape[1]
        replies: Mapping[str, LogLikelihoodReply] = silos.ask(
            LogLikelihood(share.key, question.first, last, question.weights, question.profiles)
        )
        for name in silos.names:
            _check_reply(name, replies[name], question)
        ordered = [replies[name] for name in silos.names]
        return LogLikelihoodReply(
            np.sum([reply.value for reply in ordered], axis=0),
            np.sum([reply.weights for reply in ordered], axis=0),
            np.sum([reply.profiles for reply in ordered], axis=0),
        )

    return ask


def silo_log_likelihood(
    query: LogLikelihood,
    matched: MatchedDraws,
    rows: RowTable,
    threads: int = 1,
) -> LogLikelihoodReply:
    """Answer for one silo's rows, from the draws that were shared with it."""
    some = some_draws(matched, query.first, query.last)
    question = Question(some, query.first, query.weights, query.profiles)
    return rows_log_likelihood(question, rows, threads)


def rows_log_likelihood(question: Question, rows: RowTable, threads: int = 1) -> LogLikelihoodReply:
    """Answer the question for distinct rows.

    With N̂_{t,c} and n̂_{t,c,k} the expected rows and cells at θ̂_t, ∂/∂λ_s is the mean over
    draws of Σ_c N̂_c π_c^s / π̂_c, and ∂/∂μ_{s,c} that of Σ_k n̂_{c,k} p_{c,k}^s / p̂_{c,k}.
    """
    values, by_weights, by_profiles = [], [], []
    # point by point: the global draws of all of them would fill the memory
    for weights, profiles in zip(question.weights, question.profiles, strict=True):
        shares, probabilities = mix(question.matched, weights, profiles)
        expected = expected_counts(shares, probabilities, rows, threads)
        gradient = mix_gradient(
            question.matched, expected.members / shares, expected.cells / probabilities
        )
        values.append(expected.log_likelihood.mean())
        by_weights.append(gradient[0])
        by_profiles.append(gradient[1])
    return LogLikelihoodReply(np.array(values), np.array(by_weights), np.array(by_profiles))


def distinct_rows(
    codes: NDArray[np.unsignedinteger], counts: NDArray[np.int64] | None = None
) -> DistinctRows:
    """Return the distinct rows, in the order of their codes, and how often each occurs.

    Parameters
    ----------
    codes : (row, variable)
    counts : (row,), how often each row stands for itself; once when left out.
    """
    if len(codes) == 0:
        return DistinctRows(codes, np.zeros(0, dtype=np.int64))
    words = _pack(codes)
    order = np.lexsort(words[::-1])
    new = np.zeros(len(codes), dtype=bool)
    new[0] = True
    for word in words:
        in_order = word[order]
        new[1:] |= in_order[1:] != in_order[:-1]
    repeats = np.ones(len(codes), dtype=np.int64) if counts is None else counts
    totals = np.add.reduceat(repeats[order], np.flatnonzero(new))
    return DistinctRows(codes[order[new]], totals.astype(np.int64))


def _pack(codes: NDArray[np.unsignedinteger]) -> list[NDArray[np.uint32]]:
    """Write each row as few numbers that sort as its codes do: (row,) for each.

    Sixteen bits are sorted in linear time, more are not.
    """
    words: list[NDArray[np.uint32]] = []
    span = 1
    for column in columns_of(codes):
        base = int(column.max()) + 1
        span *= base
        if not words or span > 2**16:
            words.append(column.astype(np.uint32))
            span = base
        else:
            words[-1] = words[-1] * np.uint32(base) + column
    return [word.astype(np.uint16) if word.max() < 2**16 else word for word in words]


def _of_rows(rows: DistinctRows, sizes: NDArray[np.int64], threads: int) -> Oracle:
    table = row_table(rows.codes, rows.counts, sizes)
    return lambda question: rows_log_likelihood(question, table, threads)


def _check_rows(name: str, rows: DistinctRows, sizes: NDArray[np.int64]) -> None:
    if rows.codes.ndim != 2 or rows.codes.shape[1] != len(sizes):
        raise StudyMismatch(
            f"{name}: its distinct rows have shape {rows.codes.shape} but the study has "
            f"{len(sizes)} variables; make the answer again under this study"
        )
    if rows.counts.shape != rows.codes.shape[:1]:
        raise StudyMismatch(
            f"{name}: {len(rows.codes)} distinct rows came with counts of shape "
            f"{rows.counts.shape}; make the answer again"
        )
    if (rows.codes > sizes).any():
        place = int(np.flatnonzero((rows.codes > sizes).any(axis=0))[0])
        raise StudyMismatch(
            f"{name}: variable {place + 1} has code {int(rows.codes[:, place].max())} but only "
            f"{sizes[place]} levels in the study; make the answer again under this study"
        )


def _check_reply(name: str, reply: LogLikelihoodReply, question: Question) -> None:
    found = (reply.value.shape, reply.weights.shape, reply.profiles.shape)
    wanted = (question.weights.shape[:1], question.weights.shape, question.profiles.shape)
    if found != wanted:
        raise StudyMismatch(
            f"{name}: its log-likelihood and gradient have shapes {found}, the question asked "
            f"for {wanted}; answer the question of this round"
        )
