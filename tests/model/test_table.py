from __future__ import annotations

import datetime as dt
import gzip
import re
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from pyarrow import parquet

from silomix.errors import DataError, DataWarning, MissingDependency, SettingsError
from silomix.model.reading import read_table
from silomix.model.schema import MISSING_LEVEL, Schema, Variable
from silomix.model.table import UNOBSERVED_LEVEL, encode, expand, infer_schema, load

COLOURS = Schema((Variable("colour", ("blue", "red")), Variable("size", ("1", "2", "3"))))


def levels(table, **options):
    return {v.name: v.levels for v in infer_schema(table, **options).variables}


def every_form(columns, folder):
    """The same columns as each kind of frame and file that is read."""
    frame = pl.DataFrame(columns)
    arrow = pa.table(columns)
    frame.write_csv(folder / "table.csv")
    parquet.write_table(arrow, folder / "table.parquet")
    return {
        "pandas": pd.DataFrame(columns),
        "pandas nullable": pd.DataFrame(columns).convert_dtypes(),
        "polars": frame,
        "polars lazy": frame.lazy(),
        "Arrow": arrow,
        "CSV": folder / "table.csv",
        "Parquet": str(folder / "table.parquet"),
    }


MIXED = {
    "whole": [10, 9, None, 10, 2],
    "number": [1.0, 2.5, float("nan"), -3.0, 1.0],
    "flag": [True, None, False, True, True],
    "text": ["b", "a", None, "c d", "b"],
    "padded": ["01", "1", "10", None, "01"],
    "day": [dt.date(2026, 1, 31), dt.date(2025, 2, 1), None, None, dt.date(2026, 1, 31)],
    "constant": ["x"] * 5,
}
MIXED_LEVELS = {
    "whole": ("2", "9", "10"),
    "number": ("-3", "1", "2.5"),
    "flag": ("false", "true"),
    "text": ("a", "b", "c d"),
    "padded": ("01", "1", "10"),
    "day": ("2025-02-01", "2026-01-31"),
    "constant": ("x",),
}
MIXED_CODES = [
    [2, 1, 1, 1, 0, 1, 0],
    [1, 2, 2, 0, 1, 0, 0],
    [3, 3, 0, 3, 2, 2, 0],
    [2, 0, 1, 2, 3, 2, 0],
    [0, 1, 1, 1, 0, 1, 0],
]


@pytest.mark.parametrize(
    "form",
    ["pandas", "pandas nullable", "polars", "polars lazy", "Arrow", "CSV", "Parquet"],
)
def test_every_form_gives_the_same_schema_and_codes(form, tmp_path):
    declared = dict.fromkeys(["number", "day"], "categorical")
    shard = load(every_form(MIXED, tmp_path)[form], kinds=declared)
    assert {v.name: v.levels for v in shard.schema.variables} == MIXED_LEVELS
    assert_array_equal(shard.codes, MIXED_CODES)
    assert shard.codes.dtype == np.uint8
    assert shard.codes.flags.c_contiguous


words = st.text("abc1.0-", min_size=1, max_size=3).filter(lambda word: word != "NaN")
a_column = st.sampled_from(
    [
        st.integers(-20, 20),
        st.integers(-20, 20).map(lambda value: value / 4),
        st.booleans(),
        words,
        st.sampled_from(["True", "FALSE", "1.0", "1", "-0.0", "0", "1e5", "007"]),
    ]
)


@st.composite
def some_columns(draw):
    rows = draw(st.integers(2, 8))
    names = draw(st.lists(st.sampled_from("uvwxyz"), min_size=2, max_size=4, unique=True))
    cells = {name: draw(a_column) for name in names}
    return {
        # a first cell that is not missing, so that the type of the column is known
        name: [draw(cell), *draw(st.lists(st.none() | cell, min_size=rows, max_size=rows))]
        for name, cell in cells.items()
    }


@pytest.mark.filterwarnings("ignore::silomix.errors.DataWarning")
@settings(max_examples=25, deadline=None)
@given(columns=some_columns(), missing=st.sampled_from(["marginalise", "level"]))
def test_forms_agree_whatever_the_cells(tmp_path_factory, columns, missing):
    shards = {
        form: load(table, missing=missing)
        for form, table in every_form(columns, tmp_path_factory.mktemp("forms")).items()
    }
    expected = shards.pop("polars")
    for form, shard in shards.items():
        assert shard.schema == expected.schema, form
        assert_array_equal(shard.codes, expected.codes, err_msg=form)
        assert (shard.numbers is None) == (expected.numbers is None)
        assert_array_equal(shard.numbers, expected.numbers, err_msg=form)


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (1, "1"),
        (1.0, "1"),
        ("1.0", "1"),
        (-0.0, "0"),
        (2.5, "2.5"),
        (True, "true"),
        ("TRUE", "true"),
        (1e16, "1e+16"),
        ("01", "01"),
        ("1E5", "1E5"),
        (dt.datetime(2026, 1, 31), "2026-01-31"),
        (dt.datetime(2026, 1, 31, 4, 5), "2026-01-31T04:05:00"),
    ],
)
def test_a_value_has_one_spelling(value, level):
    table = pd.DataFrame({"x": [value, value]})
    assert levels(table, kinds={"x": "categorical"}) == {"x": (level,)}


def test_nan_and_null_are_both_missing():
    arrow = pa.table({"x": [1.0, float("nan"), None, 0.5]})
    for table in (arrow, pl.from_arrow(arrow), arrow.to_pandas(types_mapper=pd.ArrowDtype)):
        assert_array_equal(load(table).codes[:, 0], [1, 2, 2, 0])


def test_declared_categories_keep_order_and_the_unobserved(tmp_path):
    declared, seen = ["low", "mid", "high"], ["high", None, "low"]
    ordered = pd.DataFrame({"x": pd.Categorical(seen, declared, ordered=True)})
    ordered.to_parquet(tmp_path / "ordered.parquet")
    tables = [
        ordered,
        pd.DataFrame({"x": pd.Categorical(seen, declared)}),
        pl.DataFrame({"x": pl.Series(seen, dtype=pl.Enum(declared))}),
        pl.DataFrame({"x": pl.Series(seen, dtype=pl.Enum(declared))}).to_arrow(),
        tmp_path / "ordered.parquet",
    ]
    for table in tables:
        shard = load(table)
        assert shard.schema.variables[0].levels == ("low", "mid", "high")
        assert_array_equal(shard.codes[:, 0], [2, 3, 0])


def test_categories_of_a_text_file_are_not_declared(tmp_path):
    (tmp_path / "t.csv").write_text("x,n\n10,1\n9,2\nb,0\n10,1\n")
    frame = read_table(tmp_path / "t.csv")
    assert levels(frame, variables=["x"]) == {"x": ("10", "9", "b")}
    assert levels(expand(frame, "n")) == {"x": ("9", "10")}
    assert levels(frame.filter([True, True, False, True]))["x"] == ("9", "10")


def test_long_text_file_is_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("silomix.model.reading.BLOCK_ROWS", 3)
    cells = ["", "", "", "b", "a", "", "01", "a"]
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{cell},1\n" for cell in cells))
    shard = load(tmp_path / "t.csv")
    assert shard.schema.variables[0].levels == ("01", "a", "b")
    assert_array_equal(shard.codes[:, 0], [3, 3, 3, 2, 1, 3, 0, 1])


def test_zipped_and_tabbed_text(tmp_path):
    (tmp_path / "t.tsv").write_text("x\ty\na\tNA\nb,c\tNaN\n\tz\n")
    with gzip.open(tmp_path / "T.CSV.GZ", "wt") as file:
        file.write('x,y\na,NA\n"b,c",NaN\n,z\n')
    shards = [load(tmp_path / "t.tsv"), load(tmp_path / "T.CSV.GZ")]
    for shard in shards:
        assert shard.schema.levels == [("x", "a"), ("x", "b,c"), ("y", "z")]
        assert_array_equal(shard.codes, [[0, 1], [1, 1], [2, 0]])


@pytest.mark.filterwarnings("ignore::silomix.errors.DataWarning")
@pytest.mark.parametrize(("size", "kind"), [(255, np.uint8), (256, np.uint16)])
def test_smallest_type_that_holds_the_missing_code(size, kind):
    texts = [f"level {place}" for place in range(size)]
    shard = load(pl.DataFrame({"x": [*texts, texts[0], None], "y": ["a"] * (size + 2)}))
    assert shard.codes.dtype == kind
    assert shard.codes[-1, 0] == size
    assert shard.schema.sizes.tolist() == [size, 1]


def test_missing_as_a_level_only_where_there_are_missing_cells():
    shard = load(pd.DataFrame({"x": ["z", None, "a"], "y": [1, 2, 1]}), missing="level")
    assert shard.schema == Schema(
        (Variable("x", ("a", "z", MISSING_LEVEL)), Variable("y", ("1", "2"))), "level"
    )
    assert_array_equal(shard.codes, [[1, 0], [2, 1], [0, 0]])


@pytest.mark.parametrize(
    ("missing", "level", "code"),
    [("marginalise", UNOBSERVED_LEVEL, 1), ("level", MISSING_LEVEL, 0)],
)
def test_column_missing_in_full_keeps_its_place(missing, level, code):
    frame = pl.DataFrame({"x": [None, None], "y": ["a", "b"]})
    with pytest.warns(DataWarning, match="the table: column 'x' is missing in every row") as seen:
        shard = load(frame, missing=missing)
    assert len(seen) == 1
    assert shard.schema.variables[0].levels == (level,)
    assert_array_equal(shard.codes, [[code, 0], [code, 1]])


@pytest.mark.parametrize("counts", [[2, 0, 3], [2.0, 0.0, 3.0], ["2", "0", "3"]])
def test_frequency_repeats_rows_and_drops_zeros(counts, tmp_path):
    columns = {"x": ["b", "z", None], "n": counts}
    for table in every_form(columns, tmp_path).values():
        shard = load(table, frequency="n")
        assert shard.schema == Schema((Variable("x", ("b",)),))
        assert_array_equal(shard.codes[:, 0], [0, 0, 1, 1, 1])


TWICE = pd.DataFrame({"x": ["a", "b"]})
MANY = Schema((Variable("x", tuple(f"l{place}" for place in range(12))),))
COUNTS = pd.DataFrame({0: ["a", "b"], "n": [1, 2]})
REFUSED = {
    "broken count": (COUNTS.assign(n=[1, 1.5]), {"frequency": "n"}, "'n' has '1.5' in data row 2"),
    "no count": (COUNTS.assign(n=[1, None]), {"frequency": "n"}, "a missing cell in data row 2"),
    "word for a count": (COUNTS.assign(n=["two", "1"]), {"frequency": "n"}, "'two' in data row 1"),
    "huge count": (COUNTS.assign(n=["1", "9" * 25]), {"frequency": "n"}, "more than 1000000000"),
    "unseen level": (
        pd.DataFrame({"colour": ["red", "green"], "size": 1, "n": [5, 1]}),
        {"schema": COLOURS, "frequency": "n", "where": "Leeds"},
        "Leeds, rows repeated by 'n': column 'colour' has 'green' in data row 6, not among its",
    ),
    "of many levels": (
        TWICE,
        {"schema": MANY},
        "(NA or None in a frame); otherwise add it to the schema of all silos",
    ),
    "missing cell": (
        pd.DataFrame({"x": ["a", None]}),
        {"schema": Schema((Variable("x", ("a", "b")),), missing="level")},
        "a level of its own here ('(missing)'), in data row 2, not among its levels 'a', 'b'; add",
    ),
    "no rows": (pl.DataFrame({"x": []}), {}, "the table has no rows; give"),
    "one row": (TWICE[:1], {}, "the table has a single row, and clusters need at least 2"),
    "blank level": (pl.DataFrame({"x": ["a", ""]}), {}, "'x' has blank cells"),
    "spelled otherwise": (
        pd.DataFrame({"colour": ["red", "Blue "], "size": 1}),
        {"schema": COLOURS},
        "'Blue ' (did you mean 'blue'?) in data row 2, not among its levels",
    ),
    "decimal commas": (
        pd.DataFrame({"x": [f"{place},5" for place in range(60)], "y": "a"}),
        {},
        "write its numbers with a decimal point",
    ),
    "days of another country": (
        pd.DataFrame({"x": [f"{place % 28 + 1}.0{place % 9 + 1}.2026" for place in range(60)]}),
        {},
        "'x' has dates or times, such as '1.01.2026'; leave it out with exclude=..., or turn it",
    ),
    "identifier": (
        pl.DataFrame({"id": [*(f"patient {place}" for place in range(51)), None]}),
        {},
        "'id' has 51 texts, all different, such as 'patient",
    ),
    "misspelt": (TWICE.assign(smoker=1), {"variables": ["x", "Smokr"]}, "(did you mean 'smoker'?)"),
    "no such column": (TWICE, {"variables": ["zzz"]}, "no column 'zzz'; its columns are 'x'"),
    "column of the schema": (TWICE, {"schema": COLOURS, "where": "Leeds"}, "Leeds has no column"),
    "no variables": (TWICE, {"variables": []}, "no variables to use; name at least one"),
    "named twice": (TWICE, {"variables": ["x", "x"]}, "variable 'x' is named more than once"),
    "a silo column": (TWICE, {"variables": ["x"], "silo": "x"}, "'x' names the silos and is among"),
    "lists": (pl.DataFrame({"x": [[1], [2]]}), {}, "'x' has cells of type List(Int64); split it"),
    "dicts": (pd.DataFrame({"x": [{"a": 1}, {"a": 2}]}), {}, "'x' has cells of type dict; split"),
    "not a table": ([1, 2], {}, "cannot read a list as a table; give a pandas"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_cannot_be_used_is_refused_by_what_is_wrong(case):
    table, options, message = REFUSED[case]
    with pytest.raises(DataError, match=re.escape(message)):
        load(table, **options)


def test_all_columns_that_cannot_be_used_are_named_at_once():
    table = pd.DataFrame({"id": range(60), "name": [f"patient {place}" for place in range(60)]})
    table["day"] = pd.Timestamp("2026-01-31")
    with pytest.raises(DataError) as refused:
        load(table.assign(x="a"))
    text = str(refused.value)
    assert [repr(name) in text for name in ("id", "name", "day", "x")] == [True] * 3 + [False]
    assert refused.value.settings.keys() == {"exclude", "id", "kinds", "na_values", "schema"}
    with pytest.raises(DataError, match="no column 'colour', 'size'; its columns are 'id'"):
        load(table, schema=COLOURS)
    with pytest.raises(DataError, match=r"'a' to exclude, 'Day' to exclude \(did you mean"):
        load(table, exclude=["a", "Day"])


def test_new_rows_are_looked_at_and_all_that_is_wrong_with_them_is_named():
    known = pd.DataFrame(
        {"age": [*range(30, 60)], "sex": ["f", "m"] * 15, "stage": ["I", "II", "III"] * 10}
    )
    schema = infer_schema(known)
    with pytest.warns(DataWarning, match=r"'age' has '-9' in 2 rows.*missing cell, leave it"):
        encode(known.assign(age=[-9, -9, *range(30, 58)]), schema)
    new = known.assign(age=["old", *range(31, 60)], sex=["x", "F", *["f"] * 28])
    with pytest.raises(DataError) as refused:
        encode(new, schema)
    lines = str(refused.value).splitlines()
    assert [line.split("'")[1] for line in lines] == ["sex", "age"]
    assert "'x' in data row 1, 'F' (did you mean 'f'?) in data row 2, not among" in lines[0]
    assert lines[0].endswith("recode it, or fit again with rows that have it")


WRITTEN = [
    "%Y-%m-%d",
    "%d.%m.%Y",
    "%m/%d/%y",
    "%Y/%m/%d %H:%M",
    "%d-%b-%Y",
    "%d%b%Y",
    "%B %d, %Y",
    "%Y%m%d",
]


@pytest.mark.parametrize("form", WRITTEN)
def test_dates_in_text_are_refused_as_dates_unless_they_are_declared(form):
    days = [*pd.date_range("2026-01-01", periods=12).strftime(form), "unknown"] * 2
    with pytest.raises(DataError, match=r"has dates or times, such as .* age or the days since"):
        load(pd.DataFrame({"x": days}))
    with pytest.warns(DataWarning, match="'unknown' in 2 rows"):
        assert len(levels(pd.DataFrame({"x": days}), kinds={"x": "categorical"})["x"]) == 13


@pytest.mark.parametrize(
    "texts", [["2.5", "10.12"], ["1-2", "3-4"], ["12 years", "13 years"], ["20261301"]]
)
def test_other_texts_are_no_dates(texts):
    load(pd.DataFrame({"x": [*texts, "a"]}))


def test_columns_are_chosen_or_left_out():
    table = pd.DataFrame({"a": ["x", "y"], "b": ["x", "y"], "c": ["x", "y"]})
    assert [*levels(table, exclude=["a", "c"])] == [*levels(table, exclude="c", silo="a")] == ["b"]
    with pytest.raises(SettingsError, match="variables and exclude both say which columns"):
        load(table, exclude="a", variables="b")


def test_codes_for_missing_cells_are_named_for_all_columns_or_some(tmp_path):
    answers = pd.CategoricalDtype(["yes", "no", "unknown"], ordered=True)
    coded = pd.DataFrame({"grade": [1, 2, -9, 99], "paid": ["0", "0.0", "99.90", "-9"]})
    coded["smoker"] = pd.Series(["no", "unknown", "-9", "yes"], dtype=object)
    coded["told"] = pd.Series(["yes", "no", "unknown", "yes"], dtype=answers)
    coded = pd.concat([coded, coded.assign(paid=["5.5", "1.5", "2.5", "99.9"])])
    codes = [-9, "unknown", {"grade": 99.0, "paid": ["99.9"]}]
    plain = pd.DataFrame({"grade": [1, 2, None, None], "paid": [0, 0, None, None]})
    plain["smoker"] = ["no", None, None, "yes"]
    plain["told"] = pd.Series(["yes", "no", None, "yes"], dtype=answers.__class__(["yes", "no"]))
    plain = pd.concat([plain, plain.assign(paid=[5.5, 1.5, 2.5, None])])
    coded.to_csv(tmp_path / "t.csv", index=False)
    expected = load(plain)
    assert [variable.name for variable in expected.schema.variables][-1] == "paid"
    for table in (coded, pl.from_pandas(coded.astype({"told": str})), tmp_path / "t.csv"):
        found = load(table, na_values=codes)
        assert found.missing.tolist() == expected.missing.tolist()
        if table is coded:
            assert_array_equal(found.codes, expected.codes)
            assert_array_equal(found.numbers, expected.numbers)
            bare = [replace(v, na_values=()) for v in found.schema.variables]
            assert tuple(bare) == expected.schema.variables
        # new rows are read in the same way
        assert_array_equal(encode(table, found.schema).codes, found.codes)
    assert found.schema.variables[-1].na_values == ("-9", "unknown", "99.9")


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ({"Smoker": -9}, "na_values names 'Smoker', which the table does not have (did you mean"),
        ([[1, [2]]], "na_values has a value of type list; give texts and numbers"),
    ],
)
def test_codes_that_are_none_are_refused(codes, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(pd.DataFrame({"smoker": ["no", "yes"]}), na_values=codes)
    with pytest.raises(SettingsError, match="give schema or na_values, not both"):
        load(TWICE, schema=COLOURS, na_values=-9)


def test_cells_of_blanks_are_named_with_the_cure():
    table = pd.DataFrame({"x": ["a", " ", "b"]})
    with pytest.raises(DataError, match="has blank cells; give na_values=' '"):
        load(table)
    assert load(table, na_values=" ").missing.tolist() == [1]


@pytest.mark.filterwarnings("ignore::silomix.errors.DataWarning")
def test_continuous_column(tmp_path):
    values, cure = [*range(51), "many"], "give na_values=... for cells such as 'many'"
    frame = pd.DataFrame({"x": values * 2, "y": "a"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for table in (frame, tmp_path / "t.csv"):
        with pytest.raises(DataError, match=f"column 'x' has 51 distinct .* continuous: {cure}"):
            load(table)
    # a few levels are no continuous column, nor are those that a schema names, or a declaration
    assert len(levels(frame, kinds={"x": "categorical"})["x"]) == len(values)
    assert len(levels(frame.iloc[2:52])["x"]) == 50
    schema = Schema((Variable("x", tuple(map(str, range(51)))),))
    assert_array_equal(encode(pl.DataFrame({"x": range(51)}), schema).codes[:, 0], range(51))


SEPARATED = {
    "semicolons.csv": 'x;y;z\n"a;b";1,5;1,2\n;2;a\n',
    "tabs.csv": "x\ty\tz\na;b\t1,5\t1,2\n\t2\ta\n",
    "bars.csv": '\ufeff"x"|"y"|"z"\r\na;b|1,5|1,2\r\n|2|a\r\n',
    "named.csv": 'sep=;\nx;y;z\n"a;b";1,5;1,2\n;2;a\n',
    "commas.tsv": 'x,y,z\na;b,"1,5","1,2"\n,2,a\n',
}


@pytest.mark.parametrize("name", SEPARATED)
def test_another_separator_is_found(name, tmp_path):
    """A comma between digits is then a decimal sign, but where other cells have words."""
    (tmp_path / name).write_text(SEPARATED[name], encoding="utf-8", newline="")
    is_comma = name == "commas.tsv"
    with nullcontext() if is_comma else pytest.warns(DataWarning) as told:
        found = read_table(tmp_path / name)
    assert found["x"].to_list()[0] == "a;b" and found["x"].is_null().to_list() == [False, True]
    assert found["y"].to_list() == ["1,5" if is_comma else "1.5", "2"]
    assert found["z"].to_list() == ["1,2" if is_comma else "1.2", "a"]
    if told:
        assert [("'y', 'z'" in str(warning.message)) for warning in told] == [True]


@pytest.mark.parametrize("cells", ["1.234,5;2", "a, b;2", "1.5;2,5"])
def test_commas_that_are_no_decimal_signs_are_left_alone(cells, tmp_path):
    (tmp_path / "t.csv").write_text(f"x;y\n{cells}\n2,5;1\n1.5;1\n")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*numbers of 'y'", DataWarning)
        found = read_table(tmp_path / "t.csv")["x"].to_list()
    assert found == [cells.partition(";")[0], "2,5", "1.5"]


UNREADABLE = {
    "empty.csv": (b"", "is empty"),
    "t.xlsx": (b"x", "unknown kind of file"),
    "shorter.csv": (b"x;y;z\na;b;c\na;b\n", "looks separated by ';', but its lines differ"),
    "twice.csv": (b"x,y,x\na,b,c\n", r"'x'.*rename or drop"),
    "blank.csv": (b"\n\n", "is empty"),
    "longer.csv": (b"x,y\na,b\na,b,c\n", "cannot be read"),
    "all_longer.csv": (b"x,y\na,b,c\na,b,c\n", "cannot be read"),
    "latin.csv": (b"x,y\n\xe9,b\n", "cannot be read: the text is not UTF-8"),
    "not_zipped.csv.gz": (b"x,y\na,b\n", "cannot be read"),
    "cut.csv.gz": (gzip.compress(b"x,y\n" + b"a,b\n" * 99)[:-9], "cannot be read"),
    "text.parquet": (b"x,y\na,b\n", "cannot be read"),
}


@pytest.mark.filterwarnings("default")  # a refusal must not need warnings to be errors
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read(name, tmp_path):
    with pytest.raises(DataError, match=f"{name}: .*(no such file|unknown kind)"):
        read_table(tmp_path / name)
    content, complaint = UNREADABLE[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"(?s){name}: .*{complaint}"):
        read_table(tmp_path / name)


def test_a_blank_line_of_a_single_column_is_a_row(tmp_path):
    (tmp_path / "t.csv").write_text("x\na\n\nb\n")
    assert_array_equal(load(tmp_path / "t.csv").codes[:, 0], [0, 2, 1])


def test_short_floats_gain_no_digits():
    values = np.array([0.1, 2.0, np.nan], dtype=np.float32)
    for table in (pd.DataFrame({"x": values}), pl.DataFrame({"x": values})):
        assert levels(table) == {"x": ("0.1", "2")}


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    pd.DataFrame({"x": ["a", "b"]}).to_parquet(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install 'silomix\[data\]'"):
        read_table(tmp_path / "t.parquet")
