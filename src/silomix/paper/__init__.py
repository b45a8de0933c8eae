"""The methods of Fendler et al. (2026) that are not the defaults.

Matchings, aggregations, and solvers of the aggregation's objective. They come in through the
registries that any other package can use, and nothing imports their functions.

What runs next to the rows cannot be here: the partition "pam", the relabelling "average" and the
assignment by matching are in `silomix.silo`, and the costs of "divergence" in `silomix.messages`.
The "literal" log-determinants are in `silomix.coordinator.aggregation.objective`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from silomix.study import methods


class Hungarian(methods.Matching):
    """Matches clusters one to one with those of a reference silo.

    Examples
    --------
    >>> silomix.Hungarian(absorb=0)
    Hungarian(method='hungarian', absorb=0, refine=0)
    """

    one_to_one: ClassVar = True

    method: Literal["hungarian"] = "hungarian"


class Divergence(methods.Matching):
    """Matches each silo in turn to a running reference, at a cost computed on its own rows.

    Attributes
    ----------
    restarts : orders of the silos to try; the smallest divergence wins.
    start : the silo to begin with.
    reference : of the silos matched so far: their plain mean, or one weighted by precision.

    Examples
    --------
    >>> matching = silomix.Divergence(restarts=5)
    >>> matching.restarts, matching.start
    (5, 'first')
    """

    method: Literal["divergence"] = "divergence"
    restarts: methods.Count = 1
    start: Literal["first", "most-informative"] = "first"
    reference: Literal["mean", "precision"] = "mean"

    def asks(self, silos: int) -> methods.Asked:
        """Question of each silo but the first, in each of the orders."""
        words = "how well the clusters of others fit its rows"
        return methods.Asked(("DivergenceCost",), words, self.restarts * (silos - 1))


class Ball(methods.Matching):
    """Connects clusters whose profiles are closer than a radius.

    Attributes
    ----------
    exponent : of the radius (log n / n)^exponent, for n rows.
    radius : one radius for every silo instead.

    Examples
    --------
    >>> silomix.Ball(exponent=0.5).exponent
    0.5
    """

    # (log n / n)^(1/2) for a finite mixture: the discussion of the paper
    known_clusters: ClassVar = {"exponent": 0.5}

    method: Literal["ball"] = "ball"
    exponent: methods.Positive = 0.25
    radius: methods.Positive | None = None


class Cmc(methods.Aggregation):
    """Makes weighted means of the draws, with weights by inverse variance."""

    method: Literal["cmc"] = "cmc"


class Uniform(methods.Aggregation):
    """Makes means of the draws, in which all silos with a cluster count alike."""

    method: Literal["uniform"] = "uniform"


class Psgd(methods.Solver):
    """Projected stochastic gradient, as in Fendler et al. (2026).

    Attributes
    ----------
    steps : maximum steps from each starting point.
    tolerance : stop when a step raises the objective by less.

    Examples
    --------
    >>> silomix.Psgd().tolerance
    0.1
    """

    from_sizes: ClassVar = False

    method: Literal["psgd"] = "psgd"
    steps: methods.Count = 1000
    tolerance: methods.Positive = 0.1


class FewRounds(methods.Solver):
    """Many starting points that travel together, for silos that can answer only a few times.

    Attributes
    ----------
    rounds : maximum exchanges with the silos.
    starts : starting points in each; the best objective wins.

    Examples
    --------
    >>> solver = silomix.FewRounds(rounds=5, starts=100)
    >>> solver.rounds * solver.starts
    500
    """

    method: Literal["few-rounds"] = "few-rounds"
    rounds: methods.Count = 10
    starts: methods.Count = 300

    @property
    def exchanges(self) -> int:
        """One a round."""
        return self.rounds


methods.MATCHINGS.register(Hungarian, "silomix.paper.matchings:hungarian_groups")
methods.MATCHINGS.register(Divergence, "silomix.paper.matchings:divergence_groups")
methods.MATCHINGS.register(Ball, "silomix.paper.matchings:ball_groups")
methods.AGGREGATIONS.register(Cmc, "silomix.paper.aggregations:by_inverse_variance")
methods.AGGREGATIONS.register(Uniform, "silomix.paper.aggregations:alike")
methods.SOLVERS.register(Psgd, "silomix.paper.aggregations:psgd")
methods.SOLVERS.register(FewRounds, "silomix.paper.aggregations:few_rounds")
