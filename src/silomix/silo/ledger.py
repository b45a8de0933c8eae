"""What a silo has answered, table by table: one file, which outlives its stores.

A policy rounds what leaves in one study. The same rows rounded again in another, or with one person
more, can be held against what has left, and tell of single persons. So a silo counts the studies
that it answers from a table, and refuses another, or the table with other rows, until its owner
says so. Only the file's owner may open it, and it is there whole or not at all.
"""

from __future__ import annotations

import json
import shlex
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from silomix.errors import FileError, PolicyRefusal, SettingsError
from silomix.model.files import OWNERS_FILE, replace_file
from silomix.silo.store import locked
from silomix.study.policy import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from silomix.study.policy import Policy

# Beside the table, unless its owner says otherwise.
LEDGER = "silomix-ledger.json"

KIND: Literal["silomix ledger"] = "silomix ledger"
FORMAT: Literal[1] = 1
# Bytes; a study takes a few hundred.
LARGEST_FILE = 100_000_000
LONGEST_TITLE = 200

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Entry(BaseModel):
    """Base of the records in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Answered(Entry):
    """A study that was answered from a table.

    Attributes
    ----------
    study, title : its digest, and its line for people.
    silo : the table's silo in it.
    policy, rounding : name of the policy, and its minimum count and rounding.
    rows : digest of the coded rows that it was answered from.
    left : what left, by name of the record, and when it first did.
    """

    study: Digest
    title: str
    silo: str
    policy: str
    rounding: str
    rows: Digest
    left: dict[str, str]

    @property
    def since(self) -> str:
        """When the first answer left."""
        return min(self.left.values(), default="")


class Version(Entry):
    """A table as long as it stays the same.

    Attributes
    ----------
    since : when it was first answered from, or said to be new.
    digest : of its cells; None until it is answered from.
    studies : answered from it.
    """

    since: str
    digest: Digest | None = None
    studies: tuple[Answered, ...] = ()


class Table(Entry):
    """All that left from one table.

    Attributes
    ----------
    name : what its owner calls it, or its path.
    allowed : studies that the owner allowed, whatever the policy's number: digests.
    versions : the last one is what is counted.
    """

    name: str
    allowed: tuple[Digest, ...] = ()
    versions: tuple[Version, ...] = ()

    @property
    def ever(self) -> tuple[Answered, ...]:
        """Studies answered from any version."""
        return tuple(study for version in self.versions for study in version.studies)

    @property
    def studies(self) -> tuple[Answered, ...]:
        """Those that count."""
        return self.versions[-1].studies if self.versions else ()

    @property
    def digest(self) -> str | None:
        """Of the table that counts."""
        return self.versions[-1].digest if self.versions else None


class Ledger(Entry):
    """The file."""

    kind: Literal["silomix ledger"] = KIND
    format: Literal[1] = FORMAT
    tables: tuple[Table, ...] = ()

    def table(self, name: str) -> Table:
        """Return the table of that name, a new one where there is none."""
        return next((table for table in self.tables if table.name == name), Table(name=name))

    def with_table(self, changed: Table) -> Ledger:
        """Return the ledger with this table in the place of the one of its name."""
        others = [table for table in self.tables if table.name != changed.name]
        return self.model_copy(update={"tables": (*others, changed)})


@dataclass(frozen=True)
class Account:
    """One study, as the silo's ledger knows it.

    Attributes
    ----------
    path : of the ledger.
    table, digest : the table's name, and the digest of its cells.
    rows : digest of its rows in the study's levels.
    study, title : the study's digest, and its line for people.
    silo, policy : the silo, and its policy.
    """

    path: Path
    table: str
    digest: str
    rows: str
    study: str
    title: str
    silo: str
    policy: Policy

    @property
    def rounding(self) -> str:
        """What the policy does to counts, as two numbers."""
        return f"{self.policy.minimum_count}, {self.policy.round_to}"


def read_ledger(path: Path) -> Ledger:
    """Return what a ledger says; an empty one where there is none.

    Raises
    ------
    FileError
        When it is damaged or cannot be read: nobody can tell then what has left.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        with suppress(PermissionError):  # somebody else's file is theirs to close
            path.chmod(OWNERS_FILE)
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        raise FileError(
            f"the ledger {path} cannot be read: {error.strerror}; let its owner run this, or give "
            "another with --ledger"
        ) from None
    try:
        return Ledger.model_validate_json(content)
    except ValidationError:
        raise FileError(
            f"the ledger {path} is damaged, or of another version of silomix, and without it "
            "nobody can tell what has left this table; bring it back from a copy. Only if there is "
            "none, and the table's owner accepts that nothing is counted, move it away"
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
    with _held(account.path):
        problem = _refusal(read_ledger(account.path), account)
    if problem is not None:
        raise PolicyRefusal(problem, code="studies")


def note_left(account: Account, record: str, *, has_left: bool = False) -> None:
    """Write down that a record leaves, before it does; the first time alone.

    Parameters
    ----------
    record : its name.
    has_left : it did so before the ledger knew: it counts, and nothing is refused.
    """
    with _held(account.path):
        ledger = read_ledger(account.path)
        problem = None if has_left else _refusal(ledger, account)
        if problem is not None:
            raise PolicyRefusal(problem, code="studies")
        changed = _with_answer(ledger, account, record)
        if changed != ledger:
            _write(account.path, changed)


def knows(account: Account) -> bool:
    """Tell whether the ledger has the study."""
    table = read_ledger(account.path).table(account.table)
    return any(_is_same(one, account) for one in table.ever)


def allow_study(path: Path, study: str, table: str | None = None) -> Ledger:
    """Let a study be answered from a table, and return the ledger.

    Parameters
    ----------
    study : its digest.
    table : its name; may be left out where the ledger has one table.
    """
    with _held(path):
        ledger = read_ledger(path)
        known = ledger.table(_only_table(ledger, path, table))
        allowed = dict.fromkeys((*known.allowed, study))
        changed = ledger.with_table(known.model_copy(update={"allowed": tuple(allowed)}))
        _write(path, changed)
    return changed


def begin_version(path: Path, table: str | None = None) -> Ledger:
    """Say that a table has new rows, which are counted anew, and return the ledger."""
    with _held(path):
        ledger = read_ledger(path)
        known = ledger.table(_only_table(ledger, path, table))
        if not known.versions:
            raise SettingsError(
                f"nothing has left from {known.name!r}, as far as {path} knows: there is no older "
                "version of it; `silomix ledger` lists the tables"
            )
        versions = (*known.versions, Version(since=_now()))
        changed = ledger.with_table(known.model_copy(update={"versions": versions}))
        _write(path, changed)
    return changed


def _only_table(ledger: Ledger, path: Path, table: str | None) -> str:
    names = [known.name for known in ledger.tables]
    if table is not None:
        return table
    if len(names) != 1:
        known = f"they are {', '.join(map(repr, names))}" if names else "it has none yet"
        raise SettingsError(
            f"{path} does not say which table is meant; {known}: give --table-name NAME"
        )
    return names[0]


def _refusal(ledger: Ledger, account: Account) -> str | None:
    """Return why a study must not be answered; None if it may."""
    table, limit = ledger.table(account.table), account.policy.studies
    # a copy under another name is the same table
    copies = [one for one in ledger.tables if one != table and one.digest == account.digest]
    studies = [*table.studies, *(study for copy in copies for study in copy.studies)]
    if any(_is_same(one, account) for one in (*table.ever, *studies)):
        return None
    if account.study in table.allowed or limit >= UNLIMITED:
        return None
    own = [one for one in studies if one.study == account.study]
    if own:
        return _other_rows(own[-1], account)
    if table.digest not in (None, account.digest):
        return _grown(table, account)
    answered = {one.study: one for one in studies}
    return _no_more(list(answered.values()), account) if len(answered) >= limit else None


def _is_same(one: Answered, account: Account) -> bool:
    return (one.study, one.rows, one.rounding) == (account.study, account.rows, account.rounding)


def _other_rows(one: Answered, account: Account) -> str:
    what = "other rows" if one.rows != account.rows else f"another rounding, {one.rounding}"
    return (
        f"{account.silo}: this study was answered from {account.table!r} with {what}, on "
        f"{one.since[:10]}; the two answers, held against each other, tell more than either. Use "
        f"the table and the policy of then, or, if that may be, say so: {_command(account)}"
    )


def _grown(table: Table, account: Account) -> str:
    last = table.studies[-1]
    return (
        f"{account.silo}: {account.table!r} is not as it was when study {last.study[:16]} was "
        f"answered, on {last.since[:10]}: rows or columns were added, changed or taken away. What "
        "left then and what would leave now, held against each other, tell of exactly these rows. "
        f"If that may be, say so for this study: {_command(account)}; or for this and later ones: "
        f"{_command(account, '--new-version')}"
    )


def _no_more(answered: list[Answered], account: Account) -> str:
    limit = account.policy.studies
    allowed = "1 study" if limit == 1 else f"{limit:,} studies"
    listed = ", ".join(f"{one.study[:16]} on {one.since[:10]}" for one in answered)
    told = f"answered were {listed}" if answered else "none was answered yet"
    return (
        f"{account.silo}: its policy {account.policy.name!r} allows {allowed} of one table, and "
        f"from {account.table!r} {told}; each rounds anew, and their answers, held against each "
        "other, tell more than any. If that may be, say so for this study: "
        f"{_command(account)}; or let the policy's owner raise studies"
    )


def _command(account: Account, option: str = "") -> str:
    """Return what the owner has to say, as a shell takes it."""
    where = ["--ledger", str(account.path), "--table-name", account.table]
    said = [option] if option else ["--allow", account.study]
    return shlex.join(["silomix", "ledger", *where, *said])


def _with_answer(ledger: Ledger, account: Account, record: str) -> Ledger:
    """Return the ledger with a record that left."""
    table, now = ledger.table(account.table), _now()
    versions = list(table.versions or (Version(since=now),))
    for place, version in enumerate(versions):
        for at, one in enumerate(version.studies):
            if _is_same(one, account):
                noted = one.model_copy(update={"left": {record: now} | one.left})
                studies = (*version.studies[:at], noted, *version.studies[at + 1 :])
                versions[place] = version.model_copy(update={"studies": studies})
                return ledger.with_table(table.model_copy(update={"versions": tuple(versions)}))
    new = Answered(
        study=account.study,
        title=account.title[:LONGEST_TITLE],
        silo=account.silo,
        policy=account.policy.name,
        rounding=account.rounding,
        rows=account.rows,
        left={record: now},
    )
    last = versions[-1]
    versions[-1] = last.model_copy(
        update={"digest": last.digest or account.digest, "studies": (*last.studies, new)}
    )
    return ledger.with_table(table.model_copy(update={"versions": tuple(versions)}))


def _write(path: Path, ledger: Ledger) -> None:
    text = json.dumps(ledger.model_dump(mode="json"), indent=1) + "\n"
    try:
        replace_file(path, text.encode(), alone=True, private=True)
    except OSError as error:
        raise _unwritable(path, error) from None


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Let one process at a time look and write."""
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(path.with_name(f".{path.name}.lock")))
        except OSError as error:
            raise _unwritable(path, error) from None
        yield


def _unwritable(path: Path, error: OSError) -> FileError:
    return FileError(
        f"the ledger {path} cannot be written: {error.strerror}; what leaves must be counted, so "
        "nothing does: give another place with --ledger FILE, and use that one from then on"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
