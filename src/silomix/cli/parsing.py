"""From options to keywords."""

from collections.abc import Sequence
from typing import Any

import typer

from silomix.data import read_table
from silomix.data.reading import Table
from silomix.errors import DataError
from silomix.roster import did_you_mean


def given(**settings: object) -> dict[str, Any]:
    """Return the settings that the command line has, those left out dropped."""
    return {name: value for name, value in settings.items() if value is not None}


def split(names: str | None) -> list[str] | None:
    """Return the names in a,b,c."""
    return None if names is None else [name.strip() for name in names.split(",")]


def columns_to_use(
    table: Table, variables: str | None, exclude: str | None, apart: Sequence[str | None]
) -> list[str] | None:
    """Return the variables that --variables names or --exclude leaves; None for all.

    Parameters
    ----------
    table : whose columns they are.
    variables, exclude : names as a,b,c; at most one of the two.
    apart : columns with another task, which are no variables.
    """
    if exclude is None:
        return split(variables)
    if variables is not None:
        raise typer.BadParameter("--variables and --exclude both say which columns; give one")
    columns = list(read_table(table).columns)
    unwanted = split(exclude) or []
    for name in unwanted:
        if name not in columns:
            raise DataError(
                f"the table has no column {name!r} to exclude{did_you_mean(name, columns)}; "
                "correct the name"
            )
    return [name for name in columns if name not in {*unwanted, *apart}]


def rounds(text: str | None) -> int | str | None:
    """Return a number of rounds; any other word is left for the study to judge."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return text
