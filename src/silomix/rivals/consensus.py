"""Rivals that differ from silomix in one step: how draws are combined, or clusters matched.

Consensus Monte Carlo (Scott et al., 2016) averages with full matrices,
θ = (Σ_s W_s)⁻¹ Σ_s W_s θ_s, W_s = Σ_s⁻¹. Probabilities that sum to one have a singular covariance,
so the last of them is left out of the coordinates and follows from the others. Each cluster's
profile is averaged by itself, over the silos that hold the cluster: a silo has no covariance of
a cluster that it lacks, and the profiles of two clusters are nearly independent. A matrix average
of points of a simplex may leave it: negative entries become (nearly) zero, and the rest sums to
one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.coordinator.aggregation import aggregate
from silomix.coordinator.matching import match
from silomix.coordinator.pipeline import assign_rows
from silomix.families.categorical import level_totals
from silomix.families.family import SMALLEST
from silomix.messages import Release, SampleLocally
from silomix.messages.released_draws import effective_counts, matched_draws
from silomix.model.sentences import one_of
from silomix.posterior.global_posterior import Parts, ordered
from silomix.rivals.federation import Federation, RivalResult, open_silos
from silomix.silo.local import Silo, release_of, sample_locally
from silomix.silo.relabel import local_posterior
from silomix.silo.store import Kept
from silomix.study import AGGREGATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.kernels.arrays import Floats, Ints
    from silomix.model.draws import MatchedDraws
    from silomix.model.reading import Table


# Weightings of `cmc`, and their names in silomix's aggregation, if it has them.
AVERAGES = {"covariance": None, "independent": "cmc", "uniform": "uniform"}

# Standard deviation added to coordinates that do not move, so that matrices can be inverted.
SMALLEST_SPREAD = 1e-9


def cmc(
    table: Table, silo: str | None = None, *, weights: str = "covariance", **settings: Any
) -> RivalResult:
    """Average the silos' matched draws by their precision: consensus Monte Carlo.

    Scott et al. (2016): θ = (Σ_s W_s)⁻¹ Σ_s W_s θ_s. "covariance" takes W_s = Σ_s⁻¹, exact where
    every silo's posterior is Gaussian; "independent" the inverse variance of each level probability
    alone, and one weight for all of a silo's π; "uniform" equal weights. Each silo samples under
    the prior to the power 1/S. Scott et al. have no clusters to match: silomix's matching comes
    first. How a mixture's parameters become coordinates is in `silomix.rivals.consensus`, and for
    "independent" in `silomix.paper.aggregations`.

    In Scott et al. all silos share one θ. Weights of clusters that differ between silos are not
    such a θ: their average by precision is not the weight over all rows, and its intervals are
    those of a parameter that all silos share.

    Parameters
    ----------
    table, silo : as for `silomix.fit`.
    weights : "covariance", for categories only; "independent" or "uniform".
    settings : seed, threads, variables, kinds, bins, missing, and those of the silos' sampler,
        partition, matching and assignment, as for `silomix.fit`.

    Examples
    --------
    >>> result = silomix.rivals.cmc(table, "silo", iterations=600, seed=1)
    >>> result.n_clusters
    5
    """
    one_of("weights", weights, AVERAGES)
    knows = "categories" if weights == "covariance" else "all"
    federation = open_silos(table, silo, knows=knows, unused=["combine"], **settings)
    return _run("cmc", federation, SampleLocally(), AVERAGES[weights])


def product(table: Table, silo: str | None = None, **settings: Any) -> RivalResult:
    """Multiply densities fitted to the silos' matched draws.

    The parametric product of Neiswanger, Wang and Xing (2014) with Dirichlet densities, fitted by
    moments, in place of Gaussian ones, whose tails cross 0 and 1. Only level probabilities are
    multiplied: a silo's weights are its own, so those over all rows are the silos' added up. Both
    are in `silomix.coordinator.aggregation`.

    Parameters
    ----------
    table, silo : as for `silomix.fit`.
    settings : seed, threads, variables, kinds, bins, missing, and those of the silos' sampler,
        partition, matching and assignment, as for `silomix.fit`.

    Examples
    --------
    >>> result = silomix.rivals.product(table, "silo", iterations=600, seed=1)
    >>> result.n_clusters
    5
    """
    federation = open_silos(table, silo, unused=["combine"], **settings)
    return _run("product", federation, SampleLocally(), "product")


def rabinovich(
    table: Table, silo: str | None = None, *, clusters: int, **settings: Any
) -> RivalResult:
    """Combine mixtures with a known number of components by variational consensus Monte Carlo.

    Rabinovich, Angelino and Jordan (2015), whose mixtures have a known number of components, all
    of them in every silo. Each silo samples `clusters` components; its clusters are those of its
    most likely draw, to which the other draws are relabelled one to one, and not those of the
    partition that a silo of silomix estimates. Clusters are matched to those of a reference silo,
    and the weights of the silos maximise the relaxed evidence lower bound, as in Fendler et al.
    (2026), section 4.4.

    Parameters
    ----------
    table, silo : as for `silomix.fit`.
    clusters : how many there are.
    settings : seed, threads, variables, kinds, bins, missing, and those of the silos' sampler, the
        solver and the assignment, as for `silomix.fit`.

    Examples
    --------
    >>> result = silomix.rivals.rabinovich(table, "silo", clusters=5, iterations=600, seed=1)
    >>> result.n_clusters
    5
    """
    fixed = {"components": clusters, "matching": "hungarian", "absorb": 0}
    unused = ("partition", "aggregation", "polish", "strategy")
    federation = open_silos(table, silo, unused=unused, fixed=fixed, **settings)
    return _run("rabinovich", federation, partial(sample_known), "vcmc")


def sample_known(silo: Silo) -> Release:
    """Sample in a silo, with the clusters of its most likely draw."""
    draws = sample_locally(silo).draws
    local = local_posterior(draws, draws.labels[draws.log_likelihood.argmax()], "match")
    release = release_of(silo, local)
    silo.store.keep(Kept(release, local.weights, local.probabilities, local.partition.labels))
    return release


def _run(name: str, federation: Federation, question: Any, method: str | None) -> RivalResult:
    """Sample, match, combine, assign."""
    study, silos = federation.study, federation.tally
    count = study.kept_draws
    model = study.pooled_model
    with federation.stage("sample"):
        releases: list[Release] = federation.ask(question)
    with federation.stage("match"):
        counts = [effective_counts(release, model, len(releases)) for release in releases]
        matching, _ = match(releases, counts, study.matching, silos, model, drift=False)
    with federation.stage("combine"):
        if method is None:
            matched = matched_draws(releases, matching.groups, count, model)
            offsets = model.family.starts
            weights, probabilities, notes = consensus_draws(matched, releases, offsets)
        else:
            # the study has the options of its own method
            chosen = AGGREGATIONS[method].record
            settings = study.aggregation if isinstance(study.aggregation, chosen) else chosen()
            combined = aggregate(
                releases, matching, settings, silos, model, count=count, threads=federation.threads
            )
            matched, notes = combined.matched, combined.notes
            weights, probabilities = combined.weights, combined.parameters
    by_silo = np.moveaxis(matched.weights, 0, 1)
    parts = ordered(Parts(weights, by_silo, probabilities, matching, None))
    by_matching = parts.correspondence if study.assign == "matching" else None
    with federation.stage("assign"):
        assign_rows(parts, silos, by_matching.groups if by_matching else None)
    return federation.result(name, parts.weights, parts.profile_draws, *notes)


def consensus_draws(
    matched: MatchedDraws, releases: Sequence[Release], offsets: Ints
) -> tuple[Floats, Floats, tuple[str, ...]]:
    """Average the silos' draws.

    Returns
    -------
    weights : (draw, cluster); probabilities : (draw, cluster, level)
    notes : share of their entries that fell below zero, if any did.
    """
    weights = average_weights(matched, np.array([release.rows for release in releases]))
    pairs = enumerate(matched.held.T)
    profiles = [average_profiles(matched.parameters[s, :, c], offsets) for c, s in pairs]
    probabilities = np.stack(profiles, axis=1)
    negative = np.count_nonzero(weights < 0) + np.count_nonzero(probabilities < 0)
    share = negative / (weights.size + probabilities.size)
    note = f"{share:.2%} of the averaged weights and probabilities fell below 0 and became 0."
    whole = np.array([0, weights.shape[1]])
    weights, probabilities = onto_simplex(weights, whole), onto_simplex(probabilities, offsets)
    return weights, probabilities, (note,) if negative else ()


def average_weights(matched: MatchedDraws, rows: Ints) -> Floats:
    """Average π: (draw, cluster), some entries perhaps below zero.

    A silo that lacks a cluster has no variance in its weight and would decide it alone. So in no
    direction is a variance below that of (diag m − mm') / (n_s + 1), m the mean weights over all
    rows: the variance if the clusters of the silo's rows were known. Like Scott's rule this
    does not depend on which cluster is left out of the coordinates.
    """
    overall = (rows @ matched.weights.mean(axis=1) / rows.sum())[:-1]
    multinomial = np.diag(overall) - np.outer(overall, overall)
    free, least = matched.weights[:, :, :-1], multinomial / (rows + 1.0)[:, None, None]
    covariances = list(map(at_least, map(covariance, free), least))
    averaged = average(free, np.array(covariances))
    return np.append(averaged, 1.0 - averaged.sum(axis=1, keepdims=True), axis=1)


def at_least(matrix: Floats, least: Floats) -> Floats:
    """Raise a covariance to another one in the directions where it is smaller."""
    root = np.linalg.cholesky(least)
    inverse = np.linalg.inv(root)
    ratios, directions = np.linalg.eigh(inverse @ matrix @ inverse.T)
    half = root @ directions
    return (half * np.maximum(ratios, 1.0)) @ half.T


def average_profiles(draws: Floats, offsets: Ints) -> Floats:
    """Average one cluster's probabilities over the silos that hold it: (draw, level).

    Parameters
    ----------
    draws : (silo, draw, level)
    """
    last_levels = offsets[1:] - 1
    free = np.delete(draws, last_levels, axis=2)
    averaged = np.zeros(draws.shape[1:])
    coordinates = np.delete(np.arange(draws.shape[2]), last_levels)
    averaged[:, coordinates] = average(free, np.array([covariance(part) for part in free]))
    averaged[:, last_levels] = 1.0 - np.add.reduceat(averaged, offsets[:-1], axis=1)
    return averaged


def covariance(draws: Floats) -> Floats:
    """Sample covariance of draws, (draw, coordinate), made invertible."""
    centred = draws - draws.mean(axis=0)
    jitter = SMALLEST_SPREAD**2 * np.eye(draws.shape[1])
    return centred.T @ centred / (len(draws) - 1) + jitter


def average(draws: Floats, covariances: Floats) -> Floats:
    """Precision-weighted average (Σ_s W_s)⁻¹ Σ_s W_s θ_s of each draw: (draw, coordinate).

    Parameters
    ----------
    draws : (silo, draw, coordinate); covariances : (silo, coordinate, coordinate), of which W_s
        are the inverses.
    """
    precisions = np.linalg.inv(covariances)
    total = np.einsum("sij,stj->ti", precisions, draws)
    return np.linalg.solve(precisions.sum(axis=0), total.T).T


def onto_simplex(values: Floats, offsets: Ints) -> Floats:
    """Set negative entries to nearly zero, and renormalise each variable: (..., level)."""
    positive = np.maximum(values, SMALLEST)
    return positive / level_totals(positive, offsets)
