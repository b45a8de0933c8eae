from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from silomix.cli import as_option
from silomix.errors import DataError, DataWarning
from silomix.model.columns import LIKE_MISSING, alike, suspect
from silomix.model.reading import read_cells, read_table
from silomix.model.table import infer_schema, load


def problems(values, *, name="x", is_number=False, is_guess=True):
    cells = read_cells(read_table(pd.DataFrame({name: values}))[name], name)
    found = suspect(name, cells, is_number=is_number, is_guess=is_guess)
    found.pop("codes", None)
    return found.keys() - {"alike"}


MRN = [str(1_000_003 + 37 * place) for place in range(60)]
LEVELS = {
    "fine": (["no", "yes", "none", "other"] * 10, set()),
    "capitals": (["no", "NO", "yes"], {"spelling"}),
    "blanks": (["no", "no ", "yes"], {"spelling"}),
    "a word": (["no", "N/A", "yes"], {"missing"}),
    "a sign": (["no", ".", "yes"], {"missing"}),
    "a result": (["-", "+"], set()),
    "codes": (["0", "1", "-9"], {"missing"}),
    "a code among words": (["no", "yes", "9"], {"missing"}),
    "grades": ([str(grade) for grade in range(10)], set()),
    "signs of change": (["-1", "0", "1"], set()),
    "numbers and a word": ([*map(str, range(20)), "old"], {"words"}),
    "numbers with commas": ([f"{place},5" for place in range(20)], {"words"}),
    "free text": ([f"text {place}" for place in range(60)] * 2, {"many"}),
    "one value": (["UK"] * 20, set()),
    "ticks": (["X", None] * 10, {"ticks"}),
    "ticks in few rows": (["X", None] * 9, set()),
}
NUMBERS = {
    "fine": ([61.5, 44.0, 80.2, 99.0], "x", set()),
    "beyond a range without gaps": ([*range(28, 78), 99], "x", {"missing"}),
    "beyond a range with gaps": ([*range(20, 78, 6), 99], "x", set()),
    "far off": ([61, 44, 80, 999], "x", {"missing"}),
    "below zero": ([61.5, 44, 80, -9], "x", {"missing"}),
    "among others below zero": ([-3.5, 4, 8, -9], "x", set()),
    "a spike among others": ([*range(70, 120)] * 2 + [99] * 20, "x", {"missing"}),
    "a spike below zero": ([place / 7 for place in range(-99, 99)] + [-9] * 10, "x", {"missing"}),
    "a spike of few rows": ([place / 7 for place in range(-99, 99)] + [-9] * 8, "x", set()),
    "no higher than its neighbours": ([*range(60, 120)] * 5 + [98] * 20 + [99] * 60, "x", set()),
    "a number that is often rounded": ([*range(60, 120)] + [100] * 50 + [99] * 9, "x", set()),
    "a nine": ([1, 2.5, 3, 9], "x", set()),
    "long and all different": (MRN, "x", {"identifier"}),
    "long and often the same": (MRN * 2, "x", set()),
    "by name": ([*range(40, 60)] * 2, "patientID", {"identifier"}),
    "by another name": ([*range(40, 60)] * 2, "Case No", {"identifier"}),
    "a name that ends alike": ([*range(40, 60)] * 2, "fluid", set()),
}


@pytest.mark.parametrize("case", LEVELS)
def test_what_is_odd_about_levels(case):
    values, expected = LEVELS[case]
    assert problems(values) == expected


@pytest.mark.parametrize("case", NUMBERS)
def test_what_is_odd_about_numbers(case):
    values, name, expected = NUMBERS[case]
    assert problems(values, name=name, is_number=True) == expected


def test_what_was_declared_is_not_doubted():
    assert problems(MRN, is_number=True, is_guess=False) == set()
    assert problems([f"text {place}" for place in range(60)] * 2, is_guess=False) == set()


def test_texts_that_differ_in_what_nobody_sees():
    assert alike(["no", "No ", "yes", "NO", "n o"]) == [["NO", "No ", "no"]]
    assert all(map(LIKE_MISSING.fullmatch, ["n/a", "#n/a", "na", "unknown", "(missing)", "??"]))
    assert not any(map(LIKE_MISSING.fullmatch, ["none", "no", "other", "nk1", "b"]))


def test_each_problem_is_told_once_for_all_columns_and_nothing_is_changed():
    rng = np.random.default_rng(1)
    sex = rng.choice(["f", "m"], 80)
    table = pd.DataFrame({"sex": sex, "gender": np.where(sex == "f", "2", "1"), "site": "A"})
    table["smoker"] = rng.choice(["no", "No", "unknown"], 80)
    table["drinks"] = rng.choice(["no", "n/a"], 80)
    with pytest.warns(DataWarning) as told:
        shard = load(table)
    texts = [str(warning.message) for warning in told]
    named = [{name for name in table if repr(name) in text} for text in texts]
    assert named == [{"smoker"}, {"smoker", "drinks"}, {"sex", "gender"}]
    assert shard.schema.variables[3].levels == ("No", "no", "unknown")
    infer_schema(table, variables=["sex", "site"])  # columns that are left out are not looked at


def test_columns_that_differ_in_every_row_are_not_alike():
    rng = np.random.default_rng(1)
    numbers = rng.normal(size=(40, 2)).round(6)
    infer_schema(pd.DataFrame(numbers, columns=["a", "b"]))
    with pytest.warns(DataWarning, match="'a' and 'c'"):
        infer_schema(pd.DataFrame({"a": numbers[:, 0], "b": numbers[:, 1], "c": numbers[:, 0]}))


def test_ticks_are_no_problem_where_a_missing_cell_is_a_level():
    table = pd.DataFrame({"x": ["X", None] * 10, "y": [*"ab"] * 9 + ["a", "a"]})
    with pytest.warns(DataWarning, match="give missing='level'"):
        infer_schema(table)
    infer_schema(table, missing="level")


@pytest.mark.parametrize("name", ["blood pressure", "a\x1b[31mge"])
def test_codes_are_given_as_a_shell_takes_them(name):
    table = pd.DataFrame({name: ["no", "unknown"] * 20, "b": ["x", "y", "y", "x"] * 10})
    with pytest.warns(DataWarning) as told:
        infer_schema(table)
    (text,) = (str(each.message.worded(as_option)) for each in told)
    assert text.isprintable()
    assert text.endswith(" --na-value 'blood pressure=unknown'") == name.isprintable()


def test_what_is_odd_is_told_with_what_is_refused():
    table = pd.DataFrame({"smoker": ["no", "unknown"] * 20, "seen": ["2026-01-31"] * 40})
    with (
        pytest.raises(DataError, match="'seen'"),
        pytest.warns(DataWarning, match="'smoker' has 'unknown' in 20 rows"),
    ):
        infer_schema(table)
