"""Draws by chain, for ArviZ: those of the polish and of the exact strategy, in order of time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import silomix
from silomix.coordinator import polish

pytest.importorskip("xarray", reason="needs the extra 'arviz'")

SMALL = {"silo": "silo", "components": 6, "seed": 1, "threads": 1, "progress": False}


@pytest.fixture(scope="module")
def table():
    found, _ = silomix.simulate("homogeneous", rows=300, silos=2, seed=1)
    return found


@pytest.fixture
def rounds(monkeypatch):
    """What each round of a polish drew: the shared profiles, and the silos' own."""
    seen, add = [], polish._History.add

    def watched(history, weights, shapes, shared, own):
        seen.append((shared.mean.copy(), None if own is None else own.copy()))
        add(history, weights, shapes, shared, own)

    monkeypatch.setattr(polish._History, "add", watched)
    return seen


def by_share(values, posterior, first):
    """Rounds' profiles with the clusters in the order of the posterior."""
    shown = posterior.to_datatree()["posterior"]["probabilities"].values[0, 0]
    order = [int(np.abs(first - line).sum(axis=1).argmin()) for line in shown]
    assert len(set(order)) == len(order)
    return values[..., order, :].astype(np.float32)


@pytest.mark.parametrize("drift", ["learn", "none"])
@pytest.mark.parametrize("made", [5, 40])
def test_chains_are_those_of_the_polish(table, rounds, drift, made):
    """With 40 rounds only the last of the kept ones keep the silos' own profiles."""
    posterior = silomix.fit(table, polish=made, drift=drift, iterations=600, **SMALL)
    tree = posterior.to_datatree()
    kept = made - made // 2
    found = tree["posterior"]["probabilities"].values
    assert found.shape[:2] == (len(rounds[0][0]), 2 * kept)
    drawn = np.array([mean for mean, _ in rounds])[made // 2 :]
    drawn = by_share(drawn, posterior, drawn[0, 0])
    assert_array_equal(found[:, ::2], np.moveaxis(drawn, 0, 1))
    # the other half are second draws given the same counts, near the first ones of their own chain
    second = found[:, 1::2]
    apart, others = (np.abs(second - first).mean() for first in (found[:, ::2], found[::-1, ::2]))
    assert 0 < apart < others
    if drift == "learn":
        last = tree["last_draws"]
        own = np.array([silos for _, silos in rounds])[made // 2 :]
        own = by_share(own, posterior, rounds[made // 2][0][0])
        of_chain, of_draw = last["of_chain"].values, last["of_draw"].values
        assert (of_draw % 2 == 0).all()
        expected = own[of_draw // 2, :, of_chain]
        assert_array_equal(last["probabilities_by_silo"].values[0], expected)


@pytest.mark.parametrize("drift", ["learn", "none"])
def test_a_polish_out_of_bytes_draws_more_often_from_each_round(table, rounds, drift):
    posterior = silomix.fit(table, drift=drift, iterations=1500, most_bytes=100, **SMALL)
    assert posterior.diagnostics.polish.spent
    made, chains = len(rounds), len(rounds[0][0])
    kept = made - made // 2
    assert (chains, made) == (polish.FEWEST_CHAINS, polish.FIRST_CHECK)
    assert kept * chains < 1000 <= posterior.n_draws
    found = posterior.to_datatree()["posterior"]["probabilities"].values
    each = posterior.n_draws // (kept * chains)
    assert found.shape[:2] == (chains, each * kept)
    drawn = np.array([mean for mean, _ in rounds])[made // 2 :]
    drawn = by_share(drawn, posterior, drawn[0, 0])
    assert_array_equal(found[:, ::each], np.moveaxis(drawn, 0, 1))


def test_rhat_and_ess_are_numbers(table):
    stats = pytest.importorskip("arviz_stats", reason="needs the extra 'arviz'")
    posterior = silomix.fit(table, iterations=1500, **SMALL)
    names = ["weights", "probabilities"]  # of other dimensions: all coordinates must fit both
    summary = stats.summary(posterior.to_datatree(), var_names=names, round_to="none")
    summary = summary[summary.index.str.startswith("weights")]
    assert summary["r_hat"].astype(float).between(0.99, 1.05).all()
    assert summary["ess_bulk"].astype(float).between(300, 1.5 * posterior.n_draws).all()


def test_a_summary_of_everything_names_the_silos_weights_right(table):
    stats = pytest.importorskip("arviz_stats", reason="needs the extra 'arviz'")
    posterior = silomix.fit(table, drift="none", iterations=1500, **SMALL)
    summary = stats.summary(posterior.to_datatree(), round_to="none")
    lines = [f"weights_by_silo[silo 2, {c}]" for c in range(posterior.n_clusters)]
    found = summary.loc[lines, "mean"].to_numpy(dtype=float)
    np.testing.assert_allclose(found, posterior.weights_by_silo[:, 1].mean(axis=0), rtol=1e-4)


def test_chains_of_the_exact_strategy(table):
    posterior = silomix.fit(
        table, strategy="exact", iterations=60, burn_in=20, thin=1, chains=3, **SMALL
    )
    weights = posterior.to_datatree()["posterior"]["weights"].values
    assert_array_equal(weights, posterior.weights.reshape(3, 40, -1))


def test_draws_without_polish_are_one_chain(table):
    posterior = silomix.fit(table, polish=0, iterations=1500, **SMALL)
    weights = posterior.to_datatree()["posterior"]["weights"].values
    assert_array_equal(weights, posterior.weights[None])
