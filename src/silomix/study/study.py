"""The study: every setting its result depends on, in the tables of `study.toml`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from silomix.study.names import (
    check_distinct,
    check_roster,
    check_silo,
    check_text,
    check_writable,
)
from silomix.study.problems import rule
from silomix.study.record import Record
from silomix.study.settings import (
    LARGEST_WHOLE_NUMBER,
    Aggregation,
    CountFromZero,
    Evidence,
    LocalSettings,
    Matching,
    ModelSettings,
    Polish,
    ScheduleSettings,
)
from silomix.types import Missing, Prior, Schedule, Schema, Variable

FORMAT: Literal[1] = 1
Text = Annotated[str, AfterValidator(check_text)]
Title = Annotated[str, AfterValidator(check_writable)]
SiloName = Annotated[str, AfterValidator(check_silo)]


class VariableSettings(Record):
    """One variable that every silo has, and its levels in the order of their codes."""

    name: Text
    levels: Annotated[tuple[Text, ...], AfterValidator(check_distinct)]


class Study(Record):
    """Every setting of a federated study: one study gives one result on every machine.

    Attributes
    ----------
    format : of the study file.
    title : free text, the one setting outside the digest.
    seed : of all randomness.
    strategy : "consensus" samples in each silo and aggregates; "exact" runs the pooled sampler
        over the silos, round by round.
    tier : what a silo releases of its posterior: a "summary" or thinned "draws".
    assign : rows get the "posterior"'s most probable cluster, or that of their local cluster
        by "matching".
    kept_draws : the fewest draws of the global posterior; strategy "exact" keeps those of its
        schedule.
    missing : what a missing cell means, as in `Schema`.
    silos : the roster, in the order that random streams are dealt in.
    model, schedule, local, matching, aggregation, polish : the tables of the file.
    variables : the schema every silo shares.
    """

    format: Literal[1] = FORMAT
    title: Title | None = None
    seed: CountFromZero = 0
    strategy: Literal["consensus", "exact"] = "consensus"
    tier: Literal["summary", "draws"] = "draws"
    assign: Literal["posterior", "matching"] = "posterior"
    kept_draws: Annotated[int, Field(ge=1000, le=LARGEST_WHOLE_NUMBER)] = 1000
    missing: Missing = Schema.missing
    silos: Annotated[tuple[SiloName, ...], AfterValidator(check_roster)]
    model: ModelSettings = ModelSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    local: LocalSettings = LocalSettings()
    matching: Matching = Evidence()
    aggregation: Aggregation = Aggregation()
    polish: Polish = Polish()
    variables: tuple[VariableSettings, ...]

    @field_validator("aggregation")
    @classmethod
    def _fit_the_floor(cls, aggregation: Aggregation, info: ValidationInfo) -> Aggregation:
        silos = len(info.data.get("silos", ()))
        if silos > 1 and silos * aggregation.floor >= 1:
            text = f"is {aggregation.floor}; with {silos} silos it must be below 1/{silos}"
            raise rule(text, key="floor")
        return aggregation

    @field_validator("variables")
    @classmethod
    def _tell_variables_apart(
        cls, variables: tuple[VariableSettings, ...]
    ) -> tuple[VariableSettings, ...]:
        check_distinct(tuple(variable.name for variable in variables))
        return variables

    @property
    def table_schema(self) -> Schema:
        """The variables, their levels, and what a missing cell means."""
        variables = tuple(Variable(v.name, v.levels) for v in self.variables)
        return Schema(variables, self.missing)

    @property
    def prior(self) -> Prior:
        """The priors of the pooled model."""
        return Prior(self.model.alpha, self.model.beta, self.model.fractionate)

    @property
    def drifts(self) -> bool:
        """Whether a cluster's profile may differ between silos; never with one silo."""
        return self.model.drift == "learn" and len(self.silos) > 1

    @property
    def sampling(self) -> Schedule:
        """How long each silo samples, and what it keeps."""
        return Schedule(**self.schedule.model_dump())
