"""How membership depends on covariates: a multinomial regression that allows for unsure rows.

A regression on labels would be diluted by rows in a wrong cluster. Here a row counts by what its
clustered variables x say: the likelihood is Σ_c P(c | z) P(x | c), with the profiles of a draw for
P(x | c), which stay as they are while the regression P(c | z) is fitted. That is the two-step
estimator of Bakk and Kuha (2018), which uses the rows' own memberships where the three steps of
Vermunt (2010) use a table of classification errors. It is right if the covariates z act on x only
through the cluster. The draws are pooled by the rules of Rubin (1987).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import softmax, stdtr, stdtrit

from silomix.errors import DataError, SettingsError
from silomix.model.reading import read_table
from silomix.model.sentences import at_least
from silomix.posterior import outside_variables as outside
from silomix.posterior.frames import make_frame
from silomix.posterior.membership import ELSEWHERE
from silomix.posterior.outside_estimates import pooled_error

if TYPE_CHECKING:
    from silomix.kernels.arrays import Floats
    from silomix.model.reading import Table
    from silomix.posterior.global_posterior import Posterior
    from silomix.posterior.outside_variables import Columns

# Precision of a normal prior of each coefficient, of a covariate of variance one: a standard
# deviation of ten, so that a covariate that separates clusters has an estimate at all.
RIDGE = 0.01


def regress_membership(
    posterior: Posterior,
    table: Table,
    covariates: Columns,
    *,
    reference: int = 0,
    draws: int = outside.DRAWS,
    level: float = 0.95,
    threads: int | None = None,
) -> Any:
    """Return how the odds of being in a cluster depend on covariates, such as age or sex.

    A multinomial logistic regression that allows for rows whose cluster is not sure, in several
    draws of the posterior, pooled. It is right if the clusters are, and if the covariates do not
    change the clustered variables within a cluster.

    Parameters
    ----------
    posterior : whose clusters they are.
    table : any frame or path with the study's variables and the covariates; a row that lacks a
        covariate is left out.
    covariates : as the columns of `compare_outside`. Of levels the first is what the others are
        compared with, unless one is named.
    reference : the cluster that the others are compared with.
    draws : of the posterior, evenly spaced, to pool.
    level : of each interval.
    threads : cores to use; all when left out. The result does not depend on it.

    Returns
    -------
    frame
        A line for each cluster but the reference, and covariate: cluster, variable ("intercept" for
        the constant), level_name, log_odds, se, odds_ratio for one unit more, or for this level
        instead of the others, with lower, upper and interval, p_value, and the rows used.

    Examples
    --------
    >>> rows = table.assign(age=40.0 + 10 * truth.labels + [0, 1, 2, 3] * 100)
    >>> found = silomix.regress_membership(posterior, rows, ["age"])
    >>> found.shape, found["variable"].tolist()[:2]
    ((8, 11), ['intercept', 'age'])
    """
    outside.check_level(level)
    clusters = posterior.n_clusters
    if clusters < 2 or reference not in range(clusters):
        raise SettingsError(
            f"reference is {reference}; give one of two or more, 0 to {clusters - 1}"
        )
    frame = read_table(table)
    targets = outside.read_outside(frame, covariates)
    found = [list(group) for _, group in groupby(targets, lambda target: target.variable)]
    outside.check_outside(posterior, [target.variable for target in targets], None)
    # of three or more levels the first is left out
    used = [target for group in found for target in group[len(group) > 1 :]]
    values = np.column_stack([target.values for target in used])
    known = ~np.isnan(values).any(axis=1)
    design = np.column_stack([np.ones(known.sum()), values[known]])
    if len(design) == 0 or np.linalg.matrix_rank(design) < design.shape[1]:
        raise DataError(
            "the covariates determine each other, or no row has all of them; leave some out"
        )
    # equal weights make memberships proportional to P(x | c)
    flat = replace(posterior, weights=np.ones_like(posterior.weights) / clusters)
    count, places = at_least("draws", draws, 2), np.full(len(frame), ELSEWHERE)
    evidence = outside.memberships_by_draw(flat, frame, places, count, threads)
    fits = [fit_multinomial(design, each[known], reference) for each in evidence]
    estimate, within = (np.array(part) for part in zip(*fits, strict=True))
    error, freedom = pooled_error(estimate, within, np.full_like(estimate, np.inf))
    middle = estimate.mean(axis=0)
    half = stdtrit(freedom, 0.5 + level / 2) * error
    # a constant far from the data may be beyond what floats hold
    ratio, low, high = (
        np.exp(np.minimum(x, 700.0)) for x in (middle, middle - half, middle + half)
    )
    others = [c for c in range(clusters) if c != reference]
    columns = {
        "cluster": np.repeat(others, len(used) + 1),
        "variable": ["intercept", *(target.variable for target in used)] * len(others),
        "level_name": [None, *(target.level for target in used)] * len(others),
        "log_odds": middle,
        "se": error,
        "odds_ratio": ratio,
        "lower": low,
        "upper": high,
        "interval": [f"{100 * level:g}% CI"] * len(middle),
        "p_value": 2 * stdtr(freedom, -np.abs(middle) / error),
        "rows": np.full(len(middle), len(design)),
    }
    return make_frame(columns, None, posterior)


def fit_multinomial(design: Floats, evidence: Floats, reference: int) -> tuple[Floats, Floats]:
    """Return coefficients and their squared standard errors: (cluster but one × term,) each.

    They maximise Σ log Σ_c P(c | z) e_c over rows, but for the weak prior.

    Parameters
    ----------
    design : (row, term), z, the first term a constant.
    evidence : (row, cluster), e, proportional to P(x | c).
    reference : the cluster whose coefficients are zero.
    """
    middle, spread = design.mean(axis=0), design.std(axis=0)
    middle[0], spread[0] = 0.0, 1.0
    z, terms = (design - middle) / spread, design.shape[1]
    free = np.delete(np.arange(evidence.shape[1]), reference)

    def shares(flat: Floats) -> tuple[Floats, Floats, float]:
        """Return P(c | z) and P(c | x, z), both (row, cluster), and the log-likelihood."""
        scores = np.zeros(evidence.shape)
        scores[:, free] = z @ flat.reshape(len(free), terms).T
        before: Floats = np.asarray(softmax(scores, axis=1))
        joint = np.maximum(before * evidence, np.finfo(float).tiny)
        total = joint.sum(axis=1)
        return before, joint / total[:, None], float(np.log(total).sum())

    def loss(flat: Floats) -> tuple[float, Floats]:
        before, after, likelihood = shares(flat)
        slope = ((after - before)[:, free].T @ z).ravel() - RIDGE * flat
        return 0.5 * RIDGE * float(flat @ flat) - likelihood, -slope

    start = np.zeros(len(free) * terms)
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x
    information = RIDGE * np.eye(len(best))
    for sign, all_shares in zip((-1, 1), shares(best)[:2], strict=True):
        share = all_shares[:, free]
        each = (share[:, :, None] * z[:, None]).reshape(len(z), -1)
        information += sign * each.T @ each
        for place, own in enumerate(share.T):
            block = slice(place * terms, (place + 1) * terms)
            information[block, block] -= sign * (z.T * own) @ z
    # back to the units of the covariates
    back = np.diag(1 / spread)
    back[0, 1:] = -middle[1:] / spread[1:]
    whole = np.kron(np.eye(len(free)), back)
    return whole @ best, np.diag(whole @ np.linalg.inv(information) @ whole.T).copy()
