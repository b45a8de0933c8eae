"""What a run leaves for whoever started it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from silomix.transports.flare.asking import AWAY, Asked
from silomix.transports.flare.kit import read_json

if TYPE_CHECKING:
    from pathlib import Path

OUTCOME_FILE, POSTERIOR_FILE = "outcome.json", "posterior.silomix"
STOPPED = "stopped"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes
    ----------
    status : "done", or "failed".
    code : why it failed: a code of `silomix.messages.REFUSALS`, "deadline", "away", "stopped",
        or the name of an error.
    silo : the silo it failed for, if one.
    message : the same in words.
    seconds : from the first question to the result.
    asked : the questions, in order.
    """

    status: str
    code: str | None = None
    silo: str | None = None
    message: str | None = None
    seconds: float = 0.0
    asked: tuple[Asked, ...] = ()

    @property
    def passing(self) -> bool:
        """Whether the run may succeed if it is started again as it is.

        A site went away, or FLARE stopped the run, as it does when it loses a site's process.
        """
        return self.code in {AWAY, STOPPED}


def read_outcome(folder: Path) -> Outcome | None:
    """Return the outcome of a downloaded run, wherever in it FLARE has put it; None without one."""
    path = next(folder.rglob(OUTCOME_FILE), None)
    if path is None:
        return None
    content: dict[str, Any] = read_json(path)
    asked = tuple(Asked(**entry) for entry in content.pop("asked"))
    return Outcome(**content, asked=asked)


def find_posterior(folder: Path) -> Path | None:
    """Return the saved posterior in a downloaded run."""
    return next(folder.rglob(POSTERIOR_FILE), None)
