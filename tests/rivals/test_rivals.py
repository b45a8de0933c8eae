"""Every rival through one contract: same arguments, same record, through the same seam."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

import silomix
from silomix import rivals
from silomix.coordinator.aggregation import aggregate
from silomix.coordinator.matching import match
from silomix.errors import DataError, SettingsError
from silomix.messages import SampleLocally
from silomix.messages.released_draws import effective_counts, release_medians
from silomix.model.metrics import adjusted_rand_index
from silomix.rivals import Merging, Search, Sweeps
from silomix.rivals.consensus import sample_known
from silomix.rivals.federation import open_silos
from silomix.silo.answer import HANDLERS
from silomix.silo.local import sample_locally

ROWS = 480
SILOS = ("silo 1", "silo 2")
SHORT = {"iterations": 400, "burn_in": 200, "chains": 1}
ALL = {
    "fedmerdel": partial(rivals.fedmerdel, search=Search(restarts=1), draws=50),
    "fed_kmodes": partial(rivals.fed_kmodes, clusters=5),
    "pooled_mcmc": partial(rivals.pooled_mcmc, **SHORT),
    "cmc": partial(rivals.cmc, **SHORT),
    "product": partial(rivals.product, **SHORT),
    "rabinovich": partial(rivals.rabinovich, clusters=5, **SHORT),
    "block_gibbs": partial(rivals.block_gibbs, sweeps=Sweeps(10, 20), **SHORT),
}
KINDS = {
    "fedmerdel": {"LocalComponents", "ClusterSizes"},
    "fed_kmodes": {"LocalModes", "ClusterSums"},
    "pooled_mcmc": {"rows"},
    "cmc": {"Release", "Received"},
    "product": {"Release", "Received"},
    "rabinovich": {"Release", "DistinctRows", "Received"},
    "block_gibbs": {"ClusterSums", "Received"},
}
every_rival = pytest.mark.parametrize("name", ALL)
# four hundred sweeps leave some draws without a component of their own
pytestmark = pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")


@pytest.fixture(scope="module")
def simulated():
    """Rows of the silos mixed, so that their order matters."""
    table, truth = silomix.simulate("homogeneous", rows=ROWS, silos=2, seed=7)
    order = np.random.default_rng(7).permutation(ROWS)
    return table.iloc[order].reset_index(drop=True), truth.labels[order]


@pytest.fixture(scope="module")
def results(simulated):
    table, _ = simulated
    return {name: rival(table, "silo", seed=3, threads=1) for name, rival in ALL.items()}


@every_rival
def test_the_record_is_complete_and_says_what_left_each_silo(results, name):
    found = results[name]
    draws, clusters = found.weights.shape
    assert (found.name, found.labels.shape) == (name, (ROWS,))
    assert found.probabilities.shape == (draws, clusters, 26)
    assert 0 <= found.labels.min() <= found.labels.max() < clusters
    assert found.n_clusters == len(set(found.labels))
    np.testing.assert_allclose(found.weights.sum(axis=1), 1.0, rtol=1e-5)
    sums = np.add.reduceat(found.probabilities, [0, 2, 4, 6, 8, 11, 14, 17, 20, 23], axis=2)
    np.testing.assert_allclose(sums, 1.0, rtol=1e-5)
    assert found.total_seconds == sum(found.seconds.values()) > 0
    sent = found.bytes_sent
    assert {silo: set(kinds) for silo, kinds in sent.items()} == dict.fromkeys(SILOS, KINDS[name])
    if name == "pooled_mcmc":
        assert sent["silo 1"]["rows"] == ROWS // 2 * 10


@every_rival
def test_labels_are_those_of_their_rows_and_clusters(results, simulated, name):
    """Labels put back in the wrong order would agree with nothing, nor would their profiles."""
    table, truth = simulated
    found = results[name]
    assert adjusted_rand_index(found.labels, truth) > 0.4
    mean = found.probabilities.mean(axis=0)
    for cluster in np.flatnonzero(np.bincount(found.labels) >= 50):
        rows = table[found.labels == cluster]
        shares = [(rows[x].astype(str) == level).mean() for x, level in found.levels]
        assert np.abs(mean[cluster] - shares).mean() < 0.1


@every_rival
def test_same_seed_same_result_on_any_thread(results, simulated, name):
    again = ALL[name](pl.from_pandas(simulated[0]), "silo", seed=3, threads=2)
    np.testing.assert_array_equal(again.labels, results[name].labels)
    np.testing.assert_array_equal(again.probabilities, results[name].probabilities)


@pytest.mark.parametrize("name", ["fedmerdel", "fed_kmodes"])
def test_a_table_without_silos_is_one_silo(simulated, name, tmp_path):
    table = simulated[0].drop(columns="silo")
    table.to_csv(tmp_path / "table.csv", index=False)
    found = ALL[name](tmp_path / "table.csv", seed=3)
    assert list(found.bytes_sent) == ["all"]
    chosen = ALL[name](simulated[0], seed=3, variables=list(table.columns))
    np.testing.assert_array_equal(chosen.labels, found.labels)


@pytest.mark.parametrize("missing", ["marginalise", "level"])
@pytest.mark.parametrize("name", ["fedmerdel", "fed_kmodes", "block_gibbs"])
def test_cells_may_be_missing(simulated, name, missing):
    table, truth = simulated
    holes = np.random.default_rng(1).random((ROWS, 10)) < 0.1
    variables = table.drop(columns="silo").astype("Int64").mask(holes)
    found = ALL[name](pd.concat([table[["silo"]], variables], axis=1), "silo", missing=missing)
    assert len(found.levels) == (26 if missing == "marginalise" else 36)
    assert adjusted_rand_index(found.labels, truth) > 0.3


def test_the_pooled_sampler_is_that_of_silomix(results, simulated):
    variables = simulated[0].drop(columns="silo")
    draws = silomix.sample(variables, seed=3, progress=False, **SHORT)
    local = silomix.local_posterior(draws)
    np.testing.assert_array_equal(results["pooled_mcmc"].labels, local.partition.labels)
    np.testing.assert_array_equal(results["pooled_mcmc"].weights, local.weights)


@pytest.mark.parametrize("word", ["cmc", "uniform", "product"])
def test_averages_and_products_are_those_of_silomix(results, simulated, word):
    settings = {"seed": 3, "assign": "matching", **SHORT}
    options = {"cmc": {"weights": "independent"}, "uniform": {"weights": "uniform"}}
    rival = rivals.product if word == "product" else rivals.cmc
    ours = rival(simulated[0], "silo", **options.get(word, {}), **settings)
    shared = {"polish": 0, "drift": "none", "progress": False}
    found = silomix.fit(simulated[0], "silo", aggregation=word, **shared, **settings)
    for name in ("weights", "probabilities", "labels"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(found, name))


def test_rabinovich_follows_its_definition(results, simulated):
    """The most likely draw of each silo, Hungarian matching, then VCMC: step by step."""
    given = {"components": 5, "matching": "hungarian", "absorb": 0, **SHORT}
    federation = open_silos(simulated[0], "silo", seed=3, threads=1, **given)
    study, silos = federation.study, federation.tally
    releases = federation.ask(partial(sample_known))
    for silo in federation.silos.silos:
        draws = sample_locally(silo).draws
        likeliest = draws.labels[np.argmax(draws.log_likelihood)]
        assert adjusted_rand_index(silo.store.kept.labels, likeliest) == 1
    model = study.pooled_model
    counts = [effective_counts(release, model, len(releases)) for release in releases]
    matched, _ = match(releases, counts, study.matching, silos, model, drift=False)
    pairs = linear_sum_assignment(
        cdist(*(release_medians(release, model.family) for release in releases))
    )
    np.testing.assert_array_equal(*[g[p] for g, p in zip(matched.groups, pairs, strict=True)])
    settings, count = study.aggregation, study.kept_draws
    expected = aggregate(releases, matched, settings, silos, model, count=count)
    order = np.argsort(-expected.weights.mean(axis=0), kind="stable")
    for mine, name in (("weights", "weights"), ("parameters", "probabilities")):
        # global draws are held in single precision
        made = getattr(expected, mine)[:, order].astype(np.float32)
        np.testing.assert_array_equal(getattr(results["rabinovich"], name), made)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("cmc", {"weights": "scott"}),
        ("product", {"polish": 3}),
        ("product", {"iteration": 5}),
        ("rabinovich", {"partition": "pam"}),
        ("block_gibbs", {"odds": "snob"}),
        ("pooled_mcmc", {"strategy": "exact"}),
        ("fedmerdel", {"iterations": 5}),
        *[("fed_kmodes", {number: 0}) for number in ("clusters", "rounds", "restarts")],
    ],
)
def test_settings_without_a_part_are_refused(simulated, name, wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        ALL[name](simulated[0], "silo", **wrong)
    with pytest.raises(DataError, match="site"):
        ALL[name](simulated[0], "site")


@pytest.mark.parametrize("name", ["fedmerdel", "fed_kmodes", "cmc"])
def test_numbers_are_refused_where_a_rival_knows_categories_only(simulated, name):
    table = simulated[0].assign(age=np.linspace(20, 80, ROWS))
    with pytest.raises(DataError, match="knows categories only; leave out or bin 'age'"):
        ALL[name](table, "silo")
    binned = ALL[name](table, "silo", variables=["x1", "age"], bins={"age": 2})
    assert [variable for variable, _ in binned.levels] == ["x1", "x1", "age", "age"]


@pytest.fixture(scope="module")
def numbers():
    """Numbers and counts, some missing, in two silos."""
    return silomix.simulate("homogeneous", rows=ROWS, silos=2, seed=7, variables="mixed")


@pytest.mark.parametrize("name", ["pooled_mcmc", "cmc", "product", "rabinovich", "block_gibbs"])
def test_numbers_are_clustered_and_described_in_the_units_of_the_table(numbers, name):
    (table, truth), weights = numbers, {"weights": "independent"} if name == "cmc" else {}
    found = ALL[name](table, "silo", seed=3, threads=1, kinds=truth.kinds, **weights)
    assert adjusted_rand_index(found.labels, truth.labels) > 0.4
    assert found.probabilities.shape[2] == len(found.levels) == len(truth.levels)
    mean = found.probabilities.mean(axis=0)
    for cluster in np.flatnonzero(np.bincount(found.labels) >= 50):
        rows = table[found.labels == cluster]
        for place, (variable, word) in enumerate(found.levels):
            if word in ("mean", "rate"):
                away = mean[cluster, place] - rows[variable].mean()
                assert abs(away) < rows[variable].std()
    if name == "pooled_mcmc":
        # five codes and five numbers
        assert found.bytes_sent["silo 1"]["rows"] == ROWS // 2 * (5 + 5 * 8)


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        (Merging, {"search": "gredy"}),
        (Search, {"restarts": 0}),
        (Sweeps, {"budget": 1}),
        (rivals.PitmanYor, {"discount": 1.0}),
        (rivals.MasterOdds, {"concentration": float("nan")}),
    ],
)
def test_wrong_records_are_refused(record, wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        record(**wrong)


def test_no_question_of_a_rival_is_known_outside_of_it():
    """Importing the rivals must not teach the silos of this process to answer anything."""
    assert {kind.__module__ for kind in HANDLERS} == {SampleLocally.__module__}
