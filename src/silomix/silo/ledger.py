"""What a silo has answered, table by table: one file, which outlives its stores.

A policy rounds what leaves in one study. The same rows rounded again in another, or with one person
more, can be held against what has left, and tell of single persons. So a silo counts the studies
that it answers from a table, and refuses another, or the table with other rows, until its owner
says so. Only the file's owner may open it, and it is there whole or not at all.
"""

from __future__ import annotations

import json
import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ValidationError

from silomix.errors import DataWarning, FileError, PolicyRefusal, SettingsError, warn
from silomix.model.files import replace_file
from silomix.model.sentences import quoted
from silomix.silo.store import digest_rows, locked
from silomix.study import Study, digest
from silomix.study.policy import UNLIMITED, Policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from silomix.silo.local import Loaded

# Beside the table, unless its owner says otherwise.
LEDGER = "silomix-ledger.json"
# Characters of a study's title that are kept: the coordinator writes it.
LONGEST_TITLE = 200


class Answered(BaseModel):
    """A study that was answered from a table.

    Attributes
    ----------
    study, title : its digest, and its line for people.
    silo : the table's silo in it.
    policy, rounding : name of the policy, and its minimum count and rounding.
    rows : digest of the coded rows that it was answered from.
    left : what left, by name of the record, and when it first did.
    """

    study: str
    title: str
    silo: str
    policy: str
    rounding: str
    rows: str
    left: dict[str, str]

    @property
    def since(self) -> str:
        """When the first answer left."""
        return min(self.left.values(), default="")

    def is_like(self, other: Answered) -> bool:
        """Tell whether the two are one study, answered alike: together they tell no more."""
        return (self.study, self.rows, self.rounding) == (other.study, other.rows, other.rounding)


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


class Table(BaseModel):
    """All that left from one table.

    Attributes
    ----------
    name : what its owner calls it, or its path.
    allowed : studies that the owner allowed, whatever the policy's number: digests.
    versions : the last one is what is counted.
    """

    name: str
    allowed: list[str] = []
    versions: list[Version] = []

    @property
    def ever(self) -> list[Answered]:
        """Studies answered from any version."""
        return [study for version in self.versions for study in version.studies]

    @property
    def counted(self) -> Version:
        """The version that counts."""
        return self.versions[-1] if self.versions else Version(since="")


class Ledger(BaseModel):
    """The file."""

    kind: Literal["silomix ledger"] = "silomix ledger"
    format: Literal[1] = 1
    tables: list[Table] = []

    def table(self, name: str | None) -> Table:
        """Return the table of that name, which is there from now on; the only one without a name.

        Of a table that nothing is said of afterwards, nothing is written.
        """
        names = [known.name for known in self.tables]
        if name is None and len(names) != 1:
            known = f"they are {', '.join(map(repr, names))}" if names else "it has none yet"
            raise SettingsError(
                f"the ledger does not say which table is meant; {known}: give --table-name NAME"
            )
        if name not in names and name is not None:
            self.tables.append(Table(name=name))
        return next(known for known in self.tables if name in (known.name, None))


@dataclass(frozen=True)
class Account:
    """One study, as the silo's ledger is to know it.

    Attributes
    ----------
    path : of the ledger.
    table, digest : the table's name, and the digest of its cells.
    entry : the study, from which nothing has left yet.
    policy : the silo's.
    """

    path: Path
    table: str
    digest: str
    entry: Answered
    policy: Policy


def open_account(
    loaded: Loaded,
    study: Study,
    silo: str,
    policy: Policy,
    data: Path,
    *,
    column: str | None = None,
    table_name: str | None = None,
    ledger: Path | None = None,
) -> Account:
    """Return the study's place in the silo's ledger, if the policy has one for it.

    Parameters
    ----------
    data : where the table is.
    column : names each row's silo, where the table has the rows of several.
    table_name : what its owner calls it; its path when left out.
    ledger : the file; beside the table when left out.

    Raises
    ------
    PolicyRefusal
        When the silo has answered as many studies as its policy allows, or the table has changed.
    FileError
        When the ledger is damaged, or cannot be written.
    """
    entry = Answered(
        study=digest(study),
        title=(study.title or "")[:LONGEST_TITLE],
        silo=silo,
        policy=policy.name,
        rounding=f"{policy.minimum_count}, {policy.round_to}",
        rows=digest_rows(loaded.shard),
        left={},
    )
    path, name = ledger or data.resolve().parent / LEDGER, table_name or str(data.resolve())
    own = name if column is None else f"{name}, {column} = {silo}"
    account = Account(path, own, loaded.digest, entry, policy)
    check_account(account)
    known = [one.name for one in read_ledger(path).tables]
    others = [other for other in known if not other.startswith(name)]
    if others and own not in known:
        told = (
            f"{path} has no table {own!r} yet, but knows {quoted(others)}; if this is one of them "
            "with other rows, stop here and give its name with --table-name: what has left it "
            "still counts"
        )
        warn(DataWarning(told))
    return account


def read_ledger(path: Path) -> Ledger:
    """Return what a ledger says; an empty one where there is none.

    Raises
    ------
    FileError
        When it is damaged or cannot be read: nobody can tell then what has left.
    """
    try:
        return Ledger.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Ledger()
    except (OSError, ValidationError) as error:
        reason = getattr(error, "strerror", "it is damaged, or of another version of silomix")
        raise FileError(
            f"the ledger {path} cannot be read, and without it nobody can tell what has left this "
            f"table: {reason}. Let its owner run this, or restore it from a copy. Only if there "
            "is none, and the owner accepts that nothing is counted, move it away"
        ) from None


@contextmanager
def _changing(path: Path) -> Iterator[Ledger]:
    """Let one process at a time look at the ledger, and change it: what changed is written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock")):
            ledger = read_ledger(path)
            before = ledger.model_copy(deep=True)
            yield ledger
            ledger.tables = [one for one in ledger.tables if one.versions or one.allowed]
            if ledger != before:
                text = json.dumps(ledger.model_dump(), indent=1) + "\n"
                replace_file(path, text.encode(), alone=True, private=True)
    except OSError as error:
        raise FileError(
            f"the ledger {path} cannot be written: {error.strerror}; what leaves must be counted, "
            "so nothing leaves: give another place with --ledger FILE, and use it from then on"
        ) from None


def check_account(account: Account) -> None:
    """Refuse a study that the policy does not allow beside those that were answered.

    Raises
    ------
    PolicyRefusal
        Saying why, and how the owner can allow it.
    FileError
        When the ledger cannot be read or written: what leaves could not be counted.
    """
    with _changing(account.path) as ledger:
        _refuse(ledger, account)


def note_left(account: Account, record: str, *, has_left: bool = False) -> None:
    """Write down that a record leaves, before it does; the first time alone.

    Parameters
    ----------
    record : its name.
    has_left : it did so before the ledger knew: it counts, and nothing is refused.
    """
    with _changing(account.path) as ledger:
        if not has_left:
            _refuse(ledger, account)
        table, now = ledger.table(account.table), _now()
        noted = next((one for one in table.ever if one.is_like(account.entry)), None)
        if noted is None:
            if not table.versions:
                table.versions.append(Version(since=now))
            noted = account.entry.model_copy()
            table.counted.digest = table.counted.digest or account.digest
            table.counted.studies.append(noted)
        noted.left = {record: now} | noted.left


def knows(account: Account) -> bool:
    """Tell whether the ledger has the study."""
    table = read_ledger(account.path).table(account.table)
    return any(one.is_like(account.entry) for one in table.ever)


def allow_study(path: Path, study: str, table: str | None = None) -> Ledger:
    """Let a study be answered from a table, and return the ledger.

    Parameters
    ----------
    study : its digest.
    table : its name; may be left out where the ledger has one table.
    """
    with _changing(path) as ledger:
        allowed = ledger.table(table).allowed
        allowed += [study] if study not in allowed else []
    return ledger


def begin_version(path: Path, table: str | None = None) -> Ledger:
    """Say that a table has new rows, which are counted anew, and return the ledger."""
    with _changing(path) as ledger:
        known = ledger.table(table)
        if not known.versions:
            raise SettingsError(
                f"nothing has left {known.name!r}, as far as {path} knows: there is no older "
                "version of it; `silomix ledger` lists the tables"
            )
        known.versions.append(Version(since=_now()))
    return ledger


def _refuse(ledger: Ledger, account: Account) -> None:
    """Raise a `PolicyRefusal` where a study must not be answered."""
    table, entry, limit = ledger.table(account.table), account.entry, account.policy.studies
    # a copy under another name is the same table
    others = [one.counted for one in ledger.tables if one is not table]
    copies = [version for version in others if version.digest == account.digest]
    studies = [study for version in (table.counted, *copies) for study in version.studies]
    if any(one.is_like(entry) for one in (*table.ever, *studies)):
        return
    if entry.study in table.allowed or limit >= UNLIMITED:
        return
    answered = {one.study: one for one in studies}
    own, name = answered.get(entry.study), account.table
    where = ["silomix", "ledger", "--ledger", str(account.path), "--table-name", name]
    first, otherwise = "To", ""
    if own is not None:
        least, base = own.rounding.split(", ")
        counts = f"counts rounded to {base}" if base != "1" else "exact counts"
        what = f"under its policy {own.policy!r}, with minimum count {least} and {counts}"
        first = "Answer with the earlier policy (--policy); to"
        if own.rows != entry.rows:
            what, first = "with other rows", "Answer with the earlier table; to"
        problem = f"this study was answered from {name!r} {what}, on {own.since[:10]}"
    elif table.counted.digest not in (None, account.digest):
        last = table.counted.studies[-1]
        otherwise = f"; or for this and later ones: {shlex.join([*where, '--new-version'])}"
        then = f"study {last.study[:16]} was answered, on {last.since[:10]}"
        problem = f"{name!r} is not as it was when {then}: rows or columns differ"
    elif len(answered) >= limit:
        allowed = "1 study" if limit == 1 else f"{limit:,} studies"
        listed = ", ".join(f"{one.study[:16]} on {one.since[:10]}" for one in answered.values())
        otherwise = "; or let the policy's owner raise studies"
        problem = f"its policy {account.policy.name!r} allows {allowed} of one table; answered "
        problem += f"from {name!r}: {listed or 'none yet'}"
    else:
        return
    raise PolicyRefusal(
        f"{entry.silo}: {problem}. Two answers compared can reveal more than either alone, most of "
        f"all about rows that differ. {first} allow this study all the same: "
        f"{shlex.join([*where, '--allow', entry.study])}{otherwise}",
        code="studies",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
