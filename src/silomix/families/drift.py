"""How a silo's parameters differ from the shared ones, at κ."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from silomix.families.columns import draw_places, lacks
from silomix.families.conjugate import Conjugate

if TYPE_CHECKING:
    from silomix.kernels.arrays import Array, Floats, Ints, Rng

# the values of κ; the last is the model without drift
GRID = np.append(np.geomspace(3.0, 3000.0, 25), np.inf)


class Drifts(Conjugate):
    """Drift between silos; `log_marginal`, `shared_posterior` and `draw_own` may be left out.

    A study in which silos may differ refuses variables without them: see `families.has_drift`.
    """

    def log_marginal(self, statistics: Array, parameters: Floats, kappa: Floats) -> Floats:
        """Return log p(rows | shared parameters, κ) up to a function of their number."""
        raise lacks(self, "log_marginal")

    def shared_posterior(
        self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng
    ) -> Floats:
        """Return χ of the shared parameters' posterior: (chain, cluster, coordinate)."""
        raise lacks(self, "shared_posterior")

    def draw_own(self, statistics: Array, parameters: Floats, kappa: Floats, rng: Rng) -> Floats:
        """Draw each silo's own parameters: (silo, chain, cluster, parameter)."""
        raise lacks(self, "draw_own")

    def draw_kappa(
        self, statistics: Array, parameters: Floats, current: Ints, log_odds: Floats, rng: Rng
    ) -> Ints:
        """Draw where κ is on `GRID`, silos' own parameters integrated out: (chain, variable).

        Parameters
        ----------
        statistics : (silo, chain, cluster, statistic); parameters : (chain, cluster, parameter)
        current : (chain, variable); log_odds : (chain,), of finite κ against ∞ beforehand.
        """
        grid = np.repeat(GRID[:, None], current.shape[1], axis=1)
        by_silo = [self.log_marginal(statistics, parameters, kappa) for kappa in grid]
        values = self.together(np.array(by_silo).sum(axis=(1, 3)))
        # the last point, ∞, stands apart
        values[:-1] += log_odds[:, None] - np.log(len(values) - 1)
        drawn = draw_places(np.moveaxis(values, 0, -1), rng)
        return np.asarray(drawn[:, self.leads][:, np.cumsum(self.leads) - 1])

    @abstractmethod
    def discount(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return the sums that say of the shared parameters, without drift, what these say."""

    @abstractmethod
    def log_remainder(self, statistics: Floats, kappa: Floats) -> Floats:
        """Return what discounting leaves out of the log probability: (..., variable)."""
