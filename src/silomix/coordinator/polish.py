"""From consensus to the exact posterior in a few exchanges: Gibbs rounds over the silos.

The aggregated draws are the starting points of parallel chains on the posterior of the pooled
model with silo-specific weights π^s ~ Dirichlet(α/S). One round, for all chains at once: the
coordinator sends each silo its profiles; the silo draws its rows' labels, updates π^s, and answers
with level counts by cluster. Without drift the profiles p_c ~ Dirichlet(β) are shared: the
coordinator adds the counts and draws p ~ Dirichlet(β + counts). With drift it draws how alike the
silos are, then the profile they share, then each silo's own. Either way that
is one valid Gibbs sweep, so the law of the draws can only come closer to the exact posterior for
the matched number of clusters; no row moves.

Under drift a cluster's parameters may differ between silos, variable by variable. The silos share
m_c, and each has its own parameters around it. κ_q says how alike they are in variable q, and at
κ_q = ∞ they are the same, which is the model of Fendler et al. (2026). Half of the prior of κ_q is
at ∞ and half is log-uniform on a grid; how many variables drift is learned too (P(κ_q = ∞) ~
Beta(1, 1)). How parameters vary at κ is the family's matter. The coordinator draws κ, then m, with
the silos' own parameters integrated out, and only then those. In another order, with parameters
left over from before κ or m moved, the three steps would not leave the posterior as it is.

It is not in Fendler et al. (2026). The nearest idea is distributed data augmentation, which starts
from nothing; starting from the consensus draws is what makes a handful of rounds enough. Limits:
the number of clusters stays as matched, a cluster nobody found stays unfound, a wrong match stays
wrong; and counts that are rounded or suppressed on the way make the rounds approximate.

The same round with all C⁺ components, one π drawn by the coordinator from Dirichlet(α + counts)
and thousands of rounds is the paper's pooled Gibbs sampler without moving a row (`exact`).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from silomix.coordinator.convergence import FIRST_CHECK, Check, compare
from silomix.families.categorical import draw_levels
from silomix.families.family import GRID
from silomix.messages import PolishReply, PolishRound, Silos
from silomix.model.draws import MatchedDraws, SiloProfiles
from silomix.posterior.global_posterior import keeps_own, kept_rounds, own_last, rounds_with_own
from silomix.posterior.verdict import PolishTrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from silomix.families.product import Product
    from silomix.kernels.arrays import Array, Floats, Ints, Reals, Rng, Singles
    from silomix.model.schema import PooledModel
    from silomix.study import Polish, Study

# Sets the coordinator's polish draws apart from other draws of the same seed.
STREAM = 0x706F6C
CHECK_EVERY = 2
# What the two draws that are kept of a round are worth, in draws of a round of their own: they are
# given the same counts. At 2 the intervals of easy cells would cover half a percent less.
PAIR = 4 / 3
# Bytes that a number of a reply counts as, however it is encoded; and the budget of "tables": the
# larger of this, and so many times the smallest silo's table.
NUMBER, LEAST_BUDGET, TABLES = 4, 1_000_000, 50
# A budget for fewer rounds is met by fewer chains first, as long as there are so many.
ROUNDS, FEWEST_CHAINS = 50, 16


@dataclass(frozen=True, eq=False)
class Polished:
    """Draws after polishing.

    Attributes
    ----------
    weights_by_silo : (draw, silo, cluster)
    parameters : (draw, cluster, parameter), what the silos share.
    silo_profiles : κ, and the silos' own profiles in the last draws; None without drift.
    trace : "log_likelihood", (round,), of all silos' rows at the start of each round, and
        "movement", (check, 4): round; z of the log-likelihood; of the cluster that moved most, how
        far the mean squared z of its parameters' means, and of their spreads, is above 1, in
        standard errors. No line where the rounds were too few for a check.
    worth : how many independent draws the kept ones are worth, for the worst cluster.
    """

    weights_by_silo: Reals
    parameters: Reals
    silo_profiles: SiloProfiles | None
    trace: PolishTrace
    worth: float


@dataclass(frozen=True, eq=False)
class Start:
    """Where the chains begin.

    Attributes
    ----------
    weights : (silo, chain, cluster), positive; parameters : (chain, cluster, parameter)
    own : (silo, chain, cluster, parameter), each silo's profiles; those above when left out.
    kappa : (variable,), how alike the silos are; None without drift.
    """

    weights: Floats
    parameters: Floats
    own: Floats | None = None
    kappa: Floats | None = None


def affordable(study: Study, rows: Ints, clusters: int, family: Product) -> tuple[int, int]:
    """Chains and rounds of a polish whose replies fit its budget, by the numbers in each.

    Without a polish, the draws that are kept, and no rounds. A category takes two bytes in a table,
    a number at least six.

    Parameters
    ----------
    rows : (silo,)
    """
    settings, schema = study.polish, study.table_schema
    if settings.last == 0:
        return study.kept_draws, 0
    chains = max(settings.chains, -(-study.kept_draws // kept_rounds(settings.last)))
    if settings.rounds != "until" or settings.most_bytes == "any":
        return chains, settings.last
    table = int(rows.min()) * (2 * len(schema.variables) + 4 * len(schema.numbers))
    usual = max(LEAST_BUDGET, TABLES * table)
    numbers = (usual if settings.most_bytes == "tables" else settings.most_bytes) // NUMBER
    sums = clusters * int(family.statistics.sum())
    of_chain = sums + 2 * clusters + 1
    fitting = (numbers // min(ROUNDS, settings.last) - sums) // of_chain
    chains = min(chains, max(fitting, FEWEST_CHAINS))
    return chains, min(settings.last, max(numbers // (chains * of_chain + sums), FIRST_CHECK))


def starting_point(
    matched: MatchedDraws, shared: Floats, rows: Ints, family: Product, kappa: Floats | None = None
) -> Start:
    """Begin each silo at its own weights; a cluster it lacks at a small weight, not zero.

    Under drift it begins at its own profiles too, and at the shared ones of clusters it lacks.

    Parameters
    ----------
    matched : the silos' draws, as many as there are chains.
    shared : (chain, cluster, parameter), the aggregated draws.
    rows : (silo,)
    kappa : (variable,), how alike the silos are, from the matching; None without drift.
    """
    least = 1.0 / (rows + 1.0)
    raised = np.maximum(matched.weights, least[:, None, None])
    own = None if kappa is None else own_profiles(matched, shared, kappa, family)
    return Start(raised / raised.sum(axis=-1, keepdims=True), shared, own, kappa)


def own_profiles(matched: MatchedDraws, shared: Floats, kappa: Floats, family: Product) -> Floats:
    """Each silo's own profiles, the shared ones where it lacks a cluster or all are alike.

    Parameters
    ----------
    shared : (draw, cluster, parameter); kappa : (variable,)

    Returns
    -------
    (silo, draw, cluster, parameter)
    """
    differ = matched.held[:, None, :, None] & np.repeat(np.isfinite(kappa), family.parameters)
    return np.where(differ, matched.parameters, shared)


def polish(
    start: Start,
    silos: Silos,
    settings: Polish,
    model: PooledModel,
    *,
    kept_draws: int,
    most_rounds: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Polished:
    """Run Gibbs rounds over the silos from `start`.

    Parameters
    ----------
    kept_draws : the fewest draws to keep, of the chains of `start` together.
    most_rounds : under "until", if fewer than its own are affordable.
    report : called with (rounds made, the most there can be).
    """
    until = settings.rounds == "until"
    last = most_rounds or settings.last
    (prior, family, seed), weights, drift = model, start.weights, start.kappa is not None
    own = np.asarray([start.parameters] * len(silos.names) if start.own is None else start.own)
    kappa = np.full(len(family.variables), np.inf) if start.kappa is None else start.kappa.copy()
    logs = np.log(kappa[drifts := np.isfinite(kappa)])
    # the grid's points nearest to those of the matching
    kappa[drifts] = GRID[np.abs(np.log(GRID[:-1]) - logs[:, None]).argmin(axis=1)]
    shared = Shared(start.parameters, np.tile(kappa, (len(start.parameters), 1)))
    alpha = prior.alpha / len(silos.names)
    history, begun = _History(weights.shape[1]), time.perf_counter()
    for made in range(1, last + 1):
        answers = ask_round(silos, made, weights, own, alpha, settings.inner_sweeps)
        weights, sums, members, log_likelihood = answers
        rng = np.random.default_rng([seed, STREAM, made])
        if drift:
            both = np.stack([weights, members], axis=-1)
            sums, both = exchange_clusters(sums, both, shared, family, rng)
            weights, members = np.moveaxis(both, -1, 0)
        shared, own = draw_profiles(sums, shared, family, rng, drift=drift)
        history.log_likelihood.append(log_likelihood)
        history.add(weights, members + alpha, shared, own if drift else None)
        if report is not None:
            report(made, last)
        kept = kept_rounds(made) * weights.shape[1]
        enough = until and PAIR * kept >= kept_draws
        if made == last or (enough and made % CHECK_EVERY == 0):
            at_rest = history.check(members, family)
            if until and at_rest:
                break
    found = history.finish(family, kept_draws, np.random.default_rng([seed, STREAM, 0]))
    seconds = (time.perf_counter() - begun) / made
    trace = replace(found.trace, spent=made == last < settings.last, seconds=seconds)
    return replace(found, trace=trace)


def draw_profiles(
    statistics: Array, shared: Shared, family: Product, rng: Rng, *, drift: bool
) -> tuple[Shared, Floats]:
    """Draw the parameters that the silos share, and each silo's own, given what rows add up to.

    Parameters
    ----------
    statistics : (silo, chain, cluster, statistic)
    shared : as they were; without drift κ stays where it is, at infinity.
    """
    if not drift:
        numbers = family.prior() + family.conjugate(statistics.sum(axis=0))
        mean = family.draw(numbers, rng)
        own = np.broadcast_to(mean, (len(statistics), *mean.shape))
        return Shared(mean, shared.kappa, numbers), own
    shared = draw_shared(statistics, shared, family, rng)
    return shared, family.draw_own(statistics, shared.mean, shared.kappa, rng)


def ask_round(
    silos: Silos, number: int, weights: Floats, own: Floats, alpha: float | None, inner_sweeps: int
) -> tuple[Floats, Array, Floats, Floats]:
    """Ask every silo one round, each with its own weights and profiles.

    Parameters
    ----------
    weights : (silo, chain, cluster); own : (silo, chain, cluster, parameter)

    Returns
    -------
    weights : (silo, chain, cluster), silos in the order of the roster.
    statistics : (silo, chain, cluster, statistic)
    members : (silo, chain, cluster)
    log_likelihood : (chain,), of all silos' rows.
    """
    each = zip(silos.names, weights, own, strict=True)
    asked = {name: PolishRound(number, w, p, alpha, inner_sweeps) for name, w, p in each}
    answers = silos.ask(asked)
    replies: list[PolishReply] = [answers[name] for name in silos.names]
    return (
        np.stack([reply.weights for reply in replies]),
        np.stack([reply.statistics for reply in replies]),
        np.stack([reply.members for reply in replies]).astype(np.float64),
        np.sum([reply.log_likelihood for reply in replies], axis=0),
    )


class Round(NamedTuple):
    """The draws of one round, in float32, and χ of the posteriors they are from, in float64.

    Attributes
    ----------
    kappa : (chain, variable)
    weights, weight_shapes : (chain, silo, cluster)
    parameters : (chain, cluster, parameter); numbers : (chain, cluster, coordinate)
    """

    kappa: Floats
    weights: Reals
    weight_shapes: Reals
    parameters: Reals
    numbers: Floats


class _History:
    """Every round's draws, and how far they moved."""

    def __init__(self, chains: int) -> None:
        self.rounds: list[Round] = []
        self.log_likelihood: list[Floats] = []
        # the silos' own profiles, of the chains that keep them in a round
        self.own: deque[Singles] = deque(maxlen=rounds_with_own(chains))
        self.checks: list[Check] = []

    def add(self, weights: Floats, shapes: Floats, shared: Shared, own: Floats | None) -> None:
        by_chain = (np.moveaxis(part, 0, 1) for part in (weights, shapes))
        share, shape, mean = (part.astype(np.float32) for part in (*by_chain, shared.mean))
        self.rounds.append(Round(shared.kappa, share, shape, mean, shared.numbers))
        if own is not None:
            some = keeps_own(len(self.rounds), own.shape[1])
            self.own.append(np.moveaxis(own[:, some], 0, 1).astype(np.float32))

    def check(self, members: Floats, family: Product) -> bool:
        """Compare early and late rounds, if there are enough; tell whether all is at rest."""
        if len(self.rounds) >= FIRST_CHECK:
            self.checks.append(compare(self.rounds, self.log_likelihood, members, family))
        return bool(self.checks) and self.checks[-1].at_rest

    def finish(self, family: Product, draws: int, rng: Rng) -> Polished:
        """Draws of the kept rounds, each with a second one given the same counts.

        That costs no exchange, and makes the ends of intervals steadier. Rounds that had to end
        early have more of them, until there are so many draws.
        """
        made, chains = len(self.rounds), len(self.rounds[0].kappa)
        kept = self.rounds[made // 2 :]
        kappa, weights, weight_shapes, parameters, numbers = (
            np.concatenate(part) for part in zip(*kept, strict=True)
        )
        more = max(1, -(-draws // len(kappa)) - 1)
        weight_shapes = np.concatenate([weight_shapes] * more)
        more_weights = draw_levels(weight_shapes, np.array([0, weights.shape[-1]]), rng)
        more_profiles = family.draw(np.concatenate([numbers] * more), rng)
        own, order = list(self.own)[-len(kept) :], np.arange(len(kappa))
        silo_profiles = None
        if own:
            order = own_last(made, chains)
            profiles = np.concatenate(own)
            silo_profiles = SiloProfiles(np.concatenate([*[kappa] * more, kappa[order]]), profiles)
        check = self.checks[-1] if self.checks else None
        values = {
            "log_likelihood": np.array(self.log_likelihood).mean(axis=1),
            "movement": np.array([one.movement for one in self.checks]).reshape(-1, 4),
        }
        moving, worst = check is not None and check.moving, check and check.worst
        return Polished(
            np.concatenate([more_weights, weights[order]]).astype(np.float32),
            np.concatenate([more_profiles, parameters[order]]).astype(np.float32),
            silo_profiles,
            PolishTrace(values, made, moving, chains, worst=worst),
            check.worth if check else np.nan,
        )


class Shared(NamedTuple):
    """Parameters that the silos share, in every chain.

    Attributes
    ----------
    mean : (chain, cluster, parameter), m.
    kappa : (chain, variable), points of `GRID`.
    numbers : (chain, cluster, coordinate), χ that m was drawn from; empty at the start.
    """

    mean: Floats
    kappa: Floats
    numbers: Floats = np.empty(0)


def draw_shared(statistics: Array, shared: Shared, family: Product, rng: Rng) -> Shared:
    """Draw κ given m, then m given κ, both with the silos' own parameters integrated out.

    Parameters
    ----------
    statistics : (silo, chain, cluster, statistic), of the silos' last labels.
    """
    kappa = draw_kappa(statistics, shared, family, rng)
    numbers = family.shared_posterior(statistics, shared.mean, kappa, rng)
    return Shared(family.draw(numbers, rng), kappa, numbers)


def draw_kappa(statistics: Array, shared: Shared, family: Product, rng: Rng) -> Floats:
    """Draw κ of every chain and variable on the grid: (chain, variable)."""
    same = np.isinf(shared.kappa[:, family.leads]).sum(axis=1)
    drifting = int(family.leads.sum()) - same
    # the odds of drift are a ratio of two gammas: a Beta(1, 1) prior, updated
    log_odds = np.log(rng.standard_gamma(1.0 + drifting)) - np.log(rng.standard_gamma(1.0 + same))
    current = np.searchsorted(GRID, shared.kappa)
    return GRID[family.draw_kappa(statistics, shared.mean, current, log_odds, rng)]


def exchange_clusters(
    statistics: Array, weights: Floats, shared: Shared, family: Product, rng: Rng
) -> tuple[Array, Floats]:
    """Exchange the rows and weights of two clusters, in every silo and chain.

    A Metropolis step on the labels with the silo's parameters integrated out: a silo whose clusters
    were matched crosswise can change over, which row by row it never could.

    Parameters
    ----------
    statistics : (silo, chain, cluster, statistic)
    weights : (silo, chain, cluster, …), and whatever else goes with a cluster's rows.
    """
    silos, chains, clusters, _ = statistics.shape
    if clusters < 2:
        return statistics, weights
    a = rng.integers(clusters, size=(silos, chains))
    b = (a + rng.integers(1, clusters, size=(silos, chains))) % clusters
    silo, chain = np.ogrid[:silos, :chains]
    of_a, of_b = statistics[silo, chain, a], statistics[silo, chain, b]
    mean_a, mean_b = shared.mean[chain, a], shared.mean[chain, b]
    gain = (
        family.log_marginal(of_b, mean_a, shared.kappa)
        + family.log_marginal(of_a, mean_b, shared.kappa)
        - family.log_marginal(of_a, mean_a, shared.kappa)
        - family.log_marginal(of_b, mean_b, shared.kappa)
    ).sum(axis=-1)
    moved = gain > np.log(rng.random(gain.shape))
    s, t = np.nonzero(moved)
    statistics, weights = statistics.copy(), weights.copy()
    one, other = a[s, t], b[s, t]
    for array in (statistics, weights):
        array[s, t, one], array[s, t, other] = array[s, t, other], array[s, t, one]
    return statistics, weights
