"""What a reader of the result should know, in sentences: the notes of the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.families.release_rounding import STAND_INS
from silomix.model.diagnostics import PRIOR_DRAWS_ALLOWED
from silomix.model.sentences import listing, quoted
from silomix.posterior.characterise import SMALL, nearly_same, single_silo_clusters
from silomix.study.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from silomix.families.product import Product
    from silomix.kernels.arrays import Reals
    from silomix.messages import Release
    from silomix.posterior.global_posterior import Parts
    from silomix.study import Study

# A silo with so many times the median of the other silos' rows is named.
OUTLYING = 100


def policy_notes(releases: list[Release]) -> Iterator[str]:
    """Say what the silos' policies did to the numbers."""
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
    """Say what the policies did, what the `aggregation` noted, and what the method cannot do."""
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
    weights_by_silo: Reals,
    rows: Mapping[str, int],
    alone: Container[int],
    expected: Container[str],
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
