"""Constants that the definition and the compiled kernels share."""

from __future__ import annotations

import math

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB

RETRY = 0x5851F42D4C957F2D
"""Sets the stream of rejected gamma attempts apart from the first ones."""
BOOST = 0x2545F4914F6CDD1D
"""Sets the uniforms that lift a gamma below shape one apart."""

START, PARAMETERS, LABELS = 0, 1, 2
"""Branches below the key of an iteration."""

SMALLEST = 2.0**-300
"""No probability is drawn smaller: a product of two is still a float64 above zero."""

LN2 = math.log(2.0)
LN2_HIGH = 0.6931471803691238
"""ln 2 to 32 bits: times a small integer it is exact, so that exp loses nothing to reduction."""
LN2_LOW = 1.9082149292705877e-10

EXP_TERMS = np.array([1.0 / math.factorial(k) for k in range(13, -1, -1)])
"""Taylor coefficients of exp, highest first: enough for |r| <= ln 2 / 2."""
LOG_TERMS = np.array([1.0 / (2 * k + 1) for k in range(10, 0, -1)])
"""Coefficients of artanh(s)/s − 1 in s², highest first: enough for √½ <= m < √2."""

LOWEST_LOG = -200.0
"""No gamma draw is lifted by less than e^−200: only concentrations below 0.2 ever get there."""

ZIGGURAT_TAIL = 3.6541528853610088
_ZIGGURAT_AREA = 0.00492867323397465519


def _ziggurat() -> tuple[list[float], list[float]]:
    """Return the right edges of 256 layers of equal area below exp(−x²/2), and its heights there.

    Layer 0 is the base with the tail folded in, so its edge is area / height and not a point
    of the curve.
    """
    edges = [_ZIGGURAT_AREA / math.exp(-0.5 * ZIGGURAT_TAIL**2), ZIGGURAT_TAIL]
    while len(edges) < 256:
        height = math.exp(-0.5 * edges[-1] ** 2) + _ZIGGURAT_AREA / edges[-1]
        edges.append(math.sqrt(-2.0 * math.log(height)))
    edges.append(0.0)
    heights = [0.0] + [math.exp(-0.5 * x * x) for x in edges[1:]]
    return edges, heights


_EDGES, _HEIGHTS = _ziggurat()
ZIGGURAT_EDGES = np.array(_EDGES)
ZIGGURAT_HEIGHTS = np.array(_HEIGHTS)
