"""Posteriors made up for tests."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import safetensors.numpy

from silomix.messages import ReleasedDiagnostics
from silomix.model.draws import Correspondence, SiloProfiles, SiloWeights, to_four_decimals
from silomix.model.schema import Schema, Variable
from silomix.model.table import encode
from silomix.posterior.global_posterior import Assignment, Posterior
from silomix.posterior.saved_file import DOCUMENT
from silomix.posterior.verdict import PolishTrace, PosteriorDiagnostics, make_provenance
from silomix.study import make_study

SCHEMA = Schema(
    (
        Variable("smoker", ("no", "yes")),
        Variable("stage", ("I", "II", "III")),
        Variable("sex", ("f", "m")),
    )
)
AGE = Variable("age", kind="gaussian", location=50.0, scale=10.0)
DOSE = Variable("dose", kind="gaussian", location=2.0, scale=0.5, transform="log")
VISITS = Variable("visits", kind="poisson", location=3.0)
NUMBERS = Schema((AGE, DOSE, VISITS))
MIXED = Schema(
    (Variable("smoker", ("no", "yes")), Variable("stage", ("I", "II", "III")), AGE, VISITS)
)
SILOS = ("north", "south")
TRUSTED = ReleasedDiagnostics(
    verdict="Trust it: R-hat is at most 1.01 and there are at least 900 effective draws.",
    trusted=True,
    rhat={"log_likelihood": 1.01, "occupied": float("nan")},
    ess={"log_likelihood": 900.5, "occupied": float("inf")},
    prior_draws=0.002,
    agreement=0.975,
    full=0.001,
)
DOUBTED = ReleasedDiagnostics(
    verdict="Use with care: the log-likelihood has only 12 effective draws.",
    trusted=False,
    rhat={"log_likelihood": 1.3},
    ess={"log_likelihood": 12.0},
    prior_draws=0.0,
    agreement=0.41,
)


def make_diagnostics(**changes):
    usual = {
        "silos": dict.fromkeys(SILOS, TRUSTED),
        "elbo": np.array([-30.0, -20.5, -20.25]),
        "polish": PolishTrace(
            {"log_likelihood": np.arange(8.0), "movement": np.ones((2, 4))}, 8, False, 64
        ),
    }
    return PosteriorDiagnostics(**usual | changes)


def make_posterior(rng, *, draws=50, clusters=3, rows=12, schema=SCHEMA, **changes):
    """Return a posterior of random numbers, every part there, the largest cluster first."""
    study = make_study(schema, SILOS, seed=7, title="made up")
    by_silo = rng.dirichlet(3.0 ** np.arange(clusters, 0, -1), (draws, len(SILOS)))
    probabilities = np.concatenate(
        [rng.dirichlet(np.ones(size), (draws, clusters)) for size in schema.sizes], axis=2
    )
    membership = to_four_decimals(rng.dirichlet(np.ones(clusters), rows))
    variables = len(changes.get("study", study).variables)
    missing = np.arange(len(SILOS) * variables).reshape(len(SILOS), variables) % 2
    local = clusters + 1
    confidence = rng.random((2 * local, 2 * local))
    groups = tuple(np.arange(local) % clusters for _ in SILOS)
    parts = {
        "study": study,
        "weights": by_silo.mean(axis=1).astype(np.float32),
        "weights_by_silo": by_silo.astype(np.float32),
        "profile_draws": probabilities.astype(np.float32),
        "correspondence": Correspondence(
            silos=SILOS,
            groups=groups,
            sizes=tuple(rng.integers(1, 50, local) for _ in SILOS),
            method="evidence",
            confidence=(confidence + confidence.T) / 2,
        ),
        "silo_weights": SiloWeights(
            SILOS, np.array([0.25, 0.75]), rng.dirichlet(np.ones(2), clusters).T
        ),
        "diagnostics": make_diagnostics(),
        "provenance": make_provenance(
            study,
            [],
            {name: {"Release": 1000, "PolishReply": 64} for name in SILOS},
            {name: {"Release": 1, "PolishReply": 2} for name in SILOS},
        ),
        "assignment": Assignment(
            membership.argmax(axis=1), membership, rng.integers(0, len(SILOS), rows), missing
        ),
    }
    return Posterior(**parts | changes)


def with_drift(posterior, rng, *, kappa=(5.0, np.inf, 200.0), silo_draws=20, point=False):
    """Return the posterior with profiles of each silo's own, around the shared ones.

    Every draw has the same κ, but for a tenth of the draws in which the first one is infinite;
    with `point`, κ is a point value.
    """
    offsets = posterior.study.table_schema.offsets
    shared = posterior.probabilities[-silo_draws:, None].astype(np.float64)
    own = np.repeat(shared, len(posterior.silos), axis=1)
    for start, stop, alike in zip(offsets[:-1], offsets[1:], kappa, strict=True):
        if np.isfinite(alike):
            gamma = rng.standard_gamma(alike * own[..., start:stop] + 1e-3)
            own[..., start:stop] = gamma / gamma.sum(axis=-1, keepdims=True)
    draws = np.tile(np.array(kappa, dtype=np.float64), (1 if point else posterior.n_draws, 1))
    draws[: len(draws) // 10, 0] = np.inf
    return replace(posterior, silo_profiles=SiloProfiles(draws, own.astype(np.float32)))


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
    parameters = family.draw(family.prior() + family.conjugate(np.array(sums)), rng, draws)
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


def unpack(path):
    """Return the document and the arrays of a saved posterior."""
    arrays = safetensors.numpy.load(gzip.decompress(path.read_bytes()))
    return json.loads(arrays.pop(DOCUMENT).tobytes()), arrays


def pack(path, document, arrays):
    """Write a document, or any text, and arrays as a saved posterior."""
    text = document if isinstance(document, str) else json.dumps(document)
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    arrays[DOCUMENT] = np.frombuffer(text.encode(), np.uint8)
    path.write_bytes(gzip.compress(safetensors.numpy.save(arrays), mtime=0))
