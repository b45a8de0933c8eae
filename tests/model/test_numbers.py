"""Columns of numbers: guessed or declared, in the study's units, and refused by what is wrong."""

from __future__ import annotations

import datetime as dt
import logging
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from silomix.errors import DataError, DataWarning, SettingsError
from silomix.model.schema import MISSING_LEVEL, Schema, Variable
from silomix.model.table import encode, infer_schema, load

AGES = [20.5, 31, 44, 52, 53.5, 58, 61, 70, 72, 88.25, None, 49]
WHOLE = [*range(12)]


def kind(values, **options):
    found = infer_schema(pd.DataFrame({"x": values, "y": "a"}), variables=["x"], **options)
    return [variable.kind for variable in found.variables]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["a", "b"], "categorical"),
        ([True, False], "categorical"),
        ([*range(10)], "categorical"),
        ([*map(float, range(10)), None], "categorical"),
        ([*map(str, range(10))], "categorical"),
        ([0.5, 2.5, 0.5], "categorical"),
        (WHOLE, "gaussian"),
        ([*map(str, WHOLE)], "gaussian"),
        ([f"{number:02}" for number in WHOLE], "categorical"),
        ([*range(30), "many"], "categorical"),
        (pd.Categorical(WHOLE), "categorical"),
        (AGES, "gaussian"),
        ([0.5, 1.5, 2.5, 3.5, 4.5, 5.5], "gaussian"),
        ([None, None], "categorical"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::silomix.errors.DataWarning")
def test_what_a_column_is_taken_for(values, expected):
    assert kind(values) == [expected]
    assert kind(values, kinds={"x": "categorical"}) == ["categorical"]


def test_a_text_file_has_numbers_too(tmp_path):
    frame = pd.DataFrame({"age": AGES, "n": [1, 2] * 6})
    frame.to_csv(tmp_path / "t.csv", index=False)
    shards = [
        load(table, frequency="n") for table in (frame, pl.from_pandas(frame), tmp_path / "t.csv")
    ]
    for shard in shards:
        assert shard.schema == shards[0].schema
        assert_array_equal(shard.numbers, shards[0].numbers)
    assert (shards[0].codes.shape, shards[0].numbers.shape) == ((18, 0), (18, 1))


@pytest.mark.parametrize(
    ("values", "word", "location", "scale", "transform"),
    [
        (AGES, "gaussian", 53.5, 14.1, "none"),
        ([2.0] * 5, "gaussian", 2.0, 1.0, "none"),
        # the quartiles are the same: the standard deviation
        ([0.0, *[5.0] * 20, 10.0], "gaussian", 5.0, 1.51, "none"),
        # three digits of a year would not be within the scale
        ([2018, 2019, 2019, 2021, 2023], "gaussian", 2019.0, 1.48, "none"),
        ([123_456.0, 234_567.0, 345_678.0], "gaussian", 235_000.0, 82_400.0, "none"),
        (np.exp([1.0, 2.0, 3.0]), "log-gaussian", 2.0, 0.741, "log"),
        ([1, 2, 4, 3, None, 1, 0], "poisson", 1.83, 1.0, "none"),
        ([0, 0], "poisson", 1.0, 1.0, "none"),
    ],
    ids=str,
)
def test_location_and_scale(values, word, location, scale, transform):
    table = pd.DataFrame({"x": values})
    shard = load(table, kinds={"x": word})
    expected = Variable("x", (), word.removeprefix("log-"), location, scale, transform)
    assert shard.schema.variables == (expected,)
    raw = table["x"].to_numpy(dtype=float)
    number = np.log(raw) if transform == "log" else raw
    number = number if word == "poisson" else (number - location) / scale
    assert_allclose(shard.numbers[:, 0], number, rtol=1e-12)
    # other rows are read in the units of the study
    assert_allclose(encode(table[:1], shard.schema).numbers, shard.numbers[:1])


def test_kinds_stand_beside_each_other_in_order():
    table = pd.DataFrame({"visits": WHOLE, "age": AGES, "sex": list("fm") * 6, "crp": WHOLE})
    shard = load(table, kinds={"visits": "poisson"})
    assert [v.name for v in shard.schema.variables] == ["sex", "age", "crp", "visits"]
    assert [cells.shape[1] for cells in shard.cells] == [1, 2, 1]
    assert_array_equal(shard.numbers[:, 2], WHOLE)
    assert shard.codes.flags.c_contiguous and shard.numbers.flags.c_contiguous


@pytest.mark.parametrize("missing", ["marginalise", "level"])
def test_a_value_of_many_rows_is_modelled_apart(missing, caplog):
    incomes = [0, 0, 0, None, *range(100, 1200, 100)]
    table = pd.DataFrame({"income": incomes, "age": np.linspace(20, 80, 15)})
    with caplog.at_level(logging.INFO, "silomix"):
        shard = load(table, missing=missing)
    (told,) = caplog.messages
    assert told == (
        "income, age are taken as numbers (gaussian, independent within a cluster); "
        "income is split into whether it is 0 and its other values; declare kinds to change that"
    )
    twin, income, _ = shard.schema.variables
    levels = ("no", "yes") + (MISSING_LEVEL,) * (missing == "level")
    assert twin == Variable("income is 0", levels, spike=0.0, source="income")
    assert (income.name, income.location, income.spike) == ("income", 600.0, 0.0)
    assert_array_equal(shard.codes[:, 0], [1, 1, 1, 2, *[0] * 11])
    assert_array_equal(np.isnan(shard.numbers[:, 0]), [True] * 4 + [False] * 11)
    # another table is read in the same way
    other = encode(table[2:5], shard.schema)
    assert_array_equal(other.codes, shard.codes[2:5])
    assert_array_equal(other.numbers, shard.numbers[2:5])
    # a declared number is not split, and none is that has fewer equal values
    declared = load(table, kinds={"income": "gaussian", "age": "gaussian"})
    assert [v.name for v in declared.schema.variables] == ["income", "age"]
    few = infer_schema(pd.DataFrame({"x": [0, 0, *range(1, 10)]}))
    assert [v.spike for v in few.variables] == [None]


def test_what_is_declared_is_not_told(caplog):
    table = pd.DataFrame({"age": AGES})
    with caplog.at_level(logging.INFO, "silomix"):
        infer_schema(table, kinds={"age": "gaussian"})
        infer_schema(table, bins={"age": 2})
        infer_schema(pd.DataFrame({"x": ["a", "b"]}))
    assert caplog.messages == []


def test_bins_are_levels_cut_at_quantiles():
    table = pd.DataFrame({"age": [*range(20, 100), None], "sex": ["f", *"m" * 80]})
    shard = load(table, bins={"age": 4})
    (age, _), codes = shard.schema.variables, shard.codes[:, 0]
    assert age.levels == ("below 39.8", "39.8 to 59.5", "59.5 to 79.2", "79.2 or more")
    assert age.edges == (39.8, 59.5, 79.2)
    assert np.bincount(codes).tolist() == [20, 20, 20, 20, 1]
    other = encode(pd.DataFrame({"age": [1e6, 59.5, -3], "sex": "f"}), shard.schema)
    assert other.codes[:, 0].tolist() == [3, 2, 0]
    (age, _) = infer_schema(table, bins={"age": 2}, missing="level").variables
    assert age.levels == ("below 59.5", "59.5 or more", MISSING_LEVEL)
    # quantiles that are the same make fewer levels
    (often,) = infer_schema(pd.DataFrame({"x": [1, 1, 1, 1, 5, 9]}), bins={"x": 4}).variables
    assert often.levels == ("below 4", "4 or more")


NUMBER = Schema((Variable("x", kind="gaussian"),))
LOG = Schema((Variable("x", kind="gaussian", transform="log"),))
COUNT = Schema((Variable("x", kind="poisson", location=1.0),))
DAYS = [dt.date(2026, 1, day) for day in (1, 2, 3)]
REFUSED = {
    "word": (
        ["1", "two"],
        {"schema": NUMBER},
        "'x' has 'two' in data row 2, which is not a finite",
    ),
    "texts": (["a", "b"], {"kinds": {"x": "gaussian"}}, "'a' in data row 1, which is not a finite"),
    "infinite": ([1.0, np.inf], {"schema": NUMBER}, "'inf' in data row 2, which is not a finite"),
    "too large": (["1", "1e999"], {"schema": NUMBER}, "'1e999' in data row 2"),
    "underscore": (["1", "1_000"], {"schema": NUMBER}, "'1_000' in data row 2"),
    "comma": (["1", "1,5"], {"schema": NUMBER}, "'1,5' in data row 2"),
    "infinite, guessed": (
        [0.5, 1.5, np.inf],
        {},
        "'inf' in data row 3, which is not a finite number",
    ),
    "huge count": ([1, 1e30], {"schema": COUNT}, "in data row 2, which is not a count"),
    "negative count": ([1, -2], {"schema": COUNT}, "-2 in data row 2, which is not a count"),
    "part of a count": ([0.5, 2], {"kinds": {"x": "poisson"}}, "0.5 in data row 1, which is no"),
    "no logarithm": (
        [1, 0, -2],
        {"kinds": {"x": "log-gaussian"}},
        "'x' has 2 values not above zero, the first 0 in data row 2, and zero or less has no",
    ),
    "logarithm of a silo": ([1, 0], {"schema": LOG}, "'x' has 1 value not above zero"),
    "dates": (
        pl.Series(DAYS),
        {},
        "'x' has dates or times, such as '2026-01-01'; leave it out with",
    ),
    "times": (pd.to_datetime(DAYS), {}, "or turn it into a number, such as an age"),
    "a code of another program": (
        [*range(20, 60), 8.99e307],
        {"kinds": {"x": "gaussian"}},
        "8.99e+307 in data row 41, which is too far from the other numbers: more than 1e+12 times",
    ),
    "identifier": ([*range(100, 160)], {}, "numbers the rows, 100 to 159, each once: looks"),
    "nothing": ([None, None], {"kinds": {"x": "gaussian"}}, "'gaussian' and is missing in every"),
    "one bin": ([1, 1, 1], {"bins": {"x": 2}}, "'x' cannot be cut into 2 levels"),
    "text to cut": (
        ["a", "b"],
        {"bins": {"x": 2}},
        "'a' in data row 1, which is not a finite number",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_numbers_that_cannot_be_used_are_refused(case):
    values, options, message = REFUSED[case]
    with pytest.raises(DataError, match=re.escape(message)):
        load(
            pl.DataFrame({"x": values}) if case == "dates" else pd.DataFrame({"x": values}),
            **options,
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kinds": {"Age": "gaussian"}},
            "kinds names 'Age', which is not among the variables (did",
        ),
        (
            {"bins": {"sex": 2}},
            "bins names 'sex', which is not among the variables; they are 'age'",
        ),
        (
            {"kinds": {"age": "normal"}},
            "kinds='normal' of 'age' is not known; choose one of 'categorical'",
        ),
        ({"bins": {"age": 1}}, "bins is 1; it must be a whole number, at least 2"),
        (
            {"bins": {"age": 2}, "kinds": {"age": "gaussian"}},
            "kinds makes 'age' a number, and bins cuts it into levels; give one of them",
        ),
        ({"kinds": {"age": "poisson"}, "schema": NUMBER}, "give schema or kinds, not both"),
    ],
)
def test_declarations_that_make_no_sense_are_refused(options, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(pd.DataFrame({"age": AGES}), **options)


def test_a_joint_column_that_is_alone_is_warned_of():
    table = pd.DataFrame({"x": np.arange(60.0) % 17, "y": np.arange(60.0) % 13})
    with pytest.warns(DataWarning, match="the same as 'gaussian'"):
        infer_schema(table, kinds={"x": "gaussian-full"})
    assert infer_schema(table, kinds=dict.fromkeys("xy", "gaussian-full")).numbers


def test_numbers_that_a_silo_lacks_are_warned_of():
    with pytest.warns(DataWarning, match="column 'x' is missing in every row"):
        shard = load(pd.DataFrame({"x": [None, np.nan]}), schema=NUMBER)
    assert np.isnan(shard.numbers).all()
