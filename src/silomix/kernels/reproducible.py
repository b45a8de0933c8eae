"""Basis of all kernels: compilation, threads, and counter-based random numbers.

Results depend neither on the machine nor on the number of threads. The same key gives the same
bits: every operation is a scalar IEEE operation in a fixed order, even `exp` and `log`. The C
library's differ in the last bit between machines, and one different bit leads, some sweeps later,
to a different chain. The readable twin is `tests/cases/sweep_twin.py`.

numba's disk cache notices changes of a module, not of what it imports: after an edit here, delete
the cache of `gibbs_sweep` too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

U64 = np.uint64
MASK = 2**64 - 1
GOLDEN = U64(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = U64(0xBF58476D1CE4E5B9), U64(0x94D049BB133111EB)
# stream of the attempts after a rejected gamma
RETRY = U64(0x5851F42D4C957F2D)
# stream of the uniforms for gammas with shape below one
BOOST = U64(0x2545F4914F6CDD1D)

LN2 = math.log(2.0)
# ln 2 to 32 bits: times a small integer it is exact, so that exp loses nothing to reduction
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
HALF_ROOT = math.sqrt(0.5)
# Taylor coefficients of exp, highest first: enough for |r| <= ln 2 / 2
EXP_TERMS = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
# coefficients of artanh(s)/s − 1 in s², highest first: enough for √½ <= m < √2
LOG_TERMS = tuple(1.0 / (2 * k + 1) for k in range(10, 0, -1))
# smallest factor of a gamma with shape below one is e^−200: only shapes below 0.2 reach it
LOWEST_LOG = -200.0

TAIL, AREA = 3.6541528853610088, 0.00492867323397465519


def _ziggurat() -> tuple[np.ndarray, np.ndarray]:
    """Right edges of 256 layers of equal area below exp(−x²/2), and its heights there.

    Layer 0 is the base with the tail folded in, so its edge is area / height and not a point
    of the curve.
    """
    edges = [AREA / math.exp(-0.5 * TAIL**2), TAIL]
    while len(edges) < 256:
        height = math.exp(-0.5 * edges[-1] ** 2) + AREA / edges[-1]
        edges.append(math.sqrt(-2.0 * math.log(height)))
    edges.append(0.0)
    return np.array(edges), np.array([0.0] + [math.exp(-0.5 * x * x) for x in edges[1:]])


EDGES, HEIGHTS = _ziggurat()


def kernel(function: Function) -> Function:
    """Compile without the interpreter lock, cached on disk between runs."""
    compile_it: Callable[..., Callable[[Function], Function]] = njit
    return compile_it(nogil=True, cache=True)(function)


def ranges(size: int, parts: int, step: int = 1) -> list[tuple[int, int]]:
    """Cut 0 … size into `parts` ranges that start at multiples of `step`."""
    steps = -(-size // step)
    return list(pairwise(min(size, steps * part // parts * step) for part in range(parts + 1)))


def split_work(size: int, threads: int, do: Callable[[int, int], object]) -> None:
    """Call `do(first, last)` on ranges that cover 0 … size, each on its own thread."""
    parts = max(1, min(threads, size))
    if parts == 1:
        do(0, size)
        return
    with ThreadPoolExecutor(parts) as pool:
        list(pool.map(do, *zip(*ranges(size, parts), strict=True)))


def fold(key: int, number: int) -> int:
    """Key of branch `number` below `key`; as a leaf, 64 random bits."""
    return int(fold_bits(U64(key), U64(number)))


def chain_key(seed: int, silo: int, chain: int) -> int:
    """Root key of all randomness of one chain in one silo."""
    return fold(fold(int(mix_bits(U64(seed & MASK))), silo), chain)


@njit(cache=True, inline="always")
def _exp(x):
    """Compute e^x for −700 < x <= 0 within 2 ulp: x = k ln 2 + r, a polynomial in r, times 2^k."""
    k = math.floor(x / LN2 + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    value = 0.0
    for term in EXP_TERMS:
        value = value * r + term
    power = np.int64((np.int64(k) + 1023) << 52).view(np.float64)
    return value * power


@njit(cache=True, inline="always")
def _log(x):
    """Compute ln x for a normal x within 2 ulp: x = m 2^k, ln m = 2 artanh((m − 1)/(m + 1))."""
    bits = np.float64(x).view(np.int64)
    k = (bits >> 52) - 1022
    m = np.int64((bits & 0x000FFFFFFFFFFFFF) | 0x3FE0000000000000).view(np.float64)
    small = m < HALF_ROOT
    m = m + m if small else m
    k = np.float64(k - 1 if small else k)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    tail = 0.0
    for term in LOG_TERMS:
        tail = tail * z + term
    return k * LN2_HIGH + ((s + s) + ((s + s) * (z * tail) + k * LN2_LOW))


@njit(cache=True, inline="always")
def mix_bits(z):
    """Scramble 64 bits: the finaliser of splitmix64 (Steele, Lea and Flood, 2014)."""
    z = (z ^ (z >> U64(30))) * MIX_1
    z = (z ^ (z >> U64(27))) * MIX_2
    return z ^ (z >> U64(31))


@njit(cache=True, inline="always")
def fold_bits(key, number):
    """Key of branch `number` below `key`, inside a kernel: as `fold`."""
    return mix_bits(key + GOLDEN * (U64(number) + U64(1)))


@njit(cache=True, inline="always")
def uniform(bits):
    """Turn 64 random bits into a number strictly between 0 and 1."""
    return (np.float64(np.int64(bits >> U64(11))) + 0.5) * 2.0**-53


@njit(cache=True)
def _normal(bits, state):
    """Draw a standard normal by the ziggurat (Marsaglia and Tsang, 2000), 256 layers.

    `bits` serve the first attempt, which succeeds 98.8 % of the time; the rest comes from the
    private stream `state`, which is returned advanced.
    """
    while True:
        layer = np.int64(bits & U64(255))
        sign = -1.0 if (bits >> U64(8)) & U64(1) else 1.0
        x = np.float64(np.int64(bits >> U64(11))) * 2.0**-53 * EDGES[layer]
        if x < EDGES[layer + 1]:
            return sign * x, state
        if layer == 0:
            while True:
                state += GOLDEN
                a = -_log(uniform(mix_bits(state))) / TAIL
                state += GOLDEN
                b = -_log(uniform(mix_bits(state)))
                if b + b > a * a:
                    return sign * (TAIL + a), state
        state += GOLDEN
        low, high = HEIGHTS[layer], HEIGHTS[layer + 1]
        if low + (high - low) * uniform(mix_bits(state)) < _exp(-0.5 * x * x):
            return sign * x, state
        state += GOLDEN
        bits = mix_bits(state)


@njit(cache=True)
def _gamma_above_one(key, index, shape):
    bits, accept_bits = fold_bits(key, 2 * index), fold_bits(key, 2 * index + 1)
    state = fold_bits(key ^ RETRY, index)
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x, state = _normal(bits, state)
        v = 1.0 + c * x
        v = v * v * v
        u = uniform(accept_bits)
        if v > 0.0 and (
            u < 1.0 - 0.0331 * (x * x) * (x * x) or _log(u) < 0.5 * x * x + d * (1.0 - v + _log(v))
        ):
            return d * v
        state += GOLDEN
        bits = mix_bits(state)
        state += GOLDEN
        accept_bits = mix_bits(state)


@njit(cache=True, nogil=True, error_model="numpy")
def draw_gammas(key, shapes, gammas):
    """Fill `gammas` (out) with Gamma(shape, 1) draws; draw i depends on key, i and its shape.

    Marsaglia and Tsang (2000); a shape below one is drawn at shape + 1 and multiplied by
    U^(1/shape). A first pass without branches keeps what the squeeze test accepts, nine draws
    in ten.
    """
    for i in range(shapes.size):
        bits, accept_bits = fold_bits(key, 2 * i), fold_bits(key, 2 * i + 1)
        shape = shapes[i] + 1.0 if shapes[i] < 1.0 else shapes[i]
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        layer = np.int64(bits & U64(255))
        x = np.float64(np.int64(bits >> U64(11))) * 2.0**-53 * EDGES[layer]
        inside = x < EDGES[layer + 1]
        x = -x if (bits >> U64(8)) & U64(1) else x
        v = 1.0 + c * x
        v = v * v * v
        squeeze = uniform(accept_bits) < 1.0 - 0.0331 * (x * x) * (x * x)
        gammas[i] = d * v if inside & squeeze & (v > 0.0) else -1.0
    for i in range(shapes.size):
        shape = shapes[i]
        if gammas[i] < 0.0:
            gammas[i] = _gamma_above_one(key, i, shape + 1.0 if shape < 1.0 else shape)
    for i in range(shapes.size):
        u = uniform(fold_bits(key ^ BOOST, i))
        lift = _exp(max(_log(u) / shapes[i], LOWEST_LOG))
        gammas[i] *= lift if shapes[i] < 1.0 else 1.0
