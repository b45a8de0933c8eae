"""Small drawings as SVG elements inside the page; their colours are classes of its style sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import numpy as np
from markupsafe import Markup

from silomix.report.records import amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.posterior.characterise import ClusterMap

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 10, 34
LETTER = 6.8
"""Width of a figure in a chart, with room to spare: fonts differ."""
SQUARE = 330
ELLIPSE = 2.4477
"""Standard deviations whose ellipse holds 95% of a normal distribution in the plane."""


def bar(mean: float, lower: float | None = None, upper: float | None = None) -> Markup:
    """Return a bar for a share from 0 to 1, with its interval where there is one."""
    svg = ET.Element(
        "svg",
        {
            "class": "bar",
            "viewBox": "0 0 100 10",
            "preserveAspectRatio": "none",
            "aria-hidden": "true",
        },
    )
    _add(svg, "rect", "bar-all", x=0, y=0, width=100, height=10)
    _add(svg, "rect", "bar-mean", x=0, y=2, width=100 * mean, height=6)
    if lower is not None and upper is not None:
        width = max(100 * (upper - lower), 0.4)
        _add(svg, "rect", "bar-interval", x=100 * lower, y=4, width=width, height=2)
    return _markup(svg)


def line_chart(values: NDArray[np.floating], *, name: str, along: str) -> Markup:
    """Return lines of values against their place.

    Parameters
    ----------
    values : (place, line)
    name : of what is drawn, for those who cannot see it.
    along : what the places are, under the axis.
    """
    svg = _canvas(WIDTH, HEIGHT, name)
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    span = high - low or 1.0
    last = max(len(values) - 1, 1)
    ends = {place: amount(value) for place, value in ((HEIGHT - BOTTOM, low), (TOP, high))}
    left = max(LEFT, 5 + LETTER * max(map(len, ends.values())))
    x = left + np.arange(len(values)) / last * (WIDTH - left - RIGHT)
    y = TOP + (high - values) / span * (HEIGHT - TOP - BOTTOM)
    floor = HEIGHT - BOTTOM
    for place, words in ends.items():
        _add(svg, "line", "rule", x1=left, x2=WIDTH - RIGHT, y1=place, y2=place)
        _text(svg, words, left - 5, place, "end")
    for place, where, anchor in ((1, left, "start"), (len(values), WIDTH - RIGHT, "end")):
        _text(svg, str(place), where, floor + 14, anchor)
    _text(svg, along, (left + WIDTH - RIGHT) / 2, floor + 28, "middle")
    for line in range(values.shape[1]):
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y[:, line], strict=True))
        _add(svg, "polyline", f"trace trace-{line % 3}", points=points)
    return _markup(svg)


def map_chart(found: ClusterMap, shares: NDArray[np.floating], name: str) -> Markup:
    """Return clusters in the plane: a disc as large as the cluster's share, and an ellipse.

    Parameters
    ----------
    shares : (cluster,), of all rows.
    name : of what is drawn, for those who cannot see it.
    """
    svg = _canvas(SQUARE, SQUARE, name)
    spread = np.abs(found.centres).max() * 1.25 or 1.0
    scale = SQUARE / 2 / spread
    middle = SQUARE / 2
    _add(svg, "line", "rule", x1=0, x2=SQUARE, y1=middle, y2=middle)
    _add(svg, "line", "rule", x1=middle, x2=middle, y1=0, y2=SQUARE)
    _text(svg, "axis 1", SQUARE - 4, middle - 8, "end", "axis")
    _text(svg, "axis 2", middle + 6, 8, "start", "axis")
    places = middle + scale * found.centres * [1, -1]
    radii = 4 + 22 * np.sqrt(shares)
    for (x, y), radius in zip(places, radii, strict=True):
        _add(svg, "circle", "disc", cx=x, cy=y, r=radius)
    # above all discs, since one may lie on another
    for cluster, (x, y) in enumerate(places):
        _ellipse(svg, found.draws[:, cluster], (x, y), scale)
    for cluster, ((x, y), radius) in enumerate(zip(places, radii, strict=True)):
        _text(svg, str(cluster), x, y - radius - 6, "middle", "disc-name")
    return _markup(svg)


def _ellipse(
    svg: ET.Element, draws: NDArray[np.float64], centre: tuple[float, float], scale: float
) -> None:
    spread, axes = np.linalg.eigh(np.cov(draws, rowvar=False))
    radii = ELLIPSE * scale * np.sqrt(np.maximum(spread, 0.0))
    turn = -np.degrees(np.arctan2(axes[1, 0], axes[0, 0]))
    x, y = centre
    ellipse = _add(svg, "ellipse", "doubt", cx=x, cy=y, rx=radii[0], ry=radii[1])
    ellipse.set("transform", f"rotate({turn:.1f} {x:.1f} {y:.1f})")


def _canvas(width: int, height: int, name: str) -> ET.Element:
    svg = ET.Element("svg", {"class": "chart", "role": "img", "viewBox": f"0 0 {width} {height}"})
    svg.set("aria-label", name)
    return svg


def _add(parent: ET.Element, tag: str, kind: str, **attributes: float | str) -> ET.Element:
    texts = {
        key: value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
        for key, value in attributes.items()
    }
    return ET.SubElement(parent, tag, {"class": kind, **texts})


def _text(
    parent: ET.Element, text: str, x: float, y: float, anchor: str, kind: str = "tick"
) -> None:
    element = _add(parent, "text", kind, x=x, y=y)
    element.set("text-anchor", anchor)
    element.set("dominant-baseline", "central")
    element.text = text


def _markup(svg: ET.Element) -> Markup:
    return Markup(ET.tostring(svg, encoding="unicode"))  # ElementTree has escaped every text


def thin(length: int, most: int) -> Sequence[int]:
    """Return at most so many places of a sequence, the first and the last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(int)).tolist()
