"""`silomix.sample` as its users meet it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp
from sklearn.metrics import adjusted_rand_score

import silomix
from silomix import api
from silomix.errors import CheckpointError, DataError, DataWarning, SettingsError
from silomix.model.draws import Schedule
from silomix.model.schema import MISSING_LEVEL, Prior, Schema, Variable
from silomix.model.table import load
from silomix.report.run_sections import missing_shares
from silomix.silo.sampler import Job, sample_shard

QUICK = {"components": 5, "iterations": 40, "seed": 3, "progress": False}


def make_table(seed, rows=120, missing=0.0):
    table, _ = silomix.simulate("homogeneous", rows=rows, silos=1, seed=seed)
    table = table.drop(columns="silo").astype(str)
    return table.mask(np.random.default_rng(seed).random(table.shape) < missing)


def assert_same(one, other):
    for name in ("labels", "weights", "probabilities", "log_likelihood", "chain"):
        assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@pytest.mark.filterwarnings("ignore::silomix.errors.DataWarning")
def test_an_id_is_not_clustered_and_stands_beside_the_labels(seed, tmp_path):
    table, _ = silomix.simulate("nested", rows=80, silos=2, seed=seed)
    table["patient"], table["born"] = [f"p{row}" for row in range(80)], "2026-01-31"
    settings = {"iterations": 100, "components": 4, "polish": 0, "threads": 1}
    found = silomix.fit(table, "silo", id="patient", exclude=["born", "x1"], **settings)
    assert [v.name for v in found.study.variables] == [f"x{q}" for q in range(2, 11)]
    assert found.labels_frame()["id"].tolist() == table["patient"].tolist()
    again = silomix.load(found.save(tmp_path / "a.silomix"))
    assert "id" not in again.labels_frame()
    with pytest.raises(DataError, match="column 'patient' names the rows and is among the var"):
        silomix.fit(table, "silo", id="patient", variables=["x1", "patient"], **settings)
    with pytest.raises(DataError, match="no column 'Patient' to name its rows"):
        silomix.fit(table, "silo", id="Patient", **settings)


def refused(message, table, error=SettingsError, **settings):
    with pytest.raises(error, match=re.escape(message)):
        silomix.sample(table, **{**QUICK, **settings})


@pytest.fixture
def calls(monkeypatch):
    """What `sample` hands down, without sampling."""
    handed = []

    def record(shard, job, **options):
        handed.append((shard, job, options))

    monkeypatch.setattr(api, "sample_shard", record)
    return handed


def test_shapes_and_types(seed):
    table = make_table(seed, missing=0.1)
    draws = silomix.sample(table, components=5, iterations=40, chains=3, thin=4, seed=seed)
    levels = [(f"x{q}", str(k)) for q in range(1, 11) for k in range(1, 3 if q < 5 else 4)]
    assert draws.levels == levels
    assert draws.components == 5
    kinds = {
        "labels": ((15, 120), np.uint8),
        "weights": ((15, 5), np.float32),
        "probabilities": ((15, 5, len(levels)), np.float32),
        "log_likelihood": ((15,), np.float64),
        "chain": ((15,), np.int64),
    }
    for name, (shape, dtype) in kinds.items():
        assert getattr(draws, name).shape == shape
        assert getattr(draws, name).dtype == dtype
    assert_array_equal(draws.chain, np.repeat([0, 1, 2], 5))
    assert draws.labels.max() < 5
    assert draws.schedule == Schedule(iterations=40, burn_in=20, chains=3, thin=4)
    assert (draws.silos, draws.seed, draws.prior) == (1, seed, Prior())
    traces = ["log_likelihood", "occupied", "largest_weight", "allocation_entropy"]
    assert list(draws.diagnostics.traces) == traces
    for trace in draws.diagnostics.traces.values():
        assert trace.values.shape == (3, 5)
    assert_array_equal(
        draws.diagnostics.traces["log_likelihood"].values.ravel(), draws.log_likelihood
    )
    occupied = [len(np.unique(labels)) for labels in draws.labels]
    assert_array_equal(draws.diagnostics.traces["occupied"].values.ravel(), occupied)
    assert draws.diagnostics.verdict


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_the_log_likelihood_is_that_of_the_draw(missing, seed):
    draws = silomix.sample(make_table(seed, missing=missing), **QUICK)
    schema, codes = draws.shard.schema, draws.shard.codes.astype(int)
    assert (codes == schema.sizes).mean() == pytest.approx(missing, abs=0.1)
    with np.errstate(divide="ignore"):
        logs = np.log(draws.probabilities.astype(np.float64))
        log_masses = np.log(draws.weights.astype(np.float64))[:, None, :]
    nothing = np.zeros((*logs.shape[:2], 1))
    for q, (first, last) in enumerate(zip(schema.offsets, schema.offsets[1:], strict=False)):
        of_variable = np.concatenate([logs[:, :, first:last], nothing], axis=2)
        log_masses = log_masses + of_variable[:, :, codes[:, q]].transpose(0, 2, 1)
    expected = logsumexp(log_masses, axis=2).sum(axis=1)
    # eleven float32 factors a row and as many roundings in the kernel's product
    assert_allclose(draws.log_likelihood, expected, rtol=1e-6)
    assert (draws.log_likelihood < 0).all()


@pytest.mark.parametrize(
    ("settings", "job"),
    [
        ({}, {}),
        ({"components": 3}, {"components": 3}),
        ({"silos": 4}, {"silos": 4}),
        ({"silos": 4, "silo": 2}, {"silos": 4, "silo": 2}),
        ({"seed": 12}, {"seed": 12}),
        ({"alpha": 0.25}, {"prior": Prior(alpha=0.25)}),
        ({"beta": 2}, {"prior": Prior(beta=2.0)}),
        ({"fractionate": False}, {"prior": Prior(fractionate=False)}),
        ({"iterations": 400}, {"schedule": Schedule(400, 200, 2, 1)}),
        ({"iterations": 400, "burn_in": 0}, {"schedule": Schedule(400, 0, 2, 1)}),
        ({"chains": 3}, {"schedule": Schedule(20_000, 10_000, 3, 14)}),
        ({"thin": 7}, {"schedule": Schedule(20_000, 10_000, 2, 7)}),
    ],
    ids=lambda settings: "+".join(settings) or "defaults",
)
def test_settings_reach_the_sampler(settings, job, seed, calls):
    silomix.sample(make_table(seed), **settings)
    expected = {
        "components": 15,
        "prior": Prior(),
        "schedule": Schedule(20_000, 10_000, 2, 10),
        "silos": 1,
        "silo": 0,
        "seed": 0,
    }
    assert calls[0][1] == Job(**{**expected, **job})


def test_sample_is_load_and_sample_shard(seed):
    """In the order of the arguments, and with every keyword about the table."""
    table = make_table(seed, missing=0.1).assign(times=[0, 1, 2] * 40, extra="not a variable")
    job = Job(4, Prior(0.75, 0.25), Schedule(60, 10, 2, 5), silos=3, silo=2, seed=seed)
    about = {"variables": ["x7", "x2"], "frequency": "times", "missing": "level"}
    given = {"silo": 2, "alpha": 0.75, "beta": 0.25, **about}
    draws = silomix.sample(table, 4, 3, 60, 10, 2, 5, seed, 2, **given)
    assert_same(draws, sample_shard(load(table, **about), job))
    assert draws.silos == 3
    assert ("x2", MISSING_LEVEL) in draws.levels


def test_kinds_and_bins_reach_the_shard(seed, calls):
    """Those of `sample`; `fit` hands them to the same function."""
    table = make_table(seed).assign(age=np.linspace(20, 80, 120), visits=[*range(12)] * 10)
    about = {"kinds": {"visits": "poisson"}, "bins": {"age": 3}}
    silomix.sample(table, **about)
    shard, expected = calls[0][0], load(table, **about)
    assert shard.schema == expected.schema
    assert_array_equal(shard.numbers, expected.numbers)
    with pytest.raises(SettingsError, match="kinds names 'Age', which is not among the variables"):
        silomix.fit(table, kinds={"Age": "gaussian"})


def test_a_schema_gives_levels_the_table_lacks(seed):
    table = make_table(seed)
    schema = load(table).schema
    first, *others = schema.variables
    wider = Schema((Variable("x1", (*first.levels, "9")), *others))
    draws = silomix.sample(table.assign(extra="not in the schema"), schema=wider, **QUICK)
    assert draws.shard.schema == wider
    assert silomix.sample(table[:1], schema=schema, **QUICK).labels.shape == (40, 1)
    assert draws.levels[2] == ("x1", "9")
    # never seen, it is left to the prior, which is not zero
    assert (draws.probabilities[:, :, 2] > 0).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"components": 256}, "components is 256; it must be at most 255"),
        ({"burn_in": 40}, "burn_in is 40; it must be less than iterations, 40"),
        ({"silos": 0}, "silos is 0; it must be a whole number, at least 1"),
        ({"silos": 3, "silo": 3}, "silo is 3; with 3 silos it must be 0 to 2"),
        ({"silos": 3, "silo": -1}, "silo is -1; it must be a whole number, at least 0"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0; it must be a whole number, at least 1"),
        ({"missing": "drop"}, "missing='drop' is not known; choose one of 'marginalise', 'level'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_that_make_no_sense_are_refused(settings, message, seed):
    refused(message, make_table(seed), **settings)


@pytest.mark.parametrize(
    ("keyword", "advice"),
    [
        ("itertions", "did you mean 'iterations'?"),
        ("varaibles", "did you mean 'variables'?"),
        ("n_components", "(here it is 'clusters' or 'components')"),
        ("nSweeps", "'iterations'"),
        ("n_jobs", "'threads'"),
        ("drop", "(here it is 'exclude')"),
        ("random_state", "'seed'"),
        ("nonsense", "the keywords are table, silo, id, shards, preset, seed, threads, variables,"),
    ],
)
def test_a_keyword_that_fit_has_not(keyword, advice, seed):
    with pytest.raises(SettingsError, match=f"{keyword} is not a keyword.*{re.escape(advice)}"):
        silomix.fit(make_table(seed), **{keyword: 1})


def test_a_checkpoint_of_another_table_is_refused(seed, tmp_path):
    table = make_table(seed)
    silomix.sample(table, checkpoint=tmp_path, **QUICK)
    assert_same(silomix.sample(table, **QUICK), silomix.sample(table, checkpoint=tmp_path, **QUICK))
    refused("belongs to another run", table[1:], CheckpointError, checkpoint=tmp_path)


@pytest.mark.parametrize("partition", ["linkage", "pam"])
@pytest.mark.parametrize("relabel", ["match", "average"])
def test_planted_clusters_are_found(partition, relabel, seed):
    """Five clusters that their true parameters tell apart with an index of 0.99."""
    table, truth = silomix.simulate("homogeneous", rows=800, silos=1, seed=1)
    draws = silomix.sample(
        table.drop(columns="silo"), components=10, iterations=2000, seed=seed, progress=False
    )
    local = silomix.local_posterior(draws, partition=partition, relabel=relabel)
    assert adjusted_rand_score(truth.labels, local.partition.labels) >= 0.9
    assert local.partition.clusters >= 5
    for k in range(5):
        rows = truth.labels[local.partition.labels == k]
        planted = np.bincount(rows).argmax()
        error = np.abs(local.probabilities[:, k].mean(axis=0) - truth.probabilities[planted])
        # 125 probabilities, each at most half a unit uncertain over the cluster's rows
        assert error.max() < 4.5 * 0.5 / np.sqrt(local.sizes[k])
        share = local.weights[:, k].mean()
        assert abs(share - 0.2) < 4.5 * np.sqrt(0.2 * 0.8 / 800) + 0.01


FIRST_CALL = """
import sys, time
import silomix

def report(at):
    if at.done:
        raise SystemExit

table = silomix.simulate("homogeneous", rows=300, silos=1, seed=1)[0].drop(columns="silo")
silomix.sample(table, components=15, progress=report)
"""


def said_by_a_process(**environment):
    """What the first sweeps of a process print to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(silomix.__file__).parents[1]),
            **environment,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


@pytest.mark.slow
def test_the_first_call_says_that_it_compiles(tmp_path):
    said = said_by_a_process(NUMBA_CACHE_DIR=str(tmp_path))
    assert said.count("compiling") == 1
    assert len(said.splitlines()) == 1
    assert said_by_a_process(NUMBA_CACHE_DIR=str(tmp_path)) == ""


@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
def test_a_fit_knows_its_file_and_its_gaps_unless_a_policy_keeps_them(seed, tmp_path):
    table, truth = silomix.simulate("homogeneous", rows=80, silos=2, seed=seed)
    # seven ages are missing, and a third is the same number, which has a variable of its own
    table["age"] = np.where(np.arange(80) % 3, truth.labels + np.linspace(50.0, 60.0, 80), 7.5)
    table.loc[:6, "age"] = table.loc[50:59, "x1"] = None
    table.to_csv(tmp_path / "rows.csv", index=False)
    quick = {"silo": "silo", "iterations": 60, "polish": 0, "threads": 1, "progress": False}
    found = silomix.fit(tmp_path / "rows.csv", **quick)
    assert found.provenance.table == "rows.csv"
    assert "age" in {variable.source for variable in found.family.variables}
    shares = missing_shares(found)
    assert shares.index.tolist() == ["x1", "age"]
    for silo in found.silos:
        gaps = table[table["silo"] == silo].isna().mean()
        assert_allclose(shares[silo], gaps[["x1", "age"]])
    kept = silomix.fit(table, **quick, policy="open")
    assert (kept.assignment.missing, kept.provenance.table) == (None, "")


def test_code_without_a_module_is_warned_too():
    call = "from silomix.errors import DataWarning, warn; warn(DataWarning('odd'))"
    with pytest.warns(DataWarning, match="odd"):
        exec(call, {})
    exec(call, {"__name__": None})  # Python itself warns nobody then


def test_a_result_keeps_what_was_warned_of_in_its_table(seed):
    table = make_table(seed).assign(crp=np.random.default_rng(seed).normal(5, 1, 120).round(2))
    table.loc[:9, "crp"] = -9.0
    with pytest.warns(DataWarning) as told:
        found = silomix.fit(table, **(QUICK | {"iterations": 400}))
    (warning,) = told
    assert warning.filename == __file__
    assert "-9" in str(warning.message)
    assert any(str(warning.message) in note for note in found.diagnostics.notes)


def test_one_variable_may_be_named_by_itself(seed):
    table = make_table(seed)
    named, listed = (silomix.sample(table, variables=one, **QUICK) for one in ("x1", ["x1"]))
    assert_same(named, listed)
    with pytest.raises(SettingsError):
        silomix.sample(table, kinds=["categorical"], **QUICK)
