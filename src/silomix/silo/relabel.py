"""Align draws with a partition, so that cluster k means the same in every draw."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from silomix.errors import SamplingWarning, SettingsError, warn
from silomix.kernels.arrays import Floats, Ints, Singles
from silomix.kernels.similarity import BYTE, add_support, contingency
from silomix.model.diagnostics import PRIOR_DRAWS_ALLOWED, SILENCE
from silomix.model.draws import Draws, LocalPosterior, Partition
from silomix.model.sentences import one_of
from silomix.silo.partition import largest_first
from silomix.silo.partition import partition as find_partition

Relabel = Callable[[NDArray[np.int32], Singles], Floats]


def local_posterior(
    draws: Draws, partition: ArrayLike | Partition = "linkage", relabel: str = "match"
) -> LocalPosterior:
    """Align the draws of one silo with one partition of its rows.

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
    local = align_draws(draws, resolve(draws, partition), relabel)
    often = np.flatnonzero(local.prior_draws > PRIOR_DRAWS_ALLOWED)
    if len(often):
        shares = ", ".join(f"cluster {k}: {local.prior_draws[k]:.1%}" for k in often)
        text = (
            f"some draws leave a cluster without its own component ({shares} of the draws) and its "
            "parameters there come from the prior: give more iterations, and if that does not "
            "help, more components"
        )
        with SILENCE:
            warn(SamplingWarning(text))
    return local


def align_draws(draws: Draws, followed: Partition, relabel: str) -> LocalPosterior:
    """Align the draws of one silo with a partition, in batches, without a warning."""
    one_of("relabel", relabel, RELABELLINGS)
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
    # whether a cluster was assigned a component without any of its rows: (draw, cluster)
    borrowed = np.empty((n_draws, followed.clusters), dtype=np.bool_)
    for start in range(0, n_draws, BYTE):
        batch = slice(start, start + BYTE)
        labels = np.ascontiguousarray(draws.labels[batch])
        overlap = contingency(labels, followed.labels, components, followed.clusters)
        assigned = RELABELLINGS[relabel](overlap, draws.weights[batch])
        weights[batch], probabilities[batch], share = mix_components(
            assigned, draws.weights[batch], draws.probabilities[batch]
        )
        borrowed[batch] = ~((assigned > 0) & (overlap > 0)).any(axis=1)
        add_support(labels, share, memberships)
    memberships /= n_draws
    return LocalPosterior(
        weights, probabilities, followed, relabel, borrowed.mean(axis=0), memberships, draws
    )


def resolve(draws: Draws, partition: ArrayLike | Partition) -> Partition:
    """Turn a method's name, a partition or a label for each row into a partition."""
    if isinstance(partition, str):
        return find_partition(draws, partition)
    labels = partition.labels if isinstance(partition, Partition) else np.asarray(partition)
    if labels.shape != (draws.shard.rows,):
        raise SettingsError(
            f"the partition has labels of shape {labels.shape} and the draws have "
            f"{draws.shard.rows} rows; give one label for each row, in the order of the table"
        )
    if isinstance(partition, Partition):
        return partition
    return Partition(*largest_first(labels), method="given")


def mix_components(
    assigned: Floats, weights: Singles, probabilities: Singles
) -> tuple[Floats, Floats, Floats]:
    """Average, for each cluster, the parameters of the components assigned to it.

    Its parameters are the mean over its assigned rows; a component's weight is split among the
    clusters in proportion to these rows. Fendler et al. (2026) take the sum of these weights to be
    one, but a component without assigned rows cannot be split: its weight is dropped and the rest
    are renormalised.

    Parameters
    ----------
    assigned : (draw, component, cluster), rows of the component that the cluster takes.
    weights : (draw, component).
    probabilities : (draw, component, parameter).

    Returns
    -------
    weights : (draw, cluster).
    probabilities : (draw, cluster, parameter).
    share : (draw, component, cluster), of the component's rows that are the cluster's.
    """
    share = assigned / np.maximum(assigned.sum(axis=2, keepdims=True), 1)
    of_cluster = assigned / assigned.sum(axis=1, keepdims=True)
    passed_on = np.einsum("dc,dck->dk", weights, share)
    mixed = of_cluster.transpose(0, 2, 1) @ probabilities
    return passed_on / passed_on.sum(axis=1, keepdims=True), mixed, share


def match(overlap: NDArray[np.int32], weights: Singles) -> Floats:
    """Assign one component to each cluster, to maximise the rows they share.

    A cluster for which no component with its rows is left gets an empty one, if there is any,
    whose parameters are a draw from the prior.

    Parameters
    ----------
    overlap : (draw, component, cluster), rows.
    weights : (draw, component).

    Returns
    -------
    (draw, component, cluster), 1 for the cluster's component.
    """
    assigned = np.zeros(overlap.shape)
    np.put_along_axis(assigned, assign(overlap, weights)[:, None, :], 1.0, axis=1)
    return assigned


def average(overlap: NDArray[np.int32], _: Singles) -> Floats:
    """Assign to each cluster its rows of every component: (draw, component, cluster).

    Its parameters are then the mean over its rows of their components' parameters: Fendler et al.
    (2026), appendix "Post-processing the MCMC output".
    """
    return overlap.astype(np.float64)


def assign(overlap: NDArray[np.int32], weights: Singles) -> Ints:
    """Component of each cluster, one to one, with the largest overlap in all.

    Ties prefer a component with rows of the cluster (score 2) to an empty one (1), and that to one
    with rows of other clusters only (0). Remaining ties go by the order of the components' weights,
    not by their numbers, which switch during sampling.

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
    bonus = np.where(overlap > 0, 2, np.where(empty, 1, 0))
    # the scores of all clusters together stay below that of one row
    score = overlap.astype(np.int64) * (2 * overlap.shape[2] + 1) + bonus
    places = [linear_sum_assignment(table.T, maximize=True)[1] for table in score]
    return np.take_along_axis(heaviest_first, np.array(places), axis=1)


RELABELLINGS: dict[str, Relabel] = {"match": match, "average": average}
