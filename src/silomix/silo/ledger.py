"""What a silo has answered, table by table, and what it refuses because of that.

A policy rounds what leaves in one study. The same rows rounded again in another, or with one person
more, can be held against what has left, and tell of single persons. So a silo counts the studies
that it answers from a table, and refuses another, or the table with other rows, until its owner
says so. A question that failed on the rows counts too: that it failed is an answer.
"""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from silomix.errors import DataWarning, PolicyRefusal, SettingsError, warn
from silomix.model.sentences import plural, quoted
from silomix.silo import ledger_file
from silomix.study import Study, digest
from silomix.study.policy import UNLIMITED, Policy, echo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Characters of a study's title that are kept: the coordinator writes it.
LONGEST_TITLE = 200


class Digests(NamedTuple):
    """What a table is recognised by: SHA-256, in hexadecimal.

    Attributes
    ----------
    cells : of all its cells, in the order of the rows.
    rows : of the rows as the study codes them.
    columns : by name of the column, of its cells in any order.
    """

    cells: str
    rows: str
    columns: dict[str, str]


@dataclass(frozen=True)
class Account:
    """One study, as the silo's ledger is to know it.

    Attributes
    ----------
    path : of the ledger.
    table : its name.
    entry : the study, from which nothing has left yet.
    policy : the silo's.
    """

    path: Path
    table: str
    entry: ledger_file.Answered
    policy: Policy


def open_account(
    digests: Digests,
    study: Study,
    silo: str,
    policy: Policy,
    data: Path,
    *,
    column: str | None = None,
    table_name: str | None = None,
    ledger: Path | None = None,
) -> Account:
    """Study's place in the silo's ledger, if the policy has one for it.

    Parameters
    ----------
    data : where the table is.
    column : names each row's silo, where the table has the rows of several.
    table_name : what its owner calls it; its path when left out.
    ledger : the file; as in `find_ledger` when left out.

    Raises
    ------
    PolicyRefusal
        When the silo has answered as many studies as its policy allows, or the table has changed.
    FileError
        When the ledger is damaged, or cannot be written.
    """
    entry = ledger_file.Answered(
        study=digest(study),
        title=(study.title or "")[:LONGEST_TITLE],
        silo=silo,
        policy=policy.name,
        rounding=f"{policy.minimum_count}, {policy.round_to}",
        rows=digests.rows,
        cells=digests.cells,
        columns=digests.columns,
        left={},
    )
    ledger_file.refuse_old(data)
    path, name = ledger_file.find_ledger(ledger), table_name or str(data.resolve())
    account = Account(path, name if column is None else f"{name}, {column} = {silo}", entry, policy)
    check_account(account)
    _warn_of_likeness(account, name)
    return account


def _warn_of_likeness(account: Account, name: str) -> None:
    """Warn where a table that the ledger does not know looks like one that it does.

    Parameters
    ----------
    name : of the whole table, where a column says whose each row is.
    """
    tables, columns = ledger_file.read_ledger(account.path).tables, account.entry.columns
    if any(table.name == account.table or table.has(account.entry.cells) for table in tables):
        return
    alike = []
    for table in tables:
        for study in () if table.name.startswith(name) else table.ever:
            same = len(columns.items() & study.columns.items())
            shared = len(columns.keys() & study.columns.keys())
            if 2 * max(same, shared) > len(columns) or not study.columns:
                alike.append((same, table.name, study.since))
    if not alike:
        return
    same, other, since = max(alike)
    text = f"{account.path} has no table {account.table!r} yet, but knows "
    text += f"{quoted(list(dict.fromkeys(name for _, name, _ in alike)))}"
    if 2 * same > len(columns):
        text += f": {same} of its {plural(len(columns), 'column')} are those of {other!r}, "
        text += f"answered on {since[:10]}, though perhaps in another order of the rows"
    warn(
        DataWarning(
            f"{text}; if this is one of them with other rows, stop here and give its name with "
            "--table-name: what has left it still counts"
        )
    )


def check_account(account: Account) -> None:
    """Refuse a study that the policy does not allow beside those that were answered.

    Raises
    ------
    PolicyRefusal
        Saying why, and how the owner can allow it.
    FileError
        When the ledger cannot be read or written: what leaves could not be counted.
    """
    with ledger_file.changing(account.path) as ledger:
        _refuse(ledger, account)


def note_left(account: Account, record: str, *, has_left: bool = False) -> None:
    """Write down that a record leaves, before it does; the first time alone.

    Parameters
    ----------
    record : its name, or `FAILED` where only that a question failed leaves.
    has_left : it did so before the ledger knew: it counts, and nothing is refused.
    """
    with _noting(account, has_left=has_left) as noted:
        if noted.only_failed:
            noted.policy, noted.rounding = account.entry.policy, account.entry.rounding
        if record not in noted.left:
            noted.left = {record: _now()} | noted.left


@contextmanager
def counting(account: Account, kind: str, *, has_left: bool = False) -> Iterator[dict[str, int]]:
    """Questions of a kind in a study, and how often each counts; what is added is written.

    One process at a time gets them, and a study that is refused none.
    """
    with _noting(account, has_left=has_left) as noted:
        yield noted.asked.setdefault(kind, {})


@contextmanager
def _noting(account: Account, *, has_left: bool) -> Iterator[ledger_file.Answered]:
    """Study in the ledger, to be changed; it is there from now on.

    So is the policy under which the table is answered from, and how that has changed.
    """
    with ledger_file.changing(account.path) as ledger:
        if not has_left:
            _refuse(ledger, account)
        table, entry, now = ledger.table(account.table), account.entry, _now()
        noted = next((one for one in table.ever if one.is_like(entry)), None)
        if noted is None:
            if not table.versions:
                table.versions.append(ledger_file.Version(since=now))
            noted = entry.model_copy(deep=True)
            table.counted.digest = table.counted.digest or entry.cells
            table.counted.studies.append(noted)
        yield noted
        if has_left:
            return
        settings = echo(account.policy)
        for part in ("exchanges", "limits"):  # by name, such as "exchanges.polish"
            settings |= {f"{part}.{key}": value for key, value in settings.pop(part).items()}
        copies = (one for one in ledger.tables if one.has(entry.cells) and one.policy)
        known = table.policy or next((one.policy for one in copies), {})
        before = {key: value for key, value in known.items() if settings.get(key) != value}
        if before:
            after = {key: settings.get(key) for key in before}
            table.changes.append(ledger_file.PolicyChange(at=now, before=before, now=after))
        table.policy = settings


def knows(account: Account) -> bool:
    """Whether the ledger has the study."""
    table = ledger_file.read_ledger(account.path).table(account.table)
    return any(one.is_like(account.entry) for one in table.ever)


def allow_study(path: Path, study: str, table: str | None = None) -> ledger_file.Ledger:
    """Let a study be answered from a table, and return the ledger.

    Parameters
    ----------
    study : its digest.
    table : its name; may be left out where the ledger has one table.
    """
    with ledger_file.changing(path) as ledger:
        allowed = ledger.table(table).allowed
        allowed += [study] if study not in allowed else []
    return ledger


def begin_version(path: Path, table: str | None = None) -> ledger_file.Ledger:
    """Declare that a table has new rows, which are counted anew; return the ledger."""
    with ledger_file.changing(path) as ledger:
        known = ledger.table(table)
        if not known.versions:
            raise SettingsError(
                f"nothing has left {known.name!r}, as far as {path} knows: there is no older "
                "version of it; `silomix ledger` lists the tables"
            )
        known.versions.append(ledger_file.Version(since=_now()))
    return ledger


def _refuse(ledger: ledger_file.Ledger, account: Account) -> None:
    """Raise a `PolicyRefusal` where a study must not be answered."""
    table, entry, limit = ledger.table(account.table), account.entry, account.policy.studies
    # the same cells under another name are the same table
    same = [table, *(one for one in ledger.tables if one is not table and one.has(entry.cells))]
    counted = [
        (one.name, study)
        for one in same
        for version in one.versions
        if version.has(entry.cells) or version is table.counted
        for study in version.studies
    ]
    if any(study.is_like(entry) for study in (*table.ever, *(study for _, study in counted))):
        return
    if limit >= UNLIMITED or any(entry.study in one.allowed for one in same):
        return
    answered = {study.study: (one, study) for one, study in counted}
    source, earlier = answered.get(entry.study, (account.table, None))
    where = ["silomix", "ledger", "--ledger", str(account.path), "--table-name", account.table]
    first, otherwise = "To", ""
    if earlier is not None:
        least, base = earlier.rounding.split(", ")
        counts = f"counts rounded to {base}" if base != "1" else "exact counts"
        what = f"under its policy {earlier.policy!r}, with minimum count {least} and {counts}"
        first = "Answer with the earlier policy (--policy); to"
        if earlier.rows != entry.rows:
            what, first = "with other rows", "Answer with the earlier table; to"
        problem = f"this study was answered from {source!r} {what}, on {_since(earlier)}"
    elif table.counted.digest not in (None, entry.cells):
        last = table.counted.studies[-1]
        otherwise = f"; or for this and later ones: {shlex.join([*where, '--new-version'])}"
        then = f"study {last.study[:16]} was answered, on {_since(last)}"
        problem = f"{account.table!r} is not as it was when {then}: rows or columns differ"
    elif len(answered) >= limit:
        allowed = "1 study" if limit == 1 else f"{limit:,} studies"
        names = quoted(list(dict.fromkeys(name for name, _ in answered.values())))
        listed = ", ".join(f"{one.study[:16]} on {_since(one)}" for _, one in answered.values())
        otherwise = "; or let the policy's owner raise studies"
        problem = f"its policy {account.policy.name!r} allows {allowed} of one table; answered "
        problem += f"from {names or repr(account.table)}: {listed or 'none yet'}"
    else:
        return
    raise PolicyRefusal(
        f"{entry.silo}: {problem}. Two answers compared can reveal more than either alone, most of "
        f"all about rows that differ. {first} allow this study all the same: "
        f"{shlex.join([*where, '--allow', entry.study])}{otherwise}",
        code="studies",
    )


def _since(study: ledger_file.Answered) -> str:
    """Date on which a study was first answered, and whether it only failed."""
    return study.since[:10] + (" (it failed)" if study.only_failed else "")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
