"""The policy file: `policy.toml`, complete, or a preset and what is changed in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import tomli_w

from silomix.atomic import read_file, replace_file
from silomix.errors import SettingsError
from silomix.policy.record import GIVES_AWAY, PRESETS, Policy, policy_named
from silomix.study.problems import file_place, quote
from silomix.study.record import validate
from silomix.study.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_FILE = 100_000
"""Bytes; a policy takes a few hundred."""

HEADER = """\
# A silomix policy: what this silo lets out. The silo owns it; no study can override it.
# minimum_count: fewest rows behind a released number (0: no rule). round_to: 1 for no rounding.
# studies: how many may be answered from one table; `silomix ledger` shows them, and allows more.
# [exchanges]: questions of each kind that may be answered in one study, 0 for none.
# [limits]: the most that a study may set; one beyond them is refused before any work.
"""

WIDTH = 100


def read_policy(path: str | Path) -> Policy:
    """Read a policy file.

    With `preset = "..."` the file changes single values of a preset; without, it states every
    value, since a default may differ between versions. A changed preset without a name of its
    own is called "changed from ...".

    Raises
    ------
    SettingsError
        With all that is wrong in the file, in its own words.

    Examples
    --------
    >>> path = silomix.write_policy(silomix.Policy(minimum_count=20), "policy.toml")
    >>> silomix.read_policy(path).minimum_count
    20
    """
    source = Path(path)
    document = _parse(source)
    stated = _from_preset(document, source) if "preset" in document else document
    place = partial(file_place, document)
    try:
        policy = validate(Policy, stated, source=str(source), place=place, complete=True)
    except SettingsError as error:
        if "preset" in document:
            raise
        advice = 'to state only what differs from a preset, begin the file with preset = "default"'
        raise SettingsError(f"{error}\n{advice}") from None
    started = PRESETS.get(str(document.get("preset")))
    if started is None or policy == started or "name" in document:
        return policy
    return policy.model_copy(update={"name": f"changed from {started.name}"})


def write_policy(policy: Policy, path: str | Path) -> Path:
    """Write the policy file, whole or not at all, and return its path.

    Next to each channel that it allows and no rule rounds, the file says what that gives away.

    Examples
    --------
    >>> silomix.write_policy(silomix.Policy(name="ours"), "policy.toml").name
    'policy.toml'
    """
    target = Path(path)
    text = HEADER + "".join(_with_warnings(policy))
    try:
        replace_file(target, text.encode())
    except OSError as error:
        raise SettingsError(f"{target} cannot be written: {error.strerror}") from None
    return target


def _with_warnings(policy: Policy) -> Iterator[str]:
    """Yield the lines of a policy file."""
    table = ""
    for line in tomli_w.dumps(policy.model_dump(mode="json")).splitlines(keepends=True):
        table = line.strip() if line.startswith("[") else table
        key, _, value = line.strip().partition(" = ")
        if table == "[exchanges]" and key in GIVES_AWAY and value != "0":
            told = f"{key} gives away {GIVES_AWAY[key]}"
            yield from (f"{part}\n" for part in _comment(told))
        yield line


def _comment(text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")


def find_policy(word: str) -> Policy:
    """Return the preset of that name, or else what the policy file of that path says."""
    if word in PRESETS:
        return PRESETS[word]
    path = Path(word)
    # a word with neither folder nor suffix was meant to be a preset
    return policy_named(word) if path.name == word and not path.suffix else read_policy(path)


def _from_preset(document: dict[str, Any], source: Path) -> dict[str, Any]:
    """Return the preset's values with those of the file in their place."""
    preset = document["preset"]
    if not isinstance(preset, str) or preset not in PRESETS:
        known = ", ".join(map(repr, PRESETS))
        raise SettingsError(f"{source}: preset is {quote(preset)}; it must be one of {known}")
    changed = {key: value for key, value in document.items() if key != "preset"}
    values = PRESETS[preset].model_dump(mode="json")
    for table in ("exchanges", "limits"):
        if isinstance(changed.get(table), dict):
            changed[table] = values[table] | changed[table]
    return values | changed


def _parse(path: Path) -> dict[str, Any]:
    """Return what the TOML file says."""
    try:
        content = read_file(path, LARGEST_FILE + 1)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be read: {error.strerror}; give the path of a policy file"
        ) from None
    if len(content) > LARGEST_FILE:
        limit = f"{LARGEST_FILE // 1000} kB"
        raise SettingsError(f"{path} is larger than {limit}; is it really a policy file?")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text; save it with the encoding UTF-8") from None
    return parse_toml(text, path, "a policy")
