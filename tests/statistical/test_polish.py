"""Polish is a valid Gibbs sampler: it agrees with an independent one; a wrong prior does not."""

from __future__ import annotations

import numpy as np
import pytest
from cases import sweep_twin as reference
from cases.families import categories, model_of, shard_of
from scipy import stats
from scipy.special import gammaln
from statistical.exact import FALSE_ALARM, Tiny, labellings, masses, tally, tally_p_value
from statistical.polish_oracle import PolishingSilos, plain_gibbs, planted

from silomix.coordinator.convergence import FIRST_CHECK, WORTH, excess, independent_draws
from silomix.coordinator.polish import Start, polish
from silomix.families.chains import Rows
from silomix.model.schema import Prior
from silomix.study import Polish

pytestmark = pytest.mark.statistical

SIZES = np.array([2, 3, 2, 3, 2, 2])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
# of the two planted clusters, variable by variable
PROFILES = [
    np.array([np.append(0.9, np.full(k - 1, 0.1 / (k - 1))), np.full(k, 1.0 / k)]) for k in SIZES
]


def small_study(seed):
    """Three silos of 25 rows, two clusters; few rows, so that the prior of the weights matters."""
    rng = np.random.default_rng(seed)
    weights = np.array([[0.95, 0.05], [0.5, 0.5], [0.04, 0.96]])
    shards, labels = planted(rng, 3, 25, weights, PROFILES)
    return rng, shards, labels


def run_polish(shards, seed, prior, chains=400, rounds=60):
    start = Start(
        weights=np.full((3, chains, 2), 0.5),
        parameters=np.broadcast_to(np.concatenate(PROFILES, axis=1), (chains, 2, OFFSETS[-1])),
    )
    silos = PolishingSilos(shards, SIZES, seed)
    model = model_of(SIZES, seed, prior)
    result = polish(start, silos, Polish(rounds=rounds), model, kept_draws=chains)
    return result.weights_by_silo[-chains:], result.parameters[-chains:]


def disagreement(polished, chain):
    """Smallest p-value, over quantities, that mean or spread agree, times their number.

    `polished` are independent draws (chain, quantity); `chain` is one long chain (sweep,
    quantity), whose means and mean squares get batch-means errors.
    """
    smallest = 1.0
    centre = chain.mean(axis=0)
    for power in (1, 2):
        one = (polished - centre) ** power
        batches = np.array(
            [part.mean(axis=0) for part in np.array_split((chain - centre) ** power, 30)]
        )
        error = np.sqrt(
            one.var(axis=0, ddof=1) / len(one) + batches.var(axis=0, ddof=1) / len(batches)
        )
        z = (one.mean(axis=0) - batches.mean(axis=0)) / error
        smallest = min(smallest, float(2 * stats.t.sf(np.abs(z), df=29).min()))
    return smallest * 2 * polished.shape[1]


def flatten(weights, probabilities):
    """One coordinate of each simplex, log-odds of the weights: their tails carry the prior."""
    first = np.clip(weights[:, :, 0], 1e-6, 1 - 1e-6)
    return np.concatenate(
        [
            np.log(first / (1 - first)),
            probabilities[:, :, OFFSETS[:-1]].reshape(len(weights), -1),
        ],
        axis=1,
    )


@pytest.mark.slow
def test_polish_agrees_with_an_independent_sampler_of_the_silo_weighted_model(seed):
    rng, shards, labels = small_study(seed)
    prior = Prior(alpha=1.5, beta=0.5)
    ours = flatten(*run_polish(shards, seed, prior, chains=2000))
    chain = plain_gibbs(
        rng, shards, SIZES, labels, alpha=prior.alpha / 3, beta=prior.beta, sweeps=40_000
    )
    theirs = flatten(*(part[2_000:] for part in chain[:2]))
    assert disagreement(ours, theirs) > FALSE_ALARM
    wrong = Prior(alpha=3 * prior.alpha, beta=prior.beta)  # counted once per silo
    assert (
        disagreement(flatten(*run_polish(shards, seed, wrong, chains=2000)), theirs) < FALSE_ALARM
    )


def test_a_round_is_the_definition(rng, seed):
    """Labels, counts and weights of each chain are those of the scalar reference."""
    _, shards, _ = small_study(seed)
    chains = 5
    weights = rng.dirichlet([1.0, 1.0], chains)
    tables = [rng.dirichlet(np.ones(k), (chains, 2)) for k in SIZES]
    probabilities = np.concatenate(tables, axis=2)
    rows = Rows(shard_of(shards[0], SIZES), categories(SIZES))
    found_counts, found_members, found_weights, log_likelihood = rows.draw_labels(
        77, (weights, probabilities), 0.3, 2, threads=2
    )
    for chain in range(chains):
        pi = weights[chain]
        for sweep in range(2):
            key = reference.fold(reference.fold(77, chain), sweep)
            labels, likelihood = reference.draw_labels(
                reference.fold(key, 2), shards[0], SIZES, pi, probabilities[chain].T
            )
            members, counts = reference.count(shards[0], SIZES, labels, 2)
            if sweep == 0:
                assert log_likelihood[chain] == pytest.approx(likelihood, rel=1e-6)
            shares = [
                reference.gamma(reference.fold(key, 1), c, members[c] + 0.3) for c in range(2)
            ]
            pi = np.array(shares) / sum(shares)
        np.testing.assert_array_equal(found_members[chain], members)
        np.testing.assert_array_equal(found_counts[chain], counts.T)
        np.testing.assert_allclose(found_weights[chain], pi, rtol=1e-15)


def test_until_stops_when_at_rest_and_says_so_when_not(seed):
    _, shards, _ = small_study(seed)
    chains = 200
    equal = np.full((3, chains, 2), 0.5)
    drawn = np.random.default_rng(seed).dirichlet(np.ones(2), (chains, 2, 6))
    far = Start(equal, drawn.reshape(chains, 2, -1))
    planted_profiles = np.array([[0.9, 0.1] * 6, [0.4, 0.6] * 6])
    near = Start(equal, np.broadcast_to(planted_profiles, (chains, 2, 12)))
    sizes = np.full(6, 2)
    silos = PolishingSilos([np.minimum(codes, 1).astype(np.uint8) for codes in shards], sizes, seed)
    model = model_of(sizes, seed)
    rested = polish(near, silos, Polish(most=200), model, kept_draws=1000)
    assert not rested.trace.still_moving
    assert rested.worth >= WORTH
    assert 8 <= rested.trace.rounds < 200
    assert len(rested.parameters) == rested.trace.rounds * chains
    # where no more rounds are affordable, it stops
    spent = polish(far, silos, Polish(most=200), model, kept_draws=2000, most_rounds=FIRST_CHECK)
    assert spent.trace.rounds == FIRST_CHECK and spent.trace.spent
    # 200 chains in two kept rounds: of each of the 400, five draws
    assert spent.parameters.shape[0] == spent.weights_by_silo.shape[0] == 2000
    hurried = polish(far, silos, Polish(most=4), model, kept_draws=1000).trace
    assert hurried.rounds == 4
    assert hurried.still_moving
    assert hurried.worst.cluster in {0, 1} and hurried.worst.variable.startswith("v")
    assert hurried.seconds > 0
    unchecked = polish(far, silos, Polish(rounds=3), model, kept_draws=1000).trace
    assert not unchecked.checked
    assert not unchecked.still_moving


def test_independent_draws_of_chains_that_move_slowly(rng):
    """Chains that never move are worth one draw each; the worst cluster counts."""
    free = rng.normal(size=(40, 50, 1, 200))
    assert 1600 < independent_draws(free) < 2500
    stuck = np.broadcast_to(rng.normal(size=(50, 1, 200)), free.shape)
    assert 40 < independent_draws(stuck) < 60
    assert independent_draws(np.concatenate([free, stuck], axis=2)) == independent_draws(stuck)


TINY = Tiny(
    codes=np.array([[0, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 0], [1, 0, 0, 2]], np.uint8),
    sizes=np.full(4, 2),
    components=2,
    alpha=0.25,
    beta=0.5,
)


def silo_weighted_masses():
    """Masses of the labellings when each silo of two rows has weights of its own."""
    own = [[np.bincount(part, minlength=2) for part in np.split(z, 2)] for z in labellings(TINY)]
    own = np.array(own)
    logs = np.log(masses(TINY)) - gammaln(TINY.alpha + own.sum(axis=1)).sum(axis=1)
    found = np.exp(logs + gammaln(TINY.alpha + own).sum(axis=(1, 2)))
    return found / found.sum()


def enumeration_p_value(prior, seed, chains=2000):
    """The last labels of many polished draws, against the enumerated posterior."""
    parts = np.split(TINY.codes, 2)
    silos = PolishingSilos(parts, TINY.sizes, seed)
    profiles = np.random.default_rng(seed).dirichlet([0.5, 0.5], (chains, 2, 4))
    start = Start(np.full((2, chains, 2), 0.5), profiles.reshape(chains, 2, 8))
    model = model_of(TINY.sizes, seed, prior)
    polish(start, silos, Polish(rounds=20), model, kept_draws=chains)
    told = silos.last.values()
    seen = [
        b"".join(
            reply.members[t].astype(np.int64).tobytes() + reply.statistics[t].tobytes()
            for reply in told
        )
        for t in range(chains)
    ]
    keys = [
        b"".join(
            tally(codes, TINY.sizes, own, 2)
            for codes, own in zip(parts, np.split(z, 2), strict=True)
        )
        for z in labellings(TINY)
    ]
    return tally_p_value(seen, keys, silo_weighted_masses())


def test_the_labels_are_those_of_the_enumerated_posterior(seed):
    assert enumeration_p_value(Prior(), seed) > FALSE_ALARM
    for wrong in (Prior(alpha=1.0), Prior(beta=1.0)):  # the first: once for each silo
        assert enumeration_p_value(wrong, seed) < FALSE_ALARM


def test_what_does_not_count_does_not_move_a_cluster(rng):
    """Here the weights of clusters that a silo hardly has, whose z is far from normal."""
    z = rng.normal(size=(3, 40))
    z[1] *= 2.0
    padded = np.concatenate([z, np.full((3, 100), np.nan)], axis=1)
    assert excess(padded).max() == excess(z).max() > 6.0
    padded[:, 40:] = 0.0
    assert excess(padded).max() < excess(z).max()
