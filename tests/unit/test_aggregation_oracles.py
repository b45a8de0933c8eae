"""Distinct rows, and answers that do not fit the question."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from silomix.aggregation.oracles import Question, contingency, distinct_rows, federated
from silomix.errors import StudyMismatch
from silomix.messages import DistinctRows, Received
from unit.aggregation_cases import make_case, share_of


@pytest.mark.parametrize("variables", [1, 2, 45, 94, 200])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_distinct_rows_are_those_of_numpy(seed, variables, dtype):
    rng = np.random.default_rng(seed)
    codes = rng.choice(rng.integers(0, 3, (40, variables)).astype(dtype), 300)
    found = distinct_rows(codes)
    rows, counts = np.unique(codes, axis=0, return_counts=True)
    assert found.codes.dtype == dtype
    assert_array_equal(found.codes, rows)
    assert_array_equal(found.counts, counts)


def test_rows_that_differ_in_one_cell_anywhere_are_told_apart():
    """Every position of a row that is packed into several words, and the largest codes."""
    base = np.full((1, 70), 200, dtype=np.uint8)
    rows = np.repeat(base, 71, axis=0)
    rows[np.arange(70), np.arange(70)] = 201
    assert len(distinct_rows(rows).counts) == 71


@pytest.mark.parametrize("base", [2, 4, 16, 256])
def test_a_word_that_is_just_full_does_not_overflow(base):
    """64 bits hold exactly this many cells; one more starts another word."""
    fit = int(64 / np.log2(base))
    for variables in (fit, fit + 1):
        largest = np.full(variables, base - 1, dtype=np.uint8)
        rows = np.stack([np.zeros_like(largest), largest, largest])
        found = distinct_rows(rows)
        assert_array_equal(found.codes, rows[:2])
        assert_array_equal(found.counts, [1, 2])


def test_rows_of_one_level_and_no_rows():
    found = distinct_rows(np.zeros((5, 3), np.uint8))
    assert_array_equal(found.codes, [[0, 0, 0]])
    assert_array_equal(found.counts, [5])
    assert len(distinct_rows(np.zeros((0, 3), np.uint8)).counts) == 0


def test_counts_add_up_over_equal_rows(seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 2, (50, 3)).astype(np.uint8)
    half = [distinct_rows(part) for part in (codes[:20], codes[20:])]
    merged = distinct_rows(
        np.concatenate([part.codes for part in half]),
        np.concatenate([part.counts for part in half]),
    )
    whole = distinct_rows(codes)
    assert_array_equal(merged.codes, whole.codes)
    assert_array_equal(merged.counts, whole.counts)


class Changed:
    """Silos of which one answers something else."""

    def __init__(self, silos, change):
        self.silos, self.change = silos, change

    @property
    def names(self):
        return self.silos.names

    def ask(self, query):
        replies = self.silos.ask(query)
        return {**replies, "silo-1": self.change(replies["silo-1"])}


@pytest.fixture
def case(seed):
    return make_case(seed, rows=(30, 20), clusters=2, sizes=(2, 3), draws=20)


def one_variable(_):
    return DistinctRows(np.zeros((4, 1), np.uint8), np.ones(4, int))


def one_count(_):
    return DistinctRows(np.zeros((4, 2), np.uint8), np.ones(1, int))


def five_levels(_):
    return DistinctRows(np.array([[0, 4]], np.uint8), np.ones(1, int))


UNFIT = {
    one_variable: "its distinct rows have shape (4, 1) but the study has 2 variables; "
    "make the answer again under this study",
    one_count: "4 distinct rows came with counts of shape (1,); make the answer again",
    five_levels: "variable 2 has code 4 but only 3 levels in the study; "
    "make the answer again under this study",
}


@pytest.mark.parametrize("change", UNFIT)
def test_distinct_rows_of_another_study_are_refused(case, change):
    with pytest.raises(StudyMismatch) as error:
        contingency(Changed(case.silos, change), case.sizes)
    assert str(error.value) == f"silo-1: {UNFIT[change]}"


def short_value(reply):
    return reply if isinstance(reply, Received) else replace(reply, value=reply.value[:2])


def test_a_reply_to_another_question_is_refused(case, seed):
    share = share_of(case, 5, seed)
    half = np.full((3, 2), 0.5), np.full((3, 2, 2), 0.5)
    oracle = federated(Changed(case.silos, short_value), share)
    with pytest.raises(StudyMismatch) as error:
        oracle(Question(share.matched, 0, *half))
    assert str(error.value) == (
        "silo-1: its log-likelihood and gradient have shapes ((2,), (3, 2), (3, 2, 2)), the "
        "question asked for ((3,), (3, 2), (3, 2, 2)); answer the question of this round"
    )
