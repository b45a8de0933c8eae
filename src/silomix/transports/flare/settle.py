"""Rules of a participant's own processes, written into its kit each time it starts.

Whoever provisioned cannot loosen them: they are the participant's, and FLARE enforces them there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from silomix.transports.flare.kit import read_json, write_json

if TYPE_CHECKING:
    from pathlib import Path

CONTROLLER = "silomix.transports.flare.controller.StudyController"
EXECUTOR = "silomix.transports.flare.executor.SiloExecutor"

DEAD_AFTER = 20
"""Seconds of silence after which the server takes a site for dead."""

AT_A_SITE = {
    "submit_job": "any",
    "clone_job": "any",
    "manage_job": "any",
    "download_job": "any",
    "view": "any",
    "operate": "any",
    "shell_commands": "none",
    "byoc": "none",
}
"""What the coordinator's user may do at a site: run and stop jobs; read no file, bring no code."""


def settle_server(kit: Path) -> None:
    """Keep everything of the server in its kit, and notice within seconds that a site died."""
    local = kit / "local"
    settings = read_json(local / "resources.json.default")
    settings["class_allow_list"] = [CONTROLLER]
    settings["servers"][0]["heart_beat_timeout"] = DEAD_AFTER
    storage = settings["snapshot_persistor"]["args"]["storage"]["args"]
    storage["root_dir"] = str(kit / "snapshots")
    for component in settings["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "jobs")
    write_json(local / "resources.json", settings)


def settle_site(kit: Path) -> None:
    """Let a site build our executor and nothing else, and stream no log to the server."""
    local = kit / "local"
    settings = read_json(local / "resources.json.default")
    settings["class_allow_list"] = [EXECUTOR]
    settings["allow_log_streaming"] = False
    settings["components"] = [
        component for component in settings["components"] if component["id"] != "site_log_streamer"
    ]
    write_json(local / "resources.json", settings)
    rules = read_json(local / "authorization.json.default")
    rules["permissions"] = {"project_admin": AT_A_SITE}
    write_json(local / "authorization.json", rules)
