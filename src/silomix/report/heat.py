"""The profile heat map: a table for readers, and its numbers for the script that sorts it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from silomix.metrics import highest_density_interval
from silomix.posterior.characterise import told_columns
from silomix.report.palette import STEPS, difference_class, share_class
from silomix.report.records import INTERVAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from silomix.posterior import Posterior
    from silomix.posterior.characterise import Contrast

MOST_LINES = 1000
"""Levels in the heat map: those that differ most between clusters."""
LARGEST = 2.0
"""Scaled difference from which the colour is the strongest, if any is so large."""


@dataclass(frozen=True)
class HeatLine:
    """A level of a variable.

    Attributes
    ----------
    mirror : whether it is the first of two levels, which the second mirrors.
    differs : whether it is high or low in some cluster.
    whole : its percentage in the whole population.
    cells : percentage and colour classes, by cluster.
    """

    variable: str
    level: str
    mirror: bool
    differs: bool
    whole: str
    cells: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class HeatMap:
    """All of it.

    Attributes
    ----------
    lines : levels, in the order of the schema.
    levels : how many there are, shown or not.
    largest : scaled difference of the strongest colour.
    data : for the script, as JSON that may stand inside an element.
    """

    clusters: tuple[int, ...]
    lines: tuple[HeatLine, ...]
    levels: int
    largest: float
    steps: int
    data: Markup


def heat_map(posterior: Posterior, found: Contrast, rows: int | None, sure: float) -> HeatMap:
    """Return the heat map of a posterior.

    Parameters
    ----------
    found : how its clusters differ from the whole population.
    rows : of all silos; None where nobody knows.
    sure : posterior probability from which a level is said to differ.
    """
    means = posterior.probabilities.mean(axis=0, dtype=np.float64)
    shown = _shown(found)
    largest = float(np.clip(np.abs(found.scaled).max(initial=0.0), 0.5, LARGEST))
    told = told_columns(posterior.study.table_schema.offsets)
    differs = np.maximum(found.high, found.low).max(axis=0) >= sure
    return HeatMap(
        clusters=tuple(range(posterior.n_clusters)),
        lines=tuple(
            HeatLine(
                variable=posterior.levels[column][0],
                level=posterior.levels[column][1],
                mirror=not told[column],
                differs=bool(differs[column]),
                whole=_short(found.whole[column]),
                cells=tuple(
                    (
                        _short(mean),
                        f"{share_class(mean)} {difference_class(scaled, largest)}",
                    )
                    for mean, scaled in zip(means[:, column], found.scaled[:, column], strict=True)
                ),
            )
            for column in shown
        ),
        levels=len(posterior.levels),
        largest=largest,
        steps=STEPS,
        data=_data(posterior, found, means, shown, rows),
    )


def _shown(found: Contrast) -> NDArray[np.int64]:
    """Return the columns to show, in order."""
    strength = np.abs(found.scaled).max(axis=0)
    return np.sort(np.argsort(-strength, kind="stable")[:MOST_LINES])


def _short(share: float) -> str:
    """Return a percentage in at most four characters, without its sign."""
    return f"{100 * share:.0f}" if share >= 0.0995 else f"{100 * share:.1f}"


def _data(
    posterior: Posterior,
    found: Contrast,
    means: NDArray[np.float64],
    shown: NDArray[np.int64],
    rows: int | None,
) -> Markup:
    lower, upper = highest_density_interval(posterior.probabilities[:, :, shown], INTERVAL)
    weights = posterior.weights.mean(axis=0, dtype=np.float64)
    return embed(
        {
            "draws": posterior.n_draws,
            "rows": None if rows is None else np.round(weights * rows).astype(int).tolist(),
            "whole": _whole_numbers(found.whole[shown], 1e4),
            "mean": _whole_numbers(means[:, shown].T, 1e4),
            "lower": _whole_numbers(lower.T, 1e4),
            "upper": _whole_numbers(upper.T, 1e4),
            "scaled": _whole_numbers(found.scaled[:, shown].T, 1e2),
            "above": _whole_numbers(found.above[:, shown].T, 1e4),
        }
    )


def _whole_numbers(values: NDArray[np.float64], scale: float) -> list[object]:
    return np.round(values * scale).astype(int).tolist()


def embed(data: object) -> Markup:
    """Return JSON that may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
