"""One partition out of hand-made draws: known clusters, noise and label switching."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product

import kmedoids
import numpy as np
import pytest
from cases.release_cases import draws_of, shard_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.special import logsumexp
from sklearn.metrics import adjusted_rand_score, silhouette_score

from silomix.errors import MissingDependency
from silomix.families.chains import Rows
from silomix.kernels.similarity import co_clustering, sum_by_cluster
from silomix.model.draws import Schedule
from silomix.model.schema import Prior
from silomix.silo import partition as module
from silomix.silo.partition import (
    PARTITIONS,
    beats_one_cluster,
    best_cut,
    chain_agreement,
    cluster_totals,
    follow_components,
    largest_first,
    linkage_cuts,
    log_bound,
    log_posterior,
    pam_cuts,
    partition,
    place,
    silhouettes,
)
from silomix.silo.sampler import Job, sample_shard

METHODS = sorted(PARTITIONS)


def log_mass(draws, labels):
    return log_posterior(draws, Rows(draws.shard, draws.family), labels)


def bound_of(draws, labels, **settings):
    rows = Rows(draws.shard, draws.family)
    return log_bound(rows, labels, draws.components, draws.prior.alpha, **settings)


def make_draws(shard, labels, components, **changes):
    """Draws with these labels; partitions look at no other parameter."""
    weights = np.full((len(labels), components), 1 / components)
    levels = np.zeros((len(labels), components, len(shard.schema.levels)))
    return draws_of(shard, labels, weights, levels, **changes)


def switched(labels, components, rng):
    """The same partitions with the components numbered anew in each draw."""
    return np.stack([rng.permutation(components)[draw] for draw in labels])


def planted(rng, sizes=(60, 40, 25), n_draws=50, components=8, noise=0.1):
    """Rows that show their cluster in three of four variables; some stray in each draw."""
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    codes = np.column_stack([truth, truth, truth, rng.integers(0, 3, len(truth))])
    labels = np.tile(truth, (n_draws, 1))
    astray = rng.random(labels.shape) < noise
    labels[astray] = rng.integers(0, components, astray.sum())
    shard = shard_of(codes, [3] * 4)
    return make_draws(shard, switched(labels, components, rng), components), truth


def factorial(rng, variables=7, n_draws=60, components=5):
    """Every combination of levels once, and labels that know nothing of them."""
    codes = list(product([0, 1], repeat=variables))
    labels = rng.integers(0, components, (n_draws, len(codes)))
    return make_draws(shard_of(codes, [2] * variables), labels, components)


def random_distances(rng, rows, largest):
    upper = np.triu(rng.integers(0, largest, (rows, rows)), 1)
    return (upper + upper.T).astype(np.uint16)


@pytest.mark.parametrize("method", METHODS)
def test_planted_clusters_are_found_and_numbered_by_size_however_labels_switch(rng, method):
    draws, truth = planted(rng)
    again = replace(draws, labels=switched(draws.labels, 8, rng))
    assert not np.array_equal(draws.labels, again.labels)
    before, found = partition(draws, method), partition(again, method)
    assert before.silhouettes == found.silhouettes
    assert_array_equal(found.labels, truth)
    assert_array_equal(found.sizes, [60, 40, 25])
    assert found.method == method
    assert found.subsample is None
    assert max(found.silhouettes, key=found.silhouettes.get) == 3
    assert beats_one_cluster(draws, truth)
    assert not beats_one_cluster(draws, np.zeros_like(truth))


@pytest.mark.parametrize("method", METHODS)
def test_a_full_factorial_design_is_one_cluster_unless_forbidden(seed, method):
    draws = factorial(np.random.default_rng(seed))
    assert partition(draws, method).sizes.tolist() == [128]
    assert sorted(partition(draws, method).silhouettes) == [2, 3, 4, 5]
    assert partition(draws, method, one_cluster=False).clusters > 1


@pytest.mark.parametrize("one_cluster", [True, False])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("codes", "labels"),
    [
        ([[0]], [[0], [2]]),
        ([[0], [1]], [[0, 1], [1, 2]]),
        ([[1], [1], [1], [1]], [[0, 1, 2, 1], [1, 2, 0, 0]]),
        ([[0], [1], [1], [2]], [[1, 1, 1, 1], [2, 2, 2, 2]]),
    ],
    ids=["one row", "two rows", "identical rows", "one component occupied"],
)
def test_one_cluster_without_fuss(codes, labels, method, one_cluster):
    draws = make_draws(shard_of(codes, [3]), labels, 4)
    found = partition(draws, method, one_cluster=one_cluster)
    assert found.sizes.tolist() == [len(codes)]
    assert not found.labels.any()
    assert found.silhouettes == {}


def test_known_clusters_are_components_however_they_switch(seed):
    """Rows that overlap: a vote is nearer to the truth than any draw, and no cluster is a row."""
    rng = np.random.default_rng(seed)
    truth = np.repeat([0, 1, 2], [60, 40, 25])
    labels = np.where(rng.random((80, 125)) < 0.65, truth, rng.integers(0, 3, (80, 125)))
    likelihood = (labels == truth).sum(axis=1).astype(float)
    labels[5, labels[5] == 2] = 0  # the most likely, but one component is empty
    likelihood[5] = 200.0
    given = switched(labels.astype(np.uint8), 3, rng)
    found = follow_components(given, likelihood, 3)
    assert adjusted_rand_score(found, truth) > 0.97
    draws = make_draws(shard_of(np.stack([truth, truth], axis=1), [3, 3]), given, 3)
    known = partition(replace(draws, log_likelihood=likelihood), clusters=3, one_cluster=False)
    assert_array_equal(known.labels, largest_first(found)[0])
    assert (known.clusters, known.silhouettes) == (3, {})
    # a vote that would leave a cluster without rows is not held
    few = np.array([[0, 0, 1, 2], [0, 0, 1, 1], [0, 0, 1, 1]], dtype=np.uint8)
    assert_array_equal(follow_components(few, np.array([1.0, 2.0, 3.0]), 3), few[0])


def test_pam_without_its_package_names_the_extra(seed, monkeypatch):
    draws, _ = planted(np.random.default_rng(seed))
    monkeypatch.setitem(sys.modules, "kmedoids", None)
    with pytest.raises(MissingDependency, match=r"pip install 'silomix\[pam\]'"):
        partition(draws, "pam")
    assert partition(draws, "linkage").clusters == 3


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30))
def test_largest_first(labels):
    found, sizes = largest_first(labels)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert_array_equal(np.bincount(found), sizes)
    assert len(set(zip(labels, found, strict=True))) == len(set(labels)) == len(sizes)
    first = [list(found).index(k) for k in range(len(sizes))]
    assert all(
        a < b for a, b, m, n in zip(first, first[1:], sizes, sizes[1:], strict=False) if m == n
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 40), st.integers(2, 8))
def test_silhouettes_agree_with_scikit_learn(number, rows, clusters):
    rng = np.random.default_rng(number)
    apart = random_distances(rng, rows, 9)
    k = min(clusters, rows - 1)
    labels = rng.permutation(np.concatenate([np.arange(k), rng.integers(0, k, rows - k)]))
    expected = silhouette_score(apart.astype(float), labels, metric="precomputed")
    totals = sum_by_cluster(apart, labels, k)
    assert_allclose(silhouettes(totals, labels).mean(), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("method", METHODS)
def test_cluster_totals_are_those_of_each_cut_by_itself(seed, method):
    apart = random_distances(np.random.default_rng(seed), 60, 1_000)
    cuts = PARTITIONS[method](apart, 9)
    for totals, labels in zip(cluster_totals(apart, cuts), cuts[::-1], strict=True):
        assert_array_equal(totals, sum_by_cluster(apart, labels, labels.max() + 1))


def test_the_first_of_equal_silhouettes_wins_and_a_row_alone_has_none():
    """Four rows in a ring, each as often with one neighbour as with the other."""
    apart = np.array([[0, 0, 4], [0, 0, 4], [4, 4, 0]], dtype=np.uint16)
    (totals,) = cluster_totals(apart, np.array([[0, 0, 1]]))
    assert_array_equal(silhouettes(totals, np.array([0, 0, 1])), [1, 1, 0])
    assert_array_equal(silhouettes(np.zeros_like(totals), np.array([0, 0, 1])), [0, 0, 0])
    labels = np.array([[0, 0, 1, 1], [0, 1, 1, 0]], dtype=np.uint8)
    first, second = [0, 1, 1, 0], [0, 0, 1, 1]

    def cuts(apart, most):
        return np.array([first, second])

    found, widths = best_cut(labels, 4, cuts)
    assert widths[2] == widths[3] > 0
    assert_array_equal(found, first)


@pytest.mark.parametrize(("method", "last"), [("linkage", 11), ("pam", 4)])
def test_cuts_have_exactly_k_clusters_whatever_the_ties(method, last):
    """Four blocks of three rows: at no distance within, all equally far between."""
    apart = 7 * (1 - np.kron(np.eye(4), np.ones((3, 3)))).astype(np.uint16)
    candidates = PARTITIONS[method](apart, 11)
    assert len(candidates) == last - 1
    for clusters, labels in enumerate(candidates, start=2):
        assert set(labels) == set(range(clusters))


def test_linkage_is_average_linkage(seed):
    apart = random_distances(np.random.default_rng(seed), 40, 10_000)
    tree = linkage(squareform(apart).astype(float), "average")
    for clusters, labels in enumerate(linkage_cuts(apart, 9), start=2):
        assert adjusted_rand_score(labels, fcluster(tree, clusters, "maxclust")) == 1


def test_pam_starts_each_search_as_build_would(seed):
    apart = random_distances(np.random.default_rng(seed), 80, 1_000)
    for clusters, labels in enumerate(pam_cuts(apart, 9), start=2):
        alone = kmedoids.fasterpam(apart.astype(np.int32), clusters, init="build", n_cpu=1)
        assert_array_equal(labels, alone.labels)


@pytest.fixture
def compared(monkeypatch):
    """Shapes of the labels whose rows are compared pair by pair."""
    shapes = []

    def watched(labels):
        shapes.append(labels.shape)
        return co_clustering(labels)

    monkeypatch.setattr(module, "co_clustering", watched)
    return shapes


def test_a_long_table_is_cut_through_a_subsample_that_the_seed_decides(seed, compared):
    draws, _ = planted(np.random.default_rng(seed), sizes=(100, 80), noise=0.9)
    first, again = (partition(draws, threshold=50, subsample=40) for _ in range(2))
    other = partition(replace(draws, seed=draws.seed + 1), threshold=50, subsample=40)
    assert first.silhouettes == again.silhouettes != other.silhouettes
    assert set(compared) == {(50, 40)}
    assert first.subsample == 40
    assert partition(draws, threshold=10, subsample=180).subsample is None


def test_clusters_are_numbered_by_all_their_rows_not_those_of_the_subsample(seed, monkeypatch):
    draws, truth = planted(np.random.default_rng(seed), sizes=(300, 100))
    small, large = np.flatnonzero(truth == 1), np.flatnonzero(truth == 0)
    chosen = np.sort(np.concatenate([small[:30], large[:10]]))
    monkeypatch.setattr(module, "random_rows", lambda rows, size, rng: chosen)
    found = partition(draws, threshold=50, subsample=40)
    assert_array_equal(found.labels, truth)
    assert_array_equal(found.sizes, [300, 100])


def test_place_follows_its_definition(rng, tmp_path):
    labels = rng.integers(0, 6, (300, 30)).astype(np.uint8)
    labels[:, 5] = 7  # alone in its component: no chosen row ever speaks for it
    labels[:, [10, 28]] = labels[:, [9]]  # chosen row 28 sits with two of another cluster
    np.save(tmp_path / "labels.npy", labels)
    stored = np.load(tmp_path / "labels.npy", mmap_mode="r")
    chosen = np.array([1, 4, 9, 10, 17, 20, 28])
    clusters = np.array([2, 0, 1, 1, 0, 2, 2])
    expected = np.empty(30, dtype=np.int64)
    for row in range(30):
        support = np.zeros(3)
        for draw in labels:
            companions = clusters[draw[chosen] == draw[row]]
            if len(companions):
                support += np.bincount(companions, minlength=3) / len(companions)
        expected[row] = support.argmax()
    expected[chosen] = clusters
    assert expected[5] == 0
    assert_array_equal(place(stored, chosen, clusters, 8), expected)


@pytest.mark.parametrize("silos", [1, 4])
def test_posterior_of_a_partition_by_brute_force(rng, silos):
    """The model's joint, row by row, summed over the labelled allocations of each partition."""
    levels = np.array([2, 3])
    codes = rng.integers(0, levels + 1, (4, 2))
    components = 3
    draws = make_draws(shard_of(codes, levels), np.zeros((1, 4)), components, silos=silos)
    concentration = 0.5  # the pooled model's, however many silos there are
    masses = {}
    for allocation in product(range(components), repeat=4):
        mass = 1.0
        for row, component in enumerate(allocation):
            before = [i for i in range(row) if allocation[i] == component]
            mass *= (concentration + len(before)) / (components * concentration + row)
            for q, size in enumerate(levels):
                seen = [codes[i, q] for i in before if codes[i, q] < size]
                if codes[row, q] < size:
                    mass *= concentration + seen.count(codes[row, q])
                    mass /= size * concentration + len(seen)
        labels = tuple(list(dict.fromkeys(allocation)).index(c) for c in allocation)
        masses[labels] = masses.get(labels, 0) + mass
    assert len(masses) == 14  # partitions of four rows into at most three clusters
    for labels, mass in masses.items():
        assert_allclose(log_mass(draws, np.array(labels)), np.log(mass), rtol=1e-10)


def test_clusters_that_overlap_are_no_single_one(seed):
    """One partition loses to a single cluster; all that are like it together do not."""
    draws, placed = weak_pair(np.random.default_rng(seed), 0.35, 0.65, 6)
    one = log_mass(draws, np.zeros_like(placed))
    assert log_mass(draws, placed) < one
    assert bound_of(draws, placed) > one + np.log(1000)
    assert beats_one_cluster(draws, placed)


def weak_pair(rng, low, high, components):
    """Two clusters that overlap, and the rows where the true parameters put them."""
    chances = np.where(rng.integers(0, 2, 1000)[:, None], high, low)
    codes = (rng.random((1000, 10)) < chances).astype(np.uint8)
    placed = (codes.sum(axis=1) > 5).astype(np.int64)
    return make_draws(shard_of(codes, [2] * 10), placed[None], components), placed


def test_weak_clusters_that_one_step_of_the_bound_would_give_up():
    """And more steps never lower it."""
    draws, placed = weak_pair(np.random.default_rng(4), 0.4, 0.6, 15)
    least = log_mass(draws, np.zeros_like(placed)) + np.log(1000)
    bounds = [bound_of(draws, placed, steps=n) for n in (1, 2, 5, 10)]
    assert bounds == sorted(bounds)
    assert bounds[0] < least - 1
    assert bound_of(draws, placed) > least + 1
    assert beats_one_cluster(draws, placed)


def test_a_splinter_must_pay_for_the_search(rng):
    """One odd row more probable on its own, though not by a factor of the number of rows."""
    odd = np.arange(150) == rng.integers(150)
    codes = np.zeros((150, 10), dtype=np.uint8)
    codes[odd, :2] = 1
    draws = make_draws(shard_of(codes, [2] * 10), np.zeros((1, 150)), 15)
    gain = log_mass(draws, odd.astype(np.int64)) - log_mass(draws, np.zeros(150, int))
    assert 0 < gain < np.log(150)
    assert not beats_one_cluster(draws, odd.astype(np.int64))
    codes[odd] = 1
    assert beats_one_cluster(draws, odd.astype(np.int64))


def test_silos_without_clusters_are_hardly_ever_cut(rng, seed):
    """One in eighty is cut, so four of eight in a run of 600,000; without a price, two in three."""
    cut, sizes = 0, [2] * 4 + [3] * 6
    for number in range(8):
        shares = [rng.dirichlet(np.ones(size)) for size in sizes]
        codes = [rng.choice(len(share), 150, p=share) for share in shares]
        shard = shard_of(np.column_stack(codes), sizes)
        job = Job(15, Prior(), Schedule(iterations=1000, burn_in=500), 4, number, seed)
        cut += partition(sample_shard(shard, job)).clusters > 1
    assert cut < 4


def test_the_bound_is_below_the_sum_over_all_labellings(rng):
    """Five rows, some cells missing: every labelling of the components is enumerated."""
    shard = shard_of([[0, 2], [0, 1], [1, 0], [1, 3], [2, 1]], [2, 3])
    draws = make_draws(shard, rng.integers(0, 3, (1, 5)), 3)
    parts = {tuple(labels) for labels in product(range(3), repeat=5)}
    parts = {tuple(list(dict.fromkeys(p)).index(c) for c in p) for p in parts}
    total = logsumexp([log_mass(draws, np.array(part)) for part in parts])
    bounds = [bound_of(draws, np.array(part)) for part in parts]
    assert np.isfinite(max(bounds)) and max(bounds) <= total


def by_chain(shard, *chains, components=8):
    """Draws of several chains, each with its own labels: (draw, row)."""
    draws = make_draws(shard, np.concatenate(chains), components)
    return replace(draws, chain=np.repeat(np.arange(len(chains)), [len(c) for c in chains]))


def test_chains_that_agree_and_chains_that_do_not(rng):
    draws, truth = planted(rng)
    other = rng.permutation(truth)
    same = by_chain(draws.shard, draws.labels[:25], draws.labels[25:])
    assert chain_agreement(same, 3) == 1.0
    apart = by_chain(draws.shard, np.tile(truth, (9, 1)), np.tile(other, (9, 1)))
    # the best of a few cuts, so never less than that of the first
    least = adjusted_rand_score(truth, other)
    assert least <= chain_agreement(apart, 3) < least + 0.05
    three = by_chain(draws.shard, *(np.tile(part, (9, 1)) for part in (truth, other, truth)))
    assert_allclose(chain_agreement(three, 3), (1 + 2 * chain_agreement(apart, 3)) / 3)
    # one chain, or one cluster, agrees with itself
    assert chain_agreement(draws, 3) == chain_agreement(apart, 1) == 1.0
    # one chain that keeps a row apart can still show the clusters that the other finds
    stray = truth.copy()
    stray[rng.integers(len(truth))] = 3
    kept_apart = by_chain(draws.shard, np.tile(truth, (9, 1)), np.tile(stray, (9, 1)))
    assert chain_agreement(kept_apart, 3) > 0.95


def test_chains_are_compared_on_a_subsample_that_the_seed_decides(rng, compared):
    shard = planted(rng)[0].shard
    draws = by_chain(shard, *rng.integers(0, 8, (2, 20, shard.rows)))
    first, again = (chain_agreement(draws, 4, rows=50) for _ in range(2))
    assert first == again != chain_agreement(replace(draws, seed=draws.seed + 1), 4, rows=50)
    assert set(compared) == {(20, 50)}
