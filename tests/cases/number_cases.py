"""Rows with numbers, and what a silo makes of them."""

from __future__ import annotations

import numpy as np

from silomix import local_posterior
from silomix.model.draws import Schedule
from silomix.model.schema import Prior, Schema, Shard, Variable
from silomix.silo.release import make_release
from silomix.silo.sampler import Job, sample_shard
from silomix.study.policy import PRESETS

DEFAULT = PRESETS["default"]
AGE = Variable("age", kind="gaussian", location=54.0, scale=9.0)
VISITS = Variable("visits", kind="poisson", location=3.0)
SMOKER = Variable("smoker", ("no", "yes"))
NUMBERS = Schema((AGE, VISITS))
MIXED = Schema((SMOKER, AGE, VISITS))


def shard_of(schema, numbers, codes=None):
    """Rows with these numbers, (row, number): age in the study's units, visits as they are."""
    codes = np.zeros((len(numbers), 0)) if codes is None else codes
    return Shard(schema, codes.astype(np.uint8), np.asarray(numbers, dtype=np.float64))


def local_of(shard, components=1, seed=3):
    # one cluster is there from the beginning
    sweeps, burn_in, thin = (600, 200, 2) if components > 1 else (110, 10, 1)
    schedule = Schedule(iterations=sweeps, burn_in=burn_in, chains=1, thin=thin)
    return local_posterior(sample_shard(shard, Job(components, Prior(), schedule, seed, 0, 0)))


def release_of(shard, policy=DEFAULT, tier="summary", *, inside=False, **sampling):
    local = local_of(shard, **sampling)
    how = {"tier": tier, "policy": policy, "inside": inside}
    return make_release(local, silo="north", place=0, study="5" * 64, **how)


def two_clusters(rng, rows):
    """Young smokers who seldom visit, and old others who often do: a shard, and who is who."""
    old = rng.random(rows) < 0.4
    numbers = np.c_[rng.normal(np.where(old, 1.2, -0.9), 0.5), rng.poisson(np.where(old, 7, 1.5))]
    codes = (rng.random((rows, 1)) < np.where(old, 0.2, 0.8)[:, None]).astype(np.uint8)
    return shard_of(MIXED, numbers, codes), old
