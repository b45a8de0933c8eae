"""What families of numbers have in common: a family extends `NumberFamily` where it differs.

As they stand, the defaults are those of one positive parameter, the mean of x, with (n, Σx) as
statistics, and with h(θ) = 1/θ in `log_normaliser`: a family writes `natural`, `prior`,
`log_normaliser`, `draw` and `fit`, as `docs/explanation/families.md` does. Until it writes
`log_marginal`, `shared_posterior` and `draw_own`, studies in which silos may differ refuse it; and
until it writes `bounds`, policies that round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from silomix.families import release_rounding
from silomix.families.columns import SMALLEST, by_variable, flat, lacks, split
from silomix.families.family import Family
from silomix.families.release_rounding import CLUSTER, SILO, UNIFORM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.kernels.arrays import Array, Bools, Floats, Ints, Reals
    from silomix.study.policy import Policy

# draws that hardly move say no more than this many rows
MOST_ROWS = 1e9
# grid of the prior sizes of unrelated clusters, in rows, see `priors_near`
SIZES = np.geomspace(1e-2, 1e3, 11)
# of which a median is taken where a family has no formula
MEDIAN_DRAWS = 1001
# the logs of the sizes of priors of unrelated clusters are normal around the usual, as wide as this
SIZE_SD = 3.0


class NumberFamily(Family):
    """A block of numbers of one kind: see `silomix.families.family.Family`.

    Attributes
    ----------
    word : what messages call the cells.
    units : "raw", with the mean of the cells as the study's location; "scaled" by location and
        scale, with mean and standard deviation as the parameters; or "parameter", where there are
        no cells.
    has_rules : whether its sums can leave rounded, which takes `bounds`; a policy that rounds
        refuses those that cannot.
    support : which cells there can be, a word of `SUPPORTS` in `silomix.model.numbers`.
    parameter_words, statistic_words : what each variable has; the mean of x comes first among the
        parameters, n among the statistics.
    """

    word: ClassVar[str] = "numbers"
    units: ClassVar[Literal["scaled", "raw", "parameter"]] = "raw"
    has_rules: ClassVar[bool] = False
    support: ClassVar[Literal["all", "positive", "counts"]] = "positive"
    parameter_words: ClassVar[tuple[str, ...]] = ("mean",)
    statistic_words: ClassVar[tuple[str, ...]] = ("n", "Σx")

    @property
    def pairs(self) -> Ints:
        """How many numbers each variable has beside, for pairs that it makes with others: none."""
        return np.zeros(len(self.variables), dtype=np.int64)

    @property
    def parameters(self) -> Ints:
        """How many parameters each variable has."""
        return len(self.parameter_words) + self.pairs

    @property
    def statistics(self) -> Ints:
        """How many statistics each variable has."""
        return len(self.statistic_words) + self.pairs

    @property
    def locations(self) -> Floats:
        """What the study has as location: (variable,)."""
        return np.array([variable.location for variable in self.variables])

    @property
    def scales(self) -> Floats:
        """What the study has as scale: (variable,)."""
        return np.array([variable.scale for variable in self.variables])

    def names(self) -> list[tuple[str, str]]:
        """Return the variable and what it is called of each parameter, such as "mean of log"."""
        logs = [self.units == "scaled" and one.transform == "log" for one in self.variables]
        both = zip(self.variables, logs, strict=True)
        words = self.parameter_words
        return [(one.name, f"{w} of log" if is_log else w) for one, is_log in both for w in words]

    def scaled_difference(self, parameters: Reals, whole: Floats) -> Floats:
        """Return the logs of the ratios: (..., parameter)."""
        own, overall = (np.maximum(part, SMALLEST) for part in (parameters, whole))
        return np.asarray(np.log(own / overall))

    def features(self, cells: Floats) -> Floats:
        """Return T(x), (row, statistic), 1, x, x² ... of cells (row, variable), nan if missing."""
        known = ~np.isnan(cells)
        x = np.where(known, cells, 0.0)
        return flat(known, *(x**power for power in range(1, len(self.statistic_words))))

    def moments(self, parameters: Reals) -> Floats:
        """Return E T(x): (..., statistic)."""
        return flat(np.ones(parameters.shape), parameters)

    def from_moments(self, moments: Floats) -> Floats:
        """Return the parameters with these moments: (..., parameter)."""
        return np.array(by_variable(moments, 2)[1])

    def known(self, statistics: Array) -> Floats:
        """Return how many rows have a cell: (..., variable)."""
        return statistics[..., np.cumsum(self.statistics) - self.statistics]

    def medians(self, posterior: Floats) -> Floats:
        """Return the medians of draws, always the same ones: (..., parameter)."""
        many = np.broadcast_to(posterior, (MEDIAN_DRAWS, *posterior.shape))
        return np.asarray(np.median(self.draw(many, np.random.default_rng(0)), axis=0))

    def coordinates(self, parameters: Reals) -> Reals:
        """Return the logs of the parameters: (..., parameter)."""
        return np.log(np.maximum(parameters.astype(np.float64), SMALLEST))

    def back(self, coordinates: Floats) -> Floats:
        """Return the parameters at these coordinates."""
        return np.exp(coordinates)

    def spread(self, parameters: Floats) -> Floats:
        """Return the standard deviation of x, in the units of the cells: (..., variable).

        Its square is the slope of the mean in the natural parameter that goes with Σx.
        """
        step = 1e-4 * np.maximum(parameters, SMALLEST)
        low, high = (self.natural(parameters + side)[..., 1::2] for side in (-step, step))
        return np.sqrt(2.0 * step / (high - low))

    def log_prior(self, parameters: Floats) -> tuple[float, Floats | float, Floats]:
        """Return the log density of the prior, χ₀ · η(θ) − ln θ − F(χ₀), and its gradient."""
        at, prior = np.maximum(parameters, SMALLEST), self.prior()
        value = sum(by_variable(self.natural(at) * prior, 2)) - np.log(at)
        return 0.0, value - self.log_normaliser(prior), self.score(at, prior) - 1.0 / at

    def priors_near(self, statistics: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Yield priors around the mean of the clusters' means, and what speaks against each."""
        mean = np.maximum(self.near(statistics).mean(axis=0), SMALLEST)
        usual = np.log(self.known(self.prior()))
        for size in SIZES:
            yield size * self.moments(mean), 0.5 * ((np.log(size) - usual) / SIZE_SD) ** 2

    def near(self, statistics: Floats) -> Floats:
        """Return parameters of rows with these sums, sensible ones for few rows or none."""
        return self.medians(self.prior() + self.conjugate(statistics))

    def nothing(self) -> Floats:
        """Return the mean statistics that the prior has: (statistic,)."""
        return self.moments(self.near(np.zeros(self.statistics.sum())))

    def means(self, statistics: Floats) -> tuple[Floats, Floats]:
        """Return the mean statistics of a row, those of the prior for none, and of how many."""
        known = np.asarray(self.known(statistics), dtype=np.float64)
        n = np.repeat(known, self.statistics, axis=-1)
        return np.where(n > 0, statistics / np.where(n > 0, n, 1.0), self.nothing()), known

    def score(self, parameters: Floats, statistics: Floats) -> Floats:
        """Return the gradient of the log-likelihood of rows with these sums: as `parameters`."""
        n, total = by_variable(statistics, 2)
        return np.asarray((total - n * parameters) / self.spread(parameters) ** 2)

    def problems(self, parameters: Reals, *, together: bool = True) -> str:
        """Say what is wrong with parameters from elsewhere; nothing where all is well."""
        words = "s or ".join(self.parameter_words)
        return "" if (parameters >= 0).all() else f"has {words}s below zero"

    def mean_problems(self, mean: Floats) -> str:
        """Say what is wrong with mean statistics from elsewhere; nothing where all is well."""
        largest = np.abs(mean).max(axis=-1, keepdims=True, initial=1.0)
        near = (np.abs(self.valid(mean) - mean) <= 1e-6 * largest).all()
        signs = self.support == "all" or (mean >= 0).all()
        return (
            ""
            if near and signs and (self.known(mean) == 1).all()
            else f"has means that no {self.word} have"
        )

    def worth(self, rows: Floats, kappa: Floats) -> Floats:
        """Return what part of a row each of a silo's n is worth, (κ + 1)/(n + κ + 1): as `rows`."""
        drifts, k = drifting(kappa)
        return np.where(drifts, k / (rows + k), 1.0)

    def discount(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return the sums of the fewer rows that say as much of the shared parameters."""
        worth = self.worth(self.known(statistics), kappa)
        return np.asarray(statistics * np.repeat(worth, self.statistics, axis=-1))

    def log_remainder(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return log p(rows | θ, κ) less that of the discounted rows, at their own θ."""
        at = self.near(statistics)
        kept = self.discount(statistics, kappa) * self.natural(at)
        apart = by_variable(kept, len(self.statistic_words))
        return np.asarray(self.log_marginal(statistics, at, kappa) - sum(apart))

    def sum_bounds(self) -> tuple[Floats, Floats]:
        """Return the least and the most of a winsorised cell in each sum: (variable, sum)."""
        low, high = self.bounds()
        ends = self.features(np.array([low, high, np.clip(0.0, low, high)]))
        each = split(ends, len(self.statistic_words))[..., 1:]
        return each.min(axis=0), each.max(axis=0)

    def least_units(self, units: Floats, per_step: Floats) -> Floats:
        """Return sums in steps, (..., variable, sum), as they are: no spread of their own."""
        return units

    def log_rounded(
        self, parameters: Floats, low: Floats, high: Floats, rows: Floats, known: Ints, least: int
    ) -> Floats:
        """Return the log probability that rows leave such a mean, rounded: (draw, variable).

        As it stands for one sum, normal, and without top-coding by rank.

        Parameters
        ----------
        parameters : (draw, parameter)
        low, high : (variable, sum), bounds of the mean statistics that leave alike.
        rows : (variable,), how many the release is worth; known : (variable,), cells
        least : rank at which both ends were top-coded.
        """
        error = self.spread(parameters) / np.sqrt(rows)
        mean = by_variable(self.moments(parameters), 2)[1]
        ends = ((end[:, 0] - mean) / error for end in (low, high))
        return release_rounding.log_between(*ends)

    def basis(self, known: Ints, concentration: Floats, rules: Policy) -> Ints:
        """Say what each released mean is of: (cluster, variable)."""
        own = (concentration > 0) | (not rules.has_rules)
        return np.where(own, CLUSTER, np.where(own.any(axis=0), SILO, UNIFORM))

    disclose, draw_behind = release_rounding.disclose_sums, release_rounding.draw_behind_sums

    def breach(self, mean: Floats, concentration: Floats, known: Ints, rules: Policy) -> str:
        """Say what released numbers have that no rule lets out; nothing where all is well."""
        if not self.has_rules:
            return f"has {self.word} that leave only where no rule is set"
        return release_rounding.breach_sums(self, mean, concentration, known, rules)

    def bounds(self) -> tuple[Floats, Floats]:
        """Return the smallest and largest value that leave as they are, each (variable,)."""
        raise lacks(self, "bounds")


def drifting(kappa: Floats) -> tuple[Bools, Floats]:
    """Return where silos differ, and κ + 1, the rows that their spread is worth: as `kappa`."""
    drifts = np.isfinite(kappa)
    return drifts, np.where(drifts, kappa, 0.0) + 1.0
