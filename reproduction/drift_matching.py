"""Matching under drift alone: clusters' level counts are simulated directly, nothing is sampled.

    python reproduction/drift_matching.py --datasets 50          # runs what is missing, appends

Each silo has some of the true clusters, 200 rows of each, in ten variables of two levels (or the
paper's ten) and some variables that no cluster differs in. A line says whether different clusters
were joined, and whether copies of one cluster were missed.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from running import arguments, read_lines, run_cases

from silomix.coordinator.matching.evidence import DriftEvidence, LocalClusters, group_under_drift
from silomix.coordinator.matching.greedy import evidence_groups
from silomix.families import make_family
from silomix.families.categorical import draw_levels
from silomix.model.schema import Prior, Schema, Variable

ROWS = 200
BINARY = (2,) * 10
PAPER = (2,) * 4 + (3,) * 6
HELD = {
    "2 silos, none shared": ((0, 1, 2, 3), (4, 5, 6, 7)),
    "4 silos, none shared": tuple(tuple(range(4 * s, 4 * s + 4)) for s in range(4)),
    "2 silos, one of four shared": ((0, 1, 2, 3), (0, 4, 5, 6)),
    "4 silos, one of four shared": tuple((0, *range(3 * s + 1, 3 * s + 4)) for s in range(4)),
    "homogeneous": (tuple(range(5)),) * 4,
    "nested": (tuple(range(6)), tuple(range(5)), (0, 1, 2), (0, 1)),
    "non-nested": (tuple(range(5)), tuple(range(1, 6)), (0, 1, 2), (0, 1)),
}
"""Which clusters each silo has."""
LINES = [
    *[(name, "binary", 0.5, np.inf, noise) for name in list(HELD)[:2] for noise in (0, 20, 40)],
    *[(name, "binary", 0.5, 50.0, noise) for name in list(HELD)[:2] for noise in (0, 20, 40)],
    *[(name, "binary", 0.5, 20.0, noise) for name in list(HELD)[2:4] for noise in (0, 20)],
    *[
        (name, "paper", concentration, 50.0, 0)
        for name in ("homogeneous", "nested", "non-nested")
        for concentration in (0.3, 1.0)
    ],
]
KEYS = ["held", "variables", "concentration", "kappa", "noise", "seed"]
COLUMNS = [*KEYS, "joined_wrongly", "missed", "drifting"]


def simulate_counts(rng, held, sizes, concentration, kappa, noise):
    """Return the local clusters, their true cluster, and how many levels variables have."""
    sizes = np.array([*sizes, *([2] * noise)])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    clusters = 1 + max(max(of_silo) for of_silo in held)
    mean = draw_levels(np.full((clusters, offsets[-1]), concentration), offsets, rng)
    mean[:, offsets[-1 - noise] :] = mean[0, offsets[-1 - noise] :]  # no cluster differs here
    truth = np.concatenate(held)
    silo = np.repeat(np.arange(len(held)), [len(of_silo) for of_silo in held])
    own = mean[truth]
    if np.isfinite(kappa):
        own = draw_levels(np.maximum(kappa * own, 1e-8), offsets, rng)
    counts = np.concatenate(
        [
            rng.multinomial(ROWS, part / part.sum(axis=1, keepdims=True))
            for part in np.split(own, offsets[1:-1], axis=1)
        ],
        axis=1,
    )
    names = tuple(f"silo {s + 1}" for s in range(len(held)))
    sizes_of = np.full(len(truth), ROWS)
    return LocalClusters(names, silo, sizes_of, counts.astype(float)), truth, sizes


def run(held, variables, concentration, kappa, noise, seed):
    """Match one simulated set of clusters: one line."""
    rng = np.random.default_rng([int(seed), noise])
    sizes = {"binary": BINARY, "paper": PAPER}[variables]
    clusters, truth, sizes = simulate_counts(rng, HELD[held], sizes, concentration, kappa, noise)
    levels = [Variable(f"x{q}", tuple(map(str, range(k)))) for q, k in enumerate(sizes)]
    plain = DriftEvidence(make_family(Schema(tuple(levels)), Prior()))
    groups, found = group_under_drift(clusters, plain, partial(evidence_groups, clusters))
    joined = np.triu(groups[:, None] == groups, 1)
    same = np.triu(truth[:, None] == truth, 1)
    case = dict(zip(KEYS, (held, variables, concentration, kappa, noise, seed), strict=True))
    return [
        case
        | {
            "joined_wrongly": int((joined & ~same).any()),
            "missed": int((same & ~joined).any()),
            "drifting": int(np.isfinite(found.kappa).sum()),
        }
    ]


def main():
    chosen = arguments(__doc__, datasets=50).parse_args()
    path = chosen.results / "drift_matching.csv"
    done = set(read_lines(path, COLUMNS)[KEYS].itertuples(index=False, name=None))
    cases = [(*line, seed) for line in LINES for seed in range(chosen.datasets)]
    run_cases(path, COLUMNS, run, [case for case in cases if case not in done], chosen.jobs)
    found = read_lines(path, COLUMNS)
    print(found.groupby(KEYS[:-1], sort=False)[COLUMNS[-3:]].mean().round(3).to_string())


if __name__ == "__main__":
    main()
