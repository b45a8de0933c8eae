"""Memory layouts of rows for the kernels: fused variables and one-hot bytes.

Neighbouring variables are fused into one code over the combinations that occur, so that a row's
mass is a product of a few table rows instead of one per variable (94 binary variables become
about 11 groups). Counting goes the other way: each row carries its one-hot bytes, and adding
them to a component's byte counters is a couple of vector additions.

The likelihood kernel reads distinct rows, fused further (`row_table`): 94 conditions are about 24
columns. A combination's probability is the product of its levels', and its expected count counts
for each of them.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from silomix.kernels.arrays import Array, Bools, Bytes, Codes, Floats, Ints, Singles

# limits tried for the number of codes of a group of two variables or more
GROUP_CODES = (8, 16, 32, 64, 128, 256, 512)
# growing one entry of the fused table costs as much as multiplying one into 10 data rows
GROWING_COST = 10
TRIAL_ROWS = 20_000
# a variable with more levels is counted cell by cell: its one-hot bytes would be mostly zeros
WIDE = 16
# components in a vector, and bytes added at a time
LANES, BYTE_LANES = 16, 16
# rows whose labels are drawn together; row ranges given to threads start at multiples of it
BLOCK = 64
# byte counters kept apart, so that neighbouring rows do not wait for each other's stores
REPLICAS = 2
# rows handled together where a table is read by columns: they fit into the nearest caches
BLOCK_ROWS = 4096
# with at least this many variables, fusing columns saves time
FUSED_FROM = 24
# combinations in a column: with more, the table and its counts exceed the first-level cache
FUSED_CODES = 16


class Layout(NamedTuple):
    """A shard, ready for the compiled sweep. D = ΣK_q levels; row D of a level table is all ones.

    Attributes
    ----------
    codes : (row, variable), as in the shard; the exact path reads them.
    sizes, offsets : (variable,), (variable + 1,): K_q and where its levels start.
    fused : (row, group), row of the fused table with the row's combination.
    step_level : for each entry of each growing step, the level it multiplies by, D for missing.
    step_parent : the entry of the previous step that it extends, within the group.
    step_start : (step + 1,), where each step's entries start; one step per variable.
    group_step : (group + 1,), where each group's steps start.
    group_row : (group + 1,), where each group's rows start in the fused table.
    onehot : (row, byte), padded with zeros to a multiple of 16 bytes.
    byte_level : (byte,), the level each byte column counts; padding is left out.
    remainder : variables whose level 0 is not stored: it is the total less the other levels.
    wide : variables counted cell by cell.
    level_totals : (level,), cells at each level; they never change.
    """

    codes: Codes
    sizes: Ints
    offsets: Ints
    fused: Codes
    step_level: Ints
    step_parent: Ints
    step_start: Ints
    group_step: Ints
    group_row: Ints
    onehot: Bytes
    byte_level: Ints
    remainder: Ints
    wide: Ints
    level_totals: Floats


def lay_out(codes: Codes, sizes: Ints) -> Layout:
    """Layout of `codes` (row, variable), whose code K_q means missing."""
    codes = np.ascontiguousarray(codes)
    columns = np.ascontiguousarray(codes.T)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    totals = level_counts(columns.T, sizes, np.zeros(len(codes), dtype=np.uint8), 1)[0]
    complete = np.add.reduceat(totals, offsets[:-1]) == len(codes)
    onehot, byte_level = _one_hot(codes, sizes, offsets, complete)
    return Layout(
        codes=codes,
        sizes=sizes.astype(np.int64),
        offsets=offsets,
        **_table_steps(_fuse(columns, sizes), sizes, offsets),
        onehot=onehot,
        byte_level=byte_level,
        remainder=np.flatnonzero((sizes <= WIDE) & complete),
        wide=np.flatnonzero(sizes > WIDE),
        level_totals=totals.astype(np.float64),
    )


def level_counts(codes: Codes, sizes: Ints, labels: Array, clusters: int) -> Ints:
    """Frequency of each level in each cluster, without missing cells.

    Parameters
    ----------
    codes : (row, variable), code K_q for a missing cell; sizes : (variable,), K_q.
    labels : (row,), 0 … clusters − 1.

    Returns
    -------
    (cluster, level)
    """
    by_variable = []
    for size, column in zip(sizes, codes.T, strict=True):
        cells = np.bincount(labels * (size + 1) + column, minlength=clusters * (size + 1))
        by_variable.append(cells.reshape(clusters, size + 1)[:, :size])
    return np.concatenate(by_variable, axis=1)


def aligned(shape: tuple[int, ...], dtype: type) -> Array:
    """Array of zeros that starts on a 64-byte boundary, as vector loads need."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, dtype=np.uint8)
    offset = -raw.__array_interface__["data"][0] % 64
    return raw[offset : offset + size].view(dtype).reshape(shape)


def _one_hot(codes: Codes, sizes: Ints, offsets: Ints, complete: Bools) -> tuple[Bytes, Ints]:
    narrow = np.flatnonzero(sizes <= WIDE)
    stored = [(q, k) for q in narrow for k in range(1 if complete[q] else 0, sizes[q])]
    width = -(-len(stored) // BYTE_LANES) * BYTE_LANES
    onehot = aligned((len(codes), width), np.uint8)
    for first in range(0, len(codes), BLOCK_ROWS):
        block = slice(first, first + BLOCK_ROWS)
        for byte, (q, k) in enumerate(stored):
            onehot[block, byte] = codes[block, q] == k
    return onehot, np.array([offsets[q] + k for q, k in stored], dtype=np.int64)


class Workspace(
    namedtuple(
        "Workspace",
        "layout vectors weights table scaled log_scale grown fused shapes gammas members counts "
        "log_totals exact masses prefix byte_counts recent sums wide_sums member_sums zeros",
    )
):
    """A laid-out shard, one draw of the parameters, the counts, and buffers of the label draw.

    Attributes
    ----------
    layout : the rows.
    vectors : V zeros; its length, part of its type, tells the compiler V.
    weights : (component,)
    table : (level, component), the level probabilities.
    scaled : (level + 1, lane slot), each level divided by its largest entry over the occupied
        components, so that products stay near one; the last row, for missing cells, is ones.
    log_scale : (level,), logarithms of those divisors.
    grown : one group's fused table, float64; fused : (fused row, lane slot), float32.
    shapes, gammas : (level + 1, component), of the gamma draws; the weights' come last.
    members : (component,) rows by component; counts : (level, component).
    log_totals : (block,), log-likelihood of each block of rows, summed in order at the end.
    exact : (thread,), labels that were drawn again in float64.
    The rest: per-thread buffers of one block, byte counters and their sums.
    """


def make_workspace(layout: Layout, components: int, threads: int = 1) -> Workspace:
    """Workspace for sweeps over a shard whose rows `threads` threads share."""
    rows, levels, width = len(layout.codes), int(layout.offsets[-1]), layout.onehot.shape[1]
    vectors = (0,) * -(-components // LANES)
    slots = len(vectors) * LANES
    return Workspace(
        layout=layout,
        vectors=vectors,
        weights=np.zeros(components),
        table=np.zeros((levels, components)),
        scaled=np.concatenate([np.zeros((levels, slots)), np.ones((1, slots))]),
        log_scale=np.zeros(levels),
        grown=np.zeros((int(np.diff(layout.group_row).max()), slots)),
        fused=aligned((int(layout.group_row[-1]), slots), np.float32),
        shapes=np.zeros((levels + 1, components)),
        gammas=np.zeros((levels + 1, components)),
        members=np.zeros(components, np.int64),
        counts=np.zeros((levels, components), np.int64),
        log_totals=np.zeros(-(-rows // BLOCK)),
        exact=np.zeros(threads, np.int64),
        masses=aligned((threads, BLOCK, slots), np.float32),
        prefix=aligned((threads, BLOCK, LANES), np.float32),
        byte_counts=aligned((threads, REPLICAS, components, width), np.uint8),
        recent=np.zeros((threads, REPLICAS, components), np.int64),
        sums=np.zeros((threads, components, width), np.int32),
        wide_sums=np.zeros((threads, levels if layout.wide.size else 0, components), np.int64),
        member_sums=np.zeros((threads, components), np.int64),
        zeros=aligned((LANES,), np.float32),
    )


class KeptDraws(NamedTuple):
    """Arrays for one chain's kept draws. Cached compiled code names this class by its module.

    Attributes
    ----------
    labels : (draw, row)
    weights : (draw, component)
    probabilities : (draw, component, column), the family's parameters.
    log_likelihood : (draw,)
    members : (draw, component), rows by component.
    """

    labels: Bytes
    weights: Singles
    probabilities: Singles
    log_likelihood: Floats
    members: Ints


class Step(NamedTuple):
    """One more variable in a group.

    Attributes
    ----------
    code : (row,), combination of each row, kept for the last variable of a group.
    parent : the combination that each extends.
    level : of the variable, K_q for missing.
    """

    code: Ints
    parent: Ints
    level: Ints


def _fuse(columns: Codes, sizes: Ints) -> list[list[Step]]:
    """Join neighbouring variables into groups of the size that makes a sweep cheapest."""
    rows = columns.shape[1]
    trial = np.ascontiguousarray(columns[:, :: -(-rows // TRIAL_ROWS)])

    def cost(limit: int) -> int:
        groups = fuse(trial, sizes, limit)
        grown = sum(len(step.level) for group in groups for step in group)
        return len(groups) * rows + GROWING_COST * grown

    return fuse(columns, sizes, min(GROUP_CODES, key=cost))


def fuse(columns: Codes, sizes: Ints, limit: int) -> list[list[Step]]:
    """Join neighbouring variables greedily while at most `limit` combinations occur.

    Parameters
    ----------
    columns : (variable, row), codes; each in one piece is read fastest.
    """
    groups: list[list[Step]] = []
    for column, size in zip(columns, sizes, strict=True):
        if groups:
            step = _grow(groups[-1][-1].code, column, int(size))
            if len(step.level) <= limit:
                # only a group's last codes are read, and 94 columns of them would fill the memory
                groups[-1][-1] = groups[-1][-1]._replace(code=np.empty(0, dtype=np.int64))
                groups[-1].append(step)
                continue
        groups.append([_grow(None, column, int(size))])
    return groups


def _table_steps(groups: list[list[Step]], sizes: Ints, offsets: Ints) -> dict[str, Array]:
    """The groups as flat arrays: see `Layout`."""
    steps = [step for group in groups for step in group]
    group_row = np.cumsum([0] + [len(group[-1].level) for group in groups])
    levels = [
        np.where(step.level == sizes[q], offsets[-1], offsets[q] + step.level)
        for q, step in enumerate(steps)
    ]
    columns = [group[-1].code + row for group, row in zip(groups, group_row, strict=False)]
    small = np.uint16 if group_row[-1] <= 2**16 else np.uint32
    return {
        "fused": np.stack(columns, axis=1).astype(small),
        "step_level": np.concatenate(levels).astype(np.int64),
        "step_parent": np.concatenate([step.parent for step in steps]).astype(np.int64),
        "step_start": np.cumsum([0] + [len(level) for level in levels]).astype(np.int64),
        "group_step": np.cumsum([0] + [len(group) for group in groups]).astype(np.int64),
        "group_row": group_row.astype(np.int64),
    }


def _grow(current: Ints | None, column: Codes, size: int) -> Step:
    """Add one variable to the codes of a group; only combinations that occur get a code.

    A parent never has a larger code than its children, which lets the table grow in place.
    """
    wide = column.astype(np.int64) if current is None else current * (size + 1) + column
    occurs = np.bincount(wide) > 0
    parent, level = np.divmod(np.flatnonzero(occurs), size + 1)
    return Step((occurs.cumsum() - 1)[wide], parent, level)


class RowTable(NamedTuple):
    """Rows in the form that the kernel reads.

    Attributes
    ----------
    codes : (row, variable), code K_q for a missing cell; sizes : (variable,), K_q.
    repeats : (row,), how often each occurs.
    columns : (row, column), index of the factor in the probability table.
    entries : (entry, variable) for each column, the levels that an entry combines, D for a
        missing cell; None where the columns are the variables and the entries their levels.
    """

    codes: Codes
    sizes: Ints
    repeats: Floats
    columns: NDArray[np.int32]
    entries: tuple[NDArray[np.int32], ...] | None


def row_table(codes: Codes, counts: Ints, sizes: Ints) -> RowTable:
    """Rows in the form that the kernel reads, made once for many questions.

    Parameters
    ----------
    codes : (row, variable), code K_q for a missing cell.
    counts : (row,), how often each row occurs.
    sizes : (variable,), K_q.
    """
    repeats = counts.astype(np.float64)
    if len(sizes) < FUSED_FROM or len(codes) == 0:
        return RowTable(codes, sizes, repeats, level_columns(codes, sizes), None)
    groups = fuse(np.ascontiguousarray(codes.T), sizes, FUSED_CODES)
    columns = np.empty((len(codes), len(groups)), dtype=np.int32)
    entries, first_entry, variable = [], 0, 0
    for place, group in enumerate(groups):
        columns[:, place] = group[-1].code + first_entry
        example = np.empty(len(group[-1].level), dtype=np.int64)
        example[group[-1].code] = np.arange(len(codes))  # some row that has the combination
        end = variable + len(group)
        entries.append(level_columns(codes[example], sizes)[:, variable:end])
        first_entry, variable = first_entry + len(example), end
    return RowTable(codes, sizes, repeats, columns, tuple(entries))


def level_columns(codes: Codes, sizes: Ints) -> NDArray[np.int32]:
    """Level column of each cell, D for a missing one: (row, variable)."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    columns = codes.astype(np.int32) + offsets[:-1].astype(np.int32)
    columns[codes == sizes] = offsets[-1]
    return columns
