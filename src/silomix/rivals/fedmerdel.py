"""FedMerDel: variational fits in the silos, merged from counts alone in one exchange.

The model of VICatMix (Rao and Kirk, 2024): weights ~ Dirichlet(a, …, a) over K components, level
probabilities ~ Dirichlet(e_q, …, e_q), and q(z) q(π) q(p) in its place. After an update of
q(π) q(p) every digamma cancels, and the evidence lower bound is a function of the responsibilities
r,

    L(r) = ln Γ(Ka)/Γ(Ka + n) + Σ_k [ln Γ(a + N_k)/Γ(a) + g(n_k)] − Σ_ik r_ik ln r_ik,

N_k the rows of a component, n_k its cells by level, both summed over responsibilities, and g their
Dirichlet-multinomial evidence. An empty component adds exactly 0, so K stays the same and bounds
with different numbers of occupied components can be compared.

Merge and delete moves are those of memoised variational inference (Hughes and Sudderth, 2013),
which FedMerDel (Rao et al., 2026) uses inside a batch; its own order and period of the moves are
not in what was published, and the reading here is: moves only once the updates have settled, the
best merge first, then deletions from the smallest component on. Components of different silos merge
as those of one silo do, but lose no entropy: no row has responsibilities in both.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.special import digamma, gammaln, softmax, xlogy

from silomix.families.categorical import draw_levels, level_totals
from silomix.kernels.arrays import Floats, Ints, Rng, by_appearance, sum_by
from silomix.rivals.federation import Options, keep_labels, merge_clusters, open_silos, points_of
from silomix.rivals.kmeans_kmodes import k_modes
from silomix.silo.partition import log_allocation_prior
from silomix.study.methods import Count, CountFromZero, Positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.model.reading import Table
    from silomix.rivals.federation import Points, RivalResult
    from silomix.silo.local import Silo

STREAM = 0x66656D
SILO, MERGES, DRAWS = 0, 1, 2  # branches of the random stream
START_PASSES = 10
NOBODY = 1e-3  # a component with fewer rows than this is empty
# A random search ends after so many rejected pairs in a row for each component to begin with.
REJECTIONS = 10


class Search(Options):
    """Settings of a silo's search for components.

    Attributes
    ----------
    components : K, above the clusters expected.
    alpha : a, concentration of the weights: as in the pooled model of silomix. The authors of
        VICatMix advise less than one and use 0.01 and 0.05.
    beta : concentration of the level probabilities; None is 1/K_q, as in VICatMix.
    restarts : starting points; the largest lower bound wins.
    settle : the most updates between two rounds of moves.
    sweeps : the most updates in all.
    refine : updates before a deletion is judged.
    tolerance : a smaller rise of the lower bound counts as none.

    Examples
    --------
    >>> silomix.rivals.Search(components=10).restarts
    3
    """

    components: Count = 15
    alpha: Positive = 0.5
    beta: Positive | None = None
    restarts: Count = 3
    settle: Count = 100
    sweeps: Count = 2000
    refine: CountFromZero = 5
    tolerance: Positive = 1e-3


class Merging(Options):
    """Settings of the merging of all silos' components.

    Attributes
    ----------
    pairs : "cross" never merges two components of one silo; "any" may.
    search : "greedy" merges the best pair each time; "random" any pair that raises the bound.

    Examples
    --------
    >>> silomix.rivals.Merging(pairs="any")
    Merging(pairs='any', search='greedy')
    """

    pairs: Literal["cross", "any"] = "cross"
    search: Literal["greedy", "random"] = "greedy"


class LocalComponents(NamedTuple):
    """Sums over a silo's rows, by component.

    Attributes
    ----------
    members : (component,), expected rows; counts : (component, level), expected cells.
    lost : (component, component), entropy lost in a merge, or None.
    """

    members: Floats
    counts: Floats
    lost: Floats | None


class ClusterSizes(NamedTuple):
    """Rows of a silo in each cluster: (cluster,)."""

    sizes: Ints


def fedmerdel(
    table: Table,
    silo: str | None = None,
    *,
    search: Search | None = None,
    merging: Merging | None = None,
    draws: int = 1000,
    **settings: Any,
) -> RivalResult:
    """Fit each silo by variational inference, then merge the components of all silos.

    FedMerDel (Rao et al., 2026) on the model of VICatMix (Rao and Kirk, 2024). A silo fits a
    categorical mixture with merge and delete moves and sends, of
    each component, expected rows and cells. The coordinator looks at the mixture of all silos'
    components, in which a row has shares in those of its own silo only; two components a, b merge
    if that raises the lower bound:

        g(n_a + n_b) − g(n_a) − g(n_b) + ln Γ(α + N_a + N_b) Γ(α) / [Γ(α + N_a) Γ(α + N_b)] > 0,

    which counts alone decide. The candidate pairs, and where a random search ends, are not in
    what was published: `Merging` has the reading. A row's cluster is that of its most probable
    component. Nothing ever splits.

    The draws come from q: weights ~ Dirichlet(α + N), level probabilities ~ Dirichlet(e_q + n).

    Parameters
    ----------
    table, silo : as for `silomix.fit`; without a silo column the table is one silo.
    search : the silos' search; `Search()` when left out.
    merging : the coordinator's; greedy over pairs of different silos when left out.
    draws : number of draws from q.
    settings : seed, threads, variables, missing, as for `silomix.fit`.

    Examples
    --------
    >>> result = silomix.rivals.fedmerdel(table, "silo", seed=1)
    >>> result.n_clusters
    5
    """
    search, merging = search or Search(), merging or Merging()
    federation = open_silos(table, silo, knows="categories", unused=settings, **settings)
    seed = federation.study.seed
    levels = Levels.of(federation.study.table_schema.offsets, search)
    with federation.stage("local"):
        local = federation.ask(partial(fit_locally, search, merging.pairs))
    with federation.stage("merge"):
        components = components_of(local, levels, search.alpha)
        if merging.search == "greedy":
            groups = greedy_search(components)
        else:
            groups = random_search(components, np.random.default_rng([seed, STREAM, MERGES]))
        single = components_of(local, levels, search.alpha)
        groups, rows, cells = merge_clusters(by_appearance(groups), single.members, single.counts)
    with federation.stage("assign"):
        split = np.split(groups, np.cumsum([len(part.members) for part in local])[:-1])
        parts = zip(federation.tally.names, local, split, strict=True)
        federation.ask({n: partial(assign_locally, search, f, g, len(rows)) for n, f, g in parts})
        rng = np.random.default_rng([seed, STREAM, DRAWS])
        weights = rng.dirichlet(search.alpha + rows, draws)
        probabilities = draw_levels(levels.prior + cells, levels.offsets, rng, draws)
    note = f"{len(groups)} local components became {len(rows)} clusters."
    return federation.result("fedmerdel", weights, probabilities, note)


class Levels(NamedTuple):
    """Categories and their prior.

    Attributes
    ----------
    offsets : (variable + 1,), index of each variable's first level; prior : (level,), shapes.
    """

    offsets: Ints
    prior: Floats

    @classmethod
    def of(cls, offsets: Ints, search: Search) -> Levels:
        """Levels with their prior: e_q = β, or by default 1/K_q, which sums to one."""
        sizes = np.diff(offsets)
        shapes = 1.0 / sizes if search.beta is None else np.full(len(sizes), search.beta)
        return cls(offsets, np.repeat(shapes, sizes))

    def evidence(self, counts: Floats) -> Floats:
        """Log evidence ln p(cells), probabilities integrated out: (...,) from (..., level)."""
        totals = np.add.reduceat(counts, self.offsets[:-1], axis=-1)
        sizes = np.add.reduceat(self.prior, self.offsets[:-1])
        rise = gammaln(self.prior + counts) - gammaln(self.prior)
        fall = gammaln(sizes + totals) - gammaln(sizes)
        return np.asarray(rise.sum(axis=-1) - fall.sum(axis=-1))


def components_of(local: Sequence[LocalComponents], levels: Levels, alpha: float) -> Components:
    """Components of all silos; without reported losses, those of a silo never merge."""
    members = np.concatenate([part.members for part in local])
    counts = np.concatenate([part.counts for part in local])
    forbidden = np.full((len(members), len(members)), -np.inf)
    lost = [forbidden[: len(m), : len(m)] if lost is None else lost for m, _, lost in local]
    return Components(members, counts, block_diag(*lost), levels, alpha)


def greedy_search(components: Components) -> Ints:
    """Groups, (component,), after merging the best pair until none raises the bound."""
    groups = np.arange(len(components.members))
    gains = components.gains()
    gains = np.maximum(gains, gains.T)
    while gains.max() > 0:
        a, b = (int(i) for i in np.unravel_index(gains.argmax(), gains.shape))
        components.join(a, b)
        groups[groups == b] = a
        gains[b], gains[:, b] = -np.inf, -np.inf
        others = np.setdiff1d(groups, a)
        gains[a, others] = gains[others, a] = components.gain(a, others)
    return groups


def random_search(components: Components, rng: Rng) -> Ints:
    """Groups, (component,), after merging random pairs that raise the bound."""
    groups, rejected = np.arange(len(components.members)), 0
    while len(alive := np.unique(groups)) > 1 and rejected < REJECTIONS * len(groups):
        a, b = rng.choice(alive, 2, replace=False)
        rejected += 1
        if components.gain(a, np.array([b]))[0] > 0:
            components.join(a, b)
            groups[groups == b] = a
            rejected = 0
    return groups


def fit_locally(search: Search, pairs: str, silo: Silo) -> LocalComponents:
    """Fit a silo's rows from several starts; sum them by component of the best fit.

    The costs of merges are sent only if any pair may merge.
    """
    codes, counts = silo.rows.distinct
    points = points_of(codes, silo.shard.schema.offsets, counts)
    rng = np.random.default_rng([silo.study.seed, STREAM, SILO, silo.place])
    fits = [fit_once(points, search, start)[0] for start in rng.spawn(search.restarts)]
    fit = max(fits, key=lambda fit: fit.bound)
    lost = entropy_lost(points, fit.responsibilities) if pairs == "any" else None
    return LocalComponents(fit.members, fit.counts, lost)


def assign_locally(
    search: Search, components: LocalComponents, groups: Ints, clusters: int, silo: Silo
) -> ClusterSizes:
    """Assign a silo's rows to the clusters of their most probable components.

    Parameters
    ----------
    components : what the silo answered; groups : (component,), the global cluster of each.
    clusters : number of clusters.
    """
    points = points_of(silo.shard.codes, silo.shard.schema.offsets)
    r = responsibilities(points, search, components.members, components.counts)
    return ClusterSizes(keep_labels(silo, groups[r.argmax(axis=1)], clusters))


class Fit(NamedTuple):
    """Responsibilities, with the sums and the bound that follow from them.

    Attributes
    ----------
    responsibilities : (point, component), r.
    members : (component,), N; counts : (component, level), n.
    bound : L(r).
    """

    responsibilities: Floats
    members: Floats
    counts: Floats
    bound: float


def fit_once(points: Points, search: Search, rng: Rng) -> tuple[Fit, list[float]]:
    """Fit from one random start, and the lower bound along the way."""
    # k-modes labels, then one update with all components equally likely
    labels, modes = k_modes(points, search.components, START_PASSES, rng)
    counts = sum_by(labels, points.cells * points.counts[:, None], len(modes))
    fit, trace = update(points, search, np.zeros(len(modes)), counts), list[float]()
    while len(trace) < search.sweeps:
        previous = fit.bound
        for _ in range(search.settle):
            last, fit = fit.bound, update(points, search, fit.members, fit.counts)
            trace.append(fit.bound)
            if fit.bound - last < search.tolerance:
                break
        occupied = fit.members > NOBODY
        if not occupied.all():
            r = fit.responsibilities[:, occupied]
            fit = evaluate(points, search, r / r.sum(axis=1, keepdims=True))
        improved = delete_one(points, search, merge_all(points, search, fit))
        trace.append(improved.bound)
        moved = len(improved.members) != len(fit.members)
        fit = improved
        if not moved and fit.bound - previous < search.tolerance:
            break
    return fit, trace


def update(points: Points, search: Search, members: Floats, counts: Floats) -> Fit:
    """One update of the fit, given the components' members and counts."""
    return evaluate(points, search, responsibilities(points, search, members, counts))


def responsibilities(points: Points, search: Search, members: Floats, counts: Floats) -> Floats:
    """Responsibilities r, given the components' members and counts: (point, component).

    r_ik ∝ exp(ψ(a + N_k) + Σ_q [ψ(e_q + n_kqx) − ψ(K_q e_q + n_kq·)]), x the row's level.
    """
    shapes = Levels.of(points.offsets, search).prior + counts
    profiles = digamma(shapes) - digamma(level_totals(shapes, points.offsets))
    # components as rows: sums over few of them are fast only across contiguous points
    scores = profiles @ points.cells.T + digamma(search.alpha + members)[:, None]
    return np.asarray(softmax(scores, axis=0).T)


def evaluate(points: Points, search: Search, r: Floats) -> Fit:
    """Members, counts and lower bound of responsibilities, (point, component)."""
    weighted = r * points.counts[:, None]
    members, counts = weighted.sum(axis=0), weighted.T @ points.cells
    entropy = -float((points.counts @ xlogy(r, r)).sum())
    prior = log_allocation_prior(members, search.components, search.alpha)
    evidence = Levels.of(points.offsets, search).evidence(counts)
    bound = prior + float(evidence.sum()) + entropy
    return Fit(r, members, counts, bound)


def merge_all(points: Points, search: Search, fit: Fit) -> Fit:
    """Merge the two components whose merge raises the bound most, until none does."""
    while len(fit.members) > 1:
        lost = entropy_lost(points, fit.responsibilities)
        levels = Levels.of(points.offsets, search)
        gains = Components(fit.members, fit.counts, lost, levels, search.alpha).gains()
        a, b = np.unravel_index(gains.argmax(), gains.shape)
        if gains[a, b] <= 0:
            break
        r = fit.responsibilities.copy()
        r[:, a] += r[:, b]
        fit = evaluate(points, search, np.delete(r, b, axis=1))
    return fit


class Components(NamedTuple):
    """Groups of components, at first of one each. A merger is written to the first group.

    Attributes
    ----------
    members : (group,); counts : (group, level), summed over the group.
    lost : (group, group), entropy lost in a merge; −inf where a merge is not allowed.
    levels, alpha : the priors.
    """

    members: Floats
    counts: Floats
    lost: Floats
    levels: Levels
    alpha: float

    def gain(self, a: int, others: Ints) -> Floats:
        """Rise of the bound when a group is merged with each of others: (other,).

        g(n_a + n_b) − g(n_a) − g(n_b) + ln Γ(α + N_a + N_b) Γ(α) / [Γ(α + N_a) Γ(α + N_b)], less
        the entropy lost. That is exact for two components, and for more never less than the true
        one, so that no merge is taken that lowers the bound.
        """
        g, counts, shapes = self.levels.evidence, self.counts, self.alpha + self.members
        profiles = g(counts[a] + counts[others]) - g(counts[a]) - g(counts[others])
        joint = gammaln(shapes[a] + self.members[others]) + gammaln(self.alpha)
        gains = profiles + joint - gammaln(shapes[a]) - gammaln(shapes[others])
        return np.asarray(gains + self.lost[a, others])

    def gains(self) -> Floats:
        """Gains of all pairs: (group, group), −inf below and on the diagonal."""
        gains = np.full_like(self.lost, -np.inf)
        for a in range(len(gains) - 1):
            gains[a, a + 1 :] = self.gain(a, np.arange(a + 1, len(gains)))
        return gains

    def join(self, a: int, b: int) -> None:
        """Add group b to group a, in place."""
        self.members[a] += self.members[b]
        self.counts[a] += self.counts[b]
        self.lost[a] += self.lost[b]
        self.lost[:, a] = self.lost[a]


def entropy_lost(points: Points, r: Floats) -> Floats:
    """Change of the entropy when two components merge: (component, component), ≤ 0.

    −Σ_i [(r_ik + r_il) ln(r_ik + r_il) − r_ik ln r_ik − r_il ln r_il]; zero where k = l.
    """
    components = r.shape[1]
    terms = points.counts @ xlogy(r, r)
    lost = np.zeros((components, components))
    for k in range(components - 1):
        merged = r[:, k, None] + r[:, k + 1 :]
        change = terms[k] + terms[k + 1 :] - points.counts @ xlogy(merged, merged)
        lost[k, k + 1 :] = lost[k + 1 :, k] = np.minimum(change, 0.0)
    return lost


def delete_one(points: Points, search: Search, fit: Fit) -> Fit:
    """Empty the smallest component whose removal raises the bound, if there is one."""
    if len(fit.members) == 1:
        return fit
    for component in np.argsort(fit.members, kind="stable"):
        trial = fit
        members, counts = (np.delete(part, component, axis=0) for part in (fit.members, fit.counts))
        for _ in range(search.refine):
            trial = update(points, search, members, counts)
            members, counts = trial.members, trial.counts
        if trial.bound > fit.bound + search.tolerance:
            return trial
    return fit
