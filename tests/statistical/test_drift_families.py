"""Drift of every kind of variable: the coordinator's draws keep the joint law; bugs do not.

Geweke (2004, JASA 99, 799–804), with independent chains, and with the exchange of clusters.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from cases.family_oracles import Category, Count, Number, Overdispersed, Tailed
from scipy import stats
from statistical.exact import FALSE_ALARM

import silomix.coordinator.polish
from silomix.coordinator import polish
from silomix.coordinator.polish import Shared, draw_profiles, draw_shared
from silomix.families import make_family
from silomix.families.derived import known
from silomix.families.family import GRID
from silomix.families.gaussian import Gaussian
from silomix.families.negative_binomial import NegativeBinomial
from silomix.families.product import Product
from silomix.families.student_t import StudentT
from silomix.model.schema import Prior, Schema

pytestmark = pytest.mark.statistical

SILOS, CLUSTERS, ALPHA = 3, 2, 0.8
# of each silo: enough that drift shows
ROWS = 25
KINDS = {
    "categories": (Category("a"), Category("b", 3), Category("c")),
    "gaussian": (Number("x", 54.0, 9.0), Number("y")),
    "student-t": (Tailed("x", 54.0, 9.0), Tailed("y")),
    "poisson": (Count("n", 3.0), Count("m", 0.5)),
    "negative-binomial": (Overdispersed("n", 3.0), Overdispersed("m", 0.5)),
    "mixed": (Category("a", 3), Number("x"), Count("n")),
}


class Study:
    """Variables of such kinds; everything is drawn by the oracles, chain by chain."""

    def __init__(self, kinds, rng):
        self.kinds, self.rng = kinds, rng
        self.family = make_family(Schema(tuple(kind.variable for kind in kinds)), Prior())
        holes = np.random.default_rng(0)
        self.missing = holes.random((SILOS, 1, ROWS, len(kinds))) < 0.2

    def split(self, parameters):
        """Parameters (..., parameter) of each variable."""
        return np.split(parameters, np.cumsum([k.size for k in self.kinds])[:-1], axis=-1)

    def draw_prior(self, chains):
        """What the silos share, their own parameters, and their weights: (silo, chain, cluster)."""
        rng, variables = self.rng, len(self.kinds)
        share = rng.random((chains, 1))
        finite = GRID[rng.integers(0, len(GRID) - 1, (chains, variables))]
        kappa = np.where(rng.random((chains, variables)) < share, np.inf, finite)
        mean = [kind.draw_prior((chains, CLUSTERS), rng) for kind in self.kinds]
        own = []
        for kind, shared, k in zip(self.kinds, mean, kappa.T, strict=True):
            every = np.broadcast_to(shared, (SILOS, *shared.shape))
            at = np.broadcast_to(np.where(np.isinf(k), 1.0, k)[:, None], every.shape[:-1])
            own.append(np.where(np.isinf(k)[:, None, None], every, kind.draw_own(every, at, rng)))
        weights = rng.dirichlet(np.full(CLUSTERS, ALPHA), (SILOS, chains))
        joined = (np.concatenate(part, axis=-1) for part in (mean, own))
        return Shared(next(joined), kappa), next(joined), weights

    def simulate(self, own, weights):
        """Draw labels and rows; return what they add up to, and members, by cluster."""
        reached = np.cumsum(weights, axis=-1)[:, :, None]
        labels = (reached < self.rng.random((*weights.shape[:2], ROWS, 1))).sum(axis=-1)
        labels = np.minimum(labels, CLUSTERS - 1)
        silo, chain, _ = np.ogrid[:SILOS, : weights.shape[1], :ROWS]
        of_row = self.split(own[silo, chain, labels])
        pairs = zip(self.kinds, of_row, strict=True)
        cells = np.stack([kind.draw_cells(part, self.rng) for kind, part in pairs], axis=-1)
        features = self.features(np.where(self.missing, np.nan, cells), of_row)
        is_in = labels[..., None] == np.arange(CLUSTERS)
        return np.einsum("scrk,scrt->sckt", is_in, features), is_in.sum(axis=2)

    def features(self, cells, of_row):
        """T(x) of cells (..., variable), as a reader of the module would write it."""
        found = []
        for kind, x, own in zip(self.kinds, np.moveaxis(cells, -1, 0), of_row, strict=True):
            known, value = ~np.isnan(x), np.nan_to_num(x)
            if isinstance(kind, Overdispersed):
                found += list(np.moveaxis(kind.features(x), -1, 0))
            elif isinstance(kind, Category):
                found += [known & (value == level) for level in range(kind.size)]
            elif isinstance(kind, Tailed):
                w = known * kind.draw_weights(value, own, self.rng) * 7 / 5
                found += [known, known * 7 / 4, w, known, w * value, w * value**2]
            else:
                found += [known, value, value**2][: kind.size + 1]
        return np.stack(found, axis=-1).astype(np.float64)

    def summaries(self, shared, own, weights, sums):
        """What is compared, of parameters and the rows they go with: (chain, summary)."""
        same = np.isinf(shared.kappa)
        finite = np.where(same, 1.0, shared.kappa)
        logs = np.log(finite)
        found = [same, same.sum(axis=1)[:, None] ** 2, logs, logs**2, logs * same[:, ::-1]]
        found.append(np.moveaxis(weights, 0, 1))
        sizes = self.family.statistics
        told = np.split(sums, np.cumsum(sizes)[:-1], axis=-1)
        parts = self.split(shared.mean), self.split(own), finite.T, told
        for kind, mean, at, k, rows in zip(self.kinds, *parts, strict=True):
            every, kappa = (
                np.broadcast_to(mean, at.shape),
                np.broadcast_to(k[:, None], at.shape[:-1]),
            )
            by_silo = [*kind.summaries(every, at, kappa, rows), np.arctan(rows / 5)]
            for part in (every, at):
                by_silo.append(weights[..., None] * np.arctan(part))
                by_silo += [
                    np.arctan(rows / 5) * np.arctan(part[..., [p]]) for p in range(kind.size)
                ]
            found += [np.moveaxis(part, 0, 1) for part in by_silo]
        return np.concatenate([part.reshape(len(same), -1) for part in found], axis=1)


@cache
def prior_summaries(kinds, chains, seed):
    """Mean of each summary under the joint prior, and the variance of that mean."""
    study, found = Study(kinds, np.random.default_rng([seed, 1])), []
    for _ in range(10):
        drawn = study.draw_prior(chains)
        found.append(study.summaries(*drawn, study.simulate(*drawn[1:])[0]))
    found = np.concatenate(found)
    return found.mean(axis=0), found.var(axis=0) / len(found)


def geweke_p_value(kinds, seed, *, chains=1000, rounds=4):
    """Simulate rows given parameters and draw parameters given rows: still the joint prior?

    The smallest p-value of all summaries of independent chains, times their number.
    """
    study = Study(kinds, np.random.default_rng(seed))
    prior, uncertainty = prior_summaries(kinds, chains, seed)
    shared, own, weights = study.draw_prior(chains)
    for _ in range(rounds):
        sums, members = study.simulate(own, weights)
        both = np.stack([weights, members], axis=-1)
        sums, both = polish.exchange_clusters(sums, both, shared, study.family, study.rng)
        weights, members = np.moveaxis(both, -1, 0)
        shared, own = silomix.coordinator.polish.draw_profiles(
            sums, shared, study.family, study.rng, drift=True
        )
        gammas = study.rng.standard_gamma(ALPHA + members)
        weights = gammas / gammas.sum(axis=-1, keepdims=True)
    ours = study.summaries(shared, own, weights, sums)
    error = np.sqrt(ours.var(axis=0) / len(ours) + uncertainty)
    z = (ours.mean(axis=0) - prior) / np.maximum(error, 1e-12)
    return float(2 * stats.norm.sf(np.abs(z)).min() * len(z))


@pytest.mark.parametrize(
    ("name", "chains", "rounds"),
    [
        ("categories", 1000, 4),
        ("mixed", 2000, 6),
        ("negative-binomial", 400, 4),
        *(pytest.param(name, 3000, 8, marks=pytest.mark.slow) for name in KINDS),
    ],
)
def test_simulating_and_drawing_in_turn_keeps_the_prior(name, chains, rounds, seed):
    assert geweke_p_value(KINDS[name], seed, chains=chains, rounds=rounds) > FALSE_ALARM


def silos_drawn_first(patch):
    """Silos' parameters around the old shared ones, though these are then drawn without them."""

    def draw(sums, shared, family, rng, *, drift):
        if not drift:
            return draw_profiles(sums, shared, family, rng, drift=False)
        own = family.draw_own(sums, shared.mean, shared.kappa, rng)
        return draw_shared(sums, shared, family, rng), own

    patch.setattr("silomix.coordinator.polish.draw_profiles", draw)


def rows_of_another_silo(patch):
    right = Product.draw_own

    def draw(family, sums, *given):
        return right(family, np.roll(sums, 1, axis=0), *given)

    patch.setattr(Product, "draw_own", draw)


def spread_of_another_cluster(patch):
    right = Gaussian.draw_own

    def draw(family, sums, parameters, *given):
        wrong = parameters.copy()
        wrong[..., 1::2] = parameters[..., ::-1, 1::2]
        return right(family, sums, wrong, *given)

    patch.setattr(Gaussian, "draw_own", draw)


def counts_for_table_counts(patch):
    """As if no rate drifted."""
    patch.setattr("silomix.families.poisson.draw_all_tables", lambda _, counts, __: counts)


def dispersion_of_each_silo(patch):
    """As if the dispersion were not shared."""
    right = NegativeBinomial.draw_own

    def draw(family, sums, parameters, kappa, rng):
        own = right(family, sums, parameters, kappa, rng)
        own[1:, ..., 1::2] = own[:1, ..., ::-1, 1::2]
        return own

    patch.setattr(NegativeBinomial, "draw_own", draw)


def dispersions_by_means_alone(patch):
    """The sums of L left out."""
    right = NegativeBinomial._sums

    def sums(family, statistics):
        n, total, rising = right(family, statistics)
        return n, total, 0 * rising

    patch.setattr(NegativeBinomial, "_sums", sums)


def tables_of_none(patch):
    """Counts in place of table counts."""
    where = "silomix.families.negative_binomial.draw_all_tables"
    patch.setattr(where, lambda _, counts, __: counts)


def means_as_if_alike(patch):
    """Silos' means not integrated out: every row counts as if it were of one silo."""
    right = Gaussian.shared_posterior

    def numbers(family, sums, parameters, kappa, rng):
        return right(family, sums, parameters, np.full_like(kappa, np.inf), rng)

    patch.setattr(Gaussian, "shared_posterior", numbers)


def kappa_never_infinite(patch):
    """Prior odds of drift left out of the draw of κ."""

    def draw(sums, shared, family, rng):
        current = np.searchsorted(GRID, shared.kappa)
        odds = np.full(len(current), 3.0)
        return GRID[family.draw_kappa(sums, shared.mean, current, odds, rng)]

    patch.setattr(polish, "draw_kappa", draw)


def exchanged_whatever_the_rows(patch):
    for family in Product, Gaussian:
        patch.setattr(family, "log_marginal", lambda own, sums, *_: known(own, sums) * 0.0)


def rows_for_weights(patch):
    """As if rows said as much of a silo's mean, whatever they weigh."""
    right = StudentT.draw_own

    def draw(family, sums, *given):
        wrong = sums.copy()
        wrong[..., 2::6] = sums[..., ::6] * 7 / 5
        return right(family, wrong, *given)

    patch.setattr(StudentT, "draw_own", draw)


LONG = {"chains": 2000, "rounds": 6}
PLANTED = [
    (rows_for_weights, "student-t", {}),
    (rows_of_another_silo, "poisson", {}),
    (spread_of_another_cluster, "gaussian", {}),
    (counts_for_table_counts, "poisson", {}),
    (means_as_if_alike, "gaussian", LONG),
    (exchanged_whatever_the_rows, "mixed", {}),
]
# of the code that all kinds share, and which test_drift.py looks at; and what takes long
SHARED = [
    (dispersion_of_each_silo, "negative-binomial"),
    (dispersions_by_means_alone, "negative-binomial"),
    (tables_of_none, "negative-binomial"),
    (silos_drawn_first, "gaussian"),
    (silos_drawn_first, "poisson"),
    (rows_of_another_silo, "gaussian"),
    (means_as_if_alike, "student-t"),
    (kappa_never_infinite, "mixed"),
]


@pytest.mark.parametrize(
    ("plant", "name", "size"),
    [*PLANTED, *(pytest.param(*one, LONG, marks=pytest.mark.slow) for one in SHARED)],
)
def test_a_planted_bug_shows_in_the_prior(plant, name, size, seed, monkeypatch):
    plant(monkeypatch)
    assert geweke_p_value(KINDS[name], seed, **size) < FALSE_ALARM
