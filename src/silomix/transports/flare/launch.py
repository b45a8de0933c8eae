"""Start FLARE's server or client process for a kit, with its own settings written first."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from silomix.atomic import OWNERS_FOLDER, private_file
from silomix.transports.flare.job import BEAT
from silomix.transports.flare.kit import kit_folder, site_name, write_settings
from silomix.transports.flare.provision import ORGANISATION
from silomix.transports.flare.settle import settle_server, settle_site

if TYPE_CHECKING:
    from silomix.transports.flare.kit import ServerSettings, SiteSettings

SERVER_VARIABLES = {
    # a dead site's outcome never comes: do not keep the job open for it
    "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "5",
    "NVFLARE_DEAD_CLIENT_GRACE_PERIOD": "1",
}
START = "silomix.transports.flare.start"
LOGS = "*log*"
"""Of FLARE and of the worker: log.txt, error_log.txt, audit.log and so on."""
STALE = ("pid.fl", "daemon_pid.fl", "shutdown.fl", "restart.fl")
"""Left in a kit by a process that was killed."""


def server_command(kit: Path, settings: ServerSettings) -> list[str]:
    """Write the server's settings into its kit, and return the command that starts it."""
    folder = kit_folder(kit, "server")
    _clear(folder)
    settle_server(folder)
    write_settings(folder, settings)
    return _command(folder, "server", "server_train")


def site_command(kit: Path, settings: SiteSettings) -> list[str]:
    """Write a site's settings into its kit, and return the command that starts it."""
    folder = kit_folder(kit, "client")
    _clear(folder)
    settle_site(folder)
    write_settings(folder, settings)
    name = site_name(folder)
    return _command(folder, "client", "client_train", f"uid={name}", f"heart_beat_interval={BEAT}")


def environment() -> dict[str, str]:
    """Return the environment of FLARE's processes, which their children inherit."""
    return {**os.environ, **SERVER_VARIABLES, "PYTHONUNBUFFERED": "1"}


def _command(folder: Path, kind: str, module: str, *more: str) -> list[str]:
    settings = ["secure_train=true", f"org={ORGANISATION}", "config_folder=config", *more]
    program = f"nvflare.private.fed.app.{kind}.{module}"
    start = [sys.executable, "-u", "-m", START, program, "-m", str(folder)]
    return [*start, "-s", f"fed_{kind}.json", "--set", *settings]


def _close(folder: Path) -> None:
    """Keep everybody else out of a kit: it has a private key, logs and settings."""
    with suppress(PermissionError):  # one that somebody shared stays as its owner made it
        folder.chmod(OWNERS_FOLDER)
    for log in filter(Path.is_file, folder.glob(LOGS)):
        private_file(log)


def _clear(folder: Path) -> None:
    _close(folder)
    (folder / "transfer").mkdir(exist_ok=True)
    for name in STALE:
        (folder / name).unlink(missing_ok=True)
