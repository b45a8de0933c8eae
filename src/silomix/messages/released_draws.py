"""Draws remade from releases: what the coordinator and every silo compute alike.

`release_draws` are those of one silo; `matched_draws` puts them into the global clusters' terms,
for the aggregation; `make_reference` averages those of the silos matched so far, against which
`divergence_cost` holds a silo's rows.

The law of rounding is that of each kind of variable (`families.release_rounding`). Taken for
exact, rounded numbers make intervals that are too short, and floors make rare levels too common; so
what is behind them is drawn, together with the profile that it comes from.

The consensus average makes global draws as linear combinations of the silos' (Fendler et al., 2026,
section 4.4): π̂ = Σ_s λ_s π^s and θ̂_c = Σ_s μ_{s,c} θ_c^s, which is the paper's V^s = λ^s I and
W^s = diag(μ^s). Every family's parameters form a convex set, so that an average of them is one of
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from silomix.families.categorical import SMALLEST_PROBABILITY
from silomix.families.disclosure import draw_behind
from silomix.families.family import SMALLEST
from silomix.families.release_rounding import MIDDLE, Said, least_units
from silomix.model.draws import MatchedDraws
from silomix.study.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from silomix.families.chains import Rows
    from silomix.families.product import Product
    from silomix.kernels.arrays import Floats, Ints, Reals, Rng
    from silomix.messages import DivergenceCost, Release, ShareReleases
    from silomix.model.schema import PooledModel

    # weights and parameters -> log-likelihood, members and statistics of rows, as `Rows.expected`
    Expected = Callable[[Floats, Floats], tuple[Floats, Floats, Floats]]

# Draws behind one silo's release by itself.
OWN_DRAWS = 500
STREAM = 0x726E64
# set the draws of the two apart from each other, and from other draws of the same seed
MATCHED_STREAM, REFERENCE_STREAM = 0x616767, 0x726566
# draws of the reference, over which costs are averaged
REFERENCE_DRAWS = 100
# responsibilities, (row, draw, component), that a silo holds in memory
CELLS_AT_A_TIME = 2_000_000


def has_rules(release: Release) -> bool:
    """Whether a policy changed counts of a release that has no draws."""
    return release.parameters is None and Policy(**release.policy).has_rules


def read_said(*releases: Release) -> Said:
    """Released statistics of the clusters of releases, in one list."""
    parts = []
    for release in releases:
        policy, none = Policy(**release.policy), np.zeros(release.clusters, dtype=np.int64)
        base, least = policy.round_to, least_units(policy) * policy.round_to
        rules = (none + base, none + least) if has_rules(release) else (none, none)
        parts.append((release.mean, release.concentration, release.known, *rules))
    return Said._make(map(np.concatenate, zip(*parts, strict=True)))


def own_draws(release: Release, count: int, model: PooledModel, silos: int, rng: Rng) -> Floats:
    """Draw the parameters of one silo's clusters, by themselves: (draw, cluster, parameter)."""
    family, said = model.shared_family(silos), read_said(release)
    places = np.arange(release.clusters)[:, None]
    each = [draw_behind(family, said.of(place), count, rng) for place in places]
    return np.stack(each, axis=1)


def effective_counts(release: Release, model: PooledModel, silos: int) -> Floats:
    """Effective counts of a release: mean × concentration, (cluster, statistic).

    Where rounding hides more they are fewer: those of a posterior with the moments of the draws
    behind the release, so that a floor counts as the doubt it is.
    """
    if not has_rules(release):
        return release.mean * model.family.repeat(release.concentration)
    rng = np.random.default_rng([model.seed, STREAM, release.place])
    return _worth(own_draws(release, OWN_DRAWS, model, silos, rng), model, silos)


def _worth(draws: Reals, model: PooledModel, silos: int) -> Floats:
    """Sums without the prior of posteriors with the moments of a silo's draws."""
    family = model.shared_family(silos)
    mean, concentration = family.means(family.valid(family.fit(draws)))
    return np.asarray(mean * family.repeat(concentration))


def with_own_counts(
    parameters: Reals, release: Release, own: Reals, groups: Ints, model: PooledModel, silos: int
) -> Floats:
    """Parameters given a silo's own rows, where others know its release alone.

    For use inside the silo. What its rounded release said is taken out of the posteriors that fit
    the draws, and what its own draws say is put in. A cluster that the silo lacks stays as it is.

    Parameters
    ----------
    parameters : (draw, cluster, parameter), made from the releases of all silos.
    release : the silo's own.
    own : (draw, local cluster, parameter), its own draws, which no rule has changed.
    groups : (local cluster,), the global cluster of each.
    silos : how many the study has.
    """
    family = model.family
    others = family.fit(parameters)
    np.subtract.at(others, groups, effective_counts(release, model, silos))
    numbers = family.prior() + family.conjugate(family.valid(others))
    for cluster, worth in zip(groups, _worth(own, model, silos), strict=True):
        numbers[cluster] += family.conjugate(worth)
    rng = np.random.default_rng([model.seed, STREAM, release.place, len(parameters)])
    held = np.isin(np.arange(len(numbers)), groups)
    return np.where(held[:, None], family.draw(numbers, rng, len(parameters)), parameters)


def release_medians(release: Release, family: Product) -> Floats:
    """Posterior medians of the parameters: (cluster, parameter).

    Of the draws where they are released; else of the posterior given mean × concentration.

    Parameters
    ----------
    family : with the silo's share of the prior.
    """
    if release.parameters is not None:
        return np.median(release.parameters, axis=0).astype(np.float64)
    sums = release.mean * family.repeat(release.concentration)
    return family.medians(family.prior() + family.conjugate(sums))


def release_draws(
    release: Release, count: int, model: PooledModel, silos: int, rng: Rng
) -> tuple[Floats, Floats]:
    """`count` draws of a silo's weights and parameters, in random order.

    Tier "draws": its own, permuted, drawn again where it has fewer. Tier "summary": fresh ones,
    weights ~ Dirichlet(`weight_shapes`) and parameters given the sums mean × concentration.

    Returns
    -------
    weights : (draw, cluster); parameters : (draw, cluster, parameter)
    """
    if release.weights is not None and release.parameters is not None:
        order = random_order(len(release.weights), count, rng)
        weights, parameters = release.weights[order], release.parameters[order]
        return weights.astype(np.float64), parameters.astype(np.float64)
    (alpha, _), family = model.prior.share(silos), model.shared_family(silos)
    weights = rng.dirichlet(weight_shapes(release, alpha), size=count)
    said = release.mean * family.repeat(release.concentration)
    return weights, family.draw(family.prior() + family.conjugate(said), rng, count)


def weight_shapes(release: Release, alpha: float) -> Floats:
    """Shapes of the Dirichlet that stands for a silo's weights: (cluster,).

    α_s + sizes, as if every label were certain, less what doubt about them takes away. How sure
    a cluster's labels are shows in its released concentrations, which then fall short of its known
    cells; the rows that the weights are worth fall with about the square of that. The square is a
    rule of thumb, seen on simulated silos and not derived. Variables that say nothing, whose
    concentration is 0, say nothing of doubt either. Under rules a full concentration stands for
    a whole step (`release_rounding.coarse_concentration`), and its middle is taken; and
    variables with rare levels, which doubt costs most, show what the others are worth
    (`without_rare`), so that the power is a little more than two.
    """
    telling = np.where(
        (release.concentration > 0) & (release.known > 0),
        release.concentration / np.maximum(release.known, 1),
        np.nan,
    )
    telling[np.isnan(telling).all(axis=1)] = np.inf
    most, power = (MIDDLE, 2.2) if Policy(**release.policy).has_rules else (1.0, 2.0)
    sure = np.minimum(np.nanmedian(telling, axis=1), most)
    worth = np.average(sure**power, weights=release.sizes)
    return np.asarray((release.sizes + alpha) * worth)


def random_order(available: int, count: int, rng: Rng) -> Ints:
    """`count` places in random order; all before any twice."""
    rounds = [rng.permutation(available) for _ in range(-(-count // available))]
    return np.concatenate(rounds)[:count]


def same_draws(one: Release, other: Release) -> bool:
    """Whether the draws remade from two releases are the same.

    The policy is no part of that: the silo may since have changed what else can be asked.
    """
    parts = ("sizes", "known", "mean", "concentration", "weights", "parameters")
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in parts)


# What was made of each sharing, for as long as somebody holds that.
_SHARED: WeakKeyDictionary[ShareReleases, MatchedDraws] = WeakKeyDictionary()


def shared_draws(share: ShareReleases, model: PooledModel) -> MatchedDraws:
    """Matched draws of the releases that a silo is shown.

    They are made once of each sharing: where asker and silos share a memory, one copy serves all.
    """
    if share not in _SHARED:
        _SHARED[share] = matched_draws(share.releases, share.groups, share.draws, model)
    return _SHARED[share]


def matched_draws(
    releases: Sequence[Release], groups: Sequence[Ints], count: int, model: PooledModel
) -> MatchedDraws:
    """`count` draws of each silo in the global clusters' terms, in random order.

    Each silo draws from its own stream of (seed, place), so draw t of one silo has nothing to
    do with draw t of another. Where several clusters of a silo are one global cluster their
    weights add, and the profile is their mixture by weight, draw by draw.

    Parameters
    ----------
    releases : one of each silo.
    groups : for each of them (local cluster,), the global cluster of each.
    """
    silos, clusters = len(releases), 1 + max(int(group.max()) for group in groups)
    held = np.zeros((silos, clusters), dtype=bool)
    weights = np.zeros((silos, count, clusters))
    parameters = np.zeros((silos, count, clusters, int(model.family.parameters.sum())))
    for s, (release, group) in enumerate(zip(releases, groups, strict=True)):
        rng = np.random.default_rng([model.seed, release.place, MATCHED_STREAM])
        local_weights, profiles = release_draws(release, count, model, silos, rng)
        if has_rules(release):
            profiles = own_draws(release, count, model, silos, rng)
        for c in np.unique(group):
            members = np.flatnonzero(group == c)
            shares = local_weights[:, members]
            held[s, c] = True
            weights[s, :, c] = shares.sum(axis=1)
            parameters[s, :, c] = _mixture(shares, profiles[:, members], model.family)
    return MatchedDraws(weights, parameters, held)


def _mixture(shares: Floats, profiles: Floats, family: Product) -> Floats:
    """Mix profiles (draw, part, parameter) by shares (draw, part): (draw, parameter)."""
    if shares.shape[1] == 1:
        return profiles[:, 0]
    positive = np.maximum(shares, SMALLEST)
    parts = positive / positive.sum(axis=1, keepdims=True)
    return family.from_moments(np.einsum("tk,tkd->td", parts, family.moments(profiles)))


class Reference(NamedTuple):
    """The clusters of the silos matched so far.

    Attributes
    ----------
    weights : (cluster,), means.
    parameters : (draw, cluster, parameter)
    influence : (cluster,), how much each counts in a mean with others.
    """

    weights: Floats
    parameters: Floats
    influence: Floats


def make_reference(
    shown: DivergenceCost, influence: str, model: PooledModel, silos: int
) -> Reference:
    """Running mean of the silos matched so far, cluster by cluster.

    Parameters
    ----------
    shown : the releases, and which of their clusters are one.
    influence : "mean" or "precision": how much each silo's clusters count.
    silos : how many the study has.
    """
    weights, worth = np.zeros((2, shown.clusters))
    parameters = np.zeros((REFERENCE_DRAWS, shown.clusters, int(model.family.parameters.sum())))
    for release, group in zip(shown.releases, shown.groups, strict=True):
        rng = np.random.default_rng([model.seed, release.place, REFERENCE_STREAM])
        shares, draws = release_draws(release, REFERENCE_DRAWS, model, silos, rng)
        added = precision(draws, model.family) if influence == "precision" else np.ones(len(group))
        worth[group] += added
        share = added / worth[group]
        weights[group] += share * (shares.mean(axis=0) - weights[group])
        parameters[:, group] += share[:, None] * (draws - parameters[:, group])
    return Reference(weights, parameters, worth)


def precision(draws: Reals, family: Product) -> Floats:
    """Precision: one over the averaged variance of the coordinates of draws, (cluster,).

    One number for each cluster, so that the weighted mean of probabilities sums to one.
    """
    variance = family.coordinates(draws).var(axis=0).mean(axis=1)
    return 1 / np.maximum(variance, SMALLEST_PROBABILITY)


def padded(clusters: int, reference: int) -> int:
    """C^m, the components on both sides once padded with components of the prior."""
    return max(clusters, reference) + 1


def divergence_cost(
    reference: Reference, rows: Rows, weights: Reals, parameters: Reals, rng: Rng
) -> Floats:
    """Cost of matching each local cluster to each reference cluster, in the silo.

    The cost is the posterior expectation of Σ_i P_ij log(P_ij / P*_ik) over the silo's rows i,
    P_ij the probability that row i is of cluster j given the silo's own parameters and P* that
    given the reference's: the column's part of D(P ‖ P*) of Fendler et al. (2026), which may be
    negative. Draw t of the reference goes with a random draw of the silo.

    Both sides are padded to C^m = max(C*, C^s) + 1 components. A component that pads is drawn
    from the pooled model's prior, anew for each draw, and not from the silo's share of it, for the
    reference is to become global. It has weight 1/C^m and the real clusters
    share what is left in proportion to their means: were they to keep a sum of one, a silo
    with few clusters would look unlike a reference with many for its weights alone.

    Parameters
    ----------
    rows : the silo's, under the pooled model's prior.
    weights : (cluster,), means of the silo's weights.
    parameters : (draw, cluster, parameter), the silo's draws.
    rng : for the draws of the prior and the pairing of draws.

    Returns
    -------
    (local cluster, reference cluster), both padded: the components of the prior come last.
    """
    size = padded(len(weights), len(reference.weights))
    n_draws = len(reference.parameters)
    taken = random_order(len(parameters), n_draws, rng)
    sides = [
        (_pad_weights(mean, size), _pad_parameters(draws, size, rows.family, rng))
        for mean, draws in [(weights, parameters[taken]), reference[:2]]
    ]
    cost = np.zeros((size, size))
    step = max(1, CELLS_AT_A_TIME // (n_draws * size))
    for start in range(0, rows.shard.rows, step):
        some = slice(start, start + step)
        local, other = (rows.log_responsibilities(some, *side) for side in sides)
        share = np.exp(local)
        cost += np.einsum("idj,idj->j", share, local)[:, None]
        cost -= np.tensordot(share, other, axes=([0, 1], [0, 1]))
    return cost / n_draws


def _pad_weights(weights: Reals, size: int) -> Floats:
    """(size,) weights that sum to one; means over silos that lack clusters need not."""
    scaled = weights.astype(np.float64) * (len(weights) / size / weights.sum())
    return np.pad(scaled, (0, size - len(weights)), constant_values=1 / size)


def _pad_parameters(draws: Reals, size: int, family: Product, rng: Rng) -> Floats:
    """(draw, size, parameter): the draws, then components drawn from the prior."""
    n_draws, clusters, _ = draws.shape
    drawn = family.draw(np.tile(family.prior(), (size - clusters, 1)), rng, n_draws)
    return np.concatenate([draws.astype(np.float64), drawn], axis=1)


def mix(
    matched: MatchedDraws, weights: Floats, profiles: Floats, family: Product
) -> tuple[Floats, Floats]:
    """Global draws at λ (silo,) and μ (silo, cluster).

    Returns
    -------
    weights : (draw, cluster); parameters : (draw, cluster, parameter)
    """
    mixed_weights = np.tensordot(weights, matched.weights, axes=1)
    mixed = np.zeros(matched.parameters.shape[1:])
    for share, parameters in zip(profiles, matched.parameters, strict=True):
        mixed += share[:, None] * parameters
    return np.maximum(mixed_weights, SMALLEST), family.inside(mixed)


def mix_gradient(
    matched: MatchedDraws, by_weight: Floats, by_parameter: Floats
) -> tuple[Floats, Floats]:
    """Carry a gradient in (π̂_t, θ̂_t) over to one in (λ, μ), averaged over the draws.

    Parameters
    ----------
    by_weight : (draw, cluster); by_parameter : (draw, cluster, parameter)

    Returns
    -------
    weights : (silo,); profiles : (silo, cluster)
    """
    draws = len(by_weight)
    weights = np.tensordot(matched.weights, by_weight, axes=2)
    profiles = [np.einsum("tcd,tcd->c", p, by_parameter) for p in matched.parameters]
    return weights / draws, np.array(profiles) / draws


def mean_log_likelihood(
    matched: MatchedDraws, weights: Floats, profiles: Floats, family: Product, expected: Expected
) -> tuple[Floats, Floats, Floats]:
    """Mean over draws of log p(rows | θ̂_t), and its gradient in (λ, μ).

    By Fisher's identity the gradient in θ̂_t is the score of the rows' expected statistics, and that
    in π̂_t their expected number over π̂_t; `mix_gradient` carries both over.

    Parameters
    ----------
    weights : (start, silo), λ; profiles : (start, silo, cluster), μ.
    expected : what the rows add up to, draw by draw.

    Returns
    -------
    (start,), and as `weights` and `profiles`.
    """
    replies = []
    # point by point: the global draws of all of them would fill the memory
    for point in zip(weights, profiles, strict=True):
        shares, parameters = mix(matched, *point, family)
        value, members, statistics = expected(shares, parameters)
        slopes = members / shares, family.score(parameters, statistics)
        replies.append((value.mean(), *mix_gradient(matched, *slopes)))
    values, by_weights, by_profiles = map(np.array, zip(*replies, strict=True))
    return values, by_weights, by_profiles
