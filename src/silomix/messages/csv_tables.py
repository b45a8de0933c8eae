"""Arrays as CSV tables for people, from which they are read back exactly.

In most messages each field is one table: the first columns are indices along all axes but the last,
from 0, and then there is one column for each index along the last; an array of one axis has one
column of values. Arrays in a list share a table, which then starts with their index in the list;
shorter rows are padded with empty cells.

A release has tables that a data officer reads: `cluster_sizes.csv`; `profile.csv`, a line per
cluster and level, where `basis` is the source of the profile, `count` of `of` rows gives the mean,
under a policy that has rules, and `known` is the observed count, 0 for too few; `checks.csv`, the
effect of each rule; and in tier "draws" `weights.csv` and `parameters.csv`.

A number has a line for each of its parameters instead of levels: `mean` and `sd` or `scale`,
or the `rate` of counts. The column `mean` of a line `sd` or `scale` is the mean of the squares.
These are in the study's units, (x − location)/scale; where a study has numbers, further columns
have the variable's kind, location, scale and transform, and `in_data_units` the mean, the standard
deviation or the scale in these units.

A table too long for one file is continued in `profile_2.csv` and so on. Numbers are written so that
they are read back exactly, and texts as in `model.spreadsheet`. Reading is lenient: the reader
writes the tables again, and compares.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain, count, groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silomix.errors import MessageError
from silomix.families import KINDS, make_family
from silomix.families.disclosure import basis as basis_of
from silomix.families.release_rounding import CLUSTER, SILO, UNIFORM
from silomix.kernels.arrays import Ints
from silomix.messages import Check, Release
from silomix.messages.container import PLACE_IN_LIST, Arrays, declared_arrays
from silomix.model.schema import Prior, Schema, Variable
from silomix.model.spreadsheet import for_spreadsheet, from_spreadsheet
from silomix.study.policy import Policy

if TYPE_CHECKING:
    from silomix.families.product import Product

Files = Mapping[str, bytes]
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]

MOST_LINES = 5_000
# Bytes. These are common limits of release checks, on lines, with the heading, and bytes of a file.
LARGEST_FILE = 16_000_000

BASES = {CLUSTER: "cluster", SILO: "silo", UNIFORM: "uniform"}
NUMBER_BASES = BASES | {UNIFORM: "prior"}
KEYS = ["cluster", "variable", "level"]
NUMBERS = ["basis", "count", "of", "known", "mean", "concentration"]
UNITS = ["kind", "location", "scale", "transform", "in_data_units"]
# Largest location and scale of a column; larger ones would overflow.
LARGEST_UNIT = 1e100
CHECKS = [field.name for field in fields(Check) if field.name != "inside"]


def array_tables(kind: type, arrays: Arrays) -> dict[str, bytes]:
    """Files of a record's arrays: content by name."""
    files: dict[str, bytes] = {}
    for name, paths in _by_table(arrays).items():
        field = name.rpartition(".")[2]
        axes = declared_arrays(Release if name.startswith("releases.") else kind)[field].axes
        lead = ["silo"] * len(_places(paths[0])) + list(axes[: max(1, len(axes) - 1)])
        width = max(_with_columns(arrays[path].shape)[-1] for path in paths)
        values = [f"{axes[-1]}_{place}" for place in range(width)] if len(axes) > 1 else [field]
        rows = (row for path in paths for row in _array_rows(_places(path), arrays[path], width))
        files |= csv_files(name, lead + values, rows)
    return files


def read_arrays(files: Files, shapes: Shapes) -> Arrays:
    """Arrays in files, with the types and shapes that are declared."""
    arrays: Arrays = {}
    for name, paths in _by_table(shapes).items():
        whole = all(not shapes[path][0].startswith("float") for path in paths)
        lead = len(_places(paths[0])) + len(_with_columns(shapes[paths[0]][1])) - 1
        numbers = _read_numbers(files, name, lead, whole=whole)
        for path in paths:
            dtype, shape = shapes[path]
            *leading, columns = _with_columns(shape)
            part, numbers = np.split(numbers, [math.prod(leading)])
            # each column has a heading: a declaration of more is meant to fill our memory
            if columns > len(files[_part(name, 1)]):
                raise MessageError(f"{name}.csv has fewer columns than {path} needs")
            with np.errstate(over="ignore"):  # infinite values are refused by the array's bounds
                arrays[path] = part[:, :columns].astype(dtype).reshape(shape)
    return arrays


def _by_table(paths: Iterable[str]) -> dict[str, list[str]]:
    """Paths of the arrays in each table, by the name of the table, which is a field's."""
    names: dict[str, list[str]] = {}
    for path in paths:
        names.setdefault(PLACE_IN_LIST.sub("", path), []).append(path)
    return names


def _places(path: str) -> list[int]:
    return [int(place) for place in PLACE_IN_LIST.findall(path)]


def _with_columns(shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of an array in its table, where a single axis becomes one column."""
    return (*shape, 1) if len(shape) == 1 else tuple(shape)


def _array_rows(places: list[int], array: NDArray[Any], width: int) -> Iterator[list[object]]:
    *leading, columns = _with_columns(array.shape)
    padding = [""] * (width - columns)
    rows = array.reshape(math.prod(leading), columns).tolist()
    for place, row in zip(np.ndindex(*leading), rows, strict=True):
        yield [*places, *place, *row, *padding]


def release_tables(release: Release, schema: Schema) -> dict[str, bytes]:
    """Files of a release's tables: content by name."""
    checks = ([getattr(check, word) for word in CHECKS] for check in release.checks)
    files = csv_files("cluster_sizes", ["cluster", "rows"], enumerate(release.sizes.tolist()))
    files |= csv_files("checks", CHECKS, checks)
    family = make_family(schema, Prior())
    heading = KEYS + NUMBERS + (UNITS if _has_units(schema) else [])
    files |= csv_files("profile", heading, _profile_rows(release, schema, family))
    if release.weights is not None and release.parameters is not None:
        names = [f"cluster {cluster}" for cluster in range(release.clusters)]
        rows = _array_rows([], release.weights, len(names))
        files |= csv_files("weights", ["draw", *names], rows)
        names = [f"{variable}={level}" for variable, level in family.names()]
        rows = _array_rows([], release.parameters, len(names))
        files |= csv_files("parameters", ["draw", "cluster", *names], rows)
    return files


def _lines(family: Product) -> tuple[Ints, Ints]:
    """Variable, and statistic, of each line of a cluster's profile: (line,) each.

    Lines are parameters. Numbers have more statistics than parameters, first the number of rows,
    which is 1 in a mean.
    """
    variable = np.repeat(np.arange(len(family.variables)), family.parameters)
    ends = np.cumsum(family.statistics)
    places = [np.arange(end - size, end) for end, size in zip(ends, family.parameters, strict=True)]
    return variable, np.concatenate(places)


def _profile_rows(
    release: Release, schema: Schema, family: Product
) -> Iterator[tuple[object, ...]]:
    policy = Policy(**release.policy)
    variable, statistic = _lines(family)
    basis = basis_of(family, release.known, release.concentration, policy)
    shown = release.known * (basis == CLUSTER)
    total = np.where(basis == CLUSTER, release.known, shown.sum(axis=0))
    basis, total, known = (part[:, variable] for part in (basis, total, release.known))
    concentration = release.concentration[:, variable]
    mean, names = release.mean[:, statistic], family.names()
    with np.errstate(over="ignore", invalid="ignore"):  # the numbers are not yet checked
        in_data_units = np.array(family.describe(family.from_moments(release.mean)))
    for i in np.ndindex(*mean.shape):
        var, nothing = family.variables[variable[i[1]]], basis[i] == UNIFORM
        words, counted = BASES, policy.has_rules and not nothing
        units: list[object] = [var.kind, "", "", "", ""]
        if not var.levels:
            words, counted = NUMBER_BASES, False
            units = [var.kind, var.location, var.scale, var.transform, float(in_data_units[i])]
        yield (
            *(i[0], *names[i[1]], words[int(basis[i])]),
            round(float(mean[i] * total[i])) if counted else "",
            "" if nothing else int(total[i]),
            int(known[i]),
            *(float(part[i]) for part in (mean, concentration)),
            *(units if _has_units(schema) else ()),
        )


def _has_units(schema: Schema) -> bool:
    """Whether lines say the kind and the units of their variable."""
    return any(variable.kind != "categorical" for variable in schema.variables)


def read_release_arrays(files: Files) -> tuple[Arrays, Schema]:
    """Arrays of a release, and the variables and levels in its profile."""
    sizes = _read_numbers(files, "cluster_sizes", 1, whole=True)[:, 0]
    profile = [row for part in _read_parts(files, "profile") for row in part]
    schema = _read_schema(profile[: len(profile) // max(1, len(sizes))])
    family = make_family(schema, Prior())
    variable, statistic = _lines(family)
    end = len(KEYS + NUMBERS)
    numbers = np.array([[float(cell) for cell in row[6:end]] for row in profile])
    observed, means, concentration = numbers.T.reshape(3, len(sizes), len(variable))
    firsts = np.flatnonzero(np.diff(variable, prepend=-1))
    observed, concentration = observed[:, firsts].astype(np.int64), concentration[:, firsts]
    mean = np.ones((len(sizes), int(family.statistics.sum())))
    mean[:, statistic] = means
    arrays = {"sizes": sizes, "known": observed, "mean": mean, "concentration": concentration}
    if "weights.csv" in files:
        # bounds are checked later, and refuse what overflows here
        with np.errstate(over="ignore"):
            weights = _read_numbers(files, "weights", 1).astype(np.float32)
            parameters = _read_numbers(files, "parameters", 2).astype(np.float32)
        shape = len(weights), len(sizes), len(variable)
        arrays |= {"weights": weights, "parameters": parameters.reshape(shape)}
    return arrays, schema


def _read_schema(lines: list[list[str]]) -> Schema:
    """Variables in the lines of one cluster's profile."""
    runs = [(name, list(run)) for name, run in groupby(lines, lambda row: row[1])]
    printable = all(text.isprintable() for row in lines for text in row[1:3])
    if not lines or len(dict(runs)) < len(runs) or not printable:
        raise MessageError("profile.csv does not name the variables and levels of a study")
    variables = []
    for name, run in runs:
        units_of = run[0][len(KEYS + NUMBERS) :] + [""] * len(UNITS)
        kind, location, scale, transform = units_of[:4]
        if KINDS[kind or "categorical"].has_levels:
            levels = tuple(row[2] for row in run)
            variables.append(Variable(name, levels, kind or "categorical"))
            continue
        units = float(location), float(scale)
        if not (np.abs(units) <= LARGEST_UNIT).all() or units[1] <= 0:
            raise MessageError("profile.csv has a location or scale that no study has")
        variables.append(Variable(name, (), kind, *units, transform))
    return Schema(tuple(variables))


def csv_files(
    name: str, heading: Sequence[str], rows: Iterable[Sequence[object]]
) -> dict[str, bytes]:
    """Files of a table, within the limits of release checks: content by name."""
    lines: list[str] = []
    writer = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\n")
    for row in chain([heading], rows):
        writer.writerow(
            for_spreadsheet(cell, first=place == 0) if isinstance(cell, str) else cell
            for place, cell in enumerate(row)
        )
    top, *body = (line.encode() for line in lines)
    parts, size = [[top]], len(top)
    for line in body:
        if len(parts[-1]) == MOST_LINES or size + len(line) > LARGEST_FILE:
            parts.append([top])
            size = len(top)
        parts[-1].append(line)
        size += len(line)
        if size > LARGEST_FILE:
            raise MessageError(f"a row of {name} is too long for a file")
    return {_part(name, number): b"".join(part) for number, part in enumerate(parts, start=1)}


def _part(name: str, number: int) -> str:
    return f"{name}.csv" if number == 1 else f"{name}_{number}.csv"


def _read_parts(files: Files, name: str) -> Iterator[list[list[str]]]:
    """Yield the rows of each file of a table, without headings."""
    for number in count(1):
        if number > 1 and _part(name, number) not in files:
            return
        content = files[_part(name, number)]
        # even an empty line takes more memory than its byte
        if content.count(b"\n") + content.count(b"\r") > MOST_LINES:
            raise MessageError(f"{_part(name, number)} has more than {MOST_LINES:,} lines")
        text = io.StringIO(content.decode(), newline="")
        rows = [[from_spreadsheet(cell) for cell in row] for row in csv.reader(text, strict=True)]
        yield rows[1:]


def _read_numbers(files: Files, name: str, lead: int, *, whole: bool = False) -> NDArray[Any]:
    """Numbers of a table, (row, column), without its first columns.

    Each file is converted before the next is read: as text they would be many times as large.
    """
    parse, kind = (int, np.int64) if whole else (float, np.float64)
    parts = [
        np.array([[parse(cell or "0") for cell in row[lead:]] for row in rows], kind)
        for rows in _read_parts(files, name)
    ]
    return np.concatenate([part.reshape(len(part), -1 if part.size else 0) for part in parts])
