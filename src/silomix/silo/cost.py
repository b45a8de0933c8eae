"""Estimated time and memory of a study or a question in a silo, before any work.

Operations are counted from the study's settings and the size of the table, and multiplied by the
cost of each. The constants were fitted once, by hand, on one core of a 2-core x86-64 server:
to sweeps of 22 tables, to 16 whole samplings (300 to 200,000 rows, 5 to 94 variables of every kind
but Poisson, 2 to 2,000 levels, 10 to 250 components, up to 300 chains), and `PER_MEMBERSHIP` to
`benchmarks/results/scale.csv`. Of those samplings the estimates were 0.8 to 3.2 times the seconds,
and 1 to 2.8 times the bytes; `PER_JOINING` is a guess. They serve to refuse absurd studies, not to
plan a run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.errors import PolicyRefusal
from silomix.families.derived import parameter_counts
from silomix.families.release_rounding import round_counts
from silomix.messages import AssignRows, LogLikelihood, PolishRound, Query
from silomix.silo.sampler import STARTING_SWEEPS, TIMES_AS_MANY

if TYPE_CHECKING:
    from silomix.silo.local import Silo

# Nanoseconds per row of a sweep if all variables are categorical: each bit of the levels is part of
# a table look-up, plus a little for each component.
PER_ROW, PER_BIT, PER_BIT_AND_COMPONENT = 2.0, 0.2, 0.002
# Otherwise, per row and component: an exponential, and a product for each statistic.
PER_EXPONENTIAL, PER_PRODUCT = 3.0, 0.055
# Per imputed row and component: times the squared parameters of a block, over its variables.
PER_HIDDEN = 3.0
# Per sweep, with categories alone and otherwise; per parameter drawn.
PER_SWEEP, PER_FEATURE_SWEEP, PER_PARAMETER = 5e3, 150e3, 30.0
# Per pair of partitioned rows: for the tree or the medoids, and for each kept draw.
PER_PAIR, PER_PAIR_AND_DRAW = {"linkage": 50.0, "pam": 150.0}, 0.02
# Per row and kept draw, when the partition is made; and for each component.
PER_LABEL, PER_LABEL_AND_COMPONENT = 4.0, 0.3
# Per row, statistic and component in all steps of the bound; per pair of compared chains.
PER_BOUND, PER_TWO_CHAINS = 0.3, 5e4
# Per aligned draw; for each pair of components; for each of its parameters.
PER_DRAW, PER_DRAW_AND_PAIR, PER_KEPT_PARAMETER = 3e4, 10.0, 25.0
# Per statistic of two components that may be merged, where the number of clusters is known.
PER_JOINING = 30.0
# Per membership probability of a row in a cluster, under one draw.
PER_MEMBERSHIP = 10.0
# Bytes per pair of partitioned rows; per aligned parameter; per statistic of a row; per membership
# of a row; per imputed row and component, by parameters of a variable.
PAIR_BYTES, ALIGNED_BYTES, STATISTIC_BYTES, SHARE_BYTES, HIDDEN_BYTES = 11, 9, 16, 24, 32


class Cost(NamedTuple):
    """Estimated minutes and gigabytes, which a policy limits."""

    minutes: float
    gigabytes: float


def check_cost(cost: Cost, silo: Silo, what: str) -> None:
    """Refuse work that would exceed the time or memory that a silo's policy allows."""
    for unit, amount in cost._asdict().items():
        most: int = getattr(silo.policy.limits, unit)
        if not amount <= most:
            raise PolicyRefusal(
                f"{silo.name}: {what} would take about {amount:,.0f} {unit} for its "
                f"{public_rows(silo):,} rows, by an estimate, and the silo's policy allows "
                f"{most:,}; make the study smaller, or let the policy's owner change [limits]"
            )


def public_rows(silo: Silo) -> int:
    """Number of rows, rounded by the policy: a refusal depends on no more."""
    rows, policy = np.array(silo.shard.rows), silo.policy
    return int(round_counts(rows, policy) if policy.has_rules else rows)


def sampling_cost(silo: Silo) -> Cost:
    """Cost of sampling, partitioning and aligning a silo's posterior."""
    study, rows, local = silo.study, float(public_rows(silo)), silo.study.local
    family, components, chains = study.pooled_model.family, study.model.components, 1.0
    chains *= study.schedule.chains
    statistics, hidden = float(family.statistics.sum()), float((~silo.rows.seen).sum())
    sweeps, kept = chains * study.schedule.iterations, chains * study.sampling.kept
    of_cluster = components * float(family.parameters.sum())
    joined = 0.0  # numbers, while components are joined to begin with
    if study.model.clusters is not None:
        sweeps += chains * STARTING_SWEEPS * TIMES_AS_MANY
        joined = (TIMES_AS_MANY * components) ** 2 / 2 * statistics
    partitioned = rows if rows <= max(local.threshold, local.subsample) else local.subsample
    pairs = float(partitioned) ** 2
    at_once = max(1.0, min(silo.threads, chains))
    seconds = [
        sweeps * _sweep(silo, components) / at_once,
        chains * joined * PER_JOINING * TIMES_AS_MANY * components,
        kept * (PER_DRAW + PER_DRAW_AND_PAIR * components**2 + PER_KEPT_PARAMETER * of_cluster),
        len(study.sampling.blocks)
        * (
            pairs * (PER_PAIR[local.partition] + PER_PAIR_AND_DRAW * kept)
            + rows * kept * (PER_LABEL + PER_LABEL_AND_COMPONENT * components)
            + rows * statistics * components * PER_BOUND
            + chains**2 * PER_TWO_CHAINS
        ),
    ]
    in_rows = rows * statistics * STATISTIC_BYTES
    per_chain = rows + 40 * of_cluster + 24 * hidden * statistics
    stored = rows * kept + 4 * kept * of_cluster + chains * per_chain
    stored += 0.0 if family.is_categorical else in_rows
    passing = [
        pairs * PAIR_BYTES,
        in_rows,
        kept * of_cluster * ALIGNED_BYTES + rows * components * SHARE_BYTES,
        hidden * components * at_once * HIDDEN_BYTES * sum((d / v) ** 2 for d, v in _numbers(silo)),
        24 * joined,
    ]
    return Cost(sum(seconds) / 60e9, (stored + max(passing)) / 1e9)


def question_cost(query: Query, silo: Silo) -> Cost:
    """Cost of a question about every row; of a polish, all rounds together."""
    per_row = PER_MEMBERSHIP
    match query:
        case AssignRows(groups=None):
            points, clusters = query.weights.shape
        case LogLikelihood():
            points = len(query.weights) * (query.last - query.first)
            clusters = query.profiles.shape[2]
        case PolishRound():
            points, clusters = query.weights.shape
            points *= query.inner_sweeps * silo.study.most_rounds
            per_row = 0.0
        case _:
            return Cost(0.0, 0.0)
    rows = float(public_rows(silo))
    per_point = _sweep(silo, clusters) + rows * clusters * per_row
    minutes = float(points) * per_point / max(1, silo.threads) / 60e9
    return Cost(minutes, rows * clusters * SHARE_BYTES / 1e9)


def _sweep(silo: Silo, components: int) -> float:
    """Nanoseconds of one sweep over the rows."""
    family, rows = silo.study.pooled_model.family, float(public_rows(silo))
    drawing = components * float(family.parameters.sum()) * PER_PARAMETER
    if family.is_categorical:
        bits = sum(map(math.log2, silo.shard.schema.sizes.tolist()))
        per_bit = PER_BIT + PER_BIT_AND_COMPONENT * components
        return PER_SWEEP + drawing + rows * (PER_ROW + bits * per_bit)
    per_row = PER_EXPONENTIAL + PER_PRODUCT * float(family.statistics.sum())
    per_hidden = PER_HIDDEN * sum(d * d / v for d, v in _numbers(silo))
    hidden = float((~silo.rows.seen).sum())
    of_rows = components * (rows * per_row + hidden * per_hidden)
    return PER_FEATURE_SWEEP + drawing + of_rows


def _numbers(silo: Silo) -> list[tuple[float, int]]:
    """Number of parameters and of variables of each block of numbers."""
    numbers = [block for block in silo.study.pooled_model.family.blocks if not block.has_levels]
    return [(float(parameter_counts(block).sum()), len(block.variables)) for block in numbers]
