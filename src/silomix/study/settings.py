"""The options of each step of the method, with their defaults and limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from silomix.study.problems import rule
from silomix.study.record import Record
from silomix.types import Prior, Schedule

LARGEST_WHOLE_NUMBER = 2**63 - 1
"""TOML promises no more to its readers."""

Count = Annotated[int, Field(ge=1, le=LARGEST_WHOLE_NUMBER)]
CountFromZero = Annotated[int, Field(ge=0, le=LARGEST_WHOLE_NUMBER)]
Positive = Annotated[float, Field(gt=0)]


class ModelSettings(Record):
    """The mixture: `[model]`.

    Attributes
    ----------
    components : C⁺, the most clusters a silo can have; labels are stored in one byte.
    alpha, beta : concentrations of the Dirichlet priors of the weights and of the level
        probabilities, for the pooled model.
    fractionate : whether each silo takes the prior to the power 1/S.
    drift : "learn" lets a cluster's profile differ between silos, by an amount that is learned
        for each variable; "none" gives it one profile everywhere, as in Fendler et al. (2026).
    """

    components: Annotated[int, Field(ge=1, le=255)] = 15
    alpha: Positive = Prior.alpha
    beta: Positive = Prior.beta
    fractionate: bool = Prior.fractionate
    drift: Literal["learn", "none"] = "learn"


class ScheduleSettings(Record):
    """How long each silo samples, and what it keeps: `[schedule]`.

    Attributes
    ----------
    iterations : sweeps of each chain, burn-in included; the most of them where `adaptive` is true.
    burn_in : sweeps dropped at the start of each chain.
    chains : chains of each silo.
    thin : one sweep in `thin` is kept after the burn-in.
    adaptive : whether a silo may stop earlier, as soon as its chains agree on the clusters. It
        looks after each of `silomix.Schedule.blocks`; half of a block is burn-in.
    """

    iterations: Count = Schedule.iterations
    burn_in: CountFromZero = Schedule.burn_in
    chains: Count = Schedule.chains
    thin: Count = Schedule.thin
    adaptive: bool = True

    @field_validator("burn_in")
    @classmethod
    def _leave_sweeps(cls, burn_in: int, info: ValidationInfo) -> int:
        iterations = info.data.get("iterations")
        if iterations is not None and burn_in >= iterations:
            raise rule(f"is {burn_in}; it must be less than iterations, {iterations}")
        return burn_in

    @field_validator("thin")
    @classmethod
    def _keep_a_draw(cls, thin: int, info: ValidationInfo) -> int:
        if {"iterations", "burn_in"} <= info.data.keys():
            left = info.data["iterations"] - info.data["burn_in"]
            if thin > left:
                reason = f"the {left} sweeps after the burn-in, or no draw is kept"
                raise rule(f"is {thin}; it must be at most {reason}")
        return thin

    @field_validator("adaptive")
    @classmethod
    def _drop_half(cls, adaptive: bool, info: ValidationInfo) -> bool:  # noqa: FBT001
        if adaptive and {"iterations", "burn_in"} <= info.data.keys():
            half = info.data["iterations"] // 2
            if info.data["burn_in"] != half:
                raise rule(f"is true; then burn_in must be half of the iterations, {half}")
        return adaptive


class LocalSettings(Record):
    """From a silo's draws to its clusters: `[local]`.

    Attributes
    ----------
    partition : "linkage", average linkage on the posterior similarity; "pam", k-medoids.
    one_cluster : whether one cluster, which silhouettes cannot see, is a possible answer.
    threshold : the most rows that are all partitioned directly.
    subsample : rows of a longer table that are, drawn at random; the others are placed by
        their components.
    relabel : "match" takes at each draw the component that overlaps the cluster most; "average"
        takes the mean over the cluster's rows.
    """

    partition: Literal["linkage", "pam"] = "linkage"
    one_cluster: bool = True
    threshold: Count = 10_000
    subsample: Annotated[int, Field(ge=3, le=LARGEST_WHOLE_NUMBER)] = 5_000
    relabel: Literal["match", "average"] = "match"


class MatchingSettings(Record):
    """What every matching shares in `[matching]`.

    Attributes
    ----------
    absorb : whether a group may join another of its own silo that it does not differ from; a
        number lets only groups of fewer rows do so.
    refine : how often to match again with the aggregation's weights, and aggregate again.
    """

    absorb: bool | CountFromZero = True
    refine: CountFromZero = 0


class Hungarian(MatchingSettings):
    """Match clusters one to one with those of a reference silo.

    Examples
    --------
    >>> silomix.Hungarian(absorb=0)
    Hungarian(absorb=0, refine=0, method='hungarian')
    """

    method: Literal["hungarian"] = "hungarian"


class Divergence(MatchingSettings):
    """Match each silo in turn to a running reference, at a cost computed on its own rows.

    Attributes
    ----------
    restarts : orders of the silos to try; the smallest summed divergence wins.
    start : the silo to begin with: the first of the roster, or the most informative.
    reference : the running reference is the plain mean over the silos matched so far, or
        one weighted by precision.

    Examples
    --------
    >>> matching = silomix.Divergence(restarts=5)
    >>> matching.restarts, matching.start
    (5, 'first')
    """

    method: Literal["divergence"] = "divergence"
    restarts: Count = 1
    start: Literal["first", "most-informative"] = "first"
    reference: Literal["mean", "precision"] = "mean"


class Ball(MatchingSettings):
    """Connect clusters whose profiles are closer than a radius.

    Attributes
    ----------
    exponent : of the radius (log n / n)^exponent, n the rows of the silo.
    radius : one radius for every silo instead.

    Examples
    --------
    >>> silomix.Ball(exponent=0.5).exponent
    0.5
    """

    method: Literal["ball"] = "ball"
    exponent: Positive = 0.25
    radius: Positive | None = None


class Evidence(MatchingSettings):
    """Merge groups of clusters while the Dirichlet-multinomial evidence rises.

    Examples
    --------
    >>> silomix.Evidence().absorb
    True
    """

    method: Literal["evidence"] = "evidence"


class Lbfgs(Record):
    """Quasi-Newton on the logarithms of the weights.

    Attributes
    ----------
    starts : starting points; the best objective wins.
    steps : the most steps from each.
    tolerance : stop when a step raises the objective by less.

    Examples
    --------
    >>> silomix.Lbfgs(starts=1).steps
    1000
    """

    method: Literal["lbfgs"] = "lbfgs"
    starts: Count = 3
    steps: Count = 1000
    tolerance: Positive = 1e-4


class Psgd(Record):
    """Projected stochastic gradient, as in Fendler et al. (2026); attributes as in `Lbfgs`.

    Examples
    --------
    >>> silomix.Psgd().tolerance
    0.1
    """

    method: Literal["psgd"] = "psgd"
    starts: Count = 3
    steps: Count = 1000
    tolerance: Positive = 0.1


class FewRounds(Record):
    """Many starting points that travel together, for silos that can answer only a few times.

    Attributes
    ----------
    rounds : the most exchanges with the silos.
    starts : starting points in each exchange; the best objective wins.

    Examples
    --------
    >>> solver = silomix.FewRounds(rounds=5, starts=100)
    >>> solver.rounds * solver.starts
    500
    """

    method: Literal["few-rounds"] = "few-rounds"
    rounds: Count = 10
    starts: Count = 300


Matching = Annotated[Hungarian | Divergence | Ball | Evidence, Field(discriminator="method")]
Solver = Annotated[Lbfgs | Psgd | FewRounds, Field(discriminator="method")]


class Aggregation(Record):
    """How the silos' draws become global draws: `[aggregation]`.

    Attributes
    ----------
    method : "vcmc", weights that maximise the relaxed ELBO; "cmc", inverse variances;
        "uniform"; "product", the product of densities fitted to each silo's draws.
    oracle : where the data term of the objective comes from: rows at the coordinator, the
        silos' own likelihoods and gradients, or counts of distinct rows.
    draws : draws in the objective, a fixed subsample; fewer where rows are many.
    floor : the smallest weight of a silo: without one the objective may have no maximum.
    log_determinant : "coordinates" counts the free coordinates of the silos that hold a
        cluster; "literal" reads the matrices of Fendler et al. (2026) as printed.
    solver : how the objective is maximised.
    """

    method: Literal["vcmc", "cmc", "uniform", "product"] = "vcmc"
    oracle: Literal["pooled", "federated", "contingency"] = "contingency"
    draws: Count = 200
    floor: Positive = 1e-6
    log_determinant: Literal["coordinates", "literal"] = "coordinates"
    solver: Solver = Lbfgs()


class Polish(Record):
    """Exact Gibbs rounds over the silos, from the aggregated draws: `[polish]`.

    Attributes
    ----------
    rounds : how many; "until" the draws stop moving and are worth enough independent ones.
    most : the most rounds under "until".
    inner_sweeps : sweeps inside a silo in each round.
    chains : parallel chains, at least. Many need fewer rounds, few send fewer bytes.
    """

    rounds: Literal["until"] | CountFromZero = "until"
    most: Count = 50
    inner_sweeps: Count = 2
    chains: Annotated[int, Field(ge=2, le=LARGEST_WHOLE_NUMBER)] = 64


MATCHINGS = {
    "hungarian": Hungarian(),
    "divergence": Divergence(),
    "ball": Ball(),
    "evidence": Evidence(),
}
AGGREGATIONS = {
    "vcmc": Aggregation(method="vcmc"),
    "cmc": Aggregation(method="cmc"),
    "uniform": Aggregation(method="uniform"),
    "product": Aggregation(method="product"),
}
SOLVERS = {"lbfgs": Lbfgs(), "psgd": Psgd(), "few-rounds": FewRounds()}
