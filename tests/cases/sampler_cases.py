"""Tables to sample, and what the sampler did with them."""

from __future__ import annotations

import numpy as np
from cases.matching_cases import shard_of
from numpy.testing import assert_array_equal


def random_shard(seed, rows, sizes, missing):
    """Three kinds of rows, so that masses differ; of the cells, some are missing."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, rows)
    columns = []
    for size in sizes:
        likely = rng.integers(0, size, 3)[kind]
        column = np.where(rng.random(rows) < 0.7, likely, rng.integers(0, size, rows))
        columns.append(np.where(rng.random(rows) < missing, size, column))
    dtype = np.uint8 if max(sizes) <= 255 else np.uint16
    return shard_of(np.stack(columns, axis=1).astype(dtype), sizes)


def assert_same_draws(one, other):
    """Everything numeric in them, to the bit."""
    for name, array in numbers(one).items():
        same = numbers(other)[name]
        assert_array_equal(array, same, err_msg=name)
        assert array.dtype == same.dtype
    assert one.diagnostics.verdict == other.diagnostics.verdict


def numbers(draws):
    names = ("labels", "weights", "probabilities", "log_likelihood", "chain")
    traces = {name: trace.values for name, trace in draws.diagnostics.traces.items()}
    return {name: getattr(draws, name) for name in names} | traces
