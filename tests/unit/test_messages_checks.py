"""Questions and answers at the doors: what makes sense passes, what does not is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from federation.message_cases import CLUSTERS, SILOS, exchanges, make_release, study_with
from silomix.errors import MessageError
from silomix.messages import (
    REFUSALS,
    AssignReply,
    CountDistinctRows,
    Query,
    Received,
    Refused,
    SampleLocally,
)
from silomix.messages.checks import (
    QUERY_CHECKS,
    REPLIES,
    REPLY_CHECKS,
    check_envelope,
    check_query,
    check_reply,
)
from silomix.study import FewRounds, Lbfgs, Psgd

EXCHANGES = exchanges()
each_exchange = pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=list(EXCHANGES))


def query_refused(name, match, *, study=None, **changes):
    exchange = EXCHANGES[name]
    query = replace(exchange.query, **changes)
    with pytest.raises(MessageError, match=match) as caught:
        check_query(query, study or exchange.study, exchange.silo)
    kind = type(query).__name__
    assert str(caught.value).startswith(f"süd: the question {kind} ")
    assert str(caught.value).endswith("the same study file, and have it ask again")


def reply_refused(name, match, reply=None, **changes):
    exchange = EXCHANGES[name]
    reply = reply or replace(exchange.reply, **changes)
    with pytest.raises(MessageError, match=match) as caught:
        check_reply(reply, exchange.query, exchange.study, exchange.silo)
    kinds = f"{type(reply).__name__} to {type(exchange.query).__name__}"
    assert str(caught.value).startswith(f"süd: the answer {kinds} ")
    assert str(caught.value).endswith("answer this question again, with the same study file")


def put(array, place, value):
    """A copy of the array with another value in one place."""
    changed = array.copy()
    changed[place] = value
    return changed


class TestPassing:
    @each_exchange
    def test_question_and_answer(self, exchange):
        check_query(exchange.query, exchange.study, exchange.silo)
        check_reply(exchange.reply, exchange.query, exchange.study, exchange.silo)

    @each_exchange
    @pytest.mark.parametrize("code", REFUSALS)
    def test_a_refusal_answers_anything(self, exchange, code):
        check_reply(Refused(code), exchange.query, exchange.study, exchange.silo)

    def test_every_question_has_its_checks(self):
        kinds = set(get_args(Query))
        assert set(QUERY_CHECKS) == set(REPLY_CHECKS) == set(REPLIES) == kinds

    def test_missing_cells(self):
        exchange = EXCHANGES["distinct rows"]
        assert (exchange.reply.codes == [2, 3, 2]).all(axis=1).any()
        level = exchange.study.model_copy(update={"missing": "level"})
        with pytest.raises(MessageError, match="has code 2 for 'v0', which has 2 levels"):
            check_reply(exchange.reply, exchange.query, level, exchange.silo)


class TestEnvelope:
    def test_the_right_one(self):
        exchange = EXCHANGES["polish"]
        check_envelope(exchange.envelope(exchange.query), exchange.study, exchange.silo, 7)
        said = exchange.envelope(exchange.reply)
        check_envelope(said, exchange.study, exchange.silo, 7, exchange.query)

    def test_an_answer_to_what_is_not_asked_any_more(self):
        exchange = EXCHANGES["polish"]
        said = exchange.envelope(exchange.reply)
        other = replace(exchange.query, inner_sweeps=1)
        with pytest.raises(MessageError) as caught:
            check_envelope(said, exchange.study, exchange.silo, 7, other)
        assert str(caught.value) == (
            "süd: the PolishReply answers another question 7 than is asked now; delete it, and "
            "have the silo answer again"
        )
        with pytest.raises(MessageError, match="answers another question 7 than is asked now"):
            check_envelope(replace(said, answers=""), exchange.study, "süd", 7, exchange.query)
        with pytest.raises(MessageError, match="is an answer; put question 7 in its place"):
            check_envelope(said, exchange.study, "süd", 7)

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"study": "0" * 64}, "the PolishRound is of study '0000.* and not of '"),
            (
                {"silo": "north"},
                "is of silo 'north' and not of 'süd'; put the message of the right s",
            ),
            ({"number": 6}, "is of question 6 and not of 7; put the message of the right question"),
        ],
    )
    def test_another(self, changes, match):
        exchange = EXCHANGES["polish"]
        envelope = replace(exchange.envelope(exchange.query), **changes)
        with pytest.raises(MessageError, match=match):
            check_envelope(envelope, exchange.study, exchange.silo, 7)


class TestWho:
    def test_no_silo_of_the_study(self):
        with pytest.raises(MessageError, match="west: no silo of this study has that name; its si"):
            check_query(SampleLocally(), study_with(), "west")

    def test_no_question(self):
        with pytest.raises(MessageError, match="süd: a Received is no question"):
            check_query(Received(), study_with(), "süd")

    @pytest.mark.parametrize(
        ("name", "settings", "match"),
        [
            ("sample", {"strategy": "exact"}, 'in a study with strategy = "exact"'),
            ("divergence", {}, 'in a study with matching = "evidence"'),
            ("share", {}, 'in a study with oracle = "contingency"'),
            ("gradients", {}, 'in a study with oracle = "contingency"'),
            ("gradients", {"aggregation": "cmc"}, 'in a study with aggregation = "cmc"'),
            ("distinct rows", {"oracle": "federated"}, 'in a study with oracle = "federated"'),
            ("distinct rows", {"strategy": "exact"}, 'in a study with strategy = "exact"'),
            ("polish", {"polish": 0}, "in a study with polish = 0"),
        ],
    )
    def test_what_the_study_does_not_ask(self, name, settings, match):
        query_refused(name, match, study=study_with(**settings))


POLISH = EXCHANGES["polish"].query
DIVERGENCE = EXCHANGES["divergence"].query
GRADIENTS = EXCHANGES["gradients"].query
ASSIGN = EXCHANGES["assign"].query
SHARE = EXCHANGES["share"].query
MISPLACED = replace(SHARE.releases[1], place=2)


class TestQuestions:
    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"releases": (), "groups": ()}, "has releases 0; it must be from 1 to 2"),
            (
                {"releases": DIVERGENCE.releases[:1] * 2},
                "shows releases of one silo twice, or of silos that are not the study's",
            ),
            (
                {"releases": (replace(DIVERGENCE.releases[0], silo="x"), DIVERGENCE.releases[1])},
                "or of silos that are not the study's",
            ),
            (
                {"releases": (replace(DIVERGENCE.releases[0], silo="süd"),)},
                "shows the silo its own release",
            ),
            ({"groups": DIVERGENCE.groups[:1]}, "has groups of 1 silos and 2 releases"),
            (
                {"releases": (replace(DIVERGENCE.releases[0], place=1), DIVERGENCE.releases[1])},
                "shows a release of 'east 3' that is of 'east 3', place 1",
            ),
            (
                {"groups": (np.array([0, 1, 2]), DIVERGENCE.groups[1])},
                r"has groups of 'east 3' of shape \(3,\) where \(2\) is wanted",
            ),
            ({"groups": (np.array([0, 1]), np.array([-1, 0]))}, "has groups down to -1"),
            ({"groups": (np.array([0, 1]), np.array([2, 12]))}, "has groups up to 12; they must"),
            ({"groups": (np.array([0, 1]), np.array([0, 0]))}, "two clusters of one silo"),
            ({"groups": (np.array([0, 1]), np.array([0, 3]))}, "or with no cluster"),
            ({"groups": (np.array([1, 2]), np.array([0, 3]))}, "or with no cluster"),
            ({"round": 4}, "has round 4; it must be from 0 to 3"),
        ],
    )
    def test_divergence(self, changes, match):
        query_refused("divergence", match, **changes)

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"releases": SHARE.releases[:2]}, "shows the releases of 2 silos that are not the"),
            ({"releases": SHARE.releases[::-1]}, "shows the releases of 3 silos that are not the"),
            ({"groups": SHARE.groups[:2]}, "has groups of 2 silos and 3 releases"),
            (
                {"releases": (SHARE.releases[0], MISPLACED, SHARE.releases[2])},
                "shows a release of 'süd' that is of 'süd', place 2",
            ),
            (
                {"groups": (np.array([0, 1, 2]), *SHARE.groups[1:])},
                r"has groups of 'north' of shape \(3,\) where \(2\) is wanted",
            ),
            ({"groups": (np.array([0, 12]), *SHARE.groups[1:])}, "has groups up to 12; they must"),
            ({"groups": (np.array([-1, 0]), *SHARE.groups[1:])}, "has groups down to -1"),
            (
                {"groups": (np.array([0, 5]), *SHARE.groups[1:])},
                "has 6 groups, and some of them have no cluster",
            ),
            ({"draws": 0}, "has draws 0; it must be from 1 to 100,000"),
            ({"draws": 100_001}, "has draws 100,001"),
        ],
    )  # fmt: skip
    def test_share(self, changes, match):
        query_refused("share", match, **changes)

    def test_share_that_would_fill_the_memory(self, monkeypatch):
        monkeypatch.setattr("silomix.messages.checks.MOST_MATCHED", 1000)
        query_refused("share", "asks for 1,260 numbers of draws; at most 1,000 are made")

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            (
                {"weights": GRADIENTS.weights[:, :2]},
                r"has weights of shape \(4, 2\) where \(any, 3\)",
            ),
            (
                {"profiles": GRADIENTS.profiles[:2]},
                r"profiles of shape \(2, 3, 3\) where \(4, 3, any\)",
            ),
            ({"profiles": np.full((4, 3, 13), 1 / 3)}, "has clusters 13; it must be from 1 to 12"),
            ({"first": 10}, "has first 10; it must be from 0 to 9"),
            ({"last": 0}, "has last 0; it must be from 1"),
            ({"weights": GRADIENTS.weights * 0.9}, "has weights that sum to 0.9 instead of one"),
            ({"profiles": GRADIENTS.profiles * 0.9}, "has profiles that sum to 0.9 instead of one"),
        ],
    )
    def test_gradients(self, changes, match):
        query_refused("gradients", match, **changes)

    @pytest.mark.parametrize(
        ("solver", "most"), [(FewRounds(starts=3), 3), (Psgd(starts=2), 2), (Lbfgs(starts=9), 1)]
    )
    def test_more_starts_than_the_solver_asks_about_at_once(self, solver, most):
        study = study_with(oracle="federated", solver=solver)
        match = f"has starts 4; it must be from 1 to {most}"
        query_refused("gradients", match, study=study)
        few = replace(GRADIENTS, weights=GRADIENTS.weights[:1], profiles=GRADIENTS.profiles[:1])
        check_query(few, study, "süd")

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            (
                {"weights": POLISH.weights[:4]},
                r"has weights of shape \(4, 3\) where \(5, 3\) is want",
            ),
            ({"round": 0}, "has round 0; it must be from 1 to 50"),
            ({"round": 51}, "has round 51"),
            ({"inner_sweeps": 3}, "has inner_sweeps 3; it must be from 1 to 2"),
            ({"alpha": None}, "has alpha None in a study with strategy 'consensus'"),
            ({"alpha": 0.0}, "has alpha 0; it must be above 0 and at most 0.5"),
            ({"alpha": 0.6}, "has alpha 0.6; it must be"),
            ({"weights": POLISH.weights[:, ::-1] * 2}, "has weights"),
            ({"probabilities": 1 - POLISH.probabilities}, "has probabilities that sum to"),
        ],
    )
    def test_polish(self, changes, match):
        query_refused("polish", match, **changes)

    def test_chains_and_labels(self, monkeypatch):
        query_refused(
            "exact",
            "has chains 5; it must be from 1 to 2",
            weights=POLISH.weights,
            probabilities=POLISH.probabilities,
        )
        query_refused("exact", "has alpha 0.5 in a study with strategy 'exact'", alpha=0.5)
        monkeypatch.setattr("silomix.messages.checks.MOST_LABELS", 2)
        query_refused("polish", "has clusters 3; it must be from 1 to 2")

    @pytest.mark.parametrize(
        ("name", "changes", "match"),
        [
            ("assign", {"weights": ASSIGN.weights[:2]}, r"has weights of shape \(2, 3\)"),
            ("assign", {"groups": np.array([0])}, "has groups in a study with assign 'posterior'"),
            (
                "assign, matching",
                {"groups": None},
                "lacks groups in a study with assign 'matching'",
            ),
            (
                "assign, matching",
                {"groups": np.array([0, 3])},
                "has groups up to 3; they must be at",
            ),
            ("assign, matching", {"groups": np.zeros(5, int)}, "has local clusters 5; it must be"),
            ("assign", {"weights": ASSIGN.weights * 0.5}, "has weights that sum to 0.5"),
            ("assign", {"probabilities": -ASSIGN.probabilities}, "has probabilities down to -"),
        ],
    )
    def test_assign(self, name, changes, match):
        query_refused(name, match, **changes)


RELEASE = EXCHANGES["sample"].reply
REPLY = EXCHANGES["polish"].reply
MEMBERS = REPLY.members.astype(np.uint64)
COST = EXCHANGES["divergence"].reply.cost
ROWS = EXCHANGES["distinct rows"].reply


class TestAnswers:
    def test_of_the_wrong_kind(self):
        reply_refused("sample", "should be a Release", Received())
        reply_refused("polish", "should be a PolishReply", AssignReply(np.zeros(CLUSTERS, int)))
        reply_refused("share", "should be a Received", CountDistinctRows())

    def test_unknown_refusal(self):
        reply_refused("sample", "has the unknown code 'because'", Refused("because"))

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"silo": "north"}, "is of 'north', place 1"),
            ({"place": 0}, "is of 'süd', place 0"),
            ({"study": "a study"}, "was made for study 'a study'"),
            ({"tier": "summary"}, "is of tier 'summary' instead of 'draws'"),
            ({"sizes": np.array([22])}, r"has medians of shape \(2, 7\) where \(1, 7\) is wanted"),
            ({"sizes": np.zeros(0, int)}, "has clusters 0; it must be from 1 to 4"),
            ({"sizes": np.zeros(5, int)}, "has clusters 5; it must be from 1 to 4"),
            (
                {"concentration": RELEASE.mean},
                r"has concentration of shape \(2, 7\) where \(2, 3\)",
            ),
            ({"sizes": put(RELEASE.sizes, 0, 0)}, "has sizes down to 0; they must be at least 1"),
            ({"sizes": put(RELEASE.sizes, 0, 2**62)}, "has sizes up to 4,611,686,"),
            ({"rows": 5}, "has 5 rows and sizes that sum to 22"),
            ({"medians": RELEASE.medians + 1}, "has medians up to 1.*must be at most 1"),
            ({"mean": put(RELEASE.mean, (0, 0), 0.0)}, "has mean that sum to"),
            ({"concentration": -RELEASE.concentration}, "has concentration down to -"),
            ({"concentration": RELEASE.concentration * 1e300}, "has concentration up to"),
            ({"effective_counts": RELEASE.mean - 1}, "has effective_counts down to -"),
            (
                {"diagnostics": replace(RELEASE.diagnostics, prior_draws=1.5)},
                "has prior_draws 1.5; it must be from 0.0 to 1.0",
            ),
            (
                {"diagnostics": replace(RELEASE.diagnostics, agreement=1.25)},
                "has agreement 1.25; it must be from -1.0 to 1.0",
            ),
            (
                {"diagnostics": replace(RELEASE.diagnostics, full=-0.5)},
                "has full -0.5; it must be from 0.0 to 1.0",
            ),
            ({"weights": None}, "has draws that do not go with tier 'draws'"),
            (
                {"weights": RELEASE.weights[:, :1]},
                r"has weights of shape \(6, 1\) where \(any, 2\)",
            ),
            (
                {"weights": RELEASE.weights[:3]},
                r"has probabilities of shape \(6, 2, 7\) where \(3, 2",
            ),
            ({"weights": RELEASE.weights * np.float32(0.9)}, "has weights that sum to 0.9"),
            ({"probabilities": RELEASE.probabilities * 0}, "has probabilities that sum to 0 "),
        ],
    )
    def test_release(self, changes, match):
        reply_refused("sample", match, **changes)

    def test_summary_without_draws(self):
        reply_refused(
            "sample, summary",
            "has draws that do not go with tier 'summary'",
            weights=RELEASE.weights,
            probabilities=RELEASE.probabilities,
        )

    def test_every_silo_has_its_place(self):
        study = study_with()
        for place, name in enumerate(SILOS):
            check_reply(make_release(study, place), SampleLocally(), study, name)

    @pytest.mark.parametrize(
        ("cost", "match"),
        [
            (COST[:4], r"has cost of shape \(4, 5\) where \(4, 4\) is wanted"),
            (COST[:3, :3], "has clusters 3; it must be from 4 to 5"),
            (np.zeros((6, 6)), "has clusters 6; it must be from 4 to 5"),
            (put(COST, (0, 0), np.nan), "has cost that are not finite"),
            (put(COST, (0, 0), -1e200), "has cost down to -1"),
        ],
    )
    def test_divergence(self, cost, match):
        reply_refused("divergence", match, cost=cost)

    @pytest.mark.parametrize("name", ["value", "weights", "profiles"])
    def test_gradients(self, name):
        array = getattr(EXCHANGES["gradients"].reply, name)
        reply_refused("gradients", rf"has {name} of shape \(3,", **{name: array[:3]})
        wrong = put(array, (0,) * array.ndim, np.inf)
        reply_refused("gradients", f"has {name} that are not finite", **{name: wrong})

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            (
                {"codes": ROWS.codes[:, :2]},
                r"has codes of shape \(3, 2\) where \(any, 3\) is wanted",
            ),
            ({"codes": ROWS.codes[:0]}, r"has codes of shape \(0, 3\)"),
            ({"counts": ROWS.counts[:2]}, r"has counts of shape \(2,\) where \(3\) is wanted"),
            ({"counts": put(ROWS.counts, 0, 0)}, "has counts down to 0; they must be at least 1"),
            ({"counts": np.full(3, 2**53)}, "has counts that sum to more rows than there can be"),
            ({"codes": put(ROWS.codes, (0, 1), 4)}, "has code 4 for 'v1', which has 3 levels"),
        ],
    )
    def test_distinct_rows(self, changes, match):
        reply_refused("distinct rows", match, **changes)

    @pytest.mark.parametrize(
        ("changes", "match"),
        [
            ({"above": REPLY.above[:4]}, r"has above of shape \(4, 3, 7\) where \(5, 3, 7\)"),
            ({"least": REPLY.least[:2]}, r"has least of shape \(2, 7\) where \(3, 7\)"),
            ({"members": REPLY.members[:, :2]}, r"has members of shape \(5, 2\)"),
            ({"weights": REPLY.weights[:4]}, r"has weights of shape \(4, 3\)"),
            ({"log_likelihood": np.zeros(3)}, r"has log_likelihood of shape \(3,\) where \(5\)"),
            ({"members": put(MEMBERS, (0, 0), 2**62)}, "has members up to"),
            ({"least": put(REPLY.least.astype(np.uint64), (0, 0), 2**63)}, "has least up to"),
            ({"above": put(REPLY.above.astype(np.uint64), (0, 0, 0), 2**63)}, "has above up to"),
            (
                {"members": put(MEMBERS, (0, 0), 1000)},
                "has members that sum to 30 in one chain and 1,",
            ),
            ({"members": REPLY.members * 0}, "has members that sum to 0 in one chain"),
            (
                {"above": put(REPLY.above, (0, 0, 0), 31)},
                "counts more cells of a variable than its cluster has members",
            ),
            ({"weights": REPLY.weights * 0.5}, "has weights that sum to 0.5"),
            ({"log_likelihood": np.full(5, np.nan)}, "has log_likelihood that are not finite"),
        ],
    )
    def test_polish(self, changes, match):
        reply_refused("polish", match, **changes)

    def test_weights_that_were_not_to_change(self):
        weights = EXCHANGES["exact"].reply.weights[:, ::-1]
        reply_refused("exact", "has other weights than it was given", weights=weights)

    @pytest.mark.parametrize(
        ("sizes", "match"),
        [
            (np.array([1, 2]), r"has sizes of shape \(2,\) where \(3\) is wanted"),
            (np.array([1, 2, -2]), "has sizes down to -2; they must be at least -1"),
            (np.array([1, 2, 2**60]), "has sizes up to"),
        ],
    )
    def test_assign(self, sizes, match):
        reply_refused("assign", match, sizes=sizes)
