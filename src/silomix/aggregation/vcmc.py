"""Variational consensus Monte Carlo: choose the aggregation weights by the relaxed ELBO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import numpy as np

from silomix.aggregation.matched import STREAM, some_draws
from silomix.aggregation.objective import Objective
from silomix.aggregation.oracles import contingency, federated
from silomix.aggregation.simplex import hypercube, join
from silomix.aggregation.solvers import few_rounds, lbfgs, psgd
from silomix.errors import PolicyRefusal
from silomix.study.settings import FewRounds, Lbfgs, Psgd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from silomix.aggregation.oracles import Oracle
    from silomix.aggregation.solvers import Solution
    from silomix.messages import ShareReleases, Silos
    from silomix.release import Release
    from silomix.study import Aggregation
    from silomix.types import Correspondence, MatchedDraws, Prior

STARTS, STEPS = 1, 2
"""Branches of the random stream: where to start, and which draws a stochastic step looks at."""


MOST_ROW_DRAWS = 10_000_000
"""Rows times draws that the objective looks at: beyond, the solvers would take hours."""
LEAST_DRAWS = 48


def objective_draws(draws: int, rows: int) -> int:
    """Return how many draws the objective takes: fewer than asked for where rows are many."""
    return min(draws, max(LEAST_DRAWS, MOST_ROW_DRAWS // max(rows, 1)))


@dataclass(frozen=True, eq=False)
class Model:
    """What the objective needs besides the silos.

    Attributes
    ----------
    prior : of the pooled model.
    sizes : (variable,), K_q.
    rows : of all silos.
    seed : of the starting points and of stochastic steps.
    threads : cores to use; they do not change the result.
    """

    prior: Prior
    sizes: NDArray[np.int64]
    rows: int
    seed: int
    threads: int


def solve(
    matched: MatchedDraws,
    size_point: NDArray[np.float64],
    settings: Aggregation,
    silos: Silos,
    share: ShareReleases,
    model: Model,
) -> Solution:
    """Maximise the relaxed ELBO on the first draws, as many as `objective_draws` says.

    "lbfgs" and "few-rounds" start at the silos' sizes and then from a Latin hypercube: with
    three exchanges a good start is worth more than a hundred random ones. The paper starts from
    the hypercube alone, and so does "psgd".

    Parameters
    ----------
    size_point : (silo, block), from `size_weights`.
    share : what the silos are shown if they are asked about points.
    """
    objective = Objective(
        matched=some_draws(matched, 0, objective_draws(settings.draws, model.rows)),
        oracle=choose_oracle(settings, silos, share, model),
        prior=model.prior,
        sizes=model.sizes,
        log_determinant=settings.log_determinant,
    )
    solver, floor = settings.solver, settings.floor
    rng = np.random.default_rng([model.seed, STREAM, STARTS])
    if isinstance(solver, Psgd):
        steps = np.random.default_rng([model.seed, STREAM, STEPS])
        return psgd(objective, hypercube(solver.starts, objective.held, rng), solver, floor, steps)
    others = hypercube(solver.starts - 1, objective.held, rng)
    starts = np.concatenate([size_point[None], others])
    if isinstance(solver, Lbfgs):
        return lbfgs(objective, starts, solver, floor)
    if isinstance(solver, FewRounds):
        return few_rounds(objective, starts, solver, floor)
    assert_never(solver)


def choose_oracle(
    settings: Aggregation, silos: Silos, share: ShareReleases, model: Model
) -> Oracle:
    """Return the oracle that the settings name."""
    if settings.oracle == "federated":
        check_may_be_shown(share.releases)
        return federated(silos, share)
    return contingency(silos, model.sizes, model.threads)


def check_may_be_shown(releases: Sequence[Release]) -> None:
    """Refuse to show a release to the other silos where its silo's policy does not allow it."""
    for release in releases:
        if not release.policy["exchanges"]["sharing"]:
            raise PolicyRefusal(
                f"{release.silo}: its policy does not let its release be shown to the other silos, "
                'which the federated oracle needs; choose aggregation "product", "cmc" or '
                '"uniform", or let the policy\'s owner allow exchanges.sharing'
            )


def size_weights(rows: NDArray[np.int64], correspondence: Correspondence) -> NDArray[np.float64]:
    """Return the point λ_s ∝ n_s, μ_{s,c} ∝ rows of cluster c in silo s: (silo, block)."""
    members = np.zeros(correspondence.held.shape)
    for s, (group, sizes) in enumerate(
        zip(correspondence.groups, correspondence.sizes, strict=True)
    ):
        np.add.at(members[s], group, np.maximum(sizes, 1))
    return join(rows / rows.sum(), members / members.sum(axis=0))
