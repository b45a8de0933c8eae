"""What we want of the defaults where silos differ, held to the results so far."""

from __future__ import annotations

import numpy as np
import pandas as pd
from comparing import paired_coverage
from drift import trust_by_quality
from drift_tables import (
    PARAMETERS,
    below_best,
    of_method,
    paired,
    parts_of,
    said,
    trust_parts,
)
from judging import mean_error, share
from own_tables import yes_or_no
from writing import signed, with_error

DRIFTING = ("50", "20")
"""The κ whose cells have targets of their own."""
RIGHT = {"easy": 0.9, "poor": 0.75}
BELOW = {"easy": 0.01, "poor": 0.035}
MATCHING = {
    "none shared": ("joined_wrongly", "joined wrongly in at most 5 %", 0.05),
    "one of four shared": ("missed", "missed in at most 25 %", 0.25),
    "": ("wrong", "right in at least 95 %", 0.05),
}
"""By how the name of a design ends: what may happen how often."""


def drift_targets(drift, regimes, matching, real):
    """Return every target that has results: a table."""
    rows = []
    if drift is not None:
        for kappa, cell, part in parts_of(drift):
            where = f"{cell}, κ = {said(kappa)}"
            rows += [(where, *target) for target in targets_of(kappa, cell, part)]
        rows += [("all cells", *target) for target in targets_of_all(drift)]
    if regimes is not None:
        rows += regime_targets(regimes)
    if matching is not None:
        rows += matching_targets(matching)
    if real is not None:
        rows += real_targets(real)
    rows += [("trust", *target) for target in trust_targets(drift, regimes)]
    table = pd.DataFrame(rows, columns=["where", "target", "ours", "reached"])
    return table.assign(reached=table["reached"].map(yes_or_no))


def targets_of(kappa, cell, part):
    """Yield the targets of one κ and cell, or of all cells of a separability."""
    together, separability = cell.startswith("all"), cell.split()[-1]
    if not len(of_method(part, "default")):
        return
    if kappa in DRIFTING and together:
        yield from agreement_targets(part, BELOW[separability])
    elif kappa in DRIFTING:
        yield from cell_targets(part, RIGHT[separability])
    elif kappa == "inf" and not together:
        yield from alike_targets(part)


def agreement_targets(part, margin):
    """Hold the mean agreement to the best possible, and to the sampler that starts at the truth."""
    value, error = mean_error(below_best(part))
    aim = f"ARI within {margin:g} of the best possible"
    yield aim, signed(value, error), value >= -margin
    value, error = mean_error(paired(part, "default", "truth"))
    if np.isfinite(value):
        aim = "ARI within 0.01 of the sampler that starts at the truth"
        yield aim, signed(value, error), value >= -0.01


def cell_targets(part, least):
    """Hold one cell to its number of clusters, to FedMerDel and to its coverage."""
    ours = of_method(part, "default")
    right, error = mean_error(ours["right"])
    yield f"right number in at least {least:.0%}", with_error(right, error, 2), right >= least
    value, error = mean_error(paired(part, "default", "fedmerdel"))
    if np.isfinite(value):
        aim = "ARI not below FedMerDel's by two errors"
        yield aim, signed(value, error), not value < -2 * error
    yield from coverage_targets(ours, 0.90, 0.97)


def coverage_targets(ours, low, high):
    """Hold the coverage of m and of p to a range."""
    for what in ("m", "p"):
        value, error = share(ours, what)
        aim = f"coverage of {PARAMETERS[what]} from {low:.0%} to {high:.0%}"
        yield aim, with_error(value, error), low <= value <= high


def alike_targets(part):
    """Hold silos that do not differ to the results without drift, and their variables to ∞."""
    for column, words in (("right", "right number"), ("ari", "ARI")):
        value, error = mean_error(paired(part, "default", "none", column))
        if np.isfinite(value):
            aim = f'{words} not below that of drift="none" by two errors'
            yield aim, signed(value, error), not value < -2 * error
    for what in ("m", "pi"):
        value, error = paired_coverage(part, "default", "none", what)
        if np.isfinite(value):
            aim = f'coverage of {PARAMETERS[what]} as with drift="none", within two errors'
            yield aim, signed(value, error), not abs(value) > 2 * error
    most, error = mean_error(of_method(part, "default")["infinite"])
    aim = "more than half of the mass at ∞ in most of the ten variables"
    yield aim, with_error(most, error, 1), most > 5


def targets_of_all(drift):
    """Hold all cells of κ = 50 and 20 together to FedMerDel and to a narrower coverage."""
    lines = drift[drift["kappa"].isin(DRIFTING)]
    value, error = mean_error(paired(lines, "default", "fedmerdel"))
    if np.isfinite(value):
        yield "ARI above FedMerDel's on average, κ = 50 and 20", signed(value, error), value > 0
    if len(ours := of_method(lines, "default")):
        yield from coverage_targets(ours, 0.92, 0.97)


def regime_targets(regimes):
    """Hold silos without clusters to one cluster."""
    rows = []
    for regime in ("null", "null with drift"):
        ours = of_method(regimes[regimes["regime"] == regime], "default")
        if len(ours):
            one = int((ours["clusters"] == 1).sum())
            told = f"{one} of {len(ours)}"
            rows.append((regime, "one cluster in at least 95 %", told, one >= 0.95 * len(ours)))
    return rows


def matching_targets(lines):
    """Hold the matching alone to how often it may be wrong."""
    rows = []
    lines = lines.assign(wrong=lines[["joined_wrongly", "missed"]].max(axis=1))
    keys = ["held", "concentration", "kappa", "noise"]
    for (held, concentration, kappa, noise), part in lines.groupby(keys, sort=False):
        column, aim, most = next(MATCHING[end] for end in MATCHING if held.endswith(end))
        where = f"matching alone: {held}, Dirichlet({concentration:g}), κ = {kappa:g}"
        where = f"{where}, {noise} noise variables".replace("= inf", "= ∞")
        often = part[column].mean()
        rows.append((where, aim, f"{often:.2f} {column.replace('_', ' ')}", often <= most))
    return rows


def real_targets(real):
    """Hold the heart patients to their disease, and not to their hospital."""
    rows = []
    ours = of_method(real[real["table"] == "heart_disease_4sites"], "default")
    if len(ours):
        for column, words, held in (
            ("ari_label", "ARI with the disease at least 0.35", lambda value: value >= 0.35),
            ("ari_silo", "ARI with the hospital at most 0.2", lambda value: value <= 0.2),
        ):
            value, error = mean_error(ours[column])
            rows.append(("heart_disease_4sites", words, with_error(value, error), held(value)))
        worst = int((ours["level"] == "distrust").sum())
        told = f"{worst} of {len(ours)}"
        rows.append(("heart_disease_4sites", 'never "distrust"', told, worst == 0))
    return rows


def trust_targets(drift, regimes):
    """Hold the verdict to the right and to the wrong fits of all studies together."""
    for _, lines in list(trust_parts(drift, regimes))[-1:]:
        table = trust_by_quality(lines).set_index("fits")
        for fits, aim, held in (
            ("right", "at least 80 % of the right fits", lambda value: value >= 0.8),
            ("wrong", "at most 5 % of the wrong fits", lambda value: value <= 0.05),
        ):
            line = table.loc[fits]
            if line["number"]:
                told = f"{line['trusted']:.0f} of {line['number']:.0f}"
                yield aim, told, held(line["share"])
