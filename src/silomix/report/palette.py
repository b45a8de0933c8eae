"""Colours of the heat maps: classes of a style sheet, since the page allows no inline style.

Shares go from pale to dark blue, differences from orange over neutral to purple; the colour-blind
tell both apart, by lightness and by hue. The text on a colour is black or white, whichever has the
higher contrast, which is never below 4.5 to 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

STEPS = 20
"""Steps of a scale; there is one colour more."""

LIGHT = {
    "p": ("#f5f8fc", "#9ecae1", "#3182bd", "#08306b"),
    "d": ("#b35806", "#f1a340", "#fee0b6", "#f7f7f7", "#d8daeb", "#998ec3", "#542788"),
}
DARK = {
    "p": ("#1d2530", "#1f4e79", "#4292c6", "#c6e2f7"),
    "d": ("#f6b25c", "#a8641a", "#4a3a28", "#23272f", "#3b3556", "#7466ab", "#c3b5f0"),
}
"""Anchors by view, p for shares and d for differences, evenly spaced."""


def share_class(share: float) -> str:
    """Return the class of a share from 0 to 1."""
    return f"p{round(STEPS * float(np.clip(share, 0.0, 1.0)))}"


def difference_class(difference: float, largest: float) -> str:
    """Return the class of a difference from −largest to largest; more than that is clipped."""
    place = (np.clip(difference / largest, -1.0, 1.0) + 1.0) / 2.0
    return f"d{round(STEPS * float(place))}"


def heat_rules(anchors: Sequence[str], view: str, before: str = "") -> str:
    """Return the rules that colour the cells of a view.

    Parameters
    ----------
    anchors : colours, evenly spaced along the scale.
    view : "p" or "d": the rules hold inside an element with this `data-view`.
    before : a selector to put in front.
    """
    scale = np.linspace(0.0, 1.0, STEPS + 1)
    places = np.linspace(0.0, 1.0, len(anchors))
    known = np.array([_channels(colour) for colour in anchors])
    mixed = np.stack([np.interp(scale, places, known[:, channel]) for channel in range(3)], axis=1)
    return "".join(
        f"{before}[data-view={view}] .{view}{step}"
        f"{{background:{_hexadecimal(colour)};color:{ink(colour)}}}\n"
        for step, colour in enumerate(np.round(mixed))
    )


def ink(colour: NDArray[np.float64]) -> str:
    """Return black or white, whichever reads better on a colour (red, green, blue), 0 to 255."""
    return "#000" if luminance(colour) > 0.179 else "#fff"  # where both contrasts are equal


def luminance(colour: NDArray[np.float64]) -> float:
    """Return the relative luminance of WCAG 2.2."""
    light = colour / 255
    linear = np.where(light <= 0.04045, light / 12.92, ((light + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def _channels(colour: str) -> list[int]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def _hexadecimal(colour: NDArray[np.float64]) -> str:
    return "#" + "".join(f"{int(channel):02x}" for channel in colour)
