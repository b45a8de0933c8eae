"""How a method's result is held to the truth, with the conventions of Fendler et al. (2026).

- Relative bias is (true − estimate) / true; the estimate is the mean of the draws.
- True and found clusters are paired one to one so that they share the most rows. A true cluster
  without a partner has no estimate: the bias leaves it out, the coverage counts it as missed. How
  the paper pairs is not known: see `pairing.py`.
- The paper's intervals are equal-tailed (`_tails`). Ours are of highest density (`_covered`): an
  equal-tailed interval leaves out the smallest draws, and often probabilities next to zero.
- A variable's level probabilities are judged by the band that their true value is in.
- Where silos drift, a cluster's shared profile m, each silo's own p and the weights π are judged by
  highest-density intervals, the profiles where their true value is in one of the inner bands. A
  method without own profiles has the shared one in every silo.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from dataclasses import dataclass

import numpy as np

from silomix.errors import SamplingWarning
from silomix.model.diagnostics import worst_rhat
from silomix.model.metrics import (
    adjusted_rand_index,
    equal_tailed_interval,
    highest_density_interval,
    pair_clusters,
    relative_bias,
    variation_of_information,
)
from silomix.model.table import load
from silomix.posterior import verdict as verdict_rules

BANDS = {
    "plow": (0.0, 1e-4),
    "p0": (1e-4, 0.1),
    "p1": (0.1, 0.5),
    "p2": (0.5, 0.9),
    "p3": (0.9, 0.9999),
    "phigh": (0.9999, np.inf),
}
INNER_BANDS = ("p0", "p1", "p2", "p3")
MOST_CLUSTERS = 6
PARTITION_COLUMNS = ["planted", "clusters", "ari", "vi", "best_ari"]
COVERAGE_COLUMNS = [
    f"{what}_{part}" for what in ("pi", *INNER_BANDS) for part in ("covered", "total")
]
"""Columns of the results that only cover highest-density intervals of the inner bands."""
WIDTH_COLUMNS = [f"{what}_width" for what in ("pi", *INNER_BANDS)]
"""Columns of the mean widths of those intervals."""
PROFILE_COLUMNS = [f"{what}_{part}" for what in ("m", "p", "pi") for part in ("covered", "total")]
KAPPA_COLUMNS = ["kappa_hat", "kappa_drifting", "at_infinity", "infinite", "infinite_drifting"]
VERDICT_COLUMNS = [
    "level", "trusted", "confidence", "agreement", "full", "rounds", "still_moving", "likelihood_z",
    "means_moved", "spreads_moved", "smallest_rows", "rhat", "prior_draws",
]  # fmt: skip
PARAMETER_COLUMNS = [
    "pi_covered", "pi_total",
    *[f"pi{c}_{part}" for c in range(1, MOST_CLUSTERS + 1) for part in ("bias", "tails")],
    *[f"{band}_{part}" for band in BANDS
      for part in ("bias", "biased", "tails", "covered", "total")],
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Found:
    """What a method found: a label for each row, and draws of the parameters.

    Attributes
    ----------
    labels : (row,)
    weights : (draw, cluster); one draw is an estimate without intervals.
    probabilities : (draw, cluster, level)
    clusters : how many the method says there are.
    """

    labels: np.ndarray
    weights: np.ndarray
    probabilities: np.ndarray
    clusters: int

    @classmethod
    def of(cls, result):
        """Take what matters of a posterior or of a rival's result."""
        return cls(result.labels, result.weights, result.probabilities, result.n_clusters)


def quietly(call):
    """Call without the warnings of short or badly mixed runs: the results speak for themselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        return call()


def timed(call):
    """Return what a call returns, and its CPU seconds."""
    began = time.process_time()
    result = quietly(call)
    return result, time.process_time() - began


def best_labels(table, truth):
    """Return the labels that the silos' true profiles and weights would give: (row,)."""
    codes, places = coded(table, truth)
    with np.errstate(divide="ignore"):
        profiles, weights = np.log(truth.probabilities_by_silo), np.log(truth.weights_by_silo)
    total = weights[places]
    first = 0
    for q, size in enumerate(level_counts(truth)):
        # a missing cell, which has the code after the last level, says nothing
        logs = np.pad(profiles[:, :, first : first + size], ((0, 0), (0, 0), (0, 1)))
        total = total + logs[places, :, codes[:, q]]
        first += size
    return total.argmax(axis=1)


def coded(table, truth):
    """Return a simulated table's level codes, (row, variable), and its rows' silos, (row,)."""
    shard = load(table.drop(columns="silo"))
    places = table["silo"].map({name: place for place, name in enumerate(truth.silos)})
    return shard.codes.astype(np.int64), places.to_numpy()


def level_counts(truth):
    """Return how many levels each variable has, in the order of the truth's columns."""
    return list(Counter(variable for variable, _ in truth.levels).values())


def judge(found, table, truth):
    """Hold what was found to the truth: a line of results."""
    best = adjusted_rand_index(truth.labels, best_labels(table, truth))
    return judge_partition(found, truth) | {"best_ari": round(best, 5)} | judge_draws(found, truth)


def judge_partition(found, truth):
    """Return the part of the line that only needs labels."""
    return {
        "planted": len(truth.weights),
        "clusters": found.clusters,
        "ari": round(adjusted_rand_index(truth.labels, found.labels), 5),
        "vi": round(variation_of_information(truth.labels, found.labels), 5),
    }


def judge_fit(result, truth, best, kappa=None):
    """Hold a posterior or a rival's result to a truth in which silos may drift: a line.

    Parameters
    ----------
    best : (row,), the best possible labels.
    kappa : (variable,), the true κ; None where it has none.
    """
    found = Found.of(result)
    line = judge_partition(found, truth)
    line["right"] = int(found.clusters == line["planted"])
    line["best_ari"] = round(adjusted_rand_index(truth.labels, best), 5)
    return line | judge_profiles(result, truth) | judge_kappa(result, kappa) | verdict(result)


def judge_profiles(result, truth):
    """Count the true values of m, p and π inside intervals; nothing for a point estimate."""
    pairs = pair_clusters(
        truth.labels,
        result.labels,
        true_clusters=len(truth.weights),
        clusters=result.weights.shape[1],
    )
    held = truth.weights_by_silo > 0
    judged = {
        "m": (covers(truth.probabilities, result.probabilities, pairs), inner(truth.probabilities)),
        "p": (
            np.stack(
                [
                    covers(true, own, pairs)
                    for true, own in zip(
                        truth.probabilities_by_silo, own_profiles(result, truth), strict=True
                    )
                ]
            ),
            inner(truth.probabilities_by_silo) & held[:, :, None],
        ),
        "pi": (covers(truth.weights, result.weights, pairs), np.ones(truth.weights.shape, bool)),
    }
    line = {}
    for what, (covered, counted) in judged.items():
        line[f"{what}_covered"] = int(covered[counted].sum()) if len(result.weights) > 1 else ""
        line[f"{what}_total"] = int(counted.sum())
    return line


def own_profiles(result, truth):
    """Yield the draws of each silo's own profiles, (draw, cluster, level), in the truth's order."""
    own = getattr(result, "silo_profiles", None)
    for name in truth.silos:
        if own is None:
            yield result.probabilities
        else:
            yield own.parameters[:, result.silos.index(name)]


def inner(values):
    """Tell which values are in one of the inner bands."""
    return (values >= BANDS[INNER_BANDS[0]][0]) & (values < BANDS[INNER_BANDS[-1]][1])


def judge_kappa(result, kappa):
    """Say how alike the silos were found to be; nothing for a method that does not tell.

    Medians over the variables of each one's posterior median, over all and over those that drift;
    the posterior mass at infinity; and how many variables have more than half of theirs there.
    """
    own = getattr(result, "silo_profiles", None)
    if own is None:
        return dict.fromkeys(KAPPA_COLUMNS, "")
    # between a finite draw and an infinite one there is no middle
    medians = np.quantile(own.kappa, 0.5, axis=0, method="lower")
    infinite = np.isinf(own.kappa).mean(axis=0)
    drifting = np.zeros(len(medians), bool) if kappa is None else np.isfinite(kappa)
    few = np.quantile(medians[drifting], 0.5, method="lower") if drifting.any() else np.nan
    return {
        "kappa_hat": short(np.quantile(medians, 0.5, method="lower")),
        "kappa_drifting": short(few),
        "at_infinity": short(infinite.mean()),
        "infinite": int((infinite > 0.5).sum()),
        "infinite_drifting": int((infinite > 0.5)[drifting].sum()),
    }


def verdict(result):
    """Return what a fit says of itself: the worst over clusters and silos; nothing for a rival."""
    diagnostics = getattr(result, "diagnostics", None)
    if diagnostics is None:
        return dict.fromkeys(VERDICT_COLUMNS, "")
    runs = diagnostics.silos.values()
    matched = result.correspondence
    sure = np.nan if matched is None else matched.cluster_confidence().min()
    return {
        "level": getattr(diagnostics, "level", ""),
        "trusted": int(diagnostics.trusted),
        "confidence": short(sure),
        "agreement": short(min((run.agreement for run in runs), default=np.nan)),
        "full": short(max((run.full for run in runs), default=np.nan)),
        "rounds": diagnostics.rounds,
        "still_moving": int(diagnostics.still_moving),
        "rhat": short(max((worst_rhat(run.rhat.values()) for run in runs), default=np.nan)),
        "prior_draws": short(max((run.prior_draws for run in runs), default=np.nan)),
        **movement(diagnostics.polish),
        "smallest_rows": smallest_rows(result),
    }


def relevel(lines):
    """Return the lines with the level that today's rule gives to what each fit found."""
    lines = lines.copy()
    lines["level"] = [level_of(line) for line in lines.itertuples()]
    lines["trusted"] = lines["level"].map({"trust": 1, "care": 0, "distrust": 0})
    return lines


def level_of(line):
    """Return the level of a fit from the columns of its line; None for a rival."""
    if not line.rounds >= 0:
        return None
    moved = np.nanmax([line.means_moved, line.spreads_moved, 0.0])
    levels = [
        verdict_rules.judge(line.agreement, verdict_rules.UNSURE["agreement"]),
        verdict_rules.judge(line.confidence, verdict_rules.UNSURE["confidence"]),
        verdict_rules.judge(line.smallest_rows, verdict_rules.FEW_ROWS),
        "care" if line.full >= verdict_rules.FULL else "trust",
        "care" if line.still_moving == 1 else "trust",
        verdict_rules.judge(moved, verdict_rules.MOVED) if line.still_moving == 1 else "trust",
    ]
    return max(levels, key=verdict_rules.LEVELS.index)


def movement(polish):
    """Return what the last check of a polish found; nothing without one."""
    if polish is None or not polish.checked:
        return {}
    _, likelihood, means, spreads = polish.values["movement"][-1]
    return {
        "likelihood_z": short(likelihood),
        "means_moved": short(means),
        "spreads_moved": short(spreads),
    }


def smallest_rows(posterior):
    """Return how many rows the smallest cluster has, over all silos."""
    rows = len(posterior.labels)
    return round(rows * float(posterior.weights.mean(axis=0).min()))


def judge_draws(found, truth, pair=pair_clusters):
    """Return the part of the line that needs weights and probabilities.

    `_bias` of a band is a sum over the `_biased` values that have an estimate. `pair` gives each
    true cluster its found one, as `pair_clusters` does.
    """
    pairs = pair(
        truth.labels,
        found.labels,
        true_clusters=len(truth.weights),
        clusters=found.weights.shape[1],
    )
    bias, covered, tails = judge_values(truth.weights, found.weights, pairs)
    line = {"pi_covered": covered.sum(), "pi_total": covered.size}
    for cluster in range(len(truth.weights)):
        line[f"pi{cluster + 1}_bias"] = short(bias[cluster])
        line[f"pi{cluster + 1}_tails"] = tails[cluster]
    bias, covered, tails = judge_values(truth.probabilities, found.probabilities, pairs)
    for band, (low, high) in BANDS.items():
        inside = (truth.probabilities >= low) & (truth.probabilities < high)
        line[f"{band}_bias"] = short(np.nansum(bias[inside]))
        line[f"{band}_biased"] = np.isfinite(bias[inside]).sum()
        line[f"{band}_tails"] = tails[inside].sum()
        line[f"{band}_covered"] = covered[inside].sum()
        line[f"{band}_total"] = inside.sum()
    if len(found.weights) == 1:
        line = {
            name: "" if name.endswith(("_tails", "_covered")) else value
            for name, value in line.items()
        }
    return {name: int(v) if isinstance(v, np.integer | np.bool_) else v for name, v in line.items()}


def judge_widths(found, truth):
    """Return the mean widths of the 95 % intervals of found clusters: of π, and of p by band."""
    pairs = pair_clusters(
        truth.labels,
        found.labels,
        true_clusters=len(truth.weights),
        clusters=found.weights.shape[1],
    )
    held = pairs >= 0
    lower, upper = highest_density_interval(found.weights, 0.95)
    line = {"pi_width": short((upper - lower)[pairs[held]].mean())}
    lower, upper = highest_density_interval(found.probabilities, 0.95)
    widths, true = (upper - lower)[pairs[held]], truth.probabilities[held]
    for band in INNER_BANDS:
        low, high = BANDS[band]
        inside = (true >= low) & (true < high)
        line[f"{band}_width"] = short(widths[inside].mean()) if inside.any() else ""
    return line


def judge_values(true, draws, pairs):
    """Return relative bias, and whether each kind of interval holds the true value.

    Parameters
    ----------
    true : (cluster, …); draws : (draw, found cluster, …)
    pairs : (cluster,), its found cluster, or −1.

    Returns
    -------
    bias : (cluster, …), nan without an estimate; covered, tails : (cluster, …)
    """
    held = pairs >= 0
    bias = np.full(true.shape, np.nan)
    bias[held] = relative_bias(true[held], draws.mean(axis=0, dtype=np.float64)[pairs[held]])
    return bias, covers(true, draws, pairs), covers(true, draws, pairs, equal_tailed_interval)


def covers(true, draws, pairs, interval=highest_density_interval):
    """Tell which true values are inside the 95 % intervals of the draws of their found cluster.

    Parameters
    ----------
    true : (cluster, …); draws : (draw, found cluster, …)
    pairs : (cluster,), its found cluster, or −1, which covers nothing.
    """
    held = pairs >= 0
    lower, upper = interval(draws, 0.95)
    inside = np.zeros(true.shape, dtype=bool)
    inside[held] = (lower[pairs[held]] <= true[held]) & (true[held] <= upper[pairs[held]])
    return inside


def short(value):
    """Return five digits of a number; nothing for nan."""
    return "" if np.isnan(value) else float(f"{value:.5g}")


def rightly_matched(local_labels, groups, true_labels):
    """Tell whether local clusters share a group exactly when most of their rows share a cluster.

    Parameters
    ----------
    local_labels, true_labels : by silo, (row,); groups : by silo, (local cluster,)

    Returns
    -------
    right : whether the matching is right, given the local clusters.
    local : whether each silo found as many clusters as it has.
    """
    truths, found = [], []
    local = True
    for labels, group, true in zip(local_labels, groups, true_labels, strict=True):
        shared = np.zeros((len(group), 1 + int(true.max())), dtype=np.int64)
        np.add.at(shared, (labels, true), 1)
        truths.append(shared.argmax(axis=1))
        found.append(group)
        local = local and len(group) == len(np.unique(true))
    truths, found = np.concatenate(truths), np.concatenate(found)
    same_truth, same_group = truths[:, None] == truths, found[:, None] == found
    return bool((same_truth == same_group).all()), bool(local)


def share(lines, what, part="covered"):
    """Return the coverage over data sets, and its standard error, clustered by data set."""
    inside, total = (lines[f"{what}_{name}"].to_numpy(dtype=np.float64) for name in (part, "total"))
    known = np.isfinite(inside)
    return ratio(inside[known], total[known])


def ratio(parts, totals):
    """Return Σ parts / Σ totals over data sets, and its standard error, clustered by data set."""
    if totals.sum() == 0:
        return np.nan, np.nan
    rate, sets = parts.sum() / totals.sum(), len(parts)
    squares = ((parts - rate * totals) ** 2).sum()
    error = np.sqrt(squares * sets / (sets - 1)) / totals.sum() if sets > 1 else np.nan
    return rate, error


def mean_error(values):
    """Return the mean of values, those that are there, and its standard error."""
    values = values.dropna().astype(float)
    return (values.mean(), values.sem()) if len(values) else (np.nan, np.nan)
