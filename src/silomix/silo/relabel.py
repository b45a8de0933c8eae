"""Draws + partition -> draws in which cluster k means the same throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linear_sum_assignment

from silomix.errors import SamplingWarning, SettingsError, warn
from silomix.kernels.similarity import BYTE, add_support, contingency
from silomix.model.diagnostics import PRIOR_DRAWS_ALLOWED, SILENCE
from silomix.model.draws import Draws, LocalPosterior, Partition
from silomix.silo.partition import largest_first
from silomix.silo.partition import partition as find_partition

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from silomix.kernels.arrays import Floats, Ints, Singles

    Relabel = Callable[[NDArray[np.int32], Singles], Floats]


def local_posterior(
    draws: Draws, partition: ArrayLike | Partition = "linkage", relabel: str = "match"
) -> LocalPosterior:
    """Return the draws of one silo, aligned with one partition of its rows.

    Parameters
    ----------
    draws : of one silo.
    partition : a word for `silomix.silo.partition.partition`, a partition, or a label for each row
        (any values; the clusters are numbered anew, largest first).
    relabel : how cluster k gets its parameters in each draw. "match" takes those of one
        component; "average", as Fendler et al. (2026) do, the mean over its rows, which mixes
        neighbouring components into each draw and narrows the posterior.

    Examples
    --------
    >>> local = silomix.local_posterior(draws)
    >>> local.weights.shape, local.partition.clusters
    ((1000, 5), 5)
    >>> int(local.sizes.sum()) == draws.shard.rows
    True
    """
    found = align_draws(draws, resolve(draws, partition), relabel)
    warn_of_prior_draws(found.prior_draws)
    return found


def align_draws(draws: Draws, followed: Partition, relabel: str) -> LocalPosterior:
    """Return the draws of one silo, aligned with a partition a few at a time, without a warning."""
    if relabel not in RELABELLINGS:
        raise SettingsError(f"relabel {relabel!r} is unknown; choose from {list(RELABELLINGS)}")
    if relabel == "match" and followed.clusters > draws.components:
        raise SettingsError(
            f"the partition has {followed.clusters} clusters but the draws have only "
            f"{draws.components} components, and relabel 'match' gives each cluster its own; "
            "sample with more components, join clusters, or choose relabel 'average'"
        )
    n_draws, components, parameters = draws.probabilities.shape
    memberships = np.zeros((draws.shard.rows, followed.clusters))
    weights = np.empty((n_draws, followed.clusters), dtype=np.float32)
    probabilities = np.empty((n_draws, followed.clusters, parameters), dtype=np.float32)
    # whether a cluster had to take a component without its rows: (draw, cluster)
    borrowed = np.empty((n_draws, followed.clusters), dtype=np.bool_)
    for start in range(0, n_draws, BYTE):
        some = slice(start, start + BYTE)
        labels = np.ascontiguousarray(draws.labels[some])
        overlap = contingency(labels, followed.labels, components, followed.clusters)
        taken = RELABELLINGS[relabel](overlap, draws.weights[some])
        weights[some], probabilities[some], share = mix_components(
            taken, draws.weights[some], draws.probabilities[some]
        )
        borrowed[some] = ~((taken > 0) & (overlap > 0)).any(axis=1)
        add_support(labels, share, memberships)
    memberships /= n_draws
    prior_draws = borrowed.mean(axis=0)
    return LocalPosterior(
        weights, probabilities, followed, relabel, prior_draws, memberships, draws
    )


def resolve(draws: Draws, partition: ArrayLike | Partition) -> Partition:
    """Turn a word, a partition or a label for each row into a partition of the rows."""
    if isinstance(partition, str):
        return find_partition(draws, partition)
    given = partition.labels if isinstance(partition, Partition) else np.asarray(partition)
    if given.shape != (draws.shard.rows,):
        raise SettingsError(
            f"the partition has labels of shape {given.shape} and the draws have "
            f"{draws.shard.rows} rows; give one label for each row, in the order of the table"
        )
    if isinstance(partition, Partition):
        return partition
    return Partition(*largest_first(given), method="given")


def mix_components(
    taken: Floats, weights: Singles, probabilities: Singles
) -> tuple[Floats, Floats, Floats]:
    """Give each cluster the parameters of the components that it takes.

    Its probabilities are the mean over the rows it takes; a component's weight goes to the
    clusters in proportion to the rows they take. Fendler et al. (2026) take the sum of these
    weights to be one, but a component of which nobody takes rows has none to go by: its weight is
    dropped and the rest are renormalised.

    Parameters
    ----------
    taken : (draw, component, cluster), rows of the component that the cluster takes.
    weights : (draw, component).
    probabilities : (draw, component, parameter).

    Returns
    -------
    weights : (draw, cluster).
    probabilities : (draw, cluster, parameter).
    share : (draw, component, cluster), of the component's rows that are the cluster's.
    """
    share = taken / np.maximum(taken.sum(axis=2, keepdims=True), 1)
    of_cluster = taken / taken.sum(axis=1, keepdims=True)
    passed_on = np.einsum("dc,dck->dk", weights, share)
    mixed = of_cluster.transpose(0, 2, 1) @ probabilities
    return passed_on / passed_on.sum(axis=1, keepdims=True), mixed, share


def match(overlap: NDArray[np.int32], weights: Singles) -> Floats:
    """Let each cluster take one component, so that they share as many rows as possible.

    A cluster that is left with a component without its rows gets, if there is one, an empty
    component, whose parameters are a draw from the prior.

    Parameters
    ----------
    overlap : (draw, component, cluster), rows.
    weights : (draw, component).

    Returns
    -------
    (draw, component, cluster), 1 for the cluster's component.
    """
    taken = np.zeros(overlap.shape)
    np.put_along_axis(taken, assign(overlap, weights)[:, None, :], 1.0, axis=1)
    return taken


def average(overlap: NDArray[np.int32], _: Singles) -> Floats:
    """Let each cluster take its rows of every component: (draw, component, cluster).

    So its parameters are the mean of those that each row sat under: Fendler et al. (2026),
    appendix "Post-processing the MCMC output".
    """
    return overlap.astype(np.float64)


def assign(overlap: NDArray[np.int32], weights: Singles) -> Ints:
    """Return the component of each cluster, one to one, with the largest overlap.

    Among assignments of equal overlap, a component with rows of the cluster is worth two, an
    empty one is worth one, and one with rows of other clusters only is worth nothing. What is
    still equal is settled with the components in order of their weights: their numbers, which
    switch during sampling, never matter.

    Parameters
    ----------
    overlap : (draw, component, cluster), rows.
    weights : (draw, component).

    Returns
    -------
    (draw, cluster)
    """
    heaviest_first = np.argsort(-weights, axis=1, kind="stable")
    overlap = np.take_along_axis(overlap, heaviest_first[:, :, None], axis=1)
    empty = overlap.sum(axis=2, keepdims=True) == 0
    worth = np.where(overlap > 0, 2, np.where(empty, 1, 0))
    # all the worth there is stays below the worth of one row
    score = overlap.astype(np.int64) * (2 * overlap.shape[2] + 1) + worth
    places = [linear_sum_assignment(table.T, maximize=True)[1] for table in score]
    return np.take_along_axis(heaviest_first, np.array(places), axis=1)


RELABELLINGS: dict[str, Relabel] = {"match": match, "average": average}


def warn_of_prior_draws(prior_draws: Floats) -> None:
    """Warn of the clusters that are drawn from the prior too often.

    Parameters
    ----------
    prior_draws : (cluster,), share of the draws.
    """
    often = np.flatnonzero(prior_draws > PRIOR_DRAWS_ALLOWED)
    if len(often):
        shares = ", ".join(f"cluster {k}: {prior_draws[k]:.1%}" for k in often)
        with SILENCE:
            told = (
                f"some draws leave a cluster without its own component ({shares} of the "
                "draws) and its parameters there come from the prior: give more iterations, and "
                "if that does not help, more components"
            )
            warn(SamplingWarning(told))
