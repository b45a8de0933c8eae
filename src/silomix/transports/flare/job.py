"""The job that carries a study to the server: the study file and how to ask; no code, no data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from silomix.study import write_study
from silomix.transports.flare.kit import write_json
from silomix.transports.flare.settle import CONTROLLER, EXECUTOR

if TYPE_CHECKING:
    from pathlib import Path

    from silomix.study import Study

TASK = "silomix"
PROGRESS_TOPIC, ALIVE_TOPIC = "silomix_progress", "silomix_alive"
LETTER_KEY, CODE_KEY = "letter", "code"
STUDY_FILE = "study.toml"
SERVER_APP, SITE_APP = "coordinator", "silo"
FETCH_EVERY = 0.02
"""Seconds between a site's looks for a question; they set the pace of many short rounds."""
TRANSFER_WITHIN = 300.0
"""Seconds for one message over the network, however large."""
BEAT = 2.0
"""Seconds between a site's signs of life, to the server and in a run."""


@dataclass(frozen=True)
class Manners:
    """How the silos are asked.

    Attributes
    ----------
    deadline : seconds for each question.
    retries : how often a silo is asked again that missed the deadline or whose worker died.
    left_out : silos of the original study that this one goes on without.
    """

    deadline: float = 3600.0
    retries: int = 2
    left_out: tuple[str, ...] = ()


def write_job(folder: Path, study: Study, manners: Manners) -> Path:
    """Write the job of a study into a new folder, as FLARE reads it."""
    meta: dict[str, Any] = {
        "name": TASK,
        "resource_spec": {},
        # the coordinator itself decides what a missing silo means
        "min_clients": 1,
        "deploy_map": {SERVER_APP: ["server"], SITE_APP: list(study.silos)},
    }
    settings = {**asdict(manners), "left_out": list(manners.left_out)}
    server = {
        "format_version": 2,
        "server": {"heart_beat_timeout": 600, "task_request_interval": FETCH_EVERY},
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "workflows": [{"id": "study", "path": CONTROLLER, "args": settings}],
    }
    site = {
        "format_version": 2,
        "default_task_fetch_interval": FETCH_EVERY,
        "get_task_timeout": TRANSFER_WITHIN,
        "submit_task_result_timeout": TRANSFER_WITHIN,
        "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}],
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
    }
    coordinator, silo = (folder / app / "config" for app in (SERVER_APP, SITE_APP))
    coordinator.mkdir(parents=True)
    silo.mkdir(parents=True)
    write_json(folder / "meta.json", meta)
    write_json(coordinator / "config_fed_server.json", server)
    write_json(silo / "config_fed_client.json", site)
    write_study(study, coordinator / STUDY_FILE)
    return folder
