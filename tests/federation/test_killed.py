"""Every command that writes results, killed while it writes them, and then run again."""

from __future__ import annotations

import math
import multiprocessing
import signal
from shutil import copytree

import pandas as pd
import pytest
from cases.killing import run_until
from federation.exchange_cases import STUDIES, make_case

from silomix import cli
from silomix.study import write_study

OPEN = 7
TABLE = ("table.csv", "--silo", "silo", "--iterations", 200, "--components", 3)
FIT = ("fit", *TABLE, "--outside", "age", "--out", "results")
PLAIN_FIT = ("fit", *TABLE, "--exclude", "age", "--out", "plain")
COORDINATE = ("coordinate", "study.toml", "--exchange", "exchange", "--out", "joint")
ANSWER, ANSWER_2 = (
    ("answer", "exchange", "--silo", f"silo {place}", "--data", f"site{place}/table.csv", "--yes")
    for place in (1, 2)
)
SAMPLE = ("sample", "site1/table.csv", "--study", "study.toml", "--silo", "silo 1")
RELEASE = ("release", "site1/table.csv", "--study", "study.toml", "--silo", "silo 1")
RELEASE += ("--out", "release")
# A study goes from one stage to the next by these.
STEPS = (
    (COORDINATE,),
    (ANSWER, ANSWER_2),
    (COORDINATE,),
    (ANSWER, ANSWER_2, FIT, PLAIN_FIT, RELEASE),
)
# For each command the stage at which it runs, and its exit code.
COMMANDS = {
    "study": (0, ("study", "table.csv", "--silo", "silo", "--out", "new.toml"), 0),
    "simulate": (0, ("simulate", "nested", "--rows", 200, "--seed", 1, "--out", "t.csv"), 0),
    "cohort": (0, ("simulate", "cohort", "--rows", 200, "--seed", 1, "--out", "c.parquet"), 0),
    "fit": (0, FIT, 0),
    "fit over others": (4, (*FIT, "--seed", 2, "--force"), 0),
    "sample": (0, (*SAMPLE, "--out", "local", "--keep-draws"), 0),
    "release": (0, RELEASE, 0),
    "release over another": (4, (*RELEASE, "--force"), 0),
    "first question": (0, COORDINATE, OPEN),
    "first answer": (1, ANSWER, 0),
    "last answer": (3, ANSWER, 0),
    "results": (4, COORDINATE, 0),
    "names": (4, ("report", "plain", "--name", "0=frail", "--force"), 0),
    "assign": (4, ("assign", "plain", "table.csv", "--silo", "silo", "--out", "l.csv"), 0),
    "ehr": (
        0,
        ("ehr", "long", "events.csv", "--codes", "codes.csv", "--date", "", "--out", "p.parquet"),
        0,
    ),
}
FRACTIONS = (0.01, 0.5, 0.85, 1.0)
QUICK = {("fit", 0.85), ("fit over others", 0.85), ("release over another", 0.85), ("results", 1.0)}
CASES = [
    pytest.param(word, part, marks=() if (word, part) in QUICK else pytest.mark.slow)
    for word in COMMANDS
    for part in FRACTIONS
]
# The ledger has times and the table's path in it; the log has times.
DIFFERENT = {"silomix-ledger.json", "log.txt"}

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def processes():
    """Processes that start from a server which has imported everything, and nothing else."""
    context = multiprocessing.get_context("forkserver")
    names = (*cli.MODULES, *cli.GROUPS[:1])
    context.set_forkserver_preload([f"silomix.cli.{name}" for name in names])
    return context


class Desk:
    """Folders at the stages of a study, and what commands leave that nobody disturbed."""

    def __init__(self, base, processes):
        self.base, self.processes, self.undisturbed = base, processes, {}

    def run(self, args, place, last=0):
        """Run a command; return its exit code and, unless it was killed, its number of calls."""
        output = self.base / "output.txt"
        output.with_suffix(".calls").unlink(missing_ok=True)
        process = self.processes.Process(target=run_until, args=(args, place, last, output))
        process.start()
        process.join(timeout=300)
        calls = output.with_suffix(".calls")
        return process.exitcode, int(calls.read_text()) if calls.exists() else None

    def words(self):
        return (self.base / "output.txt").read_text(encoding="utf-8")

    def calls_and_files(self, word):
        """Return the number of calls of a command that nobody disturbs, and what it leaves."""
        if word not in self.undisturbed:
            stage, args, code = COMMANDS[word]
            place = copytree(self.base / f"{stage}", self.base / f"{word} undisturbed")
            ended, calls = self.run(args, place)
            assert ended == code, self.words()
            self.undisturbed[word] = calls, files_of(place)
        return self.undisturbed[word]


def files_of(place):
    """Everything in a folder but the files that differ from run to run, empty folders left out."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name not in DIFFERENT
    }


@pytest.fixture(scope="module")
def desk(tmp_path_factory, processes):
    base = tmp_path_factory.mktemp("stages")
    settings = {"aggregation": "uniform", "components": 3}
    case = make_case(1, silos=2, rows=120, **STUDIES["files"] | settings)
    begun = base / "0"
    begun.mkdir()
    write_study(case.study, begun / "study.toml")
    rows = case.table.assign(age=[40 + row % 37 for row in range(120)])
    rows.to_csv(begun / "table.csv", index=False)
    for place, name in enumerate(case.study.silos, start=1):
        (begun / f"site{place}").mkdir()
        own = rows[rows["silo"] == name].drop(columns="silo")
        own.to_csv(begun / f"site{place}" / "table.csv", index=False)
    events = [(f"p{row % 40}", f"c{row % 7}") for row in range(100)]
    pd.DataFrame(events, columns=["person", "code"]).to_csv(begun / "events.csv", index=False)
    codes = [(f"condition {code}", f"c{code}") for code in range(7)]
    pd.DataFrame(codes, columns=["condition", "code"]).to_csv(begun / "codes.csv", index=False)
    desk = Desk(base, processes)
    for stage, step in enumerate(STEPS):
        place = copytree(base / f"{stage}", base / f"{stage + 1}")
        for args in step:
            assert desk.run(args, place)[0] in {0, OPEN}, desk.words()
    return desk


@pytest.mark.parametrize(("word", "part"), CASES)
def test_a_command_that_was_killed_is_run_again(word, part, desk, tmp_path):
    stage, args, code = COMMANDS[word]
    calls, files = desk.calls_and_files(word)
    place = copytree(desk.base / f"{stage}", tmp_path / "place")
    ended, _ = desk.run(args, place, math.ceil(part * calls))
    assert ended == -signal.SIGKILL, desk.words()
    ended, _ = desk.run(args, place)
    assert ended == code, desk.words()
    left = files_of(place)
    assert left.keys() == files.keys()
    assert [name for name in files if left[name] != files[name]] == []


def test_results_of_the_same_study_are_no_obstacle(desk, tmp_path):
    """Asked again, the coordinator finds what stands there; other results it does not replace."""
    place = copytree(desk.base / "4", tmp_path / "place")
    assert desk.run(COORDINATE, place)[0] == 0
    files = files_of(place)
    assert desk.run(COORDINATE, place)[0] == 0, desk.words()
    assert files_of(place) == files
    named = ("report", "joint", "--name", "0=frail", "--force")
    assert desk.run(named, place)[0] == 0, desk.words()
    files = files_of(place)
    assert desk.run(COORDINATE, place)[0] == 4
    assert "already there" in desk.words()
    assert files_of(place) == files
