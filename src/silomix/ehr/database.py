"""Safe use of DuckDB: no network, bounded memory, read-only sources, cleaned cells."""

from __future__ import annotations

import csv
import glob
import gzip
import re
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from silomix.errors import DataError, MissingDependency, SettingsError
from silomix.model.reading import SEPARATORS, check_columns, read_table, spell
from silomix.model.sentences import cores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    import narwhals as nw
    import pyarrow
    from duckdb import DuckDBPyConnection as Connection
    from duckdb import DuckDBPyRelation as Relation
    from narwhals.typing import IntoFrame

FILES = (*SEPARATORS, ".parquet")
MEMORY = r"(?=.*[1-9])\d*\.?\d+ *[KMGT]i?B"

# Texts of an empty cell.
MISSING_TEXTS = ("", "NA", "NaN", "NULL")
# Pattern of the white space that `str.strip` removes.
WHITE = r"[\t-\r\x1c-\x1f\x{85}\pZ]+"
# Text must start with a year of four digits, since DuckDB takes 05-06-19 for a day of the year 5.
YEAR_FIRST = r"^([1-9]\d{3}[-/]\d\d?[-/]\d\d?)"
DATED = YEAR_FIRST + r"($|Z$|[+-]\d\d:\d\d$|[T ]\d)"
ZONED = YEAR_FIRST + r"[T ]\d.*:.*(Z|[A-Z]{3,4}|[+-]\d\d?(:?\d\d)?|[A-Za-z]+/\w+)$"

# Cleaning of cells in SQL. An empty cell, or one of another type than requested, is null.
# whole: a cast alone would round. day_of: a time with a zone is on the day that it is in UTC; a
# day with a zone is itself.
MACROS = rf"""
CREATE MACRO trimmed(x) AS regexp_replace(x::VARCHAR, '^{WHITE}|{WHITE}$', '', 'g');
CREATE MACRO told(x) AS if(trimmed(x) NOT IN {MISSING_TEXTS}, trimmed(x), NULL);
CREATE MACRO digits(x) AS if(x = floor(x), TRY_CAST(x AS BIGINT)::VARCHAR, x::VARCHAR);
CREATE MACRO whole(x) AS
    CASE WHEN TRY_CAST(x AS DOUBLE) = floor(TRY_CAST(x AS DOUBLE)) THEN TRY_CAST(x AS BIGINT) END;
CREATE MACRO instant(x) AS TRY_CAST(regexp_replace(x, '\s+([Z+-])', '\1') AS TIMESTAMPTZ);
CREATE MACRO day_of(x) AS CASE
    WHEN typeof(x) <> 'VARCHAR' THEN if(isfinite(TRY_CAST(x AS DATE)), TRY_CAST(x AS DATE), NULL)
    WHEN regexp_matches(x::VARCHAR, '{ZONED}') THEN CAST(instant(x::VARCHAR) AS DATE)
    ELSE TRY_CAST(regexp_extract(x::VARCHAR, '{DATED}', 1) AS DATE)
END;
"""
# The macro that cleans a cell, by its type: text is trimmed, a whole float is text without .0.
CLEANING = {"VARCHAR": "told", "ENUM": "told", "DOUBLE": "digits", "FLOAT": "digits"}

# Problem and advice, by words of DuckDB's errors; the first match is used.
ADVICE = {
    "unterminated quote": "a quote is opened and not closed, or not at the end of its cell; close "
    'it, or write "" for a quote inside a quoted cell',
    "Expected Number of Columns": "it has more or fewer cells than the first line; "
    "correct it, or put quotes around a cell that has a separator in it",
    "Maximum line size": "it is longer than 2 MB; look for a quote that is not closed",
    "Invalid unicode": "it is not in UTF-8; save the file as UTF-8",
    "CSV Parser": "it is not valid CSV; look for odd quotes and line ends, and correct them",
    "Could not set lock": "another program has it open; close it there",
    "database file with version": "another version of DuckDB wrote it; update DuckDB here or there",
    "Catalog Error": "a view in it needs a table that is not there; repair the view",
    "Conversion Error": "a value does not fit the type of its column; correct it, or the view",
}


@dataclass(frozen=True)
class Engine:
    """Limits on DuckDB's memory, disk and threads.

    Attributes
    ----------
    memory : most memory, such as "500MB" or "8GB"; what does not fit goes to disk.
    scratch : folder for that, emptied at the end; by default the system's temporary folder.
    threads : cores to use; all by default.

    Examples
    --------
    >>> from silomix import ehr
    >>> ehr.Engine(memory="500MB").memory
    '500MB'
    """

    memory: str = "2GB"
    scratch: str | Path | None = None
    threads: int | None = None


DEFAULT_ENGINE = Engine()


@dataclass(frozen=True)
class InDatabase:
    """A table inside a DuckDB file or, for OMOP, the schema that has the tables.

    Attributes
    ----------
    file : the database; it is opened read-only.
    name : of the table, as table or schema.table; or of the schema.

    Examples
    --------
    >>> from silomix import ehr
    >>> ehr.InDatabase("registry.duckdb", "diagnoses").name
    'diagnoses'
    """

    file: str | Path
    name: str


Source: TypeAlias = Union["IntoFrame", InDatabase, str, Path]


@dataclass(frozen=True)
class Records:
    """A table of records as a view of the database, its cells cleaned.

    Attributes
    ----------
    view : its name.
    where : how messages refer to it.
    columns : DuckDB's type, by name.
    """

    view: str
    where: str
    columns: dict[str, str]

    def find(self, name: str) -> tuple[str, str]:
        """Quoted name and type of a column; case is ignored."""
        by_name = {column.casefold(): column for column in self.columns}
        column = by_name.get(name.casefold(), name)
        check_columns([column], self.columns, f"{self.where}:")
        return quote(column), self.columns[column]


def load_duckdb() -> ModuleType:
    """Import duckdb, or say which extra has it, and pyarrow for frames."""
    try:
        duckdb, _ = import_module("duckdb"), import_module("pyarrow")
    except ImportError:
        raise MissingDependency("health records need duckdb and pyarrow", extra="data") from None
    return duckdb


@contextmanager
def opened(engine: Engine, source: str) -> Iterator[Connection]:
    """Open an empty in-memory database that spills to its own folder.

    Parameters
    ----------
    source : how messages refer to the records.
    """
    duckdb = load_duckdb()
    if not re.fullmatch(MEMORY, engine.memory, re.IGNORECASE):
        raise SettingsError(f"memory is {engine.memory!r}; give an amount such as '500MB' or '8GB'")
    settings = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "memory_limit": engine.memory,
        "threads": str(cores(engine.threads)),
    }
    try:
        scratch = TemporaryDirectory(prefix="silomix-ehr-", dir=engine.scratch)
    except OSError as error:
        raise SettingsError(f"scratch is {engine.scratch}: {error.strerror}") from None
    with (
        scratch as folder,
        duckdb.connect(":memory:", config=settings | {"temp_directory": folder}) as connection,
    ):
        # the day of a time with a zone must not depend on the computer's own zone
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(MACROS)
        try:
            yield connection
        except duckdb.OutOfMemoryException:
            room = f"{engine.memory} of memory, or the space in {folder}, is not enough"
            raise SettingsError(f"{source}: {room}; allow more, or another folder") from None
        except duckdb.Error as error:
            # DuckDB's message may quote the records: not even a traceback shows it
            raise DataError(explain(error, source)) from None


def explain(error: Exception, source: str) -> str:
    """Message for an error of DuckDB, without any text of the records.

    Only a line number and the name of an existing file are taken from the error.

    Parameters
    ----------
    source : how the message refers to the records, unless the error names a file.
    """
    message = str(error)
    line = re.match(r"[\w ]+: CSV Error on Line: (\d+)\n", message)
    files = re.findall(r"^  file = (.+)$", message, re.MULTILINE)
    where = files[-1] if files and Path(files[-1]).is_file() else source
    unknown = f"DuckDB refuses it ({type(error).__name__}); check that it is complete and as named"
    problem = next((advice for words, advice in ADVICE.items() if words in message), unknown)
    return f"{where}: cannot be read: {f'line {line[1]}: ' if line else ''}{problem}"


def quote(name: str) -> str:
    """Quote a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def name_of(source: Source, label: str) -> str:
    """Name of a source for messages; a frame has only its label."""
    if isinstance(source, InDatabase):
        return f"{source.file}, table {source.name}"
    return str(source) if isinstance(source, str | Path) else f"the {label}"


def open_source(connection: Connection, source: Source, label: str) -> Records:
    """Open a source of any form as the view source_`label`."""
    if isinstance(source, InDatabase):
        relation = connection.sql(f"SELECT * FROM {_find_table(connection, source)}")
    elif isinstance(source, str | Path):
        relation = _read_file(connection, Path(source))
    else:
        relation = connection.from_arrow(_as_arrow(read_table(source)))
    view = f"source_{label}"
    relation.create_view(f"{view}_as_it_is")
    macros = [CLEANING.get(str(kind).partition("(")[0], "") for kind in relation.types]
    names = map(quote, relation.columns)
    cells = [f"{macro}({name}) AS {name}" for macro, name in zip(macros, names, strict=True)]
    cleaned = connection.sql(f"SELECT {', '.join(cells)} FROM {view}_as_it_is")
    cleaned.create_view(view)
    kinds = dict(zip(cleaned.columns, map(str, cleaned.types), strict=True))
    return Records(view, name_of(source, label), kinds)


def tables_in(connection: Connection, file: str | Path) -> dict[str, str]:
    """Attach a database file read-only; list its tables and views, quoted, by schema.table."""
    if not Path(file).is_file():
        raise DataError(f"{file}: no such file; check the path of the database")
    catalog = quote(str(file))
    connection.execute(f"ATTACH IF NOT EXISTS $1 AS {catalog} (READ_ONLY)", [str(file)])
    columns, where = "table_schema, table_name", "WHERE table_catalog = $1 ORDER BY ALL"
    query = f"SELECT {columns} FROM information_schema.tables {where}"
    rows = connection.execute(query, [str(file)]).fetchall()
    return {f"{schema}.{name}": f"{catalog}.{quote(schema)}.{quote(name)}" for schema, name in rows}


def file_kind(path: Path) -> str | None:
    """Suffix of a file that can be read as one table, or None."""
    return next((end for end in FILES if path.name.lower().endswith(end)), None)


def _find_table(connection: Connection, source: InDatabase) -> str:
    tables = tables_in(connection, source.file)
    ending = f".{source.name}".casefold()
    matches = [quoted for name, quoted in tables.items() if f".{name}".casefold().endswith(ending)]
    if len(matches) != 1:
        raise DataError(
            f"{source.file}: {len(matches) or 'no'} tables are called {source.name!r}; name one, "
            f"as schema.table, or make a view of it: there are {', '.join(tables) or 'none'}"
        )
    return matches[0]


def _read_file(connection: Connection, path: Path) -> Relation:
    kind = file_kind(path)
    if kind is None:
        raise DataError(
            f"{path}: unknown kind of file; give one that ends in {', '.join(FILES)}, or say which "
            "table of a DuckDB file to read (InDatabase, or --table)"
        )
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the path")
    literal = glob.escape(str(path))  # DuckDB expands patterns
    if kind == ".parquet":
        return connection.read_parquet(literal, hive_partitioning=False)
    columns, separator = _read_header(path)
    # every cell as text: "007" and "E11.10" are not numbers
    return connection.read_csv(
        literal,
        header=True,
        sep=separator,
        columns=dict.fromkeys(columns, "VARCHAR"),
        auto_detect=False,
        hive_partitioning=False,
    )


def _read_header(path: Path) -> tuple[list[str], str]:
    """Columns of a text file, and their separator.

    Vocabulary files of OMOP are called .csv and separated by tabs, whatever the name suggests.
    """
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            line = file.readline()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        why = getattr(error, "strerror", None) or "it is not in UTF-8, or a damaged .gz file"
        raise DataError(f"{path}: cannot be read: {why}; repair or replace the file") from None
    separator = max(",\t;", key=line.count)
    cells = next(csv.reader([line], delimiter=separator), [])
    columns = [name or f"(column {n})" for n, name in enumerate(cells, start=1)]
    if not columns or len({name.casefold() for name in columns}) < len(columns):
        # a file without header has a record there, which is not shown
        raise DataError(f"{path}: the first line must name each column once (case is ignored)")
    return columns, separator


def _as_arrow(frame: nw.DataFrame[Any]) -> pyarrow.Table:
    """A frame as an Arrow table; columns of mixed types, as in spreadsheets, become text."""
    arrow = import_module("pyarrow")

    def as_text(value: object) -> str:
        return value if isinstance(value, str) else spell(value)

    try:
        return frame.to_arrow()
    except (arrow.ArrowException, OverflowError):
        table = frame.to_pandas().copy(deep=False)
    for name in table.select_dtypes(object).columns:
        try:
            arrow.array(table[name], from_pandas=True)
        except (arrow.ArrowException, OverflowError):
            table[name] = table[name].map(as_text, na_action="ignore")
    return arrow.Table.from_pandas(table, preserve_index=False)
