"""DuckDB, opened with care: no network, bounded memory, sources read only, names quoted."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from pandas.api.types import is_object_dtype

from silomix.data import read_table
from silomix.data.reading import SEPARATORS
from silomix.ehr.problems import explain
from silomix.ehr.sql import MISSING_TEXTS, quote
from silomix.errors import DataError, MissingDependency, SettingsError
from silomix.roster import did_you_mean
from silomix.sampler import cores

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    import narwhals as nw
    import pyarrow
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from narwhals.typing import IntoFrame

DATABASES = (".duckdb", ".db", ".ddb")
FILES = (*SEPARATORS, ".parquet")


@dataclass(frozen=True)
class Engine:
    """How much of the machine DuckDB may use.

    Attributes
    ----------
    memory : most memory it may take, such as "500MB" or "8GB"; what does not fit goes to disk.
    scratch : folder for that, emptied at the end; the system's temporary folder if left out.
    threads : cores to use; all when left out.

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


@contextmanager
def opened(engine: Engine, source: str) -> Iterator[DuckDBPyConnection]:
    """Open an empty database in memory that spills to a folder of its own.

    Parameters
    ----------
    source : what messages call the records that are read.
    """
    duckdb = load_duckdb()
    try:
        scratch = TemporaryDirectory(prefix="silomix-ehr-", dir=engine.scratch)
    except OSError as error:
        raise SettingsError(
            f"the folder {engine.scratch} cannot hold temporary files: {error.strerror}; choose "
            "another one, with enough space"
        ) from None
    with scratch as folder:
        connection = _connect(duckdb, engine, folder)
        try:
            yield connection
        except duckdb.OutOfMemoryException:
            raise SettingsError(
                f"{source}: {engine.memory} of memory, or the space in {Path(folder).parent}, is "
                "not enough; allow more memory, or another folder"
            ) from None
        except duckdb.Error as error:
            # what DuckDB says may quote the records: not even a traceback shows it
            raise DataError(explain(error, source)) from None
        finally:
            connection.close()


def attach(connection: DuckDBPyConnection, file: str | Path) -> dict[tuple[str, str], str]:
    """Attach a database file read-only; return its tables and views, quoted, by (schema, name)."""
    path = Path(file)
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the path of the database")
    (number,) = single_row(connection, "SELECT count(*) FROM duckdb_databases()")
    place = f"source{number}"
    connection.execute(f"ATTACH $1 AS {place} (READ_ONLY, TYPE duckdb)", [str(path)])
    rows = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = $1 "
        "UNION ALL SELECT schema_name, view_name FROM duckdb_views() "
        "WHERE database_name = $1 AND NOT internal ORDER BY ALL",
        [place],
    ).fetchall()
    return {(schema, name): f"{place}.{quote(schema)}.{quote(name)}" for schema, name in rows}


def name_of(source: Source, label: str) -> str:
    """Return what messages call a source; a frame, which has no name, is called `label`."""
    if isinstance(source, InDatabase):
        return f"{source.file}, table {source.name}"
    return str(source) if isinstance(source, str | Path) else label


def relation_of(connection: DuckDBPyConnection, source: Source, label: str) -> DuckDBPyRelation:
    """Return a source as a relation; a frame is registered as `label`."""
    if isinstance(source, InDatabase):
        return _table_in(connection, source)
    if isinstance(source, str | Path):
        return _relation_of_file(connection, Path(source))
    connection.register(label, _as_arrow(read_table(source)))
    return connection.sql(f"SELECT * FROM {quote(label)}")


def file_kind(path: Path) -> str | None:
    """Return the ending of a file that can be read as one table, or None."""
    return next((end for end in FILES if path.name.lower().endswith(end)), None)


def find_column(relation: DuckDBPyRelation, name: str, where: str) -> tuple[str, str]:
    """Return a column's quoted name and its type; capitals do not matter."""
    for column, kind in zip(relation.columns, relation.types, strict=True):
        if column.casefold() == name.casefold():
            return quote(column), str(kind)
    raise DataError(
        f"{where}: has no column {name!r}{did_you_mean(name, relation.columns)}; its columns are "
        f"{', '.join(map(repr, relation.columns))}"
    )


def single_row(connection: DuckDBPyConnection, query: str, values: Sequence[Any] = ()) -> Any:
    """Return the one row of a query, as a tuple."""
    return connection.execute(query, list(values)).fetchall()[0]


def load_duckdb() -> ModuleType:
    """Return the package duckdb, or say which extra brings it, and pyarrow for frames."""
    try:
        duckdb, _ = import_module("duckdb"), import_module("pyarrow")
    except ImportError:
        raise MissingDependency(
            "reading health records needs duckdb and pyarrow: pip install 'silomix[data]'"
        ) from None
    return duckdb


def _connect(duckdb: ModuleType, engine: Engine, folder: str) -> DuckDBPyConnection:
    settings = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "temp_directory": folder,
        "threads": str(cores(engine.threads)),
    }
    refusal = SettingsError(f"memory is {engine.memory!r}; give an amount such as '500MB' or '8GB'")
    # to DuckDB, an amount below zero is no limit
    if not re.match(r"0*\.?0*[1-9]", engine.memory):
        raise refusal
    try:
        connection = duckdb.connect(":memory:", config=settings | {"memory_limit": engine.memory})
    except duckdb.Error:
        raise refusal from None
    # the day of a time with a zone must not depend on where this computer stands
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _table_in(connection: DuckDBPyConnection, source: InDatabase) -> DuckDBPyRelation:
    tables = attach(connection, source.file)
    wanted = source.name.casefold()
    found = [
        quoted
        for (schema, name), quoted in tables.items()
        if wanted in {name.casefold(), f"{schema}.{name}".casefold()}
    ]
    known = [f"{schema}.{name}" for schema, name in tables]
    if not found:
        raise DataError(
            f"{source.file}: has no table {source.name!r}{did_you_mean(source.name, known)}; its "
            f"tables are {', '.join(known) or 'none'}"
        )
    if len(found) > 1:
        raise DataError(
            f"{source.file}: several tables are called {source.name!r}; say which, as "
            f"schema.table: {', '.join(known)}"
        )
    return connection.sql(f"SELECT * FROM {found[0]}")


def _relation_of_file(connection: DuckDBPyConnection, path: Path) -> DuckDBPyRelation:
    kind = file_kind(path)
    if path.suffix.lower() in DATABASES:
        raise DataError(
            f"{path}: is a database; say which of its tables to read (InDatabase, or --table)"
        )
    if kind is None:
        raise DataError(f"{path}: unknown kind of file; give one that ends in {', '.join(FILES)}")
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the path")
    literal = _without_wildcards(path)
    if kind == ".parquet":
        return connection.read_parquet(literal, hive_partitioning=False)
    columns, separator = _read_header(path)
    # every cell as text: "007" and "E11.10" are no numbers
    return connection.read_csv(
        literal,
        header=True,
        sep=separator,
        quotechar='"',
        escapechar='"',
        na_values=list(MISSING_TEXTS),
        columns=dict.fromkeys(columns, "VARCHAR"),
        auto_detect=False,
        hive_partitioning=False,
    )


def _without_wildcards(path: Path) -> str:
    """Spell a path so that DuckDB, which expands patterns, finds this one file."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in str(path))


def _read_header(path: Path) -> tuple[list[str], str]:
    """Return the columns of a text file and what separates them.

    Vocabulary files of OMOP are called .csv and separated by tabs, so the name does not tell.
    """
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            line = file.readline()
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not in UTF-8; save it as UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or "it is not as .gz files have to be"
        raise DataError(f"{path}: cannot be read: {why}; repair or replace the file") from None
    separator = max(",\t;", key=line.count)
    cells = next(csv.reader([line], delimiter=separator), [])
    columns = [name or f"(column {place})" for place, name in enumerate(cells, start=1)]
    folded = [name.casefold() for name in columns]
    twice = [str(place) for place, name in enumerate(folded, start=1) if folded.count(name) > 1]
    if not columns or twice:
        raise DataError(
            f"{path}: the first line must name the columns, each once (capitals do not count); "
            + (f"the columns {', '.join(twice)} share a name" if twice else "it is empty")
        )
    return columns, separator


def _as_arrow(frame: nw.DataFrame[Any]) -> pyarrow.Table:
    """Return a frame as Arrow; a column of mixed types, as in spreadsheets, becomes text."""
    arrow = import_module("pyarrow")
    try:
        return frame.to_arrow()
    except (arrow.ArrowException, OverflowError):
        table = frame.to_pandas().copy(deep=False)
    for name in filter(lambda name: is_object_dtype(table[name]), table.columns):
        try:
            arrow.array(table[name], from_pandas=True)
        except (arrow.ArrowException, OverflowError):
            table[name] = table[name].map(_as_text, na_action="ignore")
    return arrow.Table.from_pandas(table, preserve_index=False)


def _as_text(value: object) -> str:
    """Spell a cell as the columns of one type are: a whole float without .0."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
