"""The study file, `study.toml`, and the digest that identifies a study."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from silomix.errors import SettingsError
from silomix.model.files import read_file, replace_file, writing
from silomix.study.settings import FORMAT, Study
from silomix.study.validation import quote, validate

# Limits on bytes, and on values, keys and tables: enough for ten thousand variables.
LARGEST_FILE, MOST_PARTS = 5_000_000, 200_000
# Most full stops in a line.
MOST_DOTS = 200

LINE = 96

HEADER = """\
# A silomix study: every setting that its result depends on.
# All silos and the coordinator work from the same file; a digest of everything in it but the
# title shows that they do. A change made after the first silo has answered makes another study.

"""

SPREAD_LIST = re.compile(r"^(\S+ = \[)\n((?:    .*\n)+)\]$", re.MULTILINE)


def write_study(study: Study, path: str | Path) -> Path:
    """Write the study file atomically, and return its path.

    Examples
    --------
    >>> study = silomix.make_study(draws.shard.schema, ["north", "south"])
    >>> silomix.write_study(study, "study.toml").name
    'study.toml'
    """
    text = tomli_w.dumps(study.model_dump(exclude_none=True))
    return write_toml(path, HEADER + SPREAD_LIST.sub(_on_one_line, text))


def _on_one_line(spread: re.Match[str]) -> str:
    """Put a list on one line, if it is short enough."""
    items = " ".join(line.strip() for line in spread[2].splitlines()).removesuffix(",")
    line = f"{spread[1]}{items}]"
    return line if len(line) <= LINE else spread[0]


def read_study(path: str | Path) -> Study:
    """Read a study file; it must be complete, since a default may differ between versions.

    Raises
    ------
    SettingsError
        With all problems of the file, by the names it uses.

    Examples
    --------
    >>> study = silomix.make_study(draws.shard.schema, ["north", "south"])
    >>> path = silomix.write_study(study, "study.toml")
    >>> silomix.read_study(path) == study
    True
    """
    document = read_toml(path, "a study file")
    version = document.get("format")
    if isinstance(version, int) and version > FORMAT:
        problem = f"{path} is a study file of format {quote(version)}"
        advice = "use the version of silomix that the study was made with"
        raise SettingsError(f"{problem}, and this silomix reads format {FORMAT}; {advice}")
    return validate(Study, document, source=str(path), complete=True)


def write_toml(path: str | Path, text: str) -> Path:
    """Write a file of settings atomically."""
    target = Path(path)
    with writing(target):
        replace_file(target, text.encode())
    return target


def read_toml(path: str | Path, kind: str) -> dict[str, Any]:
    """Read a TOML file with bounds on the time and memory that a hostile one could take.

    Parameters
    ----------
    kind : the kind of file, such as "a study file".
    """
    try:
        content = read_file(Path(path), LARGEST_FILE + 1)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}; give the path of {kind}"
        raise SettingsError(f"{path} {reason}") from None
    if len(content) > LARGEST_FILE:
        limit = f"{LARGEST_FILE // 1000:,} kB"
        raise SettingsError(f"{path} is larger than {limit}; is it really {kind}?")
    if sum(map(content.count, (b",", b"=", b"["))) > MOST_PARTS:
        raise SettingsError(f"{path} has more than {MOST_PARTS:,} entries; is it really {kind}?")
    deep = f"{path} nests tables or lists too deeply for {kind}"
    # tomllib takes time quadratic in the parts of a dotted key, which is on one line
    if any(line.count(b".") > MOST_DOTS for line in content.splitlines()):
        raise SettingsError(deep)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise SettingsError(deep) from None
    except ValueError as error:  # not UTF-8, not TOML, or a number of too many digits
        raise SettingsError(f"{path} is not valid TOML, in UTF-8: {error}") from None
