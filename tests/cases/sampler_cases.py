"""Tables to sample, and what the sampler did with them."""

from __future__ import annotations

import numpy as np
from cases.families import shard_of
from numpy.testing import assert_array_equal

from silomix.model.schema import Schema, Shard, Variable


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


RAW = ("poisson", "negative-binomial", "exponential")


def mixed_shard(seed, rows, sizes, numbers, missing):
    """The same three kinds of rows, with columns of numbers of these kinds of variables."""
    codes = np.zeros((rows, 0), np.uint8)
    categories = random_shard(seed, rows, sizes, missing) if sizes else shard_of(codes, sizes)
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, rows)
    cells = [
        rng.poisson(1 + 3.0 * kind) if word in RAW else rng.normal(kind - 1, 0.5)
        for word in numbers
    ]
    found = np.where(rng.random((rows, len(cells))) < missing, np.nan, np.transpose(cells))
    others = [Variable(f"x{q}", (), word, 4.0, 2.5) for q, word in enumerate(numbers)]
    schema = Schema((*categories.schema.variables, *others))
    return Shard(schema, categories.codes, found)


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
