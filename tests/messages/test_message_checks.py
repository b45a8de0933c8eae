"""Questions and answers at the doors: what makes sense passes, what does not is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from federation.message_cases import EXCHANGES, study_with

from silomix.errors import MessageError
from silomix.messages import (
    REFUSALS,
    REPLIES,
    AssignRows,
    CountDistinctRows,
    LogLikelihood,
    Query,
    Received,
    Refused,
    SampleLocally,
)
from silomix.messages.container import MOST_ROWS, decode, encode
from silomix.messages.message_checks import (
    CHECKS,
    Terms,
    _rows,
    check_envelope,
    check_query,
    check_reply,
)
from silomix.paper import FewRounds, Psgd
from silomix.study import Lbfgs

each_exchange = pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=list(EXCHANGES))


def check(exchange, record, study=None):
    """Let a question, or else an answer, travel, and check it as its receiver would."""
    record, study = travelled(exchange, record), study or exchange.study
    if type(record) is type(exchange.query):
        check_query(record, study, exchange.silo)
    else:
        check_reply(record, exchange.query, study, exchange.silo)


def refused(name, record, study=None):
    with pytest.raises(MessageError):
        check(EXCHANGES[name], record, study)


def query_refused(name, *, study=None, **changes):
    refused(name, replace(EXCHANGES[name].query, **changes), study)


def travelled(exchange, record):
    """The record as its receiver reads it; what is declared of its fields is checked then."""
    return decode(encode(exchange.envelope(record), record))[1]


def each(cases):
    """One test for every change of the exchanges of these names."""
    changes = [(name, change) for name, some in cases.items() for change in some]
    ids = [f"{name}, {' '.join(change)}" for name, change in changes]
    return pytest.mark.parametrize(("name", "changes"), changes, ids=ids)


def put(array, place, value):
    """A copy of the array with another value in one place."""
    changed = array.copy()
    changed[place] = value
    return changed


@each_exchange
def test_question_and_answer_pass(exchange):
    check_query(exchange.query, exchange.study, exchange.silo)
    for reply in (exchange.reply, *map(Refused, REFUSALS)):
        check_reply(reply, exchange.query, exchange.study, exchange.silo)


@each_exchange
def test_no_array_is_shorter_along_an_axis_and_no_number_infinite(exchange):
    for record in exchange.records:
        arrays = {k: v for k, v in vars(record).items() if isinstance(v, np.ndarray)}
        for name, array in arrays.items():
            wrong = [np.delete(array, -1, axis) for axis in range(array.ndim)]
            if (type(record), name) in {(LogLikelihood, "profiles"), (AssignRows, "groups")}:
                wrong.pop()  # the silo knows how many clusters there are, the door does not
            if array.dtype.kind == "f":
                wrong.append(put(array, (0,) * array.ndim, np.inf))
            for other in wrong:
                with pytest.raises(MessageError):
                    check(exchange, replace(record, **{name: other}))


def test_every_question_has_its_checks():
    assert set(CHECKS) == set(REPLIES) == set(get_args(Query))


def test_missing_cells():
    exchange = EXCHANGES["distinct rows"]
    assert (exchange.reply.rows == [2, 3, 2]).all(axis=1).any()
    level = exchange.study.model_copy(update={"missing": "level"})
    with pytest.raises(MessageError, match="has code 2 for 'v0', which has 2 levels"):
        check_reply(exchange.reply, exchange.query, level, exchange.silo)


def test_envelopes():
    exchange = EXCHANGES["polish"]
    asked, said = map(exchange.envelope, exchange.records)
    check_envelope(asked, exchange.study, exchange.silo, 7)
    check_envelope(said, exchange.study, exchange.silo, 7, exchange.query)
    for envelope, query in (
        *((replace(asked, **c), None) for c in ({"study": "0" * 64}, {"silo": "x"}, {"number": 6})),
        (said, replace(exchange.query, inner_sweeps=1)),  # which is not asked any more
        (replace(said, answers=""), exchange.query),
        (said, None),
        (asked, exchange.query),
    ):
        with pytest.raises(MessageError):
            check_envelope(envelope, exchange.study, exchange.silo, 7, query)


@pytest.mark.parametrize(
    ("query", "silo", "words"),
    [(SampleLocally(), "west", "not in this study"), (Received(), "süd", "not a question")],
)
def test_who_asks_whom(query, silo, words):
    with pytest.raises(MessageError, match=f"{silo}: .*{words}"):
        check_query(query, study_with(), silo)


POLISH = EXCHANGES["polish"].query
DIVERGENCE = EXCHANGES["divergence"].query
GRADIENTS = EXCHANGES["gradients"].query
ASSIGN = EXCHANGES["assign"].query
SHARE = EXCHANGES["share"].query
MISPLACED = replace(SHARE.releases[1], place=2)


class TestQuestions:
    @each(
        {
            "sample": [{"strategy": "exact"}],
            "divergence": [{}],
            "share": [{}],
            "gradients": [{"aggregation": "cmc"}],
            "distinct rows": [{"oracle": "federated"}, {"strategy": "exact"}],
            "polish": [{"polish": 0}],
        }
    )
    def test_what_the_study_does_not_ask(self, name, changes):
        query_refused(name, study=study_with(**changes))

    @each(
        {
            "divergence": [
                {"releases": (), "groups": ()},
                {"releases": DIVERGENCE.releases[:1] * 2},
                {"releases": (replace(DIVERGENCE.releases[0], silo="x"), DIVERGENCE.releases[1])},
                {"releases": (replace(DIVERGENCE.releases[0], silo="süd"),)},
                {"releases": (replace(DIVERGENCE.releases[0], place=1), DIVERGENCE.releases[1])},
                {"groups": (np.array([0, 1, 2]), DIVERGENCE.groups[1])},
                {"groups": (np.array([0, 1]), np.array([-1, 0]))},
                {"groups": (np.array([0, 1]), np.array([0, 0]))},
                {"groups": (np.array([0, 1]), np.array([0, 3]))},
                {"round": 4},
            ],
            "share": [
                {"releases": SHARE.releases[:2]},
                {"groups": SHARE.groups[:2]},
                {"releases": (SHARE.releases[0], MISPLACED, SHARE.releases[2])},
                {"groups": (np.array([0, 12]), *SHARE.groups[1:])},
                {"groups": (np.array([0, 5]), *SHARE.groups[1:])},
                {"draws": 0},
                {"draws": 100001},
            ],
            "gradients": [
                {"profiles": np.full((4, 3, 13), 1 / 3)},
                {"first": 10},
                {"last": 0},
                {"weights": GRADIENTS.weights * 0.9},
                {"profiles": GRADIENTS.profiles * 0.9},
            ],
            "polish": [
                {"round": 0},
                {"round": 201},
                {"inner_sweeps": 3},
                {"alpha": None},
                {"alpha": 0.0},
                {"alpha": 0.6},
                {"weights": POLISH.weights[:, ::-1] * 2},
                {"parameters": 1 - POLISH.parameters},
            ],
            "exact": [
                {"weights": POLISH.weights, "parameters": POLISH.parameters},
                {"alpha": 0.5},
            ],
            "assign": [
                {"groups": np.array([0])},
                {"weights": ASSIGN.weights * 0.5},
                {"parameters": -ASSIGN.parameters},
            ],
            "assign, matching": [
                {"groups": None},
                {"groups": np.array([0, 3])},
                {"groups": np.zeros(5, int)},
            ],
        }
    )
    def test_that_do_not_fit(self, name, changes):
        query_refused(name, **changes)

    @pytest.mark.parametrize(
        ("name", "limit", "most"), [("share", "MOST_MATCHED", 1000), ("polish", "MOST_LABELS", 2)]
    )
    def test_that_would_fill_the_memory(self, name, limit, most, monkeypatch):
        monkeypatch.setattr(f"silomix.messages.message_checks.{limit}", most)
        query_refused(name)

    @pytest.mark.parametrize("solver", [FewRounds(starts=3), Psgd(starts=2), Lbfgs(starts=9)])
    def test_more_starts_than_the_solver_asks_about_at_once(self, solver):
        study = study_with(oracle="federated", solver=solver)
        query_refused("gradients", study=study)
        few = replace(GRADIENTS, weights=GRADIENTS.weights[:1], profiles=GRADIENTS.profiles[:1])
        check_query(few, study, "süd")


RELEASE = EXCHANGES["sample"].reply
REPLY = EXCHANGES["polish"].reply
MEMBERS = REPLY.members.astype(np.uint64)
COST = EXCHANGES["divergence"].reply.cost
ROWS = EXCHANGES["distinct rows"].reply


class TestAnswers:
    @pytest.mark.parametrize(
        ("name", "reply"),
        [
            ("sample", Received()),
            ("polish", Received()),
            ("share", CountDistinctRows()),
            ("sample", Refused("because")),
        ],
    )
    def test_of_the_wrong_kind(self, name, reply):
        refused(name, reply)

    @each(
        {
            "sample": [
                {"silo": "north"},
                {"place": 0},
                {"study": "a study"},
                {"tier": "summary"},
                {"sizes": np.zeros(0, int)},
                {"sizes": np.zeros(5, int)},
                {"concentration": RELEASE.mean},
                {"sizes": put(RELEASE.sizes, 0, 0)},
                {"sizes": put(RELEASE.sizes, 0, 2**62)},
                {"sizes": put(RELEASE.sizes, 0, 2**52)},
                {"sizes": put(RELEASE.sizes, 0, MOST_ROWS)},
                {"mean": put(RELEASE.mean, (0, 0), 0.0)},
                {"concentration": -RELEASE.concentration},
                {"concentration": RELEASE.concentration * 1e300},
                {"diagnostics": replace(RELEASE.diagnostics, prior_draws=1.5)},
                {"diagnostics": replace(RELEASE.diagnostics, agreement=1.25)},
                {"diagnostics": replace(RELEASE.diagnostics, full=-0.5)},
                {"weights": None},
                {"weights": RELEASE.weights * np.float32(0.9)},
                {"parameters": RELEASE.parameters * 0},
            ],
            "sample, summary": [{"weights": RELEASE.weights, "parameters": RELEASE.parameters}],
            "divergence": [
                {"cost": COST[:3, :3]},
                {"cost": np.zeros((6, 6))},
                {"cost": put(COST, (0, 0), -1e200)},
            ],
            "distinct rows": [
                {"rows": ROWS.rows[:0]},
                {"counts": put(ROWS.counts, 0, 0)},
                {"counts": np.full(3, MOST_ROWS // 2)},
                {"rows": put(ROWS.rows, (0, 1), 4)},
            ],
            "polish": [
                {"members": put(MEMBERS, (0, 0), 2**62)},
                {"least": put(REPLY.least.astype(np.uint64), (0, 0), 2**63)},
                {"above": put(REPLY.above.astype(np.uint64), (0, 0, 0), 2**63)},
                {"members": put(MEMBERS, (0, 0), 1000)},
                {"members": REPLY.members * 0},
                {"above": put(REPLY.above, (0, 0, 0), 31)},
                {"weights": REPLY.weights * 0.5},
            ],
            "exact": [{"weights": EXCHANGES["exact"].reply.weights[:, ::-1]}],
        }
    )
    def test_that_do_not_fit(self, name, changes):
        refused(name, replace(EXCHANGES[name].reply, **changes))


class TestExpectedRows:
    """A silo's rows are held against the number that the study states, if it does."""

    @pytest.mark.parametrize(
        ("name", "factor"),
        [(name, 0.1) for name in ("sample", "distinct rows", "polish")] + [("sample", 30)],
    )
    def test_far_from_it(self, name, factor):
        exchange = EXCHANGES[name]
        rows = {"sample": RELEASE.rows, "distinct rows": ROWS.counts.sum()}
        stated = int(rows.get(name, REPLY.members[0].sum()) * factor)
        study = exchange.study.model_copy(update={"rows": {exchange.silo: stated}})
        problems = list(
            CHECKS[type(exchange.query)][1](
                exchange.reply, exchange.query, Terms(study, exchange.silo)
            )
        )
        assert any(f"the study states {stated:,} for this silo" in text for text in problems)

    @pytest.mark.parametrize(
        ("round_to", "rows", "passes"),
        [
            (1, 1100, True),
            (1, 1101, False),
            (1, 899, False),
            (5, 1105, True),
            (5, 1120, False),
            # whatever it says of its rounding
            (1_000_000, 2_000_000, False),
        ],
    )
    def test_within_a_tenth_and_rounding(self, round_to, rows, passes):
        terms = Terms(EXCHANGES["sample"].study.model_copy(update={"rows": {"here": 1000}}), "here")
        clusters = 2
        assert passes == (not list(_rows(rows, terms, slack=(round_to - 1) * clusters)))
        assert not list(_rows(rows, terms._replace(silo="there")))
