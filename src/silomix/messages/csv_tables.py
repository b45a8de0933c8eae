"""Arrays as CSV tables for people, with every digit of every number.

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

A table too long for one file is continued in `profile_2.csv` and so on. A number is written with
the fewest digits that no other number has, and a text as in `model.spreadsheet`. Tables are never
read: whoever reads a message writes its tables again, and compares (`silomix.messages.folder`).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silomix.errors import MessageError
from silomix.families import make_family
from silomix.families.release_rounding import CLUSTER, SILO, UNIFORM
from silomix.kernels.arrays import Ints
from silomix.messages import Check, Release
from silomix.messages.container import PLACE_IN_LIST, Arrays, declared_arrays
from silomix.model.prior import Prior
from silomix.model.spreadsheet import for_spreadsheet
from silomix.study.policy import Policy

if TYPE_CHECKING:
    from silomix.families.product import Product
    from silomix.model.schema import Schema

MOST_LINES = 5_000
# Bytes. These are common limits of release checks, on lines, with the heading, and bytes of a file.
LARGEST_FILE = 16_000_000

BASES = {CLUSTER: "cluster", SILO: "silo", UNIFORM: "uniform"}
NUMBER_BASES = BASES | {UNIFORM: "prior"}
KEYS = ["cluster", "variable", "level"]
NUMBERS = ["basis", "count", "of", "known", "mean", "concentration"]
UNITS = ["kind", "location", "scale", "transform", "in_data_units"]
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
    _check_shown(release, family)
    heading = KEYS + NUMBERS + (UNITS if schema.numbers else [])
    files |= csv_files("profile", heading, _profile_rows(release, schema, family))
    if release.weights is not None and release.parameters is not None:
        names = [f"cluster {cluster}" for cluster in range(release.clusters)]
        rows = _array_rows([], release.weights, len(names))
        files |= csv_files("weights", ["draw", *names], rows)
        names = [f"{variable}={level}" for variable, level in family.names()]
        rows = _array_rows([], release.parameters, len(names))
        files |= csv_files("parameters", ["draw", "cluster", *names], rows)
    return files


def _check_shown(release: Release, family: Product) -> None:
    """Refuse numbers that are in no table."""
    variables, parameters = len(family.variables), int(family.parameters.sum())
    widths = {"known": variables, "concentration": variables, "mean": int(family.statistics.sum())}
    widths |= {"parameters": parameters} if release.parameters is not None else {}
    wrong = [name for name, width in widths.items() if getattr(release, name).shape[-1] != width]
    if wrong:
        raise MessageError(f"{wrong[0]} does not fit its variables and their levels")
    if (np.delete(release.mean, _lines(family)[1], axis=1) != 1.0).any():
        raise MessageError("mean does not count the rows of its numbers")
    if (release.weights is None) != (release.parameters is None):
        raise MessageError("it has weights without parameters, or parameters without weights")


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
    basis = family.basis(release.known, release.concentration, policy)
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
        units: list[object] = ["categorical", "", "", "", ""]
        if var.kind != "categorical":
            words, counted = NUMBER_BASES, False
            units = [var.kind, var.location, var.scale, var.transform, float(in_data_units[i])]
        yield (
            *(i[0], *names[i[1]], words[int(basis[i])]),
            round(float(mean[i] * total[i])) if counted else "",
            "" if nothing else int(total[i]),
            int(known[i]),
            *(float(part[i]) for part in (mean, concentration)),
            *(units if schema.numbers else ()),
        )


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
    return {part_name(f"{name}.csv", n): b"".join(part) for n, part in enumerate(parts, start=1)}


def part_name(name: str, number: int) -> str:
    """Name of one of the files of something too long for one: "profile.csv", "profile_2.csv"."""
    stem, _, suffix = name.rpartition(".")
    return name if number == 1 else f"{stem}_{number}.{suffix}"
