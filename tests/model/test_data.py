from __future__ import annotations

import datetime as dt
import gzip
import re
import sys

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

# small tables often have a column of one value; test_columns_of_one_value_are_warned_of hears it
pytestmark = pytest.mark.filterwarnings("ignore:.*only one value in:silomix.errors.DataWarning")

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
    shard = load(every_form(MIXED, tmp_path)[form])
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


@pytest.mark.filterwarnings("ignore:.*stands for a missing cell:silomix.errors.DataWarning")
@settings(max_examples=40, deadline=None)
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


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (1, "1"),
        (1.0, "1"),
        ("1.0", "1"),
        ("1.00", "1"),
        (-0.0, "0"),
        (2.5, "2.5"),
        (True, "true"),
        ("TRUE", "true"),
        ("False", "false"),
        (1e16, "1e+16"),
        ("01", "01"),
        ("01.0", "01.0"),
        ("1E5", "1E5"),
        (" a", " a"),
        (dt.datetime(2026, 1, 31), "2026-01-31"),
        (dt.datetime(2026, 1, 31, 4, 5), "2026-01-31T04:05:00"),
    ],
)
def test_a_value_has_one_spelling(value, level):
    assert levels(pd.DataFrame({"x": [value, value]})) == {"x": (level,)}


def test_short_floats_gain_no_digits():
    values = np.array([0.1, 2.0, np.nan], dtype=np.float32)
    nullable = pd.DataFrame({"x": values}).convert_dtypes()
    for table in (pd.DataFrame({"x": values}), pl.DataFrame({"x": values}), nullable):
        assert levels(table) == {"x": ("0.1", "2")}


def test_spellings_of_one_value_share_a_code():
    shard = load(pd.DataFrame({"x": [1, "1.0", "1", 1.0, "True", True, "a", None]}))
    assert shard.schema.variables[0].levels == ("1", "a", "true")
    assert_array_equal(shard.codes[:, 0], [0, 0, 0, 0, 2, 2, 1, 3])


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


def test_undeclared_categories_are_sorted_and_observed():
    packed = pl.DataFrame({"x": pl.Series(["10", "9", "10"], dtype=pl.Categorical)})
    assert levels(packed) == levels(packed.to_arrow()) == {"x": ("9", "10")}


def test_declared_numbers_may_be_many():
    frame = pd.DataFrame({"age": pd.Categorical(range(60))})
    assert len(levels(frame)["age"]) == 60


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


def test_blank_line_of_a_single_column_is_a_row(tmp_path):
    (tmp_path / "t.csv").write_text("x\na\n\nb\n")
    assert_array_equal(load(tmp_path / "t.csv").codes[:, 0], [0, 2, 1])


def test_column_names_become_text():
    frame = pd.DataFrame(np.eye(3, dtype=int))
    assert list(levels(frame)) == ["0", "1", "2"]
    assert list(levels(frame, variables=[2])) == ["2"]


@pytest.mark.parametrize(("size", "kind"), [(255, np.uint8), (256, np.uint16)])
def test_smallest_type_that_holds_the_missing_code(size, kind):
    texts = [f"level {place}" for place in range(size)]
    shard = load(pl.DataFrame({"x": [*texts, texts[0], None], "y": ["a"] * (size + 2)}))
    assert shard.codes.dtype == kind
    assert shard.codes[-1, 0] == size
    assert shard.schema.sizes.tolist() == [size, 1]


def test_variables_choose_and_order_the_columns():
    frame = pd.DataFrame({"a": ["x", "y"], "b": ["u", "u"], "c": [1, 2]})
    shard = load(frame, variables=["c", "a"])
    assert [v.name for v in shard.schema.variables] == ["c", "a"]
    assert_array_equal(shard.codes, [[0, 0], [1, 1]])


def test_encode_follows_the_schema_and_ignores_other_columns():
    frame = pl.DataFrame({"size": [3, None], "extra": [[1], [2]], "colour": ["red", "blue"]})
    shard = encode(frame, COLOURS)
    assert shard.schema is COLOURS
    assert_array_equal(shard.codes, [[1, 2], [0, 3]])


def test_a_silo_of_one_row_is_enough_for_a_schema():
    frame = pd.DataFrame({"colour": ["red"], "size": [2]})
    assert_array_equal(encode(frame, COLOURS).codes, [[1, 1]])
    assert_array_equal(load(frame, schema=COLOURS).codes, [[1, 1]])


def test_missing_as_a_level_only_where_there_are_missing_cells():
    shard = load(pd.DataFrame({"x": ["z", None, "a"], "y": [1, 2, 1]}), missing="level")
    assert shard.schema == Schema(
        (Variable("x", ("a", "z", MISSING_LEVEL)), Variable("y", ("1", "2"))), "level"
    )
    assert_array_equal(shard.codes, [[1, 0], [2, 1], [0, 0]])


def test_missing_level_already_in_the_text_is_the_same_level():
    shard = load(pl.DataFrame({"x": ["z", None, MISSING_LEVEL]}), missing="level")
    assert shard.schema.variables[0].levels == ("z", MISSING_LEVEL)
    assert_array_equal(shard.codes[:, 0], [0, 1, 1])


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


def test_column_missing_in_one_silo_warns():
    frame = pd.DataFrame({"colour": [None, None], "size": [1, 2]})
    with pytest.warns(DataWarning, match="Leeds: column 'colour' is missing in every row"):
        shard = encode(frame, COLOURS, where="Leeds")
    assert_array_equal(shard.codes, [[2, 0], [2, 1]])


@pytest.mark.parametrize("counts", [[2, 0, 3], [2.0, 0.0, 3.0], ["2", "0", "3"]])
def test_frequency_repeats_rows_and_drops_zeros(counts, tmp_path):
    columns = {"x": ["b", "z", None], "n": counts}
    for table in every_form(columns, tmp_path).values():
        shard = load(table, frequency="n")
        assert shard.schema == Schema((Variable("x", ("b",)),))
        assert_array_equal(shard.codes[:, 0], [0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    ("count", "found"),
    [
        (-1, "'-1'"),
        (1.5, "'1.5'"),
        (None, "a missing cell"),
        ("two", "'two'"),
        (True, "'true'"),
    ],
)
def test_wrong_frequency(count, found):
    frame = pd.DataFrame({"x": ["a", "b", "c"], "n": pd.Series([1, count, -7], dtype=object)})
    message = f"Leeds: column 'n' has {found} in data row 2; a count of rows is whole"
    with pytest.raises(DataError, match=message):
        load(frame, frequency="n", where="Leeds")


@pytest.mark.parametrize("count", ["9" * 25, "2000000000"])
def test_counts_that_no_table_has(count):
    frame = pd.DataFrame({"x": ["a", "b"], "n": ["1", count]})
    message = "Leeds: column 'n': the counts add up to more than 1000000000 rows"
    with pytest.raises(DataError, match=message):
        load(frame, frequency="n", where="Leeds")


def test_names_of_columns_may_be_numbers():
    frame = pd.DataFrame({0: ["a", "b", "b"], 1: [2, 1, 0]})
    assert load(frame, frequency=1).rows == 3
    with pytest.raises(DataError, match="has no column '7'"):
        load(frame, frequency=7)


def test_unseen_level_names_column_level_row_known_levels_and_advice():
    frame = pd.DataFrame({"colour": ["red", "blue", "green", "green"], "size": 1})
    with pytest.raises(DataError) as caught:
        encode(frame, COLOURS, where="Leeds")
    assert str(caught.value) == (
        "Leeds: column 'colour' has 'green' in data row 3, not in its schema, which has "
        "'blue', 'red'; add it to the schema of all silos, or recode the column"
    )


def test_unseen_level_abbreviates_many_known_levels():
    schema = Schema((Variable("x", tuple(f"l{place}" for place in range(12))),))
    with pytest.raises(DataError, match="'l9' and 2 more; add it"):
        encode(pd.DataFrame({"x": ["other"]}), schema)


def test_unseen_level_after_frequency_says_that_rows_were_repeated():
    frame = pd.DataFrame({"colour": ["red", "green"], "size": 1, "n": [5, 1]})
    with pytest.raises(DataError, match=r"rows repeated by 'n': column .* in data row 6"):
        load(frame, schema=COLOURS, frequency="n")


def test_missing_cell_where_the_schema_has_no_such_level():
    schema = Schema((Variable("x", ("a", "b")),), missing="level")
    with pytest.raises(DataError, match=r"has a missing cell, .*'\(missing\)'.* in data row 2"):
        encode(pd.DataFrame({"x": ["a", None]}), schema)
    assert_array_equal(encode(pd.DataFrame({"x": ["a", "b"]}), schema).codes, [[0], [1]])


@pytest.mark.parametrize("frame", [pd.DataFrame({"x": []}), pl.DataFrame({"x": []})])
def test_no_rows(frame):
    with pytest.raises(DataError, match="the table has no rows; give"):
        load(frame)
    with pytest.raises(DataError, match="Leeds has no rows; give"):
        encode(frame, Schema((Variable("x", ("a",)),)), where="Leeds")


def test_no_columns():
    with pytest.raises(DataError, match="the table has no columns; give"):
        load(pd.DataFrame())
    with pytest.raises(DataError, match="has no columns; give"):
        load(pd.DataFrame({"n": [1, 2]}).drop(columns="n"))


def test_one_row_cannot_be_clustered():
    with pytest.raises(DataError, match=r"the table has a single row, .* at least 2"):
        infer_schema(pd.DataFrame({"x": ["a"]}))


@pytest.mark.parametrize("blank", ["", "  ", "\t"])
def test_level_of_white_space(blank):
    with pytest.raises(DataError, match=r"column 'x' has the level '.*', only white space"):
        load(pl.DataFrame({"x": ["a", blank]}))


def test_levels_that_differ_in_white_space():
    with pytest.raises(DataError, match="levels 'yes' and 'yes ', which differ only in white"):
        load(pd.DataFrame({"x": ["yes", "yes ", "no"]}))


@pytest.mark.parametrize(
    "values",
    [
        [place / 7 for place in range(51)],
        [*range(51), "?"],
        [dt.date(2026, 1, 1) + dt.timedelta(place) for place in range(51)],
        [dt.datetime(2026, 1, 1) + dt.timedelta(hours=place) for place in range(51)],
    ],
)
def test_continuous_column(values, tmp_path):
    frame = pd.DataFrame({"x": values * 2, "y": "a"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    for table in (frame, tmp_path / "t.csv"):
        with pytest.raises(DataError, match=r"column 'x' has 51 distinct .* looks continuous: bin"):
            load(table)
    assert len(levels(frame.iloc[:50])["x"]) == 50


def test_continuous_column_is_fine_when_the_schema_declares_it():
    schema = Schema((Variable("x", tuple(map(str, range(51)))),))
    assert_array_equal(encode(pl.DataFrame({"x": range(51)}), schema).codes[:, 0], range(51))


def test_identifier():
    texts = [f"patient {place}" for place in range(51)]
    with pytest.raises(DataError, match=r"'id' has 51 texts, all different, .* an identifier"):
        load(pl.DataFrame({"id": [*texts, None]}))
    assert len(levels(pl.DataFrame({"id": [*texts, texts[0]]}))["id"]) == 51
    assert len(levels(pl.DataFrame({"id": texts[:50]}))["id"]) == 50


def test_unknown_variable_suggests_the_nearest():
    frame = pd.DataFrame({"smoker": ["y", "n"], "age": [1, 2]})
    message = r"no column 'smokr' \(did you mean 'smoker'\?\); its columns are 'smoker', 'age'"
    with pytest.raises(DataError, match=message):
        load(frame, variables=["age", "smokr"])
    with pytest.raises(DataError, match="no column 'zzz'; its"):
        load(frame, variables=["zzz"])
    with pytest.raises(DataError, match="no column 'count'; its"):
        load(frame, frequency="count")


def test_column_of_the_schema_is_absent():
    with pytest.raises(DataError, match="Leeds has no column 'size'; its columns are 'colour'"):
        encode(pd.DataFrame({"colour": ["red"]}), COLOURS, where="Leeds")


def test_variables_must_be_some_and_named_once():
    frame = pd.DataFrame({"x": ["a", "b"]})
    with pytest.raises(DataError, match="no variables to use; name at least one"):
        load(frame, variables=[])
    with pytest.raises(DataError, match="variable 'x' is named more than once"):
        load(frame, variables=["x", "x"])


@pytest.mark.parametrize(
    ("cells", "kind"),
    [([[1], [2]], "list"), ([{"a": 1}, {"a": 2}], "dict"), ([b"a", b"b"], "bytes")],
)
def test_nested_cells(cells, kind):
    advice = "split it into columns"
    with pytest.raises(DataError, match=f"'x' has cells of type {kind}; {advice}"):
        load(pd.DataFrame({"x": cells}))
    for table in (pl.DataFrame({"x": cells}), pa.table({"x": cells})):
        with pytest.raises(DataError, match=f"'x' has cells of type .*; {advice}"):
            load(table)


def test_repeated_column_names(tmp_path):
    twice = pd.DataFrame([["a", "b"]], columns=["x", "x"])
    arrow = pa.table([pa.array(["a"]), pa.array(["b"])], names=["x", "x"])
    (tmp_path / "t.csv").write_text("x,y,x\na,b,c\n")
    for table in (twice, arrow):
        with pytest.raises(DataError, match=r"(?s)the table: .*'x' 2 times.*rename or drop"):
            read_table(table)
    with pytest.raises(DataError, match=r"t\.csv: column names \['x'\] stand more than once"):
        read_table(tmp_path / "t.csv")


def test_not_a_table():
    with pytest.raises(DataError, match="cannot read a list as a table; give a pandas"):
        read_table([1, 2])


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('"x";"y"\n"a";"b"\n', "looks separated by ';': save it with commas"),
        ("x\ty\na\tb\n", r"looks separated by '\\t': rename it to end in .tsv"),
    ],
)
def test_a_csv_with_other_separators(content, found, tmp_path):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(DataError, match=rf"t\.csv: has one column, 'x.*y.*', and {found}$"):
        read_table(tmp_path / "t.csv")


def test_texts_that_look_missing_are_warned_of(tmp_path):
    (tmp_path / "t.csv").write_text("x,y,z\n.,+,?\na,-,b\n.,+,NA\n")
    with pytest.warns(DataWarning) as told:
        schema = infer_schema(tmp_path / "t.csv")
    advice = "if it stands for a missing cell, leave these cells empty"
    assert [str(warning.message) for warning in told] == [
        f"the table: column 'x' has the level '.', in 2 of 3 rows; {advice}",
        f"the table: column 'z' has the level '?', in 1 of 3 rows; {advice}",
    ]
    assert schema.variables[0].levels == (".", "a")
    with pytest.warns(DataWarning, match="column 'x' has the level '-', in 1 of 2 rows"):
        infer_schema(pd.DataFrame({"x": ["-", "a"]}))


def test_columns_of_one_value_are_warned_of():
    frame = pd.DataFrame({"x": ["a", "a"], "y": ["a", "b"], "z": ["c", None]})
    message = (
        "the table: only one value in 'x', 'z', which tells nothing about the clusters; check that "
        "this is meant, or leave it out with variables=..."
    )
    with pytest.warns(DataWarning, match=re.escape(message)):
        infer_schema(frame)
    infer_schema(frame[["y", "z"]], missing="level")
    infer_schema(frame.astype({"x": pd.CategoricalDtype(["a", "b"])}), variables=["x", "y"])


def test_file_that_is_absent_or_of_unknown_kind(tmp_path):
    with pytest.raises(DataError, match=r"t\.csv: no such file; check the path"):
        read_table(tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"t\.xlsx: unknown kind of file; .* \.csv, .*\.parquet"):
        read_table(tmp_path / "t.xlsx")


@pytest.mark.parametrize("name", ["empty.csv", "empty.parquet"])
def test_a_file_with_nothing_in_it(name, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=f"{name}: the file is empty; check that it was written"):
        read_table(tmp_path / name)


@pytest.mark.filterwarnings("default")  # a refusal must not need warnings to be errors
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("blank.csv", b"\n\n"),
        ("longer.csv", b"x,y\na,b\na,b,c\n"),
        ("all_longer.csv", b"x,y\na,b,c\na,b,c\n"),
        ("latin.csv", b"x,y\n\xe9,b\n"),
        ("not_zipped.csv.gz", b"x,y\na,b\n"),
        ("cut.csv.gz", gzip.compress(b"x,y\n" + b"a,b\n" * 99)[:-9]),
        ("text.parquet", b"x,y\na,b\n"),
    ],
)
def test_file_that_cannot_be_read(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}: cannot be read: .*; repair or replace"):
        read_table(tmp_path / name)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    pd.DataFrame({"x": ["a", "b"]}).to_parquet(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"pip install 'silomix\[data\]'"):
        read_table(tmp_path / "t.parquet")


def test_settings_that_contradict_or_are_unknown():
    frame = pd.DataFrame({"colour": ["red", "blue"], "size": [1, 2]})
    with pytest.raises(SettingsError, match="give schema or variables, not both"):
        load(frame, schema=COLOURS, variables=["size"])
    with pytest.raises(SettingsError, match="missing='drop' is not known"):
        infer_schema(frame, missing="drop")
