"""Fit a table of which some variables are numbers, and put parameters into the study's units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from silomix.api import gather_assignment
from silomix.coordinator.pipeline import run_study
from silomix.model.schema import Schema, Shard, Variable
from silomix.silo.local import Silo
from silomix.study import make_study
from silomix.study.roster import read_roster
from silomix.study.settings import Study
from silomix.transports.in_process import InProcess

KINDS = ("categorical", "gaussian", "poisson")


def fit_numbers(table, kinds, *, silo="silo", threads=1, seed=0, ask=InProcess, **settings):
    """Fit a table; kinds : of each variable by name, those of one kind beside each other.

    `ask` makes the silos' transport, for whoever wants to look at what they keep.
    """
    schema = schema_of(table, kinds)

    class NumberStudy(Study):
        """A study of a given schema."""

        @property
        def table_schema(self):
            return schema

        def encoded(self, table):
            return encode(table, schema)

    words = tuple(Variable(v.name, v.levels or ("a", "b")) for v in schema.variables)
    roster = read_roster(table, silo)
    study = NumberStudy(**dict(make_study(Schema(words), roster.names, seed=seed, **settings)))
    shard = encode(table, schema)
    silos = ask(
        [
            Silo(name, place, shard.some(roster.places == place), study)
            for place, name in enumerate(roster.names)
        ],
        threads=threads,
    )
    posterior = run_study(study, silos, threads=threads)
    return replace(posterior, assignment=gather_assignment(silos.silos, roster.places))


def schema_of(table, kinds):
    """Return the schema of a table, with robust locations and scales of its numbers."""
    variables = []
    for name, kind in sorted(kinds.items(), key=lambda item: KINDS.index(item[1])):
        cells = table[name]
        if kind == "categorical":
            variables.append(Variable(name, tuple(map(str, sorted(cells.dropna().unique())))))
        elif kind == "poisson":
            variables.append(Variable(name, kind=kind, location=float(cells.mean())))
        else:
            low, middle, high = cells.quantile([0.25, 0.5, 0.75])
            scale = (high - low) / 1.349 or cells.std() or 1.0
            place = {"location": float(middle), "scale": float(scale)}
            variables.append(Variable(name, kind=kind, **place))
    return Schema(tuple(variables))


def encode(table, schema):
    """Return a table's rows in the study's units."""
    codes = np.zeros((len(table), len(schema.categories)), dtype=np.uint8)
    for q, variable in enumerate(schema.categories):
        places = {level: place for place, level in enumerate(variable.levels)}
        words = table[variable.name].astype(object)
        codes[:, q] = [places.get(str(word), len(places)) for word in words]
    numbers = np.empty((len(table), len(schema.numbers)))
    for q, variable in enumerate(schema.numbers):
        cells = table[variable.name].to_numpy(dtype=np.float64)
        counts = variable.kind == "poisson"
        numbers[:, q] = cells if counts else (cells - variable.location) / variable.scale
    return Shard(schema, codes, numbers)


def study_units(study, truth):
    """Return true parameters in the study's units: (cluster, parameter), and by silo."""
    of = {variable.name: variable for variable in study.table_schema.variables}
    shared, by_silo = truth.probabilities.copy(), truth.probabilities_by_silo.copy()
    for place, (name, word) in enumerate(truth.levels):
        for values in (shared, by_silo):
            if word == "mean":
                values[..., place] = (values[..., place] - of[name].location) / of[name].scale
            elif word == "sd":
                values[..., place] /= of[name].scale
    return shared, by_silo
