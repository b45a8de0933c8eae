"""The classes that are published of carcinoma and gss82, and how far ours are from them."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linear_sum_assignment
from statistical import published
from statistical.polish_oracle import one_hot
from statistical.published import table_of
from statistical.test_published import log_masses

import silomix
from silomix.errors import SamplingWarning

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "coming-from.md"
SHARES = {"carcinoma": (0.445, 0.374, 0.182), "gss82": (0.621, 0.207, 0.172)}
"""Class shares as printed with poLCA, largest first."""
PRINTED = 0.0005
"""Half of the last digit that is printed of them."""
slow = pytest.mark.slow
"""The 1202 rows of gss82 take ten times as long as the 118 of carcinoma."""
TABLES = pytest.mark.parametrize("name", ["carcinoma", pytest.param("gss82", marks=slow)])


@cache
def sample(name, seed):
    return silomix.sample(table_of(name), components=3, frequency="n", seed=seed)


def fit(name, seed, **settings):
    table = table_of(name)
    return silomix.fit(table, frequency="n", seed=seed, progress=False, **settings)


def rows_of(name):
    table = table_of(name)
    return table.loc[table.index.repeat(table["n"])].drop(columns="n")


@cache
def latent_classes(name, seed):
    return silomix.rivals.latent_classes(rows_of(name), classes=3, seed=seed)


@TABLES
def test_latent_classes_are_the_published_ones(name, seed):
    found = latent_classes(name, seed)
    assert round(found.log_likelihood, 3) == round(getattr(published, name.upper()).maxima[3], 3)
    np.testing.assert_allclose(found.weights[0], SHARES[name], atol=PRINTED)


@pytest.mark.parametrize("settings", [{"components": 3}, {}], ids=["three", "defaults"])
def test_carcinoma_has_the_published_classes(settings, seed):
    draws = sample("carcinoma", seed)
    weights, probabilities = published_classes("carcinoma")
    found = fit("carcinoma", seed, **settings)
    assert found.n_clusters == 3
    for ours, published_ in ((found.weights, weights), (found.probabilities, probabilities)):
        lower, upper = silomix.metrics.highest_density_interval(ours)
        assert (lower - PRINTED <= published_).all()
        assert (published_ <= upper + PRINTED).all()
    onehot = one_hot(draws.shard.codes, draws.shard.schema.sizes)
    there = log_masses(onehot, weights, probabilities).argmax(axis=1)
    assert silomix.metrics.adjusted_rand_index(found.labels, there) == 1.0


def published_classes(name):
    found = latent_classes(name, 1)
    return found.weights[0], found.probabilities[0]


def in_published_order(found, probabilities):
    """The posterior means of the shares, each next to the published class it is most like."""
    means = found.probabilities.mean(axis=0)
    apart = np.abs(means[None] - probabilities[:, None]).sum(axis=2)
    return found.weights.mean(axis=0)[linear_sum_assignment(apart)[1]]


def in_words(numbers, digits):
    return ", ".join(f"{number:.{digits}f}" for number in numbers)


@TABLES
def test_the_page_has_the_numbers_of_its_seed(name):
    found = latent_classes(name, 1)
    settings = {"absorb": 0} if name == "gss82" else {}
    shares = in_published_order(fit(name, 1, components=3, **settings), found.probabilities[0])
    reached = f"{found.log_likelihood:.3f}".replace("-", "−")
    maximum = f"{getattr(published, name.upper()).maxima[3]:.3f}".replace("-", "−")
    line = [
        f"`{name}`", in_words(SHARES[name], 3), maximum,
        in_words(found.weights[0], 3), reached, in_words(shares, 2),
    ]  # fmt: skip
    assert f"| {' | '.join(line)} |" in PAGE.read_text(encoding="utf-8")


@TABLES
def test_the_page_says_what_the_rows_in_their_own_order_give(name, data_folder):
    """A run that mixes gives the same in any order of the rows; the page has what gss82 gives."""
    _, probabilities = published_classes(name)
    settings = {"components": 3, "seed": 1, "progress": False}
    settings |= {"absorb": 0} if name == "gss82" else {}
    found = silomix.fit(data_folder / f"{name}.csv", **settings)
    shares = in_words(in_published_order(found, probabilities), 2)
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    if name == "gss82":
        assert not found.diagnostics.trusted
        assert f"in the order of `write.csv` the shares are {shares}." in page
    else:
        assert found.diagnostics.silos["all"].trusted
        assert f"{shares} |" in page


@slow
def test_the_prior_decides_how_many_believers_there_are():
    """Per cent of the second class of gss82, by alpha, as the page has them."""
    _, probabilities = published_classes("gss82")
    for alpha, believers in ((0.5, 9), (5.0, 22), (10.0, 27)):
        found = fit("gss82", 1, components=3, absorb=0, alpha=alpha)
        assert round(100 * in_published_order(found, probabilities)[1]) == believers


@slow
def test_with_the_defaults_two_classes_of_gss82_are_reported():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        assert fit("gss82", 1).n_clusters == 2


@TABLES
def test_the_rows_are_those_of_the_patterns(name, data_folder):
    data = getattr(published, name.upper())
    rows = pd.read_csv(data_folder / f"{name}.csv", dtype=str, keep_default_na=False)
    assert list(rows.columns) == list(data.variables)
    assert Counter(rows.itertuples(index=False, name=None)) == data.patterns
