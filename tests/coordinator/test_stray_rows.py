from __future__ import annotations

import numpy as np

from silomix.coordinator.matching.evidence import LocalClusters, Profile, drift_profile
from silomix.coordinator.matching.greedy import STRAY_ROWS, absorb_groups, evidence_groups
from silomix.model.families.gaussian import Gaussian
from silomix.model.families.product import Product
from silomix.model.schema import Variable

VARIABLES = 10
FAMILY = Product((Gaussian(tuple(Variable(f"x{q}", kind="gaussian") for q in range(VARIABLES))),))


def sums(rows):
    """What rows, (row, variable), add up to: (statistic,)."""
    return FAMILY.blocks[0].features(rows).sum(axis=0)


def two_silos_with_a_stray_row_each():
    """Two clusters in both silos, and a row at the edge of another cluster in each."""
    rng = np.random.default_rng(22)
    centres = rng.normal(0.0, 0.8, (2, VARIABLES))
    parts = [rng.normal(centre, 1.0, (300, VARIABLES)) for centre in centres] * 2
    apart = rng.normal(size=(2, VARIABLES))
    apart *= np.sqrt(30.0) / np.linalg.norm(apart, axis=1, keepdims=True)  # few rows are so far
    parts[2:2], parts[5:] = [(centres[0] + apart[0])[None]], [(centres[1] + apart[1])[None]]
    sizes = np.array([len(part) for part in parts])
    counts = np.stack([sums(part) for part in parts])
    return LocalClusters(("a", "b"), np.repeat([0, 1], 3), sizes, counts)


def test_stray_rows_join_their_own_silo_before_they_can_join_each_other():
    clusters = two_silos_with_a_stray_row_each()
    profile = drift_profile(clusters, FAMILY, np.full(VARIABLES, np.inf))
    own = absorb_groups(clusters, np.arange(6), Profile(FAMILY), limit=STRAY_ROWS)
    groups = evidence_groups(clusters, profile, own)
    assert len(np.unique(groups)) == 2
    assert groups[0] == groups[3] and groups[1] == groups[4]
    without = evidence_groups(clusters, profile)
    assert without[2] == without[5]
    assert len(np.unique(without)) == 3
