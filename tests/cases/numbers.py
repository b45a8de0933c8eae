"""Tables, studies and posteriors with numbers.

`study_of`, `load` and `fit` stand in for `make_study`, `load` and `silomix.fit(table, kinds=...)`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from cases.posteriors import SILOS, make_posterior

from silomix.coordinator.pipeline import run_study
from silomix.model.draws import SiloProfiles
from silomix.model.schema import Schema, Shard, Variable
from silomix.posterior.global_posterior import Assignment
from silomix.posterior.membership import to_four_decimals
from silomix.posterior.verdict import make_provenance
from silomix.silo.local import Silo
from silomix.study import Study, make_study
from silomix.transports.in_process import InProcess

AGE = Variable("age", kind="gaussian", location=50.0, scale=10.0)
DOSE = Variable("dose", kind="gaussian", location=2.0, scale=0.5, transform="log")
VISITS = Variable("visits", kind="poisson", location=3.0)
NUMBERS = Schema((AGE, DOSE, VISITS))
MIXED = Schema(
    (Variable("smoker", ("no", "yes")), Variable("stage", ("I", "II", "III")), AGE, VISITS)
)


def study_of(schema, silos=SILOS, **settings):
    """Return a study of these variables."""

    class NumbersStudy(Study):
        @property
        def table_schema(self):
            return schema

    named = Schema(tuple(Variable(v.name, v.levels or ("a", "b")) for v in schema.variables))
    return NumbersStudy(**dict(make_study(named, silos, **{"seed": 7} | settings)))


def load(table, schema):
    """Return the rows of a table."""
    codes = [
        pd.Categorical(table[v.name], v.levels).codes % (len(v.levels) + 1)
        for v in schema.categories
    ]
    numbers = [
        (np.log(table[v.name]) if v.transform == "log" else table[v.name]) - v.location
        for v in schema.numbers
    ]
    numbers = [
        table[v.name] if v.kind == "poisson" else column / v.scale
        for v, column in zip(schema.numbers, numbers, strict=True)
    ]
    shape = (len(codes), len(table))
    return Shard(
        schema,
        np.ascontiguousarray(np.reshape(codes, shape).T, np.uint8),
        np.ascontiguousarray(np.transpose(numbers), np.float64),
    )


def make_table(rng, rows=300):
    """Return two clusters that differ in everything, in two silos, and the cluster of each row."""
    labels = rng.integers(0, 2, rows)
    older = 50 + 16 * labels
    columns = {
        "silo": np.array(SILOS)[rng.integers(0, 2, rows)],
        "smoker": np.where(rng.random(rows) < 0.2 + 0.6 * labels, "yes", "no"),
        "stage": np.array(["I", "II", "III"])[rng.integers(0, 2, rows) + labels],
        "age": rng.normal(older, 5.0),
        "dose": np.exp(rng.normal(2.0 - labels, 0.3)),
        "visits": rng.poisson(1 + 5 * labels),
    }
    return pd.DataFrame(columns), labels


def fit(table, schema, **settings):
    """Return the posterior of a table whose column "silo" names the silos."""
    study, shard = study_of(schema, **settings), load(table, schema)
    places = np.array([SILOS.index(name) for name in table["silo"]])
    silos = [Silo(name, i, shard.some(places == i), study) for i, name in enumerate(SILOS)]
    found = run_study(study, InProcess(silos, threads=1), threads=1)
    membership = np.empty((len(table), found.n_clusters))
    for silo in silos:
        membership[places == silo.place] = silo.store.membership
    kept = to_four_decimals(membership)
    return replace(found, assignment=Assignment(kept.argmax(axis=1), kept, places))


def numbers_posterior(rng, schema=MIXED, *, draws=50, clusters=3, drifts=False, **changes):
    """Return a posterior of random numbers; with `drifts`, silos have means of their own."""
    study = study_of(schema)
    family = study.pooled_model.family
    sums = [
        family.features(load(make_table(rng, 20)[0], schema)).sum(axis=0) for _ in range(clusters)
    ]
    parameters = family.draw(family.posterior(np.array(sums)), rng, draws)
    made = make_posterior(
        rng,
        draws=draws,
        clusters=clusters,
        study=study,
        provenance=make_provenance(study, [], {}, {}),
        profile_draws=parameters.astype(np.float32),
        **changes,
    )
    if not drifts:
        return made
    own = np.repeat(made.profile_draws[-20:, None], len(SILOS), axis=1)
    own[:, 1] = family.back(family.coordinates(own[:, 1]) + 0.1)
    kappa = np.full((draws, len(schema.variables)), 10.0)
    kappa[: draws // 10] = np.inf
    return replace(made, silo_profiles=SiloProfiles(kappa, own.astype(np.float32)))
