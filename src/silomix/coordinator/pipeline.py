"""The paper on one screen: what a coordinator does, for any transport; and notes on the result."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from silomix.coordinator.aggregation import Aggregated, aggregate
from silomix.coordinator.exact_strategy import find_pooled_posterior
from silomix.coordinator.matching import match
from silomix.coordinator.polish import affordable, own_profiles, polish, starting_point
from silomix.families.release_rounding import STAND_INS
from silomix.kernels.arrays import Floats, Ints, Reals, sum_by
from silomix.messages import AssignRows, Release, SampleLocally, Silos
from silomix.messages.progress import CountingSilos, Report
from silomix.messages.released_draws import effective_counts
from silomix.model.diagnostics import PRIOR_DRAWS_ALLOWED
from silomix.model.draws import Correspondence, SiloProfiles, SiloWeights
from silomix.model.sentences import listing, quoted
from silomix.posterior.characterise import SMALL, nearly_same, single_silo_clusters
from silomix.posterior.global_posterior import SILO_DRAWS, Parts, Posterior, ordered
from silomix.posterior.verdict import PosteriorDiagnostics, make_provenance
from silomix.study.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from silomix.families.product import Product
    from silomix.model.schema import PooledModel
    from silomix.study import Study


# Sets the draws of shared profiles without a polish apart from other draws of the same seed.
DRIFT_STREAM = 0x647266
# A silo with so many times the median of the other silos' rows is named.
OUTLYING = 100


def run_study(
    study: Study, silos: Silos, *, threads: int = 1, report: Report | None = None
) -> Posterior:
    """Run a study over its silos and return one global posterior; its rows stay where they are.

    Fendler et al. (2026), section 4: apply (each silo samples), match, aggregate; then polish,
    which is ours. `strategy="exact"` samples the pooled posterior over the silos instead.
    """
    counted = CountingSilos(silos, report)
    releases: list[Release] = []
    model = study.pooled_model
    if study.strategy == "exact":
        tell = partial(counted.say, "sampling")
        parts, diagnostics = find_pooled_posterior(study, counted, model, tell)
    else:
        replies: Mapping[str, Release] = counted.ask(SampleLocally())
        releases = [replies[name] for name in silos.names]
        parts, diagnostics = find_consensus(study, releases, counted, model, threads)

    parts = ordered(parts)
    counted.say("assigning")
    by_matching = parts.correspondence if study.assign == "matching" else None
    assign_rows(parts, counted, by_matching.groups if by_matching else None)
    notes = cluster_notes(parts, counted.rows, model.family, expected=study.rows or ())
    return Posterior(
        study=study,
        **vars(parts),
        diagnostics=replace(diagnostics, notes=(*diagnostics.notes, *notes)),
        provenance=make_provenance(study, releases, counted.sent, counted.answered),
    )


def find_consensus(
    study: Study, releases: list[Release], silos: CountingSilos, model: PooledModel, threads: int
) -> tuple[Parts, PosteriorDiagnostics]:
    """Match the silos' clusters, aggregate their draws, and polish the result."""
    settings, polishes = study.polish, study.polish.rounds != 0
    rows = np.array([release.rows for release in releases])

    counts = [effective_counts(release, model, len(releases)) for release in releases]
    weighed, passes = counts, study.matching.refine
    while True:
        silos.say("matching")
        correspondence, kappa = match(
            releases, weighed, study.matching, silos, model, drift=study.drifts, polishes=polishes
        )
        silos.say("aggregating")
        # the aggregated draws are the posterior's, or where the chains of the polish begin
        count, last = affordable(study, rows, correspondence.clusters, model.family)
        aggregated = aggregate(
            releases, correspondence, study.aggregation, silos, model, count=count, threads=threads
        )
        if passes == 0:
            break
        passes -= 1
        weighed = reweigh(counts, correspondence, aggregated.silo_weights)

    matched, trace, own = aggregated.matched, None, None
    weights: Reals = aggregated.weights
    shared: Reals = aggregated.parameters
    by_silo: Reals = np.moveaxis(matched.weights, 0, 1)
    if polishes:
        silos.say("polishing")
        start = starting_point(matched, aggregated.parameters, rows, model.family, kappa)
        kept, tell = study.kept_draws, partial(silos.say, "polishing")
        polished = polish(
            start, silos, settings, model, kept_draws=kept, most_rounds=last, report=tell
        )
        by_silo = polished.weights_by_silo
        weights = np.einsum("tsc,s->tc", by_silo, rows / rows.sum())
        shared, own = polished.parameters, polished.silo_profiles
        trace = polished.trace.renumbered(weights)
    elif kappa is not None:
        shared, own = draw_under_drift(counts, correspondence, aggregated, kappa, model)
    parts = Parts(weights, by_silo, shared, correspondence, aggregated.silo_weights, own)
    smallest = parts.weights.astype(np.float32).mean(axis=0, dtype=np.float64).min() * rows.sum()
    judged = {release.silo: release.diagnostics for release in releases}
    if study.model.clusters is not None:  # no component is spare: that all hold rows is as it is
        judged = {name: replace(run, full=0.0) for name, run in judged.items()}
    return parts, PosteriorDiagnostics(
        silos=judged,
        elbo=aggregated.elbo_trace,
        polish=trace,
        confidence=None
        if correspondence.confidence is None
        else float(correspondence.cluster_confidence().min()),
        smallest=float(smallest),
        notes=tuple(consensus_notes(study, releases, aggregated.notes)),
    )


def reweigh(counts: list[Floats], match: Correspondence, weights: SiloWeights) -> list[Floats]:
    """Weigh clusters down where the aggregation gives their silo less than its share.

    The paper's discussion proposes to match again with the weights of a first aggregation; it
    leaves open how. Effective counts are multiplied by μ over the silo's share of the cluster's
    rows, at most one; distances between medians do not change.
    """
    shares = match.rows / np.maximum(match.rows.sum(axis=0), 1)
    factors = np.minimum(1.0, weights.profiles / np.where(shares > 0, shares, 1.0))
    return [
        own * factor[group][:, None]
        for own, factor, group in zip(counts, factors, match.groups, strict=True)
    ]


def draw_under_drift(
    counts: list[Floats],
    match: Correspondence,
    found: Aggregated,
    kappa: Floats,
    model: PooledModel,
) -> tuple[Floats, SiloProfiles]:
    """Shared and silos' own profiles where silos differ and no polish round is made.

    The average of profiles that drift has another spread than the profile they share, which is
    drawn given the silos' counts, discounted at the matching's κ; a silo's own are its own draws.
    """
    shared, family = found.parameters, model.family
    if np.isfinite(kappa).any():
        sums = np.zeros((match.clusters, int(family.statistics.sum())))
        for own, group in zip(counts, match.groups, strict=True):
            sums += family.discount(sum_by(group, own, len(sums)), kappa)
        rng = np.random.default_rng([model.seed, DRIFT_STREAM])
        shared = family.draw(family.prior() + family.conjugate(sums), rng, len(shared))
    silo_draws = own_profiles(found.matched, shared, kappa, family)[:, -SILO_DRAWS:]
    return shared, SiloProfiles(kappa[None], np.moveaxis(silo_draws, 0, 1).astype(np.float32))


def assign_rows(parts: Parts, silos: Silos, groups: Sequence[Ints] | None) -> None:
    """Have every silo find its rows' clusters, and keep them."""
    own = parts.silo_profiles
    last = slice(-len(own.parameters), None) if own else slice(None)
    questions = {}
    for place, name in enumerate(silos.names):
        profiles = own.parameters[:, place] if own else parts.profile_draws
        by_matching = groups[place] if groups is not None else None
        questions[name] = AssignRows(parts.weights_by_silo[last, place], profiles, by_matching)
    silos.ask(questions)


def policy_notes(releases: list[Release]) -> Iterator[str]:
    """Effects of the silos' policies on the numbers."""
    ruled = [release for release in releases if Policy(**release.policy).has_rules]
    if not ruled:
        return
    who = listing([repr(release.silo) for release in ruled], last=" and ")
    yield (
        f"The policies of {who} rounded what was released, which affects probabilities near 0 and "
        "1 most: the intervals allow for that, and are wider. How their own runs went is not told, "
        "either: ask their users what `silomix answer` or `silomix release` said."
    )
    told = []
    for release in ruled:
        checks = [check for check in release.checks if check.rule in STAND_INS and check.changed]
        if checks:
            changed = sum(check.changed or 0 for check in checks)
            cells = sum(check.cells for check in release.checks if check.rule == STAND_INS[0])
            told.append(f"{changed} of {cells} profiles in {release.silo!r}")
    if told:
        yield (
            "Where a cluster has too few rows for its own profile of a variable, or a few "
            f"rows dominate, a flatter one is used: {'; '.join(told)}."
        )


def consensus_notes(
    study: Study, releases: list[Release], aggregation: Sequence[str]
) -> Iterator[str]:
    """Effects of policies, notes of the `aggregation`, and limits of the method."""
    yield from policy_notes(releases)
    yield from aggregation
    often = {release.silo: release.diagnostics.prior_draws for release in releases}
    often = {silo: share for silo, share in often.items() if share > PRIOR_DRAWS_ALLOWED}
    # the polish forgets where it started
    if often and study.polish.rounds == 0:
        yield (
            f"In {quoted(list(often))} some draws of the least certain cluster, up to "
            f"{max(often.values()):.0%}, come from the prior: use more iterations, or allow a "
            "polish."
        )
    if study.polish.rounds == 0 and study.aggregation.averages:
        yield "No polish round was made: intervals near 0 and 1 may be too narrow."
    if study.schedule.chains == 1:
        yield "With one chain per silo, a missed mode goes unnoticed: use chains=2."
    known = study.model.clusters
    found = max((release.clusters for release in releases), default=0)
    if len(releases) > 1 and found == 1:
        yield (
            "No silo shows more than one cluster by itself. More may show only when all "
            "rows are taken together, and only the exact strategy finds those."
        )
    if known is not None and found < known:
        yield f"No silo has more than {found} of the {known} clusters that the study states."
    if known is not None and not study.matching.one_to_one:
        yield f"Only Hungarian matching guarantees {known} clusters."
    if study.matching.one_to_one and known is None:
        word = study.matching.method.capitalize()
        yield f"{word} matching joins clusters that differ, unless one silo holds every cluster."


def cluster_notes(
    parts: Parts, rows: Mapping[str, int], family: Product, *, expected: Container[str] = ()
) -> Iterator[str]:
    """Name silos that outweigh the others, clusters that live in one, and pairs that may be one.

    Parameters
    ----------
    rows : of each silo, as it says.
    expected : silos whose number of rows the study states.
    """
    match = parts.correspondence
    lonely = match and single_silo_clusters(parts.weights_by_silo, [*rows.values()], match)
    alone = {lone for lone, *_ in lonely or ()}
    yield from influence_notes(parts.weights_by_silo, rows, alone, expected)
    for lone, silo, share, apart in lonely or ():
        same = f"; the probability that it matches another is {1 - apart:.2f}"
        yield (
            f"Cluster {lone}, with {share:.0%} of its rows in {silo!r}, was found there alone"
            + ("." if np.isnan(apart) else f"{same}.")
        )
    for a, b, probability, overlap in nearly_same(match, parts.profile_draws, family):
        unknown = np.isnan(probability)
        one = "" if unknown else f"the probability that they are one is {probability:.2f}, and "
        overlaps = f"the overlap of their profiles is {overlap:.2f}"
        yield f"Clusters {a} and {b} look alike: {one}{overlaps}."


def influence_notes(
    weights_by_silo: Reals, rows: Mapping[str, int], alone: set[int], expected: Container[str]
) -> Iterator[str]:
    """Name the silos that outweigh the others, in one sentence, overall or in a cluster.

    Such a silo has more rows than all others together, and more than twice as many as the next:
    with two silos one always has half. Of one that outweighs them in all rows no cluster is named:
    it has most of nearly every one.

    Parameters
    ----------
    weights_by_silo : (draw, silo, cluster)
    rows : of each silo, as it says.
    alone : clusters that were found in one silo only.
    expected : silos whose number of rows the study states.
    """
    if len(rows) < 2:
        return
    counts = np.array([*rows.values()], dtype=np.float64)
    # the first column is of all rows
    own = np.c_[counts, weights_by_silo.mean(axis=0, dtype=np.float64) * counts[:, None]]
    shares = own / np.maximum(own.sum(axis=0), np.finfo(np.float64).tiny)
    second = np.sort(shares, axis=0)[-2]
    outweighs = shares > np.maximum(0.5, 2 * second)
    outweighs[:, 1:] &= second[1:] >= SMALL  # several silos hold the cluster
    clauses = []
    for place, silo in enumerate(rows):
        others = np.median(np.delete(counts, place))
        parts = [
            f"{shares[place, cluster + 1]:.0%} of cluster {cluster}"
            for cluster in np.flatnonzero(outweighs[place, 1:])
            if cluster not in alone
        ]
        if outweighs[place, 0]:
            parts = [f"{shares[place, 0]:.0%} of all rows"] * (silo not in expected)
        elif counts[place] > OUTLYING * others and silo not in expected:
            parts = [f"{rows[silo]:,} rows, over {OUTLYING} times the others' median"]
        if parts:
            clauses.append(f"{silo!r} has {listing(parts, last=' and ')}")
    if clauses:
        yield f"Check the tables of silos that outweigh the others: {'; '.join(clauses)}."
