"""Studies by file with every command a process of its own, killed at any moment."""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from federation.exchange_cases import (
    FILES,
    STUDIES,
    assert_same,
    by_file,
    in_process,
    make_case,
    run_command,
)

import silomix
from silomix.study import write_study
from silomix.study.policy import write_policy

ROOT = Path(__file__).parents[2]
OPEN = 7
MOST_STEPS = 60

pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def processes():
    """Processes that start from a server which has imported everything, and nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["silomix.cli.exchange", "matplotlib.figure"])
    return context


class Desk:
    """A folder with the study file, the silos' tables and policies, and the exchange."""

    def __init__(self, case, folder, processes):
        self.case, self.folder, self.processes = case, folder, processes
        write_study(case.study, folder / "study.toml")
        write_policy(case.policy, folder / "policy.toml")
        for name in case.study.silos:
            (folder / name).mkdir()
            own = case.table[case.table["silo"] == name]
            own.to_csv(folder / name / "table.csv", index=False)

    def start(self, *args):
        output = self.folder / "output.txt"
        process = self.processes.Process(target=run_command, args=(args, output))
        process.start()
        return process

    def coordinate(self):
        where = ["--exchange", self.folder / "exchange", "--out", self.folder / "results"]
        return ["coordinate", self.folder / "study.toml", *where, "--threads", 1, "--force"]

    def answer(self, name):
        data = ["--silo", name, "--data", self.folder / name / "table.csv", "--threads", 1]
        agreed = ["--study", self.folder / "study.toml", "--policy", self.folder / "policy.toml"]
        # these processes have the environment of the server that starts them
        counted = ["--ledger", self.folder / "ledger.sqlite"]
        return ["answer", self.folder / "exchange", *data, *agreed, *counted]

    def finish(self, args):
        """Run a command to its end; return its exit code."""
        process = self.start(*args)
        process.join(timeout=300)
        assert process.exitcode is not None, "the command hangs"
        return process.exitcode

    def kill(self, args, delay):
        """Kill a command after a while; return its exit code if it was faster."""
        process = self.start(*args)
        process.join(timeout=delay)
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        return process.exitcode

    def words(self):
        return (self.folder / "output.txt").read_text(encoding="utf-8")


def run_to_the_end(desk, interrupt):
    """Take turns, with `interrupt(args)` before each command; the result is that of one process.

    Kills leave nothing half written that is carried, and no label outside the silos.
    """
    code, names = OPEN, desk.case.study.silos
    for _ in range(MOST_STEPS):
        interrupt(desk.coordinate())
        code = desk.finish(desk.coordinate())
        if code == 0:
            break
        assert code == OPEN, desk.words()
        for name in names:
            interrupt(desk.answer(name))
            assert desk.finish(desk.answer(name)) == 0, desk.words()
    assert code == 0, f"not done after {MOST_STEPS} questions"
    found = silomix.load(desk.folder / "results" / "posterior.silomix")
    assert_same(in_process(desk.case), found)
    for path in (desk.folder / "exchange").rglob("*"):
        assert path.name[0] != ".", path
        assert path.is_dir() or path.suffix in {".csv", ".json", ".txt", ".png"}, path
        assert "labels" not in path.name
    assert all(len(list((desk.folder / name).rglob("labels.csv"))) == 1 for name in names)


@pytest.mark.slow
def test_commands_killed_in_between_give_the_result_of_one_process(tmp_path, processes, seed):
    settings = {"aggregation": "uniform", "components": 3, "silos": 2, "rows": 120}
    case = make_case(seed, **FILES | settings)
    desk = Desk(case, tmp_path, processes)
    rng, ends = np.random.default_rng(seed), []
    run_to_the_end(desk, lambda args: ends.append(desk.kill(args, rng.uniform(0, 0.5))))
    assert -signal.SIGKILL in ends


@pytest.mark.slow
@pytest.mark.parametrize("word", ["divergence", "polish", "assign by matching"])
def test_commands_killed_at_any_moment(word, tmp_path, processes, rng, seed):
    """Each command is killed again and again, a little later each time, until it gets through."""
    case = make_case(seed, **STUDIES[word] | {"iterations": 4000})
    desk = Desk(case, tmp_path, processes)
    killed = 0

    def interrupt(args):
        nonlocal killed
        longest = 0.3
        while desk.kill(args, rng.uniform(0, longest)) == -signal.SIGKILL:
            killed += 1
            longest *= 1.3

    run_to_the_end(desk, interrupt)
    assert killed > 20


@pytest.mark.slow
@pytest.mark.parametrize("word", STUDIES)
def test_every_study_restarted_at_every_question(word, tmp_path, seed):
    case = make_case(seed, rows=450, **STUDIES[word])
    found, _ = by_file(case, tmp_path / "exchange", tmp_path / "stores")
    assert_same(in_process(case), found)


@pytest.mark.slow
def test_the_page_works_as_printed(tmp_path):
    """Its Python and its commands, by a shell, one after the other."""
    page = (ROOT / "docs" / "how-to" / "by-file.md").read_text(encoding="utf-8")
    lines = ["set -u", f'silomix() {{ {shlex.quote(sys.executable)} -m silomix "$@"; }}']
    fence = re.compile(r"^```(python|console|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    for language, code in fence.findall(page):
        if language == "python":
            subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
        else:
            # a console's lines begin with a prompt
            lines += [line[2 * (language == "console") :] for line in code.splitlines()]
    found = subprocess.run(
        ["bash", "-c", "\n".join([*lines, "echo the end"])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "error" not in found.stderr.lower()
    assert "Question 1 of about 2: sample locally" in found.stdout
    assert "Questions: 2, all answered\nResults: results\nthe end\n" in found.stdout
    posterior = silomix.load(tmp_path / "results" / "posterior.silomix")
    assert posterior.silos == ("north", "south", "west")
    assert len(list(tmp_path.glob("*/silomix-store/*/labels.csv"))) == 3
