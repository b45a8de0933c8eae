"""Three inner loops of the Gibbs sweep as LLVM vector instructions, which numba would not find.

C components are padded to 16·V. Component c lies in lane c div V of vector c mod V, so that lanes,
and within a lane vectors, run through the components in their natural order.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from silomix.kernels.layout import BYTE_LANES, LANES

VECTOR = ir.VectorType(ir.FloatType(), LANES)
BYTES = ir.VectorType(ir.IntType(8), BYTE_LANES)
I32, I64 = ir.IntType(32), ir.IntType(64)
ZERO = ir.Constant(I64, 0)


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
    """Return how many of the 16 prefix sums of row `block` are <= low; 16 where high differs."""
    signature = types.int64(prefix, types.int64, types.float32, types.float32)

    def generate(context, builder, signature, arguments):
        prefix, block, low, high = arguments
        place = builder.mul(block, ir.Constant(I64, LANES))
        sums = _load(builder, _pointer(context, builder, signature.args[0], prefix, place))

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
