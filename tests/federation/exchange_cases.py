"""Small studies over simulated silos, in one process and by file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import silomix
from silomix import cli
from silomix.coordinator.pipeline import run_study
from silomix.model.table import infer_schema, load
from silomix.paper import FewRounds
from silomix.silo.local import Silo
from silomix.silo.store import open_store
from silomix.study import make_study
from silomix.study.policy import Exchanges, find_policy
from silomix.transports.exchange_folder import FileExchange, Unanswered
from silomix.transports.file_answers import answer_questions
from silomix.transports.in_process import InProcess

if TYPE_CHECKING:
    import pandas as pd

    from silomix.model.schema import Shard
    from silomix.study import Study
    from silomix.study.policy import Policy

QUICK = {
    "iterations": 300,
    "chains": 1,
    "components": 3,
    "relabel": "average",
}
DEFAULT = find_policy("default")
FILES = {"policy": DEFAULT, "preset": "files"}
ONE_ROUND = 4 * 200
# What three rounds of four starting points ask about. It rounds nothing: what rounding hides takes
# long to sample, and "files" has the default rules.
ALLOWING = DEFAULT.model_copy(
    update={
        "minimum_count": 0,
        "round_to": 1,
        "exchanges": Exchanges(divergence=3, sharing=1, gradients=3 * ONE_ROUND),
    }
)
COURIER = {"policy": ALLOWING, "tier": "summary", "oracle": "federated", "polish": 0}
OPEN = {"policy": find_policy("open")}

VARIABLES = ("x1", "x2", "x5")

STUDIES = {
    "files": FILES,
    "evidence": COURIER,
    "divergence": COURIER | {"matching": "divergence"},
    "ball": COURIER | {"matching": "ball"},
    "hungarian": FILES | {"matching": "hungarian"},
    "assign by matching": FILES | {"assign": "matching"},
    "federated lbfgs": OPEN | {"oracle": "federated", "polish": 0, "solver": "lbfgs"},
    "contingency lbfgs": OPEN | {"polish": 0, "solver": "lbfgs"},
    "contingency few rounds": OPEN | {"polish": 0},
    "polish": OPEN | {"polish": 1},
    "refine": OPEN | {"oracle": "federated", "polish": 0, "refine": 1},
    "exact": OPEN | {"strategy": "exact", "iterations": 8, "solver": "lbfgs"},
}
"""Settings of studies, between them every kind of question."""


@dataclass(frozen=True, eq=False)
class Case:
    """A study, its silos' rows, the policy they all have, and the table of all rows."""

    study: Study
    shards: dict[str, Shard]
    policy: Policy
    table: pd.DataFrame

    def silo(self, name: str, store: Path | None = None, policy: Policy | None = None) -> Silo:
        kept = {} if store is None else {"store": open_store(store, {"silo": name})}
        place = self.study.silos.index(name)
        rules = policy or self.policy
        return Silo(name, place, self.shards[name], self.study, policy=rules, **kept)


def make_case(seed=0, *, silos=3, rows=240, policy=DEFAULT, names=None, **settings) -> Case:
    drawn, _ = silomix.simulate("homogeneous", rows=rows, silos=silos, seed=seed)
    table = drawn[[*VARIABLES, "silo"]].copy()
    known = list(dict.fromkeys(table["silo"]))
    names = names or known
    table["silo"] = table["silo"].map(dict(zip(known, names, strict=True)))
    schema = infer_schema(table, silo="silo")
    if settings.get("preset") != "files":  # its aggregation maximises nothing
        settings = {"solver": FewRounds(rounds=3, starts=4)} | settings
    study = make_study(schema, names, seed=seed, **{**QUICK, **settings})
    shards = {name: load(table[table["silo"] == name], schema=schema) for name in names}
    return Case(study, shards, policy, table)


def in_process(case: Case):
    """The posterior, without files."""
    return run_study(case.study, InProcess([case.silo(name) for name in case.shards]))


def answer_all(case: Case, folder: Path, stores: Path, names=None, **options):
    """Let silos answer all that is open, each as a process of its own would."""
    return {
        name: list(answer_questions(folder, case.silo(name, stores / name), **options))
        for name in names or case.shards
    }


def by_file(case: Case, folder: Path, stores: Path):
    """The posterior by file, both sides begun anew at every question; and the questions."""
    while True:
        exchange = FileExchange(folder, case.study)
        try:
            return run_study(case.study, exchange), exchange.encoded.asked
        except Unanswered as waiting:
            assert not waiting.refused, waiting
            answer_all(case, folder, stores, waiting.missing)


class Prompt:
    """Silos that answer by file as soon as they are asked; the coordinator never stops."""

    def __init__(self, case: Case, folder: Path, stores: Path) -> None:
        self.case, self.stores = case, stores
        self.exchange = FileExchange(folder, case.study)
        self.names = self.exchange.names

    def ask(self, query):
        try:
            return self.exchange.ask(query)
        except Unanswered as waiting:
            answer_all(self.case, self.exchange.folder, self.stores, waiting.missing)
            self.exchange.encoded.asked -= 1
            return self.exchange.ask(query)


def assert_same(one, other):
    """Bit for bit the same posterior, as far as it can be saved."""
    with TemporaryDirectory() as folder:
        files = [posterior.save(Path(folder) / "posterior.silomix").read_bytes()
                 for posterior in (one, other)]  # fmt: skip
    assert files[0] == files[1]


def run_command(args, output):
    """Run a command in this process, its words into a file."""
    with output.open("w", encoding="utf-8") as file:
        sys.stdout = sys.stderr = file
        cli.app([str(arg) for arg in args])
