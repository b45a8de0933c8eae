"""The page's sections on silos: who holds which cluster, how they differ, what left each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.model.sentences import listing, plural
from silomix.posterior.characterise import spread
from silomix.posterior.frames import no_drift
from silomix.report.display import (
    ABSENT,
    INTERVAL,
    Cell,
    Table,
    make_table,
    number,
    percent,
    probability,
    span,
)
from silomix.report.drawing import bar, share_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pandas as pd

    from silomix.kernels.arrays import Floats
    from silomix.model.draws import SiloWeights
    from silomix.posterior import Posterior

# Confidence of a match that is not worth a word.
SURE = 0.995
# What a silo sends, by kind of reply in the order of the method: a name, and what it is.
REPLIES = {
    "Release": ("release", "the silo's own posterior: its draws, or a summary of them"),
    "DivergenceReply": ("matching costs", "how far its clusters are from a reference"),
    "Received": ("a receipt", "that it has the other silos' releases"),
    "DistinctRows": ("distinct rows", "with their counts: the table but for its order"),
    "LogLikelihoodReply": ("gradients", "log-likelihoods of its rows, with gradients"),
    "PolishReply": ("counts", "of cells by cluster, in each polish round and chain"),
    "AssignReply": ("cluster sizes", "how many of its rows each cluster got"),
}
REPLY_NAMES = {kind: name for kind, (name, _) in REPLIES.items()}

# Up to the first probability of being alike, silos are said to differ in a variable; below the
# second, at odds of 4 to 1, to differ probably; from the third, which is the prior's, to be alike.
DIFFERENT, PROBABLY_DIFFERENT, ALIKE = 0.05, 0.2, 0.5
MOST_NAMED = 6
# A difference between two silos' probabilities below this rounds to no percentage point.
SMALLEST = 0.005


def rows_by_silo(posterior: Posterior) -> list[int] | None:
    """Return the rows of each silo; None where nobody knows."""
    if posterior.correspondence is not None:
        return [int(sizes.sum()) for sizes in posterior.correspondence.sizes]
    if posterior.assignment is not None:
        return np.bincount(posterior.assignment.silos, minlength=len(posterior.silos)).tolist()
    return None


def match_confidence(posterior: Posterior) -> pd.Series:
    """Return, by silo and cluster, the least confidence of the silo's local clusters there."""
    frame: pd.DataFrame = posterior.correspondence_frame(frame_like="pandas")
    return frame.groupby(["silo", "cluster"], sort=False)["confidence"].min()


def holders_table(posterior: Posterior) -> Table:
    """Return each cluster's share of each silo's rows, and how sure its match is.

    The note in a cell is the least confidence among the silo's local clusters matched there, where
    it is worth a word, or that the silo did not find the cluster on its own.
    """
    sure = None if posterior.correspondence is None else match_confidence(posterior)

    def cell(silo: str, cluster: int, share: float) -> Cell:
        note = ""
        if sure is not None:
            found = sure.get((silo, cluster))
            note = "not found" if found is None else f"sure {found:.2f}" if found < SURE else ""
        # a mean of draws that never quite reach zero tells no finer
        return Cell("<0.1%" if share < 0.001 else percent(share), share_class(share), note)

    shares = posterior.weights_by_silo.mean(axis=0, dtype=np.float64)
    columns: dict[str, Sequence[object]] = {"silo": posterior.silos}
    for cluster, part in enumerate(shares.T):
        silos = zip(posterior.silos, part, strict=True)
        columns[str(cluster)] = [cell(silo, cluster, share) for silo, share in silos]
    return make_table("Each cluster's share of each silo's rows", columns)


def matches_table(posterior: Posterior) -> Table:
    """Return every local cluster and the cluster it belongs to."""
    frame: pd.DataFrame = posterior.correspondence_frame(frame_like="pandas")
    frame["rows"] = frame["rows"].map("{:,}".format)
    frame["confidence"] = frame["confidence"].map(number)
    columns = dict(frame.rename(columns={"local_cluster": "local cluster"}))
    return make_table("Which local cluster belongs to which cluster", columns)


def silos_table(posterior: Posterior) -> Table:
    """Return the silos: their rows, the clusters they found, and λ, as far as these are known."""
    rows, match, found = rows_by_silo(posterior), posterior.correspondence, posterior.silo_weights
    columns: dict[str, Sequence[object]] = {"silo": posterior.silos}
    if rows is not None:
        columns["rows"] = [f"{size:,}" for size in rows]
    if match is not None:
        columns["clusters found"] = [len(group) for group in match.groups]
    if found is not None:
        columns["λ"] = [f"{weight:.3f}" for weight in found.weights]
        columns[""] = [bar(weight) for weight in found.weights / found.weights.max()]
    return make_table("The silos; λ is each one's influence on how large the clusters are", columns)


def influence_table(found: SiloWeights) -> Table:
    """Return μ, each silo's influence on each cluster's profile."""
    columns: dict[str, Sequence[object]] = {"silo": found.silos}
    for cluster, shares in enumerate(found.profiles.T):
        columns[str(cluster)] = [
            Cell(f"{share:.2f}", share_class(share)) if share > 0 else ABSENT for share in shares
        ]
    return make_table(
        "μ: each silo's influence on each cluster's profile; a column sums to one", columns
    )


def sent_kinds(posterior: Posterior) -> list[str]:
    """Return the kinds of replies that were sent, in the order of the method."""
    sent = {kind for kinds in posterior.provenance.sent.values() for kind in kinds}
    return [*(kind for kind in REPLIES if kind in sent), *sorted(sent - REPLIES.keys())]


def sent_table(posterior: Posterior, most: int | None = None) -> Table:
    """Return what left each silo, in bytes, by kind of reply; beyond `most` silos, at most what."""
    made, kinds, silos = posterior.provenance, sent_kinds(posterior), posterior.silos
    sizes = np.array([[made.sent.get(silo, {}).get(kind, 0) for kind in kinds] for silo in silos])
    lines = dict(zip(silos[:most], sizes[:most], strict=True))
    if len(silos) > len(lines):
        lines[f"{len(silos) - len(lines)} more, at most"] = sizes[most:].max(axis=0)

    def cell(silo: str, place: int) -> Cell:
        answers = made.answered.get(silo, {}).get(kinds[place], 0)
        note = f"in {plural(answers, 'answer')}" if answers > 1 else ""
        return Cell(f"{lines[silo][place]:,}", note=note)

    columns: dict[str, Iterable[object]] = {"silo": lines}
    for place, kind in enumerate(kinds):
        columns[REPLY_NAMES.get(kind, kind)] = [cell(silo, place) for silo in lines]
    columns["total"] = [f"{line.sum():,}" for line in lines.values()]
    return make_table("Bytes that left each silo, by kind of reply", columns)


def drift_sentences(posterior: Posterior) -> Iterator[str]:
    """Yield in which variables the silos differ, or why this is not known."""
    own = posterior.silo_profiles
    if own is None:
        yield f"This is not known: {no_drift(posterior)}."
        return
    frame = posterior.drift(INTERVAL, frame_like="pandas").sort_values("same", kind="stable")
    if len(own.kappa) > 1:
        yield from _differing(frame["variable"].tolist(), frame["same"].to_numpy())
    elif np.isinf(frame["kappa"]).all():
        yield (
            "As far as the matching tells, the silos are alike in every variable: a cluster has "
            "the same profile in all of them. There was no polish to say how sure this is."
        )
    else:
        yield (
            "How much the silos differ was estimated once, by the matching, and for all variables "
            "together; there was no polish to learn it for each, or to say how sure it is."
        )


def _differing(names: list[str], same: Floats) -> Iterator[str]:
    """Yield the variables in which silos differ; `same` is the ascending probability of none."""
    differ = int((same <= DIFFERENT).sum())
    maybe = int((same < PROBABLY_DIFFERENT).sum())
    if maybe == 0 and same[0] >= ALIKE:
        yield (
            "The silos are probably alike in every variable: a cluster has the same profile in all "
            f"of them. The least sure is {names[0]}, with a probability of {same[0]:.2f}."
        )
    elif maybe == 0:
        yield (
            "No variable shows clearly that the silos differ: the probability that they are alike "
            f"in it is at least {same[0]:.2f} ({names[0]}), and was {ALIKE:.2f} before the data."
        )
    if differ:
        named = listing(names[:differ], MOST_NAMED)
        yield (
            f"The silos differ in {differ:,} of {plural(len(names), 'variable')}, with a "
            f"probability of at least {1 - DIFFERENT:.0%} each: {named}."
        )
    if maybe > differ:
        named = listing(names[differ:maybe], MOST_NAMED)
        yield f"The silos probably differ in {plural(maybe - differ, 'variable')}: {named}."
    if 0 < maybe < len(names):
        others = plural(len(names) - maybe, "other variable")
        yield f"Nothing shows clearly that they differ in {others}."


def drift_table(posterior: Posterior) -> Table:
    """Return how much the silos differ in each variable, and where most."""
    frame: pd.DataFrame = posterior.drift(INTERVAL, frame_like="pandas")
    draws = len(posterior.silo_profiles.kappa) if posterior.silo_profiles else 0
    # the larger κ, the smaller the spread; a point value has no interval
    middle, near, far = (100 * spread(frame[k].to_numpy()) for k in ("kappa", "upper", "lower"))
    scale = max(np.nanmax([middle, far]), 1e-9)
    kappa = ["κ ∞" if np.isinf(kappa) else f"κ {kappa:,.3g}" for kappa in frame["kappa"]]
    largest = [
        f"{line['level_name']} in cluster {line['cluster']}: {percent(line['highest'])} in "
        f"{line['highest_silo']}, {percent(line['lowest'])} in {line['lowest_silo']}"
        if line["difference"] >= SMALLEST
        else ABSENT
        for line in frame.to_dict("records")
    ]
    columns = {
        "variable": frame["variable"],
        "silos alike": [probability(same, draws) for same in frame["same"]],
        "spread, points": [Cell(f"{m:.1f}", note=k) for m, k in zip(middle, kappa, strict=True)],
        f"{INTERVAL:.0%} interval": [span(*ends, ".1f") for ends in zip(near, far, strict=True)],
        "": map(bar, middle / scale, near / scale, far / scale),
        "largest difference between two silos": largest,
    }
    return make_table("How much the silos differ in each variable", columns, left=(0, 5))
