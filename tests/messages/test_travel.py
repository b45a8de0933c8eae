"""A whole study through messages gives, bit for bit, what it gives without them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import silomix
from silomix.coordinator.pipeline import run_study
from silomix.messages import REPLIES
from silomix.messages import folder as files
from silomix.messages.container import Envelope, decode, encode
from silomix.messages.container import digest as digest_record
from silomix.messages.door import check_envelope, check_query, check_reply
from silomix.model.table import encode as encode_rows
from silomix.model.table import infer_schema
from silomix.silo.local import Silo
from silomix.study import FewRounds, Lbfgs, digest, make_study
from silomix.study.roster import read_roster
from silomix.transports.in_process import InProcess


class Travelling:
    """Silos whose questions and answers all go through messages and both doors' checks."""

    def __init__(self, silos, study, carry):
        self.silos, self.study, self.carry = silos, study, carry
        self.number, self.kinds = 0, set()

    @property
    def names(self):
        return self.silos.names

    def ask(self, query):
        self.number += 1
        queries = query if isinstance(query, Mapping) else dict.fromkeys(self.names, query)
        asked = {name: self.move(name, question) for name, question in queries.items()}
        for name, question in asked.items():
            check_query(question, self.study, name)
        answers = self.silos.ask(asked)
        replies = {n: self.move(n, reply, asked[n]) for n, reply in answers.items()}
        for name, reply in replies.items():
            check_reply(reply, queries[name], self.study, name)
        return replies

    def move(self, name, record, query=None):
        answers = "" if query is None else digest_record(query)
        kind = type(record).__name__
        envelope = Envelope(digest(self.study), name, self.number, kind, answers)
        self.kinds.add(envelope.kind)
        found, moved = self.carry(envelope, record)
        check_envelope(found, self.study, name, self.number, query)
        return moved


TABLE = silomix.simulate("nested", rows=120, separability="easy", seed=4)[0]
NAMES = read_roster(TABLE, "silo").names
QUICK = {"components": 4, "iterations": 80, "kept": 20, "kept_draws": 1000, "absorb": 0, "seed": 5}
STUDIES = {
    "contingency": {"polish": 2, "refine": 1, "solver": Lbfgs(starts=1)},
    "federated": {"oracle": "federated", "solver": FewRounds(rounds=2, starts=5), "polish": 0},
    "summary": {"tier": "summary", "matching": "divergence", "aggregation": "cmc", "polish": 1},
    "paper": {"oracle": "federated", "solver": "psgd", "assign": "matching", "polish": 0},
    "exact": {"strategy": "exact"},
}
ASKED = {
    "contingency": {"SampleLocally", "CountDistinctRows", "PolishRound", "AssignRows"},
    "federated": {"SampleLocally", "ShareReleases", "LogLikelihood", "AssignRows"},
    "summary": {"SampleLocally", "DivergenceCost", "PolishRound", "AssignRows"},
    "paper": {"SampleLocally", "ShareReleases", "LogLikelihood", "AssignRows"},
    "exact": {"PolishRound", "AssignRows"},
}


QUICK_ONES = ("contingency", "federated", "summary", "exact")


def silos_of(study):
    return InProcess(
        [
            Silo(name, place, encode_rows(TABLE[TABLE["silo"] == name], study.table_schema), study)
            for place, name in enumerate(study.silos)
        ]
    )


def run(name, carry):
    study = make_study(infer_schema(TABLE, silo="silo"), NAMES, **QUICK | STUDIES[name])
    straight = run_study(study, silos_of(study))
    travelling = Travelling(silos_of(study), study, carry)
    moved = run_study(study, travelling)
    for part in ("weights", "weights_by_silo", "probabilities"):
        np.testing.assert_array_equal(getattr(moved, part), getattr(straight, part))
    assert travelling.kinds >= ASKED[name]
    assert not travelling.kinds & {kind.__name__ for kind in REPLIES} - ASKED[name]


@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
@pytest.mark.parametrize("name", [pytest.param("paper", marks=pytest.mark.slow), *QUICK_ONES])
def test_in_bytes(name):
    run(name, lambda envelope, record: decode(encode(envelope, record)))


@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
@pytest.mark.parametrize("name", [pytest.param("summary", marks=pytest.mark.slow), "federated"])
def test_in_folders(name, tmp_path, monkeypatch):
    monkeypatch.setattr("silomix.messages.folder.draw_profiles", lambda *_: None)
    study = make_study(infer_schema(TABLE, silo="silo"), NAMES, **QUICK | STUDIES[name])

    def carry(envelope, record):
        folder = tmp_path / f"{envelope.number}-{envelope.silo}-{envelope.kind}"
        return files.read(files.write(folder, envelope, record, study=study), study=study)

    run(name, carry)
