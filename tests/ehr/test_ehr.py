"""Health records into people × conditions, against loops in plain Python."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import date, datetime, timedelta

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest

from silomix import ehr
from silomix.ehr.counting import REASONS
from silomix.errors import DataError, MissingDependency, SettingsError

DAY = timedelta(days=1)
START = date(2015, 1, 1)
CODES = {"asthma": [10, 11], "gout": [20], "stroke": [30, 10]}
SMALL = ehr.Engine(memory="200MB", threads=1)


def quote(name):
    return '"' + name.replace('"', '""') + '"'


def lines(tmp_path, text, name="codes.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def write_cdm(path, tables, schema="main"):
    """Write frames as the tables of a DuckDB file."""
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}")
        for name, frame in tables.items():
            connection.register("frame", frame)
            connection.execute(f"CREATE TABLE {quote(schema)}.{quote(name)} AS FROM frame")
            connection.unregister("frame")
    return path


def counted(dropped):
    """What was dropped, by the key of its reason: (events, people)."""
    keys = {words: key for key, (words, _) in REASONS.items()}
    assert dropped["what_to_do"].tolist() == [REASONS[keys[r]][1] for r in dropped["reason"]]
    return {keys[r]: (e, p) for r, e, p, _ in dropped.itertuples(index=False)}


def omop(people, periods, events, deaths=(), ancestors=()):
    """Frames of the OMOP tables; deaths and ancestors are pairs."""

    def frame(rows, *columns):
        return pd.DataFrame(rows, columns=columns)

    whole = {"person_id": "Int64", "condition_concept_id": "Int64"}
    period = "observation_period_start_date", "observation_period_end_date"
    person = frame(people, "person_id", "gender_concept_id", "year_of_birth", "care_site_id")
    event = frame(events, *whole, "condition_start_date")
    return {
        "person": person.astype("Int64"),
        "observation_period": frame(periods, "person_id", *period),
        "condition_occurrence": event.astype(whole),
        "concept_ancestor": frame(ancestors, "ancestor_concept_id", "descendant_concept_id"),
        "death": frame(deaths, "person_id", "death_date"),
    }


@pytest.fixture
def planted(tmp_path):
    """Six people and one event of every kind that is dropped, in a DuckDB file."""
    inside, outside = date(2016, 5, 1), date(2013, 5, 1)
    people = [
        (3, 8507, 1930, 7),
        (1, 8532, 1925, 8),
        (2, 8507, 1934, 7),
        (4, 8507, 1980, 7),
        (5, 8532, 1930, 8),
        (6, 8532, 1930, None),
    ]
    periods = [(p, START, date(2018, 12, 31)) for p in (1, 2, 3, 4, 6)]
    periods.append((1, date(2019, 6, 1), date(2019, 1, 1)))
    events = [
        (1, 10, inside),  # asthma and stroke
        (1, 10, inside),  # again
        (1, 10, inside),  # and again
        (1, 101, inside),  # a descendant of 20: gout
        (1, 20, outside),
        (2, 20, inside + DAY),
        (2, 999, inside),  # unknown concepts
        (2, 999, inside + DAY),
        (2, 998, inside),
        (2, 0, inside),  # no concept
        (2, None, inside),
        (2, 20, None),
        (2, 20, date(2018, 6, 1)),  # after death
        (4, 10, inside),  # too young
        (5, 10, inside),  # never observed
        (6, 10, inside),  # no care site
        (77, 10, inside),  # unknown people
        (78, 10, inside),
        (None, 10, inside),
    ]
    ancestors = [(20, 20), (20, 101), (20, 102), (10, 103)]
    tables = omop(people, periods, events, [(2, date(2018, 1, 1))], ancestors)
    codes = lines(
        tmp_path,
        "condition,code,include_descendants\nasthma,10,no\ngout,20,yes\nstroke,30,\nstroke,10,\n",
    )
    return write_cdm(tmp_path / "cdm.duckdb", tables), codes


def test_every_planted_event_is_accounted_for(planted):
    cdm, codes = planted
    before = cdm.read_bytes()
    found = ehr.read_omop(cdm, codes, silo="care_site", ages=(70, None), engine=SMALL)
    assert cdm.read_bytes() == before
    assert sorted(path.name for path in cdm.parent.iterdir()) == ["cdm.duckdb", "codes.csv"]
    # in the order in which reasons are tried
    assert list(counted(found.dropped).items()) == list(
        {
            "no-person": (1, 0),
            "unknown-person": (2, 2),
            "bad-period": (0, 1),
            "no-observation": (1, 1),
            "no-silo": (1, 1),
            "age": (1, 1),
            "no-code": (2, 1),
            "unlisted": (3, 1),
            "no-date": (1, 1),
            "outside-observation": (1, 1),
            "after-death": (1, 1),
            "duplicate": (2, 1),
        }.items()
    )
    assert found.unlisted.values.tolist() == [["999", 2], ["998", 1]]
    assert found.table.to_dict("list") == {
        "person_id": [1, 2, 3],
        "care_site": [8, 7, 7],
        "asthma": [1, 0, 0],
        "gout": [1, 1, 0],
        "stroke": [1, 0, 0],
    }
    assert found.conditions.to_dict("list") == {
        "condition": ["asthma", "gout", "stroke"],
        "people": [1, 2, 1],
        "prevalence": [1 / 3, 2 / 3, 1 / 3],
        "events": [1, 2, 1],
    }
    assert (found.people, found.zeros, found.events_read, found.events_kept) == (3, 1, 19, 3)
    assert found.file is None


def random_cohort(seed):
    """Draw a cohort in which every reason to drop an event is common."""
    rng = np.random.default_rng(seed)

    def some_day():
        # few days, so that events fall on the ends of periods and of the window, and on deaths
        return START + int(rng.integers(0, 30)) * 100 * DAY

    people = [
        (p, 8507 + p % 2, int(rng.integers(1920, 1960)), int(rng.integers(1, 4)))
        for p in rng.permutation(80).tolist()
    ]
    periods = []
    for p in rng.choice(80, size=70, replace=False).tolist():
        for _ in range(int(rng.integers(1, 3))):
            ends = sorted([some_day(), some_day()])
            periods.append((p, *ends))
    concepts = [0, 10, 11, 20, 30, 101, 102, 998, 999]
    events = [
        (int(rng.integers(0, 90)), int(rng.choice(concepts)), some_day()) for _ in range(1500)
    ]
    events += [events[i] for i in rng.integers(0, 1500, size=300).tolist()]
    return people, periods, events, {p: some_day() for p in range(20)}


def first_true(tests):
    return next((key for key, true in tests.items() if true), None)


def fate_of(p, born, periods, window, ages):
    """Why a person is left out, or None."""
    first, last = window
    own = [period for period in periods if period[0] == p]
    since = [max(a, first) for _, a, b in own if a <= last and b >= first]
    age = min(since).year - born if since else ages[0]
    excluded = not ages[0] <= age <= ages[1]
    return first_true({"no-observation": not own, "unobserved": not since, "age": excluded})


def by_hand(cohort, listed, window, ages, at_least):
    """The table and the dropped events by loops over people and events."""
    people, periods, events, deaths = cohort
    judged = {p: fate_of(p, year, periods, window, ages) for p, _, year, _ in people}
    fates = {p: fate for p, fate in judged.items() if fate}
    lost, kept = [], set()
    for p, code, when in events:
        observed = any(q == p and a <= when <= b for q, a, b in periods)
        reason = first_true(
            {
                "unknown-person": p not in judged,
                fates.get(p): p in fates,
                "no-code": code == 0,
                "unlisted": not any(code in its for its in listed.values()),
                "outside-window": not window[0] <= when <= window[1],
                "outside-observation": not observed,
                "after-death": when > deaths.get(p, date.max),
                "duplicate": (p, code, when) in kept,
            }
        )
        if reason is None:
            kept.add((p, code, when))
        else:
            lost.append((reason, p))
    have = {
        p: [int(any(q == p and code in its for q, code, _ in kept)) for its in listed.values()]
        for p in sorted(judged.keys() - fates)
    }
    few = {p for p, flags in have.items() if sum(flags) < at_least}
    lost += [("too-few", p) for p, _, _ in kept if p in few]
    whose = {*lost, *((reason, p) for p, reason in fates.items()), *(("too-few", p) for p in few)}
    number, persons = (Counter(reason for reason, _ in some) for some in (lost, whose))
    dropped = {key: (number[key], persons[key]) for key in persons}
    return {p: flags for p, flags in have.items() if p not in few}, dropped


@pytest.mark.parametrize(
    ("window", "ages", "at_least"),
    [((None, None), (None, None), 0), ((START + 400 * DAY, START + 2000 * DAY), (70, 90), 2)],
    ids=["everything", "a narrow cohort"],
)
def test_a_random_database_agrees_with_plain_loops(tmp_path, seed, window, ages, at_least):
    cohort = random_cohort(seed)
    ancestors = [(20, 101), (20, 102)]
    people, periods, events, deaths = cohort
    tables = omop(people, periods, events, deaths.items(), ancestors)
    listed = [
        ehr.Code(name, str(code), f"entry {name} {code}", include_descendants=code == 20)
        for name, its in CODES.items()
        for code in its
    ]
    codes = ehr.CodeList("codes", tuple(listed))
    path = write_cdm(tmp_path / "cdm.duckdb", tables)
    found = ehr.read_omop(path, codes, between=window, ages=ages, at_least=at_least, engine=SMALL)

    expected, dropped = by_hand(
        cohort,
        CODES | {"gout": [20, 101, 102]},
        (window[0] or date.min, window[1] or date.max),
        (ages[0] or 0, ages[1] or 200),
        at_least,
    )
    assert len(dropped) >= 6
    assert counted(found.dropped) == dropped
    assert found.table["person_id"].tolist() == list(expected)
    assert found.table[list(CODES)].to_numpy().tolist() == list(expected.values())
    assert found.events_read == 1800
    assert found.events_read == found.events_kept + found.dropped["events"].sum()
    assert found.zeros == sum(not any(flags) for flags in expected.values())


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".parquet"])
def test_a_folder_gives_what_the_database_gives(planted, tmp_path, ending):
    cdm, codes = planted
    folder = tmp_path / "fol'der [1] x=3"
    folder.mkdir()
    with duckdb.connect(str(cdm), read_only=True) as connection:
        names = [name for (name,) in connection.execute("SHOW TABLES").fetchall()]
        frames = {name: connection.table(name).df() for name in names}
    for name, frame in frames.items():
        path = folder / f"{name.upper()}{ending}"
        if ending == ".parquet":
            frame.to_parquet(path)
        else:
            # the vocabulary files that OHDSI hands out are called .csv and have tabs
            tabs = ending == ".tsv" or name == "concept_ancestor"
            frame.to_csv(path, index=False, sep="\t" if tabs else ",")
    choices = {"silo": "care_site", "carry": ["gender_concept_id"], "ages": (None, 95)}
    one = ehr.read_omop(cdm, codes, **choices, engine=SMALL)
    other = ehr.read_omop(folder, codes, **choices, engine=SMALL)
    pd.testing.assert_frame_equal(one.dropped, other.dropped)
    pd.testing.assert_frame_equal(one.conditions, other.conditions)
    assert one.table.astype(float).equals(other.table.astype(float))


def test_people_without_a_year_of_birth_have_no_age(planted):
    cdm, codes = planted
    with duckdb.connect(str(cdm)) as connection:
        connection.execute("UPDATE person SET year_of_birth = NULL WHERE person_id = 1")
    found = ehr.read_omop(cdm, codes, ages=(70, None), engine=SMALL)
    assert counted(found.dropped)["no-birth-year"] == (5, 1)


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
    assert counted(found.dropped) == {
        "no-code": (events // 50, people // 50),
        "unlisted": (9 * events // 50, 9 * people // 50),
        "outside-observation": (40 * people // 50 * 2, 40 * people // 50),
    }
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
        assert counted(found.dropped) == {
            "no-person": (1, 0),
            "no-code": (1, 1),
            "unlisted": (2, 2),
            "no-date": (1, 1),
            "bad-date": (1, 1),
            "duplicate": (1, 1),
        }
        assert (found.events_read, found.events_kept, found.zeros) == (9, 2, 2)

    def test_a_table_of_people_decides_who_is_kept(self):
        people = pl.DataFrame({"person": ["p10", "p9", "p1"], "sex": ["f", "m", None]})
        found = ehr.read_long(EVENTS, LONG, people=people, carry=["sex"], engine=SMALL)
        assert found.table["person"].tolist() == ["p1", "p10", "p9"]
        assert found.table["sex"].tolist()[1:] == ["f", "m"]
        assert found.table["sex"].isna().tolist() == [True, False, False]
        assert found.table["asthma"].tolist() == [0, 1, 0]
        assert counted(found.dropped)["unknown-person"] == (4, 2)

    def test_dates_bound_what_counts(self):
        found = ehr.read_long(EVENTS, LONG, between=("2020-01-06", None), engine=SMALL)
        assert counted(found.dropped)["outside-window"] == (2, 1)
        same = ehr.read_long(EVENTS, LONG, between=(datetime(2020, 1, 6, 12), None), engine=SMALL)
        assert same.table.equals(found.table)
        assert found.table["hypertension"].sum() == 0

    @pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".tsv", ".parquet", ".duckdb"])
    def test_files_say_what_frames_say(self, tmp_path, ending):
        path = tmp_path / f"it's; a [b]*{ending}"
        (tmp_path / f"it's; a b and more{ending}").write_text("person,code,date\nx,y,z\n")
        source = path
        if ending == ".parquet":
            EVENTS.to_parquet(path)
        elif ending == ".duckdb":
            write_cdm(path, {'e"v; DROP': EVENTS}, schema='s"1')
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

    def test_columns_may_have_other_names_and_formats(self):
        events = pd.DataFrame(
            {"Pat id": [2.0, 1.0, None], "icd": ["I10"] * 3, "day": ["31/12/2020"] * 3}
        )
        columns = ehr.LongColumns("pat ID", "icd", "day", date_format="%d/%m/%Y")
        people = pd.DataFrame({"Pat id": np.array([1, 2, 3], dtype=np.int32)})
        day = ("2020-12-31", "2020-12-31")
        choices = {"people": people, "columns": columns, "between": day}
        found = ehr.read_long(events, HYPERTENSION, **choices, engine=SMALL)
        assert found.table.to_dict("list") == {"pat ID": ["1", "2", "3"], "hypertension": [1, 1, 0]}

    @pytest.mark.parametrize(
        ("dates", "date_format"),
        [
            ([20200101, 20191231], "%Y%m%d"),
            (pd.to_datetime(["2020-01-01 00:30", "2019-12-31 23:30"], utc=True), None),
            (pd.to_datetime(["2020-01-01", "2019-12-31"]), "%d/%m/%Y"),
            (["2020-01-01T00:30:00", "2019-12-31 23:30"], None),
        ],
        ids=["numbers", "times with a zone", "dates", "text"],
    )
    def test_days_are_read_alike_everywhere(self, monkeypatch, dates, date_format):
        monkeypatch.setenv("TZ", "America/New_York")
        events = pd.DataFrame({"person": [1, 2], "code": "I10", "date": dates})
        columns = ehr.LongColumns(date_format=date_format)
        choices = {"columns": columns, "between": ("2020-01-01", None)}
        found = ehr.read_long(events, HYPERTENSION, **choices, engine=SMALL)
        assert found.table["hypertension"].tolist() == [1, 0]

    def test_whole_numbers_stay_numbers(self):
        events = pd.DataFrame({"person": [10, 9], "code": [4, 5]}).astype("int32")
        people = pd.DataFrame({"person": [10, 9]})
        columns = ehr.LongColumns(date=None)
        found = ehr.read_long(events, {"a": [4]}, people=people, columns=columns, engine=SMALL)
        assert found.table.to_dict("list") == {"person": [9, 10], "a": [0, 1]}

    def test_vocabularies_tell_codes_apart(self, tmp_path):
        events = pd.DataFrame(
            {"person": [1, 2], "code": ["E10", "E10"], "system": ["ICD10", "local"]}
        )
        path = lines(tmp_path, "condition,code,vocabulary\ndiabetes,E10,ICD10\n")
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


def test_nobody_left_is_an_answer():
    found = ehr.read_long(EVENTS, LONG, at_least=2, engine=SMALL)
    assert (found.people, found.events_kept) == (0, 0)
    assert counted(found.dropped)["too-few"] == (2, 4)
    assert found.conditions["prevalence"].isna().all()


class TestCodes:
    def test_a_list_keeps_its_order(self, tmp_path):
        path = lines(
            tmp_path,
            "﻿Condition,code,description,include_descendants\n"
            'b,2,"two\nlines",TRUE\n\na,1,x,\n b ,3,,no\n',
        )
        found = ehr.read_codes(path)
        assert found.conditions == ("b", "a")
        assert [code.place for code in found.codes] == ["line 2", "line 5", "line 6"]
        assert [code.include_descendants for code in found.codes] == [True, False, False]

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("", "the first line"),
            ("condition,code,include_descendents\n", "include_descendents"),
            ("condition,code\n", "has no code"),
            ("condition,code\n\n,1\n", "line 3: .+empty"),
            ("condition,code\na,\n", "line 2: .+'a' .+empty"),
            ("condition,code\na,1,2\n", "line 2: 3 cells"),
            ("condition,code\na,1\nb,1\na, 1\n", "line 4: .+'1' of 'a' .+line 2"),
            ("condition,code\na,1\nA,2\n", "line 3: 'A' and 'a'"),
            ("condition,code,include_descendants\na,1,maybe\n", "line 2: .+'maybe'"),
            ("condition,code\n" + "a,\n" * 7, "and 8 more"),
            ('condition,code\na,"1', "cannot be read"),
        ],
    )
    def test_a_wrong_list_is_refused_by_line(self, tmp_path, text, named):
        with pytest.raises(DataError, match=rf"codes.csv: (.|\n)*{named}"):
            ehr.read_codes(lines(tmp_path, text))

    def test_lists_that_do_not_fit_are_refused(self, tmp_path):
        with pytest.raises(DataError, match="No such file"):
            ehr.read_codes(tmp_path / "codes.csv")
        with pytest.raises(DataError, match=r"entry 2: .+'b' .+empty"):
            ehr.read_codes({"a": ["1"], "b": []})
        for codes, named in (
            ({"a": ["1", "I10"]}, "entry 2: the code 'I10'"),
            ({"a": [0]}, "entry 1: the code '0'"),
        ):
            with pytest.raises(DataError, match=f"{named} is not a concept id"):
                ehr.read_omop("cdm", codes)
        below = lines(tmp_path, "condition,code,include_descendants\na,I10,1\n")
        with pytest.raises(DataError, match=r"line 2: .+for OMOP"):
            ehr.read_long(EVENTS, below)


@pytest.mark.parametrize(
    ("choices", "named"),
    [
        ({"between": ("2020-13-01", None)}, "first date is '2020-13-01'"),
        ({"between": (None, 2020)}, "last date is 2020"),
        ({"between": ("2021-01-01", "2020-01-01")}, "2021-01-01 is after .+ 2020-01-01"),
        ({"at_least": -1}, "at_least is -1"),
        ({"at_least": 3}, "at_least is 3; .+ 2 conditions"),
        ({"out": "people.csv"}, "people.csv"),
        ({"out": "nowhere/p.parquet"}, "nowhere"),
        ({"carry": ["Person"]}, "'person' would be in the result twice"),
        *[
            ({"engine": ehr.Engine(memory)}, f"memory is '{memory}'")
            for memory in ("lots", "0.0MB", "")
        ],
        ({"engine": ehr.Engine(memory="1MB")}, "1MB of memory"),
        ({"engine": ehr.Engine(threads=0)}, "threads is 0"),
        ({"engine": ehr.Engine(scratch="nowhere")}, "scratch is nowhere"),
        ({"columns": ehr.LongColumns(date=None), "between": ("2020-01-01", None)}, "needs the col"),
        ({"columns": ehr.LongColumns(date_format="%Q")}, "date format is '%Q'"),
        ({"silo": "ward"}, "silo is 'ward'; .+ care_site, location"),
        ({"ages": (80, 70)}, "the oldest age is 70"),
        ({"ages": (-1, None)}, "the youngest age is -1"),
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
NAMELESS = pd.DataFrame({"person": ["p1", None]})
HOSPITALS = EVENTS.assign(hospital=list("abcdefghi"))


@pytest.mark.parametrize(
    ("events", "choices", "named"),
    [
        (EVENTS, {"columns": ehr.LongColumns(code="codes")}, "the events: has no column 'codes' "),
        (EVENTS, {"carry": ["sex"]}, "no column 'sex'; its columns are 'person', 'code', 'date'"),
        (EVENTS.head(0), {}, "the events: has no event"),
        (EVENTS, {"people": TWICE}, "the people: 2 of its rows have the person id 'p1'"),
        (EVENTS, {"people": NAMELESS}, "the people: 1 of its rows have no person id"),
        (EVENTS, {"people": TWICE.head(0)}, "no event is of a person in the table of people"),
        (EVENTS, {"people": TWICE.head(1) + "0x"}, "no event is of a person in the table of peo"),
        (EVENTS.assign(code="x"), {}, "no event has a code of the list; .+ 'x'"),
        (EVENTS.assign(date="5.1.2020"), {}, "5 with one that cannot be read.+date_format="),
        (HOSPITALS, {"carry": ["hospital"]}, "'hospital' of the person 'p1' is 'g' .+ 'i'"),
        ("events.xlsx", {}, "events.xlsx: unknown kind of file; .+.csv"),
        ("events.csv", {}, "events.csv: no such file"),
        ("events.duckdb", {}, "events.duckdb: .+ --table"),
        (ehr.InDatabase("e.duckdb", "t"), {}, "e.duckdb: no such file"),
    ],
)
def test_events_that_cannot_be_used_are_refused(tmp_path, monkeypatch, events, choices, named):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=named):
        ehr.read_long(events, LONG, **choices, engine=SMALL)


def test_a_condition_with_the_name_of_a_column_is_refused():
    with pytest.raises(DataError, match="'hospital' would be in the result twice"):
        ehr.read_long(EVENTS, {"Hospital": ["I10"]}, carry=["hospital"])
    with pytest.raises(DataError, match="'care_site' would be in the result twice"):
        ehr.read_omop("cdm", {"care_site": [1]}, silo="care_site")


def test_tables_of_a_database_are_named(tmp_path):
    path = write_cdm(tmp_path / "r.duckdb", {"events": EVENTS, "people": EVENTS.head(1)})
    with pytest.raises(DataError, match=r"no tables .+'event'.+main.events"):
        ehr.read_long(ehr.InDatabase(path, "event"), LONG, engine=SMALL)
    write_cdm(path, {"events": EVENTS}, schema="old")
    with pytest.raises(DataError, match=r"2 tables .+'events'.+schema.table"):
        ehr.read_long(ehr.InDatabase(path, "events"), LONG, engine=SMALL)
    people = ehr.InDatabase(path, "people")
    old = ehr.InDatabase(path, "old.events")
    assert ehr.read_long(old, LONG, people=people, engine=SMALL).people == 1


def test_omop_tables_that_are_missing_are_named(planted, tmp_path):
    cdm, codes = planted
    for table in ("concept_ancestor", "observation_period"):
        with duckdb.connect(str(cdm)) as connection:
            connection.execute(f"DROP TABLE {table}")
        with pytest.raises(DataError, match=f"has no table '{table}'.+found"):
            ehr.read_omop(cdm, codes, engine=SMALL)
    with pytest.raises(DataError, match="cdm: no such file"):
        ehr.read_omop(tmp_path / "cdm", codes, engine=SMALL)
    folder = tmp_path / "both"
    folder.mkdir()
    for name in ("person.csv", "PERSON.tsv"):
        lines(folder, "person_id\n1\n", name)
    with pytest.raises(DataError, match=r"PERSON.tsv and person.csv are one table"):
        ehr.read_omop(folder, codes, engine=SMALL)


def test_omop_columns_that_are_missing_are_named(planted):
    cdm, codes = planted
    with pytest.raises(DataError, match=r"table main.person: has no column 'location_id'"):
        ehr.read_omop(cdm, codes, silo="location", engine=SMALL)


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
