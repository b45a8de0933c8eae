"""The whole method in one process: what it finds, and what it says in awkward cases."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from cases.aggregation_cases import counts_of, make_case
from cases.families import categories
from cases.release_cases import clustered
from numpy.testing import assert_allclose, assert_array_equal

import silomix
from silomix.api import fit, gather_assignment
from silomix.coordinator.pipeline import consensus_notes, influence_notes, policy_notes, reweigh
from silomix.coordinator.polish import starting_point
from silomix.errors import DataError, DataWarning, MissingDependency, SettingsError
from silomix.messages import SampleLocally
from silomix.messages.progress import Progress
from silomix.model.draws import MatchedDraws, SiloWeights
from silomix.model.metrics import adjusted_rand_index
from silomix.model.schema import MISSING_LEVEL, Schema, Variable
from silomix.rivals.federation import open_silos
from silomix.silo.release import make_release
from silomix.study import make_study
from silomix.study.policy import find_policy

QUICK = {"iterations": 600, "progress": False}

pytestmark = pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")


def simulated(design="non-nested", rows=800, **options):
    return silomix.simulate(design, rows=rows, **{"separability": "easy", "seed": 3, **options})


def test_finds_the_planted_clusters_and_keeps_the_tables_order(seed):
    table, truth = simulated(rows=1600)
    shuffled = table.sample(frac=1.0, random_state=seed)
    found = fit(shuffled, silo="silo", seed=seed, **QUICK)
    assert found.n_clusters == 6
    labels = truth.labels[shuffled.index.to_numpy()]
    assert adjusted_rand_index(labels, found.labels) > 0.9
    assert found.weights.shape == (found.n_draws, 6)
    assert found.n_draws >= 1000
    assert found.probabilities.shape == (found.n_draws, 6, 26)
    assert found.weights_by_silo.shape == (found.n_draws, 4, 6)
    np.testing.assert_allclose(found.weights.sum(axis=1), 1.0, rtol=1e-6)
    assert found.assignment.membership.shape == (1600, 6)
    # the sixth cluster is one silo's alone
    sixth = np.bincount(found.labels[labels == 5]).argmax()
    np.testing.assert_array_equal(found.correspondence.held[:, sixth], [False, True, False, False])
    assert found.silo_weights.profiles[1, sixth] == 1.0
    np.testing.assert_array_equal(
        found.membership(shuffled, silo="silo").argmax(axis=1), found.labels
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"matching": "hungarian", "aggregation": "cmc"},
        {"matching": "divergence", "solver": silomix.FewRounds(rounds=3, starts=20), "polish": 1},
        {"drift": "none", "aggregation": "uniform", "assign": "matching"},
        {"aggregation": "product", "tier": "summary", "relabel": "average"},
        {"preset": "paper", "iterations": 600},  # ball, psgd, pam, average
    ],
    ids=str,
)
def test_every_choice_runs_and_clusters_easy_data(settings, seed):
    table, truth = simulated(design="nested", rows=480)
    found = fit(table, silo="silo", seed=seed, **{**QUICK, **settings})
    assert adjusted_rand_index(truth.labels, found.labels) > 0.75
    assert found.n_draws >= 1000
    assert (found.silo_profiles is None) == (found.study.model.drift == "none")


FILES = {"preset": "files", "policy": "default"}


@pytest.mark.parametrize(
    ("variables", "settings"),
    [
        *product(("categorical", "gaussian"), [{"strategy": "exact", "iterations": 200}]),
        *product(["categorical"], ({}, FILES)),
        *(pytest.param("gaussian", settings, marks=pytest.mark.slow) for settings in ({}, FILES)),
    ],
    ids=str,
)
def test_a_known_number_of_clusters_is_found(variables, settings, seed):
    table, truth = simulated(design="homogeneous", rows=800, variables=variables)
    chosen = {**QUICK, "kinds": truth.kinds, **settings}
    found = fit(table, silo="silo", clusters=5, seed=seed, **chosen)
    assert found.n_clusters == found.weights.shape[1] == 5
    assert adjusted_rand_index(truth.labels, found.labels) > 0.85
    # that all components hold rows is as it should be
    assert all(run.full == 0 for run in found.diagnostics.silos.values())
    assert "Hungarian" not in found.diagnostics.verdict
    if found.correspondence:
        assert all(sorted(groups) == list(range(5)) for groups in found.correspondence.groups)


@pytest.mark.parametrize("clusters", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_known_number_is_kept_where_silos_have_more_or_fewer(clusters, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {"x": rng.normal(np.repeat([0.0, 9.0, 18.0], 80)), "y": rng.normal(size=240)}
    )
    table["silo"] = rng.choice(["a", "b"], 240)
    found = fit(table, silo="silo", clusters=clusters, seed=seed, **QUICK)
    assert found.n_clusters == clusters


@pytest.mark.parametrize("shards", [1, 3])
def test_a_table_without_silos_is_one_or_is_split_at_random(shards, seed):
    table, truth = simulated(design="homogeneous", rows=600)
    some = {} if shards == 1 else {"shards": shards}
    found = fit(table.drop(columns="silo"), seed=seed, **some, **QUICK)
    names = [f"shard {n + 1}" for n in range(shards)] if some else ["all"]
    assert found.silos == tuple(names)
    assert adjusted_rand_index(truth.labels, found.labels) > 0.85
    # a single silo has nothing to differ from, and parts made at random do not
    assert found.silo_profiles is None


def test_a_silo_with_one_row_and_clusters_that_one_silo_holds_alone(rng, seed):
    blocks = []
    for silo, centre, rows in (("a", 0.05, 300), ("b", 0.95, 300), ("lonely", 0.95, 1)):
        codes = (rng.random((rows, 8)) < centre).astype(int)
        blocks.append(pd.DataFrame(codes).add_prefix("x").assign(silo=silo))
    table = pd.concat(blocks, ignore_index=True)
    found = fit(table, silo="silo", seed=seed, **QUICK)
    assert found.n_clusters == 2
    assert adjusted_rand_index(table["silo"][:600], found.labels[:600]) > 0.99
    assert "lonely" in found.silos


@pytest.mark.slow
def test_a_hundred_silos(seed):
    table, truth = silomix.simulate("homogeneous", rows=6000, silos=100, seed=seed)
    found = fit(table, silo="silo", seed=seed, **QUICK)
    assert len(found.silos) == 100
    assert adjusted_rand_index(truth.labels, found.labels) > 0.8


def test_what_left_each_silo_is_counted_and_every_stage_is_named(seed):
    table, _ = simulated(rows=400)
    seen = []
    found = fit(table, silo="silo", seed=seed, polish=1, iterations=600, progress=seen.append)
    sent = found.provenance.sent["silo 1"]
    assert {"Release", "DistinctRows", "PolishReply", "Received"} <= set(sent)
    assert {kind for kind, count in sent.items() if count == 0} == {"Received"}
    stages = list(dict.fromkeys(at.stage for at in seen))
    assert [stage for stage in stages if stage != "compiling"] == [
        "sampling", "matching", "aggregating", "polishing", "assigning",
    ]  # fmt: skip


def test_an_interrupted_fit_goes_on_from_its_checkpoints(tmp_path, seed):
    table, _ = simulated(rows=400)
    settings = {"silo": "silo", "seed": seed, "iterations": 600, "threads": 2, "polish": 0}

    def stop(at):
        if at.stage == "sampling" and at.done > 900:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(table, checkpoint=tmp_path, progress=stop, **settings)
    resumed = fit(table, checkpoint=tmp_path, progress=False, **settings)
    whole = fit(table, progress=False, **settings)
    np.testing.assert_array_equal(resumed.weights, whole.weights)
    assert {path.name for path in tmp_path.iterdir()} == set(whole.silos)


def test_bad_settings_are_named(monkeypatch):
    table, _ = simulated(rows=200)
    holes = table.assign(silo=table["silo"].mask(table.index == 3))
    for data, settings, error, words in (
        (table, {"silo": "hospital"}, DataError, "no column 'hospital'"),
        (table, {"silo": "silo", "shards": 2}, SettingsError, "give one of them"),
        (table, {"shards": 10_000}, SettingsError, "more than the"),
        (holes, {"silo": "silo"}, DataError, "data row 4"),
    ):
        with pytest.raises(error, match=words):
            fit(data, **settings, **QUICK)
    monkeypatch.setattr("silomix.silo.partition.find_spec", lambda _: None)
    with pytest.raises(MissingDependency, match=r"silomix\[pam\]"):
        fit(table, silo="silo", preset="paper")
    with pytest.warns(DataWarning, match="give silo='silo'"):
        fit(table, iterations=100, progress=False)
    # unless it is left out
    fit(table, variables=["x1", "x2"], iterations=100, progress=False)


def test_what_policies_changed_is_said(seed):
    local = clustered(np.random.default_rng(seed), [200, 60, 15], (2, 3))
    policy = find_policy("default")
    release = make_release(local, silo="north", place=0, study="", tier="summary", policy=policy)
    changed, replaced = policy_notes([release])
    assert changed.startswith("The policies of 'north'")
    assert re.search(r"a flatter one is used: [1-6] of 6 profiles in 'north'", replaced)


def test_refining_counts_a_cluster_less_where_its_silo_weighs_less(seed):
    case = make_case(seed, rows=(60, 40), clusters=2, sizes=(2, 3))
    profiles = np.array([[0.2, 0.9], [0.8, 0.1]])
    rows = np.array([release.sizes for release in case.releases])
    factor = np.minimum(1, profiles / (rows / rows.sum(axis=0)))
    assert factor.min() < 1 == factor.max()
    weighed = SiloWeights(case.correspondence.silos, np.full(2, 0.5), profiles)
    counts = counts_of(case.releases, case.model(seed))
    found = reweigh(counts, case.correspondence, weighed)
    for old, new, less in zip(counts, found, factor, strict=True):
        np.testing.assert_allclose(new, old * less[:, None])


def test_refining_matches_and_aggregates_again(seed):
    table, _ = simulated(rows=240)
    solver = silomix.FewRounds(rounds=2, starts=3)
    common = {"silo": "silo", "seed": seed, "polish": 0, "solver": solver, **QUICK}
    asked = [fit(table, refine=times, **common).provenance.answered for times in (0, 2)]
    assert [answers["silo 1"]["DistinctRows"] for answers in asked] == [1, 3]


def test_missing_cells_may_be_a_level_that_one_silo_never_has(seed):
    table, _ = simulated(rows=240)
    holes = (np.random.default_rng(seed).random(240) < 0.2) & (table["silo"] != "silo 2")
    table["x1"] = table["x1"].astype(object).mask(holes)
    found = fit(table, silo="silo", seed=seed, missing="level", polish=1, **QUICK)
    assert ("x1", MISSING_LEVEL) in found.levels
    assert ("x2", MISSING_LEVEL) not in found.levels
    np.testing.assert_array_equal(found.membership(table, "silo").argmax(axis=1), found.labels)


def test_a_cluster_without_rows_is_named(monkeypatch, seed):
    def without_the_last(silos, places):
        found = gather_assignment(silos, places)
        return replace(found, labels=found.labels % (found.membership.shape[1] - 1))

    monkeypatch.setattr("silomix.api.gather_assignment", without_the_last)
    table, _ = simulated(rows=400)
    found = fit(table, silo="silo", seed=seed, polish=1, **QUICK)
    told = f"Cluster {found.n_clusters - 1} is not the most probable cluster of any row."
    assert [note for note in found.diagnostics.notes if "most probable" in note] == [told]


def test_polish_begins_above_zero_and_under_drift_at_each_silo_s_own_profiles():
    """Where a variable drifts, and the silo holds the cluster."""
    lacks = MatchedDraws(
        np.array([[[0.6, 0.4, 0.0]]]), np.zeros((1, 1, 3, 1)), np.array([[True, True, False]])
    )
    begun = starting_point(lacks, np.ones((1, 3, 1)), np.array([9]), categories((1,)))
    np.testing.assert_allclose(begun.weights, [[np.array([0.6, 0.4, 0.1]) / 1.1]])
    held = np.array([[True, False], [True, True]])
    even, own = np.full((1, 2, 4), 0.5), np.full((2, 1, 2, 4), 0.25)
    draws = MatchedDraws(np.full((2, 1, 2), 0.5), own, held)
    rows, family = np.array([9, 9]), categories((2, 2))
    begun = starting_point(draws, even, rows, family, np.array([20.0, np.inf]))
    unheld, mixed = [0.5] * 4, [0.25, 0.25, 0.5, 0.5]
    np.testing.assert_array_equal(begun.own[:, 0], [[mixed, unheld], [mixed, mixed]])
    np.testing.assert_array_equal(begun.parameters, even)
    assert starting_point(draws, even, rows, family).own is None


def test_a_silo_that_fails_stops_the_others(seed, monkeypatch):
    begun, ended = threading.Event(), []

    def answer(_, silo):
        if silo.name == "silo 1":
            begun.wait(10)
            raise ZeroDivisionError
        begun.set()
        try:
            while True:
                silo.progress(Progress("sampling", 0, 1))
        except InterruptedError:
            ended.append(silo.name)
            raise

    monkeypatch.setattr("silomix.transports.in_process.answer", answer)
    silos = open_silos(simulated(rows=80)[0], "silo", seed=seed, threads=2).silos
    with pytest.raises(ZeroDivisionError):
        silos.ask(SampleLocally())
    assert "silo 2" in ended


def two_silos(**options):
    return simulated(design="homogeneous", rows=600, silos=2, **options)


EXACT = {"strategy": "exact", "iterations": 300, "chains": 1, "kept": 150}


@pytest.mark.parametrize(("planted", "alike"), [(None, True), (20.0, False)])
@pytest.mark.parametrize("settings", [{}, {"polish": 0}, EXACT], ids=["polish", "none", "exact"])
def test_how_alike_the_silos_are_is_learned(settings, planted, alike, seed):
    table, truth = two_silos(drift=planted)
    found = fit(table, silo="silo", seed=seed, **{**QUICK, **settings})
    assert adjusted_rand_index(truth.labels, found.labels) > 0.9
    assert (found.correspondence is None) == (settings == EXACT)
    own = found.silo_profiles
    # without a polish κ is one value, that of the matching
    assert own.kappa.shape == (1 if settings == {"polish": 0} else found.n_draws, 10)
    assert own.parameters.shape[1:] == (2, found.n_clusters, 26)
    assert (np.isinf(own.kappa).mean() > 0.5) == alike
    if len(own.kappa) == 1:
        return
    last = found.probabilities[-len(own.parameters) :, None]
    sizes = found.study.table_schema.sizes
    same = np.isinf(own.kappa)[-len(last) :].repeat(sizes, axis=1)
    apart = np.abs(own.parameters - last).max(axis=(1, 2))
    assert apart[same].max(initial=0.0) < 1e-6  # where silos do not differ, the profile is shared
    assert np.all(apart[~same] > 0)
    np.testing.assert_array_equal(found.membership(table, "silo").argmax(axis=1), found.labels)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ()),
        ({"polish": 0}, ("No polish round",)),
        ({"polish": 0, "aggregation": "product"}, ()),
        ({"preset": "paper"}, ("No polish round", "With one chain per silo")),
        ({"matching": "hungarian"}, ("Hungarian matching",)),
        ({"clusters": 3}, ("No silo has more than 0 of the 3 clusters",)),
    ],
    ids=str,
)
def test_what_the_method_cannot_do_is_said(settings, said):
    schema = Schema((Variable("smoker", ("no", "yes")),))
    notes = tuple(consensus_notes(make_study(schema, ["a", "b"], **settings), [], ()))
    assert len(notes) == len(said)
    assert all(note.startswith(start) for note, start in zip(notes, said, strict=True))


def test_silos_that_show_no_clusters_may_hide_some(seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.integers(2, size=(120, 4)), columns=list("abcd")).astype(str)
    silos = [{"silo": rng.choice(["north", "south"], 120)}, {"silo": "north"}]
    found = [
        silomix.fit(table.assign(**silo), silo="silo", iterations=300, polish=4, seed=seed)
        for silo in silos
    ]
    assert [posterior.n_clusters for posterior in found] == [1, 1]
    said = ["all rows are taken together" in posterior.diagnostics.verdict for posterior in found]
    assert said == [True, False]


def tailed_table(rows, seed):
    """Two clusters of t variables with four degrees of freedom in two silos, cells missing."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(2, size=rows)
    cells = rng.standard_t(4, (rows, 4)) + 3.0 * truth[:, None]
    cells[rng.random(cells.shape) < 0.05] = np.nan
    table = pd.DataFrame(cells, columns=list("abcd"))
    return table.assign(silo=rng.choice(["north", "south"], rows)), truth


@pytest.mark.parametrize(
    "settings",
    [
        {"polish": 1, "iterations": 150},
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (
                {},
                {"strategy": "exact", "iterations": 600},
                {"aggregation": "cmc", "polish": 0},
                {"aggregation": "vcmc", "polish": 0},
                {"tier": "summary", "aggregation": "product"},
                {"clusters": 2},
                {"silo": None, "shards": 2},
                {"drift": "none", "matching": "hungarian", "polish": 5},
            )
        ),
    ],
    ids=str,
)
def test_outliers_are_part_of_their_clusters_in_every_way(settings, tmp_path):
    """Found, reported, saved and loaded."""
    table, truth = tailed_table(300, 3)
    given = {"silo": "silo", "iterations": 400, "seed": 1, "threads": 1} | settings
    if given["silo"] is None:
        table = table.drop(columns="silo")
    posterior = silomix.fit(table, kinds=dict.fromkeys("abcd", "student-t"), **given)
    assert posterior.n_clusters == 2
    assert adjusted_rand_index(truth, posterior.labels) > 0.8
    found = posterior.parameters.mean(axis=0)
    assert_allclose(np.sort(found[:, ::2], axis=0), [[0.0] * 4, [3.0] * 4], atol=0.35)
    assert_allclose(found[:, 1::2], 1.0, atol=0.25)
    posterior.report(tmp_path / "report.html")
    loaded = silomix.load(posterior.save(tmp_path / "posterior.silomix"))
    assert_array_equal(loaded.labels, posterior.labels)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy": "exact", "iterations": 600},
        {"aggregation": "cmc", "polish": 0},
        {"aggregation": "vcmc", "polish": 0},
        {"tier": "summary", "aggregation": "product"},
        {"clusters": 2},
        {"silo": None, "shards": 2},
    ],
    ids=str,
)
def test_clusters_that_differ_in_covariances_are_found_in_every_way(settings, tmp_path):
    """Two variables whose correlation is .8 or −.8, some cells missing; report and file too."""
    rng, rows = np.random.default_rng(3), 400
    truth = rng.integers(2, size=rows)
    noise = rng.standard_normal((2, rows))
    first = noise[0] + 0.5 * truth
    second = np.where(truth, -0.8, 0.8) * noise[0] + 0.6 * noise[1] + 2.5 * truth
    table = pd.DataFrame({"a": first, "b": second, "c": rng.random(rows) < 0.2 + 0.6 * truth})
    table["silo"] = rng.choice(["north", "south"], rows)
    table.loc[rng.random(rows) < 0.05, "a"] = np.nan
    given = {"silo": "silo", "iterations": 2000, "seed": 1} | settings
    if given["silo"] is None:
        table = table.drop(columns="silo")
    kinds = dict.fromkeys("ab", "gaussian-full")
    posterior = silomix.fit(table, kinds=kinds, threads=1, **given)
    assert posterior.n_clusters == 2
    assert adjusted_rand_index(truth, posterior.labels) > 0.65
    correlations = posterior.parameters.mean(axis=0)[:, -1]
    assert_allclose(np.sort(correlations), [-0.8, 0.8], atol=0.1)
    posterior.report(tmp_path / "report.html")
    loaded = silomix.load(posterior.save(tmp_path / "posterior.silomix"))
    assert_array_equal(loaded.labels, posterior.labels)


class TestInfluence:
    """Which silos a note names; the names of the silos are their places."""

    def notes(self, rows, shares, alone=(), expected=()):
        weights = np.array(shares, dtype=np.float64)[None]
        named = {f"s{place}": count for place, count in enumerate(rows)}
        return list(influence_notes(weights, named, alone, expected))

    @pytest.mark.parametrize(
        ("rows", "shares"),
        [
            ([500], [[0.5, 0.5]]),
            ([500, 900], [[0.5, 0.5], [0.5, 0.5]]),  # under twice as many
            ([500] * 4, [[0.4, 0.6], [0.5, 0.5], [0.6, 0.4], [0.5, 0.5]]),
            ([900, 500, 500], [[0.3, 0.7], [0.3, 0.7], [0.35, 0.65]]),
            ([1200, 50, 600, 300], [[0.3, 0.7]] * 4),  # more than half, but not twice the next
            ([300, 300, 10], [[0.5, 0.5]] * 3),
        ],
    )
    def test_nothing_is_said_of_ordinary_silos(self, rows, shares):
        assert self.notes(rows, shares) == []

    def test_more_than_half_of_a_cluster_that_several_hold(self):
        shares = [[0.1, 0.9], [0.1, 0.9], [0.7, 0.3]]
        said = "Check the tables of silos that outweigh the others: 's2' has 78% of cluster 0."
        assert self.notes([500] * 3, shares) == [said]
        assert self.notes([500] * 3, shares, alone={0}) == []

    def test_most_of_all_rows_and_then_no_clusters(self):
        even = [[0.5, 0.5]] * 4
        assert self.notes([5000, 300, 300, 300], even) == [
            "Check the tables of silos that outweigh the others: 's0' has 85% of all rows."
        ]
        assert self.notes([5000, 300, 300, 300], even, expected={"s0"}) == []
        (said,) = self.notes([40_000, 1500, 1500, 1500], [[0.99, 0.01], *even[1:]])
        assert said.endswith(": 's0' has 90% of all rows.")

    def test_of_two_silos_one_with_more_than_twice_as_many(self):
        (said,) = self.notes([2100, 1000], [[0.5, 0.5]] * 2)
        assert "'s0' has 68% of all rows." in said

    def test_a_hundred_times_the_median_without_a_majority(self):
        (said,) = self.notes([90_000, 100_000, 100, 100, 120], [[1.0]] * 5)
        for silo, rows in (("s0", "90,000"), ("s1", "100,000")):
            assert f"'{silo}' has {rows} rows, over 100 times the others' median" in said
        (said,) = self.notes([90_000, 100_000, 100, 100, 120], [[1.0]] * 5, expected={"s1"})
        assert "s1" not in said


INVENTED = 12_000


@pytest.mark.parametrize("settings", [{"polish": 0}, {"polish": 2}, {"strategy": "exact"}])
def test_a_silo_with_invented_rows_is_named(seed, settings):
    table, _ = simulated(rows=480)
    common = {"silo": "silo", "seed": seed, **QUICK, **settings}
    before = fit(table, **common).diagnostics.notes
    assert not any("outweigh" in note for note in before)
    made = table[table["silo"] == "silo 2"].iloc[[0] * INVENTED]
    notes = fit(pd.concat([table, made]), **common).diagnostics.notes
    (said,) = [note for note in notes if "outweigh" in note]
    assert "'silo 2' has 9" in said
    assert "of all rows" in said
