"""Simulated tables: designs of Fendler et al. (2026), and tables like a schema.

`import silomix` always imports this package, because `silomix.simulate` is the function: imported
later, the package would take its place. So slow imports are inside functions, and
`silomix.simulate.cohort`, which needs pandas, is imported by its users.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import SettingsError
from silomix.model.schema import MISSING_LEVEL, Prior, Schema, Variable
from silomix.model.sentences import at_least, one_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd

    from silomix.families.product import Product
    from silomix.kernels.arrays import Array, Floats, Ints, Rng

SILO_COLUMN = "silo"  # says which silo a row belongs to

# Concentration of the symmetric Dirichlet that the level probabilities are drawn from.
SEPARABILITIES: Mapping[str, float] = {"easy": 0.3, "poor": 1.0}

# Standard deviation of the clusters' means, in units of the typical spread within a cluster: the
# true parameters then tell rows apart about as well as they do in the designs' categories, with
# an adjusted Rand index of .95 to .98, or of .67 to .78.
MEAN_SPREADS: Mapping[str, float] = {"easy": 1.4, "poor": 0.7}
CENTRE, TYPICAL = 50.0, 10.0
# spreads are uniform between these parts of the typical one
NARROWEST, WIDEST = 0.6, 1.4
# rates are gamma variables of this shape and mean
RATE_SHAPE, RATE_MEAN = 2.0, 5.0

# Clusters of each silo, equally likely within it: Fendler et al. (2026), table 1.
_PRESENT: Mapping[str, tuple[range, ...]] = {
    "homogeneous": (range(5),) * 4,
    "nested": (range(6), range(5), range(3), range(2)),
    "non-nested": (range(5), range(1, 6), range(3), range(2)),
}
DESIGNS = (*_PRESENT, "appendix-b")

# Levels and kind of a variable, and by word those of the ten.
TWO, THREE = (tuple("12"), "categorical"), (tuple("123"), "categorical")
NUMBER, COUNT = ((), "gaussian"), ((), "poisson")
VARIABLES = {
    "categorical": (TWO,) * 4 + (THREE,) * 6,
    "gaussian": (NUMBER,) * 10,
    "mixed": (TWO,) * 2 + (THREE,) * 3 + (NUMBER,) * 4 + (COUNT,),
}
# Cells of mixed tables that are empty, completely at random.
MISSING = 0.1

_DRIFT_STREAM, _MISSING_STREAM = 0x647266, 0x6D6973


def schema_of(variables: str) -> Schema:
    """Ten variables, x1 … x10, of the kinds named by a word of `VARIABLES`."""
    kinds = enumerate(VARIABLES[variables], 1)
    return Schema(tuple(Variable(f"x{q}", *kind) for q, kind in kinds))


@dataclass(frozen=True, eq=False)
class Truth:
    """True parameters and labels of a simulated table.

    Attributes
    ----------
    labels : (row,), the cluster of each row, from 0 on.
    weights : (cluster,), share of each cluster in the population: the mean of
        `weights_by_silo`, weighted by the silos' rows.
    weights_by_silo : (silo, cluster), the probabilities the labels of a silo were drawn from.
    probabilities : (cluster, parameter), the profiles that the silos share, columns as in `levels`:
        level probabilities; of numbers, mean and standard deviation, of counts, the rate.
    levels : of each column, (variable, level), or (variable, "mean"), "sd" or "rate".
    silos : their names, in the order of `weights_by_silo` and of the table.
    probabilities_by_silo : (silo, cluster, parameter), each silo's own profiles; without drift,
        the shared ones.
    kinds : of each variable by name: "categorical", "gaussian" or "poisson".
    """

    labels: Ints
    weights: Floats
    weights_by_silo: Floats
    probabilities: Floats
    levels: list[tuple[str, str]]
    silos: tuple[str, ...]
    probabilities_by_silo: Floats
    kinds: Mapping[str, str]


def simulate(
    design: str,
    *,
    separability: str | None = None,
    variables: str = "categorical",
    rows: int | None = None,
    silos: int | None = None,
    seed: int = 0,
    drift: float | Sequence[float] | None = None,
) -> tuple[pd.DataFrame, Truth]:
    """Draw a table of one of the designs of Fendler et al. (2026), section 5.1 and appendix B.

    Ten variables, x1 … x4 with two levels and x5 … x10 with three. Each cluster's level
    probabilities come from a symmetric Dirichlet, and each row's label from its silo's weights.

    - "homogeneous": five clusters, equally likely in each silo.
    - "nested", "non-nested": six clusters, of which each silo has the ones of the paper's
      table 1, equally likely. The table has four silos; further silos repeat them in order,
      and with fewer a cluster may have weight zero.
    - "appendix-b": twenty clusters in all silos, weights from Dirichlet(0.5) and level
      probabilities from Dirichlet(0.1). The rows are split at random into balanced silos:
      they are exchangeable, so cutting them in their order is such a split, and one seed
      gives the same rows for any number of silos.

    Parameters
    ----------
    design : "homogeneous", "nested", "non-nested" or "appendix-b".
    separability : "easy" (Dirichlet(0.3), the default) or "poor" (Dirichlet(1)); "appendix-b"
        has its own and takes none.
    variables : "categorical"; "gaussian", ten normal variables; or "mixed": five categories, four
        normal variables and a count, with a tenth of the cells empty. Means and spreads are such
        that rows are as hard to tell apart as those of categories.
    rows : rows in all, split as equally as possible; 4,000, or 50,000 in "appendix-b".
    silos : number of silos; 4, or 10 in "appendix-b".
    seed : the same seed gives the same table.
    drift : κ, for silos whose profiles of a cluster differ: Dirichlet(κ p) around the shared p, so
        the smaller, the less alike; means N(m, σ²/(κ + 1)), rates Gamma((κ + 1) r, κ + 1). For
        all variables, or one for each of the ten. Infinity, or None, is no drift. Clusters and
        labels are those of the same seed without drift.

    Returns
    -------
    table : a column "silo" ("silo 1", …), then x1 … x10; rows in the order of the silos.
    truth : what it was drawn from.

    Examples
    --------
    >>> import silomix
    >>> table, truth = silomix.simulate("non-nested", rows=400, seed=1)
    >>> table.shape, truth.silos
    ((400, 11), ('silo 1', 'silo 2', 'silo 3', 'silo 4'))
    >>> truth.weights.round(3).tolist()
    [0.258, 0.308, 0.183, 0.1, 0.1, 0.05]
    """
    if design == "cohort":
        raise SettingsError("design='cohort': call silomix.simulate_cohort, which draws one")
    one_of("design", design, DESIGNS)
    appendix, word = design == "appendix-b", separability or "easy"
    if appendix and separability is not None:
        text = "{separability}: the design 'appendix-b' has its own; leave it out"
        raise SettingsError(text, separability=separability)
    one_of("separability", word, SEPARABILITIES)
    one_of("variables", variables, VARIABLES)
    if appendix and variables != "categorical":
        raise SettingsError(f"variables={variables!r}: the design 'appendix-b' has categories only")
    rows = (50_000 if appendix else 4_000) if rows is None else rows
    silos = (10 if appendix else 4) if silos is None else silos
    at_least("silos", silos, 1)
    sizes = _balanced(rows, _silo_names(silos, rows))
    schema = schema_of(variables)
    kappa = np.asarray(np.inf if drift is None else drift, dtype=np.float64)
    if kappa.shape not in ((), (10,)) or not (kappa > 0).all():
        raise SettingsError(f"drift={drift!r}: give a number above 0, or one for each variable")
    at_least("seed", seed, 0)
    rng = np.random.default_rng(seed)
    if appendix:
        weights = np.tile(rng.dirichlet(np.full(20, 0.5)), (silos, 1))
    else:
        weights = _weights_of_table_1(_PRESENT[design], silos)
    clusters, concentration = weights.shape[1], 0.1 if appendix else SEPARABILITIES[word]
    shared = _draw_profiles(rng, schema, clusters, concentration, MEAN_SPREADS[word])
    # separate streams: neither drift nor empty cells change a cluster or a label
    drift_rng, holes = (np.random.default_rng([seed, s]) for s in (_DRIFT_STREAM, _MISSING_STREAM))
    by_silo = draw_drift(drift_rng, schema, shared, np.broadcast_to(kappa, 10), silos)
    table, truth = draw_silos(rng, schema, sizes, weights, shared, by_silo)
    if variables == "mixed":
        cells = table.columns[1:]
        table[cells] = table[cells].mask(holes.random((rows, 10)) < MISSING)
    return table, truth


def draw_silos(
    rng: Rng, schema: Schema, sizes: Ints, weights: Floats, probabilities: Floats, by_silo: Floats
) -> tuple[pd.DataFrame, Truth]:
    """Draw a table from known parameters.

    Parameters
    ----------
    sizes : (silo,), rows of each.
    weights : (silo, cluster).
    probabilities : (cluster, parameter), profiles that the silos share.
    by_silo : (silo, cluster, parameter), profiles of the rows.

    Returns
    -------
    table : a column "silo" ("silo 1", …), then the variables; rows in the order of the silos.
    truth : what it was drawn from.
    """
    names = _silo_names(len(sizes), int(sizes.sum()))
    silos, clusters, columns = by_silo.shape
    silo = np.repeat(np.arange(silos), sizes)
    labels = draw_categories(rng, weights, silo)
    profiles, group = by_silo.reshape(silos * clusters, columns), silo * clusters + labels
    cells = _draw_cells(rng, schema, profiles, group)
    table = _table(schema, cells, np.repeat(names, sizes))
    return table, Truth(
        labels=labels,
        weights=sizes @ weights / sizes.sum(),
        weights_by_silo=weights,
        probabilities=probabilities,
        levels=_family(schema).names(),
        silos=names,
        probabilities_by_silo=by_silo,
        kinds={variable.name: variable.kind for variable in schema.variables},
    )


def draw_drift(rng: Rng, schema: Schema, shared: Floats, kappa: Floats, silos: int) -> Floats:
    """Draw each silo's own profiles around shared ones, of categories from Dirichlet(κ_q p).

    Its means are from N(m, σ²/(κ + 1)), its rates from Gamma((κ + 1) r, κ + 1).

    Parameters
    ----------
    shared : (cluster, parameter); spreads do not drift.
    kappa : (variable,); at infinity the silos are alike.

    Returns
    -------
    (silo, cluster, parameter)
    """
    by_silo = np.tile(shared, (silos, 1, 1))
    for (variable, columns), k in zip(_columns(schema), kappa, strict=True):
        part = by_silo[:, :, columns]
        if np.isinf(k):
            continue
        if variable.kind == "gaussian":
            part[..., 0] += part[..., 1] / np.sqrt(k + 1) * rng.standard_normal(part.shape[:2])
        elif variable.kind == "poisson":
            part[:] = rng.standard_gamma((k + 1) * part) / (k + 1)
        else:
            part[:] = _draw_dirichlets(rng, k * part)
    return by_silo


def _draw_dirichlets(rng: Rng, shapes: Floats) -> Floats:
    """Draw from a Dirichlet along the last axis, (…, level); a shape of 0 gives 0.

    Uses logarithms of gamma variables, which underflow for tiny shapes.
    """
    with np.errstate(divide="ignore"):
        logs = np.log(rng.standard_gamma(shapes + 1)) + np.log(rng.random(shapes.shape)) / shapes
    gammas = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(gammas / gammas.sum(axis=-1, keepdims=True))


def simulate_like(
    schema: Schema,
    *,
    rows: int = 1000,
    silos: int | Sequence[str] | None = None,
    clusters: int = 5,
    missing: float = 0.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Draw a dummy table with a schema's variables and levels, for a dress rehearsal.

    It carries no information on any real table beyond the schema itself: the level
    probabilities are drawn from a symmetric Dirichlet(0.3) for each of `clusters` equally
    likely clusters, the same in every silo.

    Parameters
    ----------
    schema : the variables and levels. A level `MISSING_LEVEL` becomes an empty cell, as it
        was in the table the schema was made from.
    rows : rows in all, split as equally as possible over the silos.
    silos : number of silos, or their names; None leaves the column "silo" out.
    clusters : number of clusters.
    missing : share of the cells that are emptied, completely at random.
    seed : the same seed gives the same table.

    Returns
    -------
    One row per line: "silo" first if asked for, then the variables, their levels declared.

    Examples
    --------
    >>> schema = draws.shard.schema
    >>> dummy = silomix.simulate_like(schema, rows=100, silos=["north", "south"], seed=1)
    >>> dummy.shape, dummy["silo"].unique().tolist()
    ((100, 11), ['north', 'south'])
    """
    at_least("clusters", clusters, 1)
    if not 0 <= missing < 1:
        raise SettingsError(f"missing={missing}: give a share of the cells, 0 ≤ missing < 1")
    names = _silo_names(1 if silos is None else silos, rows)
    if silos is not None and any(v.name == SILO_COLUMN for v in schema.variables):
        raise SettingsError(f"a variable is named {SILO_COLUMN!r}: rename it, or leave silos out")
    at_least("seed", seed, 0)
    rng = np.random.default_rng(seed)
    categories = Schema(schema.categories)
    probabilities = _draw_profiles(rng, categories, clusters, SEPARABILITIES["easy"])
    labels = rng.integers(clusters, size=rows)
    cells = _draw_cells(rng, categories, probabilities, labels)
    cells[rng.random(cells.shape) < missing] = np.nan
    silo = None if silos is None else np.repeat(names, _balanced(rows, names))
    return _table(categories, cells, silo)


def _weights_of_table_1(present: tuple[range, ...], silos: int) -> Floats:
    """Equal weights for the clusters that each silo has: (silo, cluster)."""
    clusters = range(max(clusters_of.stop for clusters_of in present))
    weights = [[(c in clusters_of) / len(clusters_of) for c in clusters] for clusters_of in present]
    return np.array([weights[silo % len(present)] for silo in range(silos)])


def _family(schema: Schema) -> Product:
    from silomix.families import make_family

    return make_family(schema, Prior())


def _columns(schema: Schema) -> Iterator[tuple[Variable, slice]]:
    """Yield each variable, and the slice of its parameters."""
    edges = pairwise(_family(schema).starts)
    return zip(schema.variables, (slice(*ends) for ends in edges), strict=True)


def _draw_profiles(
    rng: Rng, schema: Schema, clusters: int, concentration: float, spread: float = 0.0
) -> Floats:
    """Draw profiles: (cluster, parameter).

    Parameters
    ----------
    concentration : of the Dirichlet that level probabilities come from.
    spread : of the clusters' means of numbers, one of `MEAN_SPREADS`.
    """
    parts = []
    for variable in schema.variables:
        if variable.kind == "gaussian":
            means = rng.normal(CENTRE, spread * TYPICAL, clusters)
            spreads = TYPICAL * rng.uniform(NARROWEST, WIDEST, clusters)
            parts.append(np.stack([means, spreads], axis=1))
        elif variable.kind == "poisson":
            parts.append(rng.gamma(RATE_SHAPE, RATE_MEAN / RATE_SHAPE, (clusters, 1)))
        else:
            parts.append(rng.dirichlet(np.full(len(variable.levels), concentration), clusters))
    return np.hstack(parts)


def draw_categories(rng: Rng, probabilities: Floats, group: Ints) -> Ints:
    """Draw one category per row from the distribution of its group.

    Parameters
    ----------
    probabilities : (group, category).
    group : (row,).
    """
    edges = np.cumsum(probabilities, axis=1)
    return np.sum(rng.random((len(group), 1)) >= edges[group, :-1], axis=1, dtype=np.int64)


def _draw_cells(rng: Rng, schema: Schema, profiles: Floats, group: Ints) -> Floats:
    """Draw each row's numbers, or codes of categories, given its group: (row, variable)."""
    cells = np.empty((len(group), len(schema.variables)))
    for q, (variable, columns) in enumerate(_columns(schema)):
        parameters = profiles[:, columns]
        if variable.kind == "categorical":
            cells[:, q] = draw_categories(rng, parameters, group)
        else:
            draw = rng.normal if variable.kind == "gaussian" else rng.poisson
            cells[:, q] = draw(*parameters[group].T)
    return cells


def _balanced(rows: int, silos: Sequence[str]) -> Ints:
    """Rows of each silo, as equal as possible, the first silos one longer."""
    return rows // len(silos) + (np.arange(len(silos)) < rows % len(silos)).astype(np.int64)


def _table(schema: Schema, cells: Floats, silo: Array | None = None) -> pd.DataFrame:
    """Put cells, (row, variable), into a table, codes in words; nan is an empty cell."""
    import pandas as pd

    table = pd.DataFrame(index=range(len(cells)))
    if silo is not None:
        table[SILO_COLUMN] = pd.Series(silo, dtype="str")
    for variable, column in zip(schema.variables, cells.T, strict=True):
        table[variable.name] = column
        if variable.kind == "categorical":
            words, codes = pd.Index(variable.levels, dtype="str"), np.nan_to_num(column, nan=-1.0)
            named = pd.Categorical.from_codes(codes.astype(np.int64), words)
            table[variable.name] = named.set_categories(words[words != MISSING_LEVEL])
    return table


def _silo_names(silos: int | Sequence[str], rows: int) -> tuple[str, ...]:
    """Names of the silos, checked, with at least one row for each."""
    at_least("rows", rows, 1)
    if isinstance(silos, int | float | np.number):
        at_least("silos", silos, 1)
        silos = [f"silo {s}" for s in range(1, int(silos) + 1)]
    names = () if isinstance(silos, str) else tuple(silos)
    if not names or len(set(names)) < len(names):
        raise SettingsError(f"silos={silos!r}: give a number, or a list of names, each once")
    if rows < len(names):
        raise SettingsError(f"rows={rows}: give each of the {len(names)} silos at least one row")
    return names
