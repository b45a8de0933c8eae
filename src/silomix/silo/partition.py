"""One partition of the rows from the draws, and its posterior probability.

When clusters overlap, each single partition is improbable; a bound sums over similar ones. With
responsibilities r of k of the C⁺ components for the rows, N the sums of rows and T of statistics,

    ln p(rows, k clusters) ≥ ln C⁺!/(C⁺ − k)! + ln Γ(C⁺α)/Γ(C⁺α + ΣN)
                             + Σ_c [ln Γ(α + N_c)/Γ(α) + g(T_c)] − Σ_i Σ_c r_ic ln r_ic,

g the log evidence of a cluster: the variational bound of a mixture at the optimal parameters for r
(Rao and Kirk, 2024), times the number of ways to label k components. Responsibilities of 0 and 1
give the probability of one partition. Any responsibilities give a bound; coordinate ascent
tightens it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import combinations, pairwise, product

import numpy as np
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform
from scipy.special import digamma, gammaln, softmax, xlogy

from silomix.errors import MissingDependency
from silomix.families.chains import Rows
from silomix.kernels.arrays import Bytes, Codes, Floats, Ints, Rng
from silomix.kernels.similarity import BYTE, add_support, co_clustering, contingency, sum_by_cluster
from silomix.model.diagnostics import index_of_labels
from silomix.model.draws import Draws, Partition
from silomix.model.sentences import one_of

Apart = Codes
Cuts = Callable[[Apart, int], Ints]

# Where chains are compared: clusters that one chain may have beyond the chosen number.
BEYOND_CHOSEN = 2
# Where chains are compared: most draws of a chain from which its partition is made.
COMPARED_DRAWS = 255
# Stream of random numbers for the rows on which chains are compared.
AGREEMENT_STREAM = 0x616772
# Clusters tried beyond the most components occupied in a draw (Liverani et al., 2015).
BEYOND_OCCUPIED = 5
# a component with fewer rows does not count as occupied
FEWEST_ROWS = 1.0
# most steps of coordinate ascent; from the partition of a silo's draws it has nearly converged by
# then
STEPS = 10
# tolerance: the ascent ends with a step that gains less
SMALLEST_GAIN = 0.01


def partition(
    draws: Draws,
    method: str = "linkage",
    *,
    clusters: int | None = None,
    one_cluster: bool = True,
    threshold: int = 10_000,
    subsample: int = 5_000,
) -> Partition:
    """Point estimate of the clustering: one partition of the rows, from the draws.

    From the posterior similarity of the rows, it cuts them into 2, 3, … clusters and keeps the cut
    with the largest average silhouette width. Where no component is spare, it follows the
    components instead (`follow_components`).

    Parameters
    ----------
    draws : of one silo.
    method : "linkage", average linkage; or "pam", k-medoids, which needs the `pam` extra.
    clusters : the number of clusters, if it is known: that of the components.
    one_cluster : whether the best cut, or the many similar cuts together, must be clearly more
        probable, a posteriori, than a single cluster (`beats_one_cluster`), which silhouettes
        cannot judge. If not, the result is one cluster only when all rows are equal.
    threshold : longest table for which a row × row matrix is made. In a longer one a random
        subsample is cut, and every other row joins the cluster that its component shares most
        rows with, over the draws.
    subsample : rows of that subsample, at least 3.
    """
    one_of("partition", method, PARTITIONS)
    rows, cuts = draws.shard.rows, PARTITIONS[method]
    widths: dict[int, float] = {}
    used = None
    if all((part == part[0]).all() for part in draws.shard.cells):  # all rows are equal
        labels = np.zeros(rows, dtype=np.int64)
    elif clusters is not None:
        labels = follow_components(draws.labels, draws.log_likelihood, clusters)
    elif rows <= max(threshold, subsample):
        labels, widths = best_cut(draws.labels, draws.components, cuts)
    else:
        used = subsample
        chosen = random_rows(rows, subsample, np.random.default_rng(draws.seed))
        sampled = np.take(draws.labels, chosen, axis=1)
        clusters_of_sample, widths = best_cut(sampled, draws.components, cuts)
        labels = place(draws.labels, chosen, clusters_of_sample, draws.components)
    if one_cluster and not beats_one_cluster(draws, labels):
        labels = np.zeros_like(labels)
    labels, sizes = largest_first(labels)
    agreement = chain_agreement(draws, len(sizes), known=clusters is not None)
    return Partition(labels, sizes, method, widths, used, agreement)


def random_rows(rows: int, size: int, rng: Rng) -> Ints:
    """Random subset of `size` rows, without replacement, in increasing order."""
    return np.sort(rng.choice(rows, size, replace=False))


def largest_first(labels: ArrayLike) -> tuple[Ints, Ints]:
    """Number clusters, (row,) of any values, by size, largest first, equal ones by their first row.

    Returns
    -------
    labels : (row,), 0 … k − 1.
    sizes : (cluster,).
    """
    _, first_rows, clusters, sizes = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((first_rows, -sizes))
    return np.argsort(order)[clusters], sizes[order]


def best_cut(labels: Bytes, components: int, cuts: Cuts) -> tuple[Ints, dict[int, float]]:
    """Cut with the largest average silhouette width; the coarsest of equals.

    Parameters
    ----------
    labels : (draw, row).
    components : C⁺.
    cuts : the method, from `PARTITIONS`.

    Returns
    -------
    labels : (row,), largest cluster first; all 0 when there is one cluster.
    widths : average silhouette width by number of clusters.
    """
    rows = labels.shape[1]
    occupied = max(np.count_nonzero(np.bincount(draw)) for draw in labels)
    most = min(occupied + BEYOND_OCCUPIED, components, rows - 1)
    if occupied == 1 or most < 2:
        return np.zeros(rows, dtype=np.int64), {}
    distances = draws_apart(labels)
    candidates = cuts(distances, most)
    totals = zip(cluster_totals(distances, candidates), candidates[::-1], strict=True)
    widths = np.array([silhouettes(*of_cut).mean() for of_cut in totals])[::-1]
    best, _ = largest_first(candidates[widths.argmax()])
    return best, dict(enumerate(widths.tolist(), start=2))


def draws_apart(labels: Bytes) -> Apart:
    """Number of draws in which two rows differ in component, (row, row), of labels (draw, row)."""
    counts = co_clustering(labels)
    return np.subtract(len(labels), counts, out=counts)


def linkage_cuts(distances: Apart, most: int) -> Ints:
    """Cuts of the average-linkage tree of the rows, into 2, 3, … `most` clusters: (cut, row).

    Parameters
    ----------
    distances : (row, row), number of draws in which two rows are apart.
    """
    tree = linkage(squareform(distances, checks=False).astype(np.float64), "average")
    # merge i joins two nodes into node rows + i; SciPy's own cut by number of clusters returns
    # fewer when merges are equally high, and rows that never sit together make many of those
    rows, pairs = len(distances), tree[:, :2].astype(np.int64).tolist()
    root = list(range(2 * rows - 1))
    for merge in reversed(range(rows - most)):
        left, right = pairs[merge]
        root[left] = root[right] = root[rows + merge]
    nodes, cuts = np.array(root[:rows]), []
    for merge in range(rows - most, rows - 1):
        cuts.append(np.unique(nodes, return_inverse=True)[1])
        nodes[np.isin(nodes, pairs[merge])] = rows + merge
    return np.array(cuts[::-1])


def need_package(method: str) -> None:
    """Refuse a method whose package is not installed."""
    if method == "pam" and find_spec("kmedoids") is None:
        text = "{partition}, also part of {preset}, needs the package kmedoids"
        raise MissingDependency(text, "pam", partition="pam", preset="paper")


def pam_cuts(counts: Apart, most: int) -> Ints:
    """Cuts around medoids, as in PReMiuM (Liverani et al., 2015).

    FasterPAM (Schubert and Rousseeuw, 2021), started by BUILD. BUILD is greedy, so the medoids
    of a shorter start are the first of the longest one; it stops once every row is at no
    distance from a medoid. Parameters and result are those of `linkage_cuts`.
    """
    need_package("pam")
    import kmedoids

    distances = counts.astype(np.int32)
    start = kmedoids.pam_build(distances, most).medoids
    candidates = []
    for k in range(2, len(start) + 1):
        # one thread: the parallel search may end elsewhere
        medoids = kmedoids.fasterpam(distances, start[:k], n_cpu=1)
        labels = medoids.labels.astype(np.int64)
        labels[medoids.medoids] = np.arange(k)  # a medoid's twin must not empty its cluster
        candidates.append(labels)
    return np.array(candidates)


PARTITIONS: dict[str, Cuts] = {"linkage": linkage_cuts, "pam": pam_cuts}


def cluster_totals(distances: Apart, cuts: Ints) -> Iterator[Ints]:
    """Sum of each row's distances to each cluster's members: (row, cluster), last cut first.

    Where a cut joins clusters of the next finer one, their sums are added, and no distance is read.

    Parameters
    ----------
    distances : (row, row), distances.
    cuts : (cut, row), labels 0 … k − 1 with no cluster empty, the coarsest first.
    """
    totals = sum_by_cluster(distances, cuts[-1], int(cuts[-1].max()) + 1)
    yield totals
    for fine, cut in pairwise(cuts[::-1]):
        n_clusters, joint = int(cut.max()) + 1, np.zeros(totals.shape[1], dtype=np.int64)
        joint[fine] = cut
        if np.array_equal(joint[fine], cut):
            totals = totals @ np.eye(n_clusters, dtype=np.int64)[joint]
        else:
            totals = sum_by_cluster(distances, cut, n_clusters)
        yield totals


def silhouettes(totals: Ints, labels: Ints) -> Floats:
    """Silhouette width of each row, 0 for a row alone in its cluster: (row,).

    Parameters
    ----------
    totals : (row, cluster), sum of each row's distances to each cluster's members.
    labels : (row,), 0 … k − 1 with no cluster empty and k at least 2.
    """
    sizes = np.bincount(labels)
    is_own = labels[:, None] == np.arange(len(sizes))
    within = totals[is_own] / np.maximum(sizes[labels] - 1, 1)
    nearest = np.where(is_own, np.inf, totals / sizes).min(axis=1)
    larger = np.maximum(within, nearest)
    defined = (larger > 0) & (sizes[labels] > 1)
    return np.where(defined, nearest - within, 0) / np.where(defined, larger, 1)


def place(labels: Bytes, chosen: Ints, clusters: Ints, components: int) -> Ints:
    """Assign every row to one of the clusters of a subsample: (row,), 0 … k − 1.

    Each row joins the cluster with the largest support, or cluster 0 without any; parameters are
    those of `support_of`. The rows of the subsample stay where they are.
    """
    placed = support_of(labels, chosen, clusters, components).argmax(axis=1)
    placed[chosen] = clusters
    return placed


def support_of(labels: Bytes, chosen: Ints, clusters: Ints, components: int) -> Floats:
    """Support of the draws for membership of a subsample's clusters: (row, cluster).

    The support for cluster k is the sum, over the draws, of the share of the chosen rows in the
    row's component that belong to k; draws whose component has no chosen row are ignored.

    Parameters
    ----------
    labels : (draw, row), read a few draws at a time.
    chosen : (chosen row,), their indices in the table.
    clusters : (chosen row,), 0 … k − 1.
    components : C⁺.
    """
    n_clusters = int(clusters.max()) + 1
    support = np.zeros((labels.shape[1], n_clusters))
    for start in range(0, len(labels), BYTE):
        batch = np.ascontiguousarray(labels[start : start + BYTE])
        overlap = contingency(np.take(batch, chosen, axis=1), clusters, components, n_clusters)
        share = overlap / np.maximum(overlap.sum(axis=2, keepdims=True), 1)
        add_support(batch, share, support)
    return support


def follow_components(labels: Bytes, log_likelihood: Floats, components: int) -> Ints:
    """Clusters that are components, whose labels may switch: (row,), 0 … k − 1.

    They are those of the most likely draw, among the draws with the most occupied components; then
    each row moves to its most frequent cluster, unless that empties a cluster. Linkage trees cut
    into this many clusters would have singletons, where clusters overlap.

    Parameters
    ----------
    labels : (draw, row); log_likelihood : (draw,)
    components : C⁺.
    """
    occupied = [np.count_nonzero(np.bincount(draw)) for draw in labels]
    likely, _ = largest_first(labels[np.lexsort((log_likelihood, occupied))[-1]])
    voted = support_of(labels, np.arange(len(likely)), likely, components).argmax(axis=1)
    return voted if len(np.unique(voted)) == likely.max() + 1 else likely


def beats_one_cluster(draws: Draws, labels: Ints) -> bool:
    """Whether there is more than one cluster, given the rows and a partition of them.

    The partition is more probable than a single cluster; or, since any single partition has low
    probability where clusters overlap, a variational bound that sums over similar partitions is
    (`log_bound`). Since the partition was selected, the Bayes factor must exceed the number of
    rows: the best of many cuts of rows without clusters is often slightly more probable.

    The prior is that of the pooled model and not the silo's fraction of it: whether a silo has
    clusters does not depend on the number of silos.
    """
    price, rows = np.log(len(labels)), Rows(draws.shard, draws.family)
    least = log_posterior(draws, rows, np.zeros_like(labels)) + price
    if log_posterior(draws, rows, labels) > least:
        return True
    # a lower bound of log p(clusters like these, rows)
    return bool(log_bound(rows, labels, draws.components, draws.prior.alpha) > least)


def log_posterior(draws: Draws, rows: Rows, labels: Ints) -> float:
    """Log p(partition, rows) under the pooled model's prior, all parameters integrated out."""
    members = np.bincount(labels)
    evidence = rows.family.log_evidence(rows.sum_statistics(labels, len(members))).sum()
    return float(evidence + log_partition_prior(members, draws.components, draws.prior.alpha))


def chain_agreement(draws: Draws, clusters: int, rows: int = 500, *, known: bool = False) -> float:
    """Agreement of the partitions of single chains.

    The adjusted Rand index of two chains' average-linkage partitions, averaged over all pairs of
    chains: chains in different modes may agree in every trace. 1 for one chain, or one
    cluster.

    Parameters
    ----------
    draws : of one silo.
    clusters : of the partition that was chosen.
    rows : most rows to compare; of a longer table, a random subsample. Of each chain at most
        `COMPARED_DRAWS` evenly spaced draws are used, which suffices for the index.
    known : whether the number of clusters is known, so that clusters are components.
    """
    chains = np.unique(draws.chain)
    if len(chains) == 1 or clusters == 1:
        return 1.0
    rng = np.random.default_rng([draws.seed, AGREEMENT_STREAM])
    compared = min(rows, draws.shard.rows)
    chosen = random_rows(draws.shard.rows, compared, rng)
    # a chain that spends a cluster on a stray row needs one more to show the others
    most = min(clusters + BEYOND_CHOSEN, compared)
    cuts = []
    for chain in chains:
        places = np.flatnonzero(draws.chain == chain)
        thinned = places[:: -(-len(places) // COMPARED_DRAWS)]
        labels = draws.labels[thinned[:, None], chosen]
        if known:
            single = follow_components(labels, draws.log_likelihood[thinned], draws.components)
            cuts.append(single[None])
        else:
            cuts.append(linkage_cuts(draws_apart(labels), most)[clusters - 2 :])
    best = [max(index_of_labels(a, b) for a, b in product(*pair)) for pair in combinations(cuts, 2)]
    return float(np.mean(best))


def log_partition_prior(sizes: ArrayLike, components: int, alpha: float) -> float:
    """Log prior probability of an unlabelled partition.

    The rows fall into `components` components whose weights are Dirichlet(alpha, …, alpha);
    C⁺!/(C⁺ − k)! labellings of the components give the same partition into k clusters. It is
    −inf for more clusters than components.

    Parameters
    ----------
    sizes : (cluster,), rows in each cluster, none of them empty.
    components : C⁺, the number of components, empty ones included.
    alpha : concentration of the weights.
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    return log_namings(len(sizes), components) + log_allocation_prior(sizes, components, alpha)


def log_namings(clusters: int, components: int) -> float:
    """Logarithm of the number of ways to label k clusters as components, C⁺!/(C⁺ − k)!."""
    return float(gammaln(components + 1) - gammaln(components - clusters + 1))


def log_allocation_prior(sizes: Floats, components: int, alpha: float) -> float:
    """Log prior probability of an allocation with these component sizes: (cluster,)."""
    weights = gammaln(components * alpha) - gammaln(components * alpha + sizes.sum())
    return float(weights + (gammaln(alpha + sizes) - gammaln(alpha)).sum())


def log_bound(rows: Rows, labels: Ints, components: int, alpha: float, steps: int = STEPS) -> float:
    """Variational lower bound on the log evidence of clusters like those of a partition.

    The largest bound along a coordinate ascent that starts from the partition; a step updates the
    responsibilities given the clusters' sizes and sums. The result is −inf if the first step leaves
    a single occupied cluster. Equal rows have equal responsibilities, so each distinct row starts
    in the cluster of its first copy.

    Parameters
    ----------
    labels : (row,), 0 … k − 1; components : C⁺; alpha : concentration of the weights.
    steps : the most steps.
    """
    cells = np.column_stack(rows.shard.cells)
    _, first_rows, repeats = np.unique(cells, axis=0, return_index=True, return_counts=True)
    family, distinct = rows.family, rows.shard.some(first_rows)
    features = family.features(distinct)
    _, initial = np.unique(labels[first_rows], return_inverse=True)
    shares = np.eye(int(initial.max()) + 1)[initial]
    best = -np.inf
    for step in range(steps + 1):
        weighted = shares * repeats[:, None]
        members, sums = weighted.sum(axis=0), family.settle(distinct, features, weighted)
        if step:
            occupied = int((members >= FEWEST_ROWS).sum())
            if occupied < 2:
                break
            evidence = float(family.log_evidence(sums).sum())
            entropy = -float((repeats @ xlogy(shares, shares)).sum())
            allocated = log_allocation_prior(members, components, alpha)
            bound = log_namings(occupied, components) + allocated + evidence + entropy
            risen, best = bound > best + SMALLEST_GAIN, max(best, bound)
            if not risen:
                break
        # r_ic ∝ exp(ψ(α + N_c) + T(x_i) · E η_c), or near, where T is not known
        if family.always_hides:
            updated = family.prior() + family.conjugate(sums)
            scores = family.log_density(distinct, family.medians(updated))
        else:
            scores = features @ family.expected_natural(sums).T
        shares = softmax(scores + digamma(alpha + members), axis=1)
    return best
