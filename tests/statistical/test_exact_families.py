"""Sweeps on the rows' features leave the enumerated posterior as it is; bugs do not.

Tables of five or six rows in two components, of each kind of variable and of all side by side, with
missing cells. The masses are the oracles', which share no code with the package.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from cases import family_oracles as oracles
from cases.family_oracles import Category, Count, Joint, Number, Overdispersed, Tailed
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import gammaln, logsumexp, multigammaln
from statistical.exact import (
    FALSE_ALARM,
    forgetting_p_value,
    invariance_p_value,
    labellings,
)

from silomix.families import chains as sweeping
from silomix.families import make_family
from silomix.families.gaussian import Gaussian
from silomix.families.gaussian_full import FullGaussian
from silomix.families.negative_binomial import NegativeBinomial
from silomix.families.poisson import Poisson
from silomix.families.student_t import StudentT
from silomix.kernels.reproducible import chain_key
from silomix.model.draws import Schedule
from silomix.model.schema import Prior

pytestmark = pytest.mark.statistical

nan = np.nan


@dataclass(frozen=True)
class TinyTable:
    """Cells (row, variable) of such kinds, few enough to enumerate; nan is a missing one."""

    kinds: tuple
    codes: np.ndarray
    components: int = 2
    alpha: float = 2.0

    @property
    def shard(self):
        return oracles.make_shard(self.kinds, self.codes)


# few cells in a row, and many rows expected in both components: with a prior of the means that is
# as wide as this, a component without rows hardly ever gets one
NUMBERS = TinyTable(
    (Number("x", 54.0, 9.0), Number("y")),
    np.array([[-0.5, nan], [nan, 0.2], [0.9, nan], [0.4, 0.5], [nan, -0.4]]),
)
COUNTS = TinyTable(
    (Count("n", 3.0), Count("m", 0.5)),
    np.array([[1, 0], [2, nan], [9, 1], [nan, 0], [4, 2]], dtype=float),
)
SPREAD = TinyTable(
    (Overdispersed("n", 3.0), Overdispersed("m", 0.5)),
    np.array([[1, 0], [2, nan], [16, 1], [nan, 0], [0, 6]], dtype=float),
)
# between zeros and large counts, the prior decides how many components there are
ZEROS = TinyTable(
    (Overdispersed("n", 3.0),), np.array([[0], [0], [0], [5], [6], [40]], dtype=float)
)
MIXED = TinyTable(
    (Category("a"), Number("x", -1.0, 0.2), Count("n")),
    np.array([[0, nan, 1], [nan, 1.1, nan], [1, nan, 4], [nan, 0.5, 3], [0, -0.4, nan]]),
)
JOINT = TinyTable(
    (Joint("x"), Joint("y")),
    np.array([[-1.0, -1.1], [0.3, 0.2], [0.9, 1.0], [-0.4, -0.3], [0.1, 0.6]]),
)
# three missing cells, summed out on a grid
GAPS = replace(JOINT, codes=np.where(np.isin(JOINT.codes, (0.9, 0.6, -0.4)), nan, JOINT.codes))
# a normal cluster would be drawn to the cells far out, and widened by them
TAILED = TinyTable(
    (Tailed("x", 54.0, 9.0),), np.array([[-0.2], [0.0], [0.1], [0.3], [5.0], [-4.0]])
)
ALL_SIDES = TinyTable(
    (Category("a"), Tailed("x", -1.0, 0.2)),
    np.array([[0, 0.3], [nan, 1.1], [1, 5.0], [1, nan], [0, -0.4]]),
)
HIDING = {"gaps": GAPS, "student-t": TAILED, "student-t and categories": ALL_SIDES}
TABLES = {
    "gaussian": NUMBERS,
    "gaussian-full": JOINT,
    "poisson": COUNTS,
    "negative-binomial": SPREAD,
    "mixed": MIXED,
}


def masses(tiny, log_evidence=None):
    """Posterior probability of each labelling, weights and parameters integrated out."""
    known = log_joint_evidence if isinstance(tiny.kinds[0], Joint) else oracles.log_evidence
    evidence = log_evidence or (lambda rows: known(tiny.kinds, tiny.codes[list(rows)]))
    of_rows = cache(evidence)  # each set of rows is a component of several labellings
    logs = []
    for labels in labellings(tiny):
        members = np.bincount(labels, minlength=tiny.components)
        allocated = gammaln(tiny.alpha + members).sum()
        sets = (tuple(np.flatnonzero(labels == c)) for c in range(tiny.components))
        logs.append(allocated + sum(map(of_rows, sets)))
    return np.exp(np.array(logs) - logsumexp(logs))


def log_joint_evidence(_, cells):
    """ln p of rows of two jointly normal variables, missing cells on a grid that is finer at 0."""
    u, step = np.linspace(-7, 7, 101, retstep=True)
    gaps = np.argwhere(np.isnan(cells))
    shape = (len(u),) * len(gaps)
    rows, volume = np.broadcast_to(cells, (*shape, *cells.shape)).copy(), np.zeros(shape)
    for axis, (row, column) in enumerate(gaps):
        along = u.reshape(-1, *[1] * (len(gaps) - axis - 1))
        rows[..., row, column] = np.sinh(along)
        volume = volume + np.log(step * np.cosh(along))
    size, degrees = 0.01 + len(cells), 4.0 + len(cells)
    total = rows.sum(axis=-2)
    scale = 0.5 * np.eye(2) + np.einsum("...ri,...rj->...ij", rows, rows)
    scale = scale - total[..., :, None] * total[..., None, :] / size
    gammas = multigammaln(degrees / 2, 2) - multigammaln(2.0, 2)
    fixed = np.log(0.01 / size) + gammas - len(cells) * np.log(np.pi) + 2.0 * np.log(0.25)
    logs = fixed - 0.5 * degrees * np.linalg.slogdet(scale)[1] + volume
    return logsumexp(logs)


class FeatureSweeper:
    """Runs sweeps on the features of a tiny table, a fresh key for each replicate."""

    def __init__(self, tiny, seed):
        shard, self.seed = tiny.shard, seed
        family = make_family(shard.schema, Prior())
        self.plan = sweeping.prepare(shard, tiny.components, tiny.alpha, family)

    def __call__(self, labels, replicate, sweeps=1):
        key = chain_key(self.seed, 0, replicate)
        # what is hidden begins anywhere
        begun = sweeping.FeatureChain.start(self.plan, key)
        begun[: len(labels)] = labels
        chain = sweeping.FeatureChain(self.plan, key, begun, 1)
        none_kept = Schedule(iterations=sweeps, burn_in=sweeps)
        chain.advance(range(1, sweeps + 1), none_kept, None, None)
        return chain.labels


def prior_worth_twice_the_rows(patch):
    patch.setattr("silomix.families.gaussian.PRIOR", (0.0, 0.02, 3.0, 0.5))
    patch.setattr("silomix.families.poisson.SHAPE", 1.0)
    patch.setattr("silomix.families.negative_binomial.SHAPE", 1.0)


def squares_forgotten(patch):
    """As if all rows of a cluster were at its mean."""
    right = Gaussian.conjugate

    def conjugate(family, statistics):
        sums = statistics.copy()
        sums[..., 2::3] = statistics[..., 1::3] ** 2 / np.maximum(statistics[..., ::3], 1)
        return right(family, sums)

    patch.setattr(Gaussian, "conjugate", conjugate)


def missing_cells_counted(patch):
    """As if they were zeros."""
    for family in (Gaussian, Poisson, NegativeBinomial):
        right = family.features
        patch.setattr(family, "features", lambda own, cells, f=right: f(own, np.nan_to_num(cells)))


def weights_not_drawn(patch):
    patch.setattr(sweeping, "draw_weights", lambda shapes, _: np.full(len(shapes), 0.5))


def one_spread_for_all(patch):
    """Means around the spread of another component."""
    right = Gaussian.draw

    def draw(family, posterior, rng):
        found = right(family, posterior, rng)
        found[..., 1::2] = found[..., ::-1, 1::2]
        return found

    patch.setattr(Gaussian, "draw", draw)


def dispersions_by_means_alone(patch):
    """The sums of L left out of the posterior of α."""
    right = NegativeBinomial.conjugate

    def conjugate(family, statistics):
        sums = np.zeros_like(statistics)
        for place in (0, 1):
            sums[..., place::19] = statistics[..., place::19]
        return right(family, sums)

    patch.setattr(NegativeBinomial, "conjugate", conjugate)


def dispersion_of_another_component(patch):
    right = NegativeBinomial.draw

    def draw(family, posterior, rng):
        found = right(family, posterior, rng)
        found[..., 1::2] = found[..., ::-1, 1::2]
        return found

    patch.setattr(NegativeBinomial, "draw", draw)


def covariances_forgotten(patch):
    """As if the variables had nothing to do with each other."""
    right = FullGaussian.natural

    def natural(family, parameters):
        own = parameters.copy()
        own[..., 4] = 0.0
        return right(family, own)

    patch.setattr(FullGaussian, "natural", natural)


def known_cells_not_looked_at(patch):
    """Of rows that hide something, as if all cells were missing when their labels are drawn."""

    def log_density(_, cells, parameters):
        return np.zeros((len(cells), len(parameters)))

    for family in (FullGaussian, StudentT):
        patch.setattr(family, "log_density", log_density)


def outliers_weigh_as_much(patch):
    """Parameters drawn as if all cells were normal."""
    patch.setattr(StudentT, "complete", lambda family, cells, *_: family.features(cells))


def labels_by_the_normal_density(patch):
    def log_density(_, cells, parameters):
        m, s = parameters[..., ::2], parameters[..., 1::2]
        return stats.norm(m, s).logpdf(cells[:, None]).sum(axis=-1)

    patch.setattr(StudentT, "log_density", log_density)


BUGS = [
    (covariances_forgotten, JOINT),
    (known_cells_not_looked_at, GAPS),
    (known_cells_not_looked_at, TAILED),
    (outliers_weigh_as_much, TAILED),
    (labels_by_the_normal_density, TAILED),
    (prior_worth_twice_the_rows, NUMBERS),
    (prior_worth_twice_the_rows, COUNTS),
    (prior_worth_twice_the_rows, ZEROS),
    (dispersions_by_means_alone, SPREAD),
    (dispersion_of_another_component, SPREAD),
    (squares_forgotten, NUMBERS),
    (one_spread_for_all, NUMBERS),
    (missing_cells_counted, NUMBERS),
    (missing_cells_counted, COUNTS),
    (missing_cells_counted, SPREAD),
    (missing_cells_counted, MIXED),
    (weights_not_drawn, MIXED),
]


@pytest.mark.parametrize("name", TABLES)
def test_the_packages_evidence_gives_the_same_masses(name):
    tiny = TABLES[name]
    family = make_family(tiny.shard.schema, Prior())
    features = family.features(tiny.shard)

    def evidence(rows):
        return family.log_evidence(features[list(rows)].sum(axis=0)).sum()

    assert_allclose(masses(tiny, evidence), masses(tiny), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "replicates"),
    [
        ("mixed", 4_000),
        *(
            pytest.param(
                name, 20_000 if name == "negative-binomial" else 60_000, marks=pytest.mark.slow
            )
            for name in TABLES
        ),
    ],
)
def test_one_sweep_leaves_the_posterior_invariant(name, replicates, seed):
    tiny = TABLES[name]
    sweep = FeatureSweeper(tiny, seed)
    assert invariance_p_value(tiny, masses(tiny), sweep, replicates, seed) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "tiny"), BUGS)
def test_a_planted_bug_is_caught(plant, tiny, seed, monkeypatch):
    plant(monkeypatch)
    sweep = FeatureSweeper(tiny, seed)
    # sweeps of rows that hide their weights take long, and those bugs are coarse
    replicates = 300 if tiny is TAILED else 2_000
    assert invariance_p_value(tiny, masses(tiny), sweep, replicates, seed, 12) < FALSE_ALARM


@pytest.mark.parametrize(
    ("name", "replicates"),
    [
        ("student-t and categories", 150),
        *(pytest.param(name, 15_000, marks=pytest.mark.slow) for name in HIDING),
    ],
)
def test_what_rows_hide_is_summed_out(name, replicates, seed):
    """Labels begin at the target, what is hidden anywhere, which fifteen sweeps forget."""
    tiny = HIDING[name]
    sweep = FeatureSweeper(tiny, seed)
    found = invariance_p_value(tiny, masses(tiny), sweep, replicates, seed, 15)
    assert found > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TABLES, *HIDING])
def test_the_chain_forgets_its_start(name, seed):
    tiny = (TABLES | HIDING)[name]
    given = tiny, masses(tiny), FeatureSweeper(tiny, seed)
    assert forgetting_p_value(*given, 120, 300) > FALSE_ALARM
    assert forgetting_p_value(*given, 1, 300) < FALSE_ALARM
