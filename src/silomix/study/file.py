"""The study file: `study.toml`, and the digest that tells one study from another."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from silomix.atomic import read_file, replace_file
from silomix.errors import SettingsError
from silomix.study.problems import file_place, quote
from silomix.study.record import validate
from silomix.study.study import FORMAT, Study
from silomix.study.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LARGEST_FILE = 5_000_000
"""Bytes: some ten thousand variables."""

LINE = 96

HEADER = """\
# A silomix study: every setting that its result depends on.
# All silos and the coordinator work from the same file; a digest of everything in it but the
# title tells them so. A change made after the first silo has answered makes another study.
"""


def digest(study: Study) -> str:
    """Return the SHA-256, in hexadecimal, of every setting but the title."""
    settings = study.model_dump(exclude={"title"})
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def write_study(study: Study, path: str | Path) -> Path:
    """Write the study file, whole or not at all, and return its path.

    Examples
    --------
    >>> study = silomix.make_study(draws.shard.schema, ["north", "south"])
    >>> silomix.write_study(study, "study.toml").name
    'study.toml'
    """
    target = Path(path)
    try:
        replace_file(target, _render(study).encode())
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {error.strerror}") from None
    return target


def _render(study: Study) -> str:
    """Return the text of the study file."""
    document = study.model_dump(exclude_none=True)
    variables = document.pop("variables")
    lines = [HEADER, *_table(document, "")]
    for variable in variables:
        lines += ["\n[[variables]]", *_entries(variable)]
    return "\n".join(lines) + "\n"


def _table(table: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the lines of a table, and of the tables inside it."""
    if name:
        yield f"\n[{name}]"
    yield from _entries({key: v for key, v in table.items() if not isinstance(v, dict)})
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _table(value, f"{name}.{key}" if name else key)


def _entries(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each value, the method first, and more for a long list."""
    for key, value in sorted(values.items(), key=lambda entry: entry[0] != "method"):
        lines = tomli_w.dumps({key: value}).removesuffix("\n").split("\n")
        inside = " ".join(line.strip() for line in lines[1:-1]).removesuffix(",")
        if lines[1:] and len(inside) + len(key) + len(" = []") <= LINE:
            lines = [f"{key} = [{inside}]"]
        yield from lines


def read_study(path: str | Path) -> Study:
    """Read a study file: complete, since a default may differ between versions.

    Raises
    ------
    SettingsError
        With all that is wrong in the file, in its own words.

    Examples
    --------
    >>> study = silomix.make_study(draws.shard.schema, ["north", "south"])
    >>> path = silomix.write_study(study, "study.toml")
    >>> silomix.read_study(path) == study
    True
    """
    source = Path(path)
    document = parse_toml(_read_text(source), source, "a study file")
    version = document.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise SettingsError(
            f"{source} is a study file of format {quote(version)}, and this silomix reads "
            f"format {FORMAT}; use the version of silomix that the study was made with"
        )
    place = partial(file_place, document)
    return validate(Study, document, source=str(source), place=place, complete=True)


def _read_text(path: Path) -> str:
    """Return the text of a file of reasonable size."""
    try:
        content = read_file(path, LARGEST_FILE + 1)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror}; give the path of a study file"
        ) from None
    if len(content) > LARGEST_FILE:
        limit = f"{LARGEST_FILE // 1_000_000} MB"
        raise SettingsError(f"{path} is larger than {limit}; is it really a study file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(
            f"{path} is not UTF-8 text: line {line} has the byte 0x{content[error.start]:02x}; "
            "save it with the encoding UTF-8"
        ) from None
