"""One question of every kind with its answer, small and valid, and the study they belong to."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from cases.aggregation_cases import conjugate_release, dirichlet_levels
from numpy.testing import assert_array_equal

from silomix.messages import (
    AssignRows,
    Check,
    CountDistinctRows,
    DistinctRows,
    DivergenceCost,
    DivergenceReply,
    LogLikelihood,
    LogLikelihoodReply,
    PolishReply,
    PolishRound,
    Received,
    Refused,
    ReleasedDiagnostics,
    SampleLocally,
    ShareReleases,
)
from silomix.messages.container import Envelope, digest_record
from silomix.messages.folder import message_files, write_folder
from silomix.model.schema import Schema, Variable
from silomix.paper import FewRounds
from silomix.study import Study, digest, make_study

SIZES = np.array([2, 3, 2])
OFFSETS = np.array([0, 2, 5, 7])
SILOS = ("north", "süd", "east 3")
SCHEMA = Schema(
    tuple(Variable(f"v{q}", tuple(map(str, range(size)))) for q, size in enumerate(SIZES))
)
CLUSTERS = 3
GROUPS = (np.array([0, 1]), np.array([0, 2]), np.array([1, 2]))
"""Two local clusters in each silo, three global ones."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """A question to one silo of a study, and its answer."""

    study: Study
    query: Any
    reply: Any
    silo: str = SILOS[1]

    def envelope(self, record: Any) -> Envelope:
        answers = digest_record(self.query) if record is self.reply else ""
        return Envelope(digest(self.study), self.silo, 7, type(record).__name__, answers)

    @property
    def records(self) -> list[Any]:
        return [self.query, self.reply]


def study_with(**settings: Any) -> Study:
    return make_study(SCHEMA, SILOS, seed=3, components=4, **settings)


def make_release(study, place, seed=0, draws=6):
    """A release of one silo with two clusters, its parts as the silo would compute them."""
    rng = np.random.default_rng([seed, place])
    labels = np.repeat([0, 1], [12 + place, 9])
    codes = rng.integers(0, SIZES, (len(labels), len(SIZES))).astype(np.uint8)
    prior = study.prior
    made = conjugate_release(rng, place, codes, labels, SIZES, prior, len(SILOS), draws)
    drawn = made.parameters if study.tier == "draws" else None
    return replace(
        made,
        silo=SILOS[place],
        study=digest(study),
        tier=study.tier,
        weights=made.weights if drawn is not None else None,
        parameters=drawn,
        diagnostics=ReleasedDiagnostics(
            verdict="Use with care: ≥ 2 traces.",
            trusted=False,
            rhat={"log_likelihood": 1.01, "occupied": float("nan")},
            ess={"log_likelihood": 0.1 + 0.2, "occupied": float("inf")},
            prior_draws=0.25,
            agreement=0.75,
            full=0.125,
        ),
        checks=(Check("counts rounded", "sizes", 5, 2, None, "applied"),),
    )


def draw_shares(rng, *shape):
    return rng.dirichlet(np.ones(shape[-1]), shape[:-1])


def exchanges(seed=0) -> dict[str, Exchange]:
    """One exchange of each sort, by a name for it."""
    rng = np.random.default_rng(seed)
    plain = study_with()
    summary = study_with(tier="summary")
    divergence = study_with(matching="divergence")
    federated = study_with(oracle="federated", solver=FewRounds(rounds=3, starts=4))
    exact = study_with(strategy="exact")
    matched = study_with(assign="matching")
    by_summary = study_with(oracle="federated", tier="summary")
    share, share_summary = (
        ShareReleases(tuple(make_release(study, place, seed) for place in range(3)), GROUPS, 20)
        for study in (federated, by_summary)
    )
    points = rng.dirichlet(np.ones(3), (4, CLUSTERS)).transpose(0, 2, 1)
    draws = dirichlet_levels(rng, np.ones((CLUSTERS, 7)), SIZES, 5)
    rows = 30
    members = rng.multinomial(rows, np.ones(CLUSTERS) / CLUSTERS, size=5)
    counts = np.concatenate(
        [rng.multinomial(np.maximum(members - 1, 0), np.full(size, 1 / size)) for size in SIZES],
        axis=2,
    )
    polish = PolishRound(2, draw_shares(rng, 5, CLUSTERS), draws, 0.5 / 3, 2)
    chains = slice(0, exact.sampling.chains)
    sweep = PolishRound(9, polish.weights[chains], draws[chains], None, 1)
    assign = AssignRows(draw_shares(rng, 5, CLUSTERS), draws)
    return {
        "sample": Exchange(plain, SampleLocally(), make_release(plain, 1, seed)),
        "sample, summary": Exchange(summary, SampleLocally(), make_release(summary, 1, seed)),
        "refused": Exchange(plain, SampleLocally(), Refused("too-few-rows")),
        "divergence": Exchange(
            divergence,
            DivergenceCost(
                tuple(make_release(divergence, place, seed) for place in (2, 0)),
                (np.array([0, 1]), np.array([2, 0])),
                2,
            ),
            DivergenceReply(rng.normal(size=(5, 5))),
        ),
        "share": Exchange(federated, share, Received()),
        "share, summary": Exchange(by_summary, share_summary, Received()),
        "gradients": Exchange(
            federated,
            LogLikelihood(share.key, 0, 10, draw_shares(rng, 4, 3), points),
            LogLikelihoodReply(
                -rng.exponential(100, 4), rng.normal(size=(4, 3)), rng.normal(size=points.shape)
            ),
        ),
        "distinct rows": Exchange(
            plain,
            CountDistinctRows(),
            DistinctRows(
                np.array([[0, 1, 1], [1, 2, 0], [2, 3, 2]], np.uint8), np.array([20, 3, 1])
            ),
        ),
        "polish": Exchange(
            plain,
            polish,
            PolishReply.of(counts, members, draw_shares(rng, 5, CLUSTERS), -rng.exponential(9, 5)),
        ),
        "exact": Exchange(
            exact,
            sweep,
            PolishReply.of(
                counts[chains],
                members[chains],
                sweep.weights,
                -rng.exponential(9, len(members))[chains],
            ),
        ),
        "assign": Exchange(plain, assign, Received()),
        "assign, matching": Exchange(
            matched,
            AssignRows(
                assign.weights.astype(np.float32), draws.astype(np.float32), np.array([2, 0])
            ),
            Received(),
        ),
    }


EXCHANGES = exchanges()
CASES = {
    f"{name}: {type(record).__name__}": (exchange, record)
    for name, exchange in EXCHANGES.items()
    for record in exchange.records
}
each_case = pytest.mark.parametrize(("exchange", "record"), list(CASES.values()), ids=list(CASES))


def write(folder, envelope, record, *, study):
    """Write a message as a folder, and return its path."""
    write_folder(folder, message_files(envelope, record, study.table_schema).items())
    return folder


def assert_same(found, expected):
    """Compare two records to the last bit, types included."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    elif isinstance(parts := _parts(expected), dict):
        others = _parts(found)
        assert list(others) == list(parts)
        for key, part in parts.items():
            assert_same(others[key], part)
    else:
        assert_array_equal(found, expected)


def _parts(value):
    """What a record, a list or a table holds, by name; anything else as it is."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return dict(enumerate(value)) if isinstance(value, tuple | list) else value
