"""A synthetic cohort like the application of Fendler et al. (2026), with known clusters.

The planted probabilities follow from published figures without randomness, and are the same for
every cohort. Rows are drawn in blocks, each with its own generator.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import expit, gammainc, logit

from silomix.errors import FileError, MissingDependency, SettingsError
from silomix.model.files import replace_file, whole_file, writing
from silomix.model.schema import Schema, Variable
from silomix.model.sentences import at_least
from silomix.model.table import encode
from silomix.simulate import draw_categories
from silomix.simulate.published import UNMARKED, able, marked_chances, read_facts, relative

if TYPE_CHECKING:
    from collections.abc import Callable

    from silomix.kernels.arrays import Array, Bools, Bytes, Floats, Ints, Rng
    from silomix.model.reading import Table

EXACT = 1e-10  # how close planted prevalences come to the published ones, of three digits

STUDY_YEARS = 7  # 1 January 2010 to 1 January 2017: who dies does so within these
# By year of age at entry: the odds of death rise by 8 %, and the years to it become fewer, as many
# fewer as make the standard deviation of the age at death that of table 6.
DEATH_BY_AGE, SOONER_BY_AGE = np.log(1.08), 0.027

PUBLISHED_ROWS = int(read_facts().clusters["size"].sum())
# The 94 conditions, in the order of table 10 and of the columns: what to cluster on.
CONDITIONS = tuple(read_facts().conditions.index)
BLOCK = 10_000
BATCH = 50_000


@dataclass(frozen=True, eq=False)
class CohortTruth:
    """True parameters and labels of a simulated cohort.

    Attributes
    ----------
    labels : (row,), the cluster of each row, from 0 on: published cluster 1 is 0.
    weights : (cluster,), share of each cluster.
    conditions : names of the conditions.
    chances : (cluster, condition), of independent conditions, before people with fewer than two
        are rejected.
    at_least_two : (cluster,), share of people who are not rejected.
    prevalence : (cluster, condition), share of a cluster's people with the condition: the target
        of a fit.
    """

    labels: Ints
    weights: Floats
    conditions: tuple[str, ...]
    chances: Floats
    at_least_two: Floats
    prevalence: Floats

    @property
    def levels(self) -> list[tuple[str, str]]:
        """(condition, "0" or "1") of each column of `probabilities`."""
        return [(name, level) for name in self.conditions for level in "01"]

    @property
    def probabilities(self) -> Floats:
        """Level probabilities, (cluster, level), from `prevalence`; columns as in `levels`."""
        by_level = np.stack([1.0 - self.prevalence, self.prevalence], axis=2)
        return by_level.reshape(len(self.weights), -1)

    def count_mean_and_sd(self) -> tuple[float, float]:
        """Return mean and standard deviation of the number of conditions of a person."""
        means, squares = count_moments(self.chances)
        mean = float(self.weights @ means)
        return mean, float(np.sqrt(self.weights @ squares - mean**2))


def simulate_cohort(
    rows: int = PUBLISHED_ROWS, *, seed: int = 0
) -> tuple[pd.DataFrame, CohortTruth]:
    """Draw people like those of the application of Fendler et al. (2026), with known clusters.

    People over 80 with at least two of 94 long-term conditions, in 27 clusters. The shares of
    the clusters, the prevalence of each condition, which conditions are frequent or rare in
    which cluster, the mean and spread of their number, sex, death, ages and regions are those
    of the paper's tables 6, 7, 8, 10 and 11. Within a cluster conditions are independent, and
    people with fewer than two are drawn again.

    Parameters
    ----------
    rows : people; as many as in the paper by default.
    seed : the same seed gives the same people, and a smaller cohort is the beginning of a
        larger one.

    Returns
    -------
    table : age_at_entry, sex, region, died, age_at_death (NaN for survivors), then a column of
        0 and 1 for each of `silomix.simulate.cohort.CONDITIONS`.
    truth : its parameters and labels.

    See Also
    --------
    silomix.simulate.cohort.write_cohort : straight to a file, of any number of rows.
    silomix.simulate.cohort.best_labels : the most probable clusters under the truth.

    Examples
    --------
    >>> from silomix.simulate.cohort import CONDITIONS
    >>> people, truth = silomix.simulate_cohort(2000, seed=1)
    >>> people.shape, len(CONDITIONS), truth.weights.round(3).tolist()[:3]
    ((2000, 99), 94, [0.478, 0.013, 0.039])
    >>> int(people[list(CONDITIONS)].sum(axis=1).min())
    2
    """
    at_least("rows", rows, 1)
    at_least("seed", seed, 0)
    table, labels = draw_people(0, rows, seed)
    return table, replace(planted(), labels=labels)


def write_cohort(
    path: str | Path,
    *,
    rows: int = PUBLISHED_ROWS,
    seed: int = 0,
    chunk: int = 100_000,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Path, Path, Path]:
    """Write the cohort of `simulate_cohort` to Parquet files, and return their paths.

    The rows do not depend on the chunk. Existing files are replaced, each once it is complete.

    Parameters
    ----------
    path : the table, such as cohort.parquet. Beside it go cohort.truth.parquet, with the
        column cluster (from 0 on) of the same rows, and cohort.truth.json, with the parameters:
        weights by cluster, chances and prevalence by cluster and condition.
    rows, seed : as for `simulate_cohort`.
    chunk : rows in memory at a time, and in a row group of the files.
    progress : a function of the rows that are done and of all rows, called after each chunk.

    Examples
    --------
    >>> from silomix.simulate.cohort import write_cohort
    >>> [file.name for file in write_cohort("cohort.parquet", rows=500, seed=1)]
    ['cohort.parquet', 'cohort.truth.parquet', 'cohort.truth.json']
    """
    target = Path(path)
    if target.suffix != ".parquet":
        raise SettingsError(f"{target} does not end in .parquet; give a name that does")
    for name, value, least in (("rows", rows, 1), ("seed", seed, 0), ("chunk", chunk, 1)):
        at_least(name, value, least)
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise MissingDependency("a Parquet file, unlike a frame, needs pyarrow", "data") from None
    labels, truth = truth_files(target)
    kind, labels_drawn = pa.Table.from_pandas(draw_people(0, 1, seed)[0]).schema, []
    content = {"rows": rows, "seed": seed, "conditions": CONDITIONS}
    for name in ("weights", "at_least_two", "chances", "prevalence"):
        content[name] = getattr(planted(), name).tolist()
    with writing(target, FileError):
        with whole_file(target) as file, parquet.ParquetWriter(file, kind) as writer:
            for start in range(0, rows, chunk):
                stop = min(start + chunk, rows)
                table, chunk_labels = draw_people(start, stop, seed)
                group = pa.Table.from_pandas(table, schema=kind, preserve_index=False)
                writer.write_table(group, row_group_size=len(table))
                labels_drawn.append(chunk_labels)
                if progress is not None:
                    progress(stop, rows)
        with whole_file(labels) as file:
            parquet.write_table(pa.table({"cluster": np.concatenate(labels_drawn)}), file)
        text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        replace_file(truth, text.encode())
    return target, labels, truth


def truth_files(path: Path) -> tuple[Path, Path]:
    """Paths of the labels and the parameters of a cohort."""
    return path.with_suffix(".truth.parquet"), path.with_suffix(".truth.json")


def best_labels(rows: Table | Array, truth: CohortTruth) -> Ints:
    """Bayes-optimal cluster of each row, (row,), under the planted truth.

    No fit can expect to label more rows correctly; other labels may have a higher adjusted Rand
    index. The posterior of cluster c is proportional to
    w_c Π_q p_cq^x_q (1 − p_cq)^(1 − x_q) / P(two or more | c).

    Parameters
    ----------
    rows : a table with the columns `truth.conditions`, or an array of 0 and 1,
        (row, condition).
    truth : as `simulate_cohort` returns it; its labels are not used.
    """
    if isinstance(rows, np.ndarray):
        rows = pd.DataFrame(rows, columns=list(truth.conditions))
    # missing cells are refused: they are neither of the two levels
    schema = Schema(tuple(Variable(name, ("0", "1")) for name in truth.conditions), "level")
    cells = encode(rows, schema).codes
    odds = np.log(truth.chances) - np.log1p(-truth.chances)
    start = np.log(truth.weights / truth.at_least_two) + np.log1p(-truth.chances).sum(axis=1)
    batches = (cells[first : first + BATCH] for first in range(0, len(cells), BATCH))
    return np.concatenate([np.argmax(batch @ odds.T + start, axis=1) for batch in batches])


@cache
def planted() -> CohortTruth:
    """The planted mixture, without labels.

    A cell of (cluster, condition) that table 8 of Fendler et al. (2026) marks has the chance
    that `marked_chances` gives it. Of the others, with b_q for the condition, d_c for the
    deaths of the cluster above the average (table 11) and s_cq for the share of the sex that
    can have the condition,

        logit chance = b_q + k · d_c + log s_cq.

    The b_q are such that each condition is as frequent in the cohort as in table 10, after
    people with fewer than two conditions are drawn again. The excess of deaths stands in for
    how ill a cluster is otherwise, which is not published, and k makes the standard deviation
    of the number of conditions that of table 6. Their mean is the sum of table 10.
    """
    facts = read_facts()
    mortality = facts.clusters["mortality"].to_numpy()
    excess = mortality - facts.weights @ mortality
    fixed, shares = marked_chances(), np.log(relative(able()))

    def mixture(k: float) -> CohortTruth:
        return _with_prevalences(fixed, shares + k * excess[:, np.newaxis])

    def too_wide(k: float) -> float:
        return mixture(k).count_mean_and_sd()[1] - float(facts.summary["conditions"]["sd"])

    return mixture(brentq(too_wide, 0.0, 10.0))


def _with_prevalences(fixed: Floats, offsets: Floats) -> CohortTruth:
    """Mixture whose unmarked cells are expit(b_q + offset), b_q by Newton's method.

    Parameters
    ----------
    fixed, offsets : (cluster, condition).
    """
    facts = read_facts()
    weights, share = facts.weights, facts.conditions["planted"].to_numpy()
    unmarked, base = facts.marks == UNMARKED, logit(share)
    while True:
        chances = np.where(unmarked, expit(base + offsets), fixed)
        shares = prevalence(chances)
        gap = share - weights @ shares
        if np.abs(gap).max() < EXACT:
            nobody = np.zeros(0, dtype=np.int64)
            return CohortTruth(nobody, weights, CONDITIONS, chances, at_least_two(chances), shares)
        slope = weights @ np.where(unmarked, chances * (1.0 - chances), 0.0)
        # the slope leaves out the drawing again, which is weak; a long first step may overshoot
        base += np.clip(gap / slope, -1.0, 1.0)


def at_least_two(chances: Floats) -> Floats:
    """Probability of two conditions or more: (cluster,) from (cluster, condition)."""
    return 1.0 - _none(chances) - _exactly_one(chances)


def prevalence(chances: Floats) -> Floats:
    """Share with each condition among those with at least two: (cluster, condition).

    Who has a condition has at least two if one of the others is there as well.
    """
    no_other = _none(chances)[:, np.newaxis] / (1.0 - chances)
    return chances * (1.0 - no_other) / at_least_two(chances)[:, np.newaxis]


def count_moments(chances: Floats) -> tuple[Floats, Floats]:
    """Mean and mean square of the number of conditions, at least two: (cluster,)."""
    mean, variance = chances.sum(axis=1), (chances * (1.0 - chances)).sum(axis=1)
    single, share = _exactly_one(chances), at_least_two(chances)
    return (mean - single) / share, (variance + mean**2 - single) / share


def _none(chances: Floats) -> Floats:
    return np.prod(1.0 - chances, axis=1)


def _exactly_one(chances: Floats) -> Floats:
    return _none(chances) * (chances / (1.0 - chances)).sum(axis=1)


class Lives(NamedTuple):
    """Distributions of a person's other variables, given the cluster.

    Attributes
    ----------
    ages : (age,), in years, those at entry.
    entry : (cluster, age), probability of each age at entry.
    died : (cluster, age), probability of death by age at entry.
    years : (cluster, age, year), probability of each number of years from entry to death.
    female : (cluster,), probability of a woman where no condition determines the sex.
    """

    ages: Ints
    entry: Floats
    died: Floats
    years: Floats
    female: Floats


@cache
def lives() -> Lives:
    """Distributions of other variables that give each cluster the figures of table 11.

    Age at entry is a gamma variable above 80, in whole years, with the mean and standard
    deviation of table 6 in the cohort; a cluster that dies older by a year enters older by a
    year. Death is logistic in the age at entry, and the years to it are exponentially tilted
    over 0 … 7, less for the old; the intercept and the tilt of a cluster give its mortality
    and its mean age at death.
    """
    facts = read_facts()
    at_entry, oldest = facts.summary["age_at_entry"], facts.summary["age_at_death"]["most"]
    ages = np.arange(at_entry["least"], at_entry["most"] + 1)
    older, years = ages - at_entry["mean"], np.arange(STUDY_YEARS + 1)

    deaths = facts.clusters["age_at_death"].to_numpy()
    shift = deaths - facts.weights @ deaths
    # whole years: half a year lower than the age itself, and a twelfth more variance
    mean = (at_entry["mean"] - ages[0] + 0.5 + shift)[:, np.newaxis]
    variance = at_entry["sd"] ** 2 - 1 / 12 - facts.weights @ shift**2
    edges = np.arange(len(ages) + 1)
    cumulative = gammainc(mean**2 / variance, edges * mean / variance)
    entry = _normalised(np.diff(cumulative, axis=1))

    def death(intercept: Floats) -> Floats:
        chance = expit(intercept[:, np.newaxis] + DEATH_BY_AGE * older)
        return np.where(ages <= oldest, chance, 0.0)

    mortality = facts.clusters["mortality"].to_numpy()
    died = death(_solve(lambda intercept: (entry * death(intercept)).sum(axis=1), mortality))

    at_death = ages[:, np.newaxis] + years
    # who is too old to die within the range has no death to draw, and may have any years
    possible = (at_death <= oldest) | (years == 0)

    def until_death(tilt: Floats) -> Floats:
        sooner = SOONER_BY_AGE * older[:, np.newaxis]
        exponent = (tilt[:, np.newaxis, np.newaxis] - sooner) * years
        return _normalised(np.where(possible, np.exp(exponent), 0.0))

    def age_at_death(tilt: Floats) -> Floats:
        return np.einsum("ca,cat,at->c", _normalised(entry * died), until_death(tilt), at_death)

    return Lives(ages, entry, died, until_death(_solve(age_at_death, deaths)), _open_female())


def _open_female() -> Floats:
    """Share of women where no condition determines the sex: (cluster,).

    A person with a condition of men is a man, another with one of women is a woman; the others
    complete the share of women in the cluster to that of table 11.
    """
    facts, chances = read_facts(), planted().chances
    men, women = facts.only("male"), facts.only("female")

    def without(conditions: Bools) -> Floats:
        absent = np.prod(1.0 - chances[:, conditions], axis=1)
        return absent * at_least_two(chances[:, ~conditions]) / planted().at_least_two

    open_to_both = without(men | women)
    surely = without(men) - open_to_both
    return (facts.clusters["female"].to_numpy() - surely) / open_to_both


def _solve(function: Callable[[Floats], Floats], target: Floats) -> Floats:
    """Arguments, (cluster,), where an increasing function takes its targets."""
    lower, upper = np.full(len(target), -5.0), np.full(len(target), 5.0)
    for _ in range(50):
        middle = (lower + upper) / 2
        short = function(middle) < target
        lower, upper = np.where(short, middle, lower), np.where(short, upper, middle)
    return upper


def _normalised(masses: Floats) -> Floats:
    return masses / masses.sum(axis=-1, keepdims=True)


def draw_people(start: int, stop: int, seed: int) -> tuple[pd.DataFrame, Ints]:
    """Draw the rows `start` to before `stop` of the endless cohort of a seed."""
    begin, end = start // BLOCK, (stop - 1) // BLOCK
    tables, labels = zip(*[_draw_block(b, seed) for b in range(begin, end + 1)], strict=True)
    rows = slice(start - begin * BLOCK, stop - begin * BLOCK)
    table = pd.concat(tables, ignore_index=True).iloc[rows]
    return table.reset_index(drop=True), np.concatenate(labels)[rows]


def _draw_block(block: int, seed: int) -> tuple[pd.DataFrame, Ints]:
    rng = np.random.default_rng(np.random.SeedSequence([seed, block]))
    facts, everyone = read_facts(), np.zeros(BLOCK, dtype=np.int64)
    labels = draw_categories(rng, facts.weights[np.newaxis], everyone)
    cells = _draw_cells(rng, labels)
    man, woman = (cells[:, facts.only(sex)].any(axis=1) for sex in ("male", "female"))
    female = ~man & (woman | (rng.random(BLOCK) < lives().female[labels]))
    shares = np.array([list(facts.summary["regions"].values())])
    region = draw_categories(rng, shares, everyone)
    laws = lives()
    age = draw_categories(rng, laws.entry, labels)
    died = rng.random(BLOCK) < laws.died[labels, age]
    by_group = laws.years.reshape(-1, laws.years.shape[-1])
    years = draw_categories(rng, by_group, labels * len(laws.ages) + age)
    entry = laws.ages[age]
    regions = pd.Index(list(facts.summary["regions"]), dtype="str")
    sexes = pd.Index(["female", "male"], dtype="str")
    columns = {
        "age_at_entry": entry,
        "sex": pd.Categorical.from_codes(1 - female, sexes),
        "region": pd.Categorical.from_codes(region, regions),
        "died": died,
        "age_at_death": np.where(died, entry + years, np.nan),
    }
    conditions = pd.DataFrame(cells, columns=list(CONDITIONS))
    return pd.concat([pd.DataFrame(columns), conditions], axis=1), labels


def _draw_cells(rng: Rng, labels: Ints) -> Bytes:
    """Draw conditions, with rejection of people with fewer than two: (row, condition)."""
    chances = planted().chances
    cells = np.empty((len(labels), chances.shape[1]), dtype=np.uint8)
    todo = np.arange(len(labels))
    while todo.size:
        proposal = rng.random((len(todo), chances.shape[1])) < chances[labels[todo]]
        cells[todo] = proposal
        todo = todo[np.count_nonzero(proposal, axis=1) < 2]
    return cells
