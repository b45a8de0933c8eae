"""The job that carries a study to the server, and what its run leaves: no code, no data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from silomix.errors import SettingsError
from silomix.study import write_study
from silomix.transports.flare.startup_kit import CONTROLLER, EXECUTOR, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from silomix.study import Study

TASK = "silomix"
PROGRESS_TOPIC, ALIVE_TOPIC = "silomix_progress", "silomix_alive"
PAYLOAD, CODE = "payload", "code"
STUDY_FILE, OUTCOME_FILE, POSTERIOR_FILE = "study.toml", "outcome.json", "posterior.silomix"
DEADLINE, AWAY, DIED, STOPPED = "deadline", "away", "died", "stopped"
# Seconds between a site's looks for a question; they set the pace of many short rounds.
FETCH_EVERY = 0.02
# Seconds for one message over the network, however large.
TRANSFER_WITHIN = 300.0


@dataclass(frozen=True)
class AskingRules:
    """How the silos are asked.

    Attributes
    ----------
    deadline : seconds for each question.
    retries : how often a silo is asked again that missed the deadline or whose worker died.
    left_out : silos of the original study that this one goes on without.
    """

    deadline: float = 3600.0
    retries: int = 2
    left_out: Sequence[str] = ()


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes
    ----------
    code : why it failed: a code of `silomix.messages.REFUSALS`, "deadline", "away", "stopped",
        or the name of an error; None when it is done.
    message : the same in words.
    seconds : from the first question to the result.
    asked : for each question, in order: its number and kind, the seconds until the last answer,
        the bytes sent and received, and how many answers the journal had (replayed).
    """

    code: str | None = None
    message: str = ""
    seconds: float = 0.0
    asked: Sequence[dict[str, Any]] = ()


def check_roster(study: Study, silos: Sequence[str]) -> None:
    """Refuse silos that the study does not have."""
    for name in silos:
        if name not in study.silos:
            raise SettingsError(
                f"the study has no silo {name!r}; its roster is {', '.join(study.silos)}: correct "
                "the name"
            )


def without(study: Study, silos: Sequence[str]) -> Study:
    """Return the study that goes on without these silos: another study, and its title says so.

    The roster deals the random streams and sets each silo's share of the prior, so nothing of
    the whole study's answers is used, and every silo that stays has to agree to it.
    """
    check_roster(study, silos)
    if not silos:
        return study
    staying = tuple(name for name in study.silos if name not in silos)
    if not staying:
        raise SettingsError("no silo is left to go on with; leave out fewer")
    title = f"{study.title or 'Untitled'} (without {', '.join(sorted(silos))})"
    return study.model_copy(update={"silos": staying, "title": title})


def write_job(folder: Path, study: Study, rules: AskingRules) -> Path:
    """Write the job of a study into a new folder, as FLARE reads it."""
    meta = {
        "name": TASK,
        "resource_spec": {},
        # the coordinator itself decides what a missing silo means
        "min_clients": 1,
        "deploy_map": {"coordinator": ["server"], "silo": list(study.silos)},
    }
    server = {
        "format_version": 2,
        "server": {"heart_beat_timeout": 600, "task_request_interval": FETCH_EVERY},
        "workflows": [{"id": "study", "path": CONTROLLER, "args": asdict(rules)}],
    }
    site = {
        "format_version": 2,
        "default_task_fetch_interval": FETCH_EVERY,
        "get_task_timeout": TRANSFER_WITHIN,
        "submit_task_result_timeout": TRANSFER_WITHIN,
        "executors": [{"tasks": [TASK], "executor": {"path": EXECUTOR, "args": {}}}],
    }
    coordinator, silo = folder / "coordinator" / "config", folder / "silo" / "config"
    coordinator.mkdir(parents=True)
    silo.mkdir(parents=True)
    write_json(folder / "meta.json", meta)
    write_json(coordinator / "config_fed_server.json", server)
    write_json(silo / "config_fed_client.json", site)
    write_study(study, coordinator / STUDY_FILE)
    return folder
