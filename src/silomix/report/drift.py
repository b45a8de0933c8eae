"""In which variables the silos differ, and what follows for the clusters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from silomix.posterior.characterise import silo_extremes, spread
from silomix.posterior.frames import no_drift
from silomix.report.drawing import bar
from silomix.report.records import ABSENT, INTERVAL, Cell, Table, cells, percent, probability
from silomix.words import listing, plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from silomix.posterior import Posterior
    from silomix.types import SiloProfiles

SURE = 0.05
"""Probability of being alike below which silos are said to differ in a variable."""
UNCLEAR = 0.2
"""Probability of being alike below which they are said to differ probably: odds of 4 to 1."""
PROBABLE = 0.5
"""Probability of being alike before the data; from it on they are said to be so."""
MOST_NAMED = 6
MOST_DIFFERENCES = 10
SMALLEST = 0.005
"""Difference between two silos' probabilities below which it rounds to no percentage point."""


@dataclass(frozen=True)
class DriftSection:
    """What the section says.

    Attributes
    ----------
    sentences : in which variables the silos differ, or why nobody knows.
    sampled : whether κ was sampled, and not only estimated once.
    variables : a line for each variable; None where silos have no profiles of their own.
    differences : the largest between two silos; None where there are none worth a line.
    """

    sentences: tuple[str, ...]
    sampled: bool = False
    variables: Table | None = None
    differences: Table | None = None


def drift_section(posterior: Posterior) -> DriftSection | None:
    """Return the section on how the silos differ; None for a single silo."""
    if len(posterior.silos) == 1:
        return None
    own = posterior.silo_profiles
    if own is None:
        return DriftSection((f"This is not known: {no_drift(posterior)}.",))
    frame = posterior.drift(INTERVAL, frame_like="pandas")
    sampled = len(own.kappa) > 1
    told = _sampled(frame) if sampled else _estimated(frame)
    return DriftSection(
        sentences=tuple(told),
        sampled=sampled,
        variables=_variables_table(frame, len(own.kappa)),
        differences=_differences_table(posterior, own),
    )


def _sampled(frame: pd.DataFrame) -> Iterator[str]:
    """Say in which variables silos differ, by the probability that they are alike."""
    frame = frame.sort_values("same", kind="stable")
    names, same = frame["variable"], frame["same"]
    differ, probably = same <= SURE, (same > SURE) & (same < UNCLEAR)
    others = int((same >= UNCLEAR).sum())
    if others == len(frame):
        yield _nowhere(same.iloc[0], names.iloc[0])
        return
    if differ.any():
        named = listing(names[differ].tolist(), MOST_NAMED)
        yield (
            f"The silos differ in {differ.sum():,} of {plural(len(frame), 'variable')}, with a "
            f"probability of at least {1 - SURE:.0%} each: {named}."
        )
    if probably.any():
        named = listing(names[probably].tolist(), MOST_NAMED)
        yield f"The silos probably differ in {plural(int(probably.sum()), 'variable')}: {named}."
    if others:
        yield f"Nothing shows clearly that they differ in {plural(others, 'other variable')}."


def _nowhere(least: float, name: str) -> str:
    """Say that no variable shows a difference; `least` is the smallest probability of none."""
    if least >= PROBABLE:
        return (
            "The silos are probably alike in every variable: a cluster has the same profile in all "
            f"of them. The least sure is {name}, with a probability of {least:.2f}."
        )
    return (
        "No variable shows clearly that the silos differ: the probability that they are alike in "
        f"it is at least {least:.2f} ({name}), and was {PROBABLE:.2f} before the data."
    )


def _estimated(frame: pd.DataFrame) -> Iterator[str]:
    """Say what point values tell."""
    if np.isinf(frame["kappa"]).all():
        yield (
            "As far as the matching tells, the silos are alike in every variable: a cluster has "
            "the same profile in all of them. There was no polish to say how sure this is."
        )
    else:
        yield (
            "How much the silos differ was estimated once, by the matching, and for all variables "
            "together; there was no polish to learn it for each, or to say how sure it is."
        )


def _variables_table(frame: pd.DataFrame, draws: int) -> Table:
    """Return how much the silos differ in each variable.

    Parameters
    ----------
    frame : as `Posterior.drift` returns it.
    draws : of κ; one is a point value.
    """
    # the larger κ, the smaller the spread; a point value has no interval
    ends = frame[["upper", "lower"]].to_numpy(dtype=np.float64)
    middle, kappa = frame["spread"].to_numpy(), frame["kappa"].to_numpy()
    near, far = spread(ends).T if draws > 1 else (middle, middle)
    top = max(float(far.max()), 1e-9)
    lines = tuple(
        cells(
            name,
            probability(same, draws) if draws > 1 else ABSENT,
            Cell(_points(middle[place]), note=f"κ {_kappa(kappa[place])}"),
            f"{_points(near[place])} to {_points(far[place])}" if draws > 1 else ABSENT,
            bar(middle[place] / top, near[place] / top, far[place] / top),
        )
        for place, (name, same) in enumerate(zip(frame["variable"], frame["same"], strict=True))
    )
    heads = ("variable", "silos alike", "spread, points", f"{INTERVAL:.0%} interval", "")
    return Table("How much the silos differ in each variable", heads, lines)


def _points(share: float) -> str:
    """Return a difference of probabilities in percentage points."""
    return f"{100 * share:.1f}"


def _kappa(kappa: float) -> str:
    return "∞" if np.isinf(kappa) else f"{kappa:,.3g}"


def _differences_table(posterior: Posterior, own: SiloProfiles) -> Table | None:
    """Return the largest differences between two silos, one for each variable and cluster."""
    offsets = posterior.study.table_schema.offsets
    found = silo_extremes(own.probabilities, offsets)
    gaps = found.difference
    cells_of = [
        (gaps[cluster, column], cluster, column)
        for start, stop in pairwise(offsets)
        for cluster, column in enumerate(start + gaps[:, start:stop].argmax(axis=1))
        if gaps[cluster, column] >= SMALLEST
    ]
    largest = sorted(cells_of, key=lambda cell: -cell[0])[:MOST_DIFFERENCES]
    if not largest:
        return None

    def told(silo: int, share: float) -> str:
        return f"{percent(share)} in {posterior.silos[silo]}"

    return Table(
        "The largest differences between two silos, by posterior means",
        ("level", "cluster", "highest", "lowest", "difference, points"),
        tuple(
            cells(
                " = ".join(posterior.levels[column]),
                str(cluster),
                told(found.highest[cluster, column], found.top[cluster, column]),
                told(found.lowest[cluster, column], found.bottom[cluster, column]),
                _points(gap),
            )
            for gap, cluster, column in largest
        ),
        frozenset({0, 2, 3}),
    )
