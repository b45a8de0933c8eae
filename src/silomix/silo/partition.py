"""Draws -> one partition of the rows, and how probable it is.

One partition of rows that overlap is improbable, though one of many that are nearly the same: their
number must count too. With shares r of the rows in k of C⁺ components, N their rows and T their
statistics,

    ln p(rows, k clusters) ≥ ln C⁺!/(C⁺ − k)! + ln Γ(C⁺α)/Γ(C⁺α + ΣN)
                             + Σ_c [ln Γ(α + N_c)/Γ(α) + g(T_c)] − Σ_i Σ_c r_ic ln r_ic,

g the evidence of a cluster: the bound of variational mixtures once the parameters are at their best
for r (Rao and Kirk, 2024), times the ways to name k components. Shares of 0 and 1 give the
probability of one partition. Whatever the shares, it is a bound; steps of coordinate ascent bring
it closer.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform
from scipy.special import digamma, gammaln, softmax, xlogy

from silomix.errors import MissingDependency, SettingsError
from silomix.families.rows import Rows
from silomix.kernels.similarity import BYTE, add_support, co_clustering, contingency, sum_by_cluster
from silomix.model.draws import Draws, Partition
from silomix.model.metrics import index_of_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike

    from silomix.kernels.arrays import Bytes, Codes, Floats, Ints, Rng

    Apart = Codes
    Cuts = Callable[[Apart, int], Ints]

# Clusters a chain alone may have beyond the chosen number, where chains are compared.
BEYOND_CHOSEN = 2

# Draws of a chain, at most, that its partition is read off where chains are compared.
COMPARED_DRAWS = 255

# Keeps the rows that chains are compared on apart from other random choices.
AGREEMENT_STREAM = 0x616772

# Clusters tried beyond the most components occupied in a draw (Liverani et al., 2015).
BEYOND_OCCUPIED = 5
# a component with fewer rows is none
FEWEST_ROWS = 1.0
# most steps of coordinate ascent; from the partition of a silo's draws they gain nearly all there
# is to gain
STEPS = 10
# the ascent ends with a step that gains less
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
    """Return the one partition of the rows that stands for the draws.

    It starts from how often two rows sit together, cuts the rows into 2, 3, … clusters, and
    keeps the cut with the largest average silhouette width. Where no component is spare, it follows
    the components instead (`follow_components`).

    Parameters
    ----------
    draws : of one silo.
    method : "linkage", average linkage; or "pam", k-medoids, which needs the `pam` extra.
    clusters : how many there are, if that is known: as many as there are components.
    one_cluster : whether the best cut, or the many cuts like it together, must be clearly more
        probable, a posteriori, than a single cluster (`beats_one_cluster`); silhouettes start at
        two clusters and cannot tell. Without it, one cluster is the answer only when nothing tells
        the rows apart.
    threshold : longest table for which a row × row matrix is made. In a longer one a random
        subsample is cut, and every other row goes where the rows that share its component, draw
        by draw, mostly are.
    subsample : rows of that subsample, at least 3.
    """
    if method not in PARTITIONS:
        raise SettingsError(f"partition {method!r} is unknown; choose from {list(PARTITIONS)}")
    rows, cuts = draws.shard.rows, PARTITIONS[method]
    widths: dict[int, float] = {}
    used = None
    if all((part == part[0]).all() for part in draws.shard.cells):  # nothing tells rows apart
        labels = np.zeros(rows, dtype=np.int64)
    elif clusters is not None:
        labels = follow_components(draws.labels, draws.log_likelihood, clusters)
    elif rows <= max(threshold, subsample):
        labels, widths = best_cut(draws.labels, draws.components, cuts)
    else:
        used = subsample
        chosen = random_rows(rows, subsample, np.random.default_rng(draws.seed))
        some = np.take(draws.labels, chosen, axis=1)
        found, widths = best_cut(some, draws.components, cuts)
        labels = place(draws.labels, chosen, found, draws.components)
    if one_cluster and not beats_one_cluster(draws, labels):
        labels = np.zeros_like(labels)
    labels, sizes = largest_first(labels)
    agreement = chain_agreement(draws, len(sizes), known=clusters is not None)
    return Partition(labels, sizes, method, widths, used, agreement)


def random_rows(rows: int, size: int, rng: Rng) -> Ints:
    """Return `size` of the rows, drawn without replacement, in increasing order."""
    return np.sort(rng.choice(rows, size, replace=False))


def largest_first(labels: ArrayLike) -> tuple[Ints, Ints]:
    """Return the labels with the largest cluster first, equal ones by their first row.

    Parameters
    ----------
    labels : (row,), any values.

    Returns
    -------
    labels : (row,), 0 … k − 1.
    sizes : (cluster,).
    """
    _, first, clusters, sizes = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((first, -sizes))
    return np.argsort(order)[clusters], sizes[order]


def best_cut(labels: Bytes, components: int, cuts: Cuts) -> tuple[Ints, dict[int, float]]:
    """Cut the rows where the average silhouette width is largest; the first of equals wins.

    Parameters
    ----------
    labels : (draw, row).
    components : C⁺.
    cuts : how to cut, as in `PARTITIONS`.

    Returns
    -------
    labels : (row,), largest cluster first; all 0 when there is nothing to cut.
    widths : average silhouette width by number of clusters.
    """
    rows = labels.shape[1]
    everyone = np.zeros(rows, dtype=np.int64)
    held = contingency(np.ascontiguousarray(labels), everyone, components, 1)
    occupied = int(np.count_nonzero(held, axis=1).max())
    most = min(occupied + BEYOND_OCCUPIED, components, rows - 1)
    if occupied == 1 or most < 2:
        return everyone, {}
    apart = draws_apart(labels)
    candidates = cuts(apart, most)
    totals = zip(cluster_totals(apart, candidates), candidates[::-1], strict=True)
    widths = np.array([silhouettes(*of_cut).mean() for of_cut in totals])[::-1]
    best, _ = largest_first(candidates[widths.argmax()])
    return best, dict(enumerate(widths.tolist(), start=2))


def draws_apart(labels: Bytes) -> Apart:
    """Return the number of draws in which two rows are apart, (row, row), of labels (draw, row)."""
    apart = co_clustering(labels)
    return np.subtract(len(labels), apart, out=apart)


def linkage_cuts(apart: Apart, most: int) -> Ints:
    """Cut the average-linkage tree of the rows.

    Parameters
    ----------
    apart : (row, row), number of draws in which two rows are apart.
    most : largest number of clusters.

    Returns
    -------
    (cut, row), labels of exactly 2, 3, … `most` clusters.
    """
    tree = linkage(squareform(apart, checks=False).astype(np.float64), "average")
    # merge i joins two nodes into node rows + i; SciPy's own cut by number of clusters returns
    # fewer when merges are equally high, and rows that never sit together make many of those
    rows, pairs = len(apart), tree[:, :2].astype(np.int64).tolist()
    root = list(range(2 * rows - 1))
    for merge in reversed(range(rows - most)):
        one, other = pairs[merge]
        root[one] = root[other] = root[rows + merge]
    nodes, cuts = np.array(root[:rows]), []
    for merge in range(rows - most, rows - 1):
        cuts.append(np.unique(nodes, return_inverse=True)[1])
        nodes[np.isin(nodes, pairs[merge])] = rows + merge
    return np.array(cuts[::-1])


def need_package(method: str) -> None:
    """Refuse a partition whose package is not installed."""
    if method == "pam" and find_spec("kmedoids") is None:
        text = "{partition}, also part of {preset}, needs the package kmedoids"
        raise MissingDependency(text, "pam", partition="pam", preset="paper")


def pam_cuts(apart: Apart, most: int) -> Ints:
    """Cut the rows around medoids, as PReMiuM does (Liverani et al., 2015).

    FasterPAM (Schubert and Rousseeuw, 2021), started by BUILD. BUILD is greedy, so the medoids
    of a shorter start are the first of the longest one; it stops once every row is at no
    distance from a medoid.

    Parameters
    ----------
    apart : (row, row), number of draws in which two rows are apart.
    most : largest number of clusters.

    Returns
    -------
    (cut, row), labels of exactly 2, 3, … clusters.
    """
    need_package("pam")
    import kmedoids

    distances = apart.astype(np.int32)
    start = kmedoids.pam_build(distances, most).medoids
    candidates = []
    for k in range(2, len(start) + 1):
        # one thread: the parallel search may end elsewhere
        found = kmedoids.fasterpam(distances, start[:k], n_cpu=1)
        labels = found.labels.astype(np.int64)
        labels[found.medoids] = np.arange(k)  # a medoid's twin must not empty its cluster
        candidates.append(labels)
    return np.array(candidates)


PARTITIONS: dict[str, Cuts] = {"linkage": linkage_cuts, "pam": pam_cuts}


def cluster_totals(apart: Apart, cuts: Ints) -> Iterator[Ints]:
    """Add up each row's distances to the members of each cluster: (row, cluster), last cut first.

    Where a cut joins clusters of the next, their sums are added up and no distance is read again.

    Parameters
    ----------
    apart : (row, row), distances.
    cuts : (cut, row), labels 0 … k − 1 with no cluster empty, the coarsest first.
    """
    totals = sum_by_cluster(apart, cuts[-1], int(cuts[-1].max()) + 1)
    yield totals
    for fine, cut in pairwise(cuts[::-1]):
        n_clusters, joint = int(cut.max()) + 1, np.zeros(totals.shape[1], dtype=np.int64)
        joint[fine] = cut
        if np.array_equal(joint[fine], cut):
            totals = totals @ np.eye(n_clusters, dtype=np.int64)[joint]
        else:
            totals = sum_by_cluster(apart, cut, n_clusters)
        yield totals


def silhouettes(totals: Ints, labels: Ints) -> Floats:
    """Return the silhouette width of each row, 0 for a row alone in its cluster.

    Parameters
    ----------
    totals : (row, cluster), the distances of each row to the members of each cluster, added up.
    labels : (row,), 0 … k − 1 with no cluster empty and k at least 2.
    """
    sizes = np.bincount(labels)
    own = labels[:, None] == np.arange(len(sizes))
    inside = totals[own] / np.maximum(sizes[labels] - 1, 1)
    outside = np.where(own, np.inf, totals / sizes).min(axis=1)
    larger = np.maximum(inside, outside)
    defined = (larger > 0) & (sizes[labels] > 1)
    return np.where(defined, outside - inside, 0) / np.where(defined, larger, 1)


def place(labels: Bytes, chosen: Ints, clusters: Ints, components: int) -> Ints:
    """Put every row in one of the clusters of a few chosen rows.

    Each goes where its support is largest (`support_of`), to cluster 0 where no draw speaks for it.
    The chosen rows stay where they are.

    Parameters
    ----------
    labels : (draw, row), read a few draws at a time.
    chosen : (chosen row,), their place in the table.
    clusters : (chosen row,), 0 … k − 1.
    components : C⁺.

    Returns
    -------
    (row,), 0 … k − 1.
    """
    placed = support_of(labels, chosen, clusters, components).argmax(axis=1)
    placed[chosen] = clusters
    return placed


def support_of(labels: Bytes, chosen: Ints, clusters: Ints, components: int) -> Floats:
    """Return how far the draws put every row in each of the clusters of a few chosen rows.

    A row supports cluster k by the sum, over the draws, of the share of the chosen rows in its
    component that belong to k; a draw in which its component holds no chosen row says nothing.

    Parameters
    ----------
    labels, chosen, clusters, components : as for `place`.

    Returns
    -------
    (row, cluster)
    """
    n_clusters = int(clusters.max()) + 1
    support = np.zeros((labels.shape[1], n_clusters))
    for start in range(0, len(labels), BYTE):
        some = np.ascontiguousarray(labels[start : start + BYTE])
        overlap = contingency(np.take(some, chosen, axis=1), clusters, components, n_clusters)
        share = overlap / np.maximum(overlap.sum(axis=2, keepdims=True), 1)
        add_support(some, share, support)
    return support


def follow_components(labels: Bytes, log_likelihood: Floats, components: int) -> Ints:
    """Return clusters that are components, however these switch: (row,), 0 … k − 1.

    They are those of the most likely draw, of those in which most components hold rows; then each
    row goes where it is in most draws, unless that leaves a cluster without rows. Trees of rows cut
    into so many clusters would spend some on single rows, where clusters overlap.

    Parameters
    ----------
    labels : (draw, row); log_likelihood : (draw,)
    components : C⁺.
    """
    everyone = np.zeros(labels.shape[1], dtype=np.int64)
    held = contingency(np.ascontiguousarray(labels), everyone, components, 1)
    occupied = np.count_nonzero(held, axis=1)[:, 0]
    likely, _ = largest_first(labels[np.lexsort((log_likelihood, occupied))[-1]])
    voted = support_of(labels, np.arange(len(likely)), likely, components).argmax(axis=1)
    return voted if len(np.unique(voted)) == likely.max() + 1 else likely


def beats_one_cluster(draws: Draws, labels: Ints) -> bool:
    """Tell whether there is more than one cluster, given the rows and a partition of them.

    The partition is more probable than a single cluster; or, since any single partition has low
    probability where clusters overlap, a variational bound that sums over similar partitions is
    (`log_bound`). It was looked for, so either must be so by a factor of more than the number
    of rows: the best of many cuts of rows without clusters often is more probable by a little.

    The prior is that of the pooled model and not the silo's share of it: whether a silo has
    clusters is no matter of how many other silos there are.
    """
    price, rows = np.log(len(labels)), Rows(draws.shard, draws.family)
    least = log_posterior(draws, rows, np.zeros_like(labels)) + price
    if log_posterior(draws, rows, labels) > least:
        return True
    # a lower bound of log p(clusters like these, rows)
    return bool(log_bound(rows, labels, draws.components, draws.prior.alpha) > least)


def log_posterior(draws: Draws, rows: Rows, labels: Ints) -> float:
    """Return log p(partition, rows) under the pooled model's prior, every parameter integrated out.

    Parameters
    ----------
    draws : for their prior and number of components.
    labels : (row,), 0 … k − 1.
    """
    members = np.bincount(labels)
    evidence = rows.family.log_evidence(rows.sum_statistics(labels, len(members))).sum()
    return float(evidence + log_partition_prior(members, draws.components, draws.prior.alpha))


def chain_agreement(draws: Draws, clusters: int, rows: int = 500, *, known: bool = False) -> float:
    """Return how far the partitions that each chain alone gives agree.

    The adjusted Rand index of two chains' average-linkage partitions, averaged over all pairs of
    chains: chains that sit in different modes may agree in every trace. 1 for one chain, or one
    cluster.

    Parameters
    ----------
    draws : of one silo.
    clusters : of the partition that was chosen.
    rows : most rows to compare; of a longer table, a random subsample. Of each chain at most
        `COMPARED_DRAWS` are looked at, evenly spread: an index needs no more.
    known : whether clusters are components, and so are compared as such.
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
        some = places[:: -(-len(places) // COMPARED_DRAWS)]
        labels = draws.labels[some[:, None], chosen]
        if known:
            found = follow_components(labels, draws.log_likelihood[some], draws.components)
            cuts.append(found[None])
        else:
            cuts.append(linkage_cuts(draws_apart(labels), most)[clusters - 2 :])
    best = [max(rand_index(a, b) for a, b in product(*pair)) for pair in combinations(cuts, 2)]
    return float(np.mean(best))


def rand_index(a: Ints, b: Ints) -> float:
    """Return the adjusted Rand index of two partitions, (row,), with labels 0 … k − 1."""
    sizes_a, sizes_b = np.bincount(a), np.bincount(b)
    return index_of_sizes(np.bincount(a * len(sizes_b) + b), sizes_a, sizes_b)


def log_partition_prior(sizes: ArrayLike, components: int, alpha: float) -> float:
    """Return the log prior probability of a partition, its clusters carrying no labels.

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
    """Return ln C⁺!/(C⁺ − k)!, the ways to name k clusters after components."""
    return float(gammaln(components + 1) - gammaln(components - clusters + 1))


def log_allocation_prior(sizes: Floats, components: int, alpha: float) -> float:
    """Return the log prior probability of rows in named components, so many in each: (cluster,)."""
    weights = gammaln(components * alpha) - gammaln(components * alpha + sizes.sum())
    return float(weights + (gammaln(alpha + sizes) - gammaln(alpha)).sum())


def log_bound(rows: Rows, labels: Ints, components: int, alpha: float, steps: int = STEPS) -> float:
    """Return the largest bound on the way of coordinate ascent that begins at a partition.

    A step gives the rows the shares that the clusters' members and sums ask for. The result is
    −inf where the first leaves a single cluster with rows. Equal rows have equal shares, so each
    distinct one begins in the cluster of its first copy.

    Parameters
    ----------
    labels : (row,), 0 … k − 1; components : C⁺; alpha : concentration of the weights.
    steps : at most so many.
    """
    cells = np.column_stack(rows.shard.cells)
    _, first, repeats = np.unique(cells, axis=0, return_index=True, return_counts=True)
    family, distinct = rows.family, rows.shard.some(first)
    features = family.features(distinct)
    _, begun = np.unique(labels[first], return_inverse=True)
    shares = np.eye(int(begun.max()) + 1)[begun]
    best = -np.inf
    for step in range(steps + 1):
        weighted = shares * repeats[:, None]
        members, sums = weighted.sum(axis=0), family.settle(distinct, features, weighted)
        if step:
            held = int((members >= FEWEST_ROWS).sum())
            if held < 2:
                break
            evidence = float(family.log_evidence(sums).sum())
            entropy = -float((repeats @ xlogy(shares, shares)).sum())
            allocated = log_allocation_prior(members, components, alpha)
            bound = log_namings(held, components) + allocated + evidence + entropy
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
