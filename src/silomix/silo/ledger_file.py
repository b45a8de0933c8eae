"""The ledger's file: an SQLite database with one JSON document for each table.

There is one for each user of the machine, which only that user may open. SQLite writes it whole or
not at all, and lets one process at a time change it. A file of version 0.2.0, which was JSON, is
converted.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from silomix.errors import DataWarning, FileError, SettingsError, SilomixError, warn
from silomix.model.files import private_file, private_folder, read_file, replace_file
from silomix.silo.ledger_tables import Ledger, Table
from silomix.silo.store import locked

if TYPE_CHECKING:
    from collections.abc import Iterator

# Environment variable with the ledger's path, instead of the usual place.
VARIABLE = "SILOMIX_LEDGER"
# In version 0.2.0 each table had a ledger beside it.
OLD_NAME = "silomix-ledger.json"
LARGEST_OLD = 1 << 28
# What SQLite writes into the file so that nobody mistakes it: "silo", and the format.
APPLICATION, FORMAT = 0x73696C6F, 2
HEADER = b"SQLite format 3\0"
SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE tables (name TEXT PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE imported (digest TEXT PRIMARY KEY);
"""
# Seconds to wait for another process that has the file locked.
WAIT = 60.0


class OldLedger(BaseModel):
    """The JSON file of version 0.2.0."""

    kind: Literal["silomix ledger"]
    format: Literal[1]
    tables: list[Table]


def find_ledger(path: Path | None = None) -> Path:
    """Return where the ledger is: `path`, or what the environment says, or this user's own.

    Raises
    ------
    SettingsError
        When the environment does not say where.
    """
    named = os.environ.get(VARIABLE)
    if path is None and named and not Path(named).is_absolute():
        raise SettingsError(
            f"the environment variable {VARIABLE} is {named!r}, which is another file in every "
            "folder: set it to an absolute path"
        )
    if path is None:
        path = Path(named) if named else _data_folder() / "silomix" / "ledger.sqlite"
    return path.resolve()


def _data_folder() -> Path:
    """Return the folder in which programs keep this user's data."""
    try:
        home = Path.home()
    except RuntimeError:
        raise SettingsError(
            "nothing says where this user's ledger is, since there is no home folder: set the "
            f"environment variable {VARIABLE} to an absolute path, or give {{ledger}}",
            ledger=None,
        ) from None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    named = Path(os.environ.get("XDG_DATA_HOME", ""))
    return named if named.is_absolute() else home / ".local" / "share"


def read_ledger(path: Path) -> Ledger:
    """Return what a ledger says, also one of version 0.2.0; an empty one where there is no file.

    Raises
    ------
    FileError
        When it is damaged, no ledger, or cannot be read: nobody can tell then what has left.
    """
    with _explaining(path):
        try:
            if not _is_database(path):
                return Ledger(tables=_read_old(read_file(path, LARGEST_OLD)))
        except FileNotFoundError:
            return Ledger()
        with closing(_connect(path)) as file:
            return _load(file)


@contextmanager
def changing(path: Path, *, trying: bool = False) -> Iterator[Ledger]:
    """Let one process at a time look at the ledger, and change it: what changed is written.

    A ledger that is not there begins, and one of version 0.2.0 is converted.

    Parameters
    ----------
    trying : find out, too, whether anything can be written.
    """
    with _explaining(path):
        _make(path)
        with closing(_connect(path)) as file, file:
            file.execute("BEGIN IMMEDIATE")
            ledger = _load(file)
            if trying:
                file.execute(f"PRAGMA user_version = {FORMAT}")
            before = ledger.model_copy(deep=True)
            yield ledger
            _save(file, ledger, before)


def take_over(path: Path, data: Path) -> None:
    """Bring what a ledger of version 0.2.0 beside a table has counted into the ledger, once.

    The old file stays as it is.
    """
    old = data.resolve().parent / OLD_NAME
    if old == path:
        return
    tables = read_ledger(old).tables
    mark = hashlib.sha256(Ledger(tables=tables).model_dump_json().encode()).hexdigest()
    if not tables or (path.exists() and mark in read_ledger(path).imported):
        return
    with changing(path) as ledger:
        for table in tables:
            known = ledger.table(table.name)
            known.allowed += [study for study in table.allowed if study not in known.allowed]
            # before the version that counts
            known.versions[:0] = [each for each in table.versions if each not in known.versions]
            known.policy = known.policy or table.policy
        ledger.imported.append(mark)
    told = f"what {old} has counted is in {path} from now on; the old file is no longer written"
    warn(DataWarning(told))


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Say why a ledger cannot be used."""
    try:
        yield
    except SilomixError:
        raise
    except (OSError, sqlite3.OperationalError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(
            f"the ledger {path} cannot be used: {reason}. What leaves must be counted, so nothing "
            "leaves: let its owner run this, or give another place with --ledger FILE, and use it "
            "from then on"
        ) from error
    except (sqlite3.Error, ValueError) as error:
        raise FileError(
            f"{path} is no ledger, or it is damaged, or of another version of silomix; without the "
            "ledger nobody can tell what has left. Restore it from a copy. Only if there is none, "
            "and the owner accepts that nothing is counted, move it away"
        ) from error


def _is_database(path: Path) -> bool:
    """Tell whether a file says that it is a database; one that is no file raises OSError."""
    return read_file(path, len(HEADER)) == HEADER


def _read_old(content: bytes) -> list[Table]:
    """Return the tables of a ledger of version 0.2.0."""
    tables = OldLedger.model_validate_json(content).tables
    for table in tables:
        if table.ever:
            last = table.ever[-1]
            least, base = map(int, last.rounding.split(", "))
            table.policy = {"name": last.policy, "minimum_count": least, "round_to": base}
    return tables


def _make(path: Path) -> None:
    """Begin a ledger where there is none, and convert one of version 0.2.0; say so."""
    if path.exists() and _is_database(path):
        return
    private_folder(path.parent)
    kept = path.with_name(f"{path.name}.imported")
    with locked(path.with_name(f".{path.name}.lock")):
        told = f"a new ledger begins at {path}; if there was one before, stop and restore it"
        tables = []
        if path.exists():
            if _is_database(path):  # another process was first
                return
            old = read_file(path, LARGEST_OLD)
            tables = _read_old(old)
            replace_file(kept, old, private=True)
            told = (
                f"the ledger {path} is of version 0.2.0 and has been converted; as it was: {kept}"
            )
        scratch = path.with_name(f".{path.name}.partial")
        scratch.unlink(missing_ok=True)
        private_file(scratch)
        with closing(sqlite3.connect(scratch)) as file, file:
            file.executescript(SCHEMA)
            _save(file, Ledger(tables=tables), Ledger())
        scratch.replace(path)
    warn(DataWarning(told))


def _connect(path: Path) -> sqlite3.Connection:
    """Open a database that is there."""
    where = f"{path.as_uri()}?mode=rw"
    return sqlite3.connect(where, uri=True, timeout=WAIT, isolation_level=None)


def _load(file: sqlite3.Connection) -> Ledger:
    wanted = {"application_id": APPLICATION, "user_version": FORMAT, "quick_check(1)": "ok"}
    if any(file.execute(f"PRAGMA {key}").fetchone() != (value,) for key, value in wanted.items()):
        raise sqlite3.DatabaseError("it is not what it should be")
    tables = file.execute("SELECT document FROM tables ORDER BY rowid")
    imported = file.execute("SELECT digest FROM imported")
    return Ledger(
        tables=[Table.model_validate_json(text) for (text,) in tables],
        imported=[digest for (digest,) in imported],
    )


def _save(file: sqlite3.Connection, ledger: Ledger, before: Ledger) -> None:
    """Write the tables that have changed."""
    upsert = (
        "INSERT INTO tables VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET document = excluded.document"
    )
    for table in ledger.tables:
        if (table.versions or table.allowed) and table not in before.tables:
            file.execute(upsert, (table.name, table.model_dump_json()))
    marks = [(digest,) for digest in ledger.imported]
    file.executemany("INSERT OR IGNORE INTO imported VALUES (?)", marks)
