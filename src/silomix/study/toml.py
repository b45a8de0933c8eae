"""TOML text -> plain values, without the time and memory that a hostile file could take."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from silomix.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

QUOTED_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)'
    r"|'''.*?(?:'''|\Z)"
    r'|"(?:\\[^\n]|[^"\\\n])*"?'
    r"|'[^'\n]*'?"
    r"|#[^\n]*",
    re.DOTALL,
)
"""What dots may stand in without nesting; an open quote runs on, so that a scan is linear."""

DEEP_KEY = re.compile(r"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){8}")


def parse_toml(text: str, path: Path, what: str) -> dict[str, Any]:
    """Return what a text says.

    Parameters
    ----------
    path : the file that it is from.
    what : what the file should be, "a study file".

    Raises
    ------
    SettingsError
        When it is no TOML, or not of the kind that people write.
    """
    too_deep = f"{path} nests tables or lists too deeply for {what}"
    # tomllib takes time and memory quadratic in the parts of a dotted key
    if DEEP_KEY.search(QUOTED_OR_COMMENT.sub("quoted", text)):
        raise SettingsError(too_deep)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise SettingsError(too_deep) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    except ValueError:  # the only other thing Python refuses to read
        raise SettingsError(f"{path} has a number of too many digits") from None
