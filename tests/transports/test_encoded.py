from __future__ import annotations

import stat
import sys

import numpy as np
import pytest

from silomix.errors import CheckpointError, MessageError
from silomix.messages import (
    CountDistinctRows,
    DistinctRows,
    PolishRound,
    Received,
    Refused,
    SampleLocally,
)
from silomix.messages.container import Envelope, digest_record, encode
from silomix.model.schema import Schema, Variable
from silomix.study import digest, make_study
from silomix.transports.encoded import EncodedSilos, NoAnswer

SCHEMA = Schema((Variable("a", ("no", "yes")), Variable("b", ("x", "y", "z"))))
STUDY = make_study(SCHEMA, ["north", "south"], seed=1)
QUERY = CountDistinctRows()


ROWS = DistinctRows(np.array([[0, 1], [1, 2]], dtype=np.uint8), np.array([3, 4]))


def reply(record, silo="north", number=1, study=STUDY, query=QUERY):
    kind, answers = type(record).__name__, digest_record(query)
    return encode(Envelope(digest(study), silo, number, kind, answers), record)


class ScriptedChannel:
    """Gives each silo's answers in turn: messages, or codes."""

    def __init__(self, **answers):
        self.answers = {name: list(given) for name, given in answers.items()}
        self.sent = []

    def carry(self, questions):
        for name in questions:
            self.sent.append(name)
            yield name, self.answers[name].pop(0)


def ask(folder, **answers):
    channel = ScriptedChannel(**answers)
    silos = EncodedSilos(STUDY, channel.carry, folder, [])
    return silos.ask(QUERY), silos.log[0], channel.sent


class TestAsking:
    def test_one_answer_from_each_and_none_is_asked_twice(self, tmp_path):
        both = {"north": [reply(ROWS)], "south": [reply(ROWS, "south")]}
        replies, log, _ = ask(tmp_path, **both)
        assert list(replies) == ["north", "south"]
        assert replies["south"].counts.tolist() == [3, 4]
        assert (log["number"], log["kind"], log["replayed"]) == (1, "CountDistinctRows", 0)
        replies, log, sent = ask(tmp_path)
        assert replies["north"].counts.tolist() == [3, 4]
        assert (log["replayed"], log["sent"], sent) == (2, 0, [])

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            (reply(Refused("policy"), "south"), "policy"),
            (reply(Refused("study"), "south"), "study"),
            ("away", "away"),
            ("deadline", "deadline"),
            ("rm -rf", "failed"),
        ],
    )
    def test_a_failure_names_the_silo_and_what_was_answered_is_kept(self, tmp_path, answer, code):
        with pytest.raises(NoAnswer, match="--without south") as caught:
            ask(tmp_path, north=[reply(ROWS)], south=[answer])
        assert (caught.value.silo, caught.value.code) == ("south", code)
        assert "rm -rf" not in str(caught.value)
        _, log, sent = ask(tmp_path, south=[reply(ROWS, "south")])
        assert (log["replayed"], sent) == (1, ["south"])

    @pytest.mark.parametrize(
        "answer",
        [
            reply(ROWS, "south"),
            reply(ROWS, number=2),
            reply(ROWS, query=SampleLocally()),
            reply(ROWS, study=STUDY.model_copy(update={"seed": 9})),
            reply(Received()),
            b"nonsense",
        ],
        ids=["silo", "number", "question", "study", "kind", "nonsense"],
    )
    def test_an_answer_that_does_not_fit_is_refused(self, tmp_path, answer):
        with pytest.raises(MessageError):
            ask(tmp_path, north=[answer], south=[reply(ROWS, "south")])
        assert not list(tmp_path.glob("*-0.reply"))


def test_answers_are_found_by_question_and_silo(tmp_path, usual_umask):
    journal = EncodedSilos(STUDY, None, tmp_path / "journal")
    assert journal.find(1, "north", QUERY) is None
    journal.keep(1, "north", reply(ROWS))
    again = EncodedSilos(STUDY, None, tmp_path / "journal")
    assert again.find(1, "north", QUERY).counts.tolist() == [3, 4]
    assert again.find(1, "south", QUERY) is None
    assert again.find(2, "north", QUERY) is None
    written = next(again.journal.glob("*.reply"))
    if sys.platform != "win32":  # only its owner may open a journal
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (again.journal, written)]
        assert modes == [0o700, 0o600]
    written.rename(again.journal / f".{written.name}.123")  # as a kill in mid-write leaves it
    assert again.find(1, "north", QUERY) is None


def test_a_changed_question_is_refused_by_name(tmp_path):
    journal = EncodedSilos(STUDY, None, tmp_path)
    journal.keep(3, "south", reply(ROWS, "south", 3))
    other = PolishRound(1, np.ones((1, 1)), np.ones((1, 1, 5)), None, 1)
    for changed in (SampleLocally(), other):
        with pytest.raises(CheckpointError, match="question 3 to south"):
            journal.find(3, "south", changed)
    assert journal.find(3, "north", SampleLocally()) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        reply(ROWS, "south")[:-1],
        reply(ROWS),
        reply(ROWS, "south", 2),
        reply(ROWS, "south", query=SampleLocally()),
        reply(ROWS, "south", study=STUDY.model_copy(update={"seed": 2})),
    ],
    ids=["empty", "cut", "another silo", "another number", "another question", "another study"],
)
def test_a_file_that_is_not_the_answer_is_refused_by_name(tmp_path, content):
    journal = EncodedSilos(STUDY, None, tmp_path)
    journal.keep(1, "south", content)
    with pytest.raises(CheckpointError, match=r"000001-1\.reply does not answer"):
        journal.find(1, "south", QUERY)
