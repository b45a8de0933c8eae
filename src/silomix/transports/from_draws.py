"""Silos that answer from draws made elsewhere, and the log-likelihoods that their owners wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.coordinator.aggregation.simplex import blocks_held, join, split
from silomix.errors import DataError
from silomix.messages import (
    AssignReply,
    AssignRows,
    LogLikelihood,
    LogLikelihoodReply,
    Query,
    Received,
    Release,
    SampleLocally,
    ShareReleases,
    by_silo,
)
from silomix.messages.released_draws import shared_draws
from silomix.model.families.mixing import mix, some_draws

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from silomix.kernels.arrays import Floats
    from silomix.study import Study

    # weights (draw, cluster), and by name parameters (draw, cluster), to (draw,)
    LogDensity = Callable[[Floats, Mapping[str, Floats]], Floats]

# of a difference quotient, in an aggregation weight
STEP = 1e-5


class GivenDraws:
    """The silos of draws made elsewhere; satisfies `silomix.messages.Silos`.

    Attributes
    ----------
    names : the roster, in order.
    """

    def __init__(
        self, study: Study, releases: Sequence[Release], functions: Mapping[str, LogDensity]
    ) -> None:
        self.names = study.silos
        self._releases = dict(zip(study.silos, releases, strict=True))
        self._model, self._functions = study.pooled_model, functions
        self._shared: ShareReleases | None = None

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask every silo one query, or each of the named silos its own."""
        return {name: self._answer(name, own) for name, own in by_silo(query, self.names).items()}

    def _answer(self, name: str, query: Query) -> Any:
        if isinstance(query, SampleLocally):
            return self._releases[name]
        if isinstance(query, ShareReleases):
            self._shared = query
            return Received()
        if isinstance(query, LogLikelihood):
            return self._log_likelihood(name, query)
        if isinstance(query, AssignRows):
            # nobody knows the rows
            return AssignReply(np.full(query.weights.shape[1], -1))
        raise NotImplementedError(type(query).__name__)

    def _log_likelihood(self, name: str, query: LogLikelihood) -> LogLikelihoodReply:
        """Return the mean log-likelihood at points, and its gradient by difference quotients.

        The aggregation weights are few, so that no derivative is asked of the silo's function.
        """
        assert self._shared is not None
        matched = some_draws(shared_draws(self._shared, self._model), query.first, query.last)
        family, held = self._model.family, blocks_held(matched.held)
        names = [variable.name for variable in family.variables]

        def value(point: Floats) -> float:
            weights, parameters = mix(matched, *split(point), family)
            described = np.moveaxis(np.asarray(family.describe(parameters)), -1, 0)
            by_name = dict(zip(names, described, strict=True))
            found = np.asarray(
                self._functions[name](weights / weights.sum(axis=1, keepdims=True), by_name)
            )
            if found.shape != (len(weights),) or not np.isfinite(found).all():
                raise DataError(
                    f"{name}: its log_likelihood returned an array of shape {found.shape}, or "
                    f"infinities; it must return a finite number for each of {len(weights)} draws"
                )
            return float(found.mean())

        points = join(query.weights, query.profiles)
        values = np.array([value(point) for point in points])
        gradient = np.zeros(points.shape)
        for start, *place in np.argwhere(np.broadcast_to(held, points.shape)):
            moved = points[start].copy()
            moved[*place] += STEP
            gradient[start, *place] = (value(moved) - values[start]) / STEP
        return LogLikelihoodReply(values, *split(gradient))
