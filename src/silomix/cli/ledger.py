"""The command of a table's owner: what has left, and what may."""
# annotations are evaluated here, since typer builds the options from them

import re
from pathlib import Path
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from silomix import options as opt
from silomix.ledger import LEDGER, Ledger, Table, allow_study, begin_version, read_ledger
from silomix.report.display import table_view
from silomix.report.silo_sections import REPLY_NAMES
from silomix.study import digest, read_study
from silomix.terminal import explaining, show

DIGEST = re.compile("[0-9a-f]{64}", re.ASCII)
SHOWN = 16


def ledger_command(
    *,
    ledger: opt.LedgerFile = None,
    data: opt.CountedTable = None,
    table_name: opt.TableName = None,
    allow: opt.AllowStudy = None,
    new_version: opt.NewVersion = False,
    as_json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Show which studies were answered from a table, and let its owner allow another."""
    with explaining(debug=debug):
        if allow is not None and new_version:
            raise typer.BadParameter("--allow and --new-version are two decisions; take one")
        path = ledger or (data.resolve().parent if data else Path()) / LEDGER
        name = table_name or (str(data.resolve()) if data else None)
        if allow is not None:
            found = allow_study(path, _digest(allow), name)
        elif new_version:
            found = begin_version(path, name)
        else:
            found = read_ledger(path)
        show(_record(found, path), _view(found), as_json=as_json, last=f"Ledger: {path}")


def _digest(study: str) -> str:
    """Return the digest of a study file, or the one that was given."""
    return study if DIGEST.fullmatch(study) else digest(read_study(Path(study)))


def _record(ledger: Ledger, path: Path) -> dict[str, Any]:
    return {"ledger": str(path), "tables": ledger.model_dump(mode="json")["tables"]}


def _view(ledger: Ledger) -> RenderableType:
    if not ledger.tables:
        return Text("Nothing has left, as far as this ledger knows.")
    return Group(*(part for table in ledger.tables for part in _table_view(table)))


def _table_view(table: Table) -> list[RenderableType]:
    words = ("study", "title", "silo", "policy", "first", "what left")
    lines = table_view("version", *words, left=words)
    for number, version in enumerate(table.versions, start=1):
        for one in version.studies:
            left = ", ".join(REPLY_NAMES.get(record, record) for record in one.left)
            cells = (one.study[:SHOWN], one.title, one.silo, one.policy, one.since[:10], left)
            lines.add_row(str(number), *(Text(_plain(cell)) for cell in cells))
    parts: list[RenderableType] = [Text(_plain(table.name), style="bold")]
    if table.versions and not table.studies:
        parts.append(Text("A new version begins with the next study that is answered."))
    parts += [Text(f"Allowed by its owner: {study[:SHOWN]}") for study in table.allowed]
    return [*parts, lines, Text()]


def _plain(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)
