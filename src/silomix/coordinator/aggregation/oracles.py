"""Where the data term of the objective comes from.

An oracle answers for all silos together: the mean over some of the matched draws of log p(X | θ̂_t),
and its gradient in (λ, μ), at any number of points. Two of them, the same number to rounding:
`contingency` asks every silo once how often each distinct row occurs, `federated` asks every silo
each time and adds up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from silomix.errors import PolicyRefusal
from silomix.kernels.likelihood import distinct_rows, row_table
from silomix.messages import CountDistinctRows, LogLikelihood, LogLikelihoodReply
from silomix.model.families.categorical import mean_log_likelihood

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from silomix.kernels.arrays import Floats, Ints
    from silomix.kernels.likelihood import RowTable
    from silomix.messages import DistinctRows, ShareReleases, Silos
    from silomix.model.draws import MatchedDraws
    from silomix.study import Aggregation

    # the draws, the place of the first among all, λ (start, silo) and μ (start, silo, cluster)
    Oracle = Callable[[MatchedDraws, int, Floats, Floats], LogLikelihoodReply]


def choose_oracle(
    settings: Aggregation, silos: Silos, share: ShareReleases, sizes: Ints, threads: int
) -> Oracle:
    """Return the oracle that the settings name."""
    return (
        federated(silos, share)
        if settings.oracle == "federated"
        else contingency(silos, sizes, threads)
    )


def of_rows(rows: RowTable, threads: int) -> Oracle:
    """Return an oracle for rows that are all here."""
    return lambda matched, _, weights, profiles: LogLikelihoodReply(
        *mean_log_likelihood(matched, weights, profiles, rows, threads)
    )


def contingency(silos: Silos, sizes: Ints, threads: int = 1) -> Oracle:
    """Ask every silo for its distinct rows, once, and return an oracle on all of them."""
    replies: Mapping[str, DistinctRows] = silos.ask(CountDistinctRows())
    ordered = [replies[name] for name in silos.names]
    together = distinct_rows(
        np.concatenate([reply.codes for reply in ordered]),
        np.concatenate([reply.counts for reply in ordered]),
    )
    return of_rows(row_table(*together, sizes), threads)


def federated(silos: Silos, share: ShareReleases) -> Oracle:
    """Return an oracle that asks every silo each time: sums over rows move, and no row.

    The silos are shown the releases once; the questions then carry points alone.
    """
    for release in share.releases:
        if not release.policy["exchanges"]["sharing"]:
            raise PolicyRefusal(
                f"{release.silo}: its policy does not let its release be shown to the other silos, "
                'which the federated oracle needs; choose aggregation "product", "cmc" or '
                '"uniform", or let the policy\'s owner allow exchanges.sharing'
            )
    silos.ask(share)

    def ask(
        matched: MatchedDraws, first: int, weights: Floats, profiles: Floats
    ) -> LogLikelihoodReply:
        last = first + matched.weights.shape[1]
        query = LogLikelihood(share.key, first, last, weights, profiles)
        replies: Mapping[str, LogLikelihoodReply] = silos.ask(query)
        ordered = [replies[name] for name in silos.names]
        return LogLikelihoodReply(
            np.sum([reply.value for reply in ordered], axis=0),
            np.sum([reply.weights for reply in ordered], axis=0),
            np.sum([reply.profiles for reply in ordered], axis=0),
        )

    return ask
