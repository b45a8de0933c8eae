"""The ledger's records and its file: an SQLite database with one JSON document for each table.

There is one for each user of the machine, which only that user may open. SQLite writes it whole or
not at all, and lets one process at a time change it.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from silomix.errors import DataWarning, FileError, SettingsError, SilomixError, warn
from silomix.model.files import private_file, private_folder, read_file
from silomix.silo.store import locked

# Stands beside the records that left: a question failed on the rows.
FAILED = "failed"
# Environment variable with the ledger's path, instead of the usual place.
VARIABLE = "SILOMIX_LEDGER"
# In version 0.2.0 each table had a ledger beside it.
OLD_NAME = "silomix-ledger.json"
# What SQLite writes into the file so that nobody mistakes it: "silo", and the format.
APPLICATION, FORMAT = 0x73696C6F, 3
SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE tables (name TEXT PRIMARY KEY, document TEXT NOT NULL);
"""
REPLACE = "REPLACE INTO tables VALUES (?, ?)"
# Seconds to wait for another process that has the file locked.
WAIT = 60.0


class Answered(BaseModel):
    """A study that was answered from a table, or failed on it.

    Attributes
    ----------
    study, title : its digest, and its line for people.
    silo : the table's silo in it.
    policy, rounding : name of the policy, and its minimum count and rounding.
    rows : digest of the coded rows that it was answered from.
    cells : digest of all cells of the table, in the order of the rows.
    columns : by name of the column, a digest of its cells in any order.
    left : what left, by name of the record, and when it first did; FAILED for a failed question.
    asked : for each kind of question that a policy limits, the digests of those asked, and how
        often each counts.
    """

    study: str
    title: str
    silo: str
    policy: str
    rounding: str
    rows: str
    cells: str = ""
    columns: dict[str, str] = {}
    left: dict[str, str]
    asked: dict[str, dict[str, int]] = {}

    @property
    def since(self) -> str:
        """When the first answer left, or failed."""
        return min(self.left.values(), default="not yet")

    @property
    def only_failed(self) -> bool:
        """Whether nothing left but that a question failed."""
        return self.left.keys() == {FAILED}

    def is_like(self, other: Answered) -> bool:
        """Whether the two are one study, answered alike: together they reveal no more."""
        # a table that could not be read may be mended: the study that told so goes on
        never_read = self.only_failed and not self.rows
        same = (self.study, self.silo) == (other.study, other.silo)
        same = same and (never_read or self.rows == other.rows)
        return same and (self.rounding == other.rounding or self.only_failed)


class Version(BaseModel):
    """A table as long as it stays the same.

    Attributes
    ----------
    since : when it was first answered from, or said to be new.
    digest : of its cells; None until it is answered from.
    studies : answered from it.
    """

    since: str
    digest: str | None = None
    studies: list[Answered] = []

    def has(self, cells: str) -> bool:
        """Whether a table with these cells was answered from."""
        return cells in {self.digest, *(study.cells for study in self.studies)}


class PolicyChange(BaseModel):
    """A policy that was replaced between two answers: the settings that differ, and when."""

    at: str
    before: dict[str, Any]
    now: dict[str, Any]


class Table(BaseModel):
    """All that left from one table.

    Attributes
    ----------
    name : what its owner calls it, or its path.
    allowed : studies that the owner allowed, whatever the policy's number: digests.
    versions : the last one is what is counted.
    policy : settings of the policy of the last answer, by name.
    changes : of that policy.
    """

    name: str
    allowed: list[str] = []
    versions: list[Version] = []
    policy: dict[str, Any] = {}
    changes: list[PolicyChange] = []

    @property
    def ever(self) -> list[Answered]:
        """Studies answered from any version."""
        return [study for version in self.versions for study in version.studies]

    @property
    def counted(self) -> Version:
        """The version that counts."""
        return self.versions[-1] if self.versions else Version(since="")

    def has(self, cells: str) -> bool:
        """Whether it ever had these cells when it was answered from."""
        return any(version.has(cells) for version in self.versions)


class Ledger(BaseModel):
    """All tables."""

    tables: list[Table] = []

    def table(self, name: str | None) -> Table:
        """Table of that name, which is there from now on; the only one without a name.

        Of a table that nothing is said of afterwards, nothing is written.
        """
        names = [known.name for known in self.tables]
        if name is None and len(names) != 1:
            known = f"they are {', '.join(map(repr, names))}" if names else "it has none yet"
            raise SettingsError(
                f"the ledger does not say which table is meant; {known}: give --data TABLE or "
                "--table-name NAME"
            )
        if name not in names and name is not None:
            self.tables.append(Table(name=name))
        return next(known for known in self.tables if name in (known.name, None))


def find_ledger(path: Path | None = None) -> Path:
    """Path of the ledger: `path`, or from the environment, or this user's own.

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
    """Folder in which programs keep this user's data."""
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
    """Content of a ledger; an empty one where there is no file.

    Raises
    ------
    FileError
        When it is damaged, no ledger, or cannot be read: nobody can tell then what has left.
    """
    with _explaining(path):
        try:
            with closing(_connect(path)) as file:
                return _load(file)
        except FileNotFoundError:
            return Ledger()


@contextmanager
def changing(path: Path) -> Iterator[Ledger]:
    """Let one process at a time look at the ledger, and change it; it begins where there is none.

    It is written even if nothing changes: hours of work may follow that must be counted.
    """
    with _explaining(path):
        _make(path)
        with closing(_connect(path)) as file, file:
            file.execute("BEGIN IMMEDIATE")
            ledger = _load(file)
            file.execute(f"PRAGMA user_version = {FORMAT}")
            yield ledger
            for table in ledger.tables:
                if table.versions or table.allowed:
                    file.execute(REPLACE, (table.name, table.model_dump_json()))


def refuse_old(data: Path) -> None:
    """Refuse a table beside which version 0.2.0 counted what left it."""
    old = data.resolve().parent / OLD_NAME
    if old.exists():
        raise FileError(
            f"{old} is a ledger of version 0.2.0, which is no longer read: what it counted has "
            "left. Once the table's owner has decided that this table may be used for another "
            "study all the same, move that file away"
        )


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Turn errors of files and of SQLite into one that says what to do."""
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


def _make(path: Path) -> None:
    """Begin a ledger where there is none; say so."""
    if path.exists():
        return
    private_folder(path.parent)
    with locked(path.with_name(f".{path.name}.lock")):
        if path.exists():  # another process was first
            return
        scratch = path.with_name(f".{path.name}.partial")
        scratch.unlink(missing_ok=True)
        private_file(scratch)
        with closing(sqlite3.connect(scratch)) as file, file:
            file.executescript(SCHEMA)
        scratch.replace(path)
    text = f"a new ledger begins at {path}; if there was one before, stop and restore it"
    warn(DataWarning(text))


def _connect(path: Path) -> sqlite3.Connection:
    """Open a database that is there."""
    read_file(path, 1)  # which refuses a folder, a pipe or a device in words
    return sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=WAIT, isolation_level=None)


def _load(file: sqlite3.Connection) -> Ledger:
    wanted = {"application_id": APPLICATION, "user_version": FORMAT, "quick_check(1)": "ok"}
    if any(file.execute(f"PRAGMA {key}").fetchone() != (value,) for key, value in wanted.items()):
        raise sqlite3.DatabaseError("it is not what it should be")
    tables = file.execute("SELECT document FROM tables ORDER BY rowid")
    return Ledger(tables=[Table.model_validate_json(text) for (text,) in tables])
