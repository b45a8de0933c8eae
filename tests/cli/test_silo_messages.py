"""What a silo's commands say of a table that they cannot use: where, and no cell of it."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from cases.cli_cases import run, words

import silomix
from silomix.errors import DataWarning
from silomix.study import read_study

DATA, REFUSED_MESSAGE, OPEN = 3, 5, 7
SECRET = "Zoe-4711"

pytestmark = pytest.mark.usefixtures("without_pictures")


@pytest.fixture
def desk(tmp_path, seed, monkeypatch):
    """A folder where two silos have a table each; the coordinator has all levels."""
    monkeypatch.chdir(tmp_path)
    table, _ = silomix.simulate("homogeneous", rows=240, silos=2, seed=seed)
    table = table[["silo", "x1", "x2", "x5"]].assign(
        silo=lambda rows: rows["silo"].map({"silo 1": "north", "silo 2": "south"}),
        age=lambda rows: 50.0 + rows.index % 17,
        times=1,
        patient=[f"p{row}" for row in range(240)],
    )
    for name, rows in table.groupby("silo"):
        rows.to_csv(f"{name}.csv", index=False)
    table.to_csv("codebook.csv", index=False)
    return table


def make_study(*more):
    options = ["--silo", "silo", "--exclude", "times,patient", "--iterations", 60, "--seed", 1]
    options += ["--components", 3, "--preset", "files", *more]
    done = run("study", "codebook.csv", *options, "--out", "study.toml")
    assert done.exit_code == 0, done.output


def coordinate(*more):
    return run("coordinate", "study.toml", "--exchange", "exchange", "--out", "results", *more)


def answer(silo, *more):
    where = ["--silo", silo, "--data", f"{silo}.csv", "--study", "study.toml"]
    return run("answer", "exchange", *where, *more)


def release(silo, *more):
    where = ["--silo", silo, "--study", "study.toml", "--dry-run"]
    return run("release", f"{silo}.csv", *where, *more)


def site(silo, *more):
    pytest.importorskip("nvflare", reason="the extra flare is not installed")
    from federation.flare_cases import stand_in_kit

    kit = stand_in_kit(Path("kits"), silo)
    return run("flare", "site", kit, "--data", f"{silo}.csv", "--study", "study.toml", *more)


FREQUENCY, SILO, ID = ("--frequency", "times"), ("--silo-column", "silo"), ("--id", "patient")
# By name, a column, what is written into two of its cells, options, and what is said.
BROKEN = {
    "level": ("x1", SECRET, (), "column 'x1' has a value (the first of 2) in data row 3, not"),
    "capitals": ("x1", "ZOE 4711", (), "'x1' has a value (the first of 2) in data row 3, not"),
    "number": ("age", SECRET, (), "column 'age' has a value (the first of 2) in data row 3, which"),
    "far": (
        "age",
        "4.711e+102",
        (),
        "'age' has a value (the first of 2) in data row 3, which is too",
    ),
    "frequency": ("times", SECRET, FREQUENCY, "'times' has a value (the first of 2) in data row 3"),
    "silo": ("silo", SECRET, SILO, "the silo column 'silo' has no row of 'north'; correct"),
}


def break_table(column, value, silo="north"):
    table = pd.read_csv(f"{silo}.csv", dtype=str)
    table.loc[[2, 6] if column != "silo" else slice(None), column] = value
    table.to_csv(f"{silo}.csv", index=False)


def hidden(result, secret, *, besides=()):
    """Whether no output has the secret, and no file but the table."""
    assert secret not in result.output
    tables = {Path("north.csv"), *besides}
    for path in Path().rglob("*"):
        if path.is_file() and path not in tables:
            assert secret.encode() not in path.read_bytes(), path
    return True


@pytest.mark.parametrize("door", [answer, release, site])
@pytest.mark.parametrize("broken", BROKEN)
def test_an_error_names_column_and_row_and_quotes_no_cell(desk, door, broken):
    """With --debug it does, on the terminal."""
    column, value, options, said = BROKEN[broken]
    make_study()
    assert coordinate().exit_code == OPEN
    break_table(column, value)
    done = door("north", *options)
    assert done.exit_code == DATA, done.output
    assert said in words(done)
    assert hidden(done, value)
    assert value in words(door("north", *options, "--debug"))


def test_a_file_without_names_or_damaged(desk):
    """The first row is then taken for the names."""
    make_study()
    coordinate()
    Path("north.csv").write_text(f"{SECRET},1,2,51\np4,1,2,50\n")
    done = answer("north")
    assert done.exit_code == DATA
    assert "has no column" in words(done)
    assert hidden(done, SECRET)
    Path("north.csv").write_text(f"x1,x2,{SECRET},{SECRET}\n1,2,3,4\n")
    done = answer("north")
    assert "appear more than once" in words(done)
    assert hidden(done, SECRET)


def test_warnings_quote_no_cell(desk):
    make_study()
    coordinate()
    table = pd.read_csv("north.csv", dtype=str)
    table.loc[[2, 6], "age"] = "999"
    table.loc[[2, 6], "patient"] = SECRET
    table.to_csv("north.csv", index=False)
    done = answer("north", *ID)
    assert done.exit_code == 0, done.output
    assert "'age' has numbers like codes for missing cells in 2 rows" in words(done)
    assert "(it repeats 1 value)" in words(done)
    assert SECRET not in done.output
    assert "'999'" not in done.output


def test_a_live_site_logs_no_cell(desk, tmp_path):
    executor = pytest.importorskip("silomix.transports.flare.executor")
    from silomix.messages import SampleLocally
    from silomix.messages.container import Envelope, encode
    from silomix.study import digest
    from silomix.transports.flare import participant

    make_study()
    kit = tmp_path / "kit"
    (kit / "run" / "local").mkdir(parents=True)
    settings = {"data": "north.csv", "study": "study.toml", "policy": "default", "store": "store"}
    participant.write_json(kit / "run" / "local" / participant.SETTINGS_FILE, settings)
    study = read_study("study.toml")
    sent = encode(Envelope(digest(study), "north", 1, "SampleLocally"), SampleLocally())
    break_table("x1", SECRET)
    here = SimpleNamespace(
        get_identity_name=lambda: "north",
        get_workspace=lambda: SimpleNamespace(get_root_dir=lambda: str(kit / "run")),
    )
    before, logger = os.umask(0o022), logging.getLogger("silomix")
    try:
        made = executor.SiloExecutor().execute("silomix", {"payload": sent}, here, None)
    finally:
        os.umask(before)
        while logger.handlers:
            logger.handlers.pop().close()
        logger.propagate = True
    assert made["payload"] == "data"
    log = (kit / "silomix-worker.log").read_text()
    assert "column 'x1' has a value (the first of 2) in data row 3" in log
    assert SECRET not in log


def test_fit_on_a_table_of_one_s_own_still_quotes_it(desk):
    make_study()
    break_table("age", SECRET)
    done = run("fit", "north.csv", "--variables", "age,x1", "--kind", "age=gaussian", "--out", "r")
    assert done.exit_code == DATA
    assert SECRET in done.output


class TestOther:
    def test_without_it_an_unknown_value_fails_the_study(self, desk):
        make_study()
        coordinate()
        break_table("x1", SECRET)
        assert answer("north").exit_code == DATA

    def test_an_unknown_value_is_read_as_that_level_to_the_end(self, desk):
        make_study("--other", "other")
        study = read_study("study.toml")
        levels = {one.name: one.levels for one in study.variables if one.levels}
        assert levels["x1"] == ("1", "2", "other")
        assert levels["x5"] == ("1", "2", "3", "other")
        break_table("x1", SECRET)
        told = "column 'x1' has 2 cells not among its levels and read as 'other'"
        assert told in words(release("north"))
        for _ in range(2):
            assert coordinate().exit_code == OPEN
            done = answer("north")
            assert done.exit_code == 0, done.output
            assert told in words(done)
            assert hidden(done, SECRET)
            assert answer("south").exit_code == 0
        done = coordinate()
        assert done.exit_code == 0, done.output
        assert f"levels, '{SECRET}', and read as 'other'" in words(release("north", "--debug"))

        # rows are assigned as if that level stood there
        break_table("x1", "other")
        spelled = pd.read_csv("north.csv", dtype=str)
        break_table("x1", SECRET)
        posterior = silomix.load("results/posterior.silomix")
        with pytest.warns(DataWarning, match="read as 'other'"):
            unknown = posterior.membership("north.csv", "north")
        assert (unknown == posterior.membership(spelled, "north")).all()
        done = run("assign", "results", "north.csv", "--silo", "north", "--out", "labels.csv")
        assert done.exit_code == 0, done.output

    def test_a_missing_cell_where_there_is_no_level_for_it(self, desk):
        make_study("--other", "other", "--missing", "level")
        break_table("x1", "")
        assert release("north").exit_code == 0
        make_study("--missing", "level", "--force")
        assert release("north").exit_code == DATA

    def test_of_one_variable_in_the_file(self, desk):
        make_study()
        text = Path("study.toml").read_text()
        known = 'levels = ["1", "2"]'
        assert known in text
        Path("study.toml").write_text(text.replace(known, f'{known}\nother = "2"', 1))
        break_table("x1", SECRET)
        assert release("north").exit_code == 0
        break_table("x5", SECRET)
        assert release("north").exit_code == DATA
        for wrong in ('other = "3"', 'other = ""'):
            Path("study.toml").write_text(text.replace(known, f"{known}\n{wrong}", 1))
            assert release("north").exit_code == 4


class TestExpectedRows:
    def test_a_release_of_another_number_is_refused_by_name(self, desk):
        make_study("--rows", "north=120,south=120")
        assert coordinate().exit_code == OPEN
        table = pd.read_csv("north.csv", dtype=str)
        pd.concat([table] * 3).to_csv("north.csv", index=False)
        for silo in ("north", "south"):
            assert answer(silo).exit_code == 0
        done = coordinate()
        assert done.exit_code == REFUSED_MESSAGE, done.output
        assert "north: the answer Release" in words(done)
        assert "has 360 rows, and the study states 120 for this silo: ask the silo" in words(done)

    def test_nothing_else_changes(self, desk):
        found = []
        for more in ((), ("--rows", "north=115")):
            make_study(*more)
            for _ in range(2):
                coordinate()
                for silo in ("north", "south"):
                    assert answer(silo, "--ledger", f"ledger{len(found)}.json").exit_code == 0
            done = coordinate()
            assert done.exit_code == 0, done.output
            found.append(silomix.load("results/posterior.silomix"))
            for folder in ("exchange", "results"):
                Path(folder).rename(f"{folder}{len(found)}")
            Path("study.toml").unlink()
        assert (found[0].parameters == found[1].parameters).all()
        assert (found[0].weights == found[1].weights).all()
        assert found[1].study.rows == {"north": 115}

    def test_wrong_names_and_numbers(self, desk):
        options = ["--silo", "silo", "--exclude", "times,patient", "--out", "study.toml"]
        for rows, said in (
            ("nort=3", "names 'nort' (did you mean 'north'?), which is not a silo"),
            ("north=0", "rows.north is 0; it must be at least 1"),
            ("north=many", "rows.north is 'many'; it must be a whole number"),
        ):
            done = run("study", "codebook.csv", *options, "--rows", rows)
            assert done.exit_code == 4, done.output
            assert said in words(done)
