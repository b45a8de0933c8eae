"""Rows of a cohort: each block of them from a generator of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from silomix.cohort.calibrate import planted
from silomix.cohort.facts import read_facts
from silomix.cohort.outside import outside
from silomix.simulate import check_whole, draw_categories

if TYPE_CHECKING:
    from numpy.typing import NDArray

PUBLISHED_ROWS = read_facts().rows
CONDITIONS = tuple(condition.name for condition in read_facts().conditions)
"""The 94 conditions, in the order of table 10 and of the columns: what to cluster on."""

OUTSIDE = ("age_at_entry", "sex", "region", "died", "age_at_death")
"""The other columns of a cohort, which come first."""

SEXES = ("female", "male")
BLOCK = 10_000


@dataclass(frozen=True, eq=False)
class CohortTruth:
    """What a cohort was drawn from.

    Attributes
    ----------
    labels : (row,), the cluster of each row, from 0 on: published cluster 1 is 0.
    weights : (cluster,), share of each cluster.
    conditions : names of the conditions.
    chances : (cluster, condition), of independent conditions, before anyone with fewer than two
        of them is drawn again.
    at_least_two : (cluster,), share of people who are not.
    prevalence : (cluster, condition), share of a cluster's people with the condition: what a
        fit estimates.
    """

    labels: NDArray[np.int64]
    weights: NDArray[np.float64]
    conditions: tuple[str, ...]
    chances: NDArray[np.float64]
    at_least_two: NDArray[np.float64]
    prevalence: NDArray[np.float64]

    @property
    def levels(self) -> list[tuple[str, str]]:
        """What each column of `probabilities` stands for: (condition, "0" or "1")."""
        return [(name, level) for name in self.conditions for level in "01"]

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """(cluster, level): `prevalence` as level probabilities, columns as in `levels`."""
        return np.stack([1.0 - self.prevalence, self.prevalence], axis=2).reshape(
            len(self.weights), -1
        )


@dataclass(frozen=True, eq=False)
class People:
    """Some rows of a cohort.

    Attributes
    ----------
    labels : (row,).
    cells : (row, condition), 0 or 1.
    female, died : (row,).
    region : (row,), place of the region in table 6.
    entry, death : (row,), ages in years; `death` is NaN for who lives.
    """

    labels: NDArray[np.int64]
    cells: NDArray[np.uint8]
    female: NDArray[np.bool_]
    region: NDArray[np.int64]
    died: NDArray[np.bool_]
    entry: NDArray[np.int64]
    death: NDArray[np.float64]


def simulate_cohort(
    rows: int = PUBLISHED_ROWS, *, seed: int = 0
) -> tuple[pd.DataFrame, CohortTruth]:
    """Draw people like those of the application of Fendler et al. (2026), with known clusters.

    People over 80 with at least two of 94 long-term conditions, in 27 clusters. The shares of
    the clusters, the prevalence of each condition, which conditions are frequent or rare in
    which cluster, the mean and spread of their number, sex, death, ages and regions are those
    of the paper's tables 6, 7, 8, 10 and 11. Within a cluster conditions are independent, and
    who has fewer than two is drawn again.

    Parameters
    ----------
    rows : people; as many as in the paper by default.
    seed : the same seed gives the same people, and a smaller cohort is the beginning of a
        larger one.

    Returns
    -------
    table : age_at_entry, sex, region, died, age_at_death (NaN for who lives), then a column of
        0 and 1 for each of `silomix.cohort.CONDITIONS`.
    truth : what it was drawn from.

    See Also
    --------
    silomix.cohort.write_cohort : straight to a file, of any number of rows.
    silomix.cohort.best_labels : the clusters that the truth itself would guess.

    Examples
    --------
    >>> from silomix.cohort import CONDITIONS
    >>> people, truth = silomix.simulate_cohort(2000, seed=1)
    >>> people.shape, len(CONDITIONS), truth.weights.round(3).tolist()[:3]
    ((2000, 99), 94, [0.478, 0.013, 0.039])
    >>> int(people[list(CONDITIONS)].sum(axis=1).min())
    2
    """
    check_whole("rows", rows, least=1)
    check_whole("seed", seed, least=0)
    people = draw_people(0, rows, seed)
    return as_table(people), truth_of(people.labels)


def truth_of(labels: NDArray[np.int64]) -> CohortTruth:
    """Return what every cohort is drawn from, with the labels of one."""
    mixture = planted()
    return CohortTruth(
        labels=labels,
        weights=mixture.weights,
        conditions=CONDITIONS,
        chances=mixture.chances,
        at_least_two=mixture.at_least_two,
        prevalence=mixture.prevalence,
    )


def draw_people(start: int, stop: int, seed: int) -> People:
    """Return the rows from `start` to before `stop` of the endless cohort of a seed."""
    blocks = range(start // BLOCK, (stop - 1) // BLOCK + 1)
    parts = [_cut(_draw_block(block, seed), start, stop, block) for block in blocks]
    return People(
        **{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    )


def as_table(people: People) -> pd.DataFrame:
    """Return the rows as a table, the outside columns first."""
    regions = pd.Index(list(read_facts().regions), dtype="str")
    values = {
        "age_at_entry": people.entry,
        "sex": pd.Categorical.from_codes(1 - people.female, pd.Index(SEXES, dtype="str")),
        "region": pd.Categorical.from_codes(people.region, regions),
        "died": people.died,
        "age_at_death": people.death,
    }
    cells = pd.DataFrame(people.cells, columns=list(CONDITIONS))
    return pd.concat([pd.DataFrame(values), cells], axis=1)


def _cut(people: People, start: int, stop: int, block: int) -> People:
    first = block * BLOCK
    kept = slice(max(start - first, 0), stop - first)
    return People(**{name: column[kept] for name, column in vars(people).items()})


def _draw_block(block: int, seed: int) -> People:
    rng = np.random.default_rng(np.random.SeedSequence([seed, block]))
    facts = read_facts()
    labels = draw_categories(rng, facts.weights[np.newaxis], np.zeros(BLOCK, dtype=np.int64))
    cells = _draw_cells(rng, labels)
    female = _draw_female(rng, labels, cells)
    shares = np.array(list(facts.regions.values()))[np.newaxis]
    region = draw_categories(rng, shares, np.zeros(BLOCK, dtype=np.int64))
    entry, died, death = _draw_life(rng, labels)
    return People(labels, cells, female, region, died, entry, death)


def _draw_cells(rng: np.random.Generator, labels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Draw conditions, again and again for who has fewer than two: (row, condition)."""
    chances = planted().chances
    cells = np.empty((len(labels), chances.shape[1]), dtype=np.uint8)
    todo = np.arange(len(labels))
    while todo.size:
        drawn = rng.random((len(todo), chances.shape[1])) < chances[labels[todo]]
        cells[todo] = drawn
        todo = todo[np.count_nonzero(drawn, axis=1) < read_facts().counts.least]
    return cells


def _draw_female(
    rng: np.random.Generator, labels: NDArray[np.int64], cells: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Draw the sex of whose conditions leave it open: (row,)."""
    facts = read_facts()
    man = cells[:, facts.only("male")].any(axis=1)
    woman = cells[:, facts.only("female")].any(axis=1)
    drawn = rng.random(len(labels)) < outside().female[labels]
    return ~man & (woman | drawn)


def _draw_life(
    rng: np.random.Generator, labels: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
    """Draw age at entry, death, and age at death: (row,) each."""
    given = outside()
    age = draw_categories(rng, given.entry, labels)
    died = rng.random(len(labels)) < given.died[labels, age]
    by_group = given.years.reshape(-1, given.years.shape[-1])
    years = draw_categories(rng, by_group, labels * len(given.ages) + age)
    entry = given.ages[age]
    return entry, died, np.where(died, entry + years, np.nan)
