"""Releases made from counts, silos that answer from their rows, and groupings to compare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from cases.aggregation_cases import PAPER_SIZES, case_of, dirichlet_levels, release_of
from cases.families import categories, model_of, shard_of
from scipy.stats import binomtest

from silomix.coordinator.matching.evidence import DriftEvidence, LocalClusters
from silomix.families.chains import Rows
from silomix.messages import DivergenceReply
from silomix.messages.released_draws import divergence_cost, make_reference
from silomix.model.schema import Prior

PRIOR = Prior()
# levels of the variables where nothing else is said
SIZES = (2, 3, 2)
PROFILE = DriftEvidence(categories(SIZES))
DRIFTING = DriftEvidence(
    PROFILE.family,
    kappa=np.array([10.0, np.inf, 10.0]),
    base=np.array([2.0, 2, 8, 8, 8, 1, 1]),
)

# (cluster, variable), the usual level of each planted cluster: any two differ in five or more
PEAKS = np.array(
    [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 1, 1, 1, 1, 1, 1],
     [0, 0, 1, 1, 2, 2, 2, 2, 2, 2], [1, 1, 1, 1, 0, 1, 2, 0, 1, 2],
     [0, 1, 0, 1, 1, 2, 0, 2, 0, 1], [1, 0, 1, 0, 2, 0, 1, 1, 2, 0]]
)  # fmt: skip


def offsets_of(sizes):
    return np.concatenate([[0], np.cumsum(sizes)])


def make_release(counts, *, place=0, silo=None, members=None, sizes=SIZES, seed=0, draws=200):
    """One silo whose clusters have these level counts, (cluster, level)."""
    counts = np.asarray(counts, dtype=float)
    if members is None:
        members = counts[:, : sizes[0]].sum(axis=1)
    members = np.asarray(members).astype(np.int64)
    rng = np.random.default_rng([seed, place])
    probabilities = dirichlet_levels(rng, counts + PRIOR.beta, sizes, draws)
    weights = rng.dirichlet(members + PRIOR.alpha, draws)
    name = f"silo {place}" if silo is None else silo
    return release_of(name, place, members, weights, probabilities, sizes, PRIOR.beta)


def draw_counts(rng, profile, rows, sizes=SIZES):
    """Level counts of `rows` rows of a cluster with this profile: (level,)."""
    parts = np.split(profile, np.cumsum(sizes)[:-1])
    return np.concatenate([rng.multinomial(rows, part / part.sum()) for part in parts])


def draw_profiles(rng, clusters, sizes=SIZES, concentration=0.3):
    return np.concatenate([rng.dirichlet(np.full(k, concentration), clusters) for k in sizes], 1)


def draw_releases(rng, present, *, rows=60, sizes=SIZES, concentration=0.3):
    """Silos with clusters of one population; `present` lists the true clusters of each."""
    profiles = draw_profiles(rng, 1 + max(map(max, present)), sizes, concentration)
    return [
        make_release(
            [draw_counts(rng, profiles[c], rows + place, sizes) for c in clusters],
            place=place,
            sizes=sizes,
        )
        for place, clusters in enumerate(present)
    ]


def plant_rows(seed, holds, rows, *, missing=0.0, sharpness=0.9):
    """Rows of silos that hold some of six clusters, no two of which are alike.

    Random profiles may come out close, and then no matching has to be right.
    """
    rng = np.random.default_rng(seed)
    sizes = np.array(PAPER_SIZES)
    codes, labels = [], []
    for n, held in zip(rows, holds, strict=True):
        label = rng.permutation(np.resize(np.flatnonzero(held), n))
        usual = PEAKS[label] % sizes
        cells = np.where(
            rng.random(usual.shape) < sharpness, usual, rng.integers(0, sizes, usual.shape)
        )
        cells = np.where(rng.random(cells.shape) < missing, sizes, cells)
        codes.append(cells.astype(np.uint8))
        labels.append(label)
    return case_of(rng, codes, labels, holds, sizes, PRIOR, 400)


def rearrange(releases, silos, labels):
    """List the silos in another order and number their clusters anew."""
    return [
        _renumber(replace(releases[s], place=place), labels[s]) for place, s in enumerate(silos)
    ]


def _renumber(release, order):
    order = list(order)
    by_cluster = ("sizes", "mean", "concentration")
    return replace(
        release,
        **{name: getattr(release, name)[order] for name in by_cluster},
        weights=release.weights[:, order],
        parameters=release.parameters[:, order],
    )


def rearrange_groups(groups, silos, labels):
    """What `rearrange` does, to one array of groups for each silo."""
    return np.concatenate([groups[s][list(labels[s])] for s in silos])


def clusters_of(counts, silo, members=None, sizes=SIZES):
    """Local clusters with these counts, (local, level), in these silos, (local,), one by one."""
    silo = np.asarray(silo)
    counts = np.asarray(counts, dtype=float)
    members = counts[:, : sizes[0]].sum(axis=1) if members is None else np.asarray(members)
    held = np.bincount(silo)
    return LocalClusters(
        names=tuple(f"silo {s}" for s in range(len(held))),
        silo=np.repeat(np.arange(len(held)), held),
        sizes=members.astype(np.int64),
        counts=counts,
    )


def together(groups):
    """Return (local, local): whether the two share a group."""
    groups = np.asarray(groups)
    return groups[:, None] == groups


def groupings(count):
    """Every way to put `count` things into groups, numbered by first appearance."""
    if count == 0:
        yield ()
        return
    for before in groupings(count - 1):
        for group in range(max(before, default=-1) + 2):
            yield (*before, group)


def admissible(groups, silo):
    """Whether no group has two clusters of one silo."""
    return len(set(zip(groups, silo, strict=True))) == len(silo)


def smallest_p_value(hits, probability, chains):
    """Of a binomial test for each pair that can share a group, times the number of pairs."""
    pairs = [pair for pair in zip(*np.triu_indices(len(hits), 1), strict=True) if probability[pair]]
    return len(pairs) * min(
        binomtest(int(hits[pair]), chains, probability[pair]).pvalue for pair in pairs
    )


class QuietSilos:
    """Silos that must not be asked."""

    def __init__(self, releases):
        self.names = tuple(release.silo for release in releases)

    def ask(self, query):
        raise AssertionError("this matching has no questions")


class RowSilos:
    """Silos that answer the divergence question from their rows, and remember the questions."""

    def __init__(self, releases, codes, sizes, say="mean"):
        self.names = tuple(release.silo for release in releases)
        self.sizes, self.say = sizes, say
        self.releases = dict(zip(self.names, releases, strict=True))
        self.shards = {n: shard_of(c, sizes) for n, c in zip(self.names, codes, strict=True)}
        self.asked = []

    def ask(self, query):
        self.asked.append(query)
        return {name: DivergenceReply(self.cost(name, each)) for name, each in query.items()}

    def reference(self, query):
        return make_reference(query, self.say, model_of(self.sizes, 0), len(self.names))

    def cost(self, name, query):
        release = self.releases[name]
        return divergence_cost(
            self.reference(query),
            Rows(self.shards[name], categories(self.sizes)),
            release.weights.mean(axis=0),
            release.parameters,
            np.random.default_rng([release.place, query.round]),
        )
