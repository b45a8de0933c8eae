from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from cases.families import categories
from cases.release_cases import clustered

from silomix.errors import PolicyRefusal
from silomix.families import release_rounding
from silomix.families.release_rounding import (
    CLUSTER,
    SILO,
    UNIFORM,
    coarse_concentration,
    profile_basis,
    round_counts,
    round_known,
    round_profile,
)
from silomix.silo.release import (
    disclose,
    fold_groups,
    fold_small,
    outgoing,
    release_row_counts,
)
from silomix.study.policy import OPEN, PRESETS, Policy

DEFAULT = PRESETS["default"]
RULED = [policy for policy in PRESETS.values() if policy.has_rules]
ODD = Policy(name="odd", minimum_count=12, round_to=7)
ONLY_ROUNDS = Policy(name="rounds", minimum_count=0, round_to=10)


class TestFolding:
    def test_small_clusters_go_to_the_nearest_smallest_first(self):
        mean = np.array([[0.9, 0.1], [0.1, 0.9], [0.15, 0.85], [0.8, 0.2], [0.5, 0.5]])
        sizes, family = np.array([50, 40, 9, 6, 10]), categories((2,))
        assert fold_groups(sizes, mean, 10, family).tolist() == [0, 1, 1, 0, 4]
        assert fold_groups(sizes, mean, 7, family).tolist() == [0, 1, 2, 0, 4]
        assert fold_groups(sizes, mean, 0, family).tolist() == [0, 1, 2, 3, 4]
        # small ones may make one that stands, and one is left whatever its size
        assert fold_groups(np.array([50, 6, 5]), mean[:3], 10, family).tolist() == [0, 1, 1]
        assert len(set(fold_groups(np.array([3, 2]), mean[:2], 10, family))) == 1

    def test_labels_weights_and_profiles_follow(self, rng):
        local = clustered(rng, [30, 25, 8, 7], (2, 3, 2))
        folded = fold_small(local, 10)
        assert folded.sizes.min() >= 10
        assert folded.sizes.sum() == 70
        assert (np.bincount(folded.partition.labels) == folded.sizes).all()
        assert (np.diff(folded.sizes) <= 0).all()
        new = [folded.partition.labels[local.partition.labels == old][0] for old in range(4)]
        weights = np.zeros_like(folded.weights, dtype=np.float64)
        mass = np.zeros_like(folded.probabilities, dtype=np.float64)
        for old, cluster in enumerate(new):
            weights[:, cluster] += local.weights[:, old]
            mass[:, cluster] += local.weights[:, old, None] * local.probabilities[:, old]
        np.testing.assert_allclose(folded.weights, weights, rtol=1e-6)
        np.testing.assert_allclose(folded.probabilities, mass / weights[:, :, None], rtol=1e-5)
        assert (folded.memberships == np.eye(len(folded.sizes))[folded.partition.labels]).all()
        assert fold_small(local, 7) is local


class TestCounts:
    def test_rounded_to_the_base_and_no_less_than_the_minimum(self):
        counts = np.arange(200)
        for policy in (*RULED, ODD, ONLY_ROUNDS):
            rounded = round_counts(counts, policy)
            assert (rounded % policy.round_to == 0).all()
            assert (rounded >= policy.minimum_count).all()
            real = counts >= policy.minimum_count + policy.round_to
            assert (2 * np.abs(rounded - counts)[real] <= policy.round_to).all()


class TestProfiles:
    def test_concentrations_leave_in_half_octaves_and_near_the_full_weight_as_it(self):
        full, before = np.full(500, 100.0), np.geomspace(1, 70, 500)
        after = coarse_concentration(before, full)
        assert (np.abs(np.log2(after / before)) <= 0.25 + 1e-9).all()
        assert len(np.unique(after.round(6))) < 15
        near = coarse_concentration(np.array([72.0, 99.0, 101.0, 5000.0]), full[:4])
        assert near.tolist() == [100.0] * 4

    def test_certain_members_tell_only_the_rounded_size(self, rng):
        seen = set()
        for rows in (98, 99, 100, 101, 102):
            found = released(clustered(rng, [rows], (2,) * 20), DEFAULT)
            seen.add((found.sizes.tobytes(), found.concentration.tobytes()))
        assert len(seen) == 1

    @pytest.mark.parametrize(
        ("counts", "rows", "left"),
        [
            ([10, 25, 65], 100, [10, 25, 65]),
            ([0, 0, 30, 70], 100, [10, 10, 25, 55]),
            ([98, 1, 1], 30, [10, 10, 10]),
            ([9, 9, 9], 300, [100, 100, 100]),
            ([0, 0, 9], 300, [100, 100, 100]),
        ],
        ids=["rounded already", "zeros are raised", "just enough", "all too few", "one too few"],
    )
    def test_low_levels_are_raised_and_the_rest_shares_what_is_left(self, counts, rows, left):
        found = round_profile(np.array(counts) / sum(counts), sum(counts), rows, DEFAULT)
        np.testing.assert_allclose(found * rows, left)

    def test_what_a_profile_is_of(self):
        sizes, levels = np.array([30, 15, 10]), np.array([1, 2, 3, 5, 6])
        known = np.repeat(sizes[:, None], len(levels), axis=1)
        assert profile_basis(known, levels, DEFAULT).tolist() == [
            [CLUSTER, CLUSTER, CLUSTER, UNIFORM, UNIFORM],
            [CLUSTER, SILO, SILO, UNIFORM, UNIFORM],
            [CLUSTER, SILO, SILO, UNIFORM, UNIFORM],
        ]
        assert (profile_basis(known, levels, OPEN) == CLUSTER).all()


class Disclosed(NamedTuple):
    sizes: np.ndarray
    mean: np.ndarray
    concentration: np.ndarray
    known: np.ndarray
    checks: tuple


def released(local, policy):
    family = local.draws.silo_family
    _, concentration = family.means(family.valid(family.fit(local.probabilities)))
    sizes, found, checks = disclose(local, concentration, policy)
    return Disclosed(sizes, found.mean, found.concentration, found.known, checks)


class TestDisclose:
    @pytest.mark.parametrize("policy", [*RULED, ODD, ONLY_ROUNDS], ids=lambda policy: policy.name)
    def test_every_released_count_keeps_the_policy(self, rng, policy):
        for members in ([300, 40, 13, 12], [60, 25], [12], [14, 13, 12]):
            local = clustered(rng, members, (2, 3, 4, 2, 6), draws=100)
            found = released(local, policy)
            levels = local.draws.shard.schema.sizes
            basis = np.repeat(profile_basis(found.known, levels, policy), levels, axis=1)
            known = np.repeat(found.known, levels, axis=1)
            shown = (known * (basis == CLUSTER)).sum(axis=0)
            counts = found.mean * np.where(basis == CLUSTER, known, shown)
            units = counts / policy.round_to
            np.testing.assert_allclose(units, np.rint(units), atol=1e-9)
            assert counts[basis != UNIFORM].min(initial=1e9) >= policy.minimum_count - 1e-9
            assert (found.sizes >= max(policy.minimum_count, 1)).all()
            sums = np.add.reduceat(found.mean, local.draws.shard.schema.offsets[:-1], axis=1)
            np.testing.assert_allclose(sums, 1.0)
            says_nothing = profile_basis(found.known, levels, policy) == UNIFORM
            assert ((found.concentration == 0) == says_nothing).all()

    def test_too_small_clusters_show_the_others(self, seed):
        local = clustered(np.random.default_rng(seed), [200, 60, 15], (2, 2))
        found = released(local, DEFAULT)
        others = (200 * found.mean[0] + 60 * found.mean[1]) / 260
        np.testing.assert_allclose(found.mean[2], others)
        assert (found.concentration[2] == 10).all()

    @pytest.mark.parametrize("policy", RULED, ids=lambda policy: policy.name)
    def test_a_withheld_profile_is_in_no_released_number(self, policy):
        """Else it could be had by subtraction, where counts leave as they are."""
        offsets = np.array([0, 2, 5])
        sizes = np.array([500, 2 * policy.minimum_count - 2])
        known = np.repeat(sizes[:, None], 2, axis=1).astype(np.float64)
        large = [0.24, 0.76, 0.5, 0.3, 0.2]
        left = set()
        for few in (0.0, 0.1, 0.5, 1.0):
            mean = np.array([large, [few, 1 - few, few, 0.0, 1 - few]])
            released = np.repeat(round_counts(sizes, policy)[:, None], 2, axis=1)
            found = release_rounding.disclose_levels(mean, known, known, released, offsets, policy)
            left.add(found.mean.tobytes())
        assert len(left) == 1

    def test_too_few_cells_show_nothing(self):
        """Of 100 rows, those whose level is known are fewer than the minimum, or just enough."""
        offsets, mean = np.array([0, 2]), np.array([[0.0, 1.0]])
        for cells, released in ((0, 0), (1, 0), (9, 0), (10, 10), (18, 20), (87, 85), (88, 100)):
            exact = np.array([[float(cells)]])
            known = round_known(exact, np.array([100]), DEFAULT)
            assert known.tolist() == [[released]]
            found = release_rounding.disclose_levels(mean, exact, exact, known, offsets, DEFAULT)
            is_shown = released >= 20
            least = 10 / max(released, 20)
            assert found.mean.tolist() == ([[least, 1 - least]] if is_shown else [[0.5, 0.5]])
            assert found.concentration[0, 0] == (released if is_shown else 0)


class TestChecks:
    def test_details_stay_inside(self, seed):
        local = clustered(np.random.default_rng(seed), [203, 52], (2, 3))
        found = released(local, DEFAULT)
        sizes = next(check for check in found.checks if check.where == "cluster sizes")
        assert "203 to 205" in sizes.inside
        assert sizes.changed == 2
        for check in outgoing(found.checks):
            assert check.inside == ""
            assert check.changed is None or "profile" in check.rule

    def test_distinct_rows_need_every_count(self):
        assert release_row_counts(np.array([10, 43]), DEFAULT, "north").tolist() == [10, 45]
        assert release_row_counts(np.array([1, 1]), OPEN, "north").tolist() == [1, 1]
        with pytest.raises(PolicyRefusal) as error:
            release_row_counts(np.array([10, 1, 1, 8]), DEFAULT, "north")
        assert "3 of its 4 distinct rows occur fewer than 10 times" in str(error.value)
        assert error.value.code == "policy"
