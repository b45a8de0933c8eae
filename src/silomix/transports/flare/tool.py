"""FLARE's own commands for certificates and kits, whose answer is one line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from silomix.errors import FileError

if TYPE_CHECKING:
    from pathlib import Path


def run_tool(*words: str | Path, advice: str) -> dict[str, Any]:
    """Run `nvflare` with these words and return what it says of the result.

    Parameters
    ----------
    advice : what to do when it refuses, for the end of the message.

    Raises
    ------
    FileError
        When FLARE refuses, with its reason.
    """
    # -P: a folder called nvflare in the working directory is not taken for the package
    start = [sys.executable, "-P", "-m", "nvflare.cli", "--format", "json"]
    done = subprocess.run(
        [*start, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    answer = _last_object(done.stdout)
    if answer.get("status") != "ok":
        unsaid = (done.stderr.strip().splitlines() or ["it does not say why"])[-1]
        reason = str(answer.get("message", unsaid)).replace("Invalid arguments. — ", "")
        raise FileError(f"FLARE refuses: {reason.rstrip('.')}; {advice}")
    return dict(answer["data"])


def _last_object(printed: str) -> dict[str, Any]:
    try:
        found = json.loads(printed.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
