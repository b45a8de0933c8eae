"""From options to keywords."""

from typing import Any


def given(**settings: object) -> dict[str, Any]:
    """Return the settings that the command line has, those left out dropped."""
    return {name: value for name, value in settings.items() if value is not None}


def split(names: str | None) -> list[str] | None:
    """Return the names in a,b,c."""
    return None if names is None else [name.strip() for name in names.split(",")]


def rounds(text: str | None) -> int | str | None:
    """Return a number of rounds; any other word is left for the study to judge."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return text
