"""Parameters of clusters that somebody else sampled, known by their posterior alone.

A variable is one coordinate θ of a cluster's parameters: its value, logarithm or logit, less the
location, over the scale. A silo's posterior of θ is taken as normal, with mean m and variance v.
Less the prior, it says of θ what n = 1/v rows with unit variance and mean m would say:

    log p(silo | θ) = −n θ²/2 + θ S,  S = n m, up to a constant,

so the statistics (n, S) add up over silos and clusters, and evidence is a Gaussian integral. With a
scale of √(rows × variance), what one row tells of θ, n counts rows and the metric is Fisher's: the
affinity of two clusters is about exp(−(θ − θ')²/8), as it is for the means of normal rows.

The prior of θ is normal: the one that the variable states, or one worth a hundredth of a row. Under
drift a silo's own θ is N(θ, 1/(κ + 1)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.special import expit, logit

from silomix.families import derived
from silomix.families.derived import SIZE_SD
from silomix.families.family import MOST_ROWS, Family, by_variable, drifting, flat, worth
from silomix.kernels.arrays import Floats, Reals, Rng

# rows that a prior is worth which nobody stated
PRIOR_ROWS = 0.01
FEWEST_ROWS = 1e-3
# grid of the prior sizes of unrelated clusters, see `priors_near`
SIZES = np.geomspace(1e-4, 1e3, 15)
# By word: from values to free coordinates, and back.
TRANSFORMS: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
    "none": (np.asarray, np.asarray),
    "log": (np.log, np.exp),
    "logit": (logit, expit),
}


class Parameter(Family):
    """A block of parameters: see `silomix.families.family.Family`."""

    word = "parameters"
    units = "parameter"
    support = "all"
    parameter_words = ("value",)

    def describe(self, parameters: Reals) -> Floats:
        """Values, as the silos know them: a scale by itself, not its logarithm."""
        free = parameters * self.scales + self.locations
        back = [TRANSFORMS[variable.transform][1] for variable in self.variables]
        return np.stack([change(free[..., place]) for place, change in enumerate(back)], axis=-1)

    def scaled_difference(self, parameters: Reals, whole: Floats) -> Floats:
        """Differences, in what one row tells: (..., parameter)."""
        return np.asarray(parameters - whole)

    def natural(self, parameters: Reals) -> Floats:
        """η: (..., statistic) from (..., parameter)."""
        theta = parameters.astype(np.float64)
        return flat(-0.5 * theta * theta, theta)

    def prior(self) -> Floats:
        """Precision, and precision times mean, of the prior: (coordinate,)."""
        stated = [v.prior or (v.location, v.scale / np.sqrt(PRIOR_ROWS)) for v in self.variables]
        mean, sd = np.array(stated).T
        precision = (self.scales / sd) ** 2
        return flat(precision, precision * (mean - self.locations) / self.scales)

    def draw(self, posterior: Reals, rng: Rng) -> Floats:
        """Draw parameters: (..., parameter)."""
        precision, total = by_variable(posterior, 2)
        steps = rng.standard_normal(total.shape) / np.sqrt(precision)
        return np.asarray(total / precision + steps)

    def log_normaliser(self, posterior: Floats) -> Floats:
        """Log of ∫ exp(−n θ²/2 + θ S) dθ: (..., variable)."""
        n, total = by_variable(posterior, 2)
        return np.asarray(0.5 * (total * total / n - np.log(n)))

    def valid(self, statistics: Floats) -> Floats:
        """Sums of a number of rows that is not below zero."""
        n, total = by_variable(statistics, 2)
        return flat(np.maximum(n, 0.0), np.where(n > 0, total, 0.0))

    def fit(self, draws: Reals) -> Floats:
        """Sufficient statistics implied by the draws, net of the prior, by moments.

        Draws are (draw, cluster, parameter).
        """
        drawn = draws.astype(np.float64)
        known = np.minimum(1.0 / np.maximum(drawn.var(axis=0), 1e-300), MOST_ROWS)
        precision, total = by_variable(self.prior(), 2)
        n = np.maximum(known - precision, FEWEST_ROWS)
        return flat(n, (n + precision) * drawn.mean(axis=0) - total)

    def medians(self, posterior: Floats) -> Floats:
        """Medians of the parameters, their means: (..., parameter)."""
        precision, total = by_variable(posterior, 2)
        return total / precision

    def log_prior(self, parameters: Floats) -> tuple[float, Floats | float, Floats]:
        """Log density of the prior, and its gradient."""
        precision, total = by_variable(self.prior(), 2)
        apart = parameters - total / precision
        value = 0.5 * (np.log(precision / (2 * np.pi)) - precision * apart * apart)
        return 0.0, float(value.sum()), -precision * apart

    def coordinates(self, parameters: Reals) -> Reals:
        """Parameters, which are coordinates."""
        return parameters

    def back(self, coordinates: Floats) -> Floats:
        """Parameters at these coordinates."""
        return coordinates

    def log_marginal(self, statistics: Floats, parameters: Floats, kappa: Floats) -> Floats:
        """Log p(silo | θ, κ), the silo's own θ integrated out: (..., variable)."""
        n, total = by_variable(statistics, 2)
        drifts, k = drifting(kappa)
        part = worth(n, kappa)
        shared = part * (parameters * total - 0.5 * n * parameters * parameters)
        own = 0.5 * total * total / (n + k) + 0.5 * np.log(part)
        return np.asarray(shared + np.where(drifts, own, 0.0))

    def shared_posterior(
        self, statistics: Floats, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """χ of θ, silos' own integrated out, exactly."""
        return self.prior() + derived.discount(self, statistics, kappa[:, None, :]).sum(axis=0)

    def draw_own(self, statistics: Floats, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own θ around the shared one."""
        n, total = by_variable(statistics, 2)
        drifts, k = drifting(kappa[:, None, :])
        own = (k * parameters + total) / (k + n) + rng.standard_normal(n.shape) / np.sqrt(k + n)
        return np.where(drifts, own, parameters)

    def spread(self, parameters: Floats) -> Floats:
        """Standard deviation of what one row tells, the unit of the study: (..., variable)."""
        return np.ones(parameters.shape)

    def priors_near(self, statistics: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Priors that clusters may come from, and what speaks against each.

        Their centre is the mean of the clusters' means.
        """
        centre = derived.near(self, statistics).mean(axis=0)
        for size in SIZES:
            against = 0.5 * (np.log(size / PRIOR_ROWS) / SIZE_SD) ** 2
            yield size * derived.moments(self, centre), against
