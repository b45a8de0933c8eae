"""A silo's own mixture by variational inference, with merge and delete moves.

The model of VICatMix (Rao and Kirk, 2024): weights ~ Dirichlet(a, …, a) over K components, level
probabilities ~ Dirichlet(e_q, …, e_q), and q(z) q(π) q(p) in its place. After an update of
q(π) q(p) every digamma cancels, and the evidence lower bound is a function of the rows' shares r,

    L(r) = ln Γ(Ka)/Γ(Ka + n) + Σ_k [ln Γ(a + N_k)/Γ(a) + g(n_k)] − Σ_ik r_ik ln r_ik,

N_k the rows of a component, n_k its cells by level, both summed over shares, and g their
Dirichlet-multinomial evidence. An empty component adds exactly 0, so K stays the same and bounds
with different numbers of occupied components can be compared.

Merge and delete moves are those of memoised variational inference (Hughes and Sudderth, 2013),
which FedMerDel (Rao et al., 2026) uses inside a batch; its own order and period of the moves are
not in what was published, and the reading here is: moves only once the updates have settled, the
best merge first, then deletions from the smallest component on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import digamma, gammaln, xlogy

from silomix.errors import SettingsError
from silomix.families.dirichlet import log_allocation_prior
from silomix.rivals.kmodes import Points, k_modes
from silomix.rivals.odds import positive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.rivals.levels import Levels

START_PASSES = 10
NOBODY = 1e-3
"""A component with fewer rows than this is empty."""


@dataclass(frozen=True)
class Search:
    """How a silo looks for its components.

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
    tolerance : a rise of the lower bound by less is none.

    Examples
    --------
    >>> silomix.rivals.Search(components=10).restarts
    3
    """

    components: int = 15
    alpha: float = 0.5
    beta: float | None = None
    restarts: int = 3
    settle: int = 100
    sweeps: int = 2000
    refine: int = 5
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("components", "restarts", "settle", "sweeps"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.refine < 0:
            raise SettingsError(f"refine is {self.refine}; it must be at least 0")
        for name in ("alpha", "beta", "tolerance"):
            value = getattr(self, name)
            if value is not None:
                positive(name, value)


@dataclass(frozen=True, eq=False)
class Fit:
    """The shares of the rows, and all that follows from them.

    Attributes
    ----------
    shares : (point, component), r.
    members : (component,), N; counts : (component, level), n.
    entropy : of the shares.
    bound : L(r).
    """

    shares: NDArray[np.float64]
    members: NDArray[np.float64]
    counts: NDArray[np.float64]
    entropy: float
    bound: float


@dataclass(frozen=True, eq=False)
class Problem:
    """The rows, the model, and how to search."""

    points: Points
    levels: Levels
    search: Search


def fit_mixture(problem: Problem, rng: np.random.Generator) -> Fit:
    """Return the best of several fits from random starts."""
    starts = rng.spawn(problem.search.restarts)
    return max((fit_once(problem, start)[0] for start in starts), key=lambda fit: fit.bound)


def fit_once(problem: Problem, rng: np.random.Generator) -> tuple[Fit, list[float]]:
    """Fit from one random start; return the fit and the lower bound along the way."""
    search = problem.search
    fit = begin(problem, rng)
    trace: list[float] = []
    while len(trace) < search.sweeps:
        before = fit.bound
        fit = settle(problem, fit, trace)
        fit = drop_empty(problem, fit)
        merged = merge_all(problem, fit)
        found = delete_one(problem, merged)
        trace.append(found.bound)
        moved = found.shares.shape != fit.shares.shape
        fit = found
        if not moved and fit.bound - before < search.tolerance:
            break
    return fit, trace


def begin(problem: Problem, rng: np.random.Generator) -> Fit:
    """Return the first fit: k-modes labels, then one update with all components equally likely."""
    points, search = problem.points, problem.search
    labels, modes = k_modes(points, search.components, START_PASSES, rng)
    hard = np.zeros((len(labels), len(modes)))
    hard[np.arange(len(labels)), labels] = 1.0
    counts = hard.T @ (points.cells * points.counts[:, None])
    return evaluate(problem, allot(problem, np.zeros(len(modes)), counts))


def settle(problem: Problem, fit: Fit, trace: list[float]) -> Fit:
    """Update until the lower bound hardly rises; write each bound into `trace`."""
    for _ in range(problem.search.settle):
        before = fit.bound
        fit = evaluate(problem, allot(problem, fit.members, fit.counts))
        trace.append(fit.bound)
        if fit.bound - before < problem.search.tolerance:
            break
    return fit


def allot(
    problem: Problem, members: NDArray[np.float64], counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the rows' shares given the components' members and counts: (point, component).

    r_ik ∝ exp(ψ(a + N_k) + Σ_q [ψ(e_q + n_kqx) − ψ(K_q e_q + n_kq·)]), x the row's level.
    """
    return share_out(problem.points.cells, members, counts, problem.levels, problem.search.alpha)


def share_out(
    cells: NDArray[np.float64],
    members: NDArray[np.float64],
    counts: NDArray[np.float64],
    levels: Levels,
    alpha: float,
) -> NDArray[np.float64]:
    """Do what `allot` does, for any rows: cells is (row, level)."""
    shapes = levels.concentration + counts
    profiles = digamma(shapes) - levels.spread(digamma(levels.totals(shapes)))
    # components as rows: sums over few of them are fast only across contiguous points
    scores = profiles @ cells.T + digamma(alpha + members)[:, None]
    scores -= scores.max(axis=0)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=0)
    return scores.T


def evaluate(problem: Problem, shares: NDArray[np.float64]) -> Fit:
    """Sum up shares, (point, component), into members, counts and the lower bound."""
    points, search = problem.points, problem.search
    weighted = shares * points.counts[:, None]
    members, counts = weighted.sum(axis=0), weighted.T @ points.cells
    entropy = -float((points.counts @ xlogy(shares, shares)).sum())
    bound = (
        log_allocation_prior(members, search.components, search.alpha)
        + float(problem.levels.evidence(counts).sum())
        + entropy
    )
    return Fit(shares, members, counts, entropy, bound)


def drop_empty(problem: Problem, fit: Fit) -> Fit:
    """Leave out components without rows."""
    held = fit.members > NOBODY
    if held.all():
        return fit
    shares = fit.shares[:, held]
    return evaluate(problem, shares / shares.sum(axis=1, keepdims=True))


def merge_all(problem: Problem, fit: Fit) -> Fit:
    """Merge the two components whose merge raises the bound most, until none does."""
    while fit.shares.shape[1] > 1:
        gains = merge_gains(problem, fit)
        one, other = np.unravel_index(gains.argmax(), gains.shape)
        if gains[one, other] <= 0:
            break
        shares = fit.shares.copy()
        shares[:, one] += shares[:, other]
        fit = evaluate(problem, np.delete(shares, other, axis=1))
    return fit


def merge_gains(problem: Problem, fit: Fit) -> NDArray[np.float64]:
    """Return by how much each merge raises the bound: (component, component), −inf below."""
    components = len(fit.members)
    gains = np.full((components, components), -np.inf)
    later = np.triu(np.ones((components, components), dtype=bool), k=1)
    lost = entropy_lost(problem.points, fit.shares)
    for one in range(components - 1):
        others = np.flatnonzero(later[one])
        gains[one, others] = (
            pair_gain(
                problem.levels,
                problem.search.alpha,
                (fit.members[one], fit.members[others]),
                (fit.counts[one], fit.counts[others]),
            )
            + lost[one, others]
        )
    return gains


def pair_gain(
    levels: Levels,
    alpha: float,
    members: tuple[float, NDArray[np.float64]],
    counts: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the rise of the bound, entropy left out, when one component takes each of others.

    g(n_i + n_j) − g(n_i) − g(n_j) + ln Γ(a + N_i + N_j) Γ(a) / [Γ(a + N_i) Γ(a + N_j)].

    Parameters
    ----------
    members : of the one, and of the others (other,); counts : (level,) and (other, level).
    """
    one, others = members
    profiles = levels.evidence(counts[0] + counts[1])
    profiles = profiles - levels.evidence(counts[0]) - levels.evidence(counts[1])
    weights = gammaln(alpha + one + others) + gammaln(alpha)
    return np.asarray(profiles + weights - gammaln(alpha + one) - gammaln(alpha + others))


def entropy_lost(points: Points, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what the entropy falls by when two components merge: (component, component), ≤ 0.

    −Σ_i [(r_ik + r_il) ln(r_ik + r_il) − r_ik ln r_ik − r_il ln r_il]; zero where k = l.
    """
    components = shares.shape[1]
    own = points.counts @ xlogy(shares, shares)
    lost = np.zeros((components, components))
    for one in range(components - 1):
        both = shares[:, one, None] + shares[:, one + 1 :]
        change = own[one] + own[one + 1 :] - points.counts @ xlogy(both, both)
        lost[one, one + 1 :] = lost[one + 1 :, one] = np.minimum(change, 0.0)
    return lost


def delete_one(problem: Problem, fit: Fit) -> Fit:
    """Empty the smallest component whose rows do better elsewhere, if there is one."""
    if len(fit.members) == 1:
        return fit
    for component in np.argsort(fit.members, kind="stable"):
        rest = np.delete(np.arange(len(fit.members)), component)
        members, counts = fit.members[rest], fit.counts[rest]
        trial = fit
        for _ in range(problem.search.refine):
            trial = evaluate(problem, allot(problem, members, counts))
            members, counts = trial.members, trial.counts
        if trial.bound > fit.bound + problem.search.tolerance:
            return trial
    return fit
