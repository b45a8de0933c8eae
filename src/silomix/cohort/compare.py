"""A drawn cohort beside the published figures, and beside the best that a fit could do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from silomix.cohort.facts import read_facts
from silomix.cohort.simulate import CONDITIONS
from silomix.data import encode
from silomix.errors import DataError
from silomix.types import Schema, Variable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from silomix.cohort.simulate import CohortTruth
    from silomix.data.reading import Table

    Figure = tuple[int, str, int | None, float, float]

BATCH = 50_000


def best_labels(rows: Table | NDArray[np.integer], truth: CohortTruth) -> NDArray[np.int64]:
    """Return the most probable cluster of each row, (row,), if the planted truth were known.

    No fit can expect to tell more rows right; other labels may have a higher adjusted Rand
    index. The posterior of cluster c is proportional to
    w_c Π_q p_cq^x_q (1 − p_cq)^(1 − x_q) / P(two or more | c).

    Parameters
    ----------
    rows : a table with the columns `truth.conditions`, or an array of 0 and 1,
        (row, condition).
    truth : as `simulate_cohort` returns it; its labels are not used.
    """
    cells = _cells(rows, truth.conditions)
    odds = np.log(truth.chances) - np.log1p(-truth.chances)
    start = np.log(truth.weights / truth.at_least_two) + np.log1p(-truth.chances).sum(axis=1)
    batches = (cells[first : first + BATCH] for first in range(0, len(cells), BATCH))
    return np.concatenate([np.argmax(batch @ odds.T + start, axis=1) for batch in batches])


def compare_with_published(table: pd.DataFrame, truth: CohortTruth) -> pd.DataFrame:
    """Return the figures of the paper's tables beside those of a drawn cohort.

    Parameters
    ----------
    table, truth : as `simulate_cohort` returns them.

    Returns
    -------
    One row per figure: table (its number in Fendler et al., 2026), figure, cluster (from 1 on,
    or none), published, drawn, difference. A cluster that nobody was drawn from has NaN.
    """
    figures = [*_overall(table), *_by_condition(table), *_by_cluster(table, truth)]
    frame = pd.DataFrame(figures, columns=["table", "figure", "cluster", "published", "drawn"])
    frame = frame.astype({"cluster": "Int64", "published": "float64", "drawn": "float64"})
    frame["difference"] = frame["drawn"] - frame["published"]
    return frame


def _cells(rows: Table | NDArray[np.integer], conditions: tuple[str, ...]) -> NDArray[np.integer]:
    if isinstance(rows, np.ndarray):
        if rows.ndim != 2 or rows.shape[1] != len(conditions) or not np.isin(rows, (0, 1)).all():
            raise DataError(
                f"the rows have shape {rows.shape}; give 0 or 1 for each of the "
                f"{len(conditions)} conditions, (row, condition)"
            )
        return rows
    schema = Schema(tuple(Variable(name, ("0", "1")) for name in conditions))
    codes = encode(rows, schema).codes
    empty = np.argwhere(codes > 1)
    if empty.size:
        row, place = empty[0]
        raise DataError(
            f"column {conditions[place]!r} has a missing cell in data row {row + 1}; "
            "give 0 or 1 for every condition"
        )
    return codes


def _overall(table: pd.DataFrame) -> Iterator[Figure]:
    facts = read_facts()
    counts = table[list(CONDITIONS)].sum(axis=1)
    died = table["died"]
    yield 6, "died", None, facts.mortality, died.mean()
    yield 6, "female", None, facts.female, (table["sex"] == "female").mean()
    for name, spread, values in (
        ("age at entry", facts.age_at_entry, table["age_at_entry"]),
        ("age at death", facts.age_at_death, table["age_at_death"]),
        ("conditions", facts.counts, counts),
    ):
        yield 6, f"{name}: mean", None, spread.mean, values.mean()
        yield 6, f"{name}: sd", None, spread.sd, values.std()
        yield 6, f"{name}: least", None, spread.least, values.min()
        yield 6, f"{name}: most", None, spread.most, values.max()
    for region, share in facts.regions.items():
        yield 6, region, None, share, (table["region"] == region).mean()


def _by_condition(table: pd.DataFrame) -> Iterator[Figure]:
    for condition in read_facts().conditions:
        yield 10, condition.name, None, condition.prevalence, table[condition.name].mean()


def _by_cluster(table: pd.DataFrame, truth: CohortTruth) -> Iterator[Figure]:
    facts = read_facts()
    numbers = pd.Series(truth.labels, index=table.index)
    shares = np.bincount(truth.labels, minlength=len(facts.clusters)) / len(table)
    outside = pd.DataFrame(
        {
            "died": table["died"],
            "age at death: mean": table["age_at_death"],
            "female": table["sex"] == "female",
        }
    )
    means = outside.groupby(numbers).mean().reindex(range(len(facts.clusters))).to_numpy()
    for c, cluster in enumerate(facts.clusters):
        yield 7, "share", c + 1, facts.weights[c], shares[c]
        published = (cluster.mortality, cluster.age_at_death, cluster.female)
        for figure, value, mean in zip(outside.columns, published, means[c], strict=True):
            yield 11, figure, c + 1, value, mean
