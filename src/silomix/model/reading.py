"""Read a frame or file as an eager frame, and a column as distinct texts and codes.

A value has one spelling, whichever library holds it: 1, 1.0 and "1.0" are "1"; True, "True" and
"TRUE" are "true"; a day is "2026-01-31" with or without a midnight; everything else is its text.
Nulls and NaN are missing cells.
"""

from __future__ import annotations

import csv
import logging
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, get_args

import narwhals as nw
import numpy as np
import pandas as pd

from silomix.errors import DataError, DataWarning, MissingDependency, SettingsError, cell, warn
from silomix.model.sentences import did_you_mean, first_of, listing, quoted
from silomix.model.spreadsheet import from_spreadsheet

if TYPE_CHECKING:
    from narwhals.typing import IntoFrame

    from silomix.kernels.arrays import Bools, Floats, Ints

logger = logging.getLogger("silomix")

Table: TypeAlias = Union["IntoFrame", str, Path]
Backend = Literal["pandas", "polars", "pyarrow"]

# Attribute of a pandas frame that was read from a text file.
PACKED_TEXT = "silomix: the categories are how a text file was packed, not declared levels"

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
# Separators tried besides the one that the file's name implies.
SIGNS = (",", ";", "\t", "|")
# A separator is accepted if it splits this many lines into equally many columns.
FIRST_LINES = 20
BLOCK_ROWS = 20_000
# Errors of pandas and Arrow on damaged or unusable files.
UNREADABLE = (OSError, EOFError, ValueError, NotImplementedError, MemoryError, KeyError, zlib.error)

# What counts as a number in a column whose kind is guessed; "007", with leading zeros, is a name.
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))\.0+", re.ASCII)
COMMA_NUMBER = re.compile(r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+(?:[eE][+-]?\d+)?", re.ASCII)
# What counts as a number in a column that is declared numeric.
DECIMAL = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*", re.ASCII)
BOOLEANS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}


def backend_of(table: Any) -> Backend:
    """Library to answer in when someone gave this table: pandas for a path."""
    library = getattr(nw.from_native(table, pass_through=True), "implementation", None)
    return next((name for name in get_args(Backend) if library and library.value == name), "pandas")


def read_table(table: Table) -> nw.DataFrame[Any]:
    """Table as an eager narwhals frame whose column names are text.

    Parameters
    ----------
    table : a frame that narwhals reads (pandas, polars, Arrow; a lazy one is collected), or the
        path of a .csv, .csv.gz, .tsv, .tsv.gz or .parquet file. Cells of a text file keep their
        spelling, except for apostrophes that guard formulas in spreadsheets, and become the
        categories of pandas categoricals; empty cells, NA and NaN are missing. A separator
        other than the one that the file's name implies is detected; commas in numbers that are
        not separators are decimal commas, with a warning.
    """
    if isinstance(table, str | Path):
        return _read_file(Path(table))
    if isinstance(table, pd.DataFrame) and any(type(name) is not str for name in table.columns):
        table = table.set_axis([str(name) for name in table.columns], axis=1)
    try:
        frame: Any = nw.from_native(table)
    except TypeError:
        raise DataError(
            f"cannot read a {type(table).__name__} as a table; give a pandas, polars or Arrow "
            "frame, or the path of a CSV or Parquet file"
        ) from None
    except nw.exceptions.DuplicateError as error:
        raise DataError(f"the table: {error}\nrename or drop all but one of each") from None
    return frame.collect() if isinstance(frame, nw.LazyFrame) else frame


def _read_file(path: Path) -> nw.DataFrame[Any]:
    name = path.name.lower()
    separator = next((sep for end, sep in SEPARATORS.items() if name.endswith(end)), None)
    if separator is None and not name.endswith(".parquet"):
        endings = ", ".join([*SEPARATORS, ".parquet"])
        raise DataError(f"{path}: unknown kind of file; save it as one that ends in {endings}")
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the path")
    try:
        return _read_text(path, separator) if separator else _read_parquet(path)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except pd.errors.EmptyDataError:
        advice = "give one with a line of column names and a row per unit"
        raise DataError(f"{path}: the file is empty; {advice}") from None
    except UnicodeDecodeError:
        advice = "the text is not UTF-8; save it as UTF-8, in Excel as 'CSV UTF-8'"
        raise DataError(f"{path}: cannot be read: {advice}") from None
    except (*UNREADABLE, pd.errors.ParserWarning) as error:
        text = str(error).strip()
        if not isinstance(error, pd.errors.ParserError | pd.errors.ParserWarning):
            # others may quote any byte of the file
            text = cell(text, getattr(error, "strerror", None) or type(error).__name__)
        reason = "".join(sign if sign.isprintable() else " " for sign in text)
        raise DataError(f"{path}: cannot be read: {reason}; repair or replace the file") from error


def _read_text(path: Path, separator: str) -> nw.DataFrame[Any]:
    # Text, not dtype="category": there pandas reads "01" as the number 1. Block by block, so
    # that a large file is never held as text.
    rules: dict[str, Any] = {"dtype": str, "keep_default_na": False}
    top = pd.read_csv(path, header=None, nrows=1, sep=separator, **rules)
    # some spreadsheets write a line about the separator before the names
    rules["skiprows"] = int(top.iloc[0, 0].lower().startswith("sep="))
    rules["sep"] = _find_separator(path, separator, rules)
    if rules["sep"] != separator:
        logger.info("%s: columns are separated by %r", path, rules["sep"])
    header = pd.read_csv(path, header=None, nrows=1, **rules).iloc[0].tolist()
    _check_header([from_spreadsheet(name) for name in header], rules["sep"])
    with warnings.catch_warnings():
        # pandas only warns before it cuts rows that are longer than the header
        warnings.simplefilter("error", pd.errors.ParserWarning)
        with pd.read_csv(
            path,
            na_values=["", "NA", "NaN"],
            index_col=False,
            skip_blank_lines=len(header) > 1,  # in a single column, a blank is a missing cell
            chunksize=BLOCK_ROWS,
            **rules,
        ) as blocks:
            packed = [block.astype("category") for block in blocks]
    frame, decimals = pd.DataFrame(), []
    for name in packed[0].columns:
        column = pd.api.types.union_categoricals([block[name] for block in packed])
        # two texts may be one without their guards, and the column is then no categorical
        bare = column.map(from_spreadsheet, na_action="ignore")
        if rules["sep"] != "," and _has_decimal_commas(column.categories):
            decimals.append(name)
            bare = bare.map(lambda cell: cell.replace(",", "."), na_action="ignore")
        frame[from_spreadsheet(name)] = pd.Categorical(bare)
    if decimals:
        text = f"{path}: commas in the numbers of {quoted(decimals)} are read as decimal commas"
        text += "; if they are not, separate columns by commas; write codes in {na_values} as 99.9"
        warn(DataWarning(text, na_values=None))
    frame.attrs[PACKED_TEXT] = True
    return read_table(frame)


def _find_separator(path: Path, usual: str, rules: dict[str, Any]) -> str:
    """Separator that splits the first lines evenly, preferably the one of the file's name."""
    columns = {usual: 1}
    for sign in dict.fromkeys([usual, *SIGNS]):
        try:
            rules = {**rules, "sep": sign, "engine": "python"}  # the other fills up short lines
            lines = pd.read_csv(path, header=None, nrows=FIRST_LINES, **rules)
        except (pd.errors.ParserError, csv.Error):
            continue
        if not lines.isna().to_numpy().any():  # no line is shorter than the first
            columns[sign] = lines.shape[1]
    return usual if columns[usual] > 1 else max(columns, key=lambda sign: columns[sign])


def _has_decimal_commas(texts: Iterable[str]) -> bool:
    """Whether texts have commas, all of them decimal commas, and no points."""
    numbers = [text for text in texts if "," in text or "." in text]
    return bool(numbers) and all("." not in t and COMMA_NUMBER.fullmatch(t) for t in numbers)


def _check_header(header: list[str], separator: str) -> None:
    for sign in SIGNS:
        if len(header) == 1 and sign != separator and sign in header[0]:
            # a file without a line of names has cells in its place, here and below
            name = cell(f", {header[0][:40]!r},")
            problem = f"has one column{name} and looks separated by {sign!r}"
            advice = "but its lines differ in their number of columns: correct them"
            raise DataError(f"{problem}, {advice}")
    repeated = [name for name, times in Counter(header).items() if name and times > 1]
    if repeated:
        names = cell(f"{repeated} appear", "appear")
        raise DataError(f"column names {names} more than once; rename or drop the others")


def _read_parquet(path: Path) -> nw.DataFrame[Any]:
    try:
        from pyarrow import parquet
    except ImportError:
        text = f"{path}: a Parquet file, unlike a CSV, needs pyarrow"
        raise MissingDependency(text, extra="data") from None
    return read_table(parquet.read_table(path))


@dataclass(frozen=True, eq=False)
class Cells:
    """One column as text.

    Attributes
    ----------
    texts : the distinct spellings, in no particular order.
    codes : (row,), index of the cell's spelling in `texts`; −1 for a missing cell.
    """

    texts: list[str]
    codes: Ints

    @property
    def missing(self) -> Bools:
        """Which cells are missing: (row,)."""
        return self.codes < 0


def spell(value: object) -> str:
    """Canonical spelling of a value."""
    if isinstance(value, date):
        return value.isoformat().removesuffix("T00:00:00")
    text = str(value)
    whole = WHOLE.fullmatch(text)
    if whole:
        return "0" if whole[1] == "-0" else whole[1]
    return BOOLEANS.get(text, text)


def missing_texts(na_values: Any, columns: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Texts that stand for a missing cell, by column.

    Parameters
    ----------
    na_values : a value for all columns, {column: one or several} for some, or a list of either.
    columns : all columns of the table.
    """
    by_column: dict[str, dict[str, None]] = {name: {} for name in columns}
    for item in _several(na_values):
        values = item if isinstance(item, Mapping) else dict.fromkeys(columns, item)
        pairs = [(str(column), value) for column in values for value in _several(values[column])]
        for name, value in pairs:
            if name not in by_column:
                hint = did_you_mean(name, columns) or f"; its columns are {quoted([*columns])}"
                text = f"{{na_values}} names {name!r}, which the table does not have{hint}"
                raise SettingsError(text, na_values=None)
            if not pd.api.types.is_scalar(value):
                text = f"{{na_values}} has a value of type {type(value).__name__}"
                raise SettingsError(f"{text}; give texts and numbers", na_values=None)
            by_column[name][spell(value)] = None
    return {name: tuple(texts) for name, texts in by_column.items()}


def _several(values: Any) -> list[Any]:
    if isinstance(values, str | Mapping) or not isinstance(values, Collection):
        return [] if values is None else [values]
    return list(values)


def _known(texts: Iterable[str], na_values: Collection[str]) -> list[str]:
    """Texts that do not stand for a missing cell; numbers are compared as numbers."""
    if not na_values:
        return list(texts)
    unwanted = {float(text) if NUMBER.fullmatch(text) else text for text in na_values}
    return [t for t in texts if (float(t) if NUMBER.fullmatch(t) else t) not in unwanted]


def find_column(
    frame: nw.DataFrame[Any], name: str, purpose: str = "", *, where: str = "the table"
) -> nw.Series[Any]:
    """Find a column by its name; an unknown name is refused, with the most similar one.

    Parameters
    ----------
    purpose : what it is needed for, such as "to tell the silos apart".
    where : how messages refer to the table.
    """
    check_columns([str(name)], frame.columns, where, purpose)
    return frame.get_column(str(name))


def check_columns(
    names: Iterable[str], columns: Collection[str], where: str, purpose: str = ""
) -> None:
    """Refuse names of absent columns; other arguments as for `find_column`."""
    absent = dict.fromkeys(name for name in names if name not in columns)
    if absent:
        requests = [f"{name!r} {purpose}".rstrip() + did_you_mean(name, columns) for name in absent]
        advice = cell(f"its columns are {quoted(list(columns))}: ")
        advice += "correct the name or add the column"
        raise DataError(f"{where} has no column {listing(requests)}; {advice}")


def read_cells(column: nw.Series[Any], label: str, na_values: Collection[str] = ()) -> Cells:
    """Distinct texts of a column, and the code of every cell.

    Parameters
    ----------
    label : names the column in messages.
    na_values : texts that stand for a missing cell.
    """
    values = _present_values(column, label)
    # as an array, numbers of 32 bits keep their short spelling, and any NaN gets the code −1
    is_float = values.dtype.kind == "f"
    places, distinct = pd.factorize(values.to_numpy()) if is_float else pd.factorize(values)
    spelled = [spell(value) for value in distinct]
    texts = {text: code for code, text in enumerate(_known(dict.fromkeys(spelled), na_values))}
    codes = np.full(len(column), -1, dtype=np.int64)
    lookup = np.array([texts.get(text, -1) for text in spelled] + [-1])
    codes[~column.is_null().to_numpy()] = lookup[places]
    return Cells(list(texts), codes)


def declared_levels(
    frame: nw.DataFrame[Any], name: str, na_values: Collection[str] = ()
) -> list[str] | None:
    """Levels that the type of a column declares, in order; None if it declares none."""
    if PACKED_TEXT in getattr(frame.to_native(), "attrs", {}):
        return None
    column = frame.get_column(name)
    native = column.to_native()
    if isinstance(native, pd.Series) and isinstance(native.dtype, pd.CategoricalDtype):
        categories = list(native.cat.categories)
    elif isinstance(column.dtype, nw.Enum):
        categories = list(column.dtype.categories)
    elif getattr(getattr(native, "type", None), "ordered", False):
        # an Arrow dictionary; when it is not ordered, it is only a way to store text
        categories = native.unify_dictionaries().chunk(0).dictionary.to_pylist()
    else:
        return None
    return _known(dict.fromkeys(spell(category) for category in categories), na_values)


def _present_values(column: nw.Series[Any], label: str) -> pd.Series[Any]:
    advice = "split it into columns of single values, or leave it out with {exclude}"
    if column.dtype.is_nested():
        raise DataError(f"{label} has cells of type {column.dtype}; {advice}", exclude=...)
    present = column.drop_nulls()
    is_pandas = column.implementation.is_pandas()
    values = present.to_native() if is_pandas else pd.Series(present.to_numpy())
    kinds: set[Any] = set(map(type, values)) if values.dtype == object else set()
    for kind in kinds:
        if not issubclass(kind, Hashable) or issubclass(kind, tuple | frozenset | bytes):
            raise DataError(f"{label} has cells of type {kind.__name__}; {advice}", exclude=...)
    if {bool, np.bool_} & kinds and len(kinds) > 1:
        return values.map(spell)  # True == 1: factorize would take them for the same value
    return values


def choose_variables(
    frame: nw.DataFrame[Any],
    variables: Sequence[str] | None,
    exclude: Sequence[str] | None,
    *,
    where: str = "the table",
    **reserved: str | None,
) -> list[str]:
    """Columns to cluster: those named, or all but those excluded.

    Parameters
    ----------
    reserved : columns that are not variables, by role, such as "silos".
    """
    if not frame.columns:
        raise DataError(f"{where} has no columns; give one column per variable")
    if variables is not None and exclude is not None:
        text = "{variables} and {exclude} both say which columns to use; give one of them"
        raise SettingsError(text, variables=None, exclude=None)
    listed = variables if exclude is None else exclude
    names = [listed] if isinstance(listed, str) else [str(name) for name in listed or ()]
    check_columns(names, frame.columns, where, "to exclude" if exclude is not None else "")
    roles = {str(column): role for role, column in reserved.items() if column is not None}
    if variables is None:
        names = [name for name in frame.columns if name not in {*names, *roles}]
    if not names:
        raise DataError(f"{where}: no variables to use; name at least one column")
    for name in names:
        if name in roles:
            problem = f"column {name!r} names the {roles[name]} and is among the variables"
            raise DataError(f"{problem}; leave it out")
        if names.count(name) > 1:
            raise DataError(f"{where}: variable {name!r} is named more than once; name it once")
    return names


def read_numbers(cells: Cells, label: str) -> Floats:
    """Number in each cell, nan where it is missing: (row,)."""
    numbers = [float(text) if DECIMAL.fullmatch(text) else np.nan for text in cells.texts]
    values = np.array([*numbers, np.nan])[cells.codes]
    is_wrong = ~np.isfinite(values) & ~cells.missing
    if is_wrong.any():
        example = repr(cells.texts[cells.codes[np.argmax(is_wrong)]])
        raise refused(label, example, is_wrong, "is not a finite number")
    return values


def refused(label: str, example: str, cells: Bools, problem: str) -> DataError:
    """The error of cells of a column that are not such numbers as they should be."""
    example = cell(example, first_of(int(cells.sum())))
    where = f"{label} has {example} in data row {np.argmax(cells) + 1}, which {problem}"
    advice = "correct it or leave it empty; where the study is made, give {na_values} or {kinds}"
    return DataError(f"{where}; {advice}", na_values=..., kinds=None)
