"""Every setting of a study, declared once: name, type, default, the paper's value, purpose.

The keywords of `fit`, the tables of `study.toml`, the options of the commands and the tables of the
documentation follow from these records; what a setting is for is in the docstring of its record.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializeAsAny,
    model_serializer,
    model_validator,
)

from silomix.families import KINDS, has_drift, make_family
from silomix.model.columns import SPIKE_LEVELS
from silomix.model.draws import Schedule
from silomix.model.schema import MISSING_LEVEL, Missing, PooledModel, Prior, Schema, Variable
from silomix.model.sentences import did_you_mean, listing
from silomix.study.methods import (
    AGGREGATIONS,
    LARGEST_WHOLE_NUMBER,
    MATCHINGS,
    METHOD,
    OUTPUT,
    SAMPLER,
    UNREGISTERED,
    Aggregation,
    Asked,
    Count,
    CountFromZero,
    Evidence,
    Matching,
    Polish,
    Positive,
    Vcmc,
    keyword,
)
from silomix.study.validation import (
    Record,
    check_distinct,
    check_roster,
    check_silo,
    check_text,
    check_writable,
    quote,
    rule,
)

Text = Annotated[str, AfterValidator(check_text)]
Writable = Annotated[str, AfterValidator(check_writable)]

OF_CATEGORIES = ("levels", "source", "edges", "other")
OF_NUMBERS = ("location", "scale", "transform")


def _check_kind(kind: str) -> str:
    # a study file comes from elsewhere: it can name a class, and never have one imported
    if kind not in KINDS:
        words, hint = ", ".join(map(repr, KINDS)), did_you_mean(kind, KINDS) or UNREGISTERED
        raise rule(f"is {quote(kind)}; it must be one of {words}{hint}")
    return kind


class VariableSettings(Record):
    """One variable that every silo has: `[[variables]]`, with the keys that its kind needs.

    The keys are those of `Variable`; None where the kind has no such key.
    """

    name: Text
    kind: Annotated[str, AfterValidator(_check_kind)] = "categorical"
    levels: Annotated[tuple[Text, ...], AfterValidator(check_distinct)] | None = None
    location: float | None = None
    scale: Annotated[float, Field(gt=0)] | None = None
    transform: Literal["none", "log", "logit"] | None = None
    spike: float | None = None
    source: Text | None = None
    edges: tuple[float, ...] | None = None
    prior: tuple[float, Annotated[float, Field(gt=0)]] | None = None
    na_values: Annotated[tuple[Writable, ...], AfterValidator(check_distinct)] | None = None
    other: Text | None = None

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        is_category, is_parameter = KINDS[self.kind].has_levels, self.kind == "parameter"
        for key in ("levels",) if is_category else OF_NUMBERS:
            if getattr(self, key) is None:
                raise rule("is missing", key=key)
        foreign = OF_NUMBERS if is_category else OF_CATEGORIES
        for key in foreign if is_parameter else (*foreign, "prior"):
            if getattr(self, key) is not None:
                raise rule(f"is not a setting of a {self.kind} variable", key=key)
        if self.transform == "logit" and not is_parameter:
            raise rule("is 'logit'; it must be 'none' or 'log'", key="transform")
        if is_category:
            self._check_levels()
        elif KINDS[self.kind].units == "raw":
            self._check_raw(KINDS[self.kind].word, KINDS[self.kind].support)
        return self

    def _check_levels(self) -> None:
        """Refuse levels that do not fit the numbers that they are cut from."""
        levels = tuple(level for level in self.levels or () if level != MISSING_LEVEL)
        if (self.source is None) != (self.spike is None):
            raise rule("and spike need each other; give both or none", key="source")
        if self.spike is not None and levels != SPIKE_LEVELS:
            raise rule(f"must be {list(SPIKE_LEVELS)}, since there is a spike", key="levels")
        if self.spike is not None and self.edges is not None:
            raise rule("cuts numbers, and so does spike; give one of them", key="edges")
        made_of_numbers = self.edges is not None or self.spike is not None
        if self.other is not None and (made_of_numbers or self.other not in levels):
            raise rule("must be one of the levels, and none of them cut from numbers", key="other")
        if self.edges is not None:
            is_rising = all(low < high for low, high in pairwise(self.edges))
            if not self.edges or not is_rising or len(levels) != len(self.edges) + 1:
                text = "must be one number fewer than there are levels, each above the one before"
                raise rule(text, key="edges")

    def _check_raw(self, word: str, support: str) -> None:
        if support != "all" and not (self.location or 0) > 0:
            raise rule(f"is {self.location}; the mean of {word} must be above 0", key="location")
        if (self.scale, self.transform) != (1, "none"):
            key = "scale" if self.scale != 1 else "transform"
            raise rule(f"changes {word}; it must be 1.0, and transform 'none'", key=key)

    @model_serializer(mode="wrap")
    def _own_keys(self, dump: Any) -> dict[str, Any]:
        """Leave out the keys that the kind does not have, and "categorical" itself."""
        left_out = {"kind": "categorical"}
        return {k: v for k, v in dump(self).items() if v is not None and left_out.get(k) != v}


def describe(variable: Variable) -> dict[str, Any]:
    """Keys of a variable, as in a study file."""
    foreign = OF_NUMBERS if variable.levels else OF_CATEGORIES
    stated = {key: value for key, value in asdict(variable).items() if key not in foreign}
    return {key: value for key, value in stated.items() if value not in (None, "", ())}


def check_variables(variables: tuple[VariableSettings, ...]) -> tuple[VariableSettings, ...]:
    """Check the variables: refuse duplicate names, kinds out of order, and a column used twice.

    A spike and the numbers beside it may share a column. Cut in many ways, a column would disclose
    single rows, since each release is rounded separately.
    """
    check_distinct(tuple(variable.name for variable in variables))
    places = [list(KINDS).index(variable.kind) for variable in variables]
    if places != sorted(places):
        raise rule(f"must be in the order of their kinds: {', '.join(KINDS)}")
    read: dict[str, VariableSettings] = {}
    for variable in variables:
        column = variable.source or variable.name
        twin = read.setdefault(column, variable)
        # categories come first
        split = twin.source and not variable.levels and twin.spike == variable.spike
        split = split and twin.na_values == variable.na_values
        if twin is not variable and not split:
            names = f"{quote(twin.name)} and {quote(variable.name)} are both made of the column"
            raise rule(f"cannot be used: {names} {quote(column)}; leave one of them out")
        read[column] = variable
    return variables


FORMAT: Literal[1] = 1

SiloName = Annotated[str, AfterValidator(check_silo)]


class ModelSettings(Record):
    """The mixture: `[model]`.

    Attributes
    ----------
    components : More than the number of clusters you expect; spare ones stay empty.
    clusters : The number of clusters, if it is known and every silo has all of them.
    alpha : Prior on cluster sizes; smaller for fewer clusters.
    beta : Prior on levels; 1 is uniform, more is smoother.
    fractionate : Whether each of S silos takes the prior to the power 1/S.
    drift : learn (how far the silos' profiles differ), or none (they are equal).
    """

    components: Annotated[int, Field(ge=1, le=255)] = keyword(15, SAMPLER)
    clusters: Annotated[int, Field(ge=2, le=255)] | None = keyword(None, SAMPLER)
    alpha: Positive = keyword(Prior.alpha, SAMPLER)
    beta: Positive = keyword(Prior.beta, SAMPLER)
    fractionate: bool = keyword(Prior.fractionate)
    drift: Literal["learn", "none"] = keyword("learn", SAMPLER, paper="none")

    @model_serializer(mode="wrap")
    def _known(self, dump: Any) -> dict[str, Any]:
        """Leave out an unknown number of clusters: older files and digests had none."""
        return {name: value for name, value in dump(self).items() if value is not None}


class ScheduleSettings(Record):
    """Sampling schedule of each silo: `[schedule]`.

    Attributes
    ----------
    iterations : Sweeps per chain (maximum if adaptive); raise if the verdict asks.
    burn_in : Sweeps dropped at the start; half by default.
    chains : Chains per silo; 1 cannot detect missed modes.
    thin : Keep one sweep in N; the default leaves about 2000 draws.
    adaptive : Whether a silo stops when its chains agree; off if burn_in or thin is given.
    """

    iterations: Count = keyword(Schedule.iterations, SAMPLER, paper=50_000)
    burn_in: CountFromZero = keyword(Schedule.burn_in, SAMPLER, derived=True)
    chains: Count = keyword(Schedule.chains, SAMPLER, paper=1)
    thin: Count = keyword(Schedule.thin, SAMPLER, derived=True)
    adaptive: bool = keyword(True, paper=False)

    @model_validator(mode="after")
    def _check_sweeps(self) -> Self:
        remaining, half = self.iterations - self.burn_in, self.iterations // 2
        if remaining < 1:
            text = f"is {self.burn_in}; it must be less than iterations, {self.iterations}"
            raise rule(text, key="burn_in")
        if self.thin > remaining:
            reason = f"the {remaining} sweeps after the burn-in, or no draw is kept"
            raise rule(f"is {self.thin}; it must be at most {reason}", key="thin")
        if self.adaptive and self.burn_in != half:
            text = f"is true; then burn_in must be half of the iterations, {half}"
            raise rule(text, key="adaptive")
        return self


class LocalSettings(Record):
    """Steps from a silo's draws to its clusters: `[local]`.

    Attributes
    ----------
    partition : linkage, or pam (needs the extra pam).
    one_cluster : Whether a single cluster, which silhouettes cannot detect, is allowed.
    threshold : Tables of at most this many rows are partitioned directly.
    subsample : How many rows of long tables to partition; others join rows that share components.
    relabel : match, or average (its intervals are too narrow).
    """

    partition: Literal["linkage", "pam"] = keyword("linkage", SAMPLER, paper="pam")
    one_cluster: bool = keyword(True, paper=False)
    threshold: Count = keyword(10_000)
    subsample: Annotated[int, Field(ge=3, le=LARGEST_WHOLE_NUMBER)] = keyword(5_000)
    relabel: Literal["match", "average"] = keyword("match", SAMPLER, paper="average")


class Study(Record):
    """Every setting of a federated study: one study gives one result on every machine.

    Attributes
    ----------
    format : of the study file.
    title : Free text; does not affect the digest.
    seed : A whole number; same seed, same result.
    strategy : consensus, or exact (an exchange for every sweep).
    tier : What a silo releases: draws, or a summary of them.
    assign : How rows are labelled: by posterior, or by matching.
    kept_draws : Minimum number of draws of the posterior; "exact" keeps those of its schedule.
    missing : what a missing cell means, as in `Schema`.
    rows : by silo, its approximate number of rows; a release of others is refused.
    matching : evidence; ball; divergence; hungarian, if a silo has all clusters.
    aggregation : vcmc; product (by file, if policies round); cmc; uniform.
    polish : until (the draws settle), or a number of rounds; 0 for none.
    """

    format: Literal[1] = FORMAT
    title: Writable | None = keyword(None, OUTPUT)
    seed: CountFromZero = keyword(0, SAMPLER)
    strategy: Literal["consensus", "exact"] = keyword("consensus", METHOD)
    tier: Literal["summary", "draws"] = keyword("draws", METHOD)
    assign: Literal["posterior", "matching"] = keyword("posterior", METHOD, paper="matching")
    kept_draws: Annotated[int, Field(ge=1000, le=LARGEST_WHOLE_NUMBER)] = keyword(1000)
    missing: Missing = Schema.missing
    silos: Annotated[tuple[SiloName, ...], AfterValidator(check_roster)]
    rows: dict[str, Count] | None = None
    model: ModelSettings = ModelSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    local: LocalSettings = LocalSettings()
    matching: Annotated[SerializeAsAny[Matching], BeforeValidator(MATCHINGS.parse)] = keyword(
        Evidence(), METHOD, paper="ball"
    )
    aggregation: Annotated[SerializeAsAny[Aggregation], BeforeValidator(AGGREGATIONS.parse)] = (
        keyword(Vcmc(), METHOD)
    )
    polish: Polish = keyword(Polish(), METHOD, paper=0)
    variables: Annotated[tuple[VariableSettings, ...], AfterValidator(check_variables)]

    @model_serializer(mode="wrap")
    def _stated(self, dump: Any) -> dict[str, Any]:
        """Leave out numbers of rows that are not stated: older files and digests had none."""
        return {k: v for k, v in dump(self).items() if k != "rows" or v is not None}

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        silos, floor = self.silos, getattr(self.aggregation, "floor", 0.0)
        if len(silos) > 1 and len(silos) * floor >= 1:
            text = f"is {floor}; with {len(silos)} silos it must be below 1/{len(silos)}"
            raise rule(text, key="aggregation.floor")
        for name in self.rows or ():
            if name not in silos:
                text = f"names {quote(name)}{did_you_mean(name, silos)}, which is not a silo"
                raise rule(text, key="rows")
        if self.table_schema.numbers and "CountDistinctRows" in self.questions:
            text = "is contingency; distinct rows of numbers are the rows: it must be federated"
            raise rule(text, key="oracle")
        same = [v.name for v in self.table_schema.variables if not has_drift(v.kind)]
        if same and self.drifts:
            text = f"is 'learn', but the kind of {listing(same)} has no drift; it must be 'none'"
            raise rule(text, key="drift")
        clusters, matching = self.model.clusters, self.matching
        stated = {
            "components": (self.model.components, clusters),
            "one_cluster": (self.local.one_cluster, False),
            "absorb": (matching.absorb, 0),
        }
        for key, (value, needed) in stated.items():
            if clusters is not None and value != needed:
                text = f"is {quote(value)}; where clusters is {clusters} it must be {quote(needed)}"
                raise rule(text, key=key)
        return self

    @cached_property  # every question asks for it; no `model_copy` changes what it is made of
    def table_schema(self) -> Schema:
        """The variables, their levels, and the treatment of missing cells."""
        return Schema(tuple(Variable(**v.model_dump()) for v in self.variables), self.missing)

    @property
    def pooled_model(self) -> PooledModel:
        """Prior, family and seed of the model of all silos' rows together."""
        return PooledModel(self.prior, make_family(self.table_schema, self.prior), self.seed)

    @property
    def prior(self) -> Prior:
        """The priors of the pooled model."""
        return Prior(self.model.alpha, self.model.beta, self.model.fractionate)

    @property
    def drifts(self) -> bool:
        """Whether a cluster's profile may differ between silos; never with one silo."""
        return self.model.drift == "learn" and len(self.silos) > 1

    @property
    def asked(self) -> tuple[Asked, ...]:
        """What the matching and the aggregation ask of the silos."""
        methods = (self.matching, self.aggregation) if self.strategy == "consensus" else ()
        return tuple(filter(None, (method.asks(len(self.silos)) for method in methods)))

    @property
    def questions(self) -> set[str]:
        """Class names of the messages in which they ask."""
        return {name for one in self.asked for name in one.questions}

    @property
    def most_rounds(self) -> int:
        """Largest number of rounds in which silos draw labels for the coordinator."""
        return self.schedule.iterations if self.strategy == "exact" else self.polish.last

    @property
    def sampling(self) -> Schedule:
        """The sampling schedule of each silo."""
        return Schedule(**self.schedule.model_dump())
