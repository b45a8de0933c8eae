"""The silos: who holds which cluster, how much each counts, and what left it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.posterior.characterise import single_silo_clusters
from silomix.report.drawing import bar
from silomix.report.palette import share_class
from silomix.report.records import ABSENT, Cell, Table, cells, decimal, percent
from silomix.study.names import spoken
from silomix.words import plural

if TYPE_CHECKING:
    from silomix.posterior import Posterior
    from silomix.types import SiloWeights

SURE = 0.995
"""Confidence from which it is not worth a word."""

KINDS = {
    "Release": "the silo's own posterior: its draws, or a summary of them",
    "DivergenceReply": "how far its clusters are from a reference",
    "Received": "that it has the other silos' releases",
    "DistinctRows": "distinct rows with their counts: the table but for its order",
    "LogLikelihoodReply": "log-likelihoods of its rows, with gradients",
    "PolishReply": "counts of cells by cluster, in each polish round and chain",
    "AssignReply": "how many of its rows each cluster got",
}
"""What a silo sends, by kind of reply, in the order of the method."""


def rows_by_silo(posterior: Posterior) -> list[int] | None:
    """Return the rows of each silo; None where nobody knows."""
    if posterior.correspondence is not None:
        return [int(sizes.sum()) for sizes in posterior.correspondence.sizes]
    if posterior.assignment is not None:
        found = np.bincount(posterior.assignment.silos, minlength=len(posterior.silos))
        return [int(count) for count in found]
    return None


def holders_table(posterior: Posterior) -> Table:
    """Return each cluster's share of each silo's rows, and how sure its match is.

    The note in a cell is the least confidence among the silo's local clusters matched there, where
    it is worth a word, or that the silo did not find the cluster on its own.
    """
    shares = posterior.weights_by_silo.mean(axis=0, dtype=np.float64)
    match = posterior.correspondence
    sure = match.pairs_confidence() if match else []
    rows, lines = rows_by_silo(posterior), []
    for silo, name in enumerate(posterior.silos):
        line = [Cell(name, note="" if rows is None else f"{rows[silo]:,} rows")]
        for cluster, share in enumerate(shares[silo]):
            note = ""
            if match is not None:
                here = sure[silo][match.groups[silo] == cluster]
                note = _sureness(here.min()) if len(here) else "not found"
            line.append(Cell(_rounded(share), share_class(share), note))
        lines.append(tuple(line))
    heads = ("silo", *(str(cluster) for cluster in range(posterior.n_clusters)))
    return Table("Each cluster's share of each silo's rows", heads, tuple(lines))


def alone_sentences(posterior: Posterior) -> tuple[str, ...]:
    """Return a sentence for each cluster that lives in one silo, and how sure it is no other."""
    found = single_silo_clusters(
        posterior.weights_by_silo,
        rows_by_silo(posterior),
        posterior.silos,
        posterior.correspondence,
    )
    told = [
        f"Cluster {cluster} lives in {spoken(silo)}: {percent(share)} of its expected rows are "
        f"there. {_own(apart)}"
        for cluster, silo, share, apart in found
    ]
    if found and posterior.study.model.drift == "none":
        told.append(
            "This takes a cluster's profile to be the same in all silos (drift is “none”): where "
            "silos differ in how they code or admit, it makes clusters of single silos."
        )
    return tuple(told)


def _own(apart: float) -> str:
    if np.isnan(apart):
        return (
            "Whether it is a cluster of its own, or one found elsewhere that looks different in "
            "this silo, was not computed."
        )
    known = "more than 0.99" if apart > 0.99 else f"{apart:.2f}"
    return (
        "The probability that it is a cluster of its own, and not one found elsewhere that looks "
        f"different in this silo, is {known}."
    )


def _rounded(share: float) -> str:
    """Return a share no finer than a mean of draws that never quite reach zero tells."""
    return "<0.1%" if share < 0.001 else percent(share)


def _sureness(least: float) -> str:
    return "" if np.isnan(least) or least >= SURE else f"sure {least:.2f}"


def matches_table(posterior: Posterior) -> Table | None:
    """Return every local cluster and the cluster it belongs to; None if none were matched."""
    match = posterior.correspondence
    if match is None:
        return None
    parts = zip(match.silos, match.groups, match.sizes, match.pairs_confidence(), strict=True)
    return Table(
        "Which local cluster belongs to which cluster",
        ("silo", "local cluster", "rows", "cluster", "confidence"),
        tuple(
            cells(silo, str(local), f"{size:,}", str(group), decimal(sure))
            for silo, groups, sizes, confidence in parts
            for local, (group, size, sure) in enumerate(zip(groups, sizes, confidence, strict=True))
        ),
    )


def weights_table(found: SiloWeights) -> Table:
    """Return λ, each silo's say in the clusters' weights."""
    top = float(found.weights.max())
    return Table(
        "λ: each silo's say in how large the clusters are",
        ("silo", "λ", ""),
        tuple(
            cells(silo, f"{weight:.3f}", bar(float(weight) / top))
            for silo, weight in zip(found.silos, found.weights, strict=True)
        ),
    )


def profiles_table(found: SiloWeights) -> Table:
    """Return μ, each silo's say in each cluster's profile."""
    clusters = found.profiles.shape[1]
    return Table(
        "μ: each silo's say in each cluster's profile; a column sums to one",
        ("silo", *(str(cluster) for cluster in range(clusters))),
        tuple(
            (
                Cell(silo),
                *(
                    Cell(f"{share:.2f}", share_class(share)) if share > 0 else Cell(ABSENT)
                    for share in profiles
                ),
            )
            for silo, profiles in zip(found.silos, found.profiles, strict=True)
        ),
    )


def sent_table(posterior: Posterior) -> Table:
    """Return what left each silo, in bytes, by kind of reply."""
    made = posterior.provenance
    kinds = sent_kinds(posterior)

    def told(silo: str, kind: str) -> Cell:
        answers = made.answered.get(silo, {}).get(kind, 0)
        size = made.sent.get(silo, {}).get(kind, 0)
        return Cell(f"{size:,}", note=f"in {plural(answers, 'answer')}" if answers > 1 else "")

    return Table(
        "Bytes that left each silo, by kind of reply",
        ("silo", *kinds, "total"),
        tuple(
            cells(
                silo,
                *(told(silo, kind) for kind in kinds),
                f"{sum(made.sent.get(silo, {}).values()):,}",
            )
            for silo in posterior.silos
        ),
    )


def sent_kinds(posterior: Posterior) -> list[str]:
    """Return the kinds of replies that were sent, in the order of the method."""
    told = {kind for of_silo in posterior.provenance.sent.values() for kind in of_silo}
    return [*(kind for kind in KINDS if kind in told), *sorted(told - KINDS.keys())]
