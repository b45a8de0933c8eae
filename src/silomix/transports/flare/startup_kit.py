"""A FLARE start-up kit: one participant's folder, its own settings, and how its process starts.

``startup/`` comes from provisioning or enrolment; ``local/`` is the participant's own. Rules and
settings are written there each time it starts, so that whoever provisioned cannot loosen them, and
a job cannot set them.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.errors import FileError, MissingDependency
from silomix.model.files import OWNERS_FOLDER, private_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence

ORGANISATION = "silomix"
CONTROLLER = "silomix.transports.flare.controller.StudyController"
EXECUTOR = "silomix.transports.flare.executor.SiloExecutor"
SETTINGS_FILE = "silomix.json"
NOBODY_ELSE = 0o077
# Seconds of silence after which the server takes a site for dead.
DEAD_AFTER = 20
# Seconds between a site's signs of life, to the server and in a run.
HEARTBEAT = 2.0

RUN_JOBS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
# What the coordinator's user may do at a site: run and stop jobs; read no file, bring no code.
AT_A_SITE = dict.fromkeys(RUN_JOBS, "any") | {"shell_commands": "none", "byoc": "none"}

# Environment of FLARE's processes, which their children inherit.
VARIABLES = {
    # a dead site's outcome never comes: do not keep the job open for it
    "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "5",
    "NVFLARE_DEAD_CLIENT_GRACE_PERIOD": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True)
class SiteSettings:
    """What a silo decides for itself.

    Attributes
    ----------
    data, study, policy : paths of its table, the study it takes part in and its policy, which may
        also be the name of a preset.
    store : folder of what it keeps between questions.
    silo_column : column that names each row's silo, where the table has other silos' rows too.
    frequency : column of counts, where a row stands for many equal ones.
    without : silos of the study that it agrees to do without.
    threads : cores it may use; all when None.
    ledger, table : the file of what left, and the table's name in it; when None, beside the table,
        and its path.
    """

    data: str
    study: str
    policy: str
    store: str
    silo_column: str | None = None
    frequency: str | None = None
    without: Sequence[str] = ()
    threads: int | None = None
    ledger: str | None = None
    table: str | None = None


def require_flare() -> None:
    """Refuse at the door where NVIDIA FLARE is not installed."""
    if find_spec("nvflare") is None:
        raise MissingDependency("a live federation needs the package nvflare", extra="flare")


def kit_folder(kit: Path, kind: str) -> Path:
    """Return the whole path of a kit, after a check that it is a "server", "client" or "admin"."""
    require_flare()
    if not (kit / "startup" / f"fed_{kind}.json").is_file():
        raise FileError(
            f"{kit} is not the start-up kit of a FLARE {kind}: it has no startup/fed_{kind}.json; "
            "give the folder that `silomix flare provision`, or `enrol` for a site, made for it"
        )
    return kit.resolve()


def read_startup(kit: Path, kind: str) -> dict[str, Any]:
    """Return what a kit says of its participant: a site's name is its ``fqsn``."""
    return dict(read_json(kit_folder(kit, kind) / "startup" / f"fed_{kind}.json")[kind])


def server_command(kit: Path, journals: Path | None = None) -> list[str]:
    """Write the server's rules into its kit, and return the command that starts it.

    Parameters
    ----------
    journals : folder of the silos' answers; in the kit when None.
    """
    folder = _close(kit_folder(kit, "server"))
    local = folder / "local"
    resources = read_json(local / "resources.json.default")
    resources["class_allow_list"] = [CONTROLLER]
    resources["servers"][0]["heart_beat_timeout"] = DEAD_AFTER
    # FLARE's own places for these are outside the kit
    storage = resources["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(folder / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(folder / "jobs")
    write_json(local / "resources.json", resources)
    settings = {"journals": str((journals or folder / "journals").resolve())}
    write_json(local / SETTINGS_FILE, settings, private=True)
    return _command(folder, "server", "server_train")


def site_command(kit: Path, settings: SiteSettings) -> list[str]:
    """Write a site's rules and settings into its kit, and return the command that starts it."""
    folder = _close(kit_folder(kit, "client"))
    local = folder / "local"
    resources = read_json(local / "resources.json.default")
    resources["class_allow_list"] = [EXECUTOR]
    resources["allow_log_streaming"] = False
    resources["components"] = [
        part for part in resources["components"] if part["id"] != "site_log_streamer"
    ]
    write_json(local / "resources.json", resources)
    rules = read_json(local / "authorization.json.default")
    rules["permissions"] = {"project_admin": AT_A_SITE}
    write_json(local / "authorization.json", rules)
    write_json(local / SETTINGS_FILE, asdict(settings), private=True)
    name = read_startup(folder, "client")["fqsn"]
    beat = f"heart_beat_interval={HEARTBEAT}"
    return _command(folder, "client", "client_train", f"uid={name}", beat)


def become(command: list[str]) -> None:
    """Turn this process into FLARE's, so that signals reach it."""
    # FLARE's logs and job folders may quote a row: they are their owner's alone
    os.umask(NOBODY_ELSE)
    os.execve(command[0], command, os.environ | VARIABLES)


def read_json(path: Path) -> dict[str, Any]:
    """Return what a JSON file holds."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def write_json(path: Path, content: dict[str, Any], *, private: bool = False) -> None:
    """Write a mapping as JSON, whole or not at all; `private` for its owner alone."""
    replace_file(path, json.dumps(content, indent=1).encode(), private=private)


def _close(folder: Path) -> Path:
    """Keep everybody else out of a kit: it has a private key, logs and settings."""
    with suppress(PermissionError):  # one that somebody shared stays as its owner made it
        folder.chmod(OWNERS_FOLDER)
    for log in filter(Path.is_file, folder.glob("*log*")):
        private_file(log)
    (folder / "transfer").mkdir(exist_ok=True)
    return folder


def _command(folder: Path, kind: str, module: str, *more: str) -> list[str]:
    program = [sys.executable, "-m", f"nvflare.private.fed.app.{kind}.{module}"]
    settings = ["secure_train=true", f"org={ORGANISATION}", "config_folder=config", *more]
    return [*program, "-m", str(folder), "-s", f"fed_{kind}.json", "--set", *settings]
