"""The whole method in one process: what it finds, and what it says in awkward cases."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from cases.aggregation_cases import make_case

import silomix
from silomix.api import fit
from silomix.coordinator.notes import cluster_notes, consensus_notes
from silomix.coordinator.pipeline import assign_rows, reweigh, run_study
from silomix.coordinator.polish import starting_point
from silomix.errors import DataError, DataWarning, MissingDependency, SettingsError
from silomix.messages import AssignReply, SampleLocally
from silomix.messages.progress import Progress
from silomix.model.draws import MatchedDraws, SiloWeights
from silomix.model.metrics import adjusted_rand_index
from silomix.model.schema import MISSING_LEVEL, Schema, Shard, Variable
from silomix.model.table import load
from silomix.posterior import Parts
from silomix.rivals.federation import open_silos
from silomix.silo.local import Silo
from silomix.study import make_study
from silomix.study.roster import read_roster
from silomix.transports.in_process import InProcess
from silomix.transports.parallel import Joblib

QUICK = {"iterations": 1500, "progress": False}

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
    np.testing.assert_array_equal(
        found.membership(shuffled, silo="silo").argmax(axis=1), found.labels
    )


def test_threads_do_not_change_the_result(seed):
    table, _ = simulated(rows=400)
    one = fit(table, silo="silo", seed=seed, threads=1, **QUICK)
    three = fit(table, silo="silo", seed=seed, threads=3, **QUICK)
    for name in ("weights", "probabilities", "weights_by_silo", "labels"):
        np.testing.assert_array_equal(getattr(one, name), getattr(three, name))
    other = fit(table, silo="silo", seed=seed + 1, threads=1, **QUICK)
    assert not np.array_equal(one.weights, other.weights)


def test_oracles_give_the_same_fit(seed):
    table, _ = simulated(rows=400)
    settings = {"silo": "silo", "seed": seed, "polish": 0, **QUICK}
    found = fit(table, oracle="federated", **settings)
    reference = fit(table, oracle="contingency", **settings)
    assert found.diagnostics.elbo[-1] == pytest.approx(reference.diagnostics.elbo[-1], rel=1e-6)
    np.testing.assert_allclose(found.weights, reference.weights, atol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"matching": "hungarian"},
        {"matching": "divergence"},
        {"matching": "ball"},
        {"matching": silomix.Divergence(restarts=2)},
        {"refine": 1},
        {"aggregation": "cmc"},
        {"aggregation": "uniform"},
        {"aggregation": "product"},
        {"solver": "psgd"},
        {"solver": silomix.FewRounds(rounds=3, starts=20)},
        {"polish": 0},
        {"polish": 1},
        {"polish": 3},
        {"assign": "matching"},
        {"tier": "summary"},
        {"relabel": "average"},
        {"partition": "pam"},
        {"preset": "paper", "iterations": 1500},
    ],
    ids=str,
)
def test_every_choice_runs_and_clusters_easy_data(settings, seed):
    table, truth = simulated(design="nested", rows=800)
    found = fit(table, silo="silo", seed=seed, **{**QUICK, **settings})
    assert adjusted_rand_index(truth.labels, found.labels) > 0.75
    assert found.n_draws >= 1000


def test_exact_strategy(seed):
    table, truth = simulated(rows=800)
    found = fit(
        table, silo="silo", seed=seed, strategy="exact", iterations=600, chains=1, kept=1000,
        progress=False,
    )  # fmt: skip
    assert adjusted_rand_index(truth.labels, found.labels) > 0.85
    assert found.correspondence is None
    assert any("Exact strategy" in note for note in found.diagnostics.notes)


def test_one_silo(seed):
    table, truth = simulated(rows=1600)
    found = fit(table.drop(columns="silo"), seed=seed, **QUICK)
    assert found.silos == ("all",)
    assert adjusted_rand_index(truth.labels, found.labels) > 0.85
    np.testing.assert_allclose(found.silo_weights.weights, [1.0])


def test_random_shards(seed):
    table, truth = simulated(design="homogeneous", rows=900)
    found = fit(table.drop(columns="silo"), shards=3, seed=seed, **QUICK)
    assert found.silos == ("shard 1", "shard 2", "shard 3")
    assert adjusted_rand_index(truth.labels, found.labels) > 0.85


def test_data_without_structure_give_one_cluster(seed):
    """A full factorial design, each combination equally often, has none."""
    levels = np.array(np.meshgrid(*[[0, 1]] * 5)).reshape(5, -1).T
    table = pd.DataFrame(np.tile(levels, (20, 1)), columns=list("abcde"))
    table["silo"] = np.random.default_rng(seed).permutation(np.arange(640) % 2)
    found = fit(table, silo="silo", seed=seed, **QUICK)
    assert found.n_clusters == 1
    assert (found.labels == 0).all()


def test_a_silo_with_one_row(seed):
    table, _ = simulated(rows=400)
    table = pd.concat([table, table.iloc[[0]].assign(silo="lonely")], ignore_index=True)
    with pytest.warns(DataWarning, match="silo 'lonely' has only 1 row; it adds little"):
        found = fit(table, silo="silo", seed=seed, **QUICK)
    assert "lonely" in found.silos
    assert len(found.labels) == 401


def test_a_cluster_held_by_one_silo_only(seed):
    table, truth = simulated(rows=1600)
    found = fit(table, silo="silo", seed=seed, **QUICK)
    sixth = np.bincount(found.labels[truth.labels == 5]).argmax()
    np.testing.assert_array_equal(found.correspondence.held[:, sixth], [False, True, False, False])
    assert found.silo_weights.profiles[1, sixth] == 1.0


def test_two_silos_with_disjoint_clusters(seed):
    rng = np.random.default_rng(seed)
    blocks = []
    for silo, centre in (("a", 0.05), ("b", 0.95)):
        codes = (rng.random((300, 8)) < centre).astype(int)
        blocks.append(pd.DataFrame(codes).add_prefix("x").assign(silo=silo))
    table = pd.concat(blocks, ignore_index=True)
    found = fit(table, silo="silo", seed=seed, **QUICK)
    assert found.n_clusters == 2
    assert adjusted_rand_index(table["silo"], found.labels) > 0.99


@pytest.mark.slow
def test_a_hundred_silos(seed):
    table, truth = silomix.simulate("homogeneous", rows=6000, silos=100, seed=seed)
    found = fit(table, silo="silo", seed=seed, **QUICK)
    assert len(found.silos) == 100
    assert adjusted_rand_index(truth.labels, found.labels) > 0.8


def test_silos_that_are_each_alone_with_their_clusters_keep_a_weight(seed):
    """There the objective has no maximum; from where we start, it has a local one, or the floor."""
    rng = np.random.default_rng(seed)
    blocks = []
    for silo in range(8):
        profile = np.where(rng.random((3, 24)) < 0.5, 0.03, 0.97)
        codes = (rng.random((150, 24)) < profile[rng.integers(0, 3, 150)]).astype(int)
        blocks.append(pd.DataFrame(codes).add_prefix("x").assign(silo=f"s{silo}"))
    table = pd.concat(blocks, ignore_index=True)
    found = fit(table, silo="silo", seed=seed, polish=0, alpha=0.01, **QUICK)
    floor = found.study.aggregation.floor
    assert found.n_clusters == 24
    assert np.all(found.silo_weights.weights >= floor)
    at_floor = np.any(found.silo_weights.weights < 2 * floor)
    assert at_floor == any("floor" in note for note in found.diagnostics.notes)


def test_what_left_each_silo_is_counted(seed):
    table, _ = simulated(rows=400)
    found = fit(table, silo="silo", seed=seed, polish=2, **QUICK)
    sent = found.provenance.sent["silo 1"]
    assert {"Release", "DistinctRows", "PolishReply", "AssignReply"} <= set(sent)
    assert all(count > 0 for count in sent.values())
    federated = fit(table, silo="silo", seed=seed, polish=0, oracle="federated", **QUICK)
    assert "DistinctRows" not in federated.provenance.sent["silo 1"]


def test_progress_names_every_stage(seed):
    table, _ = simulated(rows=400)
    seen = []
    fit(table, silo="silo", seed=seed, iterations=1500, progress=seen.append)
    stages = list(dict.fromkeys(at.stage for at in seen))
    assert [stage for stage in stages if stage != "compiling"] == [
        "sampling", "matching", "aggregating", "polishing", "assigning",
    ]  # fmt: skip


def test_an_interrupted_fit_goes_on_from_its_checkpoints(tmp_path, seed):
    table, _ = simulated(rows=400)
    settings = {"silo": "silo", "seed": seed, "iterations": 6000, "threads": 2}

    def stop(at):
        if at.stage == "sampling" and at.done > 10_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(table, checkpoint=tmp_path, progress=stop, **settings)
    resumed = fit(table, checkpoint=tmp_path, progress=False, **settings)
    whole = fit(table, progress=False, **settings)
    np.testing.assert_array_equal(resumed.weights, whole.weights)


def test_frames_of_any_library_give_the_same_fit(seed):
    import polars as pl

    table, _ = simulated(rows=400)
    pandas = fit(table, silo="silo", seed=seed, **QUICK)
    polars = fit(pl.from_pandas(table), silo="silo", seed=seed, **QUICK)
    np.testing.assert_array_equal(pandas.weights, polars.weights)
    assert isinstance(polars.summary(), pl.DataFrame)
    assert isinstance(pandas.summary(), pd.DataFrame)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"silo": "hospital"}, DataError, "no column 'hospital'"),
        ({"silo": "silo", "shards": 2}, SettingsError, "give one of them"),
        ({"silo": None, "shards": 10_000}, SettingsError, "more than the"),
        ({"silo": "silo", "matching": "telepathy"}, SettingsError, "telepathy"),
        ({"silo": "silo", "colour": 3}, SettingsError, "colour"),
        ({"silo": "silo", "components": 0}, SettingsError, "components"),
        ({"silo": "silo", "preset": "book"}, SettingsError, "book"),
    ],
    ids=str,
)
def test_bad_settings_are_named(settings, error, words):
    table, _ = simulated(rows=200)
    with pytest.raises(error, match=words):
        fit(table, **{**QUICK, **settings})


def test_the_paper_preset_names_the_missing_extra(monkeypatch):
    table, _ = simulated(rows=200)
    monkeypatch.setattr("silomix.api.find_spec", lambda _: None)
    with pytest.raises(MissingDependency, match=r"silomix\[pam\]"):
        fit(table, silo="silo", preset="paper")


def test_a_forgotten_silo_column_is_named(seed):
    table, _ = simulated(rows=200)
    with pytest.warns(DataWarning, match="give silo='silo'"):
        fit(table, seed=seed, **QUICK)


def test_hungarian_matching_says_what_it_takes_for_granted(seed):
    table, _ = simulated(rows=400)
    found = fit(table, silo="silo", seed=seed, matching="hungarian", **QUICK)
    assert any("Hungarian" in note for note in found.diagnostics.notes)


def test_what_policies_changed_is_part_of_the_verdict(seed):
    table, _ = simulated(rows=400)
    found = fit(table, silo="silo", seed=seed, preset="files", policy="default", **QUICK)
    changed, replaced = found.diagnostics.notes[:2]
    assert changed.startswith("The policies of 'silo 1'")
    assert "a flatter one stands in: " in replaced
    assert changed in found.diagnostics.verdict
    untouched = fit(table, silo="silo", seed=seed, preset="files", **QUICK)
    assert not any("policies" in note for note in untouched.diagnostics.notes)


def test_an_empty_cell_in_the_silo_column_is_refused():
    table, _ = simulated(rows=200)
    table.loc[3, "silo"] = None
    with pytest.raises(DataError, match="data row 4"):
        fit(table, silo="silo", **QUICK)


def test_refining_counts_a_cluster_less_where_its_silo_weighs_less(seed):
    case = make_case(seed, rows=(60, 40), clusters=2, sizes=(2, 3))
    profiles = np.array([[0.2, 0.9], [0.8, 0.1]])
    rows = np.array([release.sizes for release in case.releases])
    factor = np.minimum(1, profiles / (rows / rows.sum(axis=0)))
    assert factor.min() < 1 == factor.max()
    weighed = SiloWeights(case.correspondence.silos, np.full(2, 0.5), profiles)
    found = reweigh(case.releases, case.correspondence, weighed)
    for old, new, less in zip(case.releases, found, factor, strict=True):
        np.testing.assert_allclose(new.effective_counts, old.effective_counts * less[:, None])


def test_refining_matches_and_aggregates_again(seed):
    table, _ = simulated(rows=240)
    common = {"silo": "silo", "seed": seed, "polish": 0, **QUICK}
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


def test_a_count_that_one_silo_withholds_leaves_the_total_unknown():
    told = {"a": AssignReply(np.array([5, -1, 0])), "b": AssignReply(np.array([4, 1, 0]))}
    silos = SimpleNamespace(names=("a", "b"), ask=lambda queries: told)
    even = np.full((1, 3), 1 / 3), np.full((1, 2, 3), 1 / 3), np.ones((1, 3, 1))
    parts = Parts(*even, None, None)
    sizes = assign_rows(parts, silos, None)
    assert sizes.tolist() == [9, -1, 0]
    notes = cluster_notes(parts, [], np.array([0, 1]), sizes)
    assert list(notes) == ["No row has cluster 2 as its most probable one."]


def test_polish_begins_above_zero():
    held = np.array([[True, True, False]])
    draws = MatchedDraws(np.array([[[0.6, 0.4, 0.0]]]), np.zeros((1, 1, 3, 1)), held)
    begun = starting_point(draws, np.ones((1, 3, 1)), np.array([9]), np.array([0, 1]))
    np.testing.assert_allclose(begun.weights, [[np.array([0.6, 0.4, 0.1]) / 1.1]])


def test_under_drift_polish_begins_at_each_silo_s_own_profiles():
    """Where a variable drifts, and the silo holds the cluster."""
    held = np.array([[True, False], [True, True]])
    even, own = np.full((1, 2, 4), 0.5), np.full((2, 1, 2, 4), 0.25)
    draws = MatchedDraws(np.full((2, 1, 2), 0.5), own, held)
    rows, offsets = np.array([9, 9]), np.array([0, 2, 4])
    begun = starting_point(draws, even, rows, offsets, np.array([20.0, np.inf]))
    unheld, mixed = [0.5] * 4, [0.25, 0.25, 0.5, 0.5]
    np.testing.assert_array_equal(begun.own[:, 0], [[mixed, unheld], [mixed, mixed]])
    np.testing.assert_array_equal(begun.probabilities, even)
    assert starting_point(draws, even, rows, offsets).own is None


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


@pytest.mark.parametrize(("planted", "alike"), [(None, True), (20.0, False)])
def test_how_alike_the_silos_are_is_learned(planted, alike, seed):
    table, truth = two_silos(drift=planted)
    found = fit(table, silo="silo", seed=seed, **QUICK)
    assert adjusted_rand_index(truth.labels, found.labels) > 0.9
    own = found.silo_profiles
    assert own.kappa.shape == (found.n_draws, 10)
    assert own.probabilities.shape[1:] == (2, found.n_clusters, 26)
    assert (np.isinf(own.kappa).mean() > 0.5) == alike
    last = found.probabilities[-len(own.probabilities) :, None]
    sizes = found.study.table_schema.sizes
    same = np.isinf(own.kappa)[-len(last) :].repeat(sizes, axis=1)
    apart = np.abs(own.probabilities - last).max(axis=(1, 2))
    assert apart[same].max(initial=0.0) < 1e-6  # where silos do not differ, the profile is shared
    assert np.all(apart[~same] > 0)
    np.testing.assert_array_equal(found.membership(table, "silo").argmax(axis=1), found.labels)


def test_without_drift_no_silo_has_profiles_of_its_own(seed):
    table, truth = two_silos()
    found = fit(table, silo="silo", seed=seed, drift="none", **QUICK)
    assert found.silo_profiles is None
    assert adjusted_rand_index(truth.labels, found.labels) > 0.9


def test_a_single_silo_has_nothing_to_differ_from(seed):
    table, _ = two_silos()
    found = fit(table.drop(columns="silo"), seed=seed, drift="learn", **QUICK)
    assert found.silo_profiles is None


@pytest.mark.parametrize(("planted", "alike"), [(None, True), (20.0, False)])
def test_without_a_polish_how_alike_the_silos_are_is_one_value(planted, alike, seed):
    table, truth = two_silos(drift=planted)
    found = fit(table, silo="silo", seed=seed, polish=0, **QUICK)
    own = found.silo_profiles
    assert own.kappa.shape == (1, 10)
    assert np.isinf(own.kappa).all() == alike
    assert own.probabilities.shape[1:] == (2, found.n_clusters, 26)
    assert adjusted_rand_index(truth.labels, found.labels) > 0.9


def test_exact_strategy_with_silos_that_differ(seed):
    table, truth = two_silos(drift=20.0)
    found = fit(
        table, silo="silo", seed=seed, strategy="exact", iterations=600, chains=1, kept=300,
        progress=False,
    )  # fmt: skip
    own = found.silo_profiles
    assert adjusted_rand_index(truth.labels, found.labels) > 0.9
    assert own.kappa.shape == (found.n_draws, 10)
    assert own.probabilities.shape[1:] == (2, found.n_clusters, 26)
    assert np.isinf(own.kappa).mean() < 0.5


@pytest.mark.parametrize(
    "settings", [{"polish": 3}, {"strategy": "exact", "iterations": 40, "chains": 1, "kept": 20}]
)
def test_threads_and_transports_do_not_change_silos_own_profiles(settings, seed):
    table, _ = two_silos(drift=20.0)
    roster, shard = read_roster(table, "silo"), load(table.drop(columns="silo"))
    settings = {"seed": seed, "components": 6, "iterations": 200, **settings}

    def run(transport, **options):
        study = make_study(shard.schema, roster.names, **settings)
        silos = [
            Silo(name, place, Shard(shard.schema, shard.codes[roster.places == place]), study)
            for place, name in enumerate(roster.names)
        ]
        return run_study(study, transport(silos, **options)).silo_profiles

    one = run(InProcess, threads=1)
    assert np.isfinite(one.kappa).any()
    for other in (run(InProcess, threads=2), run(Joblib)):
        np.testing.assert_array_equal(other.kappa, one.kappa)
        np.testing.assert_array_equal(other.probabilities, one.probabilities)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ()),
        ({"polish": 0}, ("No polish round",)),
        ({"polish": 0, "aggregation": "product"}, ()),
        ({"preset": "paper"}, ("No polish round", "With one chain a silo")),
        ({"matching": "hungarian"}, ("Hungarian matching",)),
    ],
    ids=str,
)
def test_what_the_method_cannot_do_is_said(settings, said):
    schema = Schema((Variable("smoker", ("no", "yes")),))
    notes = tuple(consensus_notes(make_study(schema, ["a", "b"], **settings), [], ()))
    assert len(notes) == len(said)
    assert all(note.startswith(start) for note, start in zip(notes, said, strict=True))
