"""Methods: their options, and registries of the functions that carry them out.

    MATCHINGS.register(Evidence, match_by_evidence)

is all that makes `matching="evidence"` a choice, in every program that reads the study. A function
may be named instead, "package.module:function": it is imported when it is first called, so a silo
that only reads the study file never imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, SerializeAsAny

from silomix.model.sentences import did_you_mean
from silomix.study.validation import Record, quote, rule

# Largest integer that every TOML reader must accept.
LARGEST_WHOLE_NUMBER = 2**63 - 1

Count = Annotated[int, Field(ge=1, le=LARGEST_WHOLE_NUMBER)]
CountFromZero = Annotated[int, Field(ge=0, le=LARGEST_WHOLE_NUMBER)]
Positive = Annotated[float, Field(gt=0)]
# Panels of a command's help page.
SAMPLER, METHOD, OUTPUT = "The sampler", "The coordinator", "Output"


def keyword(default: object, panel: str | None = None, **details: object) -> Any:
    """Declare a setting that is a keyword of `fit`; its record's docstring is its help text.

    Parameters
    ----------
    default : its value when it is left out.
    panel : its panel of the commands' help pages; None if it is not an option.
    details : `paper=`, its value under `preset="paper"` where that is not the default;
        `derived=True` where `make_study` derives the value from others, as its text explains.
    """
    extra: dict[str, Any] = {"panel": panel, **details}
    return Field(default, json_schema_extra=extra)


class Asked(NamedTuple):
    """What a method asks of the silos.

    Attributes
    ----------
    questions : class names of the messages.
    words : what they ask for, for people.
    times : how many questions each silo gets, at most; None where nobody can say.
    points : at how many points one of them may be.
    """

    questions: tuple[str, ...]
    words: str
    times: int | None
    points: int = 1


class Registered(NamedTuple):
    """A method: the class of its options, and its function or the name of it."""

    record: type[Any]
    function: Callable[..., Any] | str


# What is said of a word that is like none.
UNREGISTERED = "; register one of your own first"


class Registry(dict[str, Registered]):
    """The methods of one kind, by word."""

    def register(self, record: type[Method], function: Callable[..., Any] | str) -> None:
        """Add a method; its word is the default of the record's `method`."""
        self[record.model_fields["method"].default] = Registered(record, function)

    def function(self, settings: Method) -> Callable[..., Any]:
        """Function that carries out the method with these options."""
        function = self[settings.method].function
        return resolve_name(function) if isinstance(function, str) else function

    def parse(self, value: object) -> object:
        """Turn a table of options into the record of the method that it names."""
        if not isinstance(value, dict | Method):
            return value
        word = value.get("method") if isinstance(value, dict) else value.method
        if word is None:
            raise rule("is missing", key="method")
        if not isinstance(word, str) or word not in self:
            hint = (did_you_mean(word, self) if isinstance(word, str) else "") or UNREGISTERED
            words = ", ".join(map(repr, self))
            raise rule(f"is {quote(word)}; it must be one of {words}{hint}", key="method")
        return self[word].record.model_validate(value)


class Method(Record):
    """Options of a method, which is chosen by a word.

    Attributes
    ----------
    method : the word.
    methods : the registry of its kind.
    """

    methods: ClassVar[Registry]

    method: str

    def asks(self, silos: int) -> Asked | None:
        """Questions of the method to each of so many silos; None for nothing."""


MATCHINGS, AGGREGATIONS, SOLVERS = Registry(), Registry(), Registry()


class Matching(Method):
    """Settings that every matching has in `[matching]`, and facts about it that a study needs.

    Attributes
    ----------
    absorb : Join similar clusters; N: only those under N rows; 0: none.
    refine : Extra passes of matching and aggregation, reusing the weights.
    by_evidence : whether it finds other groups under other evidence, as of another drift.
    one_to_one : whether every cluster is assigned to one of a single silo's.
    known_clusters : options that have other defaults where the number of clusters is known.
    """

    methods: ClassVar = MATCHINGS
    by_evidence: ClassVar[bool] = False
    one_to_one: ClassVar[bool] = False
    known_clusters: ClassVar[dict[str, object]] = {}

    absorb: bool | CountFromZero = keyword(True, METHOD, paper=0)
    refine: CountFromZero = keyword(0)


class Evidence(Matching):
    """Merges groups of clusters while the evidence for them rises.

    Examples
    --------
    >>> silomix.Evidence().absorb
    True
    """

    by_evidence: ClassVar = True

    method: Literal["evidence"] = "evidence"


class Solver(Method):
    """How the weights of an aggregation are found: what every solver has.

    Attributes
    ----------
    starts : starting points; the best objective wins.
    from_sizes : whether the first of them is at the silos' sizes.
    before_polish : options that have other defaults where a polish follows.
    together : whether the objective is evaluated at all of them at a time.
    exchanges : how often it is evaluated, at most; None where nobody can say.
    """

    methods: ClassVar = SOLVERS
    from_sizes: ClassVar[bool] = True
    together: ClassVar[bool] = True
    before_polish: ClassVar[dict[str, object]] = {}

    starts: Count = 3

    @property
    def exchanges(self) -> int | None:
        """Unknown where the solver stops by itself."""
        return None


class Lbfgs(Solver):
    """Quasi-Newton on the logarithms of the weights.

    Attributes
    ----------
    steps : maximum steps from each starting point.
    tolerance : stop when a step raises the objective by less.

    Examples
    --------
    >>> silomix.Lbfgs(starts=1).steps
    1000
    """

    together: ClassVar = False
    before_polish: ClassVar = {"starts": 1, "tolerance": 0.2}

    method: Literal["lbfgs"] = "lbfgs"
    steps: Count = 1000
    tolerance: Positive = 1e-4


class Aggregation(Method):
    """How the silos' draws become global draws: `[aggregation]`, with the options of its method.

    Attributes
    ----------
    averages : whether global draws are means of the silos' draws.
    own_profiles : whether a silo whose release was rounded knows its clusters better than the
        global profiles do, and assigns its rows by its own.
    """

    methods: ClassVar = AGGREGATIONS
    averages: ClassVar[bool] = True
    own_profiles: ClassVar[bool] = False


class Vcmc(Aggregation):
    """Makes weighted means of the draws; the weights maximise a relaxed evidence lower bound.

    Attributes
    ----------
    oracle : contingency sends distinct rows; federated only sums.
    draws : draws in the objective, a fixed subsample.
    floor : smallest weight of a silo: without one the objective may have no maximum.
    log_determinant : coordinates (counts only silos with the cluster), or literal.
    solver : lbfgs; psgd; few-rounds for slow exchanges.
    """

    method: Literal["vcmc"] = "vcmc"
    oracle: Literal["federated", "contingency"] = keyword("contingency", METHOD)
    draws: Count = 200
    floor: Positive = 1e-6
    log_determinant: Literal["coordinates", "literal"] = keyword("coordinates", paper="literal")
    solver: Annotated[SerializeAsAny[Solver], BeforeValidator(SOLVERS.parse)] = keyword(
        Lbfgs(), METHOD, paper="psgd"
    )

    def asks(self, silos: int) -> Asked | None:
        """Oracle's questions; one silo has nothing to weigh."""
        if silos == 1:
            return None
        if self.oracle == "contingency":
            words = "its distinct rows and how often each occurs: its table, except for the order"
            return Asked(("CountDistinctRows",), words, 1)
        words = "sums over its rows: a log-likelihood and its gradient; all silos see its release"
        times = None if self.solver.exchanges is None else 1 + self.solver.exchanges
        points = self.solver.starts if self.solver.together else 1
        return Asked(("ShareReleases", "LogLikelihood"), words, times, points)


class DensityProduct(Aggregation):
    """Multiplies densities that are fitted to the draws."""

    averages: ClassVar = False
    own_profiles: ClassVar = True

    method: Literal["product"] = "product"


MATCHINGS.register(Evidence, "silomix.coordinator.matching.greedy:match_by_evidence")
SOLVERS.register(Lbfgs, "silomix.coordinator.aggregation:lbfgs")
AGGREGATIONS.register(Vcmc, "silomix.coordinator.aggregation:maximise_elbo")
AGGREGATIONS.register(DensityProduct, "silomix.coordinator.aggregation:draw_product")


class Polish(Record):
    """Exact Gibbs rounds over the silos, from the aggregated draws: `[polish]`.

    Attributes
    ----------
    rounds : how many, or until: they stop when the draws no longer move and their effective
        sample size is large enough.
    most : maximum rounds under until.
    most_bytes : What a silo may send under until: tables (fifty times the smallest, a megabyte at
        least), any (default of fit), or bytes, 4 a number. Fewer chains come before fewer rounds.
    inner_sweeps : sweeps inside a silo in each round.
    chains : minimum parallel chains. Many need fewer rounds, few send fewer bytes.
    """

    main: ClassVar[str] = "rounds"

    rounds: Literal["until"] | CountFromZero = "until"
    most: Count = 200
    most_bytes: Literal["tables", "any"] | Count = keyword("tables", derived=True)
    inner_sweeps: Count = 2
    chains: Annotated[int, Field(ge=2, le=LARGEST_WHOLE_NUMBER)] = 64

    @property
    def last(self) -> int:
        """Largest number of rounds."""
        return self.most if self.rounds == "until" else self.rounds
