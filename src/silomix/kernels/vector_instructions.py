"""Inner loops, mostly of Gibbs sweeps, as vector instructions that numba would not emit.

For categories (`gibbs_sweep`) C components are padded to 16·V, in single precision. Component c
lies in lane c div V of vector c mod V, so that lanes, and within a lane vectors, run through the
components in their natural order. For any family (`feature_rows`) they are padded to whole vectors
of 8, in double precision; every product is fused with its sum, so that all machines round alike.
"""

from __future__ import annotations

import math

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from silomix.kernels.layout import BYTE_LANES, LANES

VECTOR = ir.VectorType(ir.FloatType(), LANES)
BYTES = ir.VectorType(ir.IntType(8), BYTE_LANES)
# rows whose labels are compared with another row's at once
COMPARED = 128
COUNTERS = ir.VectorType(ir.IntType(8), COMPARED)
I32, I64 = ir.IntType(32), ir.IntType(64)
ZERO = ir.Constant(I64, 0)
# components of a vector in double precision
DOUBLE_LANES = 8
DOUBLES = ir.VectorType(ir.DoubleType(), DOUBLE_LANES)
# log ratio below which a mass does not change a sum
NOTHING = -45.0
# ln 2 in two parts: a whole number of up to ten digits times the first is exact
LN2, LN2_REST = 6.93147180369123816490e-01, 1.90821492927058770002e-10


def _pointer(context, builder, array_type, array, index=ZERO):
    """Pointer to element `index` of a contiguous array's data."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def _load(builder, pointer, offset=ZERO, vector=VECTOR, align=64):
    place = builder.bitcast(builder.gep(pointer, [offset]), vector.as_pointer())
    return builder.load(place, align=align)


def _store(builder, value, pointer, offset=ZERO, align=64):
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
def multiply_rows(typingctx, fused, rows, first, n_groups, masses, prefix, block, zeros, vectors):
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
        slots = ir.Constant(I64, LANES * n_vectors)
        offsets = [ir.Constant(I64, LANES * v) for v in range(n_vectors)]
        table = _pointer(context, builder, fused_type, fused)
        row_of = _pointer(context, builder, rows_type, rows, first)

        def load_row(group):
            row = builder.zext(builder.load(builder.gep(row_of, [group])), I64)
            place = builder.mul(row, slots)
            return [_load(builder, table, builder.add(place, offset)) for offset in offsets]

        products = [cgutils.alloca_once_value(builder, vector) for vector in load_row(ZERO)]
        with cgutils.for_range(builder, n_groups, ir.Constant(I64, 1)) as loop:
            for product, factor in zip(products, load_row(loop.index), strict=True):
                builder.store(builder.fmul(builder.load(product), factor), product)
        vectors = [builder.load(product) for product in products]
        lane_sums = vectors[0]
        for vector in vectors[1:]:
            lane_sums = builder.fadd(lane_sums, vector)
        if n_vectors > 1:
            out = _pointer(context, builder, masses_type, masses, builder.mul(block, slots))
            for vector, offset in zip(vectors, offsets, strict=True):
                _store(builder, vector, out, offset)
        zero_vector = _load(builder, _pointer(context, builder, zeros_type, zeros))
        sums = _prefix_sum(builder, lane_sums, zero_vector)
        place = builder.mul(block, ir.Constant(I64, LANES))
        _store(builder, sums, _pointer(context, builder, prefix_type, prefix, place))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def lanes_not_above(typingctx, prefix, block, low, high):
    """Number of the 16 prefix sums of row `block` that are <= low; 16 where high differs."""
    signature = types.int64(prefix, types.int64, types.float32, types.float32)

    def generate(context, builder, signature, arguments):
        prefix, block, low, high = arguments
        place = builder.mul(block, ir.Constant(I64, LANES))
        sums = _load(builder, _pointer(context, builder, signature.args[0], prefix, place))

        def below(limit):
            limits = _spread(builder, limit, VECTOR)
            return builder.bitcast(builder.fcmp_ordered("<=", sums, limits), ir.IntType(LANES))

        below_low, below_high = below(low), below(high)
        same = builder.icmp_unsigned("==", below_low, below_high)
        lanes = builder.zext(builder.ctpop(below_low), I64)
        return builder.select(same, lanes, ir.Constant(I64, LANES))

    return signature, generate


@intrinsic
def add_bytes(typingctx, counters, place, onehot, row, width):
    """Add `width` one-hot bytes at onehot[row] to the byte counters at counters[place] (out)."""
    signature = types.void(counters, types.int64, onehot, types.int64, types.int64)

    def generate(context, builder, signature, arguments):
        counters, place, onehot, row, width = arguments
        target = _pointer(context, builder, signature.args[0], counters, place)
        source = _pointer(context, builder, signature.args[2], onehot, row)
        step = ir.Constant(I64, BYTE_LANES)
        with cgutils.for_range_slice(builder, ZERO, width, step, I64, inc=True) as (byte, _):
            old = _load(builder, target, byte, BYTES, BYTE_LANES)
            new = builder.add(old, _load(builder, source, byte, BYTES, BYTE_LANES))
            _store(builder, new, target, byte, BYTE_LANES)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def count_equal(typingctx, tile, own, counts):
    """Count the draws in which each row of a `tile` has the label in `own`: `counts`, (row,), out.

    `tile` is (draw, row), `own` (draw,). The counters of all rows stay in registers.
    """
    signature = types.void(tile, own, counts)

    def generate(context, builder, signature, arguments):
        typed = zip(signature.args, arguments, strict=True)
        rows, labels, out = (_pointer(context, builder, *pair) for pair in typed)
        shape = context.make_array(signature.args[1])(context, builder, arguments[1]).shape
        total = cgutils.alloca_once_value(builder, ir.Constant(COUNTERS, [0] * COMPARED))
        with cgutils.for_range(builder, *cgutils.unpack_tuple(builder, shape, 1)) as loop:
            component = builder.load(builder.gep(labels, [loop.index]))
            place = builder.mul(loop.index, ir.Constant(I64, COMPARED))
            compared = _load(builder, rows, place, COUNTERS, 1)
            same = builder.icmp_unsigned("==", compared, _spread(builder, component, COUNTERS))
            new = builder.add(builder.load(total), builder.zext(same, COUNTERS))
            builder.store(new, total)
        _store(builder, builder.load(total), out, align=1)
        return context.get_dummy_value()

    return signature, generate


def _everywhere(value):
    return ir.Constant(DOUBLES, [value] * DOUBLE_LANES)


def _spread(builder, scalar, vector=DOUBLES):
    """Vector with the scalar in every lane."""
    undefined = ir.Constant(vector, ir.Undefined)
    single = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    first = ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(single, undefined, first)


def _multiply_add(builder, one, other, more):
    """Compute one · other + more, rounded once."""
    kind = ir.FunctionType(DOUBLES, [DOUBLES] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v8f64")
    return builder.call(function, [one, other, more])


@intrinsic
def add_products(typingctx, features, first, natural, start, lane, scores, rows):
    """Write start + T · η of 8 components, from `lane` on, for as many data rows as `rows` has.

    `features` (row, feature) begins at row `first`; `natural` is (feature, component), `start`
    (component,) and `scores` (row, component), out.
    """
    signature = types.void(features, types.int64, natural, start, types.int64, scores, rows)

    def generate(context, builder, signature, arguments):
        features_type, _, natural_type, start_type, _, scores_type, _ = signature.args
        features, first, natural, start, lane, scores, _ = arguments
        shape = context.make_array(natural_type)(context, builder, natural).shape
        n_features, width = cgutils.unpack_tuple(builder, shape, 2)
        begin = builder.mul(first, n_features)
        column = _pointer(context, builder, natural_type, natural, lane)
        values = _pointer(context, builder, features_type, features, begin)
        source = _pointer(context, builder, start_type, start, lane)
        out = _pointer(context, builder, scores_type, scores, lane)
        numbers = [ir.Constant(I64, row) for row in range(rows.count)]
        lines = [builder.gep(values, [builder.mul(n_features, row)]) for row in numbers]
        beginning = _load(builder, source, vector=DOUBLES, align=8)
        sums = [cgutils.alloca_once_value(builder, beginning) for _ in numbers]
        with cgutils.for_range(builder, n_features) as loop:
            place = builder.mul(loop.index, width)
            factors = _load(builder, column, place, DOUBLES, 8)
            for line, total in zip(lines, sums, strict=True):
                value = _spread(builder, builder.load(builder.gep(line, [loop.index])))
                sums_of = _multiply_add(builder, value, factors, builder.load(total))
                builder.store(sums_of, total)
        for row, total in zip(numbers, sums, strict=True):
            _store(builder, builder.load(total), out, builder.mul(width, row), 8)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def exponentials(typingctx, scores, place, largest, masses):
    """Write exp(scores − largest) of 8 numbers from `place` on to `masses`; 0 if negligible.

    2 to the power of a whole k times exp(r), |r| ≤ ½ ln 2, by its Taylor series: right to the last
    digit or two.
    """
    signature = types.void(scores, types.int64, types.float64, masses)

    def generate(context, builder, signature, arguments):
        scores_type, _, _, masses_type = signature.args
        scores, place, largest, masses = arguments
        bits = ir.VectorType(I64, DOUBLE_LANES)
        source = _pointer(context, builder, scores_type, scores, place)
        shifted = _load(builder, source, vector=DOUBLES, align=8)
        shifted = builder.fsub(shifted, _spread(builder, largest))
        counts = builder.fcmp_ordered(">", shifted, _everywhere(NOTHING))
        shifted = builder.select(counts, shifted, _everywhere(NOTHING))
        # so large that its last binary digit is 1: adding it rounds to a whole number
        large = _everywhere(1.5 * 2.0**52)
        whole = _multiply_add(builder, shifted, _everywhere(1.0 / math.log(2.0)), large)
        k = builder.fsub(whole, large)
        rest = _multiply_add(builder, k, _everywhere(-LN2), shifted)
        rest = _multiply_add(builder, k, _everywhere(-LN2_REST), rest)
        series = _everywhere(1.0 / math.factorial(12))
        for term in range(11, -1, -1):
            series = _multiply_add(builder, series, rest, _everywhere(1 / math.factorial(term)))
        # k in the place of a float's exponent, which is 1023 for 1
        exponent = builder.shl(builder.bitcast(whole, bits), ir.Constant(bits, [52] * 8))
        exponent = builder.add(exponent, ir.Constant(bits, [1023 << 52] * 8))
        powers = builder.fmul(series, builder.bitcast(exponent, DOUBLES))
        out = _pointer(context, builder, masses_type, masses, place)
        _store(builder, builder.select(counts, powers, _everywhere(0.0)), out, align=8)
        return context.get_dummy_value()

    return signature, generate
