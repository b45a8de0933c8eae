"""A FLARE start-up kit: one participant's folder, its certificate, and its own settings.

``startup/`` is made when the participant is provisioned or enrolled; ``local/`` is its own: what
`silomix flare server` and `silomix flare site` decide is written there, never sent.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from silomix.atomic import replace_file
from silomix.errors import FileError

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS_FILE = "silomix.json"


@dataclass(frozen=True)
class SiteSettings:
    """What a silo decides for itself.

    Attributes
    ----------
    data, study, policy : its table, the study it takes part in, its policy: paths; a policy may
        also be the word of a preset.
    store : folder of what it keeps between questions.
    silo_column : column that says whose row it is, where the table holds other silos' rows too.
    frequency : column of counts, where rows stand for many equal ones.
    without : silos of the study that it agrees to do without.
    threads : cores it may use; all when None.
    ledger, table : the file of what left, and the table's name in it; beside the table, and its
        path, when None.
    """

    data: str
    study: str
    policy: str
    store: str
    silo_column: str | None = None
    frequency: str | None = None
    without: tuple[str, ...] = ()
    threads: int | None = None
    ledger: str | None = None
    table: str | None = None


@dataclass(frozen=True)
class ServerSettings:
    """What the coordinator's server decides for itself: the folder of its journals."""

    journals: str


def kit_folder(kit: Path, kind: str) -> Path:
    """Return the whole path of a kit, after a check that it is one of that kind.

    Parameters
    ----------
    kind : "server", "client" or "admin", as FLARE calls them.
    """
    folder = kit.resolve()
    if not (folder / "startup" / f"fed_{kind}.json").is_file():
        word = {"server": "the server", "client": "a site", "admin": "an admin"}[kind]
        raise FileError(
            f"{kit} is no start-up kit of {word}: it has no startup/fed_{kind}.json; give the "
            "folder that `silomix flare provision`, or `enrol` for a site, made for it"
        )
    return folder


def site_name(kit: Path) -> str:
    """Return the silo that a site's kit is for: the name in its certificate."""
    content = read_json(kit_folder(kit, "client") / "startup" / "fed_client.json")
    return str(content["client"]["fqsn"])


def admin_name(kit: Path) -> str:
    """Return the user that an admin's kit is for."""
    content = read_json(kit_folder(kit, "admin") / "startup" / "fed_admin.json")
    return str(content["admin"]["username"])


def write_settings(kit: Path, settings: SiteSettings | ServerSettings) -> None:
    """Put the settings where the processes of this kit, and nobody else, find them."""
    write_json(kit / "local" / SETTINGS_FILE, asdict(settings), private=True)


def read_site_settings(local: Path) -> SiteSettings:
    """Return the settings of a site from the ``local`` folder of its kit."""
    content = read_json(local / SETTINGS_FILE)
    known = {field.name for field in fields(SiteSettings)}
    content = {name: value for name, value in content.items() if name in known}
    return SiteSettings(**{**content, "without": tuple(content["without"])})


def read_server_settings(local: Path) -> ServerSettings:
    """Return the settings of the server from the ``local`` folder of its kit."""
    return ServerSettings(journals=read_json(local / SETTINGS_FILE)["journals"])


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file that holds a mapping."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise FileError(f"{path} is missing or damaged; provision the kit again")
    return content


def write_json(path: Path, content: dict[str, Any], *, private: bool = False) -> None:
    """Write a mapping as JSON, whole or not at all; `private` for its owner alone."""
    replace_file(path, json.dumps(content, indent=1).encode(), private=private)
