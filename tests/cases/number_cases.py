"""Studies and silos with numbers, put together by hand."""

from __future__ import annotations

import numpy as np

from silomix import local_posterior
from silomix.messages.container import Envelope, digest_record
from silomix.messages.folder import message_files, read, write_folder
from silomix.messages.message_checks import check_reply
from silomix.model.draws import Schedule
from silomix.model.prior import Prior
from silomix.model.schema import Schema, Shard, Variable
from silomix.silo.local import Silo
from silomix.silo.release import make_release
from silomix.silo.sampler import Job, sample_shard
from silomix.study import digest, make_study
from silomix.study.policy import PRESETS
from silomix.study.settings import Study

DEFAULT = PRESETS["default"]
AGE = Variable("age", kind="gaussian", location=54.0, scale=9.0)
VISITS = Variable("visits", kind="poisson", location=3.0)
SMOKER = Variable("smoker", ("no", "yes"))
NUMBERS = Schema((AGE, VISITS))
MIXED = Schema((SMOKER, AGE, VISITS))


class NumberStudy(Study):
    """A study of the variables of `MIXED`, which its settings stand for by their names."""

    @property
    def table_schema(self):
        return MIXED


def number_study(silos, **settings):
    plain = Schema(tuple(Variable(v.name, v.levels or ("a", "b")) for v in MIXED.variables))
    return NumberStudy(**dict(make_study(plain, silos, **settings)))


def shard_of(schema, numbers, codes=None):
    """Rows with these numbers, (row, number): age in the study's units, visits as they are."""
    codes = np.zeros((len(numbers), 0)) if codes is None else codes
    return Shard(schema, codes.astype(np.uint8), np.asarray(numbers, dtype=np.float64))


def local_of(shard, components=1, seed=3):
    schedule = Schedule(iterations=600, burn_in=200, chains=1, thin=2)
    return local_posterior(sample_shard(shard, Job(components, Prior(), schedule, seed, 0, 0)))


def release_of(shard, policy=DEFAULT, tier="summary", **sampling):
    local = local_of(shard, **sampling)
    return make_release(local, silo="north", place=0, study="5" * 64, tier=tier, policy=policy)


def two_clusters(rng, rows):
    """Young smokers who seldom visit, and old others who often do: a shard, and who is who."""
    old = rng.random(rows) < 0.4
    numbers = np.c_[rng.normal(np.where(old, 1.2, -0.9), 0.5), rng.poisson(np.where(old, 7, 1.5))]
    codes = (rng.random((rows, 1)) < np.where(old, 0.2, 0.8)[:, None]).astype(np.uint8)
    return shard_of(MIXED, numbers, codes), old


def silos_of(study, shards, policy=DEFAULT):
    named = zip(study.silos, shards, strict=True)
    return [Silo(name, i, rows, study, policy=policy) for i, (name, rows) in enumerate(named)]


class ByFolder:
    """Silos whose questions and answers are all written to folders, and read again."""

    def __init__(self, silos, study, folder):
        self.silos, self.study, self.folder, self.names = silos, study, folder, silos.names

    def carry(self, name, record, number, answers=""):
        envelope = Envelope(digest(self.study), name, number, type(record).__name__, answers)
        target = self.folder / f"{number}-{name}-{type(record).__name__}"
        write_folder(target, message_files(envelope, record, self.study.table_schema).items())
        return read(target, study=self.study)[1]

    def ask(self, query, *args, **more):
        replies = self.silos.ask(query, *args, **more)
        number = len(list(self.folder.iterdir())) + 1
        found = {}
        for name, reply in replies.items():
            asked = query[name] if isinstance(query, dict) else query
            found[name] = self.carry(name, reply, number, digest_record(asked))
            check_reply(found[name], asked, self.study, name)
        return found
