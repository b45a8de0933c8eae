"""The commands that read health records, and the page that shows them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from silomix import cli
from silomix.ehr import read_long

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ehr.md"
USAGE, WRONG, SETTING = 2, 3, 4


def run(*args):
    return CliRunner().invoke(cli.app, ["ehr", *(str(arg) for arg in args)])


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with events, people and a code list."""
    monkeypatch.chdir(tmp_path)
    Path("events.csv").write_text(
        "person,code,date\nb,I10,2020-01-01\nb,I10,2020-01-01\na,Z00,2020-01-01\nx,I10,2020-01-01\n"
    )
    Path("people.csv").write_text("person,hospital\na,N\nb,S\n")
    Path("codes.csv").write_text('condition,code\nhypertension,I10\n"[bold]as;thma",J45\n')
    return tmp_path


LONG = ("long", "events.csv", "--codes", "codes.csv", "--out", "out.parquet")
PEOPLE = ("--people", "people.csv", "--carry", "hospital")


def test_a_long_table_is_read_and_accounted_for(desk):
    result = run(*LONG, *PEOPLE)
    assert result.exit_code == 0, result.output
    told = " ".join(result.stdout.split())
    for words in (
        "2 people, 1 of them without any condition; 1 of 4 events kept",
        "hypertension 1 50.0% 1",
        "[bold]as;thma 0 0.0% 0",
        "Z00 (1)",
    ):
        assert words in told
    table = pd.read_parquet("out.parquet")
    assert table.to_dict("list") == {
        "person": ["a", "b"],
        "hospital": ["N", "S"],
        "hypertension": [0, 1],
        "[bold]as;thma": [0, 0],
    }
    found = read_long("events.csv", "codes.csv", people="people.csv")
    assert pd.read_csv("out.dropped.csv").values.tolist() == found.dropped.values.tolist()


def test_names_cannot_steer_the_terminal(desk):
    Path("codes.csv").write_text('condition,code\n"a\x1b[2J\nb",I10\n', encoding="utf-8")
    result = run(*LONG)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    assert r"a\x1b[2J\nb" in result.stdout
    assert list(pd.read_parquet("out.parquet").columns) == ["person", "a\x1b[2J\nb"]


def test_programs_get_json(desk):
    result = run(*LONG, *PEOPLE, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["people"], told["people_without_condition"]) == (2, 1)
    assert (told["events_read"], told["events_kept"]) == (4, 1)
    assert list(told["conditions"][0].values()) == ["hypertension", 1, 0.5, 1]
    assert sum(row["events"] for row in told["dropped"]) == 3
    assert told["unlisted"] == [{"code": "Z00", "events": 1}]
    assert told["files"] == ["out.parquet", "out.dropped.csv"]
    nobody = run(*LONG, "--at-least", "2", "--json", "--force")
    assert json.loads(nobody.stdout)["conditions"][0]["prevalence"] is None


def test_dates_that_cannot_be_read_name_the_option(desk):
    events = Path("events.csv")
    events.write_text(re.sub(r"(\d{4})-(\d\d)-(\d\d)", r"\3/\2/\1", events.read_text()))
    result = run(*LONG)
    assert result.exit_code == WRONG
    assert "or say their format, such as --date-format '%d/%m/%Y'" in result.stderr
    assert run(*LONG, "--date-format", "%d/%m/%Y").exit_code == 0


def test_a_table_in_a_database_is_named(desk):
    import duckdb

    with duckdb.connect("r.duckdb") as connection:
        connection.execute("CREATE TABLE diagnoses AS FROM 'events.csv'")
        connection.execute("CREATE TABLE people AS FROM 'people.csv'")
    result = run(
        *("long", "r.duckdb", "--table", "diagnoses", "--codes", "codes.csv", "--date", ""),
        *("--people", "r.duckdb", "--people-table", "people", "--out", "out.parquet"),
    )
    assert result.exit_code == 0, result.output
    assert pd.read_parquet("out.parquet")["hypertension"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--people-table", "t"), USAGE, "--people-table names a table of --people; give both"),
        (("--carry", "ward"), WRONG, "events.csv: has no column 'ward'"),
        (("--memory", "much"), SETTING, "memory is 'much'"),
        (("--first-date", "2020"), SETTING, "the first date is '2020'"),
    ],
)
def test_what_is_wrong_is_said(desk, more, code, said):
    result = run(*LONG, *more)
    assert result.exit_code == code, result.output
    assert said in " ".join(re.sub(r"[│╭╰─╮╯]", " ", result.stderr).split())
    assert not Path("out.parquet").exists()


def test_the_page_does_what_it_says(tmp_path, monkeypatch):
    """Python and shell in the order of the page: the commands read what the code wrote."""
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|console)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    namespace = {"__name__": "page"}
    commands = []
    for kind, code in blocks:
        if kind == "python":
            exec(compile(code, "page", "exec"), namespace)
            continue
        for line in code.splitlines():
            commands.append(shlex.split(line.removeprefix("$ "))[1:])
            result = CliRunner().invoke(cli.app, commands[-1])
            assert result.exit_code == 0, result.output
    assert [command[0] for command in commands] == ["ehr", "ehr", "fit"]
    shell = pd.read_parquet("patients.parquet")
    chosen = {"columns": namespace["columns"], "carry": ["hospital"]}
    until = (None, "2020-12-31")
    python = read_long("events.csv", "icd10.csv", people="patients.csv", between=until, **chosen)
    assert shell.equals(python.table)
