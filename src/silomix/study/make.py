"""From the keywords of a call to a study: words, presets and derived defaults resolved."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import SettingsError
from silomix.study.problems import Problem, file_place, nearest, quote, refusal
from silomix.study.record import Record, validate
from silomix.study.settings import (
    AGGREGATIONS,
    MATCHINGS,
    SOLVERS,
    Aggregation,
    Polish,
    ScheduleSettings,
)
from silomix.study.study import Study

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from silomix.study.problems import KeyPath
    from silomix.types import Schema

KEPT = 2_000
"""Draws that each silo keeps, about, when neither `kept` nor `thin` is given."""

KEYWORDS: dict[str, tuple[str, ...]] = {
    "title": ("title",),
    "seed": ("seed",),
    "strategy": ("strategy",),
    "tier": ("tier",),
    "assign": ("assign",),
    "kept_draws": ("kept_draws",),
    "components": ("model", "components"),
    "alpha": ("model", "alpha"),
    "beta": ("model", "beta"),
    "fractionate": ("model", "fractionate"),
    "drift": ("model", "drift"),
    "iterations": ("schedule", "iterations"),
    "burn_in": ("schedule", "burn_in"),
    "chains": ("schedule", "chains"),
    "thin": ("schedule", "thin"),
    "adaptive": ("schedule", "adaptive"),
    "kept": ("schedule", "kept"),
    "partition": ("local", "partition"),
    "one_cluster": ("local", "one_cluster"),
    "threshold": ("local", "threshold"),
    "subsample": ("local", "subsample"),
    "relabel": ("local", "relabel"),
    "matching": ("matching", "method"),
    "absorb": ("matching", "absorb"),
    "refine": ("matching", "refine"),
    "aggregation": ("aggregation", "method"),
    "oracle": ("aggregation", "oracle"),
    "log_determinant": ("aggregation", "log_determinant"),
    "solver": ("aggregation", "solver", "method"),
    "polish": ("polish", "rounds"),
}
"""Where each keyword of a call stands in the study file; `kept` becomes `thin` on the way."""

WORDS: dict[str, Mapping[str, Record]] = {
    "matching": MATCHINGS,
    "aggregation": AGGREGATIONS,
    "solver": SOLVERS,
    "polish": {},
}
"""The keywords that take a record of options, and the records that have a word."""

PRESETS: dict[str, dict[str, object]] = {
    "paper": {
        "components": 15,
        "alpha": 0.5,
        "beta": 0.5,
        "fractionate": True,
        "drift": "none",
        "iterations": 50_000,  # the burn-in is half of them, as for any study
        "adaptive": False,
        "chains": 1,
        "kept": 5_000,
        "partition": "pam",
        "one_cluster": False,
        "relabel": "average",
        "matching": "ball",
        "absorb": 0,
        "aggregation": "vcmc",
        "oracle": "contingency",
        "log_determinant": "literal",
        "solver": "psgd",
        "polish": 0,
        "strategy": "consensus",
        "assign": "matching",
    },
    "files": {
        "tier": "summary",
        "aggregation": "product",
        "polish": 0,
    },
    "network": {
        "oracle": "federated",
        "polish": Polish(chains=400),
    },
}
"""Named sets of keywords: "paper" is the method of Fendler et al. (2026); "files" is for silos that
answer by hand: one trip for their summaries and one for the rows, and it asks nothing that the
default policy of a silo refuses; "network" is for silos that are online: no distinct rows travel,
and many chains make few rounds."""


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
    settings : those of `KEYWORDS`, by word or, where there are options, by record. Left out,
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
    chosen = _state(PRESETS[preset]) if preset else {}
    stated = _state({"seed": seed, **settings})
    chosen = _without_other_solver(chosen, stated)
    if stated.keys() >= {KEYWORDS["thin"], KEYWORDS["kept"]}:
        raise SettingsError("thin and kept both say what a silo keeps; give one of them")
    methods = _state({"matching": Study.model_fields["matching"].default})
    methods |= _state({"solver": Aggregation().solver})
    document = _nest(_derive_start(_derive_schedule(methods | chosen | stated))) | {
        "missing": schema.missing,
        "silos": silos,
        "variables": [{"name": v.name, "levels": v.levels} for v in schema.variables],
    }
    place = partial(_keyword_place, document)
    return validate(Study, document, source="the study", place=place)


def _check_keywords(preset: str | None, settings: Mapping[str, object]) -> None:
    """Refuse keywords that are no settings, and presets that nobody made."""
    problems = [Problem((key,), _unknown(key)) for key in settings if key not in KEYWORDS]
    if preset is not None and preset not in PRESETS:
        words = " or ".join(map(repr, PRESETS))
        problems.append(Problem(("preset",), f"is {quote(preset)}; it must be {words}"))
    if problems:
        raise SettingsError(refusal("the study", problems, partial(file_place, {})))


def _unknown(keyword: str) -> str:
    if keyword == "missing":
        return "is part of the schema; make the schema with it"
    near = nearest(keyword, KEYWORDS)
    hint = f"did you mean {near!r}?" if near else f"the settings are {', '.join(KEYWORDS)}"
    return f"is not a setting of a study; {hint}"


def _state(keywords: Mapping[str, object]) -> dict[KeyPath, object]:
    """Return the value that the keywords give to each place in the study file."""
    stated: dict[KeyPath, object] = {}
    for keyword, value in keywords.items():
        for path, leaf in _leaves(keyword, value):
            if path in stated:
                both = f"{quote(stated[path])} and {quote(leaf)}"
                raise SettingsError(f"{_keyword_place({}, path)} is given twice, as {both}")
            stated[path] = leaf
    return stated


def _without_other_solver(
    chosen: Mapping[KeyPath, object], stated: Mapping[KeyPath, object]
) -> dict[KeyPath, object]:
    """Return a preset's choices without its solver's options where the call names another."""
    method = KEYWORDS["solver"]
    same = stated.get(method, chosen.get(method)) == chosen.get(method)
    return {path: value for path, value in chosen.items() if same or path[:-1] != method[:-1]}


def _leaves(keyword: str, value: object) -> Iterator[tuple[KeyPath, object]]:
    """Yield the places one keyword fills: several when it is a record of options."""
    path = KEYWORDS[keyword]
    if keyword in WORDS and isinstance(value, str):
        value = WORDS[keyword].get(value, value)
    if keyword in WORDS and isinstance(value, Record):
        yield from _options(path, value)
    else:
        yield path, value


def _options(path: KeyPath, record: Record) -> Iterator[tuple[KeyPath, object]]:
    """Yield what a record says at `path`, and the other options that its maker chose.

    The options left at their defaults are not stated: a preset may fill them.
    """
    *table, main = path
    for name in type(record).model_fields:
        if name == main or name in record.model_fields_set:
            value = getattr(record, name)
            if isinstance(value, Record):
                yield from _options((*table, name, "method"), value)
            else:
                yield (*table, name), value


def _derive_schedule(values: dict[KeyPath, object]) -> dict[KeyPath, object]:
    """Fill in the burn-in and the thinning from the numbers that were given.

    Numbers that make no sense are left for the validation to name.
    """
    values = dict(values)
    stated_kept = values.pop(KEYWORDS["kept"], KEPT)
    kept = _whole(stated_kept, 1)
    if kept is None:
        raise SettingsError(f"kept is {quote(stated_kept)}; it must be a whole number, at least 1")
    iterations = _whole(values.get(KEYWORDS["iterations"], ScheduleSettings().iterations), 1)
    chains = _whole(values.get(KEYWORDS["chains"], ScheduleSettings().chains), 1)
    is_fixed = values.get(KEYWORDS["strategy"]) == "exact"
    is_fixed |= not values.keys().isdisjoint({KEYWORDS["burn_in"], KEYWORDS["thin"]})
    values.setdefault(KEYWORDS["adaptive"], not is_fixed)
    if iterations is not None:
        burn_in = _whole(values.setdefault(KEYWORDS["burn_in"], iterations // 2), 0)
        if chains is not None and burn_in is not None:
            values.setdefault(KEYWORDS["thin"], default_thin(iterations, burn_in, chains, kept))
    return values


def _derive_start(values: dict[KeyPath, object]) -> dict[KeyPath, object]:
    """Let the aggregation be as exact as a polish that follows needs: it forgets its start.

    Without a polish the weights of the silos are the answer, and are found to full accuracy.
    """
    polished = values.get(KEYWORDS["polish"], Polish().rounds) != 0
    if not polished or values[KEYWORDS["solver"]] != "lbfgs":
        return values
    solver = KEYWORDS["solver"][:-1]
    rough = {(*solver, "starts"): 1, (*solver, "tolerance"): 0.2, ("aggregation", "draws"): 40}
    return rough | values


def _whole(value: object, least: int) -> int | None:
    """Return a whole number that is large enough; anything else is None."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return None
    return int(value) if value >= least else None


def _nest(values: Mapping[KeyPath, object]) -> dict[str, Any]:
    """Return the values as the tables of a study file."""
    document: dict[str, Any] = {}
    for (*tables, last), value in values.items():
        table = document
        for name in tables:
            table = table.setdefault(str(name), {})
        table[str(last)] = value
    return document


def _keyword_place(document: Mapping[str, object], path: KeyPath) -> str:
    """Return how the caller would name a place: by its keyword, if it has one."""
    named = (keyword for keyword, place in KEYWORDS.items() if place == path)
    return next(named, None) or file_place(document, path)
