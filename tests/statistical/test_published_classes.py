"""The classes that are published of carcinoma and gss82, and how far ours are from them."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linear_sum_assignment

import silomix
from silomix.errors import SamplingWarning
from statistical import published
from statistical.test_published import indicators, log_masses

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "coming-from.md"
SHARES = {"carcinoma": (0.445, 0.374, 0.182), "gss82": (0.621, 0.207, 0.172)}
"""Class shares as printed with poLCA, largest first."""
PRINTED = 0.0005
"""Half of the last digit that is printed of them."""
TABLES = pytest.mark.parametrize("name", SHARES)


def table_of(name):
    data = getattr(published, name.upper())
    table = pd.DataFrame(data.patterns.keys(), columns=list(data.variables))
    table["n"] = list(data.patterns.values())
    return table


@cache
def sample(name, seed):
    return silomix.sample(table_of(name), components=3, frequency="n", seed=seed)


def fit(name, seed, **settings):
    table = table_of(name)
    return silomix.fit(table, frequency="n", absorb=0, seed=seed, progress=False, **settings)


@cache
def climb(name, seed):
    """Maximum likelihood by EM from the likeliest draw: its value, weights and probabilities."""
    draws = sample(name, seed)
    likeliest = int(draws.log_likelihood.argmax())
    weights = draws.weights[likeliest].astype(float)
    probabilities = draws.probabilities[likeliest].astype(float)
    onehot, last = indicators(draws), -np.inf
    for _ in range(20_000):
        logs = log_masses(onehot, weights, probabilities)
        totals = np.logaddexp.reduce(logs, axis=1, keepdims=True)
        if totals.sum() - last < 1e-9:
            break
        last = totals.sum()
        shares = np.exp(logs - totals)
        counts = shares.T @ onehot
        weights = shares.mean(axis=0)
        probabilities = np.concatenate(
            [
                counts[:, first:end] / counts[:, first:end].sum(axis=1, keepdims=True)
                for first, end in pairwise(draws.shard.schema.offsets)
            ],
            axis=1,
        )
    order = np.argsort(-weights)
    return last, weights[order], probabilities[order]


@TABLES
def test_the_likeliest_draw_leads_to_the_published_classes(name, seed):
    reached, weights, _ = climb(name, seed)
    assert round(reached, 3) == round(getattr(published, name.upper()).maxima[3], 3)
    np.testing.assert_allclose(weights, SHARES[name], atol=PRINTED)


@pytest.mark.parametrize("components", [3, 15])
def test_carcinoma_has_the_published_classes(components, seed):
    draws = sample("carcinoma", seed)
    _, weights, probabilities = climb("carcinoma", seed)
    found = fit("carcinoma", seed, components=components)
    assert found.n_clusters == 3
    for ours, published_ in ((found.weights, weights), (found.probabilities, probabilities)):
        lower, upper = silomix.metrics.highest_density_interval(ours)
        assert (lower - PRINTED <= published_).all()
        assert (published_ <= upper + PRINTED).all()
    there = log_masses(indicators(draws), weights, probabilities).argmax(axis=1)
    assert silomix.metrics.adjusted_rand_index(found.labels, there) == 1.0


def in_published_order(found, probabilities):
    """The posterior means of the shares, each next to the published class it is most like."""
    means = found.probabilities.mean(axis=0)
    apart = np.abs(means[None] - probabilities[:, None]).sum(axis=2)
    return found.weights.mean(axis=0)[linear_sum_assignment(apart)[1]]


@TABLES
def test_the_page_has_the_numbers_of_its_seed(name):
    _, _, probabilities = climb(name, 1)
    shares = in_published_order(fit(name, 1, components=3), probabilities)
    there = ", ".join(str(share) for share in SHARES[name])
    here = ", ".join(f"{share:.2f}" for share in shares)
    assert f"| `{name}` | {there} | {here} |" in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_prior_decides_how_many_believers_there_are():
    """Per cent of the second class of gss82, by alpha, as the page has them."""
    _, _, probabilities = climb("gss82", 1)
    for alpha, believers in ((0.5, 9), (5.0, 22), (10.0, 26)):
        found = fit("gss82", 1, components=3, alpha=alpha)
        assert round(100 * in_published_order(found, probabilities)[1]) == believers


@TABLES
def test_with_the_defaults_the_third_class_is_absorbed(name):
    table = table_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        found = silomix.fit(table, frequency="n", seed=1, progress=False)
    assert found.n_clusters == 2


@TABLES
def test_the_rows_are_those_of_the_patterns(name, data_folder):
    data = getattr(published, name.upper())
    rows = pd.read_csv(data_folder / f"{name}.csv", dtype=str, keep_default_na=False)
    assert list(rows.columns) == list(data.variables)
    assert Counter(rows.itertuples(index=False, name=None)) == data.patterns
