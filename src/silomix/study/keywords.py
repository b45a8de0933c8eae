"""Turn the keywords of a call into a study: words, presets and derived defaults."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple, TypeVar, get_args

from silomix.errors import SettingsError
from silomix.model.schema import Schema, Variable
from silomix.model.sentences import at_least, check_mapping, did_you_mean, one_of
from silomix.study.methods import MATCHINGS, SOLVERS, Method, Polish
from silomix.study.settings import Study, describe
from silomix.study.validation import KeyPath, Record, quote, refusal, validate

F = TypeVar("F", bound="Callable[..., Any]")

# Names of a keyword in scikit-learn, StepMix, poLCA, PReMiuM, mclust, Stan and PyMC.
CALLED_ELSEWHERE = {
    "clusters components": "n_clusters n_components n_classes nclass nclusters nClus k K G",
    "seed random_state": "random_state seed rng set_seed",
    "iterations": "max_iter maxiter n_iter num_iter nSweeps n_samples num_samples draws",
    "burn_in": "nBurn burnin n_burn tune warmup num_warmup",
    "chains": "n_init nrep n_chains num_chains nstart",
    "threads": "n_jobs n_threads cores n_cores workers",
    "progress verbose": "verbose progress progress_bar progressbar",
    "variables": "columns features covNames vars formula",
    "exclude": "drop drop_columns ignore excluded",
    "id": "ids index index_col id_column",
    "kinds kind": "measurement xModel covariance_type categorical_features modelNames",
    "na_values na_value": "na_values na_value na na_strings missing_values missing_codes",
    "silo": "site sites group groups hospital centre center",
    "frequency": "sample_weight freq",
}

# Approximate number of draws that a silo keeps when neither `kept` nor `thin` is given.
KEPT = 2_000


class Setting(NamedTuple):
    """A keyword of `fit`.

    Attributes
    ----------
    path : its place in the study file.
    type : the annotated type of its value; a word or a record where there are options.
    default : its value when it is left out; None where it is derived from others.
    text : which value to choose, and why.
    panel : the panel of the commands' help pages; None if it is not an option.
    paper : the paper's value; None if it is the default.
    """

    path: tuple[str, ...]
    type: Any
    default: Any
    text: str
    panel: str | None = None
    paper: Any = None

    @property
    def words(self) -> tuple[str, ...]:
        """Words that it accepts, the default first."""
        values = dict.fromkeys([self.default, *_inside(self.type)])
        return tuple(word for word in values if isinstance(word, str))

    @property
    def kind(self) -> type:
        """Type of a value that is not a record; int where it may be a number or a word."""
        types = [self.type, *_inside(self.type)]
        return next((kind for kind in (int, float, bool) if kind in types), str)

    @property
    def help(self) -> str:
        """Purpose, default, and the paper's value."""
        values = {"default": self.default, "paper:": self.paper}
        notes = [f"{label} {value}".lower() for label, value in values.items() if value is not None]
        return f"{self.text.removesuffix('.')} ({'; '.join(notes)})." if notes else self.text


def _inside(annotation: Any) -> Iterator[Any]:
    """Yield the types inside an annotation; of a record, those of its main setting."""
    if isinstance(annotation, type) and issubclass(annotation, Method):
        yield from annotation.methods
        return
    if isinstance(annotation, type) and issubclass(annotation, Record):
        annotation = annotation.model_fields[annotation.main].annotation
    for inner in get_args(annotation):
        yield inner
        yield from _inside(inner)


def _declared(record: type[Record], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Setting]]:
    """Yield the keywords that a record and its inner records declare."""
    for name, field in record.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Record)]
        extra: Any = field.json_schema_extra
        if extra is not None:
            main = (tables[0].main,) if tables else ()
            default = getattr(field.default, main[0]) if main else field.default
            default = None if extra.get("derived") else default
            details = field.description or "", extra["panel"], extra.get("paper")
            yield name, Setting((*path, name, *main), field.annotation, default, *details)
        for table in tables:
            methods = getattr(table, "methods", {})
            for one in [method.record for method in methods.values()] or [table]:
                yield from _declared(one, (*path, name))


# Every keyword, as declared; those of methods that share a table appear once.
SETTINGS: dict[str, Setting] = dict(_declared(Study))
KEPT_HELP = "About how many draws each silo keeps; sets thin; not in study files."
SETTINGS["kept"] = Setting(("schedule", "kept"), int, KEPT, KEPT_HELP, paper=5_000)
PATHS: dict[str, KeyPath] = {name: setting.path for name, setting in SETTINGS.items()}

# Defaults when the number of clusters is known. No component is spare, so the prior of the weights
# need not empty any: it is uniform, as is a silo's fraction of it, and the largest that silos'
# policies allow.
KNOWN_CLUSTERS = {"alpha": 1.0, "matching": "hungarian", "absorb": 0, "one_cluster": False}

# Named sets of keywords: "paper" is the method of Fendler et al. (2026); "files" is for silos that
# answer by hand: one trip for their summaries and one for the rows, and it asks nothing that the
# default policy of a silo refuses; "network" is for silos that are online: no distinct rows travel,
# and many chains make few rounds.
PRESETS: dict[str, dict[str, object]] = {
    "paper": {name: one.paper for name, one in SETTINGS.items() if one.paper is not None},
    "files": {"tier": "summary", "aggregation": "product", "polish": 0},
    "network": {"oracle": "federated", "polish": Polish(chains=400)},
}


def show_keywords(function: F, keywords: Mapping[str, object] | None = None) -> F:
    """Document in signature and docstring what a function accepts as `**settings`.

    `keywords` are names with their defaults; by default the settings of a study.
    """
    own = [p for p in signature(function).parameters.values() if p.kind != p.VAR_KEYWORD]
    named = {p.name for p in own}
    defaults = keywords or {name: p.default for name, p in SETTINGS.items()}
    shown = {name: default for name, default in defaults.items() if name not in named}
    own += [Parameter(name, Parameter.KEYWORD_ONLY, default=shown[name]) for name in shown]
    function.__signature__ = Signature(own)  # type: ignore[attr-defined]
    lines = [f"    {name} : {SETTINGS[name].help}" for name in shown if name in SETTINGS]
    function.__doc__ = (function.__doc__ or "").replace("    **settings", "\n".join(lines))
    return function


def default_thin(iterations: int, burn_in: int, chains: int, kept: int = KEPT) -> int:
    """Widest thinning that keeps `kept` draws of a silo over all its chains.

    A run too short for that many draws is not thinned.
    """
    of_each_chain = -(-kept // chains)
    return max(1, (iterations - burn_in) // of_each_chain)


def make_study(
    schema: Schema,
    silos: Sequence[str],
    *,
    preset: str | None = None,
    seed: int = 0,
    rows: Mapping[str, int] | None = None,
    other: str | None = None,
    **settings: object,
) -> Study:
    """Resolve the keywords of a call into a study.

    Parameters
    ----------
    schema : the variables every silo has.
    silos : their names, in the order that random streams are dealt in.
    preset : "paper" for the method of Fendler et al. (2026), "files" for silos that answer by
        file, "network" for silos that are online; other keywords override it.
    rows : by silo, its approximate number of rows; other numbers are refused by the coordinator.
    other : a level for values that are not among a variable's levels; it is added where it is
        absent. Without it such values are refused.
    settings : those of `fit`, by word or, where there are options, by record. By default
        `burn_in` is half of `iterations` and `thin` keeps about `kept` draws of each silo.

    Raises
    ------
    SettingsError
        When a keyword is unknown or a value is outside its limits.

    Examples
    --------
    >>> study = silomix.make_study(draws.shard.schema, ["north", "south"], seed=1, polish=3)
    >>> study.silos, study.polish.rounds, study.schedule.iterations
    (('north', 'south'), 3, 20000)
    """
    if not isinstance(schema, Schema):
        raise SettingsError(
            f"schema is of type {type(schema).__name__}; give the table_schema of a study, or of a "
            "table silomix.model.table.infer_schema(table, silo='hospital'), where the column "
            "hospital names the silos"
        )
    check_keywords(preset, settings, SETTINGS)
    stated = _state({"seed": seed, **settings})
    if stated.keys() >= {PATHS["thin"], PATHS["kept"]}:
        text = "{thin} and {kept} both say what a silo keeps; give one of them"
        raise SettingsError(text, thin=None, kept=None)
    methods = _state({"matching": "evidence", "aggregation": "vcmc", "solver": "lbfgs"})
    if schema.numbers:
        methods |= _state({"oracle": "federated"})  # distinct rows of numbers would be the rows
    if (clusters := stated.get(PATHS["clusters"])) is not None:
        methods |= _state(KNOWN_CLUSTERS)
        with suppress(SettingsError):  # of what makes no sense, the validation complains once
            methods |= _state({"components": at_least("clusters", clusters, 2)})
    values = methods | (_state(PRESETS[preset]) if preset else {}) | stated
    values = {path: v for path, v in values.items() if path in stated or _fits(path, values)}
    document: dict[str, Any] = {
        "missing": schema.missing,
        "silos": silos,
        "variables": [describe(_with_other(variable, other)) for variable in schema.variables],
    }
    if rows is not None:
        document["rows"] = {**check_mapping("rows", rows, "silo")}
    values = _derive_options(_derive_schedule(values))
    for (*tables, key), value in values.items():
        table = document
        for name in tables:
            table = table.setdefault(str(name), {})
        table[str(key)] = value
    # a table of options goes by the word that chooses it
    keywords = {path[:-1]: name for name, path in PATHS.items() if path[-1] == "method"}
    keywords |= {path: name for name, path in PATHS.items()}
    return validate(Study, document, source="these settings", keywords=keywords)


def _with_other(variable: Variable, other: str | None) -> Variable:
    """A variable with a level for unknown values, unless it is made of numbers."""
    is_plain = bool(variable.levels) and variable.spike is None and not variable.edges
    if other is None or not is_plain:
        return variable
    return replace(variable, levels=tuple(dict.fromkeys((*variable.levels, other))), other=other)


def check_keywords(preset: str | None, names: Collection[str], known: Collection[str]) -> None:
    """Reject unknown keywords and presets."""
    if preset is not None:
        one_of("preset", preset, PRESETS)
    unknown = [name for name in names if name not in known]
    if unknown:
        problems = [((name,), f"is not a keyword{meant(name, known)}") for name in unknown]
        raise refusal("these settings", problems)


def meant(name: str, known: Collection[str]) -> str:
    """Hint at the keyword that an unknown one probably meant; all of them where that is unclear."""
    if ours := called_here(name, known):
        return f" (here it is {' or '.join(map(repr, ours))})"
    return did_you_mean(name, known) or f"; the keywords are {', '.join(known)}"


def called_here(name: str, known: Collection[str]) -> list[str]:
    """Our names for a keyword of other programs."""
    for ours, theirs in CALLED_ELSEWHERE.items():
        if name.casefold() in theirs.casefold().split():
            return [word for word in ours.split() if word in known]
    return []


def _state(keywords: Mapping[str, object]) -> dict[KeyPath, Any]:
    """Values that the keywords give, by place in the study file."""
    stated: dict[KeyPath, Any] = {}
    for keyword, value in keywords.items():
        for path, leaf in _leaves(PATHS[keyword], value):
            if path in stated:
                name = next(name for name in PATHS if PATHS[name] == path)
                values = f"{quote(stated[path])} and {quote(leaf)}"
                raise SettingsError(f"{{{name}}} is given twice, as {values}", **{name: None})
            stated[path] = leaf
    return stated


def _leaves(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, object]]:
    """Yield the places that a keyword fills; of a record, its main setting and those chosen.

    Options left at their defaults are not stated: a preset may fill them.
    """
    *table, key = path
    if not isinstance(value, Record) or key != value.main:
        yield path, value
        return
    for name in {value.main: None, **dict.fromkeys(value.model_fields_set)}:
        inner = getattr(value, name)
        nested = (name, inner.main) if isinstance(inner, Record) else (name,)
        yield from _leaves((*table, *nested), inner)


def _derive_schedule(values: dict[KeyPath, Any]) -> dict[KeyPath, Any]:
    """Derive the burn-in and the thinning from the numbers that were given.

    Invalid numbers are left to the validation.
    """
    kept = at_least("kept", values.pop(PATHS["kept"], KEPT), 1)
    is_fixed = values.get(PATHS["strategy"]) == "exact"
    is_fixed |= not values.keys().isdisjoint({PATHS["burn_in"], PATHS["thin"]})
    values.setdefault(PATHS["adaptive"], not is_fixed)
    for name in ("iterations", "chains"):
        values.setdefault(PATHS[name], SETTINGS[name].default)
    try:
        iterations = at_least("", values[PATHS["iterations"]], 1)
        chains = at_least("", values[PATHS["chains"]], 1)
        burn_in = at_least("", values.setdefault(PATHS["burn_in"], iterations // 2), 0)
    except SettingsError:
        return values
    return {PATHS["thin"]: default_thin(iterations, burn_in, chains, kept)} | values


def _fits(path: KeyPath, values: Mapping[KeyPath, Any]) -> bool:
    """Whether the method that was chosen has this option: a default must not go to another."""
    methods = getattr(Study.model_fields[str(path[0])].annotation, "methods", {})
    chosen = _chosen(methods, values.get((path[0], "method")))
    return chosen is None or path[1] in chosen.model_fields


def _chosen(methods: Mapping[str, Any], word: object) -> Any:
    """Record of a method; None for what the validation will refuse."""
    return methods[word].record if isinstance(word, str) and word in methods else None


def _derive_options(values: dict[KeyPath, Any]) -> dict[KeyPath, Any]:
    """Fill in options of the methods whose defaults depend on the rest of the study.

    The aggregation is as exact as a polish that follows needs: it forgets its start. Without a
    polish the weights of the silos are the answer, and are found to full accuracy.
    """
    derived: dict[KeyPath, Any] = {}
    solver = _chosen(SOLVERS, values.get(PATHS["solver"]))
    if solver and solver.before_polish and values.get(PATHS["polish"], Polish().rounds) != 0:
        derived["aggregation", "draws"] = 40
        derived |= {(*PATHS["solver"][:-1], name): v for name, v in solver.before_polish.items()}
    matching = _chosen(MATCHINGS, values[PATHS["matching"]])
    if matching and values.get(PATHS["clusters"]) is not None:
        derived |= {("matching", name): value for name, value in matching.known_clusters.items()}
    return derived | values
