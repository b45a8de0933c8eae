"""The profiles of a release as a small heat map."""

from __future__ import annotations

import io
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from silomix.types import Schema

MOST_LABELS = 60
LONGEST_LABEL = 40


def draw_profiles(
    mean: NDArray[np.float64], sizes: NDArray[np.int64], schema: Schema
) -> bytes | None:
    """Return a PNG of the profiles, or None without matplotlib.

    It shows released numbers alone, and the same ones make the same bytes.

    Parameters
    ----------
    mean : (cluster, level); sizes : (cluster,)
    """
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    clusters, levels = mean.shape
    width, height = min(4 + 0.18 * levels, 16), min(2.5 + 0.3 * clusters, 12)
    figure = Figure(figsize=(width, height), dpi=80, layout="constrained")
    axes = figure.add_subplot()
    picture = axes.imshow(mean, aspect="auto", vmin=0, vmax=1, cmap="Blues")
    figure.colorbar(picture, label="probability")
    axes.set_yticks(range(clusters), [f"{c} ({n:,} rows)" for c, n in enumerate(sizes)])
    if levels <= MOST_LABELS:
        names = [f"{variable}={level}"[:LONGEST_LABEL] for variable, level in schema.levels]
        axes.set_xticks(range(levels), names, rotation=90, parse_math=False)
    axes.set_ylabel("cluster")
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters the font lacks become boxes
        figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()
