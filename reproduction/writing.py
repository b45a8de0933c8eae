"""Tables as people read them."""

from __future__ import annotations

import numpy as np

LARGE = 1e4
"""From here on a number is written as 2e+07: its first digit says all there is to know."""


def number(value, digits, sign=""):
    """Return a number with so many decimals, or with its first digit alone if it is large."""
    return f"{value:{sign}.0e}" if abs(value) >= LARGE else f"{value:{sign}.{digits}f}"


def with_error(value, error, digits=3):
    """Return "value ± error"; a dash where there is none."""
    if not np.isfinite(value):
        return "–"
    text = number(value, digits)
    return f"{text} ± {number(error, digits)}" if np.isfinite(error) else text


def signed(value, error, digits=3):
    """Return "+value ± error"."""
    text = number(value, digits, sign="+")
    return f"{text} ± {number(error, digits)}" if np.isfinite(error) else text


def as_markdown(table):
    """A table, without another package."""
    lines = [list(table.columns), ["---"] * len(table.columns), *table.astype(str).values.tolist()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
