"""An adversary with an integer program: what else could have left just the same?

All that leaves of a silo's rows in a study is its release; every other answer under a policy with
rules confirms something and has no number (`test_one_study`). For each count behind a release, the
program proposes tables in which that count is as small or as large as may be, everything else of
the silo as it is. The silo's own code then says whether they would have left as the same bytes: so
a count that the release determines, or tells more finely than its rounding, fails the test,
whatever the program believes of the rules.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from cases.families import categories
from cases.release_cases import known_local
from scipy.optimize import Bounds, LinearConstraint, milp

from silomix.families.release_rounding import (
    CLUSTER,
    Unrounded,
    disclose_counts,
    least_units,
    profile_basis,
)
from silomix.silo.release import arranged, make_release
from silomix.study.policy import PRESETS

POLICIES = [one for one in PRESETS.values() if one.has_rules and one.name != "ukllc"]
every_policy = pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
# How far the program keeps from where rounding changes.
INSIDE = 1e-3


def random_silo(rng):
    """Clusters, and columns of two to five levels with missing cells: labels, codes, levels."""
    members = np.sort(rng.integers(12, rng.choice([40, 400]), rng.integers(1, 4)))[::-1]
    labels, levels = np.repeat(np.arange(len(members)), members), rng.integers(2, 6, 3)
    columns = []
    for size in levels:
        profiles = rng.dirichlet(np.full(size, rng.choice([0.3, 1.0, 5.0])), len(members))
        ends = profiles.cumsum(axis=1)[labels, :-1]
        column = (rng.random(len(labels))[:, None] > ends).sum(axis=1)
        column[rng.random(len(labels)) < rng.choice([0.0, 0.03, 0.3, 0.8])] = size
        columns.append(column)
    return labels, np.stack(columns, axis=1), tuple(map(int, levels))


def counts_of(column, size):
    """How often each level occurs, missing cells last."""
    return np.bincount(column, minlength=size + 1)


def same_release(counts, few, units, known, rows, shown, policy):
    """What makes a table leave as it did: bounds and constraints on levels and missing cells.

    Sufficient, not necessary.

    Parameters
    ----------
    counts : as they are; few : (level,), which are to be under the minimum
    units : (level,), released in units of the base, None where no profile of its own is shown
    known : released.
    rows : of the cluster, that the table has; shown : as released.
    """
    base, least, minimum = policy.round_to, least_units(policy), policy.minimum_count
    size = len(counts) - 1
    low, high = np.zeros(size + 1), np.full(size + 1, rows)
    total = np.append(np.ones(size), 0.0)
    constraints = [LinearConstraint(np.ones(size + 1), rows, rows)]
    if known == 0:
        constraints.append(LinearConstraint(total, 0, minimum - 1))
    elif known == shown:
        bottom = max(minimum, known - least * base - base // 2)
        constraints.append(LinearConstraint(total, bottom, rows))
    else:
        bottom = minimum if known == least * base else known - base // 2
        top = min(rows, known + base - 1 - base // 2)
        constraints.append(LinearConstraint(total, bottom, top))
    if units is not None:
        high[:-1][few] = least * base - 1
        low[:-1][~few] = least * base
        raised = raised_levels(counts[:-1], units.sum(), least, few)
        fixed = raised & ~few & (counts[:-1] >= least * base)
        low[:-1][fixed] = high[:-1][fixed] = counts[:-1][fixed]
        # largest remainders: what shares differ by from units lies within one unit of each other
        left, others = units.sum() - least * raised.sum(), np.append(~raised, False)
        for one, other in permutations(np.flatnonzero(~raised), 2):
            row = (units[other] - units[one] - (1 - INSIDE)) * others
            row[one] += left
            row[other] -= left
            constraints.append(LinearConstraint(row, -np.inf, 0))
    return Bounds(low, high), constraints


def which_are_few(counts, units, policy):
    """Which levels may be under the minimum: as it is, or with one that left as the minimum."""
    few = counts < least_units(policy) * policy.round_to
    yield few
    for level in () if units is None else np.flatnonzero(units == least_units(policy)):
        yield few ^ (np.arange(len(few)) == level)


def raised_levels(counts, units, least, few):
    """Which levels leave as the minimum: those under it, and those whose share is."""
    raised = few.copy()
    while not few.all():
        share = counts * (units - least * raised.sum()) / counts[~raised].sum()
        if not (~raised & (share < least)).any():
            return raised
        raised |= share < least
    return raised


def possible(counts, rules):
    """Tables in which one count after the other is as small, or as large, as it may be."""
    bounds, constraints = rules
    tables = []
    for place in range(len(counts)):
        for sign in (1, -1):
            aim = np.zeros(len(counts))
            aim[place] = sign
            done = milp(
                aim, integrality=np.ones(len(counts)), bounds=bounds, constraints=constraints
            )
            if done.x is not None:
                tables.append(np.rint(done.x).astype(int))
    return tables


def one_row_elsewhere(counts):
    """Tables in which one row has another level, or lost its cell."""
    for one, other in permutations(range(len(counts)), 2):
        if counts[one] > 0:
            step = np.zeros(len(counts), dtype=int)
            step[[one, other]] = -1, 1
            yield counts + step


def what_leaves(table, sizes, cluster, levels, policy):
    """What leaves of one column of a cluster with these counts, missing cells last, as bytes.

    Other clusters matter for what stands in for a profile: they have none here, nor cells.
    """
    column = np.repeat(np.arange(len(table)), table)[:, None].astype(np.uint8)
    member = np.ones((len(column), 1))
    clusters = Unrounded(member, np.full((1, 1), 1.0), sizes[[cluster]], None)
    found = disclose_counts(categories((levels,)).blocks[0], column, clusters, policy)
    return found.mean.tobytes(), found.known.tobytes()


def check_silo(seed, policy):
    """Fail where a count behind the release of a random silo is known too well; say how many."""
    rng = np.random.default_rng(seed)
    labels, codes, levels = random_silo(rng)
    local = known_local(rng, codes, labels, levels, draws=10)
    about = {"silo": "a", "place": 0, "study": "5" * 64, "tier": "summary"}
    if len(arranged(local, policy).sizes) < labels.max() + 1:
        return 0  # small clusters were folded: only what stands by itself is judged
    local = arranged(local, policy)  # clusters are numbered by what is released of them
    labels, release = local.partition.labels, make_release(local, policy=policy, **about)
    offsets = np.concatenate([[0], np.cumsum(levels)])
    basis = profile_basis(release.known, np.array(levels), policy)
    checked = 0
    for cluster, shown in enumerate(map(int, release.sizes)):
        columns, tables = [], []
        for variable, size in enumerate(levels):
            counts = np.bincount(codes[labels == cluster, variable], minlength=size + 1)
            known = int(release.known[cluster, variable])
            mean = release.mean[cluster, offsets[variable] : offsets[variable + 1]]
            own = basis[cluster, variable] == CLUSTER
            units = np.rint(mean * known / policy.round_to) if own else None
            where = release.sizes, cluster, size, policy
            as_it_is, alike = what_leaves(counts, *where), {int(counts.sum()): [counts]}
            # where shares under the minimum were raised too, the program leaves too little room
            alike[int(counts.sum())] += [
                each for each in one_row_elsewhere(counts) if what_leaves(each, *where) == as_it_is
            ]
            # the cluster may have another size, too, if all its columns can leave so
            for rows in range(shown - policy.round_to // 2, shown + -(-policy.round_to // 2)):
                alike.setdefault(rows, [])
                for few in which_are_few(counts[:-1], units, policy):
                    rules = same_release(counts, few, units, known, rows, shown, policy)
                    found = possible(counts, rules)
                    alike[rows] += [each for each in found if what_leaves(each, *where) == as_it_is]
            columns.append(counts)
            tables.append(alike)
        sizes = [rows for rows in tables[0] if all(alike.get(rows) for alike in tables)]
        for variable, (counts, alike) in enumerate(zip(columns, tables, strict=True)):
            every = [each for rows in sizes for each in alike[rows]]
            low, high = np.min(every, axis=0), np.max(every, axis=0)
            told = f"seed {seed}, cluster {cluster}, variable {variable}: {counts}, {low} to {high}"
            small = counts < policy.minimum_count
            assert (high > low)[small].all(), f"determined: {told}"
            assert (high - low >= policy.round_to - 1)[~small].all(), f"too fine: {told}"
            checked += len(counts)
    return checked


@every_policy
def test_no_count_is_determined_or_finer_than_its_rounding(policy):
    assert sum(check_silo(seed, policy) for seed in range(12)) > 50


@pytest.mark.slow
@every_policy
def test_nor_in_two_hundred_tables(policy):
    assert sum(check_silo(seed, policy) for seed in range(100, 300)) > 1500


def test_the_oracle_sees_a_count_that_is_told(monkeypatch):
    """With units of all rows in place of the known ones, as in version 0.2.0, it fails."""

    def of_all_rows(known, sizes, rules):
        return np.where(known < rules.minimum_count, 0, sizes[:, None]).astype(np.int64)

    monkeypatch.setattr("silomix.families.release_rounding.round_known", of_all_rows)
    with pytest.raises(AssertionError, match=r"too fine|determined"):
        for seed in range(60):
            check_silo(seed, PRESETS["default"])
