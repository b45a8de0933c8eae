"""The compiled Gibbs sweep: the same chain as its readable twin, label for label.

Fendler et al. (2026), section 4.2: labels given weights and probabilities, then weights and
probabilities given labels, under Dirichlet priors.

Speed comes from fused variables (`layout`), probabilities instead of logarithms, float32
vectors of 16 components (`vector_instructions`), counter-based random numbers (`reproducible`)
and byte-wide counters. It is exact: a draw within the rounding bound of a boundary is repeated in
float64, in the order of the definition (`_exact_label`).

Nothing here uses prange: the kernels release the GIL, and `threads` rows of working memory let a
pool share one sweep.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from silomix.kernels.arrays import Bytes
from silomix.kernels.layout import BLOCK, LANES, REPLICAS, Workspace, level_counts
from silomix.kernels.reproducible import U64, draw_gammas, fold_bits, uniform
from silomix.kernels.vector_instructions import add_bytes, lanes_not_above, multiply_rows

# branches below the key of an iteration
START, PARAMETERS, LABELS = 0, 1, 2
# lower bound of drawn probabilities: a product of two is still a float64 above zero
SMALLEST = 2.0**-300
# blocks between flushes: 7 × 64 / 2 = 224 additions fit a byte
FLUSH = 7


@njit(cache=True, nogil=True)
def start(key, labels, components):
    """Fill `labels` (out) with uniformly random components."""
    start_key = fold_bits(fold_bits(key, 0), START)
    for i in range(labels.size):
        labels[i] = np.uint8(uniform(fold_bits(start_key, i)) * components)


def count(work: Workspace, labels: Bytes) -> None:
    """Count rows and cells by component into work.members and work.counts (out)."""
    layout, components = work.layout, work.members.size
    work.members[:] = np.bincount(labels, minlength=components)
    work.counts[:] = level_counts(layout.codes, layout.sizes, labels, components).T


@njit(cache=True, nogil=True, error_model="numpy")
def draw_parameters(key, work, alpha, beta):
    """Draw work.weights and work.table (out) given the counts (in), and fuse them.

    Weights ~ Dirichlet(α + members), and per variable levels ~ Dirichlet(β + counts).
    """
    levels, components = work.counts.shape
    raw, offsets = work.gammas, work.layout.offsets
    for j in range(levels):
        for c in range(components):
            work.shapes[j, c] = work.counts[j, c] + beta
    for c in range(components):
        work.shapes[levels, c] = work.members[c] + alpha
    draw_gammas(key, work.shapes.reshape(-1), raw.reshape(-1))
    total = raw[levels].sum()
    for c in range(components):
        work.weights[c] = max(raw[levels, c] / total, SMALLEST)
    totals = np.empty(components)
    for q in range(offsets.size - 1):
        totals[:] = 0.0
        for j in range(offsets[q], offsets[q + 1]):
            for c in range(components):
                totals[c] += max(raw[j, c], SMALLEST)
        for j in range(offsets[q], offsets[q + 1]):
            for c in range(components):
                work.table[j, c] = max(raw[j, c] / totals[c], SMALLEST)
    fuse_tables(work, work.members)


@njit(cache=True, nogil=True, error_model="numpy")
def fuse_tables(work, members):
    """Turn weights and table (in) into scaled and fused float32 vectors (out).

    `members` only chooses the scale: a level's divisor is its largest entry among occupied
    components, since those of empty ones may be far off.
    """
    layout, scaled, grown, fused = work.layout, work.scaled, work.grown, work.fused
    levels, components = work.table.shape
    n_vectors = len(work.vectors)
    slots = LANES * n_vectors
    for j in range(levels):
        largest = SMALLEST
        for c in range(components):
            if members[c] > 0:
                largest = max(largest, work.table[j, c])
        work.log_scale[j] = math.log(largest)
        inverse = 1.0 / largest
        for c in range(components):
            scaled[j, (c % n_vectors) * LANES + c // n_vectors] = work.table[j, c] * inverse
    for g in range(layout.group_row.size - 1):
        grown[0, :] = 1.0
        if g == 0:
            grown[0, :] = 0.0
            for c in range(components):
                grown[0, (c % n_vectors) * LANES + c // n_vectors] = work.weights[c]
        row = layout.group_row[g]
        for step in range(layout.group_step[g], layout.group_step[g + 1]):
            first, last = layout.step_start[step], layout.step_start[step + 1]
            final = step + 1 == layout.group_step[g + 1]
            for entry in range(last - first - 1, -1, -1):
                parent = layout.step_parent[first + entry]
                level = layout.step_level[first + entry]
                if final:
                    for slot in range(slots):
                        fused[row + entry, slot] = np.float32(
                            grown[parent, slot] * scaled[level, slot]
                        )
                else:
                    for slot in range(slots):
                        grown[entry, slot] = grown[parent, slot] * scaled[level, slot]


@njit(cache=True, error_model="numpy")
def _exact_label(layout, row, parameters, u, masses):
    """Draw one label exactly as defined; also log p(row), scaled as the vectors."""
    weights, table, log_scales = parameters
    components = masses.size
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
            log_scale += log_scales[level]
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


@njit(cache=True, inline="always")
def _nearly_label(masses, prefix, flat_prefix, j, bits, margin, vectors):
    """Draw the label of row j of a block in float32; also whether it is surely exact."""
    n_vectors = len(vectors)
    total = prefix[j, LANES - 1]
    threshold = np.float32(np.int32(bits >> U64(40))) * np.float32(2.0**-24) * total
    low = threshold - margin * total
    high = threshold + margin * total
    lane = lanes_not_above(flat_prefix, j, low, high)
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
    return c, certain


@njit(cache=True, nogil=True, error_model="numpy")
def draw_labels(key, work, thread, first, last, labels, want_likelihood):
    """Draw labels[first:last] (out) given the fused tables; `first` is a multiple of BLOCK.

    Leaves this thread's counts in `work`; `gather` adds them up. Where `want_likelihood`, the
    blocks' log-likelihoods are in work.log_totals (out), log scales set apart.
    """
    layout, vectors, components = work.layout, work.vectors, work.weights.size
    n_groups, width = layout.fused.shape[1], layout.onehot.shape[1]
    # Rounding bound relative to the row's total: each fused row is rounded once and multiplied
    # once; sums over vectors, lanes and along the lane follow; so for boundary and threshold.
    margin = np.float32((4 * n_groups + 3 * len(vectors) + 20) * 1.01 * 2.0**-24)
    fused, fused_rows, zeros = work.fused, layout.fused.reshape(-1), work.zeros
    onehot = layout.onehot.reshape(-1)
    masses, prefix, recent = work.masses[thread], work.prefix[thread], work.recent[thread]
    flat_masses, flat_prefix = masses.reshape(-1), prefix.reshape(-1)
    bits, chosen = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int64)
    counters = work.byte_counts[thread].reshape(-1)
    parameters, exact_masses = (work.weights, work.table, work.log_scale), np.empty(components)
    work.member_sums[thread] = 0
    work.sums[thread] = 0
    work.wide_sums[thread] = 0
    exact = 0
    blocks_left = FLUSH
    for block_first in range(first, last, BLOCK):
        in_block = min(BLOCK, last - block_first)
        for j in range(BLOCK):
            bits[j] = fold_bits(key, block_first + j)
        for j in range(in_block):
            place = (block_first + j) * n_groups
            multiply_rows(
                fused, fused_rows, place, n_groups, flat_masses, flat_prefix, j, zeros, vectors
            )
        log_total = 0.0
        for j in range(in_block):
            chosen[j], certain = _nearly_label(
                masses, prefix, flat_prefix, j, bits[j], margin, vectors
            )
            if not certain or chosen[j] >= components:
                exact += 1
                u = uniform(bits[j])
                chosen[j], log_mass = _exact_label(
                    layout, block_first + j, parameters, u, exact_masses
                )
                log_total += log_mass
                prefix[j, LANES - 1] = 1.0
        if want_likelihood:
            work.log_totals[block_first // BLOCK] = _add_logs(log_total, prefix, in_block)
        block_labels = labels[block_first : block_first + in_block]
        for j in range(in_block):
            c = chosen[j]
            replica = j & (REPLICAS - 1)
            block_labels[j] = c
            recent[replica, np.uint64(c)] += 1
            place, row = (replica * components + c) * width, (block_first + j) * width
            add_bytes(counters, place, onehot, row, width)
        if layout.wide.size > 0:
            _count_wide(layout, block_first, in_block, chosen, work.wide_sums[thread])
        blocks_left -= 1
        if blocks_left == 0:
            blocks_left = FLUSH
            _flush(work, thread)
    _flush(work, thread)
    work.exact[thread] += exact


@njit(cache=True, inline="always")
def _add_logs(log_total, prefix, in_block):
    """Add the logarithms of a block's totals, eight of them multiplied at a time."""
    product = 1.0
    for j in range(in_block):
        product *= np.float64(prefix[j, LANES - 1])
        if j & 7 == 7:
            log_total += math.log(product)
            product = 1.0
    return log_total + math.log(product)


@njit(cache=True)
def _flush(work, thread):
    """Empty a thread's byte counters into its sums; most components were not touched."""
    byte_counts, recent = work.byte_counts[thread], work.recent[thread]
    sums, member_sums = work.sums[thread], work.member_sums[thread]
    for replica in range(REPLICAS):
        for c in range(member_sums.size):
            if recent[replica, c] > 0:
                member_sums[c] += recent[replica, c]
                recent[replica, c] = 0
                for byte in range(sums.shape[1]):
                    sums[c, byte] += np.int32(byte_counts[replica, c, byte])
                    byte_counts[replica, c, byte] = 0


@njit(cache=True)
def _count_wide(layout, block_first, in_block, chosen, sums):
    for j in range(in_block):
        for q in layout.wide:
            code = layout.codes[block_first + j, q]
            if code < layout.sizes[q]:
                sums[layout.offsets[q] + code, chosen[j]] += 1


@njit(cache=True, nogil=True)
def gather(work):
    """Add up the threads' counts into work.members and work.counts (out)."""
    layout, members, counts = work.layout, work.members, work.counts
    members[:] = 0
    counts[:] = 0
    for thread in range(work.sums.shape[0]):
        members += work.member_sums[thread]
        for byte, level in enumerate(layout.byte_level):
            counts[level] += work.sums[thread, :, byte]
        if layout.wide.size > 0:
            counts += work.wide_sums[thread]
    for q in layout.remainder:
        first = layout.offsets[q]
        counts[first] = members
        for level in range(first + 1, layout.offsets[q + 1]):
            counts[first] -= counts[level]


@njit(cache=True, nogil=True)
def log_likelihood(work):
    """Log p(rows | parameters) at the last label draw, blocks added in their order."""
    total = 0.0
    for j in range(work.log_scale.size):
        total += work.layout.level_totals[j] * work.log_scale[j]
    for block in range(work.log_totals.size):
        total += work.log_totals[block]
    return total


@njit(cache=True, nogil=True)
def keep(work, labels, kept, draw):
    """Copy the current state to draw `draw` of `kept` (out)."""
    kept.labels[draw] = labels
    kept.members[draw] = work.members
    kept.log_likelihood[draw] = log_likelihood(work)
    kept.weights[draw] = work.weights
    kept.probabilities[draw] = work.table.T


@njit(cache=True, nogil=True)
def run(key, first, last, burn_in, thin, work, alpha, beta, labels, kept):
    """Run sweeps first … last, numbered from one, on `labels` (in, out), and keep thinned draws.

    work.members and work.counts must be those of `labels` on entry, and are on return.
    """
    for iteration in range(first, last + 1):
        late = iteration - burn_in
        due = late > 0 and late % thin == 0
        sweep_key = fold_bits(key, iteration)
        draw_parameters(fold_bits(sweep_key, PARAMETERS), work, alpha, beta)
        draw_labels(fold_bits(sweep_key, LABELS), work, 0, 0, labels.size, labels, due)
        gather(work)
        if due:
            keep(work, labels, kept, late // thin - 1)


@njit(cache=True, nogil=True, error_model="numpy")
def draw_given_parameters(
    key, first, last, work, labels, alpha, inner_sweeps, weights, probabilities, out
):
    """Draw labels of many chains given parameters: the silo's part of a polish round.

    For chains first … last − 1: weights (chain, cluster; in, out) and probabilities (chain,
    cluster, level; in) are given; the rows' labels are drawn `inner_sweeps` times, each time
    followed by new weights ~ Dirichlet(alpha + members) unless alpha is zero. Leaves the last
    labels' counts (chain, cluster, level) and members (chain, cluster), and the log-likelihood
    at the parameters received (chain), in `out`.
    """
    counts, members, likelihoods = out
    everyone = np.ones_like(work.members)
    shares = np.empty_like(work.weights)
    for chain in range(first, last):
        chain_key = fold_bits(key, chain)
        work.table[:] = np.maximum(probabilities[chain].T, SMALLEST)
        for sweep in range(inner_sweeps):
            sweep_key = fold_bits(chain_key, sweep)
            work.weights[:] = np.maximum(weights[chain], SMALLEST)
            fuse_tables(work, everyone)
            labels_key = fold_bits(sweep_key, LABELS)
            draw_labels(labels_key, work, 0, 0, labels.size, labels, sweep == 0)
            gather(work)
            if sweep == 0:
                likelihoods[chain] = log_likelihood(work)
            if alpha > 0.0:
                draw_gammas(fold_bits(sweep_key, PARAMETERS), work.members + alpha, shares)
                weights[chain] = shares / shares.sum()
        members[chain] = work.members
        counts[chain] = work.counts.T
