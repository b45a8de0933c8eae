"""Whether a run can be trusted: label-invariant traces, R-hat, effective sample size, a sentence.

Component labels may swap during a run, so only quantities that do not depend on them are traced.
R-hat is rank-normalised and split, ESS is bulk (Vehtari et al., 2021), both from arviz-stats.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from silomix.kernels.arrays import Floats, Ints, Singles
from silomix.model.draws import Diagnostics, Trace

RHAT_LIMIT = 1.05
# R-hat above this is printed as "over 100".
LARGEST_RHAT = 100
ESS_LIMIT = 200.0
# Warn of a cluster whose share of draws from the prior is above this.
PRIOR_DRAWS_ALLOWED = 0.05
# arviz-stats silences the warnings of all threads: this lock keeps ours from being lost meanwhile.
SILENCE = threading.Lock()
# R-hat is not computed for chains with fewer draws.
FEWEST_DRAWS = 8

_WORDS = {
    "log_likelihood": "log-likelihood",
    "occupied": "number of occupied components",
    "largest_weight": "largest weight",
    "allocation_entropy": "allocation entropy",
}


def diagnose(log_likelihood: Floats, members: Ints, weights: Singles) -> Diagnostics:
    """Convergence diagnostics of one silo's kept draws.

    Parameters
    ----------
    log_likelihood : (chain, draw)
    members : (chain, draw, component), rows by component.
    weights : (chain, draw, component)
    """
    # by size: added up in another order, switched labels would pass for a move of the trace
    shares = np.sort(members, axis=-1) / members.sum(axis=-1, keepdims=True)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    values = {
        "log_likelihood": log_likelihood,
        "occupied": (members > 0).sum(axis=-1).astype(np.float64),
        "largest_weight": weights.max(axis=-1).astype(np.float64),
        "allocation_entropy": -(shares * logs).sum(axis=-1),
    }
    return judge_traces(values)


def judge_traces(values: Mapping[str, Floats]) -> Diagnostics:
    """Convergence diagnostics of traces by name, each (chain, draw)."""
    traces = {name: _trace(value) for name, value in values.items()}
    trusted, verdict = _verdict(traces)
    return Diagnostics(traces, trusted, verdict)


def _trace(values: Floats) -> Trace:
    if values.shape[1] < FEWEST_DRAWS or np.ptp(values) == 0:
        return Trace(values, np.nan, np.nan)
    array_stats: Any = import_module("arviz_stats.base").array_stats  # late: it costs a second
    # R-hat compares chains: a single one is cut in half, and the halves should agree too
    even = values.shape[1] // 2 * 2
    compared = values if len(values) > 1 else values[:, :even].reshape(2, -1)
    # a chain that never moved divides by 0
    with SILENCE, np.errstate(divide="ignore", invalid="ignore"):
        rhat = float(array_stats.rhat(compared, chain_axis=0, draw_axis=1))
        ess = float(array_stats.ess(values, chain_axis=0, draw_axis=1))
    return Trace(values, rhat, ess)


def rhat_words(rhat: float, digits: int) -> str:
    """Format R̂; chains that stay apart make it huge, or infinite."""
    return f"{rhat:.{digits}f}" if rhat < LARGEST_RHAT else f"over {LARGEST_RHAT}"


def worst_rhat(values: Iterable[float]) -> float:
    """Largest R̂, infinite ones included; nan if every trace was constant."""
    return max((value for value in values if not np.isnan(value)), default=np.nan)


def fewest_draws(values: Iterable[float]) -> float:
    """Smallest effective sample size; nan if every trace was constant."""
    return min((value for value in values if np.isfinite(value)), default=np.nan)


def _verdict(traces: Mapping[str, Trace]) -> tuple[bool, str]:
    chains, draws = next(iter(traces.values())).values.shape
    if draws < FEWEST_DRAWS:
        return False, (
            f"Cannot tell: {draws} kept draws a chain are too few to judge; keep at least "
            f"{FEWEST_DRAWS}, preferably several hundred."
        )
    moving = {name: trace for name, trace in traces.items() if not np.isnan(trace.rhat)}
    if not moving:
        return True, "Every trace is constant: the rows leave the sampler no choice."
    worst = max(moving, key=lambda name: moving[name].rhat)
    least = min(moving, key=lambda name: moving[name].ess)
    rhat, ess = moving[worst].rhat, moving[least].ess
    if rhat > RHAT_LIMIT:
        kind = f"the {chains} chains" if chains > 1 else "the two halves of the chain"
        return False, (
            f"Do not trust this run yet: {kind} disagree on the {_WORDS.get(worst, worst)} (R-hat "
            f"{rhat_words(rhat, 2)}, limit {RHAT_LIMIT}). Run it longer; if that does not help, "
            "the posterior may have several modes."
        )
    if ess < ESS_LIMIT:
        return False, (
            f"Use with care: the {_WORDS.get(least, least)} has only {ess:.0f} effective draws "
            f"(at least {ESS_LIMIT:.0f} wanted); run longer."
        )
    caution = "" if chains > 1 else " With one chain, a mode never visited goes unnoticed."
    return True, (
        f"Trust it: R-hat is at most {rhat:.2f} and there are at least {ess:.0f} effective draws "
        f"for every trace.{caution}"
    )


def index_of_sizes(cells: Ints, sizes_a: Ints, sizes_b: Ints) -> float:
    """Adjusted Rand index of two partitions from their contingency table.

    Examples
    --------
    >>> import numpy as np
    >>> silomix.metrics.index_of_sizes(np.array([2, 1, 1]), np.array([3, 1]), np.array([2, 2]))
    0.0
    """
    # Python integers: products of two numbers of pairs pass 2^63 from 80,000 rows on
    together, pairs = _pairs(cells), _pairs(cells.sum())
    together_a, together_b = _pairs(sizes_a), _pairs(sizes_b)
    spread = (together_a + together_b) * pairs - 2 * together_a * together_b
    if spread == 0:
        return 1.0
    return 2 * (together * pairs - together_a * together_b) / spread


def index_of_labels(a: Ints, b: Ints) -> float:
    """Adjusted Rand index of two partitions, given the number of each row's cluster."""
    cells = np.bincount(a * (b.max() + 1) + b)
    return index_of_sizes(cells, np.bincount(a), np.bincount(b))


def _pairs(sizes: Ints) -> int:
    """Number of pairs of rows that share a group, given the groups' sizes."""
    return int((sizes * (sizes - 1) // 2).sum())
