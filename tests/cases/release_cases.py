"""Local posteriors made from known labels, for releases whose true counts are known."""

from __future__ import annotations

import numpy as np
from cases.aggregation_cases import dirichlet_levels, level_counts

from silomix.model.draws import Diagnostics, Draws, LocalPosterior, Partition, Schedule, Trace
from silomix.model.schema import Prior, Schema, Shard, Variable

PRIOR = Prior()


def schema_of(sizes):
    return Schema(
        tuple(
            Variable(f"v{q}", tuple(f"level {k}" for k in range(levels)))
            for q, levels in enumerate(sizes)
        )
    )


def shard_of(codes, sizes):
    return Shard(schema_of(sizes), np.asarray(codes, dtype=np.uint8))


def draws_of(shard, labels, weights, probabilities, **changes):
    """Draws of one chain with these labels and parameters."""
    labels = np.asarray(labels, dtype=np.uint8)
    given = {
        "log_likelihood": np.zeros(len(labels)),
        "chain": np.zeros(len(labels), dtype=np.int64),
        "last_states": labels[-1:],
        "prior": PRIOR,
        "silos": 1,
        "seed": 0,
        "schedule": Schedule(),
        "diagnostics": Diagnostics({}, trusted=True, verdict=""),
    }
    weights, probabilities = (np.asarray(a, np.float32) for a in (weights, probabilities))
    return Draws(
        shard=shard, labels=labels, weights=weights, probabilities=probabilities, **given | changes
    )


def known_local(rng, codes, labels, sizes, *, silos=3, draws=400, prior=PRIOR):
    """The posterior of a silo whose labels, 0 … k − 1 with the largest first, are certain."""
    alpha, beta = prior.share(silos)
    members = np.bincount(labels)
    counts = np.stack([level_counts(codes[labels == c], sizes) for c in range(len(members))])
    trace = Trace(rng.normal(size=(1, draws)), 1.00123, 387.6)
    made = draws_of(
        shard_of(codes, sizes),
        np.broadcast_to(labels, (draws, len(labels))),
        rng.dirichlet(members + alpha, draws),
        dirichlet_levels(rng, counts + beta, sizes, draws),
        log_likelihood=trace.values[0],
        prior=prior,
        silos=silos,
        schedule=Schedule(iterations=2 * draws, burn_in=draws, chains=1, thin=1),
        diagnostics=Diagnostics({"log_likelihood": trace}, True, "Fine."),
    )
    return LocalPosterior(
        weights=made.weights,
        probabilities=made.probabilities,
        partition=Partition(labels.astype(np.int64), members, "given"),
        relabel="match",
        prior_draws=np.zeros(len(members)),
        memberships=np.eye(len(members))[labels],
        draws=made,
    )


def clustered(rng, members, sizes, **settings):
    """A silo with clusters of these many rows, each with a profile of its own."""
    labels = np.repeat(np.arange(len(members)), members)
    columns = []
    for levels in sizes:
        profiles = rng.dirichlet(np.full(levels, 0.7), len(members))
        ends = profiles.cumsum(axis=1)[labels, :-1]
        columns.append((rng.random(len(labels))[:, None] > ends).sum(axis=1))
    return known_local(rng, np.array(columns).T, labels, sizes, **settings)


def conditions(rng, rows, count, prevalence=0.05, **settings):
    """One cluster of people with binary conditions; and how many have each: (condition,)."""
    codes = (rng.random((rows, count)) < prevalence).astype(np.uint8)
    labels = np.zeros(rows, dtype=np.int64)
    return known_local(rng, codes, labels, (2,) * count, **settings), codes.sum(axis=0)
