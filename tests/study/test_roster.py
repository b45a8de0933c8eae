from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from silomix.errors import DataError, DataWarning
from silomix.model.reading import read_table
from silomix.study import make_study
from silomix.study.roster import (
    Roster,
    choose_variables,
    natural,
    own_rows,
    read_roster,
    rows_of,
    table_schema,
    warn_tiny,
)


def test_names_come_in_natural_order():
    names = ["site 10", "site 2", "2", "b", "site 2a", "10", "a", "site 02"]
    expected = ["2", "10", "a", "b", "site 02", "site 2", "site 2a", "site 10"]
    assert sorted(names, key=natural) == expected


def test_roster_places_every_row():
    table = pd.DataFrame({"site": [10, 9.0, 10, 2], "a": list("xyxy")})
    roster = read_roster(table, "site")
    assert roster.names == ("2", "9", "10")
    np.testing.assert_array_equal(roster.places, [2, 1, 2, 0])


def test_rows_of_one_silo():
    table = pd.DataFrame({"site": list("abab"), "a": list("wxyz")})
    assert rows_of(table, "site", "b")["a"].to_list() == ["x", "z"]


def test_schema_leaves_silo_and_frequency_out():
    table = pd.DataFrame({"site": list("ab"), "a": list("xy"), "n": [2, 3]})
    schema = table_schema(table, silo="site", frequency="n")
    assert schema.levels == [("a", "x"), ("a", "y")]
    assert table_schema(table, variables=["n"]).levels == [("n", "2"), ("n", "3")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda table: read_roster(table, "sites"),
            "no column 'sites' to tell the silos apart (did you mean 'site'?); its columns are",
        ),
        (
            lambda table: read_roster(table, "SITE"),
            "no column 'SITE' to tell the silos apart (did you mean 'site'?); its columns are",
        ),
        (
            lambda table: read_roster(table, "ward"),
            "the table has no column 'ward' to tell the silos apart; its columns are",
        ),
        (
            lambda table: rows_of(pd.DataFrame({"site": ["North", "South"]}), "site", "north"),
            "has no row of 'north' (did you mean 'North'?); it has 'North', 'South'",
        ),
        (
            lambda table: read_roster(table, "site"),
            "the silo column 'site' is empty in data row 3; say whose row it is, or remove it",
        ),
        (
            lambda table: rows_of(table[:2], "site", "c"),
            "the silo column 'site' has no row of 'c'; it has 'a', 'b': correct the name, or",
        ),
    ],
)
def test_messages(call, message):
    table = pd.DataFrame({"site": ["a", "b", None], "a": list("xyx")})
    with pytest.raises(DataError, match=re.escape(message)):
        call(table)


def test_long_rosters_are_cut_short():
    table = pd.DataFrame({"site": [f"s{place}" for place in range(13)]})
    with pytest.raises(DataError, match="'s9' and 3 more: correct the name"):
        rows_of(table, "site", "t")


@pytest.fixture
def study():
    table = pd.DataFrame({"a": list("wxyz"), "b": list("pqpq")})
    return make_study(table_schema(table), ["north", "south"], seed=1)


def test_without_a_column_all_rows_are_the_silos_own(study):
    table = pd.DataFrame({"a": list("wxyz"), "b": list("pqpq"), "ward": list("1122")})
    assert len(own_rows(table, None, "north", study)) == 4


def test_a_column_of_silo_names_that_is_not_used_is_warned_of(study):
    table = pd.DataFrame({"a": list("wx"), "b": list("pq"), "site": ["north", "south"]})
    with pytest.warns(DataWarning, match=r"all 2 rows are taken for those of 'north'.*'site'"):
        own_rows(table, None, "north", study)
    assert len(own_rows(table, "site", "north", study)) == 1
    own_rows(table.assign(site="north"), None, "north", study)
    own_rows(table.assign(site=[["north"], ["south"]]), None, "north", study)


def roster_of(**sizes):
    names = tuple(name.replace("_", " ") for name in sizes)
    return Roster(names, np.repeat(np.arange(len(sizes)), list(sizes.values())))


def test_a_silo_much_smaller_than_the_others_is_warned_of():
    words = r"silo 'St Mari' has only 4 rows \(did you mean 'St Mary'"
    with pytest.warns(DataWarning, match=words):
        warn_tiny(roster_of(St_Mary=100, St_Mari=4, Elsewhere=90))


def test_silos_that_are_all_small_or_large_enough_are_not():
    warn_tiny(roster_of(a=5, b=6, c=4))
    warn_tiny(roster_of(a=10_000, b=30, c=9_000))
    warn_tiny(roster_of(a=100, b=12, c=90))


def test_variables_are_named_or_all_but_the_silos():
    frame = read_table(pd.DataFrame({"hospital": ["a", "b"], 0: [1, 2], "x": [1, 2]}))
    assert choose_variables(frame, None, "hospital") == ["0", "x"]
    assert choose_variables(frame, None, 0) == ["hospital", "x"]
    assert choose_variables(frame, pd.Index([0, "x"]), "hospital") == ["0", "x"]
    assert choose_variables(frame, [], "hospital") == []
    with pytest.raises(DataError, match="column 'x' names the silos and is among the variables"):
        choose_variables(frame, ["0", "x"], "x")


def test_the_column_of_silos_may_be_a_number():
    frame = pd.DataFrame({0: ["a", "b"], 1: [1, 2]})
    assert read_roster(frame, 0).names == ("a", "b")
    with pytest.raises(DataError, match="no column '7' to tell the silos apart"):
        read_roster(frame, 7)
