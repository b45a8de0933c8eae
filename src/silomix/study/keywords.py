"""From the keywords of a call to a study: words, presets and derived defaults resolved."""

from __future__ import annotations

from contextlib import suppress
from inspect import Parameter, Signature, signature
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

from silomix.errors import SettingsError
from silomix.model.sentences import nearest
from silomix.study.settings import Evidence, Lbfgs, Polish, Study
from silomix.study.validation import Problem, Record, quote, refusal, validate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from silomix.model.schema import Schema
    from silomix.study.validation import KeyPath

F = TypeVar("F", bound="Callable[..., Any]")

# Draws that each silo keeps, about, when neither `kept` nor `thin` is given.
KEPT = 2_000


class Setting(NamedTuple):
    """A keyword of `fit`.

    Attributes
    ----------
    path : where it stands in the study file.
    type : what its value may be, as annotated; a word and a record where `is_record`.
    default : when it is left out; None where it is derived from others.
    text : which value to choose, and why.
    panel : of the commands' help pages; None for no option.
    extra : `paper`, if the paper's value is another.
    """

    path: tuple[str, ...]
    type: Any
    default: Any
    text: str
    panel: str | None
    extra: Mapping[str, Any]

    @property
    def words(self) -> tuple[str, ...]:
        """The words that it takes, the default first."""
        found = dict.fromkeys([self.default, *_inside(self.type)])
        return tuple(word for word in found if isinstance(word, str))

    @property
    def kind(self) -> type:
        """The type of a value that is no record; int where it may be a number or a word."""
        inside = [self.type, *_inside(self.type)]
        return next((kind for kind in (int, float, bool) if kind in inside), str)

    @property
    def help(self) -> str:
        """What it is for, its default, and the paper's value."""
        told = [] if self.default is None else [f"default {_plainly(self.default)}"]
        if "paper" in self.extra:
            told.append(f"the paper's {_plainly(self.extra['paper'])}")
        return f"{self.text.removesuffix('.')} ({', '.join(told)})." if told else self.text


def _inside(annotation: Any) -> Iterator[Any]:
    """Yield what stands inside an annotation; of a record, inside that of its main setting."""
    if isinstance(annotation, type) and issubclass(annotation, Record):
        annotation = annotation.model_fields[annotation.main].annotation
    for inner in get_args(annotation) or ():
        yield inner
        yield from _inside(inner)


def _plainly(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _declared(record: type[Record], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Setting]]:
    """Yield the keywords that a record declares, and those that records inside it declare."""
    for name, field in record.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Record)]
        extra: dict[str, Any] = dict(field.json_schema_extra or {})  # type: ignore[arg-type]
        if "panel" in extra:
            panel, derived = extra.pop("panel"), extra.pop("derived", False)
            main = (tables[0].main,) if tables else ()
            default = getattr(field.default, main[0]) if main else field.default
            default = None if derived else default
            text, place = field.description or "", (*path, name, *main)
            yield name, Setting(place, field.annotation, default, text, panel, extra)
        for table in tables:
            yield from _declared(table, (*path, name))


SETTINGS: dict[str, Setting] = dict(_declared(Study))
# Every keyword, from where it is declared; those of methods that share a table once.
SETTINGS["kept"] = Setting(
    ("schedule", "kept"),
    int,
    KEPT,
    "Draws that each silo keeps, about; sets thin, and stands in no file.",
    None,
    {"paper": 5_000},
)

# Named sets of keywords: "paper" is the method of Fendler et al. (2026); "files" is for silos that
# answer by hand: one trip for their summaries and one for the rows, and it asks nothing that the
# default policy of a silo refuses; "network" is for silos that are online: no distinct rows travel,
# and many chains make few rounds.
PRESETS: dict[str, dict[str, object]] = {
    "paper": {n: s.extra["paper"] for n, s in SETTINGS.items() if "paper" in s.extra},
    "files": {"tier": "summary", "aggregation": "product", "polish": 0},
    "network": {"oracle": "federated", "polish": Polish(chains=400)},
}


def _path(name: str) -> KeyPath:
    return SETTINGS[name].path


def settings_table() -> str:
    """Return every setting as the documentation shows it: a table in Markdown."""
    lines = ["| keyword | default | paper | in `study.toml` | what it is for |", "|---" * 5 + "|"]
    for name, one in SETTINGS.items():
        *tables, key = one.path
        place = f"`[{'.'.join(tables)}] {key}`" if tables else f"`{key}`"
        values = [one.default, one.extra.get("paper")]
        cells = [f"`{name}`", *("" if value is None else _plainly(value) for value in values)]
        cells += ["" if name == "kept" else place, one.text]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def show_keywords(function: F, keywords: Mapping[str, object] | None = None) -> F:
    """Show what a function takes as `**settings` in its signature and docstring.

    `keywords` are names with their defaults; when left out, the settings of a study.
    """
    own = [one for one in signature(function).parameters.values() if one.kind != one.VAR_KEYWORD]
    named = {one.name for one in own}
    defaults = keywords or {name: one.default for name, one in SETTINGS.items()}
    shown = {name: default for name, default in defaults.items() if name not in named}
    own += [Parameter(name, Parameter.KEYWORD_ONLY, default=shown[name]) for name in shown]
    function.__signature__ = Signature(own)  # type: ignore[attr-defined]
    lines = [f"    {name} : {SETTINGS[name].help}" for name in shown if name in SETTINGS]
    function.__doc__ = (function.__doc__ or "").replace("    **settings", "\n".join(lines))
    return function


def default_thin(iterations: int, burn_in: int, chains: int, kept: int = KEPT) -> int:
    """Return the widest thinning that keeps `kept` draws of a silo over all its chains.

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
    **settings: object,
) -> Study:
    """Resolve the keywords of a call into a study.

    Parameters
    ----------
    schema : the variables every silo has.
    silos : their names, in the order that random streams are dealt in.
    preset : "paper" for the method of Fendler et al. (2026), "files" for silos that answer by
        file, "network" for silos that are online; other keywords win over it.
    settings : those of `fit`, by word or, where there are options, by record. Left out,
        `burn_in` is half of `iterations` and `thin` keeps about `kept` draws of each silo.

    Raises
    ------
    SettingsError
        When a keyword is unknown or a value is out of its limits.

    Examples
    --------
    >>> study = silomix.make_study(draws.shard.schema, ["north", "south"], seed=1, polish=3)
    >>> study.silos, study.polish.rounds, study.schedule.iterations
    (('north', 'south'), 3, 20000)
    """
    _check_keywords(preset, settings)
    stated = _state({"seed": seed, **settings})
    if stated.keys() >= {_path("thin"), _path("kept")}:
        raise SettingsError(
            "{thin} and {kept} both say what a silo keeps; give one of them", thin=None, kept=None
        )
    methods = _state({"matching": Evidence(), "solver": Lbfgs()})
    values = methods | (_state(PRESETS[preset]) if preset else {}) | stated
    document: dict[str, Any] = {
        "missing": schema.missing,
        "silos": silos,
        "variables": [{"name": v.name, "levels": v.levels} for v in schema.variables],
    }
    for (*tables, last), value in _derive_start(_derive_schedule(values)).items():
        table = document
        for name in tables:
            table = table.setdefault(str(name), {})
        table[str(last)] = value
    keywords: dict[KeyPath, str] = {setting.path: name for name, setting in SETTINGS.items()}
    return validate(Study, document, source="these settings", keywords=keywords)


def _check_keywords(preset: str | None, settings: Mapping[str, object]) -> None:
    """Refuse keywords that are no settings, and presets that nobody made."""
    problems = [Problem((key,), _unknown(key)) for key in settings if key not in SETTINGS]
    if preset is not None and preset not in PRESETS:
        words = " or ".join(map(repr, PRESETS))
        problems.append(Problem(("preset",), f"is {quote(preset)}; it must be {words}"))
    if problems:
        raise refusal("these settings", problems, {}, {("preset",): "preset"})


def _unknown(keyword: str) -> str:
    if keyword == "missing":
        return "is part of the schema; make the schema with it"
    near = nearest(keyword, SETTINGS)
    hint = f"did you mean {near!r}?" if near else f"the settings are {', '.join(SETTINGS)}"
    return f"is not a setting of a study; {hint}"


def _state(keywords: Mapping[str, object]) -> dict[KeyPath, object]:
    """Return the value that the keywords give to each place in the study file."""
    stated: dict[KeyPath, object] = {}
    for keyword, value in keywords.items():
        for path, leaf in _leaves(_path(keyword), value):
            if path in stated:
                name = next(name for name, setting in SETTINGS.items() if setting.path == path)
                both = f"{quote(stated[path])} and {quote(leaf)}"
                raise SettingsError(f"{{{name}}} is given twice, as {both}", (), **{name: None})
            stated[path] = leaf
    return stated


def _leaves(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, object]]:
    """Yield the places one keyword fills: of a record of options, its main one and those chosen.

    The options left at their defaults are not stated: a preset may fill them.
    """
    *table, last = path
    if not isinstance(value, Record) or last != value.main:
        yield path, value
        return
    for name in type(value).model_fields:
        if name == value.main or name in value.model_fields_set:
            inner = getattr(value, name)
            nested = (name, inner.main) if isinstance(inner, Record) else (name,)
            yield from _leaves((*table, *nested), inner)


def _derive_schedule(values: dict[KeyPath, object]) -> dict[KeyPath, object]:
    """Fill in the burn-in and the thinning from the numbers that were given.

    Numbers that make no sense are left for the validation to name.
    """
    kept: Any = values.pop(_path("kept"), KEPT)
    if isinstance(kept, bool) or not hasattr(kept, "__index__") or kept < 1:
        raise SettingsError(
            f"{{kept}} is {quote(kept)}; it must be a whole number, at least 1", kept=None
        )
    is_fixed = values.get(_path("strategy")) == "exact"
    is_fixed |= not values.keys().isdisjoint({_path("burn_in"), _path("thin")})
    values.setdefault(_path("adaptive"), not is_fixed)
    given: Any = [
        values.setdefault(_path(name), SETTINGS[name].default) for name in ("iterations", "chains")
    ]
    with suppress(TypeError, ZeroDivisionError):
        iterations, chains = map(index, given)
        burn_in: Any = values.setdefault(_path("burn_in"), iterations // 2)
        thin = default_thin(iterations, index(burn_in), chains, index(kept))
        values.setdefault(_path("thin"), thin)
    return values


def _derive_start(values: dict[KeyPath, object]) -> dict[KeyPath, object]:
    """Let the aggregation be as exact as a polish that follows needs: it forgets its start.

    Without a polish the weights of the silos are the answer, and are found to full accuracy.
    """
    polished = values.get(_path("polish"), Polish().rounds) != 0
    if not polished or values[_path("solver")] != "lbfgs":
        return values
    solver = _path("solver")[:-1]
    rough = {(*solver, "starts"): 1, (*solver, "tolerance"): 0.2, ("aggregation", "draws"): 40}
    return rough | values
