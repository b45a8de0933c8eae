"""The tables that other programs' numbers are about: small ones that are here, and others.

Tables of patterns are those of the tests, tables of numbers are made of quantiles at the points of
a Halton sequence, so that they are the same everywhere. Further ones are read from the folder
SILOMIX_DATA, where there is one; they are not in this repository.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from statistical.published import table_of

NUMBERS = {
    "iris": slice(None),
    "wine": slice(None),
    "faithful": slice(None),
    "galaxies": slice(None),
    "penguins": slice(0, 4),
    "quine": ["Days"],
}
"""Tables of numbers in the folder, and which of their columns are used."""


def read(name):
    """Return a table, one row for each case; None if it is in a folder that is not there."""
    if name in MADE:
        return MADE[name]()
    if name in ("carcinoma", "values", "cheating", "gss82"):
        table = table_of(name)
        return table.loc[table.index.repeat(table.pop("n"))].reset_index(drop=True)
    path = Path(os.environ.get("SILOMIX_DATA") or os.devnull) / f"{name}.csv"
    if not path.exists():
        return None
    table = pd.read_csv(path, dtype=str, keep_default_na=False).replace("", None)
    table = table.drop(columns=["label", "silo"], errors="ignore")
    if name not in NUMBERS:
        return table
    chosen = NUMBERS[name]
    table = table.iloc[:, chosen] if isinstance(chosen, slice) else table[chosen]
    return table.astype(float).dropna().reset_index(drop=True)


def points(rows, columns):
    """Return evenly spread points, the same in all versions of SciPy: (row, column)."""
    return stats.qmc.Halton(columns, scramble=False).random(rows + 1)[1:]


def numbers():
    """Three correlated clusters of two variables."""
    at = points(120, 3)
    cluster = np.searchsorted([0.5, 0.8], at[:, 0], side="right")
    normal = stats.norm.ppf(at[:, 1:])
    normal[:, 1] = 0.6 * normal[:, 0] + 0.8 * normal[:, 1]
    centre = np.array([[0, 0], [3, 0], [1, 4]])[cluster]
    cells = centre + normal * np.array([1, 0.6, 1.2])[cluster, None]
    return pd.DataFrame(cells.round(2), columns=["x1", "x2"])


def counts():
    """Three clusters of two variables, the second of which varies more than Poisson counts."""
    at = points(120, 3)
    cluster = np.searchsorted([0.5, 0.8], at[:, 0], side="right")
    first = stats.poisson.ppf(at[:, 1], np.array([1, 4, 12])[cluster])
    means = np.array([6, 1, 3])[cluster]
    second = stats.nbinom.ppf(at[:, 2], 2, 2 / (2 + means))
    return pd.DataFrame({"x1": first, "x2": second})


def gaps():
    """Two clusters of four variables with three levels each, every seventh cell missing."""
    at = points(100, 5)
    second = at[:, 0] > 0.6
    edges = np.where(second[:, None, None], [0.1, 0.3], [0.6, 0.9])
    levels = (at[:, 1:, None] > edges).sum(axis=2)
    cells = np.array(["low", "middle", "high"], dtype=object)[levels]
    cells.ravel()[::7] = None
    return pd.DataFrame(cells, columns=["x1", "x2", "x3", "x4"])


MADE = {"numbers": numbers, "counts": counts, "gaps": gaps}
