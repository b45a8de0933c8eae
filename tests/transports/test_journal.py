from __future__ import annotations

import stat
import sys

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra flare is not installed")

from silomix.errors import CheckpointError
from silomix.messages import CountDistinctRows, DistinctRows, PolishRound, SampleLocally
from silomix.messages.container import Envelope, digest_record, encode
from silomix.model.schema import Schema, Variable
from silomix.study import digest, make_study
from silomix.transports.flare.controller import RemoteSilos

SCHEMA = Schema((Variable("a", ("no", "yes")), Variable("b", ("x", "y", "z"))))
STUDY = make_study(SCHEMA, ["north", "south"], seed=1)
QUERY = CountDistinctRows()


def reply_of(silo, number=1, study=STUDY, size=7, query=QUERY):
    reply = DistinctRows(np.zeros((1, 2), np.uint8), np.array([size]))
    answers = digest_record(query)
    return encode(Envelope(digest(study), silo, number, "DistinctRows", answers), reply)


def test_answers_are_found_by_question_and_silo(tmp_path, usual_umask):
    journal = RemoteSilos(STUDY, None, tmp_path / "journal")
    assert journal.find(1, "north", QUERY) is None
    journal.keep(1, "north", reply_of("north"))
    again = RemoteSilos(STUDY, None, tmp_path / "journal")
    assert again.find(1, "north", QUERY).counts.tolist() == [7]
    assert again.find(1, "south", QUERY) is None
    assert again.find(2, "north", QUERY) is None
    written = next(again.journal.glob("*.reply"))
    if sys.platform != "win32":  # only its owner may open a journal
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (again.journal, written)]
        assert modes == [0o700, 0o600]
    written.rename(again.journal / f".{written.name}.123")  # as a kill in mid-write leaves it
    assert again.find(1, "north", QUERY) is None


def test_a_changed_question_is_refused_by_name(tmp_path):
    journal = RemoteSilos(STUDY, None, tmp_path)
    journal.keep(3, "south", reply_of("south", 3))
    other = PolishRound(1, np.ones((1, 1)), np.ones((1, 1, 5)), None, 1)
    for changed in (SampleLocally(), other):
        with pytest.raises(CheckpointError, match="question 3 to south"):
            journal.find(3, "south", changed)
    assert journal.find(3, "north", SampleLocally()) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        reply_of("south")[:-1],
        reply_of("north"),
        reply_of("south", 2),
        reply_of("south", query=SampleLocally()),
        reply_of("south", study=STUDY.model_copy(update={"seed": 2})),
    ],
    ids=["empty", "cut", "another silo", "another number", "another question", "another study"],
)
def test_a_file_that_is_not_the_answer_is_refused_by_name(tmp_path, content):
    journal = RemoteSilos(STUDY, None, tmp_path)
    journal.keep(1, "south", content)
    with pytest.raises(CheckpointError, match=r"000001-1\.reply does not answer"):
        journal.find(1, "south", QUERY)
