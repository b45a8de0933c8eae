"""Every family under every kind of chain does what the sampler relies on."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cases import feature_twins as twins
from cases.families import Asked
from cases.pages import blocks
from cases.sampler_cases import mixed_shard, random_shard
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp

import silomix
from silomix.errors import PolicyRefusal, SettingsError
from silomix.families import KINDS, derived, make_family
from silomix.families.chains import CategoryChain, FeatureChain, Rows, prepare
from silomix.families.family import Family
from silomix.kernels import feature_rows
from silomix.kernels.layout import KeptDraws
from silomix.messages.folder import read_release, write_release
from silomix.model.draws import Schedule
from silomix.model.schema import Prior, Schema, Shard, Variable
from silomix.silo.release import make_release

# levels of the variables; twenty are more than the kernels count byte by byte
SIZES = (2, 3, 20, 1, 4)
COMPONENTS = 7
ALPHA, BETA = 0.75, 0.5
KEY = 2**63 + 12345
# what a family of one positive parameter has to write
WRITTEN = ("natural", "prior", "log_normaliser", "draw", "fit")
NORMAL, JOINT, COUNTS = ("gaussian",) * 3, ("gaussian-full",) * 3, ("poisson",) * 2
SPREAD, TAILED = ("negative-binomial",) * 2, ("student-t",) * 3
# the chains, levels of the categories, and kinds of the numbers
MODELS = {
    "categories": (CategoryChain, SIZES, ()),
    "categories by features": (FeatureChain, SIZES, ()),
    "gaussian": (FeatureChain, (), NORMAL),
    "gaussian-full": (FeatureChain, (), JOINT),
    "student-t": (FeatureChain, (), TAILED),
    "poisson": (FeatureChain, (), COUNTS),
    "negative-binomial": (FeatureChain, (), SPREAD),
    "the family of the docs": (FeatureChain, (), ("exponential",) * 2),
    "the ordered levels of the docs": (FeatureChain, SIZES, ("ordered",)),
    "all together": (FeatureChain, SIZES, NORMAL + JOINT + TAILED + COUNTS + SPREAD),
}


@dataclass(frozen=True)
class Model:
    chain: Any
    shard: Any
    family: Any

    def begin(self, key=KEY, alpha=ALPHA, threads=1):
        plan = prepare(self.shard, COMPONENTS, alpha, self.family)
        return self.chain(plan, key, self.chain.start(plan, key), threads)

    @property
    def rows(self):
        return Rows(self.shard, self.family)

    def parameters(self, seed, draws=4):
        """Weights and parameters from the prior: (draw, cluster) and (draw, cluster, parameter)."""
        rng = np.random.default_rng(seed)
        prior = np.tile(self.family.prior(), (COMPONENTS, 1))
        return rng.dirichlet(np.ones(COMPONENTS), draws), self.family.draw(prior, rng, draws)


@pytest.fixture
def page(monkeypatch):
    """The families that the documentation writes, registered for one test."""
    path, classes = Path(__file__).parents[2] / "docs" / "explanation" / "families.md", {}
    for code, _ in blocks(path.read_text(encoding="utf-8"), "python"):
        kept = (ast.Import, ast.ImportFrom, ast.ClassDef)
        body = [node for node in ast.parse(code).body if isinstance(node, kept)]
        exec(compile(ast.Module(body, []), str(path), "exec"), classes)
    monkeypatch.setitem(KINDS, "exponential", classes["Drifting"])
    monkeypatch.setitem(KINDS, "ordered", classes["Ordered"])
    return classes


@pytest.fixture
def page_family(page):
    """Its waiting times, with drift and rules."""
    return page["Drifting"]


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model(request, seed, page):
    """More than a few blocks of rows, a tenth of the cells missing."""
    chain, sizes, numbers = request.param
    known = (seed, 330, sizes)
    if numbers in {(), ("ordered",)}:
        shard = random_shard(*known, 0.1)
        variables = [replace(v, kind=numbers[0]) if numbers else v for v in shard.schema.variables]
        shard = Shard(Schema(tuple(variables)), shard.codes)
    else:
        shard = mixed_shard(*known, numbers, 0.1)
    return Model(chain, shard, make_family(shard.schema, Prior(beta=BETA)))


def unwritten(model, draws):
    """Room for `draws` draws, filled with what no draw can hold."""
    columns = model.family.parameters.sum()
    return KeptDraws(
        labels=np.full((draws, model.shard.rows), 255, np.uint8),
        weights=np.full((draws, COMPONENTS), np.nan, np.float32),
        probabilities=np.full((draws, COMPONENTS, columns), np.nan, np.float32),
        log_likelihood=np.full(draws, np.nan),
        members=np.full((draws, COMPONENTS), -1),
    )


def assert_same(one, other):
    for name, array in one._asdict().items():
        assert_array_equal(array, getattr(other, name), err_msg=name)


def run(model, *, sweeps=12, threads=1, **changes):
    """Keep every sweep of a chain, its rows shared among threads where there are more."""
    chain, kept = model.begin(threads=threads, **changes), unwritten(model, sweeps)
    everything = range(1, sweeps + 1), Schedule(burn_in=0, thin=1)
    if threads == 1:
        chain.advance(*everything, kept, None)
    else:
        with ThreadPoolExecutor(threads) as pool:
            chain.advance(*everything, kept, pool)
    assert_array_equal(chain.labels, kept.labels[-1])
    return kept


def test_a_kept_draw_is_whole_and_hangs_together(model):
    kept = run(model)
    assert kept.probabilities.shape[2] == len(model.family.names()) > 0
    assert kept.labels.max() < COMPONENTS
    assert all(np.isfinite(array).all() for array in kept)
    assert_array_equal(
        kept.members, [np.bincount(labels, minlength=COMPONENTS) for labels in kept.labels]
    )
    # a sum of seven rounded numbers that add up to one
    assert_allclose(kept.weights.sum(axis=1, dtype=np.float64), 1, rtol=COMPONENTS * 2**-24)
    assert (kept.weights > 0).all()
    assert model.family.problems(kept.probabilities) == ""


def test_people_are_told_of_every_variable_and_of_no_mirror(model):
    family = model.family
    columns = zip(family.names(), family.tells(), family.shares(), strict=True)
    told = [(name, word, share) for (name, word), tells, share in columns if tells]
    expected = []
    for variable in family.variables:
        words = variable.levels[len(variable.levels) == 2 :]
        own = [word for name, word in family.names() if name == variable.name]
        expected += [(variable.name, word, bool(words)) for word in words or own[:1]]
    assert told == expected


def test_the_key_and_the_prior_decide_the_draws(model):
    """The start depends on the key alone."""
    labels, kept = model.begin().labels, run(model)
    assert (labels.dtype, labels.shape, labels.max() < COMPONENTS) == (np.uint8, (330,), True)
    assert_array_equal(labels, model.begin(alpha=2).labels)
    assert (labels != model.begin(key=KEY + 1).labels).any()
    assert_same(kept, run(model))
    for change in ({"key": KEY + 1}, {"alpha": 2 * ALPHA}):
        assert (run(model, **change).labels != kept.labels).any()
    other = replace(model, family=make_family(model.shard.schema, Prior(beta=2 * BETA)))
    assert (run(other).labels != kept.labels).any() == bool(model.shard.schema.categories)


@pytest.mark.parametrize("threads", [3, 8], ids="{} threads".format)
def test_threads_that_share_the_rows_give_the_same_draws(model, threads):
    """With eight, some have no rows."""
    assert_same(run(model), run(model, threads=threads))


def test_pieces_make_the_whole(model):
    """Of one chain, or of chains rebuilt from the state of the last."""
    whole = run(model)
    for piece, rebuild in product([1, 5], [False, True]):
        chain, kept = model.begin(), unwritten(model, 12)
        for first in range(1, 13, piece):
            some = range(first, min(first + piece, 13))
            chain.advance(some, Schedule(burn_in=0, thin=1), kept, None)
            if rebuild:
                state = chain.state.copy()
                chain = model.chain(chain.plan, KEY, state, 1)
                # which the next chain may start from as well
                assert not np.shares_memory(chain.labels, state)
        assert_same(whole, kept)


@pytest.mark.parametrize("threads", [1, 2])
def test_only_sweeps_that_are_due_are_kept(model, threads):
    every = run(model)
    for burn_in, thin, sweeps in ((4, 3, [7, 10]), (0, 5, [5, 10]), (11, 1, [12]), (5, 8, [])):
        chain, kept = model.begin(threads=threads), unwritten(model, len(sweeps) + 1)
        with ThreadPoolExecutor(threads) as pool:
            shared = pool if threads > 1 else None
            when = Schedule(burn_in=burn_in, thin=thin)
            chain.advance(range(1, 13), when, kept, shared)
        due = np.array(sweeps, dtype=int) - 1
        assert_same(
            KeptDraws(*(array[:-1] for array in kept)), KeptDraws(*(array[due] for array in every))
        )
        after = KeptDraws(*(array[-1:] for array in kept))
        assert_same(after, unwritten(model, 1))


def log_likelihoods(model, weights, parameters):
    """Of the rows, draw by draw, by SciPy's densities: (draw,)."""
    pairs = zip(weights.astype(float), parameters.astype(float), strict=True)
    logs = [np.log(w) + twins.log_density(model.shard, p) for w, p in pairs]
    return logsumexp(logs, axis=2).sum(axis=1)


def test_the_log_likelihood_is_that_of_the_densities(model, seed):
    kept = run(model)
    # parameters are kept in single precision
    known = log_likelihoods(model, kept.weights, kept.probabilities)
    assert_allclose(kept.log_likelihood, known, rtol=1e-5)
    given = model.parameters(seed)
    assert_allclose(model.rows.expected(*given)[0], log_likelihoods(model, *given), rtol=1e-10)
    drawn = model.rows.draw_labels(KEY, given, ALPHA, 1, 1)
    assert_allclose(drawn[3], log_likelihoods(model, *given), rtol=1e-6)


def test_what_rows_are_asked_is_the_same_on_any_number_of_threads(model, seed):
    given = model.parameters(seed)
    for ask in (
        lambda threads: model.rows.draw_labels(KEY, given, ALPHA, 2, threads),
        lambda threads: model.rows.expected(*given, threads),
        lambda threads: model.rows.membership(*given, threads),
    ):
        for one, other in zip(ask(1), ask(3), strict=True):
            assert_array_equal(one, other)


def test_the_feature_kernels_follow_their_definitions(model, seed):
    weights, parameters = model.parameters(seed)
    features, natural = model.rows.features, model.family.columns(parameters)
    logs = np.log(weights)
    labels, sums = np.zeros(330, np.uint8), (np.zeros(COMPONENTS), np.zeros(natural.shape[:0:-1]))
    wide = feature_rows.in_vectors(natural[0], logs[0])
    value = feature_rows.draw_labels(np.uint64(KEY), features, *wide, (labels, *sums))
    assert_array_equal(labels, twins.draw_labels(KEY, features, natural[0], logs[0]))
    shares, masses = twins.responsibilities(features, natural, logs)
    assert_allclose(value, masses[0].sum(), rtol=1e-12)
    again = [np.zeros_like(part) for part in sums]
    feature_rows.add_by_label(features, labels, *again)
    for found, told, known in zip(
        sums, again, twins.sum_by_label(features, labels, COMPONENTS), strict=True
    ):
        assert_array_equal(found, told)
        assert_allclose(found, known, rtol=1e-12, atol=1e-10)
    known = masses.sum(axis=1), shares.sum(axis=1), np.swapaxes(shares, 1, 2) @ features
    for found, due in zip(feature_rows.expected_sums(features, natural, logs), known, strict=True):
        assert_allclose(found, due, rtol=1e-9, atol=1e-9)
    found = feature_rows.share_features(features, natural, logs)
    assert_allclose(found[0], shares.mean(axis=0), rtol=1e-9, atol=1e-12)
    assert_allclose(found[1], logsumexp(masses, axis=0) - np.log(len(masses)), atol=1e-12)


def test_the_slope_of_the_evidence_is_the_expected_natural_parameter(model, seed):
    """By differences, in every statistic of every block."""
    labels = np.random.default_rng(seed).integers(0, 3, 330)
    sums, first = np.float64(model.rows.sum_statistics(labels, 3)), 0
    for block in model.family.blocks:
        own = sums[:, first : (first := first + block.statistics.sum())]
        by_differences = derived.slopes_of_evidence(block, own)
        assert_allclose(derived.expected_natural(block, own), by_differences, rtol=1e-5, atol=1e-6)


def test_only_means_that_rows_can_have_are_let_in(model, seed):
    family, (_, draws) = model.family, model.parameters(seed, 50)
    mean, _ = family.means(family.valid(family.fit(draws)))
    assert family.mean_problems(mean) == ""
    for wrong in (2 * mean, -mean):
        assert family.mean_problems(wrong)
    block = family.blocks[0]
    if getattr(block, "support", "all") != "all":  # however little the sum is below zero
        wrong = mean.copy()
        wrong[0, 1] = -1e-12
        assert family.mean_problems(wrong)


def test_the_family_of_the_docs_drifts_as_it_says(page_family):
    """A silo's rate is w/μ with w ~ Gamma(κ + 1, κ + 1): integrated out by quadrature."""
    family, kappa = page_family((Variable("wait", (), "exponential", 3.0),)), np.array([6.0])
    n, total, mean = 4.0, 17.0, 2.5

    def joint(w):
        return stats.gamma.pdf(w, 7.0, scale=1 / 7.0) * (w / mean) ** n * np.exp(-w * total / mean)

    found = family.log_marginal(np.array([n, total]), np.array([mean]), kappa)
    assert_allclose(found, np.log(quad(joint, 0, 40)[0]), rtol=1e-7)
    far = family.log_marginal(np.array([n, total]), np.array([mean]), np.array([1e9]))
    same = family.log_marginal(np.array([n, total]), np.array([mean]), np.array([np.inf]))
    assert_allclose(far, same, rtol=1e-6)
    rng = np.random.default_rng(1)
    sums, shared = np.broadcast_to([n, total], (1, 20_000, 1, 2)), np.full((20_000, 1, 1), mean)
    own = family.draw_own(sums, shared, np.full((20_000, 1), 6.0), rng)
    due = stats.gamma(7.0 + n, scale=1 / (7.0 * mean + total))
    assert stats.kstest(1 / own.ravel(), due.cdf).pvalue > 1e-6


def test_a_stranger_meets_twenty_methods():
    """And must write five of them, or six of a kind of level."""
    public = [name for name in dir(Family) if not name.startswith("_")]
    methods = [name for name in public if callable(getattr(Family, name))]
    properties = [name for name in public if isinstance(vars(Family)[name], property)]
    assert len(methods) + len(properties) <= 20
    assert Family.__abstractmethods__ == frozenset(WRITTEN)


def test_a_family_without_a_method_is_refused_before_any_study_has_it():
    with pytest.raises(TypeError, match=r"abstract methods '?draw'?, '?fit'?, .*'?prior"):
        type("Half", (Family,), {})(())


def test_drift_and_rounding_are_refused_by_name_until_they_are_written(monkeypatch, page_family):
    bare = type("Bare", (Family,), {"word": "waits", **dict.fromkeys(WRITTEN)})
    for name in WRITTEN:
        setattr(bare, name, getattr(page_family, name))
    monkeypatch.setitem(KINDS, "bare", bare)
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"wait": rng.exponential(3.0, 200), "silo": np.repeat(["a", "b"], 100)})
    study = {"silo": "silo", "kinds": {"wait": "bare"}, "seed": 1, "progress": False}
    with pytest.raises(SettingsError, match=r"drift is 'learn', but the kind of wait has no drift"):
        silomix.fit(table, **study)
    with pytest.raises(NotImplementedError, match="Bare, of wait, has no log_marginal"):
        bare((Variable("wait"),)).log_marginal(np.ones(2), np.ones(1), np.ones(1))
    short = {"iterations": 200, "components": 3, "drift": "none"}
    with pytest.raises(PolicyRefusal, match="wait can only leave as exact sums"):
        silomix.fit(table, **study, **short, preset="files", policy="default")
    assert silomix.fit(table, **study, **short).n_clusters >= 1


def test_what_a_family_need_not_write_is_what_it_would_write(page_family):
    """Of waiting times: the density of the prior, the spread, the affinity, near enough."""
    family = Asked(page_family((Variable("wait", (), "exponential", 3.0),)))
    assert_allclose(quad(lambda m: np.exp(family.log_prior(np.array([m]))[1])[0], 0, np.inf)[0], 1)
    at, step = np.array([2.5]), 1e-5
    rise = family.log_prior(at + step)[1] - family.log_prior(at - step)[1]
    assert_allclose(family.log_prior(at)[2], rise / (2 * step), rtol=1e-6)
    assert_allclose(family.spread(at), at, rtol=1e-6)
    assert_allclose(family.back(family.coordinates(at)), at)
    near = np.array([3.0])
    assert_allclose(
        family.log_affinity(at, near), np.log(2 * np.sqrt(at * near) / (at + near)), rtol=0.02
    )
    chi = np.tile([30.0, 75.0], (2, 1))
    assert_allclose(family.medians(chi), 75 / stats.gamma(30).median(), rtol=0.02)


def test_the_family_of_the_docs_draws_what_silos_share(page_family):
    """A draw given silos' rows leaves the prior as it is; false alarms are one in a million."""
    family, chains = page_family((Variable("wait", (), "exponential", 3.0),)), 20_000
    rng = np.random.default_rng(2)
    mean = 3.0 / rng.standard_gamma(1.0, (chains, 1, 1))
    rates = rng.standard_gamma(7.0, (4, chains, 1, 1)) / 7.0 / mean
    total = rng.standard_gamma(5.0, rates.shape) / rates
    sums = np.concatenate([np.full(total.shape, 5.0), total], axis=-1)
    p_values = []
    for kappa in (6.0, np.inf):
        kappas = np.full((chains, 1), kappa)
        drawn = family.draw(family.shared_posterior(sums, mean, kappas, rng), rng)
        p_values.append(stats.kstest(3.0 / drawn.ravel(), stats.expon.cdf).pvalue)
    # a draw that ignores drift is too close to its own rows
    assert p_values[0] > 1e-6 > p_values[1]


def test_ordered_levels_of_the_docs_go_all_the_way(page, tmp_path, seed):
    """Beside numbers and other levels: a fit whose silos differ, a file, a release as tables."""
    rng, levels = np.random.default_rng(seed), ["none", "mild", "severe"]
    group = rng.integers(0, 2, 300)
    shares = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])[group]

    def symptom():
        codes = (rng.random((300, 1)) > np.cumsum(shares, axis=1)[:, :-1]).sum(axis=1)
        return pd.Categorical.from_codes(codes, levels, ordered=True)

    columns = {name: symptom() for name in ("pain", "fever", "fatigue")}
    table = pd.DataFrame({**columns, "age": rng.normal(group * 4, 1), "sex": list("mf") * 150})
    table.loc[rng.random(300) < 0.1, "pain"] = None
    kinds, short = dict.fromkeys(columns, "ordered"), {"components": 4, "seed": 1}
    short |= {"iterations": 400, "progress": False}
    parts = table.assign(silo=np.repeat(["a", "b"], 150))
    with pytest.raises(PolicyRefusal, match="pain, fever, fatigue can only leave as exact sums"):
        silomix.fit(parts, silo="silo", kinds=kinds, preset="files", policy="default", **short)
    posterior = silomix.fit(parts, silo="silo", kinds=kinds, **short)
    assert posterior.n_clusters == 2
    posterior.save(tmp_path / "ordered.silomix")
    again = silomix.load(tmp_path / "ordered.silomix")
    assert_array_equal(again.parameters, posterior.parameters)
    schema = posterior.study.table_schema
    assert [v.kind for v in schema.variables] == ["categorical", "gaussian"] + ["ordered"] * 3
    assert again.study.table_schema == schema
    draws = silomix.sample(table, kinds=kinds, **short)
    of_study = {"silo": "a", "tier": "summary", "place": 0, "study": ""}
    release = make_release(silomix.local_posterior(draws), **of_study)
    write_release(release, tmp_path / "release", draws.shard.schema)
    again, read = read_release(tmp_path / "release")
    told = [(v.kind, v.levels) for v in read.variables]
    assert told == [(v.kind, v.levels) for v in schema.variables]
    assert_allclose(again.mean, release.mean)
