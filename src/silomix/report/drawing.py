"""Colours of all figures, and small drawings as SVG inside the page.

Shares go from pale to dark blue, differences from orange over neutral to purple; the colour-blind
tell both apart, by lightness and by hue. The page allows no inline style, so its colours are
classes of a style sheet. The text on a colour is black or white, whichever has the higher contrast,
which is never below 4.5 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from silomix.report.display import Table, amount

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from silomix.kernels.arrays import Floats
    from silomix.posterior.characterise import ClusterMap

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Okabe and Ito's colours (2008), and as many markers.
MARKERS = "osD^vP"
# Steps of a scale of the page; there is one colour more.
STEPS = 20
LIGHT = {
    "p": ("#f5f8fc", "#9ecae1", "#3182bd", "#08306b"),
    "d": ("#b35806", "#f1a340", "#fee0b6", "#f7f7f7", "#d8daeb", "#998ec3", "#542788"),
}
# Colours along the scales, evenly spaced: p for shares and d for differences.
DARK = {
    "p": ("#1d2530", "#1f4e79", "#4292c6", "#c6e2f7"),
    "d": ("#f6b25c", "#a8641a", "#4a3a28", "#23272f", "#3b3556", "#7466ab", "#c3b5f0"),
}

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 10, 34
# Width of a figure in a chart, with room to spare: fonts differ.
LETTER = 6.8
SQUARE = 330
# Standard deviations whose ellipse holds 95% of a normal distribution in the plane.
ELLIPSE = 2.4477


@dataclass(frozen=True)
class Picture:
    """A drawing, what it shows, and the same in numbers."""

    drawing: Markup
    caption: str
    table: Table


def share_class(share: float) -> str:
    """Return the class of a share from 0 to 1."""
    return f"p{round(STEPS * float(np.clip(share, 0.0, 1.0)))}"


def difference_class(difference: float, largest: float) -> str:
    """Return the class of a difference from −largest to largest; more than that is clipped."""
    position = (np.clip(difference / largest, -1.0, 1.0) + 1.0) / 2.0
    return f"d{round(STEPS * float(position))}"


def heat_rules(anchors: Sequence[str], view: str, before: str = "") -> str:
    """Return the style rules that colour the cells of a view.

    Parameters
    ----------
    anchors : colours, evenly spaced along the scale.
    view : "p" or "d": the rules hold inside an element with this `data-view`.
    before : a selector to put in front.
    """
    known = np.array([list(bytes.fromhex(colour[1:])) for colour in anchors])
    scale, places = np.linspace(0.0, 1.0, STEPS + 1), np.linspace(0.0, 1.0, len(anchors))
    mixed = np.stack([np.interp(scale, places, channel) for channel in known.T], axis=1).round()
    return "".join(
        f"{before}[data-view={view}] .{view}{step}"
        f"{{background:#{bytes(colour.astype(np.uint8)).hex()};color:{ink(colour)}}}\n"
        for step, colour in enumerate(mixed)
    )


def ink(colour: Floats) -> str:
    """Return black or white, whichever reads better on a colour (red, green, blue), 0 to 255."""
    return "#000" if luminance(colour) > 0.179 else "#fff"  # where both contrasts are equal


def luminance(colour: Floats) -> float:
    """Return the relative luminance of WCAG 2.2."""
    light = colour / 255
    linear = np.where(light <= 0.04045, light / 12.92, ((light + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def bar(mean: float, lower: float = np.nan, upper: float = np.nan) -> Markup:
    """Return a bar for a share from 0 to 1, with its interval where there is one."""
    parts = [
        _element("rect", "bar-all", x=0, y=0, width=100, height=10),
        _element("rect", "bar-mean", x=0, y=2, width=100 * mean, height=6),
    ]
    if lower <= upper:
        width = max(100 * (upper - lower), 0.4)
        parts.append(_element("rect", "bar-interval", x=100 * lower, y=4, width=width, height=2))
    hidden = {"preserveAspectRatio": "none", "aria_hidden": "true"}
    return _element("svg", "bar", parts, viewBox="0 0 100 10", **hidden)


def line_chart(values: NDArray[np.floating], *, name: str, along: str) -> Markup:
    """Return a line of values (place,) against their place.

    Parameters
    ----------
    name : of what is drawn, for those who cannot see it.
    along : what the places are, under the axis.
    """
    low, high = float(values.min()), float(values.max())
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    left = max(LEFT, 5 + LETTER * max(len(amount(low)), len(amount(high))))
    x = np.linspace(left, right, len(values))
    y = TOP + (high - values) / (high - low or 1.0) * (floor - TOP)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    parts = [
        *(_element("line", "rule", x1=left, x2=right, y1=at, y2=at) for at in (floor, TOP)),
        _text(amount(low), left - 5, floor, "end"),
        _text(amount(high), left - 5, TOP, "end"),
        _text("1", left, floor + 14, "start"),
        _text(str(len(values)), right, floor + 14, "end"),
        _text(along, (left + right) / 2, floor + 28, "middle"),
        _element("polyline", "trace", points=points),
    ]
    return _chart(parts, WIDTH, HEIGHT, name)


def map_chart(found: ClusterMap, shares: NDArray[np.floating], name: str) -> Markup:
    """Return clusters in the plane: a disc as large as the cluster's share, and an ellipse.

    Parameters
    ----------
    shares : (cluster,), of all rows.
    name : of what is drawn, for those who cannot see it.
    """
    middle = SQUARE / 2
    scale = middle / (np.abs(found.centres).max() * 1.25 or 1.0)
    places = middle + scale * found.centres * [1, -1]
    radii = 4 + 22 * np.sqrt(shares)
    discs = list(zip(places, radii, strict=True))
    parts = [
        _element("line", "rule", x1=0, x2=SQUARE, y1=middle, y2=middle),
        _element("line", "rule", x1=middle, x2=middle, y1=0, y2=SQUARE),
        _text("axis 1", SQUARE - 4, middle - 8, "end", "axis"),
        _text("axis 2", middle + 6, 8, "start", "axis"),
        *(_element("circle", "disc", cx=x, cy=y, r=radius) for (x, y), radius in discs),
        # above all discs, since one may lie on another
        *(_ellipse(found.draws[:, c], place, scale) for c, place in enumerate(places)),
        *(
            _text(str(cluster), x, y - radius - 6, "middle", "disc-name")
            for cluster, ((x, y), radius) in enumerate(discs)
        ),
    ]
    return _chart(parts, SQUARE, SQUARE, name)


def _ellipse(draws: Floats, centre: Floats, scale: float) -> Markup:
    spread, axes = np.linalg.eigh(np.cov(draws, rowvar=False))
    rx, ry = ELLIPSE * scale * np.sqrt(np.maximum(spread, 0.0))
    turn = -np.degrees(np.arctan2(axes[1, 0], axes[0, 0]))
    x, y = centre
    rotated = f"rotate({turn:.1f} {x:.1f} {y:.1f})"
    return _element("ellipse", "doubt", cx=x, cy=y, rx=rx, ry=ry, transform=rotated)


def _chart(parts: Iterable[Markup], width: int, height: int, name: str) -> Markup:
    box = f"0 0 {width} {height}"
    return _element("svg", "chart", parts, role="img", viewBox=box, aria_label=name)


def _text(text: str, x: float, y: float, anchor: str, kind: str = "tick") -> Markup:
    placed = {"text_anchor": anchor, "dominant_baseline": "central"}
    return _element("text", kind, [text], x=x, y=y, **placed)


def _element(tag: str, kind: str, inside: Iterable[str] = (), **attributes: float | str) -> Markup:
    """Return an element; Markup escapes whatever text is put into it."""
    texts = {
        name.replace("_", "-"): value if isinstance(value, str) else f"{value:.4g}"
        for name, value in {"class": kind, **attributes}.items()
    }
    written = Markup("").join(Markup(' {}="{}"').format(*pair) for pair in texts.items())
    return Markup("<{0}{1}>{2}</{0}>").format(tag, written, Markup("").join(inside))
