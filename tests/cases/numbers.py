"""Tables and posteriors with numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from cases.posteriors import SILOS, make_posterior

from silomix.model.draws import SiloProfiles
from silomix.model.schema import Schema, Variable
from silomix.model.table import encode
from silomix.posterior.verdict import make_provenance
from silomix.study import make_study

AGE = Variable("age", kind="gaussian", location=50.0, scale=10.0)
DOSE = Variable("dose", kind="gaussian", location=2.0, scale=0.5, transform="log")
VISITS = Variable("visits", kind="poisson", location=3.0)
NUMBERS = Schema((AGE, DOSE, VISITS))
MIXED = Schema(
    (Variable("smoker", ("no", "yes")), Variable("stage", ("I", "II", "III")), AGE, VISITS)
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


def numbers_posterior(rng, schema=MIXED, *, draws=50, clusters=3, drifts=False, **changes):
    """Return a posterior of random numbers; with `drifts`, silos have means of their own."""
    study = make_study(schema, SILOS, seed=7)
    family = study.pooled_model.family
    sums = [
        family.features(encode(make_table(rng, 20)[0], schema)).sum(axis=0) for _ in range(clusters)
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
