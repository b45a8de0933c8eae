"""Differences between clusters and between silos: pure functions of draws.

How clusters differ from the whole population, in numbers and in words, how many there are, where
they lie and which may be one; how alike silos are in each variable, and which clusters live in one
silo.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.linalg import eigh

from silomix.model.sentences import listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.families.product import Product
    from silomix.kernels.arrays import Floats, Ints, Reals
    from silomix.model.draws import Correspondence
    from silomix.model.schema import Variable
    from silomix.posterior.global_posterior import Posterior

# Smallest scaled difference worth a word: what Cohen (1988) calls small.
MARGIN = 0.2
# Posterior probability from which a difference is shown.
PROBABILITY = 0.95
# Traits in a cluster's description.
MOST_WORDS = 5
# Levels that only say that a variable is so: the variable's name is then enough.
YES = {"yes", "true", "1"}
# Clusters that are easier to find by their number than by what they are like.
FEW = 8
# Share of all rows from which a cluster counts as more than a trace.
SMALL = 0.01


class Contrast(NamedTuple):
    """Differences of each cluster from the whole population, parameter by parameter.

    Attributes
    ----------
    whole : (parameter,), posterior means over all rows, in the units of the table: of a level its
        probability, of a number its mean and its standard deviation within clusters.
    scaled : (cluster, parameter), posterior mean of the scaled difference.
    above : (cluster, parameter), posterior probability that the difference is positive.
    high, low : (cluster, parameter), posterior probability that it is more than the margin, and
        less than minus the margin.
    """

    whole: Floats
    scaled: Floats
    above: Floats
    high: Floats
    low: Floats


class ClusterMap(NamedTuple):
    """Clusters in the plane of two axes, of `cluster_map` or `difference_map`.

    Attributes
    ----------
    centres : (cluster, axis), posterior means.
    columns : (level, axis), standard coordinates: a row lies at the mean of its levels'. Of
        principal components, (shown parameter, axis), the loadings.
    shares : (axis,), of the association between variables, by Benzécri's correction; or of the
        variance between clusters.
    """

    centres: Floats
    columns: Floats
    shares: Floats


def contrast(
    weights: Reals, parameters: Reals, family: Product, margin: float = MARGIN
) -> Contrast:
    """Differences between clusters and whole population, over the draws.

    Each family's `scaled_difference` has its formula.

    Parameters
    ----------
    weights : (draw, cluster)
    parameters : (draw, cluster, parameter), in the units of the study.
    margin : smallest scaled difference worth a word.
    """
    whole = family.whole(parameters, weights)
    sums = []
    for cluster in range(parameters.shape[1]):  # all draws of all clusters may be gigabytes
        differs = family.scaled_difference(parameters[:, cluster], whole)
        sides = (differs, differs > 0, differs > margin, differs < -margin)
        sums.append([side.mean(axis=0) for side in sides])
    described = np.asarray(family.describe(whole.mean(axis=0)), dtype=np.float64)
    return Contrast(described, *np.array(sums).swapaxes(0, 1))


def map_of(posterior: Posterior) -> ClusterMap | None:
    """Return a posterior's `cluster_map`, or with numbers its `difference_map`."""
    family, weights = posterior.family, posterior.weights
    if family.is_categorical:
        return cluster_map(weights, posterior.profile_draws, family.starts)
    return difference_map(weights, posterior.contrasts, family)


def traits(contrasts: Contrast, family: Product) -> list[tuple[Ints, Ints]]:
    """Return for each cluster the columns that are high and low in it, clearest first."""
    clearest = np.argsort(-np.abs(contrasts.scaled), axis=1, kind="stable")
    high, low = (family.tells() & (side >= PROBABILITY) for side in (contrasts.high, contrasts.low))
    sides = zip(clearest, high, low, strict=True)
    return [(order[higher[order]], order[lower[order]]) for order, higher, lower in sides]


def descriptions(posterior: Posterior) -> list[str]:
    """Describe each cluster in words: up to five distinctive variables, clearest first.

    Examples
    --------
    >>> len(posterior.descriptions())
    5
    """
    family, contrasts = posterior.family, posterior.contrasts
    variables = np.repeat(np.array(family.variables, dtype=object), family.parameters)
    words = [word for _, word in family.names()]
    means = family.describe(posterior.profile_draws.mean(axis=0, dtype=np.float64))
    texts = []
    for cluster, sides in enumerate(traits(contrasts, family)):
        both = np.concatenate(sides)
        scaled = contrasts.scaled[cluster]
        words_of: dict[str, str] = {}
        for column in both[np.argsort(-np.abs(scaled[both]), kind="stable")]:
            variable, is_high = variables[column], bool(scaled[column] > 0)
            text = _trait(variable, words[column], means[cluster, column], is_high=is_high)
            words_of.setdefault(variable.name, text)
        texts.append(listing([*words_of.values()], MOST_WORDS) or "like the whole population")
    return texts


def _trait(variable: Variable, word: str, mean: float, *, is_high: bool) -> str:
    if not variable.levels:
        return f"{'high' if is_high else 'low'} {variable.name}"
    named = f"{variable.name} = {word}"
    if len(variable.levels) == 2 and word.casefold() in YES:
        named = variable.name
    elif len(variable.levels) == 2 and not is_high:  # of two names, the one that is common
        named, mean, is_high = f"{variable.name} = {variable.levels[0]}", 1 - mean, True
    if is_high:
        often = "nearly always" if mean >= 0.9 else "mostly" if mean >= 0.5 else "more often"
    else:
        often = "rarely" if mean <= 0.1 else "less often"
    return f"{often} {named}"


def likeness_order(contrasts: Contrast, family: Product) -> Ints:
    """Return the clusters in an order that puts like ones side by side; few stay as they are."""
    scaled = contrasts.scaled[:, family.tells()]
    if len(scaled) <= FEW:
        return np.arange(len(scaled))
    return np.asarray(leaves_list(linkage(scaled, "average", optimal_ordering=True)))


def cluster_map(weights: Reals, probabilities: Reals, offsets: Ints) -> ClusterMap | None:
    """Return the clusters on the first two axes of a multiple correspondence analysis.

    The analysis is of the Burt table that the posterior means imply: the joint probability of two
    levels of different variables is Σ_c π_c p_c p_c', since variables are independent inside a
    cluster. So no row is needed, and none is shown. Axes with an eigenvalue above 1/Q, Q the number
    of variables, are associations; Benzécri's correction (Greenacre, 2017, chapter 19) compares
    them.

    Parameters
    ----------
    weights : (draw, cluster)
    probabilities : (draw, cluster, level)
    offsets : (variable + 1,), where each variable's levels start.

    Returns
    -------
    None where there are fewer than two clusters or variables, or no axis of association. With one
    such axis, as of two clusters, the second has a share of 0 and shows nothing.
    """
    variables = len(offsets) - 1
    if probabilities.shape[1] < 2 or variables < 2:
        return None
    sizes = weights.mean(axis=0, dtype=np.float64)
    profiles = probabilities.mean(axis=0, dtype=np.float64)
    masses = sizes @ profiles / (variables * sizes.sum())
    roots = np.sqrt(np.maximum(masses, np.finfo(float).tiny))
    shares = sizes / sizes.sum()
    burt = profiles.T @ (shares[:, None] * profiles)
    for start, stop in pairwise(offsets):
        burt[start:stop, start:stop] = np.diag(shares @ profiles[:, start:stop])
    residuals = burt / variables**2 / np.outer(roots, roots) - np.outer(roots, roots)
    values, vectors = eigh(residuals)
    strength = np.where(values > 1 / variables + 1e-9, values - 1 / variables, 0.0) ** 2
    if strength[-1] <= 0:
        return None
    columns = _turned(vectors[:, :-3:-1]) / roots[:, None]
    centres = profiles @ columns / variables
    return ClusterMap(centres, columns, strength[:-3:-1] / strength.sum())


def difference_map(weights: Reals, contrasts: Contrast, family: Product) -> ClusterMap | None:
    """Return the clusters on the first two principal components of their scaled differences.

    It takes variables of every kind. A cluster counts as much as its share of the rows.

    Parameters
    ----------
    weights : (draw, cluster)
    contrasts : how these clusters differ from the whole population.

    Returns
    -------
    None where no two clusters differ. With one component, the second has a share of 0.
    """
    sizes = weights.mean(axis=0, dtype=np.float64)
    scaled = contrasts.scaled[:, family.tells()]
    apart = scaled - sizes @ scaled / sizes.sum()
    _, values, axes = np.linalg.svd(np.sqrt(sizes)[:, None] * apart, full_matrices=False)
    strength = np.pad(values**2, (0, 1))
    if len(sizes) < 2 or strength[0] <= 0:
        return None
    loadings = _turned(np.pad(axes, ((0, 1), (0, 0)))[:2].T)
    return ClusterMap(apart @ loadings, loadings, strength[:2] / strength.sum())


def _turned(axes: Floats) -> Floats:
    """Return two axes, (column, axis), turned so that the largest entry of each is positive."""
    return axes * np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)


# Share of a cluster's rows from which it is said to live in one silo.
ONE_SILO = 0.9

# Probability that two clusters are one from which they are named.
DOUBTFUL = 0.1

# Overlap of two clusters' profiles from which they are named, whatever their probability. With
# overlap ρ and clusters of equal size, any rule that assigns rows errs in at least (1 − √(1 −
# ρ²))/2 of them (Kailath, 1967): 28 % at 0.9. Such clusters hardly differ for any row.
OVERLAP = 0.9


def spread(kappa: Floats) -> Floats:
    """Spread of silos under κ: the sd between them of a probability of one half.

    The variance of a Dirichlet(κm) coordinate is m(1 − m)/(κ + 1), which is largest at m = ½. In
    standard deviations of a cell within a cluster it is twice that, 1/√(κ + 1), for every kind of
    variable: the variance of a silo's mean is σ²/(κ + 1), that of its rate r/(κ + 1).
    """
    return np.sqrt(0.25 / (kappa + 1))


def spread_of(kappa: Floats, family: Product) -> Floats:
    """Return `spread` in the units of each variable: of a probability, or in standard deviations.

    Arguments and result are (..., variable).
    """
    return np.where(family.shares()[family.starts[:-1]], 1, 2) * spread(kappa)


def single_silo_clusters(
    weights_by_silo: Reals, rows: Sequence[int], correspondence: Correspondence
) -> list[tuple[int, str, float, float]]:
    """Return the clusters that live in one silo, the smallest number first.

    Where one silo has most rows of all, it has most of every cluster too: so the other silos must
    also have less than half of what their rows would make one expect.

    Parameters
    ----------
    weights_by_silo : (draw, silo, cluster)
    rows : of each silo.
    correspondence : what the silos found, to say how sure it is that such a cluster is no other.

    Returns
    -------
    For each, its number; the silo's name; the share of the cluster's expected rows that are in this
    silo; and the probability that it is a cluster of its own: 1 less the largest probability that
    it is one with another cluster, as found elsewhere, nan where no groupings were sampled.
    """
    if len(rows) < 2:
        return []
    counts = np.asarray(rows, dtype=np.float64)
    expected = weights_by_silo.mean(axis=0, dtype=np.float64) * counts[:, None]
    shares = expected / np.maximum(expected.sum(axis=0), np.finfo(np.float64).tiny)
    least = np.maximum(ONE_SILO, 1 - (1 - counts / counts.sum()) / 2)
    joined = joint_probabilities(correspondence)
    clusters = []
    for cluster, silo in enumerate(shares.argmax(axis=0)):
        if (share := shares[silo, cluster]) >= least[silo]:
            # on the diagonal, and where no two silos hold the two clusters, stands nan
            apart = np.nan if joined is None else 1 - np.nanmax([*joined[cluster], 0.0])
            clusters.append((cluster, correspondence.silos[silo], float(share), float(apart)))
    return clusters


def nearly_same(
    correspondence: Correspondence | None, parameters: Reals, family: Product
) -> list[tuple[int, int, float, float]]:
    """Return the pairs of clusters that may be one, the most probable first.

    A pair is named for the probability that it is one, or for profiles that nearly coincide. The
    overlap is that of whole rows, not a mean over variables: of a hundred rare conditions each
    differs little between any two clusters, and all of them together tell the clusters apart.

    Parameters
    ----------
    correspondence : what the silos found; None leaves the overlap.
    parameters : (draw, cluster, parameter), the shared profiles.

    Returns
    -------
    For each pair, the numbers of the two, the smaller first; the probability that they are one,
    over sampled groupings, nan where none were sampled, or where one and the same silo found both,
    and so told them apart on its own rows; and the overlap, Σ √(p_a p_b) over all rows there can
    be, from 0 to 1.
    """
    pairs = nearest_pairs(correspondence, parameters, family)
    named = [pair for pair in pairs if pair[2] >= DOUBTFUL or pair[3] >= OVERLAP]
    return sorted(named, key=lambda pair: (-np.nan_to_num(pair[2]), -pair[3]))


def nearest_pairs(
    correspondence: Correspondence | None, parameters: Reals, family: Product
) -> list[tuple[int, int, float, float]]:
    """Return all pairs of clusters, those nearest to being one first, as `nearly_same` does."""
    joined = joint_probabilities(correspondence)
    overlaps = profile_overlap(parameters.mean(axis=0, dtype=np.float64), family)
    joined = np.full_like(overlaps, np.nan) if joined is None else joined
    both = zip(*np.triu_indices(len(overlaps), k=1), strict=True)
    pairs = [(int(a), int(b), float(joined[a, b]), float(overlaps[a, b])) for a, b in both]
    # a probability that is written as 0.00 says no more than none
    return sorted(pairs, key=lambda pair: (-np.nan_to_num(pair[2]).round(2), -pair[3]))


def joint_probabilities(correspondence: Correspondence | None) -> Floats | None:
    """Return the probability that two clusters are one: (cluster, cluster).

    The confidence that two local clusters share a group, averaged over the pairs of local clusters
    of *different* silos, one from each of the two clusters, with the product of their rows for
    weights. Two local clusters of one silo say nothing: the silo has told them apart.

    Returns
    -------
    nan on the diagonal, and where no two silos hold the two clusters; None where the confidence was
    not computed.
    """
    if correspondence is None or correspondence.confidence is None:
        return None
    groups = np.concatenate(correspondence.groups)
    counts = [len(group) for group in correspondence.groups]
    silo = np.repeat(np.arange(len(counts)), counts)
    # (local cluster, cluster): the rows of each local cluster, in the column of its cluster
    rows = np.zeros((len(groups), correspondence.clusters))
    rows[np.arange(len(groups)), groups] = np.concatenate(correspondence.sizes)
    apart = silo[:, None] != silo
    weight = rows.T @ apart @ rows
    joined = rows.T @ (apart * correspondence.confidence) @ rows
    np.fill_diagonal(weight, 0.0)
    return np.divide(joined, weight, out=np.full_like(joined, np.nan), where=weight > 0)


def profile_overlap(parameters: Floats, family: Product) -> Floats:
    """Return the Bhattacharyya coefficient of the clusters' distributions of rows.

    Variables are independent within a cluster, so it is the product over variables.

    Parameters
    ----------
    parameters : (cluster, parameter)

    Returns
    -------
    (cluster, cluster), one on the diagonal.
    """
    logs = family.log_affinity(parameters[:, None], parameters).sum(axis=-1)
    return np.minimum(np.exp(logs), 1.0)  # means of float32 draws do not quite sum to one
