"""The Gibbs sweep, fast: the chain of `silomix.kernels.reference`, label for label.

What makes it fast: fused variables (`layout`), linear space instead of logarithms, float32
vectors of 16 components, counter-based randomness, byte-wide counters. What keeps it exact: a
draw that falls within the rounding bound of a boundary is made again in float64, in the order of
the definition (`_exact_label`).

All functions that call each other stand in this one module: numba's disk cache notices changes
of a module, not of what it imports. Nothing here uses prange: the kernels release the GIL, and
`threads` rows of scratch let a pool share one sweep.

Vectors: C components are padded to 16·V. Component c lies in lane c div V of vector c mod V, so
that lanes, and within a lane vectors, run through the components in their natural order.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from silomix.kernels import tables
from silomix.kernels.layout import BYTE_LANES, Layout, aligned

U64 = np.uint64
GOLDEN = U64(tables.GOLDEN)
MIX_1 = U64(tables.MIX_1)
MIX_2 = U64(tables.MIX_2)
RETRY = U64(tables.RETRY)
BOOST = U64(tables.BOOST)
START = tables.START
PARAMETERS = tables.PARAMETERS
LABELS = tables.LABELS
SMALLEST = tables.SMALLEST
EDGES = tables.ZIGGURAT_EDGES
HEIGHTS = tables.ZIGGURAT_HEIGHTS
TAIL = tables.ZIGGURAT_TAIL
LN2 = tables.LN2
LN2_HIGH = tables.LN2_HIGH
LN2_LOW = tables.LN2_LOW
EXP_TERMS = tuple(float(term) for term in tables.EXP_TERMS)
LOG_TERMS = tuple(float(term) for term in tables.LOG_TERMS)
LOWEST_LOG = tables.LOWEST_LOG
HALF_ROOT = math.sqrt(0.5)

LANES = 16
BLOCK = 64
"""Rows handled together; row ranges given to threads start at multiples of it."""
REPLICAS = 2
"""Byte counters kept apart, so that neighbouring rows do not wait for each other's stores."""
FLUSH = 7
"""Blocks between flushes: 7 × 64 / 2 = 224 additions fit a byte."""

FLOAT = ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)
BYTES = ir.VectorType(ir.IntType(8), BYTE_LANES)
I32 = ir.IntType(32)
I64 = ir.IntType(64)


class Parameters(NamedTuple):
    """One draw of the parameters, in the definition's form and in the vectors' form.

    Attributes
    ----------
    weights : (component,)
    table : (level, component)
    scaled : (level + 1, lane slot), each level divided by its largest entry over the occupied
        components, so that products stay near one; the last row, for missing cells, is ones.
    log_scale : (level,), logarithms of those divisors.
    grown : scratch of one group's fused table, float64.
    fused : (fused row, lane slot), float32.
    shapes, gammas : scratch of the gamma draws.
    """

    weights: np.ndarray
    table: np.ndarray
    scaled: np.ndarray
    log_scale: np.ndarray
    grown: np.ndarray
    fused: np.ndarray
    shapes: np.ndarray
    gammas: np.ndarray


class Scratch(NamedTuple):
    """Room for the label draw, one row per thread, and the counts it leaves.

    Attributes
    ----------
    members : (component,) rows by component; counts : (level, component).
    log_totals : (block,), log-likelihood of each block of rows, summed in order at the end.
    The rest: per-thread buffers of one block, byte counters and their sums.
    """

    members: np.ndarray
    counts: np.ndarray
    log_totals: np.ndarray
    bits: np.ndarray
    masses: np.ndarray
    prefix: np.ndarray
    chosen: np.ndarray
    byte_counts: np.ndarray
    recent: np.ndarray
    sums: np.ndarray
    wide_sums: np.ndarray
    member_sums: np.ndarray
    exact: np.ndarray
    zeros: np.ndarray


def vectors_for(components: int) -> tuple[int, ...]:
    """Return a tuple of V zeros: its length, part of its type, tells the compiler V."""
    return (0,) * -(-components // LANES)


def make_parameters(layout: Layout, components: int) -> Parameters:
    """Return room for one draw of the parameters."""
    levels, slots = int(layout.offsets[-1]), len(vectors_for(components)) * LANES
    largest = int(np.diff(layout.group_row).max())
    draws = (levels + 1) * components
    scaled = np.zeros((levels + 1, slots))
    scaled[levels] = 1.0
    return Parameters(
        weights=np.zeros(components),
        table=np.zeros((levels, components)),
        scaled=scaled,
        log_scale=np.zeros(levels),
        grown=np.zeros((largest, slots)),
        fused=aligned((int(layout.group_row[-1]), slots), np.float32),
        shapes=np.zeros(draws),
        gammas=np.zeros(draws),
    )


def make_scratch(layout: Layout, components: int, threads: int = 1) -> Scratch:
    """Return room for drawing labels with `threads` threads."""
    rows, levels = len(layout.codes), int(layout.offsets[-1])
    slots, width = len(vectors_for(components)) * LANES, layout.onehot.shape[1]
    wide_levels = int(layout.sizes[layout.wide].sum())
    return Scratch(
        members=np.zeros(components, np.int64),
        counts=np.zeros((levels, components), np.int64),
        log_totals=np.zeros(-(-rows // BLOCK)),
        bits=np.zeros((threads, BLOCK), np.uint64),
        masses=aligned((threads, BLOCK, slots), np.float32),
        prefix=aligned((threads, BLOCK, LANES), np.float32),
        chosen=np.zeros((threads, BLOCK), np.int64),
        byte_counts=aligned((threads, REPLICAS, components, width), np.uint8),
        recent=np.zeros((threads, REPLICAS, components), np.int64),
        sums=np.zeros((threads, components, width), np.int32),
        wide_sums=np.zeros((threads, wide_levels, components), np.int64),
        member_sums=np.zeros((threads, components), np.int64),
        exact=np.zeros(threads, np.int64),
        zeros=aligned((LANES,), np.float32),
    )


@njit(cache=True, inline="always")
def _exp(x):
    k = math.floor(x / LN2 + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    value = 0.0
    for term in EXP_TERMS:
        value = value * r + term
    power = np.int64((np.int64(k) + 1023) << 52).view(np.float64)
    return value * power


@njit(cache=True, inline="always")
def _log(x):
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
def _mix(z):
    z = (z ^ (z >> U64(30))) * MIX_1
    z = (z ^ (z >> U64(27))) * MIX_2
    return z ^ (z >> U64(31))


@njit(cache=True, inline="always")
def _fold(key, number):
    return _mix(key + GOLDEN * (U64(number) + U64(1)))


@njit(cache=True, inline="always")
def _uniform(bits):
    return (np.float64(np.int64(bits >> U64(11))) + 0.5) * 2.0**-53


@njit(cache=True)
def _normal(bits, state):
    while True:
        layer = np.int64(bits & U64(255))
        sign = -1.0 if (bits >> U64(8)) & U64(1) else 1.0
        x = np.float64(np.int64(bits >> U64(11))) * 2.0**-53 * EDGES[layer]
        if x < EDGES[layer + 1]:
            return sign * x, state
        if layer == 0:
            while True:
                state += GOLDEN
                a = -_log(_uniform(_mix(state))) / TAIL
                state += GOLDEN
                b = -_log(_uniform(_mix(state)))
                if b + b > a * a:
                    return sign * (TAIL + a), state
        state += GOLDEN
        low, high = HEIGHTS[layer], HEIGHTS[layer + 1]
        if low + (high - low) * _uniform(_mix(state)) < _exp(-0.5 * x * x):
            return sign * x, state
        state += GOLDEN
        bits = _mix(state)


@njit(cache=True)
def _gamma_above_one(key, index, shape):
    bits, accept_bits = _fold(key, 2 * index), _fold(key, 2 * index + 1)
    state = _fold(key ^ RETRY, index)
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x, state = _normal(bits, state)
        v = 1.0 + c * x
        v = v * v * v
        u = _uniform(accept_bits)
        if v > 0.0 and (
            u < 1.0 - 0.0331 * (x * x) * (x * x) or _log(u) < 0.5 * x * x + d * (1.0 - v + _log(v))
        ):
            return d * v
        state += GOLDEN
        bits = _mix(state)
        state += GOLDEN
        accept_bits = _mix(state)


@njit(cache=True, nogil=True, error_model="numpy")
def draw_gammas(key, shapes, gammas):
    """Fill `gammas` (out) with Gamma(shape, 1) draws; draw i depends on key, i and its shape.

    A first pass without branches keeps what the squeeze test accepts, nine draws in ten.
    """
    for i in range(shapes.size):
        bits, accept_bits = _fold(key, 2 * i), _fold(key, 2 * i + 1)
        shape = shapes[i] + 1.0 if shapes[i] < 1.0 else shapes[i]
        d = shape - 1.0 / 3.0
        c = 1.0 / math.sqrt(9.0 * d)
        layer = np.int64(bits & U64(255))
        x = np.float64(np.int64(bits >> U64(11))) * 2.0**-53 * EDGES[layer]
        inside = x < EDGES[layer + 1]
        x = -x if (bits >> U64(8)) & U64(1) else x
        v = 1.0 + c * x
        v = v * v * v
        squeeze = _uniform(accept_bits) < 1.0 - 0.0331 * (x * x) * (x * x)
        gammas[i] = d * v if inside & squeeze & (v > 0.0) else -1.0
    for i in range(shapes.size):
        shape = shapes[i]
        if gammas[i] < 0.0:
            gammas[i] = _gamma_above_one(key, i, shape + 1.0 if shape < 1.0 else shape)
    for i in range(shapes.size):
        u = _uniform(_fold(key ^ BOOST, i))
        lift = _exp(max(_log(u) / shapes[i], LOWEST_LOG))
        gammas[i] *= lift if shapes[i] < 1.0 else 1.0


@njit(cache=True, nogil=True)
def start(key, labels, components):
    """Fill `labels` (out) with random components."""
    below = _fold(_fold(key, 0), START)
    for i in range(labels.size):
        labels[i] = np.uint8(_uniform(_fold(below, i)) * components)


@njit(cache=True, nogil=True)
def count(layout, labels, scratch):
    """Count rows and cells by component into scratch.members and scratch.counts (out)."""
    scratch.members[:] = 0
    scratch.counts[:] = 0
    for i in range(labels.size):
        c = labels[i]
        scratch.members[c] += 1
        for q in range(layout.sizes.size):
            if layout.codes[i, q] < layout.sizes[q]:
                scratch.counts[layout.offsets[q] + layout.codes[i, q], c] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def draw_parameters(key, layout, scratch, alpha, beta, parameters):
    """Draw parameters.weights and parameters.table (out) given the counts in `scratch` (in)."""
    counts, members = scratch.counts, scratch.members
    levels, components = counts.shape
    shapes, gammas = parameters.shapes, parameters.gammas
    for j in range(levels):
        for c in range(components):
            shapes[j * components + c] = counts[j, c] + beta
    for c in range(components):
        shapes[levels * components + c] = members[c] + alpha
    draw_gammas(key, shapes, gammas)
    raw = gammas[: levels * components].reshape((levels, components))
    shares = gammas[levels * components :]
    total = 0.0
    for c in range(components):
        total += shares[c]
    for c in range(components):
        parameters.weights[c] = max(shares[c] / total, SMALLEST)
    totals = np.empty(components)
    for q in range(layout.sizes.size):
        first, last = layout.offsets[q], layout.offsets[q + 1]
        totals[:] = 0.0
        for j in range(first, last):
            for c in range(components):
                totals[c] += max(raw[j, c], SMALLEST)
        for j in range(first, last):
            for c in range(components):
                parameters.table[j, c] = max(raw[j, c] / totals[c], SMALLEST)


@njit(cache=True, nogil=True, error_model="numpy")
def fuse_tables(layout, members, parameters, vectors):
    """Turn weights and table (in) into scaled and fused float32 vectors (out).

    `members` only chooses the scale: a level's divisor is its largest entry among components
    that hold rows, since the others may be far off.
    """
    levels, components = parameters.table.shape
    n_vectors = len(vectors)
    slots = LANES * n_vectors
    scaled, grown = parameters.scaled, parameters.grown
    for j in range(levels):
        largest = SMALLEST
        for c in range(components):
            if members[c] > 0:
                largest = max(largest, parameters.table[j, c])
        parameters.log_scale[j] = math.log(largest)
        inverse = 1.0 / largest
        for c in range(components):
            scaled[j, (c % n_vectors) * LANES + c // n_vectors] = parameters.table[j, c] * inverse
    for g in range(layout.group_row.size - 1):
        grown[0, :] = 1.0
        if g == 0:
            grown[0, :] = 0.0
            for c in range(components):
                grown[0, (c % n_vectors) * LANES + c // n_vectors] = parameters.weights[c]
        row = layout.group_row[g]
        for step in range(layout.group_step[g], layout.group_step[g + 1]):
            first, last = layout.step_start[step], layout.step_start[step + 1]
            final = step + 1 == layout.group_step[g + 1]
            for entry in range(last - first - 1, -1, -1):
                parent = layout.step_parent[first + entry]
                level = layout.step_level[first + entry]
                if final:
                    for slot in range(slots):
                        parameters.fused[row + entry, slot] = np.float32(
                            grown[parent, slot] * scaled[level, slot]
                        )
                else:
                    for slot in range(slots):
                        grown[entry, slot] = grown[parent, slot] * scaled[level, slot]


def _pointer(context, builder, array_type, array, index):
    """Pointer to element `index` of a contiguous array's data."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def _load(builder, pointer, offset, vector=VECTOR, align=64):
    place = builder.bitcast(builder.gep(pointer, [offset]), vector.as_pointer())
    return builder.load(place, align=align)


def _store(builder, value, pointer, offset, align=64):
    place = builder.bitcast(builder.gep(pointer, [offset]), value.type.as_pointer())
    builder.store(value, place, align=align)


def _prefix_sum(builder, vector, zeros):
    """Inclusive sums over 16 lanes in four shifted additions.

    `zeros` is loaded from memory on purpose: knowing it constant, LLVM picks a slower shuffle.
    """
    for shift in (1, 2, 4, 8):
        lanes = [LANES - shift + lane for lane in range(LANES)]
        mask = ir.Constant(ir.VectorType(I32, LANES), lanes)
        vector = builder.fadd(vector, builder.shuffle_vector(zeros, vector, mask))
    return vector


@intrinsic
def _multiply_rows(typingctx, fused, rows, first, n_groups, masses, prefix, block, zeros, vectors):
    """Multiply a data row's fused table rows: masses (out), and lane sums' prefix sums (out).

    rows[first … first + n_groups[ are rows of `fused`; `block` is the row's place in the
    thread's flattened `masses` and `prefix`. `vectors` has V entries.
    """
    n_vectors = vectors.count
    signature = types.void(
        fused, rows, types.int64, types.int64, masses, prefix, types.int64, zeros, vectors
    )

    def generate(context, builder, signature, arguments):
        fused_type, rows_type, _, _, masses_type, prefix_type, _, zeros_type, _ = signature.args
        fused, rows, first, n_groups, masses, prefix, block, zeros, _ = arguments
        zero = ir.Constant(I64, 0)
        slots = ir.Constant(I64, LANES * n_vectors)
        table = _pointer(context, builder, fused_type, fused, zero)
        row_of = _pointer(context, builder, rows_type, rows, first)

        def load_row(group):
            row = builder.zext(builder.load(builder.gep(row_of, [group])), I64)
            place = builder.mul(row, slots)
            return [
                _load(builder, table, builder.add(place, ir.Constant(I64, LANES * v)))
                for v in range(n_vectors)
            ]

        product = load_row(zero)
        entry = builder.block
        head = builder.append_basic_block("groups")
        body = builder.append_basic_block("multiply")
        end = builder.append_basic_block("sum")
        builder.branch(head)
        builder.position_at_end(head)
        group = builder.phi(I64)
        group.add_incoming(ir.Constant(I64, 1), entry)
        running = []
        for v in range(n_vectors):
            phi = builder.phi(VECTOR)
            phi.add_incoming(product[v], entry)
            running.append(phi)
        builder.cbranch(builder.icmp_signed("<", group, n_groups), body, end)
        builder.position_at_end(body)
        for phi, factor in zip(running, load_row(group), strict=True):
            phi.add_incoming(builder.fmul(phi, factor), body)
        group.add_incoming(builder.add(group, ir.Constant(I64, 1)), body)
        builder.branch(head)
        builder.position_at_end(end)
        lane_sums = running[0]
        for v in range(1, n_vectors):
            lane_sums = builder.fadd(lane_sums, running[v])
        if n_vectors > 1:
            out = _pointer(context, builder, masses_type, masses, builder.mul(block, slots))
            for v in range(n_vectors):
                _store(builder, running[v], out, ir.Constant(I64, LANES * v))
        zero_vector = _load(builder, _pointer(context, builder, zeros_type, zeros, zero), zero)
        sums = _prefix_sum(builder, lane_sums, zero_vector)
        place = builder.mul(block, ir.Constant(I64, LANES))
        _store(builder, sums, _pointer(context, builder, prefix_type, prefix, place), zero)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _lanes_not_above(typingctx, prefix, block, low, high):
    """Return how many of the 16 prefix sums of row `block` are <= low; 16 where high differs."""
    signature = types.int64(prefix, types.int64, types.float32, types.float32)

    def generate(context, builder, signature, arguments):
        prefix, block, low, high = arguments
        place = builder.mul(block, ir.Constant(I64, LANES))
        pointer = _pointer(context, builder, signature.args[0], prefix, place)
        sums = _load(builder, pointer, ir.Constant(I64, 0))

        def below(limit):
            undefined = ir.Constant(VECTOR, ir.Undefined)
            single = builder.insert_element(undefined, limit, ir.Constant(I32, 0))
            everywhere = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
            limits = builder.shuffle_vector(single, undefined, everywhere)
            return builder.bitcast(builder.fcmp_ordered("<=", sums, limits), ir.IntType(LANES))

        below_low, below_high = below(low), below(high)
        same = builder.icmp_unsigned("==", below_low, below_high)
        lanes = builder.zext(builder.ctpop(below_low), I64)
        return builder.select(same, lanes, ir.Constant(I64, LANES))

    return signature, generate


@intrinsic
def _add_bytes(typingctx, counters, place, onehot, row, width):
    """Add `width` one-hot bytes at onehot[row] to the byte counters at counters[place] (out)."""
    signature = types.void(counters, types.int64, onehot, types.int64, types.int64)

    def generate(context, builder, signature, arguments):
        counters, place, onehot, row, width = arguments
        target = _pointer(context, builder, signature.args[0], counters, place)
        source = _pointer(context, builder, signature.args[2], onehot, row)
        entry = builder.block
        head = builder.append_basic_block("bytes")
        body = builder.append_basic_block("add")
        end = builder.append_basic_block("done")
        builder.branch(head)
        builder.position_at_end(head)
        byte = builder.phi(I64)
        byte.add_incoming(ir.Constant(I64, 0), entry)
        builder.cbranch(builder.icmp_signed("<", byte, width), body, end)
        builder.position_at_end(body)
        total = builder.add(
            _load(builder, target, byte, BYTES, 16), _load(builder, source, byte, BYTES, 16)
        )
        _store(builder, total, target, byte, 16)
        byte.add_incoming(builder.add(byte, ir.Constant(I64, BYTE_LANES)), body)
        builder.branch(head)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return signature, generate


@njit(cache=True, error_model="numpy")
def _exact_label(layout, row, parameters, u, masses):
    """Draw one label exactly as the definition does; also log p(row), scaled as the vectors."""
    weights, table = parameters.weights, parameters.table
    components = weights.size
    exponent = 0
    log_scale = 0.0
    masses[:] = weights
    for q in range(layout.sizes.size):
        code = layout.codes[row, q]
        if code < layout.sizes[q]:
            level = layout.offsets[q] + code
            largest = 0.0
            for c in range(components):
                masses[c] *= table[level, c]
                largest = max(largest, masses[c])
            if largest < 2.0**-512:
                for c in range(components):
                    masses[c] *= 2.0**512
                exponent -= 512
            log_scale += parameters.log_scale[level]
    total = 0.0
    for c in range(components):
        total += masses[c]
    threshold = u * total
    reached = 0.0
    label = 0
    for c in range(components):
        reached += masses[c]
        if masses[c] > 0.0:
            label = c
        if reached > threshold:
            break
    return label, math.log(total) + exponent * math.log(2.0) - log_scale


@njit(cache=True)
def _flush(scratch, thread):
    """Empty a thread's byte counters into its sums; most components were not touched."""
    byte_counts, recent = scratch.byte_counts[thread], scratch.recent[thread]
    sums, member_sums = scratch.sums[thread], scratch.member_sums[thread]
    for replica in range(REPLICAS):
        for c in range(member_sums.size):
            if recent[replica, c] > 0:
                member_sums[c] += recent[replica, c]
                recent[replica, c] = 0
                for byte in range(sums.shape[1]):
                    sums[c, byte] += np.int32(byte_counts[replica, c, byte])
                    byte_counts[replica, c, byte] = 0


@njit(cache=True, nogil=True, error_model="numpy")
def draw_labels(
    key, layout, parameters, vectors, scratch, thread, first, last, labels, want_likelihood
):
    """Draw labels[first:last] (out) given the fused tables; `first` is a multiple of BLOCK.

    Leaves this thread's counts in `scratch`; `gather` adds them up. Where `want_likelihood`, the
    blocks' log-likelihoods are in scratch.log_totals (out), log scales set apart.
    """
    n_vectors = len(vectors)
    components = parameters.weights.size
    n_groups = layout.fused.shape[1]
    width = layout.onehot.shape[1]
    # Rounding bound relative to the row's total: each fused row is rounded once and multiplied
    # once; sums over vectors, lanes and along the lane follow; so for boundary and threshold.
    margin = np.float32((4 * n_groups + 3 * n_vectors + 20) * 1.01 * 2.0**-24)
    fused, fused_rows, zeros = parameters.fused, layout.fused.reshape(-1), scratch.zeros
    onehot = layout.onehot.reshape(-1)
    bits = scratch.bits[thread]
    masses = scratch.masses[thread]
    prefix = scratch.prefix[thread]
    flat_masses = masses.reshape(-1)
    flat_prefix = prefix.reshape(-1)
    chosen = scratch.chosen[thread]
    counters = scratch.byte_counts[thread].reshape(-1)
    recent = scratch.recent[thread]
    exact_masses = np.empty(components)
    scratch.member_sums[thread] = 0
    scratch.sums[thread] = 0
    scratch.wide_sums[thread] = 0
    exact = 0
    blocks_left = FLUSH
    for block_first in range(first, last, BLOCK):
        in_block = min(BLOCK, last - block_first)
        for j in range(BLOCK):
            bits[j] = _fold(key, block_first + j)
        for j in range(in_block):
            place = (block_first + j) * n_groups
            _multiply_rows(
                fused, fused_rows, place, n_groups, flat_masses, flat_prefix, j, zeros, vectors
            )
        log_total = 0.0
        for j in range(in_block):
            total = prefix[j, LANES - 1]
            threshold = np.float32(np.int32(bits[j] >> U64(40))) * np.float32(2.0**-24) * total
            low = threshold - margin * total
            high = threshold + margin * total
            lane = _lanes_not_above(flat_prefix, j, low, high)
            # an unlikely total would mean that float32 lost some masses
            certain = (lane < LANES) & (total > np.float32(1e-25)) & (total < np.float32(1e25))
            c = lane
            if n_vectors > 1:
                lane &= LANES - 1
                reached = prefix[j, lane - 1] if lane > 0 else np.float32(0)
                before_low = 0
                before_high = 0
                for v in range(n_vectors - 1):
                    reached += masses[j, v * LANES + lane]
                    before_low += np.int64(reached <= low)
                    before_high += np.int64(reached <= high)
                certain &= before_low == before_high
                c = lane * n_vectors + before_low
            chosen[j] = c
            if not certain or c >= components:
                exact += 1
                u = _uniform(bits[j])
                chosen[j], log_mass = _exact_label(
                    layout, block_first + j, parameters, u, exact_masses
                )
                log_total += log_mass
                prefix[j, LANES - 1] = 1.0
        if want_likelihood:
            product = 1.0
            for j in range(in_block):
                product *= np.float64(prefix[j, LANES - 1])
                if j & 7 == 7:
                    log_total += math.log(product)
                    product = 1.0
            scratch.log_totals[block_first // BLOCK] = log_total + math.log(product)
        block_labels = labels[block_first : block_first + in_block]
        for j in range(in_block):
            c = chosen[j]
            replica = j & (REPLICAS - 1)
            block_labels[j] = c
            recent[replica, np.uint64(c)] += 1
            _add_bytes(
                counters,
                (replica * components + c) * width,
                onehot,
                (block_first + j) * width,
                width,
            )
        if layout.wide.size > 0:
            _count_wide(layout, block_first, in_block, chosen, scratch.wide_sums[thread])
        blocks_left -= 1
        if blocks_left == 0:
            blocks_left = FLUSH
            _flush(scratch, thread)
    _flush(scratch, thread)
    scratch.exact[thread] += exact


@njit(cache=True)
def _count_wide(layout, block_first, in_block, chosen, sums):
    for j in range(in_block):
        first = 0
        for w in range(layout.wide.size):
            q = layout.wide[w]
            code = layout.codes[block_first + j, q]
            if code < layout.sizes[q]:
                sums[first + code, chosen[j]] += 1
            first += layout.sizes[q]


@njit(cache=True, nogil=True)
def gather(layout, scratch):
    """Add up the threads' counts into scratch.members and scratch.counts (out)."""
    members, counts = scratch.members, scratch.counts
    components = members.size
    members[:] = 0
    counts[:] = 0
    for thread in range(scratch.sums.shape[0]):
        for c in range(components):
            members[c] += scratch.member_sums[thread, c]
        for byte in range(layout.byte_level.size):
            for c in range(components):
                counts[layout.byte_level[byte], c] += scratch.sums[thread, c, byte]
        first = 0
        for w in range(layout.wide.size):
            q = layout.wide[w]
            for k in range(layout.sizes[q]):
                for c in range(components):
                    counts[layout.offsets[q] + k, c] += scratch.wide_sums[thread, first + k, c]
            first += layout.sizes[q]
    for r in range(layout.remainder.size):
        q = layout.remainder[r]
        first = layout.offsets[q]
        for c in range(components):
            rest = members[c]
            for k in range(1, layout.sizes[q]):
                rest -= counts[first + k, c]
            counts[first, c] = rest


@njit(cache=True, nogil=True)
def log_likelihood(layout, parameters, scratch):
    """Return log p(rows | parameters) of the last label draw, blocks added in their order."""
    total = 0.0
    for j in range(parameters.log_scale.size):
        total += layout.level_totals[j] * parameters.log_scale[j]
    for block in range(scratch.log_totals.size):
        total += scratch.log_totals[block]
    return total


@njit(cache=True, nogil=True)
def keep(layout, parameters, scratch, labels, kept, draw):
    """Copy the current state into place `draw` of `kept` (out)."""
    kept.labels[draw] = labels
    kept.members[draw] = scratch.members
    kept.log_likelihood[draw] = log_likelihood(layout, parameters, scratch)
    for c in range(parameters.weights.size):
        kept.weights[draw, c] = parameters.weights[c]
        for j in range(parameters.table.shape[0]):
            kept.probabilities[draw, c, j] = parameters.table[j, c]


@njit(cache=True, nogil=True)
def prepare_draw(key, iteration, layout, parameters, vectors, scratch, alpha, beta):
    """Draw the parameters of sweep `iteration` given the counts in `scratch`, and fuse them."""
    parameters_key = _fold(_fold(key, iteration), PARAMETERS)
    draw_parameters(parameters_key, layout, scratch, alpha, beta, parameters)
    fuse_tables(layout, scratch.members, parameters, vectors)


@njit(cache=True, nogil=True)
def draw_rows(
    key,
    iteration,
    layout,
    parameters,
    vectors,
    scratch,
    thread,
    first,
    last,
    labels,
    want_likelihood,
):
    """Draw labels[first:last] of sweep `iteration`: one thread's part of it."""
    labels_key = _fold(_fold(key, iteration), LABELS)
    draw_labels(
        labels_key,
        layout,
        parameters,
        vectors,
        scratch,
        thread,
        first,
        last,
        labels,
        want_likelihood,
    )


@njit(cache=True, nogil=True)
def run(
    key,
    first,
    last,
    burn_in,
    thin,
    layout,
    parameters,
    vectors,
    scratch,
    alpha,
    beta,
    labels,
    kept,
):
    """Run sweeps first … last, numbered from one, on `labels` (in, out); keep what is due.

    scratch.members and scratch.counts must be those of `labels` on entry, and are on return.
    """
    for iteration in range(first, last + 1):
        due = iteration > burn_in and (iteration - burn_in) % thin == 0
        prepare_draw(key, iteration, layout, parameters, vectors, scratch, alpha, beta)
        draw_rows(
            key,
            iteration,
            layout,
            parameters,
            vectors,
            scratch,
            0,
            0,
            labels.size,
            labels,
            due,
        )
        gather(layout, scratch)
        if due:
            draw = (iteration - burn_in) // thin - 1
            keep(layout, parameters, scratch, labels, kept, draw)


@njit(cache=True, nogil=True, error_model="numpy")
def draw_given_parameters(
    key,
    first,
    last,
    layout,
    parameters,
    vectors,
    scratch,
    labels,
    alpha,
    inner_sweeps,
    weights,
    probabilities,
    counts,
    members,
    likelihoods,
):
    """Draw labels of many chains given their parameters: the silo's part of a polish round.

    For chains first … last − 1: weights (chain, cluster; in, out) and probabilities (chain,
    cluster, level; in) are given; the rows' labels are drawn `inner_sweeps` times, each time
    followed by new weights ~ Dirichlet(alpha + members) unless alpha is zero. Leaves the last
    labels' counts (chain, cluster, level; out) and members (chain, cluster; out), and the
    log-likelihood at the parameters received (chain; out).
    """
    components = parameters.weights.size
    everyone = np.ones(components, np.int64)
    shapes, shares = np.empty(components), np.empty(components)
    for chain in range(first, last):
        chain_key = _fold(key, chain)
        for c in range(components):
            for j in range(parameters.table.shape[0]):
                parameters.table[j, c] = max(probabilities[chain, c, j], SMALLEST)
        for sweep in range(inner_sweeps):
            sweep_key = _fold(chain_key, sweep)
            for c in range(components):
                parameters.weights[c] = max(weights[chain, c], SMALLEST)
            fuse_tables(layout, everyone, parameters, vectors)
            draw_labels(
                _fold(sweep_key, LABELS),
                layout,
                parameters,
                vectors,
                scratch,
                0,
                0,
                labels.size,
                labels,
                sweep == 0,
            )
            gather(layout, scratch)
            if sweep == 0:
                likelihoods[chain] = log_likelihood(layout, parameters, scratch)
            if alpha > 0.0:
                for c in range(components):
                    shapes[c] = scratch.members[c] + alpha
                draw_gammas(_fold(sweep_key, PARAMETERS), shapes, shares)
                total = shares.sum()
                for c in range(components):
                    weights[chain, c] = shares[c] / total
        for c in range(components):
            members[chain, c] = scratch.members[c]
            for j in range(parameters.table.shape[0]):
                counts[chain, c, j] = scratch.counts[j, c]
