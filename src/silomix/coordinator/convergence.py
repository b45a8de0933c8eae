"""Whether the draws of a polish have settled, and which cluster moved most."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.posterior.verdict import Movement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.coordinator.polish import Round
    from silomix.families.product import Product
    from silomix.kernels.arrays import Bools, Floats

# Rounds below which there are no two windows to compare.
FIRST_CHECK = 4
LIKELIHOOD_LIMIT = 2.5
# Standard errors by which the mean squared z of a cluster's parameters may exceed 1 at rest. At
# rest the worst cluster's spreads are 1 to 4 above it: parameters are skewed and not independent.
NOISE = 6.0
# Independent draws that the kept ones should be worth, for every cluster.
WORTH = 300.0
# Smaller clusters, and weights of clusters with fewer rows in a silo, are not asked if they are
# at rest: hardly any row holds them in place, and z of such a weight is far from normal.
FEWEST_ROWS = 5.0


class Check(NamedTuple):
    """Comparison of the kept half of the rounds with the quarter before it.

    Attributes
    ----------
    movement : (4,), the number of rounds; z of the log-likelihood; of the cluster that moved most,
        how far the mean squared z of its parameters' means, and of their spreads, is above 1, in
        standard errors.
    worth : how many independent draws the kept ones are worth, for the worst cluster.
    worst : the cluster that moved most.
    """

    movement: tuple[float, float, float, float]
    worth: float
    worst: Movement

    @property
    def moving(self) -> bool:
        """Whether it shows more than its Monte Carlo error."""
        _, likelihood_z, means, spreads = self.movement
        return abs(likelihood_z) > LIKELIHOOD_LIMIT or max(means, spreads) > NOISE

    @property
    def at_rest(self) -> bool:
        """Whether the draws do not move, and are worth enough."""
        return not self.moving and self.worth >= WORTH


def compare(
    rounds: Sequence[Round], log_likelihood: Sequence[Floats], members: Floats, family: Product
) -> Check:
    """Compare the kept half of the rounds with the quarter before it, chain by chain.

    Parameters
    ----------
    log_likelihood : (chain,) of each round.
    members : (silo, chain, cluster), rows in the last round.
    """
    made, by_silo = len(rounds), members.mean(axis=1)
    silos, rows = len(by_silo), by_silo.sum(axis=0)
    large = rows >= min(FEWEST_ROWS, rows.max())
    windows = slice(made // 4, made // 2), slice(made // 2, made)
    then, now = (_parameters(rounds[window], large) for window in windows)
    before, after = (np.mean(log_likelihood[window], axis=0) for window in windows)
    likelihood_z = float(paired_z(after - before))
    change = now.mean(axis=0) - then.mean(axis=0)
    z = paired_z(np.stack([change, spread(now) - spread(then)], 1))
    z[:, :, :silos][:, by_silo[:, large].T < FEWEST_ROWS] = np.nan
    above = np.array([excess(part) for part in z])
    # of the cluster that moved most: its share, and its parameters as people read them
    most = int(above.max(axis=0).argmax())
    share = change[:, most, :silos].mean(axis=0) @ by_silo.sum(axis=1) / rows.sum()
    before, after = (family.describe(part[:, :, most, silos:]).mean(axis=0) for part in (then, now))
    column = int(np.abs(paired_z(after - before)).argmax())
    by = float((after - before).mean(axis=0)[column])
    cluster = int(np.flatnonzero(large)[most])
    worst = Movement(cluster, float(share), *family.names()[column], by)
    means, spreads = map(float, above.max(axis=1))
    return Check((made, likelihood_z, means, spreads), independent_draws(now), worst)


def _parameters(rounds: Sequence[Round], large: Bools) -> Floats:
    """Parameters of the large clusters: (round, chain, cluster, parameter)."""
    weights = np.array([part.weights for part in rounds], dtype=np.float64)[..., large]
    profiles = np.array([part.parameters for part in rounds], dtype=np.float64)[:, :, large]
    return np.concatenate([np.moveaxis(weights, 2, 3), profiles], axis=3)


def spread(values: Floats) -> Floats:
    """Distance of each chain from the mean of all, averaged over rounds: (chain, …)."""
    return np.abs(values - values.mean(axis=(0, 1))).mean(axis=0)


def independent_draws(values: Floats) -> float:
    """Effective number of independent draws, in the cluster where it is smallest.

    Chains are independent of each other, so the spread of their means says how well the mean of
    all is known, however slowly each of them moves.

    Parameters
    ----------
    values : (round, chain, cluster, parameter)
    """
    rounds, chains = values.shape[:2]
    of_means = values.mean(axis=0).var(axis=0, ddof=1) / chains
    of_draws = values.var(axis=(0, 1))
    error = np.divide(of_means, of_draws, out=np.full_like(of_means, np.nan), where=of_draws > 0)
    known = error[~np.isnan(error).all(axis=1)]
    if len(known) == 0:
        return float(rounds * chains)
    return float(1.0 / np.nanmean(known, axis=1).max())


def excess(z: Floats) -> Floats:
    """Excess over 1 of the mean of z² over the parameters of each cluster: (cluster,).

    In standard errors, as if half of the parameters said something of their own: levels of one
    variable add up to one.

    Parameters
    ----------
    z : (cluster, parameter), NaN where it does not count.
    """
    above = np.nanmean(z**2, axis=1) - 1.0
    return np.asarray(above / np.sqrt(4.0 / np.isfinite(z).sum(axis=1)))


def paired_z(differences: Floats) -> Floats:
    """Mean over standard error of the differences along axis 0; 0 where none moved."""
    error = differences.std(axis=0, ddof=1) / np.sqrt(len(differences))
    mean = differences.mean(axis=0)
    return np.divide(mean, error, out=np.zeros_like(mean), where=error > 0)
