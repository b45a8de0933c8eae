"""Health records as they come: broken lines, odd spellings, and tables in several places."""

from __future__ import annotations

import gzip
import traceback
from datetime import date

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from cases.cli_cases import run
from cases.ehr_cases import SMALL, counted, omop, write_database, written

from silomix import ehr
from silomix.ehr.database import ADVICE, explain
from silomix.errors import DataError

CODES = {"hypertension": ["I10"]}
HEADER = "person,code,date\n"
ROW = "ROWS,I10,2020-01-01\n"
FORGED = '"SECRET\nInvalid Input Error: CSV Error on Line: 77\n  file = JOHN","I10"\n'


def long(**columns):
    usual = {"person": "a", "code": "I10", "date": "2020-01-31"}
    return pd.DataFrame(usual | columns)


def refusal_of(source, codes=CODES, **choices):
    """The message, after a look at all that a traceback would show."""
    with pytest.raises(DataError) as caught:
        ehr.read_long(source, codes, **choices, engine=SMALL)
    shown = "".join(traceback.format_exception(caught.value))
    for secret in ("JOHN", "SECRET", "ROWS"):
        assert secret not in shown
    return str(caught.value)


class TestRecordsAreNotQuoted:
    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (ROW * 4 + '"JOHN,I10,2020-01-01\n' + ROW * 2995, "line 6: a quote is opened"),
            ("JOHN,SECRET,I10,2020-01-01\n", "line 2: it has more or fewer cells"),
            (FORGED, "line 2: it has more or fewer cells"),
            ("JOHN" * 600_000 + ",I10,2020-01-01\n", "line 2: it is longer than 2 MB"),
            (ROW + "JOHN,I10,2020\r-01-01\r\n", "it is not valid CSV"),
            (ROW.encode() * 9000 + b"JOHN\xe9,I10,2020-01-01\n", "line 9002: it is not in UTF-8"),
        ],
        ids=["quote", "many", "forged", "huge", "line ends", "latin"],
    )
    def test_of_a_text_file(self, tmp_path, body, said):
        header = HEADER.encode() if isinstance(body, bytes) else HEADER
        path = written(tmp_path / "events.csv", header + body)
        assert refusal_of(path).startswith(f"{path}: cannot be read: {said}")

    def test_in_a_terminal(self, tmp_path):
        events = written(tmp_path / "events.csv", HEADER + '"JOHN\nSECRET","I10"\n')
        codes = written(tmp_path / "codes.csv", "condition,code\nhypertension,I10\n")
        args = ["ehr", "long", events, "--codes", codes, "--out", tmp_path / "p.parquet", "--debug"]
        result = run(*args)
        assert "line 2: it has more or fewer cells" in result.stderr
        assert "JOHN" not in result.output + result.stderr

    @pytest.mark.parametrize(
        ("view", "said"),
        [
            ("SELECT CAST(person AS INTEGER) AS person", "a value does not fit the type"),
            ("SELECT error(person) AS person", "DuckDB refuses it (InvalidInputException)"),
        ],
    )
    def test_of_a_database(self, tmp_path, view, said):
        path = tmp_path / "r.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE t AS SELECT 'JOHN' person, 'I10' code, 'x' date")
            connection.execute(f"CREATE VIEW v AS {view}, code, date FROM t")
        where = f"{path}, table v: cannot be read: "
        assert refusal_of(ehr.InDatabase(path, "v")).startswith(where + said)

    @pytest.mark.parametrize(
        ("name", "content", "said"),
        [
            ("a.csv", "JOHN,SECRET,john\n", "the first line must name each column once"),
            ("a.csv", b"JOHN\xe9,code\n", "it is not in UTF-8"),
            ("a.csv.gz", "JOHN", "a damaged .gz file"),
            ("a.csv.gz", gzip.compress(HEADER.encode() * 9, mtime=0)[:20], "a damaged .gz file"),
            ("a.parquet", "JOHN" * 9, "DuckDB refuses it"),
        ],
    )
    def test_of_a_first_line_or_a_damaged_file(self, tmp_path, name, content, said):
        assert said in refusal_of(written(tmp_path / name, content))

    @pytest.mark.parametrize("words", [*ADVICE, "JOHN"])
    def test_errors_are_explained_without_their_text(self, words):
        said = explain(duckdb.IOException(f"IO Error: {words} JOHN"), "r.duckdb")
        assert said.startswith("r.duckdb: cannot be read: " + ADVICE.get(words, "DuckDB refuses"))
        assert "JOHN" not in said


def write_schema(path, schema, only=(), dies=date(2030, 1, 1)):
    """Write people who all have concept 10 and are dead after `dies`, into one schema."""
    people, seen = [(p, 1, 1940, 1) for p in (1, 2)], date(2020, 1, 1)
    periods = [(p, date(2000, 1, 1), date(2040, 1, 1)) for p in (1, 2)]
    tables = omop(
        people, periods, [(1, 10, seen), (2, 10, seen)], [(1, dies), (2, dies)], [(9, 10)]
    )
    write_database(path, {name: tables[name] for name in only or tables}, schema)


def dropped(found):
    return {key: events for key, (events, _) in counted(found).items()}


ALIVE = ("person", "observation_period", "condition_occurrence")


class TestSchemas:
    def test_deaths_of_another_schema_are_of_other_people(self, tmp_path):
        path = tmp_path / "cdm.duckdb"
        write_schema(path, "cdm_a", ALIVE)
        write_schema(path, "cdm_b", dies=date(2010, 1, 1))
        found = ehr.read_omop(ehr.InDatabase(path, "cdm_a"), {"a": 10}, engine=SMALL)
        assert found.table["a"].tolist() == [1, 1]
        assert dropped(found) == {}

    @pytest.mark.parametrize("table", ["death", "observation_period"])
    def test_without_a_schema_tables_are_not_mixed(self, tmp_path, table):
        path = tmp_path / "cdm.duckdb"
        write_schema(path, "cdm_a", [name for name in (*ALIVE, "death") if name != table])
        write_schema(path, "cdm_b", [table])
        with pytest.raises(DataError, match="in the schemas cdm_a, cdm_b"):
            ehr.read_omop(path, {"a": 10}, engine=SMALL)

    def test_the_vocabulary_may_have_a_schema_of_its_own(self, tmp_path):
        path = tmp_path / "cdm.duckdb"
        write_schema(path, "cdm_a", ALIVE)
        write_schema(path, "words", ["concept_ancestor"])
        below = ehr.CodeList("codes", (ehr.Code("a", "9", "line 2", include_descendants=True),))
        for cdm in (path, ehr.InDatabase(path, "CDM_a")):
            assert ehr.read_omop(cdm, below, engine=SMALL).table["a"].tolist() == [1, 1]
        write_schema(path, "words2", ["concept_ancestor"])
        with pytest.raises(DataError, match=r"2 tables are called 'concept_ancestor'.+words2"):
            ehr.read_omop(path, below, engine=SMALL)


DAYS = {
    "2020-01-31": "2020-01-31",
    "2020/1/31": "2020-01-31",
    "2020-01-31+02:00": "2020-01-31",
    "2020-01-31 11:30 PM": "2020-01-31",
    "2020-01-31T23:30:00-05:00": "2020-02-01",
    "2020-01-31T00:30+02": "2020-01-30",
    "2020-01-31 23:30 America/New_York": "2020-02-01",
    "2020-01-31 23:30 XYZ": None,
    "05-06-19": None,
    "0005-06-19": None,
    "2020-02-30": None,
    "2020-01-31 or so": None,
    "infinity": None,
}


class TestDates:
    def test_text_says_a_day(self, monkeypatch):
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        events = long(person=list(DAYS), date=list(DAYS))
        read = dict.fromkeys(DAYS)
        for day in ("2020-01-30", "2020-01-31", "2020-02-01"):
            found = ehr.read_long(events, CODES, between=(day, day), engine=SMALL)
            assert dropped(found)["bad-date"] == list(DAYS.values()).count(None)
            on_it = found.table["person"][found.table["hypertension"] == 1]
            read |= dict.fromkeys(on_it, day)
        assert read == DAYS

    @pytest.mark.parametrize(("date_format", "read"), [("%d/%m/%y", [1, 0]), ("%d/%m/%Y", [0, 1])])
    def test_formats_want_the_digits_they_say(self, date_format, read):
        events = long(person=["a", "b"], date=["31/01/20", "31/01/2020"])
        columns = ehr.LongColumns(date_format=date_format)
        found = ehr.read_long(events, CODES, columns=columns, engine=SMALL)
        assert found.table["hypertension"].tolist() == read
        assert dropped(found) == {"bad-date": 1}


def omop_folder(folder, person, events):
    folder.mkdir()
    period = "person_id,observation_period_start_date,observation_period_end_date\n"
    periods = "".join(f"{p},2000-01-01,2030-12-31\n" for p in (1, 2, 3))
    for name, text in {
        "person": person,
        "observation_period": period + periods,
        "condition_occurrence": "person_id,condition_concept_id,condition_start_date\n" + events,
    }.items():
        written(folder / f"{name}.csv", text)
    return folder


DECIMAL = pd.ArrowDtype(pa.decimal128(12, 2))


class TestOmop:
    @pytest.mark.parametrize("kind", [None, "float64", DECIMAL])
    def test_concepts_are_not_rounded(self, tmp_path, kind):
        events = "1,100.4,2020-01-01\n2,1e2,2020-01-01\n3,100.0,2020-01-01\n3,0,2020-01-01\n"
        cdm = omop_folder(tmp_path / "cdm", "person_id\n1\n2\n3\n", events)
        if kind:
            table = pd.read_csv(cdm / "condition_occurrence.csv")
            table = table.astype({"condition_concept_id": kind})
            table.to_parquet(cdm / "condition_occurrence.parquet")
            (cdm / "condition_occurrence.csv").unlink()
        found = ehr.read_omop(cdm, {"a": 100}, engine=SMALL)
        assert found.table["a"].tolist() == [0, 1, 1]
        assert dropped(found) == {"bad-code": 1, "no-code": 1}

    def test_large_ids_keep_every_digit(self, tmp_path):
        events = f"1,{2**53 + 1},2020-01-01\n2,{2**53},2020-01-01\n"
        cdm = omop_folder(tmp_path / "cdm", "person_id\n1\n2\n3\n", events)
        found = ehr.read_omop(cdm, {"a": 2**53 + 1}, engine=SMALL)
        assert found.table["a"].tolist() == [1, 0, 0]


class TestTables:
    def test_a_column_without_a_name_is_left_alone(self, tmp_path):
        path = tmp_path / "events.csv"
        long(person=["a", "b"]).to_csv(path)
        assert ehr.read_long(path, CODES, engine=SMALL).table["person"].tolist() == ["a", "b"]

    def test_mixed_columns_become_text(self):
        events = long(
            person=["a", 7, 7.0, None],
            code=["I10", 250, 250.0, "I10"],
            date=["2020-01-31", pd.Timestamp("2020-01-31"), "2020-02-01", "2020-01-31"],
        )
        before = events.copy()
        found = ehr.read_long(events, {"a": "I10", "b": 250}, engine=SMALL)
        assert found.table.to_dict("list") == {"person": ["7", "a"], "a": [0, 1], "b": [1, 0]}
        assert dropped(found) == {"no-person": 1}
        pd.testing.assert_frame_equal(events, before)

    def test_white_space_and_missing_words(self, tmp_path):
        events = long(
            person=["a\t", "\u00a0a", "NULL", " NULL ", "b"],
            code=["I10\t", "\nJ45\r", "I10", "I10", "NULL"],
        )
        events.to_csv(tmp_path / "events.csv", index=False)
        for source in (events, tmp_path / "events.csv"):
            found = ehr.read_long(source, CODES | {"asthma": "J45"}, engine=SMALL)
            assert found.table["person"].tolist() == ["a", "b"]
            assert found.table[["hypertension", "asthma"]].to_numpy().tolist() == [[1, 1], [0, 0]]
            assert dropped(found) == {"no-person": 2, "no-code": 1}
