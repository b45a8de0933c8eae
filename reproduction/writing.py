"""Tables as people read them."""

from __future__ import annotations

import numpy as np


def with_error(value, error, digits=3):
    """Return "value ± error"; a dash where there is none."""
    if not np.isfinite(value):
        return "–"
    if not np.isfinite(error):
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def signed(value, error, digits=3):
    """Return "+value ± error"."""
    text = f"{value:+.{digits}f}"
    return f"{text} ± {error:.{digits}f}" if np.isfinite(error) else text


def as_markdown(table):
    """A table, without another package."""
    lines = [list(table.columns), ["---"] * len(table.columns), *table.astype(str).values.tolist()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
