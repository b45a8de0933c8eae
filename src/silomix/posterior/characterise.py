"""Differences between clusters and between silos: pure functions of draws.

Differences of clusters from the whole population, in numbers and in words; maps of clusters; pairs
of clusters that may be one; drift between silos in each variable; clusters of a single silo.
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

    from silomix.kernels.arrays import Floats, Ints, Reals
    from silomix.model.draws import Correspondence
    from silomix.model.families.product import Product
    from silomix.model.schema import Variable
    from silomix.posterior.global_posterior import Posterior

# Smallest scaled difference to mention: a small effect of Cohen (1988).
MARGIN = 0.2
# Posterior probability from which a difference is shown.
PROBABILITY = 0.95
# Traits in a cluster's description.
MOST_WORDS = 5
# Levels that only affirm a variable, which are described by the variable's name alone.
YES = {"yes", "true", "1"}
# Up to this many clusters are listed by number, not by similarity.
FEW = 8
# Share of all rows from which a cluster counts as more than a trace.
SMALL = 0.01


class Contrast(NamedTuple):
    """Differences of each cluster from the whole population, parameter by parameter.

    Attributes
    ----------
    whole : (parameter,), posterior means over all rows, in the units of the table: the probability
        of a level; of a number, its mean and its standard deviation within clusters.
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
    """Coordinates of clusters on two axes, from `cluster_map` or `difference_map`.

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
    """Differences of the clusters from the whole population, over the draws.

    Each family's `scaled_difference` has its formula.

    Parameters
    ----------
    weights : (draw, cluster)
    parameters : (draw, cluster, parameter), in the units of the study.
    margin : smallest scaled difference to mention.
    """
    whole = family.whole(parameters, weights)
    by_cluster = []
    for cluster in range(parameters.shape[1]):  # all draws of all clusters may be gigabytes
        differs = family.scaled_difference(parameters[:, cluster], whole)
        sides = (differs, differs > 0, differs > margin, differs < -margin)
        by_cluster.append([side.mean(axis=0) for side in sides])
    described = np.asarray(family.describe(whole.mean(axis=0)), dtype=np.float64)
    return Contrast(described, *np.array(by_cluster).swapaxes(0, 1))


def contrast_of(posterior: Posterior, margin: float = MARGIN) -> Contrast:
    """Differences of a posterior's clusters from the whole population."""
    return contrast(posterior.weights, posterior.profile_draws, posterior.family, margin)


def traits(diffs: Contrast, family: Product) -> list[tuple[Ints, Ints]]:
    """Columns that are high and low in each cluster, clearest first."""
    clearest = np.argsort(-np.abs(diffs.scaled), axis=1, kind="stable")
    high, low = (family.tells() & (side >= PROBABILITY) for side in (diffs.high, diffs.low))
    pairs = zip(clearest, high, low, strict=True)
    return [(order[higher[order]], order[lower[order]]) for order, higher, lower in pairs]


def describe_clusters(posterior: Posterior, diffs: Contrast) -> list[str]:
    """Description of each cluster in words: its clearest traits, one of a variable."""
    family = posterior.family
    variables = np.repeat(np.array(family.variables, dtype=object), family.parameters)
    words = [word for _, word in family.names()]
    means = family.describe(posterior.profile_draws.mean(axis=0, dtype=np.float64))
    texts = []
    for cluster, sides in enumerate(traits(diffs, family)):
        columns = np.concatenate(sides)
        scaled = diffs.scaled[cluster]
        by_variable: dict[str, str] = {}
        for column in columns[np.argsort(-np.abs(scaled[columns]), kind="stable")]:
            variable, is_high = variables[column], bool(scaled[column] > 0)
            text = _trait(variable, words[column], means[cluster, column], is_high=is_high)
            by_variable.setdefault(variable.name, text)
        texts.append(listing([*by_variable.values()], MOST_WORDS) or "like the whole population")
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


def likeness_order(diffs: Contrast, family: Product) -> Ints:
    """Order of the clusters by similarity; few clusters keep their order."""
    scaled = diffs.scaled[:, family.tells()]
    if len(scaled) <= FEW:
        return np.arange(len(scaled))
    return np.asarray(leaves_list(linkage(scaled, "average", optimal_ordering=True)))


def cluster_map(weights: Reals, probabilities: Reals, offsets: Ints) -> ClusterMap | None:
    """Coordinates of the clusters on the first two axes of multiple correspondence analysis.

    The analysis is of the Burt table that the posterior means imply: the joint probability of two
    levels of different variables is Σ_c π_c p_c p_c', since variables are independent inside a
    cluster. So no rows are needed or shown. Axes with an eigenvalue above 1/Q, Q the number
    of variables, are associations; Benzécri's correction (Greenacre, 2017, chapter 19) compares
    them.

    Parameters
    ----------
    weights : (draw, cluster)
    probabilities : (draw, cluster, level)
    offsets : (variable + 1,), index of each variable's first level.

    Returns
    -------
    None where there are fewer than two clusters or variables, or no axis of association. With one
    such axis, as of two clusters, the second has a share of 0.
    """
    variables = len(offsets) - 1
    if probabilities.shape[1] < 2 or variables < 2:
        return None
    sizes = weights.mean(axis=0, dtype=np.float64)
    profiles = probabilities.mean(axis=0, dtype=np.float64)
    masses = sizes @ profiles / (variables * sizes.sum())
    roots = np.sqrt(np.maximum(masses, np.finfo(float).tiny))
    residuals = _burt(sizes / sizes.sum(), profiles, offsets) / np.outer(roots, roots)
    residuals -= np.outer(roots, roots)
    values, vectors = eigh(residuals)
    strength = np.where(values > 1 / variables + 1e-9, values - 1 / variables, 0.0) ** 2
    if strength[-1] <= 0:
        return None
    columns = _turned(vectors[:, :-3:-1]) / roots[:, None]
    draws = probabilities.astype(np.float64) @ columns / variables
    return ClusterMap(draws.mean(axis=0), columns, strength[:-3:-1] / strength.sum())


def difference_map(weights: Reals, diffs: Contrast, family: Product) -> ClusterMap | None:
    """Coordinates of the clusters on two principal components of their differences.

    For variables of every kind. Clusters are weighted by their share of the rows.

    Parameters
    ----------
    weights : (draw, cluster)
    diffs : scaled differences of the clusters from the whole population.

    Returns
    -------
    None where no two clusters differ. With one component, the second has a share of 0.
    """
    sizes = weights.mean(axis=0, dtype=np.float64)
    scaled = diffs.scaled[:, family.tells()]
    centred = scaled - sizes @ scaled / sizes.sum()
    _, values, axes = np.linalg.svd(np.sqrt(sizes)[:, None] * centred, full_matrices=False)
    strength = np.pad(values**2, (0, 1))
    if len(sizes) < 2 or strength[0] <= 0:
        return None
    loadings = _turned(np.pad(axes, ((0, 1), (0, 0)))[:2].T)
    return ClusterMap(centred @ loadings, loadings, strength[:2] / strength.sum())


def _turned(axes: Floats) -> Floats:
    """Two axes, (column, axis), with signs such that the largest entry of each is positive."""
    return axes * np.where(axes[np.abs(axes).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)


def _burt(sizes: Floats, profiles: Floats, offsets: Ints) -> Floats:
    """Burt table implied by a mixture, divided by Q² to sum to one: (level, level)."""
    table = profiles.T @ (sizes[:, None] * profiles)
    for start, stop in pairwise(offsets):
        table[start:stop, start:stop] = np.diag(sizes @ profiles[:, start:stop])
    return table / (len(offsets) - 1) ** 2


# Smallest share of a cluster's rows in one silo for a single-silo cluster.
ONE_SILO = 0.9

# Smallest probability that two clusters are one, for them to be reported.
DOUBTFUL = 0.1

# Smallest overlap of two clusters' profiles for them to be reported, whatever the probability. With
# overlap ρ and clusters of equal size, any rule that assigns rows errs in at least (1 − √(1 −
# ρ²))/2 of them (Kailath, 1967): 28 % at 0.9. Such clusters hardly differ for any row.
OVERLAP = 0.9


def spread(kappa: Floats) -> Floats:
    """Standard deviation between silos of a probability of one half, under κ.

    The variance of a Dirichlet(κm) coordinate is m(1 − m)/(κ + 1), which is largest at m = ½. In
    standard deviations of a cell within a cluster it is twice that, 1/√(κ + 1), for every kind of
    variable: the variance of a silo's mean is σ²/(κ + 1), that of its rate r/(κ + 1).
    """
    return np.sqrt(0.25 / (kappa + 1))


def spread_of(kappa: Floats, family: Product) -> Floats:
    """The same in the units of each variable: of a probability, or in standard deviations.

    Arguments and result are (..., variable).
    """
    return np.where(family.shares()[family.starts[:-1]], 1, 2) * spread(kappa)


def single_silo_clusters(
    weights_by_silo: Reals, rows: Sequence[int], correspondence: Correspondence
) -> list[tuple[int, str, float, float]]:
    """Clusters that occur in a single silo, in the order of their numbers.

    A silo with most of all rows has most of every cluster too: so the other silos must also have
    less than half of the rows expected from their sizes.

    Parameters
    ----------
    weights_by_silo : (draw, silo, cluster)
    rows : of each silo.
    correspondence : of the silos' clusters, for the probability that such a cluster is no other.

    Returns
    -------
    For each, its number; the silo's name; the share of the cluster's expected rows that are in this
    silo; and the probability that it is a cluster of its own: 1 less the largest probability that
    it is the same as another silo's cluster, nan where no groupings were sampled.
    """
    if len(rows) < 2:
        return []
    counts = np.asarray(rows, dtype=np.float64)
    expected = weights_by_silo.mean(axis=0, dtype=np.float64) * counts[:, None]
    shares = expected / np.maximum(expected.sum(axis=0), np.finfo(np.float64).tiny)
    least = np.maximum(ONE_SILO, 1 - (1 - counts / counts.sum()) / 2)
    joined = joint_probabilities(correspondence)
    single = []
    for cluster, silo in enumerate(shares.argmax(axis=0)):
        if (share := shares[silo, cluster]) >= least[silo]:
            # on the diagonal, and where no two silos hold the two clusters, stands nan
            distinct = np.nan if joined is None else 1 - np.nanmax([*joined[cluster], 0.0])
            name = correspondence.silos[silo]
            single.append((cluster, name, float(share), float(distinct)))
    return single


def nearly_same(
    correspondence: Correspondence | None, probabilities: Reals, family: Product
) -> list[tuple[int, int, float, float]]:
    """Pairs of clusters that may be one, the most probable first.

    A pair is reported for its probability of being one, or for profiles that nearly coincide. The
    overlap is that of whole rows, not a mean over variables: each of a hundred rare conditions may
    differ little between two clusters that all of them together separate.

    Parameters
    ----------
    correspondence : of the silos' clusters; None leaves the overlap.
    probabilities : (draw, cluster, parameter), the shared profiles.

    Returns
    -------
    For each pair, the numbers of the two, the smaller first; the probability that they are one,
    over sampled groupings, nan where none were sampled, or where only one silo has both, which
    its own rows distinguish; and the overlap, Σ √(p_a p_b) over all possible rows, from 0 to 1.
    """
    pairs = nearest_pairs(correspondence, probabilities, family)
    named = [pair for pair in pairs if pair[2] >= DOUBTFUL or pair[3] >= OVERLAP]
    return sorted(named, key=lambda pair: (-np.nan_to_num(pair[2]), -pair[3]))


def nearest_pairs(
    correspondence: Correspondence | None, probabilities: Reals, family: Product
) -> list[tuple[int, int, float, float]]:
    """All pairs of clusters, by their probability of being one, as in `nearly_same`."""
    joined = joint_probabilities(correspondence)
    overlaps = profile_overlap(probabilities.mean(axis=0, dtype=np.float64), family)
    joined = np.full_like(overlaps, np.nan) if joined is None else joined
    indices = zip(*np.triu_indices(len(overlaps), k=1), strict=True)
    pairs = [(int(a), int(b), float(joined[a, b]), float(overlaps[a, b])) for a, b in indices]
    # a probability that is written as 0.00 says no more than none
    return sorted(pairs, key=lambda pair: (-np.nan_to_num(pair[2]).round(2), -pair[3]))


def joint_probabilities(correspondence: Correspondence | None) -> Floats | None:
    """Probability that two clusters are one: (cluster, cluster).

    The confidence that two local clusters share a group, averaged over the pairs of local clusters
    of *different* silos, one from each of the two clusters, with the product of their rows for
    weights. Pairs of local clusters of one silo are ignored: the silo distinguishes them.

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
    other_silo = silo[:, None] != silo
    weight = rows.T @ other_silo @ rows
    joined = rows.T @ (other_silo * correspondence.confidence) @ rows
    np.fill_diagonal(weight, 0.0)
    return np.divide(joined, weight, out=np.full_like(joined, np.nan), where=weight > 0)


def profile_overlap(profiles: Floats, family: Product) -> Floats:
    """Bhattacharyya coefficient of the clusters' distributions of rows.

    Variables are independent within a cluster, so it is the product over variables.

    Parameters
    ----------
    profiles : (cluster, parameter)

    Returns
    -------
    (cluster, cluster), one on the diagonal.
    """
    logs = family.log_affinity(profiles[:, None], profiles).sum(axis=-1)
    return np.minimum(np.exp(logs), 1.0)  # means of float32 draws do not quite sum to one
