"""Health records into people × conditions, against loops in plain Python."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import date, datetime, timedelta

import duckdb
import numpy as np
import pandas as pd
import pytest
from cases.ehr_cases import SMALL, counted, omop, write_database, written

from silomix import ehr
from silomix.ehr.counting import REASONS
from silomix.errors import DataError, MissingDependency, SettingsError

DAY = timedelta(days=1)
START = date(2015, 1, 1)
CODES = {"asthma": [10, 11], "gout": [20], "stroke": [30, 10]}


def random_cohort(seed):
    """Draw people, periods, events and deaths in which every reason to drop an event is common."""
    rng = np.random.default_rng(seed)

    def often(value):
        return None if rng.random() < 0.1 else value

    def some_day():
        # few days, so that events fall on the ends of periods and of the window, and on deaths
        return START + int(rng.integers(0, 30)) * 100 * DAY

    people = [
        (p, 8507 + p % 2, often(int(rng.integers(1920, 1960))), often(int(rng.integers(1, 4))))
        for p in rng.permutation(80).tolist()
    ]
    periods = []
    for p in rng.choice(80, size=70, replace=False).tolist():
        for _ in range(int(rng.integers(1, 3))):
            ends = sorted([some_day(), some_day()], reverse=bool(rng.random() < 0.1))
            periods.append((p, *ends))
    concepts = [None, 0, 10, 11, 20, 30, 101, 102, 998, 999]
    events = [
        (often(int(rng.integers(0, 90))), rng.choice(concepts), often(some_day()))
        for _ in range(1500)
    ]
    events += [events[i] for i in rng.integers(0, 1500, size=300).tolist()]
    return people, periods, events, {p: some_day() for p in range(20)}


@pytest.fixture
def cdm(tmp_path, seed):
    """A random cohort in a DuckDB file, and codes: gout has descendants."""
    people, periods, events, deaths = random_cohort(seed)
    tables = omop(people, periods, events, deaths.items(), [(20, 101), (20, 102), (10, 103)])
    listed = "".join(f"{name},{code},{code == 20}\n" for name, its in CODES.items() for code in its)
    codes = written(tmp_path / "codes.csv", f"condition,code,include_descendants\n{listed}")
    return write_database(tmp_path / "cdm.duckdb", tables), codes


def first_true(tests):
    return next((key for key, true in tests.items() if true), None)


def fate_of(person, periods, window, ages):
    """Why a person is left out, or None."""
    p, _, born, site = person
    first, last = window
    own = [(a, b) for q, a, b in periods if q == p and a <= b]
    since = [max(a, first) for a, b in own if a <= last and b >= first]
    known = since and born is not None
    return first_true(
        {
            "no-observation": not own,
            "unobserved": not since,
            "no-silo": site is None,
            "no-birth-year": ages and born is None,
            "age": ages and known and not ages[0] <= min(since).year - born <= ages[1],
        }
    )


def by_hand(cohort, window, ages, at_least):
    """The table, the dropped events, those with an unlisted code, and those that count."""
    people, periods, events, deaths = cohort
    listed = CODES | {"gout": [20, 101, 102]}
    judged = {person[0]: fate_of(person, periods, window, ages) for person in people}
    fates = {p: fate for p, fate in judged.items() if fate}
    lost, kept = [], set()
    for p, code, when in events:
        observed = any(q == p and a <= (when or date.min) <= b for q, a, b in periods)
        reason = first_true(
            {
                "no-person": p is None,
                "unknown-person": p not in judged,
                fates.get(p): p in fates,
                "no-code": not code,
                "unlisted": not any(code in its for its in listed.values()),
                "no-date": when is None,
                "outside-window": when and not window[0] <= when <= window[1],
                "outside-observation": not observed,
                "after-death": when and when > deaths.get(p, date.max),
                "duplicate": (p, code, when) in kept,
            }
        )
        if reason is None:
            kept.add((p, code, when))
        else:
            lost.append((reason, p, code))
    have = {
        p: [int(any(q == p and code in its for q, code, _ in kept)) for its in listed.values()]
        for p in sorted(judged.keys() - fates)
    }
    few = {p for p, flags in have.items() if sum(flags) < at_least}
    lost += [("too-few", p, code) for p, code, _ in kept if p in few]
    whose = {(reason, p) for reason, p, _ in lost} | {(reason, p) for p, reason in fates.items()}
    whose |= {("too-few", p) for p in few} | {("bad-period", p) for p, a, b in periods if a > b}
    number = Counter(reason for reason, *_ in lost)
    persons = Counter(reason for reason, p in whose if p is not None)
    dropped = {key: (number[key], persons[key]) for key in {key for key, _ in whose}}
    counts = [sum(code in its and p not in few for p, code, _ in kept) for its in listed.values()]
    unlisted = Counter(str(code) for reason, _, code in lost if reason == "unlisted")
    return {p: flags for p, flags in have.items() if p not in few}, dropped, unlisted, counts


@pytest.mark.parametrize(
    ("window", "ages", "at_least"),
    [((None, None), (None, None), 0), ((START + 400 * DAY, START + 2000 * DAY), (70, 90), 2)],
    ids=["everything", "a narrow cohort"],
)
def test_a_random_database_agrees_with_plain_loops(cdm, seed, window, ages, at_least):
    path, codes = cdm
    before = path.read_bytes()
    choices = {"between": window, "ages": ages, "at_least": at_least, "silo": "care_site"}
    found = ehr.read_omop(path, codes, **choices, engine=SMALL)
    assert path.read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["cdm.duckdb", "codes.csv"]
    days = window[0] or date.min, window[1] or date.max
    cohort = random_cohort(seed)
    expected, dropped, unlisted, counts = by_hand(cohort, days, ages[0] and ages, at_least)
    assert len(dropped) >= 11
    assert counted(found) == dropped
    # in the order in which reasons are tried
    assert list(counted(found)) == [key for key in REASONS if key in dropped]
    assert dict(found.unlisted.itertuples(index=False)) == unlisted
    sites = {p: site for p, _, _, site in cohort[0]}
    assert found.table["person_id"].tolist() == list(expected)
    assert found.table["care_site"].tolist() == [sites[p] for p in expected]
    flags = np.array(list(expected.values()))
    assert found.table[list(CODES)].to_numpy().tolist() == flags.tolist()
    assert found.conditions["people"].tolist() == flags.sum(axis=0).tolist()
    assert found.conditions["events"].tolist() == counts
    assert (found.events_read, found.people, found.file) == (1800, len(expected), None)
    assert found.events_read == found.events_kept + found.dropped["events"].sum()
    assert found.zeros == (~flags.any(axis=1)).sum()


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".parquet"])
def test_a_folder_gives_what_the_database_gives(cdm, tmp_path, ending):
    path, codes = cdm
    folder = tmp_path / "fol'der [1] x=3"
    folder.mkdir()
    with duckdb.connect(str(path), read_only=True) as connection:
        names = [name for (name,) in connection.execute("SHOW TABLES").fetchall()]
        frames = {name: connection.table(name).df() for name in names}
    for name, frame in frames.items():
        file = folder / f"{name.upper()}{ending}"
        if ending == ".parquet":
            frame.to_parquet(file)
        else:
            # the vocabulary files that OHDSI hands out are called .csv and have tabs
            tabs = ending == ".tsv" or name == "concept_ancestor"
            frame.to_csv(file, index=False, sep="\t" if tabs else ",")
    choices = {"silo": "care_site", "carry": ["gender_concept_id"], "ages": (None, 95)}
    one, other = (ehr.read_omop(cdm, codes, **choices, engine=SMALL) for cdm in (path, folder))
    pd.testing.assert_frame_equal(one.dropped, other.dropped)
    assert one.table.astype(float).equals(other.table.astype(float))


@pytest.mark.slow
def test_two_million_events_in_little_memory(tmp_path):
    events, people = 2_000_000, 100_000
    cdm, out, scratch = (tmp_path / name for name in ("cdm.duckdb", "people.parquet", "scratch"))
    scratch.mkdir()
    with duckdb.connect(str(cdm)) as connection:
        connection.execute(
            f"""
            CREATE TABLE condition_occurrence AS SELECT range % {people} AS person_id,
                range % 50 AS condition_concept_id,
                DATE '2015-01-01' + CAST(range // {people} AS INTEGER) AS condition_start_date
            FROM range({events});
            CREATE TABLE person AS SELECT range AS person_id FROM range({people});
            CREATE TABLE observation_period AS SELECT person_id,
                DATE '2015-01-03' AS observation_period_start_date,
                DATE '2016-01-01' AS observation_period_end_date FROM person
            """
        )
    codes = {f"condition {c}": [c] for c in range(1, 41)}
    found = ehr.read_omop(cdm, codes, out=out, engine=ehr.Engine("100MB", scratch, 2))
    # 50 divides the number of people: each person has one concept, on twenty days
    assert found.conditions["people"].tolist() == [people // 50] * 40
    assert found.people == people
    assert pd.read_parquet(out, columns=["person_id"])["person_id"].is_monotonic_increasing
    assert list(scratch.iterdir()) == []


EVENTS = pd.DataFrame(
    [
        ("p2", "I10", "2020-01-05", "north"),
        ("p2", " I10 ", "2020-01-05", "north"),
        ("p2", "J45", "2020-06-31", "north"),
        ("p10", "J45", "2021-02-01", "south"),
        ("p10", "Z00", "2021-02-01", "south"),
        ("p3", "Z00", None, "south"),
        ("p1", "J45", None, "north"),
        (None, "J45", "2020-01-01", "north"),
        ("p1", None, "2020-01-01", "north"),
    ],
    columns=["person", "code", "date", "hospital"],
)
HYPERTENSION = {"hypertension": ["I10"]}
LONG = HYPERTENSION | {"asthma": ["J45", "J46"]}


class TestLong:
    def test_everybody_in_the_events_is_kept(self):
        found = ehr.read_long(EVENTS, LONG, carry=["hospital"], engine=SMALL)
        assert found.table.to_dict("list") == {
            "person": ["p1", "p10", "p2", "p3"],
            "hospital": ["north", "south", "north", "south"],
            "hypertension": [0, 0, 1, 0],
            "asthma": [0, 1, 0, 0],
        }
        assert counted(found) == {
            "no-person": (1, 0),
            "no-code": (1, 1),
            "unlisted": (2, 2),
            "no-date": (1, 1),
            "bad-date": (1, 1),
            "duplicate": (1, 1),
        }

    @pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".parquet", ".duckdb"])
    def test_files_say_what_frames_say(self, tmp_path, ending):
        path = tmp_path / f"it's; a [b]*{ending}"
        (tmp_path / f"it's; a b and more{ending}").write_text("person,code,date\nx,y,z\n")
        source = path
        if ending == ".parquet":
            EVENTS.to_parquet(path)
        elif ending == ".duckdb":
            write_database(path, {'e"v; DROP': EVENTS}, schema='s"1')
            source = ehr.InDatabase(path, 's"1.E"V; DROP')
        else:
            EVENTS.to_csv(path, index=False, sep="\t" if "tsv" in ending else ",", na_rep="NA")
        one = ehr.read_long(source, LONG, carry=["hospital"], engine=SMALL)
        other = ehr.read_long(EVENTS, LONG, carry=["hospital"], engine=SMALL)
        pd.testing.assert_frame_equal(one.table, other.table)
        pd.testing.assert_frame_equal(one.dropped, other.dropped)

    def test_spelling_is_kept(self, tmp_path):
        path = tmp_path / "events.csv"
        path.write_text('person;code;date\n007;"401.10";2020-01-01\n7;401.1;2020-01-01\n')
        found = ehr.read_long(path, {"a": ["401.10"], "b": ["401.1"]}, engine=SMALL)
        assert found.table.to_dict("list") == {"person": ["007", "7"], "a": [1, 0], "b": [0, 1]}

    @pytest.mark.parametrize(
        ("dates", "date_format"),
        [
            ([20200101, 20191231], "%Y%m%d"),
            (pd.to_datetime(["2020-01-01 00:30", "2019-12-31 23:30"], utc=True), None),
            (pd.to_datetime(["2020-01-01", "2019-12-31"]), "%d/%m/%Y"),
        ],
        ids=["numbers", "times with a zone", "dates"],
    )
    def test_columns_may_have_other_names_and_days_are_read_alike_everywhere(
        self, monkeypatch, dates, date_format
    ):
        monkeypatch.setenv("TZ", "America/New_York")
        events = pd.DataFrame({"Pat id": [1.0, 2.0], "icd": "I10", "day": dates})
        choices = {
            "people": pd.DataFrame({"Pat id": np.array([1, 2, 3], dtype=np.int32)}),
            "columns": ehr.LongColumns("pat ID", "icd", "day", date_format=date_format),
            "between": (datetime(2020, 1, 1, 12), None),
        }
        found = ehr.read_long(events, HYPERTENSION, **choices, engine=SMALL)
        assert found.table.to_dict("list") == {"pat ID": ["1", "2", "3"], "hypertension": [1, 0, 0]}
        assert counted(found) == {"outside-window": (1, 1)}

    def test_vocabularies_tell_codes_apart(self, tmp_path):
        events = pd.DataFrame(
            {"person": [1, 2], "code": ["E10", "E10"], "system": ["ICD10", "local"]}
        )
        path = written(tmp_path / "codes.csv", "condition,code,vocabulary\ndiabetes,E10,ICD10\n")
        columns = ehr.LongColumns(date=None, vocabulary="system")
        found = ehr.read_long(events, path, columns=columns, engine=SMALL)
        assert found.table["diabetes"].tolist() == [1, 0]
        assert found.unlisted.values.tolist() == [["local:E10", 1]]
        with pytest.raises(SettingsError, match="names vocabularies"):
            ehr.read_long(events, path, columns=ehr.LongColumns(date=None))
        with pytest.raises(DataError, match=r"entry 1: .+has no vocabulary"):
            ehr.read_long(events, {"diabetes": "E10"}, columns=columns)

    @pytest.mark.parametrize("name", ['a"; DROP TABLE people; --', "new\nline", "it's $1 ?", "p.*"])
    def test_hostile_names_are_names(self, tmp_path, name):
        out = tmp_path / "out'; x.parquet"
        events = EVENTS.rename(columns={"hospital": f"{name}2"})
        found = ehr.read_long(events, {name: ["I10"]}, carry=[f"{name}2"], out=out, engine=SMALL)
        table = pd.read_parquet(out)
        assert list(table.columns) == ["person", f"{name}2", name]
        assert table[name].sum() == 1
        assert found.conditions["condition"].tolist() == [name]


class TestCodes:
    def test_a_list_keeps_its_order(self, tmp_path):
        path = written(
            tmp_path / "codes.csv",
            "﻿Condition,code,description,include_descendants\n"
            'b,2,"two\nlines",TRUE\n\na,1,x,\n b ,3,,no\n',
        )
        found = ehr.read_codes(path)
        assert found.conditions == ("b", "a")
        assert [code.place for code in found.codes] == ["data row 1", "data row 2", "data row 3"]
        assert [code.include_descendants for code in found.codes] == [True, False, False]

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("", "the file is empty; .+ column names"),
            ("condition,code,include_descendents\n", "include_descendents"),
            ("condition,code\n", "has no code"),
            ("condition,code\na,1\nb,1\na, 1\n", "data row 3: .+'1' of 'a' .+data row 1"),
            ("condition,code\na,1\nA,2\n", "data row 2: 'A' and 'a'"),
            ("condition,code,include_descendants\na,1,maybe\n", "data row 1: .+'maybe'"),
            ('condition,code\na,"1', "cannot be read"),
        ],
    )
    def test_a_wrong_list_is_refused_by_line(self, tmp_path, text, named):
        with pytest.raises(DataError, match=rf"codes.csv: (.|\n)*{named}"):
            ehr.read_codes(written(tmp_path / "codes.csv", text))

    def test_lists_that_do_not_fit_are_refused(self, tmp_path):
        with pytest.raises(DataError, match="no such file"):
            ehr.read_codes(tmp_path / "codes.csv")
        for codes in ({"a": ["1", "I10"]}, {"a": [317009, 0]}):
            with pytest.raises(DataError, match=r"entry 2: the code '.*' is not a concept id"):
                ehr.read_omop("cdm", codes)
        below = written(tmp_path / "codes.csv", "condition,code,include_descendants\na,I10,1\n")
        with pytest.raises(DataError, match=r"data row 1: .+for OMOP"):
            ehr.read_long(EVENTS, below)


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"between": ("2020-13-01", None)}, "first date is '2020-13-01'"),
        ({"between": ("2021-01-01", "2020-01-01")}, "2021-01-01 is after .+ 2020-01-01"),
        ({"at_least": 3}, "at_least is 3; .+ 2 conditions"),
        ({"out": "people.csv"}, "people.csv"),
        ({"carry": ["Person"]}, "'person' would be in the result twice"),
        ({"engine": ehr.Engine("0.0MB")}, "memory is '0.0MB'"),
        ({"engine": ehr.Engine(scratch="nowhere")}, "scratch is nowhere"),
        ({"columns": ehr.LongColumns(date=None), "between": ("2020-01-01", None)}, "needs the col"),
        ({"silo": "ward"}, "silo='ward' .+ 'care_site', 'location'"),
        ({"ages": (80, 70)}, "the oldest age is 70"),
    ],
)
def test_wrong_settings_are_named(tmp_path, monkeypatch, choices, named):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=named):
        if choices.keys() & {"silo", "ages"}:
            ehr.read_omop("cdm", CODES, **choices)
        else:
            ehr.read_long(EVENTS, LONG, **choices)


TWICE = pd.DataFrame({"person": ["p1", "p1"]})
HOSPITALS = EVENTS.assign(hospital=list("abcdefghi"))


@pytest.mark.parametrize(
    ("events", "choices", "named"),
    [
        (EVENTS, {"carry": ["sex"]}, "no column 'sex'; its columns are 'person', 'code', 'date'"),
        (EVENTS.head(0), {}, "the events: has no event"),
        (EVENTS, {"people": TWICE}, "the people: 2 of its rows have the person id 'p1'"),
        (EVENTS, {"people": TWICE.head(1) + "0x"}, "no event belongs to a person in the table"),
        (EVENTS.assign(person=" "), {}, "no event has a person id"),
        (EVENTS.assign(code="NA"), {}, "no event has a code that can be used"),
        (EVENTS.assign(code="x"), {}, "no event has a code from the list; .+ 'x'"),
        (EVENTS.assign(date="5.1.2020"), {}, "5 with one that cannot be read.+date_format="),
        (EVENTS, {"between": ("2022-01-01", None)}, "1 without a date, 1 with .+ read, 3 before"),
        (HOSPITALS, {"carry": ["hospital"]}, "'hospital' of the person 'p1' is 'g' .+ 'i'"),
        ("events.xlsx", {}, "events.xlsx: unknown kind of file; .+.csv"),
        ("events.duckdb", {}, "events.duckdb: .+ --table"),
    ],
)
def test_events_that_cannot_be_used_are_refused(tmp_path, monkeypatch, events, choices, named):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=named):
        ehr.read_long(events, LONG, **choices, engine=SMALL)


def test_tables_of_a_database_are_named(tmp_path):
    path = write_database(tmp_path / "r.duckdb", {"events": EVENTS, "people": EVENTS.head(1)})
    with pytest.raises(DataError, match=r"no tables .+'event'.+main.events"):
        ehr.read_long(ehr.InDatabase(path, "event"), LONG, engine=SMALL)
    write_database(path, {"events": EVENTS}, schema="old")
    with pytest.raises(DataError, match=r"2 tables .+'events'.+schema.table"):
        ehr.read_long(ehr.InDatabase(path, "events"), LONG, engine=SMALL)
    people = ehr.InDatabase(path, "people")
    old = ehr.InDatabase(path, "old.events")
    assert ehr.read_long(old, LONG, people=people, engine=SMALL).people == 1


def test_omop_tables_and_columns_that_are_missing_are_named(cdm, tmp_path):
    path, codes = cdm
    with pytest.raises(DataError, match=r"table main.person: has no column 'location_id'"):
        ehr.read_omop(path, codes, silo="location", engine=SMALL)
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP TABLE concept_ancestor")
    with pytest.raises(DataError, match=r"has no table 'concept_ancestor'.+found"):
        ehr.read_omop(path, codes, engine=SMALL)
    for name in ("person.csv", "PERSON.tsv"):
        written(tmp_path / name, "person_id\n1\n")
    with pytest.raises(DataError, match=r"PERSON.tsv and person.csv are one table"):
        ehr.read_omop(tmp_path, codes, engine=SMALL)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    out = tmp_path / "people.parquet"
    (out / "in the way").mkdir(parents=True)
    with pytest.raises(SettingsError, match=r"people.parquet cannot be written"):
        ehr.read_long(EVENTS, LONG, out=out, engine=SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["people.parquet"]


@pytest.mark.parametrize("package", ["duckdb", "pyarrow"])
def test_without_its_packages_the_extra_is_named(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=r"silomix\[data\]"):
        ehr.read_long(EVENTS, LONG)


def test_nothing_is_fetched_and_nothing_left_behind(tmp_path):
    from silomix.ehr.database import opened

    with opened(ehr.Engine(scratch=tmp_path, memory="100MB"), "x") as connection:
        rows = connection.execute("SELECT name, value FROM duckdb_settings()").fetchall()
        assert len(list(tmp_path.iterdir())) == 1
    settings = dict(rows)
    assert settings["autoinstall_known_extensions"] == "false"
    assert settings["autoload_known_extensions"] == "false"
    assert settings["temp_directory"].startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
