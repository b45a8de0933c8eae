"""Numbers and counts for the designs, beside their categories or in their place.

Parameters stand in the order of the families: mean and standard deviation of each normal variable,
then the rate of each count, in the units of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.model.schema import Schema, Variable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from silomix.kernels.arrays import Bools, Floats, Ints, Rng

# Standard deviation of the clusters' means, in units of the typical spread within a cluster: the
# true parameters then tell rows apart about as well as they do in the designs' categories, with
# an adjusted Rand index of .95 to .98, or of .67 to .78.
MEAN_SPREADS: Mapping[str, float] = {"easy": 1.4, "poor": 0.7}
CENTRE, TYPICAL = 50.0, 10.0
# spreads are uniform between these parts of the typical one
NARROWEST, WIDEST = 0.6, 1.4
# rates are gamma variables of this shape and mean
RATE_SHAPE, RATE_MEAN = 2.0, 5.0
# cells of mixed tables that are empty, completely at random
MISSING = 0.1


def schema_of(variables: str) -> Schema:
    """Return ten variables, x1 … x10: "categorical", "gaussian", or "mixed"."""
    levels = {"categorical": (2,) * 4 + (3,) * 6, "gaussian": (), "mixed": (2, 2, 3, 3, 3)}
    categories = [tuple("123")[:size] for size in levels[variables]]
    numbers = ["gaussian"] * (10 - len(categories))
    if variables == "mixed":
        numbers[-1] = "poisson"
    kinds = [(words, "categorical") for words in categories] + [((), kind) for kind in numbers]
    named = (Variable(f"x{q}", words, kind) for q, (words, kind) in enumerate(kinds, 1))
    return Schema(tuple(named))


def number_names(schema: Schema) -> list[tuple[str, str]]:
    """Return what each parameter of the numbers stands for: (variable, word)."""
    words = {"gaussian": ("mean", "sd"), "poisson": ("rate",)}
    return [(variable.name, word) for variable in schema.numbers for word in words[variable.kind]]


def draw_numbers(rng: Rng, schema: Schema, clusters: int, spread: float) -> Floats:
    """Draw the parameters of the numbers: (cluster, parameter).

    Parameters
    ----------
    spread : of the clusters' means, one of `MEAN_SPREADS`.
    """
    columns = []
    for _, word in number_names(schema):
        if word == "mean":
            columns.append(rng.normal(CENTRE, spread * TYPICAL, clusters))
        elif word == "sd":
            columns.append(TYPICAL * rng.uniform(NARROWEST, WIDEST, clusters))
        else:
            columns.append(rng.gamma(RATE_SHAPE, RATE_MEAN / RATE_SHAPE, clusters))
    return np.stack(columns, axis=1) if columns else np.empty((clusters, 0))


def drift_numbers(rng: Rng, schema: Schema, shared: Floats, kappa: Floats, silos: int) -> Floats:
    """Draw each silo's means from N(m, σ²/(κ + 1)), its rates from Gamma((κ + 1) r, κ + 1).

    Parameters
    ----------
    shared : (cluster, parameter); spreads do not drift.
    kappa : (variable,), of the numbers; at infinity the silos are alike.

    Returns
    -------
    (silo, cluster, parameter)
    """
    by_silo = np.tile(shared, (silos, 1, 1))
    of_variable = dict(zip((v.name for v in schema.numbers), kappa + 1.0, strict=True))
    for place, (name, word) in enumerate(number_names(schema)):
        size, own = of_variable[name], by_silo[:, :, place]
        if word == "mean" and np.isfinite(size):
            own += shared[:, place + 1] / np.sqrt(size) * rng.standard_normal(own.shape)
        elif word == "rate" and np.isfinite(size):
            own[:] = rng.standard_gamma(size * own) / size
    return by_silo


def draw_number_cells(rng: Rng, schema: Schema, parameters: Floats, group: Ints) -> Floats:
    """Draw each row's numbers given its group: (row, number variable).

    Parameters
    ----------
    parameters : (group, parameter); group : (row,)
    """
    of_row, columns = parameters[group].T, []
    for place, (_, word) in enumerate(number_names(schema)):
        if word == "mean":
            columns.append(rng.normal(of_row[place], of_row[place + 1]))
        elif word == "rate":
            columns.append(rng.poisson(of_row[place]).astype(np.float64))
    return np.stack(columns, axis=1) if columns else np.empty((len(group), 0))


def draw_missing(rng: Rng, rows: int, variables: str) -> Bools:
    """Draw which cells of a table are empty: (row, variable)."""
    return rng.random((rows, 10)) < (MISSING if variables == "mixed" else 0.0)
