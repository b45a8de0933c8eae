"""Draws from elsewhere: how they are read, aligned and summed up, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from silomix.errors import DataError, PolicyRefusal, SettingsError
from silomix.families import make_family
from silomix.model.schema import Prior, Schema, Variable
from silomix.silo import given_draws
from silomix.silo.given_draws import Given, read_draws
from silomix.study.policy import OPEN, PRESETS

DRAWS = 60


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


@pytest.fixture
def parts(rng):
    """Weights, a mean in two variables and a rate, of three components in two chains."""
    weights = rng.dirichlet([50, 30, 20], (2, DRAWS))
    means = np.array([[0, 0], [5, 0], [0, 5.0]]) + 0.1 * rng.standard_normal((2, DRAWS, 3, 2))
    return weights, means, np.exp(0.1 * rng.standard_normal((2, DRAWS, 3)))


def tree_of(weights, means, rate, axes=("k", "k", "k")):
    """A posterior as ArviZ has it, the component's dimension by these names."""
    w, m, r = axes
    group = xr.Dataset(
        {
            "w": (("chain", "draw", w), weights),
            "mu": (("chain", "draw", "size", m), np.swapaxes(means, 2, 3)),
            "rate": (("chain", "draw", r), rate),
            "lp": (("chain", "draw"), weights[..., 0]),
        },
        coords={"size": ["age", "dose"]},
    )
    return xr.DataTree.from_dict({"/posterior": group})


def read(given, weights="w", parameters=None, component=None):
    return read_draws(given, "north", weights, parameters, component)


def test_arrays_and_trees_say_the_same(parts, tmp_path):
    weights, means, rate = parts
    arrays = {"weights": weights, "parameters": {"mu": means, "rate": rate}}
    tree = tree_of(*parts)
    tree.to_netcdf(tmp_path / "north.nc")
    data = SimpleNamespace(posterior=tree["posterior"].to_dataset())
    named = tree_of(*parts, axes=("w_dim_0", "mu_dim_1", "rate_dim_0"))
    chosen = {"parameters": ["mu", "rate"]}
    for found in (
        read(tree),
        read(data),
        read(tree["posterior"]),
        read(tmp_path / "north.nc"),
        read(named, **chosen),
    ):
        assert found.names == ("mu[age]", "mu[dose]", "rate")
        assert_allclose(found.values, read(arrays).values)
        assert_allclose(found.weights, weights)
    assert read(arrays).names == ("mu[0]", "mu[1]", "rate")
    one = {"weights": weights, "parameters": means, "names": ["a", "b"]}
    assert_allclose(read(one).values, means)
    flat = {"weights": weights[0], "parameters": means[0]}
    assert read(flat).values.shape == (1, DRAWS, 3, 2)
    assert read(flat).names == ("parameter 1", "parameter 2")


def test_what_cannot_be_read_is_named(parts, tmp_path):
    weights, means, rate = parts
    known = {"weights": weights, "parameters": {"mu": means}}
    tree = tree_of(*parts)
    for given, how, sentence in (
        ([1, 2], {}, r"north: its draws are of type list; give a mapping with 'weights'"),
        ({"weights": weights, "mu": means}, {}, "has no 'parameters', only 'weights', 'mu'"),
        (known | {"weights": "w"}, {}, "'weights' is not an array of numbers"),
        (known | {"weights": weights[None, None]}, {}, "the weights have 5 axes"),
        (known | {"weights": np.log(weights)}, {}, "if these are logarithms, give exp of them"),
        (tree, {"weights": "W"}, r"no variable 'W' \(did you mean 'w'\?\), only 'w', 'mu', 'rate'"),
        (tree, {"parameters": ["nu"]}, "no variable 'nu'"),
        (tree_of(*parts, axes=("a", "b", "c")), {}, "no variable but 'w' has the dimension 'a'"),
        (known | {"parameters": {"mu": means[:, :-1]}}, {}, r"that of the weights, \(2, 60, 3\)"),
        (known | {"parameters": means, "names": ["a"]}, {}, "1 'names' for 2 parameters"),
        (known | {"weights": 2 * weights}, {}, "add up to 2; they must add up to 1"),
        (
            known | {"parameters": {"mu": means * np.nan}},
            {},
            "'mu.*' is NaN or infinite in some draws",
        ),
        ({"weights": weights[:, :5], "parameters": {"r": rate[:, :5]}}, {}, "fewer than 20 draws"),
        (tmp_path / "none.nc", {}, "none.nc cannot be read as netCDF"),
        (tree["posterior"].to_dataset().isel(chain=0), {}, r"it needs 'chain', 'draw', and one of"),
        (known | {"parameters": {}}, {}, "parameters are none; give each a name"),
        (known | {"parameters": {"m\nu": means}}, {}, r"parameters cannot be called 'm\\nu\[0\]'"),
        (known | {"parameters": 3.0}, {}, "the parameters have 0 axes, and the weights 3"),
        (known | {"parameters": means, "names": ["a", "a"]}, {}, "two of the 'names' 'a', 'a' are"),
        (known | {"parameters": means, "names": 3}, {}, "'names' is 3; give a list of texts"),
        (known | {"weights": 10**400}, {}, "'weights' is not an array of numbers"),
        (known | {"weights": weights[:, :0]}, {}, r"has the shape \(2, 0, 3\), and no numbers"),
    ):
        with pytest.raises(DataError, match=sentence):
            read(given, **how)


def shuffle(rng, *arrays):
    """Name the components of each draw at random."""
    order = rng.permuted(np.tile(np.arange(arrays[0].shape[1]), (len(arrays[0]), 1)), axis=1)
    return order, [
        np.take_along_axis(a, order.reshape(*order.shape, *[1] * (a.ndim - 2)), 1) for a in arrays
    ]


@pytest.mark.parametrize("empty", [0, 4])
def test_switched_labels_are_aligned(rng, empty):
    """Three clusters, and maybe components without rows, whose parameters are the prior's."""
    draws, centres = 300, np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 40.0]])
    points = centres + rng.standard_normal((draws, 3, 2)) * [0.2, 3.0]
    points = np.concatenate([points, 30 * rng.standard_cauchy((draws, empty, 2))], axis=1)
    weights = rng.dirichlet([300, 200, 100] + [0.5] * empty, draws)
    switched, (w, p) = shuffle(rng, weights, points)
    found = np.take_along_axis(switched, given_draws.align(np.where(w < 0.01, 0, w), p), axis=1)
    # every draw has the three clusters at the same places
    for cluster in range(3):
        place = np.argwhere(found[0] == cluster)[0, 0]
        assert_array_equal(found[:, place], cluster)


def test_labels_that_do_not_switch_stay(rng):
    points = np.arange(5.0)[:, None] + 0.01 * rng.standard_normal((100, 5, 1))
    weights = rng.dirichlet(np.full(5, 100.0), 100)
    order = given_draws.align(weights, points)
    assert (order == order[0]).all()


def test_clusters_are_the_components_with_weight(rng):
    weights = rng.dirichlet([30, 60, 0.1, 10], (1, DRAWS))
    values = np.broadcast_to(np.arange(4.0)[:, None], (1, DRAWS, 4, 1))
    found = given_draws.drop_empty(Given(("a",), weights, values), 0.01, "north")
    assert_array_equal(found.values[0, 0, :, 0], [1, 0, 3])
    assert_allclose(found.weights.sum(axis=-1), 1)
    # in every fourth draw one is empty, and its value the prior's
    some, values = weights.copy(), values.copy()
    some[:, ::4, 0], values[:, ::4, 0] = 0.0, 1e6
    again = given_draws.drop_empty(
        Given(("a",), some / some.sum(-1, keepdims=True), values), 0.01, ""
    )
    assert_array_equal(np.unique(again.values), [0, 1, 3])
    with pytest.raises(SettingsError, match=r"north: no component has .* smallest=0.9"):
        given_draws.drop_empty(found, 0.9, "north")


def test_weights_tell_how_many_rows_there_are(rng):
    """By the moments of 4,000 draws, within a tenth: four standard errors."""
    weights = rng.dirichlet([501.0, 301.0, 201.0], (2, 2000))
    given = Given(("a",), weights, np.zeros((2, 2000, 3, 1)))
    assert given_draws.count_rows(given, 1.0, "north") == pytest.approx(1000, rel=0.1)
    alone = Given(("a",), np.ones((1, 40, 1)), np.zeros((1, 40, 1, 1)))
    with pytest.raises(SettingsError, match=r"north: it has a single cluster.*give rows="):
        given_draws.count_rows(alone, 1.0, "north")


def release(given, policy=OPEN, tier="draws"):
    variables = tuple(Variable(n, (), "parameter", 1.0, 2.0) for n in given.names)
    family = make_family(Schema(variables), Prior())
    about = {"policy": policy, "tier": tier, "study": "0" * 64}
    return given_draws.release_given(given, family, 200, "north", place=1, **about)


def test_a_release_has_the_moments(parts):
    weights, means, _ = parts
    given = Given(("a", "b"), weights, means)
    made = release(given)
    flat = means.reshape(-1, 3, 2)
    assert_allclose(2 * made.mean[:, 1::2] + 1, flat.mean(axis=0), atol=1e-3)
    assert_allclose(4 / made.concentration, flat.var(axis=0), rtol=0.01)
    assert_allclose(made.sizes, 200 * weights.mean(axis=(0, 1)), atol=1)
    assert made.parameters.dtype == made.weights.dtype == np.float32
    assert "mu" not in str(made.diagnostics.rhat) and "a of cluster 2" in made.diagnostics.rhat
    summary = release(given, tier="summary")
    assert summary.parameters is None
    assert_allclose(summary.mean, made.mean)


def test_chains_that_differ_are_not_trusted(parts):
    weights, means, _ = parts
    apart = means + np.array([0.0, 0.5])[:, None, None, None]
    assert not release(Given(("a", "b"), weights, apart)).diagnostics.trusted


@pytest.mark.parametrize("name", [name for name, policy in PRESETS.items() if policy.has_rules])
def test_a_policy_with_rules_lets_no_draws_from_elsewhere_out(parts, name):
    given = Given(("a", "b"), *parts[:2])
    with pytest.raises(PolicyRefusal, match=r"nobody can tell how much one row moves"):
        release(given, PRESETS[name], "summary")
    closed = OPEN.model_copy(update={"tiers": ("summary",)})
    with pytest.raises(PolicyRefusal, match="draws"):
        release(given, closed)
