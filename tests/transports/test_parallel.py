"""joblib as a transport: what travels, what happens when a worker fails, and the ways to it."""

from __future__ import annotations

import os
import signal
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from distributed import Client
from numpy.testing import assert_array_equal

import silomix
from silomix import api
from silomix.errors import DataError, MissingDependency, PolicyRefusal, SettingsError, SiloError
from silomix.kernels.layout import lay_out
from silomix.messages import (
    AssignRows,
    CountDistinctRows,
    DivergenceCost,
    DivergenceReply,
    LogLikelihood,
    PolishRound,
    SampleLocally,
    ShareReleases,
)
from silomix.model.schema import Schema, Shard, Variable
from silomix.silo.answer import answer
from silomix.silo.local import Silo
from silomix.silo.store import Kept
from silomix.study import make_study
from silomix.study.policy import PRESETS, write_policy
from silomix.transports import parallel
from silomix.transports.parallel import Joblib, as_local, workers

pytestmark = pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")

SCHEMA = Schema(tuple(Variable(name, ("no", "yes")) for name in "abc"))
POLISH = PolishRound(1, np.ones((1, 1)), np.full((1, 1, 6), 0.5), None, 1)
ASSIGN = AssignRows(np.array([[0.5, 0.5]]), np.full((1, 2, 6), 0.5))


def make_silos(count=3, rows=20, **settings):
    names = [f"silo {place}" for place in range(count)]
    study = make_study(SCHEMA, names, seed=1, **{"iterations": 100, **settings})
    rng = np.random.default_rng(2)
    return [
        Silo(name, place, Shard(SCHEMA, rng.integers(0, 2, (rows, 3)).astype(np.uint8)), study)
        for place, name in enumerate(names)
    ]


@pytest.fixture
def table():
    return silomix.simulate("nested", rows=120, silos=2, separability="easy", seed=3)[0]


def reply_at_once(bare, *_, **__):
    return bare.name, "reply", {}


class TestWhatTravels:
    @pytest.fixture
    def sent(self, monkeypatch):
        """What each question took along, instead of an answer."""
        seen = {}

        def note(bare, kind, *values, **sent):
            seen[kind] = sent
            return reply_at_once(bare)

        monkeypatch.setattr(parallel, "work", note)
        return seen

    @pytest.mark.parametrize(
        ("query", "words"),
        [
            (SampleLocally(), {"shard"}),
            (DivergenceCost((), (), 1), {"shard", "kept"}),
            (POLISH, {"shard", "prepared"}),
            (CountDistinctRows(), {"shard"}),
            (ASSIGN, {"shard", "kept"}),
        ],
        ids=lambda value: type(value).__name__,
    )  # fmt: skip
    def test_only_what_the_question_needs(self, sent, query, words):
        silos = make_silos()
        replies = Joblib(silos).ask(query)
        assert replies == dict.fromkeys((silo.name for silo in silos), "reply")
        assert sent[type(query)].keys() == words

    def test_releases_were_shared_and_stay_where_they_are(self, sent):
        silos = make_silos()
        releases = tuple(answer(SampleLocally(), silo) for silo in silos)
        groups = tuple(np.zeros(release.clusters, dtype=np.int64) for release in releases)
        share = ShareReleases(releases, groups, 1)
        asked = Joblib(silos)
        asked.ask(share)
        asked.ask(LogLikelihood(share.key, 0, 1, np.ones((1, 3)), np.ones((1, 3, 1))))
        assert ShareReleases not in sent
        assert sent[LogLikelihood].keys() == {"shard", "matched"}
        first, *others = [silo.store.matched for silo in silos]
        assert sent[LogLikelihood]["matched"] is first
        assert all(other is first for other in others)

    def test_a_cluster_gets_the_rows_once(self, sent, monkeypatch):
        scattered = []

        def scatter(items, hash):
            scattered.extend(items)
            return [f"future {len(scattered)}"]

        backend = SimpleNamespace(client=SimpleNamespace(scatter=scatter))
        monkeypatch.setattr(parallel, "get_active_backend", lambda: (backend, 1))
        silo = make_silos(1)[0]
        asked = Joblib([silo])
        asked.ask(SampleLocally())
        asked.ask(ASSIGN)
        assert [item is silo.shard for item in scattered] == [True]
        assert sent[SampleLocally]["shard"] == sent[AssignRows]["shard"] == "future 1"


def test_arrays_of_others_become_plain_ones_wherever_they_are(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="c")
    found = as_local(mapped)
    assert type(found) is np.ndarray
    assert np.shares_memory(found, mapped)  # only what cannot be written is copied
    assert as_local(found) is found
    locked = np.zeros((2, 3))
    locked.flags.writeable = False
    layout = lay_out(np.zeros((2, 3), np.uint8), SCHEMA.sizes)._replace(fused=locked)
    kept = Kept(None, locked, locked, locked)
    reply = as_local(DivergenceReply(locked))
    for array in (reply.cost, as_local(kept).labels, as_local(layout).fused, as_local(locked)):
        assert array.flags.writeable
    assert as_local(None) is None
    assert not locked.flags.writeable


class TestWorkers:
    def test_as_many_as_asked_for_unless_the_caller_says(self):
        assert workers(3).n_jobs == 3
        for config, jobs in (({"n_jobs": 2}, 2), ({"n_jobs": 1}, 1), ({"backend": "threading"}, 3)):
            with joblib.parallel_config(**config):
                assert workers(3).n_jobs == jobs

    def test_an_error_is_the_one_that_was_raised(self, monkeypatch):
        def fail(bare, *_, **__):
            raise DataError(f"{bare.name}: row 7 is wrong")

        monkeypatch.setattr(parallel, "work", fail)
        asked = Joblib(make_silos())
        with joblib.parallel_config(backend="threading", n_jobs=2):
            for context in (asked, nullcontext()):
                with pytest.raises(DataError, match="row 7 is wrong"), context:
                    asked.ask(ASSIGN)

    def test_a_question_out_of_order(self):
        query = LogLikelihood("key", 0, 1, np.ones((1, 3)), np.ones((1, 3, 1)))
        with pytest.raises(PolicyRefusal, match="share them first") as caught:
            Joblib(make_silos()).ask(query)
        assert caught.value.code == "order"

    @pytest.mark.parametrize("jobs", [1, 2])
    def test_an_interrupt_stops_without_a_further_word(self, monkeypatch, jobs):
        def stop(at):
            if at.done:
                raise KeyboardInterrupt

        def work(bare, *_, **__):
            return bare.name, "reply", {"kept": "sampled"}

        monkeypatch.setattr(parallel, "work", work)
        silos = make_silos(8)
        with joblib.parallel_config(backend="threading", n_jobs=jobs):
            with pytest.raises(KeyboardInterrupt), Joblib(silos, report=stop) as asked:
                asked.ask(SampleLocally())
            assert len(Joblib(silos).ask(SampleLocally())) == 8

    def test_progress_counts_the_sweeps_of_finished_silos(self):
        seen = []
        silos = make_silos(3, chains=2)
        Joblib(silos, report=seen.append).ask(SampleLocally())
        assert [(at.stage, at.done, at.total) for at in seen] == [
            ("sampling", done, 600) for done in (0, 200, 400, 600)
        ]


class TestALostWorker:
    @pytest.mark.parametrize("lost", [BrokenProcessPool, CancelledError])
    def test_costs_one_repetition_of_what_is_not_answered_and_twice_is_an_error(
        self, monkeypatch, lost
    ):
        asked, deaths = [], 1

        def work(bare, *_, **__):
            asked.append(bare.name)
            if asked[-1] == "silo 1" and asked.count("silo 1") <= deaths:
                raise lost("a worker died")
            return reply_at_once(bare)

        monkeypatch.setattr(parallel, "work", work)
        replies = Joblib(make_silos()).ask(ASSIGN)
        assert list(replies) == ["silo 0", "silo 1", "silo 2"]
        assert asked == ["silo 0", "silo 1", "silo 1", "silo 2"]
        asked, deaths = [], 2
        with pytest.raises(SiloError, match=r"silo 1, silo 2: the worker died"):
            Joblib(make_silos()).ask(ASSIGN)

    @pytest.mark.slow
    @pytest.mark.parametrize("backend", ["loky", "dask"])
    def test_a_real_one_killed(self, monkeypatch, tmp_path, backend):
        died = tmp_path / "died"

        def work(bare, *_, **__):
            if bare.name == "silo 1" and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return bare.name, os.getpid(), {}

        monkeypatch.setattr(parallel, "work", work)
        with ExitStack() as stack:
            if backend == "dask":
                client = Client(n_workers=2, threads_per_worker=1, dashboard_address=":0")
                stack.enter_context(client)
            stack.enter_context(joblib.parallel_config(backend=backend, n_jobs=2))
            asked = stack.enter_context(Joblib(make_silos(rows=2000)))
            replies = asked.ask(SampleLocally())
        assert died.exists()
        assert set(replies) == {"silo 0", "silo 1", "silo 2"}
        assert os.getpid() not in replies.values()


QUICK = {"iterations": 200, "polish": 1, "progress": False, "seed": 1, "components": 5}


class TestFit:
    def test_random_shards(self, table):
        rows = table.drop(columns="silo")
        with joblib.parallel_config(backend="threading", n_jobs=2):
            here, there = (
                api.fit(rows, shards=3, transport=word, **QUICK) for word in api.TRANSPORTS
            )
        assert_array_equal(here.weights, there.weights)
        assert_array_equal(here.labels, there.labels)
        assert here.silos == there.silos

    def test_transports_are_named(self, table):
        with pytest.raises(SettingsError, match="transport"):
            api.fit(table, transport="pigeon")

    def test_without_joblib(self, table, monkeypatch):
        monkeypatch.setattr("silomix.api.find_spec", lambda name: None if name == "joblib" else 1)
        with pytest.raises(MissingDependency, match=r"pip install 'silomix\[parallel\]'"):
            api.fit(table, silo="silo", transport="joblib")

    def test_a_policy_by_word_by_file_or_as_it_is(self, table, tmp_path, monkeypatch):
        def note(study, silos, **_):
            raise SiloError(silos.silos[0].policy.name)

        monkeypatch.setattr(api, "run_study", note)
        path = write_policy(PRESETS["omop"], tmp_path / "own.toml")
        given = {None: "open", "ukllc": "ukllc", path: "omop", PRESETS["pcornet"]: "pcornet"}
        for policy, name in given.items():
            for transport in api.TRANSPORTS:
                with pytest.raises(SiloError, match=name):
                    api.fit(table, silo="silo", policy=policy, transport=transport)
        with pytest.raises(SettingsError, match="there is no policy 'ukllk'"):
            api.fit(table, silo="silo", policy="ukllk")
