"""A posterior as large as the application of Fendler et al. (2026), made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from cases.posteriors import TRUSTED, make_diagnostics, make_posterior

from silomix.model.draws import Correspondence, SiloWeights
from silomix.model.schema import Schema, Variable
from silomix.posterior.verdict import make_provenance
from silomix.study import make_study


def large_posterior(rng, *, clusters=27, conditions=94, silos=30, draws=60):
    """Return a posterior of two-level variables; each silo found ten of the clusters."""
    names = tuple(f"practice {place + 1}" for place in range(silos))
    schema = Schema(tuple(Variable(f"condition {q}", ("no", "yes")) for q in range(conditions)))
    study = make_study(schema, names, seed=1)
    by_silo = rng.dirichlet(np.geomspace(1.0, 0.001, clusters) * 2000, (draws, silos))
    groups = tuple((np.arange(10) + 10 * place) % clusters for place in range(silos))
    sizes = tuple(rng.integers(30, 900, 10) for _ in names)
    sure = rng.random((10 * silos, 10 * silos))
    profiles = rng.dirichlet(np.full(silos, 0.2), clusters).T
    sent = {name: {"Release": 10_000_000, "PolishReply": 640_000} for name in names}
    return replace(
        make_posterior(rng, draws=draws, clusters=clusters, schema=schema, assignment=None),
        study=study,
        weights=by_silo.mean(axis=1).astype(np.float32),
        weights_by_silo=by_silo.astype(np.float32),
        correspondence=Correspondence(names, groups, sizes, "evidence", sure),
        silo_weights=SiloWeights(names, rng.dirichlet(np.ones(silos)), profiles),
        diagnostics=make_diagnostics(silos=dict.fromkeys(names, TRUSTED)),
        provenance=make_provenance(study, [], sent, {name: {"Release": 1} for name in names}),
    )
