"""Chain and round of each draw of a posterior.

A posterior has its draws in one list. Those of the exact strategy are one chain after the other.
Those of the polish come in parts: first a second draw given the counts of each kept round and
chain, or several; then the rounds' own draws, those with the silos' own profiles last. Other draws,
such as weighted means of the silos', have no order, and count as one chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from silomix.kernels.arrays import Bools, Ints
    from silomix.posterior.global_posterior import Posterior

# Minimum number of kept draws of the silos' own profiles, if there are as many.
SILO_DRAWS = 500
# In each round every second chain, alternately, keeps the silos' own profiles: they are large, and
# those of consecutive rounds of a chain are similar.
ONE_CHAIN_IN = 2


def kept_rounds(rounds: int) -> int:
    """Number of rounds whose draws are kept: the second half."""
    return rounds - rounds // 2


def rounds_with_own(chains: int) -> int:
    """Largest number of last rounds that keep the silos' own profiles."""
    return -(-SILO_DRAWS // (chains // ONE_CHAIN_IN))


def keeps_own(number: Ints | int, chains: int) -> Bools:
    """Whether a chain keeps the silos' own profiles in rounds counted from 1: (…, chain)."""
    return np.arange(chains) % ONE_CHAIN_IN == np.asarray(number)[..., None] % ONE_CHAIN_IN


def own_last(rounds: int, chains: int) -> Ints:
    """Order of the kept draws, (round, chain) in one list, with own profiles last."""
    number = np.arange(rounds // 2, rounds) + 1
    late = number > rounds - rounds_with_own(chains)
    return np.argsort((keeps_own(number, chains) & late[:, None]).ravel(), kind="stable")


def find_chains(posterior: Posterior) -> Ints:
    """Indices of the draws of each chain in the posterior's list: (chain, draw)."""
    polish, every = posterior.diagnostics.polish, np.arange(posterior.n_draws)
    rounds = polish.rounds if polish else 0
    if posterior.study.strategy == "exact":
        return every.reshape(posterior.study.schedule.chains, -1)
    chains = polish.chains if polish and rounds else 1
    one_part = kept_rounds(rounds) * chains
    if one_part == 0 or len(every) % one_part or len(every) == one_part:
        return every[None]
    parts = every.reshape(-1, kept_rounds(rounds), chains)
    if posterior.silo_profiles is not None:
        parts[-1].flat[own_last(rounds, chains)] = parts[-1].ravel().copy()
    # the draws of a round stand side by side, its own first
    return np.concatenate([parts[-1:], parts[:-1]]).transpose(2, 1, 0).reshape(chains, -1)
