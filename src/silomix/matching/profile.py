"""How local clusters' counts become evidence, with or without drift between the silos.

Under drift, counts of one silo say less of the profile that the silos share: they are discounted at
κ (`silomix.families.drift.discount`), and add up over silos as counts do without drift. What they
are compared with is how much *unrelated* clusters differ. In a variable in which a silo's own
clusters hardly differ, two clusters that agree need not be the same: there the prior of a profile
is Dirichlet(τ_q ḡ_q) with a large τ_q, learned from the differences between clusters of one silo,
which are surely not the same. Otherwise many variables that tell nobody apart would, together, join
what the few others tell apart, since drift limits what those can say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from silomix.families.drift import discount, log_remainder
from silomix.families.evidence import log_evidence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.matching.records import LocalClusters

SPREADS = np.array([0.6, 1.0, 2.0, 4.0, 8.0, 20.0, 60.0, 200.0, 1e3, 5e3, 3e4])
"""Values of τ that are compared."""
SPREAD_SD = 3.0
"""The prior of ln τ_q is normal around that of Dirichlet(β), as wide as this."""
JOIN_ODDS = 0.5
"""Prior odds of joining under drift, where unlike clusters join more easily, in those without."""


@dataclass(frozen=True, eq=False)
class Profile:
    """How level counts become evidence.

    Attributes
    ----------
    offsets : (variable + 1,), where each variable's levels start.
    beta : concentration of the level probabilities in the pooled model.
    kappa : (variable,), how alike the silos' profiles are; the same everywhere when left out.
    base : (level,), parameters of the Dirichlet prior of a cluster's shared profile; beta when
        left out.
    """

    offsets: NDArray[np.int64]
    beta: float
    kappa: NDArray[np.float64] | None = None
    base: NDArray[np.float64] | None = None

    def evidence(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ln p(counts) of each group, from discounted counts: (...,) from (..., level)."""
        return log_evidence(counts, self.offsets, self.prior)

    def discount(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what counts of one silo say of the shared profile: (..., level)."""
        if self.kappa is None:
            return counts
        return discount(counts, self.kappa, self.offsets, self.beta)

    def remainder(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what discounting leaves out of the log probability of the counts: (...,)."""
        if self.kappa is None:
            return np.zeros(counts.shape[:-1])
        return log_remainder(counts, self.kappa, self.offsets, self.beta)

    @property
    def prior(self) -> NDArray[np.float64]:
        """Parameters of the Dirichlet prior of a cluster's shared profile: (level,)."""
        return np.full(int(self.offsets[-1]), self.beta) if self.base is None else self.base

    @property
    def drifts(self) -> NDArray[np.bool_]:
        """In which variables silos may differ: (variable,)."""
        same = np.zeros(len(self.offsets) - 1, dtype=np.bool_)
        return same if self.kappa is None else np.isfinite(self.kappa)

    @property
    def log_join_odds(self) -> float:
        """What each join adds to the log prior of a grouping."""
        return float(np.log(JOIN_ODDS)) if self.drifts.any() else 0.0


def drift_profile(
    clusters: LocalClusters, offsets: NDArray[np.int64], beta: float, kappa: NDArray[np.float64]
) -> Profile:
    """Return the evidence under drift at κ, with the spread of unrelated clusters learned.

    τ_q maximises the probability of the local clusters one by one, each counting
    (clusters of its silo − 1)/(clusters of its silo), so that a silo's only cluster, which may
    differ from others by drift alone, says nothing; times a weak prior.
    """
    counts = discount(clusters.counts, kappa, offsets, beta)
    sizes = np.diff(offsets)
    totals = np.repeat(np.add.reduceat(counts, offsets[:-1], axis=1), sizes, axis=1)
    centre = ((counts + beta) / (totals + beta * np.repeat(sizes, sizes))).mean(axis=0)
    siblings = np.bincount(clusters.silo)[clusters.silo]
    say = (siblings - 1) / siblings
    fits = np.array([say @ by_variable(counts, spread * centre, offsets) for spread in SPREADS])
    fits -= 0.5 * ((np.log(SPREADS)[:, None] - np.log(beta * sizes)) / SPREAD_SD) ** 2
    spread = SPREADS[fits.argmax(axis=0)]
    return Profile(offsets, beta, kappa, np.repeat(spread, sizes) * centre)


def by_variable(
    counts: NDArray[np.float64], base: NDArray[np.float64], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the evidence of each cluster in each variable: (..., variable) from (..., level)."""
    rise = gammaln(base + counts) - gammaln(base)
    totals, concentration = (
        np.add.reduceat(part, offsets[:-1], axis=-1) for part in (counts, base)
    )
    fall = gammaln(concentration + totals) - gammaln(concentration)
    return np.asarray(np.add.reduceat(rise, offsets[:-1], axis=-1) - fall)
