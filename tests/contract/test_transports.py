"""Every transport gives the same result, to the last bit: none contains statistics.

A transport joins with one line in `TRANSPORTS`: a function that takes what to do with the silos,
the silos, and an empty folder, and returns what comes of it. One that cannot answer at once calls
`use` again, as a coordinator is started again.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from cases.pages import blocks
from numpy.testing import assert_array_equal

import silomix
from silomix.coordinator.pipeline import run_study
from silomix.errors import OpenQuestion, PolicyRefusal, SiloError
from silomix.messages import AssignRows, CountDistinctRows, PolishRound, SampleLocally
from silomix.model.schema import Shard
from silomix.model.table import load
from silomix.silo.answer import answer
from silomix.silo.local import Silo
from silomix.study import make_study
from silomix.study.policy import OPEN, Exchanges, Policy
from silomix.study.roster import read_roster
from silomix.transports.encoded import EncodedSilos, respond
from silomix.transports.exchange_folder import FileExchange, Unanswered
from silomix.transports.file_answers import answer_questions
from silomix.transports.in_process import InProcess
from silomix.transports.parallel import Joblib

pytestmark = pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")

SEED = 5


class Plain:
    """One silo after the other: the shortest transport there is."""

    def __init__(self, silos):
        self.silos = silos
        self.names = tuple(silo.name for silo in silos)

    def ask(self, query):
        queries = query if isinstance(query, dict) else dict.fromkeys(self.names, query)
        return {
            silo.name: answer(queries[silo.name], silo)
            for silo in self.silos
            if silo.name in queries
        }


def in_bytes(use, silos, folder):
    by_name = {silo.name: silo for silo in silos}

    def carry(questions):
        return ((name, respond(question, by_name[name])) for name, question in questions.items())

    return use(EncodedSilos(silos[0].study, carry, folder and folder / "journal"))


def over_http(use, silos, folder):
    """The transport of the docs."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "transport.md"
    code, _ = blocks(page.read_text(encoding="utf-8"), "python")[0]
    assert len(code.splitlines()) < 40
    exec(code, written := {})
    servers = {silo.name: written["serve"](silo) for silo in silos}
    addresses = {name: f"http://localhost:{one.server_port}" for name, one in servers.items()}
    try:
        return use(EncodedSilos(silos[0].study, written["carry_to"](addresses)))
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()


def in_process(use, silos, folder):
    return use(InProcess(silos, threads=2))


def on_joblib(backend, jobs):
    def run(use, silos, folder):
        with joblib.parallel_config(backend=backend, n_jobs=jobs), Joblib(silos) as asked:
            return use(asked)

    return run


def on_dask(*, processes):
    def run(use, silos, folder):
        with cluster(processes), joblib.parallel_config(backend="dask"), Joblib(silos) as asked:
            return use(asked)

    return run


def cluster(processes):
    from distributed import Client

    return Client(n_workers=2, threads_per_worker=1, processes=processes, dashboard_address=":0")


class Prompt(FileExchange):
    """Silos that answer by file as soon as they are asked; the coordinator never stops."""

    def __init__(self, silos, folder):
        super().__init__(folder, silos[0].study)
        self.silos = {silo.name: silo for silo in silos}

    def ask(self, query):
        try:
            return super().ask(query)
        except Unanswered as waiting:
            for name in waiting.missing:
                list(answer_questions(self.folder, self.silos[name]))
        self.encoded.asked -= 1
        return super().ask(query)


def by_file(use, silos, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("silomix.messages.folder.draw_profiles", lambda *_: None)  # a second each
        return use(Prompt(silos, folder / "exchange"))


def on_flare(use, silos, folder):
    """Our controller and our executors, with FLARE's tasks and its serialisation between them."""
    pytest.importorskip("nvflare", reason="the extra flare is not installed")
    from nvflare.apis.client import Client
    from nvflare.apis.controller_spec import ClientTask
    from nvflare.apis.utils.decomposers import flare_decomposers
    from nvflare.fuel.utils import fobs

    from silomix.transports.flare.controller import StudyController
    from silomix.transports.flare.executor import SiloExecutor

    flare_decomposers.register()

    class AtOnce(StudyController):
        """Sends no task to another process: each is answered before the next."""

        def broadcast(self, task, fl_ctx, targets, min_responses):
            [name] = targets
            sent = ClientTask(Client(name, ""), task)
            question = fobs.loads(fobs.dumps(task.data))
            at_site = SimpleNamespace(get_identity_name=lambda: name)
            answer = executors[name].execute(task.name, question, at_site, None)
            sent.result, sent.result_received_time = fobs.loads(fobs.dumps(answer)), 1.0
            task.client_tasks.append(sent)

        def cancel_all_tasks(self, fl_ctx):
            pass

    def executor_of(silo):
        made = SiloExecutor()
        made._site = silo, np.arange(silo.shard.rows)
        return made

    executors = {silo.name: executor_of(silo) for silo in silos}
    clients = [Client(name, "") for name in executors]
    controller = AtOnce(60.0)
    controller._abort = SimpleNamespace(triggered=False)
    engine = SimpleNamespace(get_clients=lambda: clients)
    controller._fl_ctx = SimpleNamespace(get_engine=lambda: engine)
    return use(EncodedSilos(silos[0].study, controller.exchange, folder / "journal"))


TRANSPORTS = {
    "in-process": in_process,
    "in bytes": in_bytes,
    "the transport of the docs": over_http,
    "flare": on_flare,
    "joblib, loky": on_joblib("loky", 2),
    "dask": on_dask(processes=False),
}
SLOW_TRANSPORTS = {
    "joblib, threads": on_joblib("threading", 3),
    "dask, processes": on_dask(processes=True),
    "files": by_file,
}

every_transport = pytest.mark.parametrize(
    "transport",
    [
        *TRANSPORTS.values(),
        *(pytest.param(run, marks=pytest.mark.slow) for run in SLOW_TRANSPORTS.values()),
    ],
    ids=[*TRANSPORTS, *SLOW_TRANSPORTS],
)

ROUNDS = Policy(minimum_count=3, round_to=2, exchanges=Exchanges(sharing=9, gradients=10**6))
# "federated" matches again with clusters that count for less; silos are shown what was released,
# rounded, which the coordinator allows for
STUDIES = {
    "default": {"polish": 2},
    "federated": {
        "policy": ROUNDS,
        "oracle": "federated",
        "solver": silomix.FewRounds(rounds=2, starts=3),
        "refine": 1,
        "polish": 0,
        "tier": "summary",
    },
    "divergence": {
        "matching": "divergence", "aggregation": "cmc", "polish": 0, "assign": "matching",
    },
    "exact": {"strategy": "exact", "iterations": 16, "chains": 1, "kept": 8},
}  # fmt: skip
every_study = pytest.mark.parametrize("settings", STUDIES, ids=str)


def make_silos(policy=OPEN, **settings):
    design = {"separability": "easy", "drift": 3.0, "seed": SEED}
    table, _ = silomix.simulate("non-nested", rows=120, silos=3, **design)
    roster = read_roster(table, "silo")
    shard = load(table[["x1", "x2", "x5", "x9"]])
    study = make_study(
        shard.schema, roster.names, seed=SEED, **{"iterations": 100, "components": 4, **settings}
    )
    return [
        Silo(name, place, Shard(shard.schema, shard.codes[roster.places == place]), study,
             policy=policy)
        for place, name in enumerate(roster.names)
    ]  # fmt: skip


def fit_on(transport, settings, folder):
    silos = make_silos(**settings)
    posterior = transport(lambda asked: run_study(silos[0].study, asked), silos, folder)
    return posterior, [silo.store.membership for silo in silos]


@cache
def expected(name):
    return fit_on(lambda use, silos, folder: use(Plain(silos)), STUDIES[name], None)


def own_profiles(posterior):
    """What the silos have of their own, where they may drift."""
    own = posterior.silo_profiles
    return () if own is None else (own.kappa, own.parameters)


def test_some_silos_differ():
    for name in ("default", "exact"):
        kappa, _ = own_profiles(expected(name)[0])
        assert np.isfinite(kappa).any()


@every_transport
@every_study
def test_one_study_gives_one_result(transport, settings, tmp_path):
    posterior, memberships = fit_on(transport, STUDIES[settings], tmp_path)
    reference, reference_memberships = expected(settings)
    for part in ("weights", "weights_by_silo", "probabilities"):
        assert_array_equal(getattr(posterior, part), getattr(reference, part))
    for one, other in zip(own_profiles(posterior), own_profiles(reference), strict=True):
        assert_array_equal(one, other)
    for found, wanted in zip(memberships, reference_memberships, strict=True):
        assert_array_equal(found, wanted)
    assert posterior.provenance.sent == reference.provenance.sent
    assert posterior.provenance.releases == reference.provenance.releases


@every_transport
def test_only_the_named_silos_are_asked_and_a_question_may_come_twice(transport, tmp_path):
    silos = make_silos()
    rng = np.random.default_rng(SEED)
    levels = silos[0].shard.schema.offsets
    profiles = rng.random((3, 2, levels[-1]))
    profiles /= np.repeat(np.add.reduceat(profiles, levels[:-1], axis=-1), np.diff(levels), -1)
    weights = rng.dirichlet(np.ones(2), 3)
    query = PolishRound(1, weights, profiles, 0.5, 1)

    def use(asked):
        names = asked.names
        asked.ask({names[0]: AssignRows(weights, profiles)})
        sampled = asked.ask(SampleLocally()), asked.ask(SampleLocally())
        return names, sampled, asked.ask({names[2]: query, names[0]: query}), asked.ask(query)

    names, (first, second), some, polished = transport(use, silos, tmp_path)
    for name, release in first.items():
        assert_array_equal(release.mean, second[name].mean)
    assert all(silo.store.kept is not None for silo in silos)
    assert names == tuple(silo.name for silo in silos)
    assert set(some) == {names[0], names[2]}
    assert set(polished) == set(names)
    assert_array_equal(some[names[2]].statistics, polished[names[2]].statistics)
    assert_array_equal(polished[names[1]].statistics, answer(query, make_silos()[1]).statistics)
    assert silos[0].store.membership.shape == (silos[0].shard.rows, 2)
    assert silos[1].store.membership is None


@every_transport
def test_a_policy_holds_and_its_limits_are_counted(transport, tmp_path):
    once = Exchanges(divergence=0, gradients=0, distinct_rows=1, polish=1)
    silos = make_silos(policy=OPEN.model_copy(update={"exchanges": once}))
    offsets = silos[0].shard.schema.offsets
    even = np.repeat(1 / np.diff(offsets), np.diff(offsets))
    profiles = np.tile(even, (1, 2, 1))

    def polish(place):
        return PolishRound(place, np.full((1, 2), 0.5), profiles, 0.5, 1)

    answered = []

    def use(asked):
        for query in (polish(1), polish(1), CountDistinctRows(), polish(2)):
            asked.ask(query)
            answered.append(type(query))

    refusals = (PolicyRefusal, SiloError, OpenQuestion)
    with pytest.raises(refusals, match=r"polish|limit|no more questions"):
        transport(use, silos, tmp_path)
    assert answered == [PolishRound, PolishRound, CountDistinctRows]
