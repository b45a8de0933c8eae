"""The Gibbs sweep, defined: scalar float64 Python, one thing at a time.

Fendler et al. (2026), section 4.2: labels given weights and probabilities, then weights and
probabilities given labels, under Dirichlet priors. `silomix.kernels.gibbs_sweep` must give the same
chain, label for label and draw for draw; to make that possible every operation here is a scalar
IEEE operation in a stated order.

Arrays inside the kernels have the components last: ``table`` is (level, component).
"""

from __future__ import annotations

import math

import numpy as np

from silomix.kernels import reproducible as numbers
from silomix.kernels.gibbs_sweep import LABELS, PARAMETERS, SMALLEST, START
from silomix.kernels.reproducible import (
    EDGES,
    EXP_TERMS,
    HEIGHTS,
    LN2,
    LN2_HIGH,
    LN2_LOW,
    LOG_TERMS,
    LOWEST_LOG,
    MASK,
    TAIL,
)

GOLDEN, MIX_1, MIX_2 = int(numbers.GOLDEN), int(numbers.MIX_1), int(numbers.MIX_2)
RETRY, BOOST = int(numbers.RETRY), int(numbers.BOOST)


def exp(x):
    """Return e^x for −700 < x <= 0 within 2 ulp: x = k ln 2 + r, a polynomial in r, times 2^k."""
    k = math.floor(x / LN2 + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    value = 0.0
    for term in EXP_TERMS:
        value = value * r + term
    return math.ldexp(value, k)


def log(x):
    """Return ln x for a normal x within 2 ulp: x = m 2^k, ln m = 2 artanh((m − 1)/(m + 1))."""
    m, k = math.frexp(x)
    if m < math.sqrt(0.5):
        m, k = m + m, k - 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    tail = 0.0
    for term in LOG_TERMS:
        tail = tail * z + term
    return k * LN2_HIGH + ((s + s) + ((s + s) * (z * tail) + k * LN2_LOW))


def mix(z):
    """Scramble 64 bits: the finaliser of splitmix64 (Steele, Lea and Flood, 2014)."""
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def fold(key, number):
    """Return the key of branch `number` below `key`; as a leaf, 64 random bits."""
    return mix((key + GOLDEN * (number + 1)) & MASK)


def chain_key(seed, silo, chain):
    """Return the root of all randomness of one chain in one silo."""
    return fold(fold(mix(seed & MASK), silo), chain)


def uniform(bits):
    """Turn 64 random bits into a number strictly between 0 and 1."""
    return ((bits >> 11) + 0.5) * 2.0**-53


def normal(bits, state):
    """Draw a standard normal by the ziggurat (Marsaglia and Tsang, 2000), 256 layers.

    `bits` serve the first attempt, which succeeds 98.8 % of the time; the rest comes from the
    private stream `state`, which is returned moved on.
    """
    while True:
        layer = bits & 255
        sign = -1.0 if (bits >> 8) & 1 else 1.0
        x = (bits >> 11) * 2.0**-53 * EDGES[layer]
        if x < EDGES[layer + 1]:
            return sign * x, state
        if layer == 0:
            while True:
                state = (state + GOLDEN) & MASK
                a = -log(uniform(mix(state))) / TAIL
                state = (state + GOLDEN) & MASK
                b = -log(uniform(mix(state)))
                if b + b > a * a:
                    return sign * (TAIL + a), state
        state = (state + GOLDEN) & MASK
        low, high = HEIGHTS[layer], HEIGHTS[layer + 1]
        if low + (high - low) * uniform(mix(state)) < exp(-0.5 * x * x):
            return sign * x, state
        state = (state + GOLDEN) & MASK
        bits = mix(state)


def gamma(key, index, shape):
    """Draw number `index` of a batch: Gamma(shape, 1), by Marsaglia and Tsang (2000).

    A shape below one is drawn at shape + 1 and multiplied by U^(1/shape).
    """
    bits, accept_bits = fold(key, 2 * index), fold(key, 2 * index + 1)
    state = fold(key ^ RETRY, index)
    d = (shape + 1.0 if shape < 1.0 else shape) - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x, state = normal(bits, state)
        v = 1.0 + c * x
        v = v * v * v
        u = uniform(accept_bits)
        squeeze = u < 1.0 - 0.0331 * (x * x) * (x * x)
        if v > 0.0 and (squeeze or log(u) < 0.5 * x * x + d * (1.0 - v + log(v))):
            break
        state = (state + GOLDEN) & MASK
        bits = mix(state)
        state = (state + GOLDEN) & MASK
        accept_bits = mix(state)
    value = d * v
    if shape < 1.0:
        u = uniform(fold(key ^ BOOST, index))
        value *= exp(max(log(u) / shape, LOWEST_LOG))
    return value


def start(key, rows, components):
    """Return random labels, every component equally likely: (row,)."""
    below = fold(fold(key, 0), START)
    labels = [int(uniform(fold(below, i)) * components) for i in range(rows)]
    return np.array(labels, dtype=np.uint8)


def count(codes, sizes, labels, components):
    """Count rows by component, and cells by level and component; missing cells count nowhere.

    Returns
    -------
    members : (component,)
    counts : (level, component)
    """
    members = np.zeros(components, dtype=np.int64)
    counts = np.zeros((int(sizes.sum()), components), dtype=np.int64)
    for i, label in enumerate(labels):
        members[label] += 1
        offset = 0
        for q, size in enumerate(sizes):
            if codes[i, q] < size:
                counts[offset + codes[i, q], label] += 1
            offset += size
    return members, counts


def draw_parameters(key, members, counts, sizes, alpha, beta):
    """Draw weights ~ Dirichlet(α + members), and per variable levels ~ Dirichlet(β + counts).

    Returns
    -------
    weights : (component,)
    table : (level, component), never below `SMALLEST`, so that no row is ever impossible.
    """
    levels, components = counts.shape
    raw = [
        [gamma(key, j * components + c, float(counts[j, c]) + beta) for c in range(components)]
        for j in range(levels)
    ]
    last = levels * components
    shares = [gamma(key, last + c, float(members[c]) + alpha) for c in range(components)]
    total = 0.0
    for share in shares:
        total += share
    weights = np.array([max(share / total, SMALLEST) for share in shares])
    table = np.empty((levels, components))
    offset = 0
    for size in sizes:
        for c in range(components):
            total = 0.0
            for j in range(offset, offset + size):
                total += max(raw[j][c], SMALLEST)
            for j in range(offset, offset + size):
                table[j, c] = max(raw[j][c] / total, SMALLEST)
        offset += size
    return weights, table


def row_masses(row, sizes, weights, table):
    """Return weight × probability of the row for each component, and a binary exponent.

    The true masses are the returned ones times 2^exponent: when all become small they are
    multiplied by 2^512, which is exact.
    """
    masses = [float(weight) for weight in weights]
    exponent = 0
    offset = 0
    for q, size in enumerate(sizes):
        if row[q] < size:
            level = table[offset + row[q]]
            masses = [mass * float(p) for mass, p in zip(masses, level, strict=True)]
            if max(masses) < 2.0**-512:
                masses = [mass * 2.0**512 for mass in masses]
                exponent -= 512
        offset += size
    return masses, exponent


def draw_labels(key, codes, sizes, weights, table):
    """Draw each row's component given the parameters, by inversion of the cumulative masses.

    Returns
    -------
    labels : (row,)
    log_likelihood : log p(rows | weights, table), the labels summed out.
    """
    labels = np.empty(len(codes), dtype=np.uint8)
    log_likelihood = 0.0
    for i, row in enumerate(codes):
        masses, exponent = row_masses(row, sizes, weights, table)
        total = 0.0
        for mass in masses:
            total += mass
        threshold = uniform(fold(key, i)) * total
        reached = 0.0
        label = 0
        for c, mass in enumerate(masses):
            reached += mass
            if mass > 0.0:
                label = c
            if reached > threshold:
                break
        labels[i] = label
        log_likelihood += math.log(total) + exponent * math.log(2.0)
    return labels, log_likelihood


def sweep(key, iteration, codes, sizes, labels, components, alpha, beta):
    """Run one Gibbs sweep: parameters given the labels, then labels given the parameters.

    Returns
    -------
    labels : (row,), the new ones.
    weights, table : the parameters they were drawn from, (component,) and (level, component).
    log_likelihood : at those parameters.
    """
    below = fold(key, iteration)
    members, counts = count(codes, sizes, labels, components)
    weights, table = draw_parameters(fold(below, PARAMETERS), members, counts, sizes, alpha, beta)
    labels, log_likelihood = draw_labels(fold(below, LABELS), codes, sizes, weights, table)
    return labels, weights, table, log_likelihood
