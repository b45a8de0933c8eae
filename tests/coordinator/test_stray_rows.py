from __future__ import annotations

import numpy as np
from cases.families import categories

from silomix.coordinator.matching.evidence import DriftEvidence, LocalClusters, drift_evidence
from silomix.coordinator.matching.greedy import STRAY_ROWS, absorb_groups, evidence_groups
from silomix.families.gaussian import Gaussian
from silomix.families.product import Product
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
    profile = drift_evidence(clusters, FAMILY, np.full(VARIABLES, np.inf))
    own = absorb_groups(clusters, np.arange(6), DriftEvidence(FAMILY), limit=STRAY_ROWS)
    groups = evidence_groups(clusters, profile, own)
    assert len(np.unique(groups)) == 2
    assert groups[0] == groups[3] and groups[1] == groups[4]
    without = evidence_groups(clusters, profile)
    assert without[2] == without[5]
    assert len(np.unique(without)) == 3


def many_silos_with_odd_rows(rng, *, rare):
    """30 silos with two clusters of 150 rows of binary cells; the two oddest rows stand alone.

    With `rare`, they are six rows of a cluster of its own instead.
    """
    usual = np.array([np.full(VARIABLES, 0.15), np.full(VARIABLES, 0.85)])
    parts, silos = [], []
    for silo in range(30):
        clusters = [rng.random((150, VARIABLES)) < chance for chance in usual]
        odd = np.argsort(clusters[0].sum(axis=1))[-2:]  # with most of the cells of the other one
        alone = clusters[0][odd]
        if rare:
            alone = rng.random((6, VARIABLES)) < np.tile([0.05, 0.95], VARIABLES // 2)
        parts += [np.delete(clusters[0], odd, axis=0), clusters[1], alone]
        silos += [silo] * 3
    counts = [np.stack([(~part).sum(axis=0), part.sum(axis=0)], axis=1).ravel() for part in parts]
    sizes = np.array([len(part) for part in parts])
    names = tuple(f"silo {silo}" for silo in range(30))
    return LocalClusters(names, np.array(silos), sizes, np.array(counts, dtype=np.float64))


def elsewhere(groups):
    """How many of the 30 silos' third clusters are in none of the groups of the two large ones."""
    return int(np.isin(groups[2::3], groups[:2], invert=True).sum())


def test_odd_rows_of_many_silos_are_no_cluster_and_a_rare_cluster_is_one(rng):
    profile = DriftEvidence(categories([2] * VARIABLES))
    for rare in (False, True):
        clusters = many_silos_with_odd_rows(rng, rare=rare)
        own = absorb_groups(clusters, np.arange(90), profile, limit=STRAY_ROWS)
        with_start = elsewhere(evidence_groups(clusters, profile, own))
        without = elsewhere(evidence_groups(clusters, profile))
        assert (with_start == without == 30) if rare else (with_start <= 3 < 20 <= without)
