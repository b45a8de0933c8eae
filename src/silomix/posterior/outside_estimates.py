"""Estimators for outside variables: clusters compared by memberships or labels, and odds.

Labels, whether most probable or drawn, bias all clusters towards the whole: rows in a wrong cluster
dilute it. If an outside variable does not depend on the clustered ones once the cluster is
known, then y has the mean Σ_c r_c μ_c in a row, r its membership and μ_c the mean in cluster c.
So μ is the regression of y on r, without a constant: the correction of Bolck, Croon and Hagenaars
(2004) with proportional assignment (Vermunt, 2010), whose matrix of classification errors is R'R
with its rows scaled.

Each draw of the posterior has memberships of its own. Their estimates are pooled by the rules of
Rubin (1987), with the degrees of freedom of Barnard and Rubin (1999).

The dependence of membership on covariates z is a multinomial regression with latent labels, given
the clustered variables x: the likelihood is Σ_c P(c | z) P(x | c), with the profiles of a draw for
P(x | c), which stay as they are while P(c | z) is fitted. That is the two-step estimator of Bakk
and Kuha (2018), which uses the rows' own memberships where the three steps of Vermunt (2010) use a
table of classification errors. It is right if z acts on x only through the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtr, ndtri, softmax, stdtr, stdtrit

from silomix.kernels.arrays import Floats, Ints

# Rows whose influences are in memory at a time.
BLOCK = 16_384
# Fewest expected rows of a cluster, and of the rest, for a comparison: one row has no variance.
FEWEST = 2.0
# Share of the variance between draws up to which they are equal except for rounding.
AGREEMENT = 1e-12
# Pseudo-rows distributed as the whole, added to each cluster for the variance of a share.
PSEUDO = 4.0
# Precision of a normal prior of each coefficient, of a covariate of variance one: a standard
# deviation of ten, so that a covariate that separates clusters has an estimate at all.
RIDGE = 0.01


class Target(NamedTuple):
    """A quantity to compare between clusters.

    Attributes
    ----------
    variable : name of the column.
    level : the level whose share is compared; None for the mean of numbers.
    values : (row,), the number, or 1 where the row has the level and 0 where it has another;
        nan where the cell is missing.
    """

    variable: str
    level: str | None
    values: Floats


class Comparison(NamedTuple):
    """A variable's mean, or the share of one of its levels, in every cluster.

    Attributes
    ----------
    variable : name of the column.
    level : the level of a share; None for a mean.
    whole : mean or share over all rows that have a value.
    rows : (cluster,), rows with a value; expected numbers where memberships are averaged.
    estimate : (cluster,), mean or share in the cluster.
    estimate_lower, estimate_upper : (cluster,), its interval.
    difference : (cluster,), from the whole, or from the rest, as the method has it.
    lower, upper : (cluster,), the interval of the difference.
    p_value : (cluster,), of no difference; nan where there is nothing to compare.
    """

    variable: str
    level: str | None
    whole: float
    rows: Floats
    estimate: Floats
    estimate_lower: Floats
    estimate_upper: Floats
    difference: Floats
    lower: Floats
    upper: Floats
    p_value: Floats

    @property
    def name(self) -> str:
        """Name of the quantity: "age", or "sex = female"."""
        return self.variable if self.level is None else f"{self.variable} = {self.level}"


class Regression(NamedTuple):
    """One draw's estimates, by cluster: (cluster,) each.

    Attributes
    ----------
    rows : expected number.
    estimate : μ.
    own_error, own_freedom : squared standard error of μ_c, and its degrees of freedom.
    difference : μ_c less the mean of the rest.
    error, freedom : squared standard error of the difference, and its degrees of freedom.
    rest_error : the part of the rest in it.
    null_error : the same as `error`, were there no difference; for a mean no other.
    """

    rows: Floats
    estimate: Floats
    own_error: Floats
    own_freedom: Floats
    difference: Floats
    error: Floats
    freedom: Floats
    rest_error: Floats
    null_error: Floats


def compare_memberships(
    targets: Sequence[Target], memberships: Iterator[Floats], level: float
) -> list[Comparison]:
    """Differences of the clusters from the rest, pooled over draws.

    Parameters
    ----------
    targets : what to compare.
    memberships : (row, cluster) of each draw; two or more.
    level : of the intervals.
    """
    by_draw = [[regress(shares, target) for target in targets] for shares in memberships]
    estimates = zip(targets, zip(*by_draw, strict=True), strict=True)
    return [pool(target, draws, level) for target, draws in estimates]


@np.errstate(divide="ignore", invalid="ignore")
def regress(shares: Floats, target: Target) -> Regression:
    """Regress values on memberships, and compare each cluster with the rest.

    Memberships sum to one, so the fitted means average to the mean of all rows, and the rest has
    the mean (ȳ − s μ_c)/(1 − s), s the cluster's share. The squared standard error is the sum of
    the rows' squared influences on the difference, the random share included.

    For a mean, each is divided by one less the row's leverage (HC2, MacKinnon and White, 1985):
    where memberships are certain, this is Welch's test, for two clusters to the last digit. For a
    share, the variance of a row follows from its mean. The p value takes it as it would be without
    a difference, which makes it the χ² test where memberships are certain; `pool` takes it
    with `PSEUDO` rows like the whole added to each cluster. With the spread inside a small
    cluster instead, one whose rows all agree would always be significant. The mean and the share
    themselves have errors of the same kinds, with rows − 1 degrees of freedom for a mean, which is
    Student's interval where memberships are certain.

    Parameters
    ----------
    shares : R, (row, cluster)
    target : y; rows without a value are left out.
    """
    seen, binary = ~np.isnan(target.values), target.level is not None
    shares, values = (shares if seen.all() else shares[seen]), target.values[seen]
    # identical clusters get the same estimate instead of none
    inverse = np.linalg.pinv(shares.T @ shares, hermitian=True)
    count, mean, share = len(values), values.mean(), shares.mean(axis=0)
    rows: Floats = count * share
    rest = np.where(count - rows >= FEWEST, 1 - share, np.nan)
    estimate = inverse @ (shares.T @ values)
    tamed = tame(np.clip(estimate, 0, 1), rows, mean)
    difference = (estimate - mean) / rest
    own_error, of_cluster, of_rest, null = np.zeros((4, len(share)))
    for start in range(0, count, BLOCK):
        block, y = shares[start : start + BLOCK], values[start : start + BLOCK]
        weights, fitted = block @ inverse, block @ estimate
        pull = weights - 1 / count
        # the mean of each row, were the cluster like the rest
        null_mean = fitted[:, None] - difference * (block - share)
        if binary:
            around, drift = block @ tamed, (null_mean - mean) ** 2 / count**2
            variance, level = (around * (1 - around))[:, None], np.clip(null_mean, 0, 1)
            squares = variance * pull**2 + drift
            null += (level * (1 - level) * pull**2 + drift).sum(axis=0)
        else:
            # a row that is a cluster of its own has leverage one; two rows have a half each
            leverage = np.minimum(np.einsum("rc,rc->r", weights, block), 0.5)
            influence = pull * (y - fitted)[:, None] - (null_mean - mean) / count
            squares = influence**2 / (1 - leverage)[:, None]
            variance = ((y - fitted) ** 2 / (1 - leverage))[:, None]
        own_error += (variance * weights**2).sum(axis=0)
        of_cluster += np.einsum("rc,rc->c", block, squares)
        of_rest += np.einsum("rc,rc->c", 1 - block, squares)
    of_cluster, of_rest, null = of_cluster / rest**2, of_rest / rest**2, null / rest**2
    freedom, own_freedom = satterthwaite((of_cluster, rows), (of_rest, count - rows)), rows - 1
    error: Floats = of_cluster + of_rest
    if binary:
        freedom = own_freedom = np.full_like(rest, np.inf)
    else:
        null = error
    return Regression(
        rows, estimate, own_error, own_freedom, difference, error, freedom, of_rest, null
    )


def tame(share: Floats, rows: Floats, whole: float) -> Floats:
    """Shares with `PSEUDO` rows like the whole added, so that none has zero variance."""
    return (rows * share + PSEUDO * whole) / (rows + PSEUDO)


@np.errstate(divide="ignore", invalid="ignore")
def pool(target: Target, draws: Sequence[Regression], level: float) -> Comparison:
    """Pool the estimates of several draws.

    The intervals of shares are those of Wilson (1927), and of Newcombe (1998) for differences, from
    as many certain rows as would have these errors. An interval of so many errors around the share
    itself would hold far too few small shares: a cluster of 150 rows of which none has the level
    would rule out 1 %.

    Parameters
    ----------
    target : what was compared.
    draws : two or more.
    level : of the interval.
    """
    stack = Regression(*(np.array(parts) for parts in zip(*draws, strict=True)))
    rows, estimate, middle = np.mean([stack.rows, stack.estimate, stack.difference], axis=1)
    compared, whole = np.where(rows >= FEWEST, 1.0, np.nan), float(np.nanmean(target.values))
    error, freedom = pooled_error(stack.difference, stack.error, stack.freedom)
    own_error, own_freedom = pooled_error(stack.estimate, stack.own_error, stack.own_freedom)
    reach, own_reach = stdtrit([freedom, own_freedom], 0.5 + level / 2)
    null, null_freedom = pooled_error(stack.difference, stack.null_error, stack.freedom)
    p_value = 2 * stdtr(null_freedom, -np.abs(middle) / null)
    if target.level is None:
        half, own_half = reach * error, own_reach * own_error
        ends = estimate - own_half, estimate + own_half
        lower, upper = middle - half, middle + half
    else:
        estimate, middle = _inside(whole, rows, estimate, middle)
        rest = np.clip(estimate - middle, 0.0, 1.0)
        rest_error = np.sqrt(stack.rest_error.mean(axis=0))
        tamed = tame(estimate, rows, whole)
        # each cluster of the rest with rows added, as where the errors were taken
        rest_tamed = (rows @ tamed - rows * tamed) / (rows.sum() - rows)
        variance, rest_variance = tamed * (1 - tamed), rest_tamed * (1 - rest_tamed)
        # what doubtful rows add to the variance comes from other clusters, whatever the share
        certain = np.maximum(variance / own_error**2, rows)
        leak = np.maximum(own_error**2 - variance / certain, 0.0)
        ends = wilson(estimate, certain, own_reach, leak)
        lower, upper = wilson(estimate, variance / (error**2 - rest_error**2), reach)
        least, most = wilson(rest, rest_variance / rest_error**2, reach)
        lower = np.maximum(middle - np.hypot(estimate - lower, most - rest), -1.0)
        upper = np.minimum(middle + np.hypot(upper - estimate, rest - least), 1.0)
    shown = (compared * part for part in (estimate, *ends, middle, lower, upper, p_value))
    return Comparison(target.variable, target.level, whole, rows, *shown)


def _inside(whole: float, rows: Floats, estimate: Floats, middle: Floats) -> tuple[Floats, Floats]:
    """Shares and differences clipped to possible values: shares of cluster and rest in [0, 1].

    A linear regression may exceed these bounds where clusters overlap much.
    """
    share = rows / rows.sum()
    least, most = (whole - 1) / share + 1, whole / share
    bounded = np.clip(estimate, np.maximum(least, 0.0), np.minimum(most, 1.0))
    return bounded, np.clip(middle + (bounded - estimate) / (1 - share), -1.0, 1.0)


def pooled_error(differences: Floats, within: Floats, freedom: Floats) -> tuple[Floats, Floats]:
    """Standard error and degrees of freedom; Rubin (1987), Barnard and Rubin (1999).

    Where the draws agree nothing is pooled, and the degrees of freedom are those of each: the
    correction of Barnard and Rubin for few of them does not vanish by itself.

    Parameters
    ----------
    differences, within, freedom : (draw, cluster), estimates, their squared standard errors, and
        the degrees of freedom of these.

    Returns
    -------
    (cluster,) each
    """
    draws = len(differences)
    between = (1 + 1 / draws) * differences.var(axis=0, ddof=1)
    total = within.mean(axis=0) + between
    lost = between / total
    complete = freedom.mean(axis=0)
    observed = complete * (1 - 2 / (complete + 3)) * (1 - lost)
    pooled = 1 / (lost**2 / (draws - 1) + 1 / observed)
    return np.sqrt(total), np.where(lost > AGREEMENT, pooled, complete)


@np.errstate(divide="ignore", invalid="ignore")
def compare_labels(target: Target, labels: Ints, clusters: int, level: float) -> Comparison:
    """Differences of each cluster's labelled rows from all rows, taking labels as known.

    The tests of Fendler et al. (2026), table 11.

    Parameters
    ----------
    target : what to compare.
    labels : (row,), from 0.
    clusters : number of clusters.
    level : of the intervals.
    """
    seen = ~np.isnan(target.values)
    values, labels = target.values[seen], labels[seen]
    rows = np.bincount(labels, minlength=clusters).astype(np.float64)
    sums = np.bincount(labels, values, clusters).astype(np.float64)
    means, whole = sums / rows, float(values.mean())
    difference = means - whole
    if target.level is not None:
        ends = wilson(means, rows, ndtri(0.5 + level / 2))
        test = compare_shares(sums, rows, float(values.sum()), len(values), level)
    else:  # Welch's t-test, without equal variances
        squares = np.bincount(labels, (values - means[labels]) ** 2, clusters)
        within, of_all = squares / (rows - 1) / rows, values.var(ddof=1) / len(values)
        own_half = stdtrit(rows - 1, 0.5 + level / 2) * np.sqrt(within)
        ends = means - own_half, means + own_half
        error = np.sqrt(within + of_all)
        freedom = satterthwaite((within, rows), (of_all, len(values)))
        half = stdtrit(freedom, 0.5 + level / 2) * error
        p_value = 2 * stdtr(freedom, -np.abs(difference) / error)
        test = difference - half, difference + half, p_value
    return Comparison(target.variable, target.level, whole, rows, means, *ends, difference, *test)


def wilson(
    share: Floats, rows: Floats, reach: Floats | float, leak: Floats | float = 0.0
) -> tuple[Floats, Floats]:
    """Wilson's (1927) interval of a share, `reach` standard errors wide: (cluster,) each.

    `leak` is the part of the estimate's variance that does not depend on the share: the ends p
    solve (share − p)² = reach² (p (1 − p)/rows + leak), and stay in [0, 1].
    """
    square = reach**2
    middle = (share + square / (2 * rows)) / (1 + square / rows)
    spread = share * (1 - share) / rows + square / (4 * rows**2) + leak * (1 + square / rows)
    half = np.sqrt(square * spread) / (1 + square / rows)
    return np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0)


def compare_shares(
    having: Floats, rows: Floats, having_in_all: float, all_rows: int, level: float
) -> tuple[Floats, Floats, Floats]:
    """Interval and p value of the z-test for two proportions, continuity-corrected.

    Yates's correction, no larger than the difference, as in R's prop.test. The cluster and the
    whole population are taken as two independent samples, though the cluster is part of the whole:
    of the ways to read the note of the table, this one gives the p values that it prints.

    Parameters
    ----------
    having : (cluster,), rows with the level.
    rows : (cluster,)
    having_in_all, all_rows : the same in the whole population.
    level : of the interval.
    """
    share, whole = having / rows, having_in_all / all_rows
    pooled = (having + having_in_all) / (rows + all_rows)
    difference, reach = share - whole, 1 / rows + 1 / all_rows
    correction = np.minimum(0.5 * reach, np.abs(difference))
    z = (np.abs(difference) - correction) / np.sqrt(pooled * (1 - pooled) * reach)
    error = np.sqrt(share * (1 - share) / rows + whole * (1 - whole) / all_rows)
    half = ndtri(0.5 + level / 2) * error + correction
    lower, upper = np.maximum(difference - half, -1), np.minimum(difference + half, 1)
    return lower, upper, 2 * ndtr(-z)


def satterthwaite(
    first: tuple[Floats, Floats], second: tuple[Floats | float, Floats | float]
) -> Floats:
    """Satterthwaite's degrees of freedom for the sum of two squared standard errors.

    Parameters
    ----------
    first, second : (cluster,) each, squared standard error of a mean, and rows.
    """
    parts = first[0] ** 2 / (first[1] - 1) + second[0] ** 2 / (second[1] - 1)
    return (first[0] + second[0]) ** 2 / parts


def fit_multinomial(design: Floats, evidence: Floats, reference: int) -> tuple[Floats, Floats]:
    """Coefficients and their squared standard errors: (cluster but one × term,) each.

    They maximise Σ log Σ_c P(c | z) e_c over rows, under a weak prior.

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
        """P(c | z) and P(c | x, z), both (row, cluster), and the log-likelihood."""
        scores = np.zeros(evidence.shape)
        scores[:, free] = z @ flat.reshape(len(free), terms).T
        prior: Floats = np.asarray(softmax(scores, axis=1))
        joint = np.maximum(prior * evidence, np.finfo(float).tiny)
        total = joint.sum(axis=1)
        return prior, joint / total[:, None], float(np.log(total).sum())

    def loss(flat: Floats) -> tuple[float, Floats]:
        prior, posterior, likelihood = shares(flat)
        slope = ((posterior - prior)[:, free].T @ z).ravel() - RIDGE * flat
        return 0.5 * RIDGE * float(flat @ flat) - likelihood, -slope

    start = np.zeros(len(free) * terms)
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x
    information = RIDGE * np.eye(len(best))
    for sign, all_shares in zip((-1, 1), shares(best)[:2], strict=True):
        share = all_shares[:, free]
        gradient = (share[:, :, None] * z[:, None]).reshape(len(z), -1)
        information += sign * gradient.T @ gradient
        for place, column in enumerate(share.T):
            block = slice(place * terms, (place + 1) * terms)
            information[block, block] -= sign * (z.T * column) @ z
    # back to the units of the covariates
    back = np.diag(1 / spread)
    back[0, 1:] = -middle[1:] / spread[1:]
    whole = np.kron(np.eye(len(free)), back)
    return whole @ best, np.diag(whole @ np.linalg.inv(information) @ whole.T).copy()
