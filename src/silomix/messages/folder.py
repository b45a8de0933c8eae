"""Messages as folders of JSON and CSV, for people and release checks.

`message.json` has the head of the message (`silomix.messages.container`), type and shape of its
arrays, and the SHA-256 of every other file; that of a release also has the variables. `arrays.txt`
has the arrays for programs, and CSV tables show people every number in it. Whoever reads a folder
writes these files again, and refuses it unless every byte is the same: there is nothing in it that
the tables do not show.

In most messages each field is one table: the first columns are indices along all axes but the last,
from 0, and then there is one column for each index along the last; an array of one axis has one
column of values. Arrays in a list share a table, which then starts with their index in the list;
shorter rows are padded. A number has the fewest digits that no other number has, and a text is as
in `model.spreadsheet`. A long file is continued in `profile_2.csv`.

The folder of a `Release` is what a data officer reads: `README.txt`, `not_included.txt`, with
matplotlib `profile.png`, and tables of their own: `cluster_sizes.csv`; `profile.csv`, a line per
cluster and level, where `basis` is the source of the profile, `count` of `of` rows gives the mean,
under a policy that has rules, and `known` is the observed count, 0 for too few; `checks.csv`, the
effect of each rule; and in tier "draws" `weights.csv` and `parameters.csv`. A number has a line for
each of its parameters instead of levels: `mean` and `sd` or `scale`, or the `rate` of counts. The
column `mean` of a line `sd` or `scale` is the mean of the squares. These are in the study's units,
(x − location)/scale; further columns have the variable's kind, location, scale and transform, and
`in_data_units` the mean, standard deviation or scale in these units.
"""

from __future__ import annotations

import csv
import math
import os
import shutil
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from hashlib import sha256
from itertools import chain, count, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, FailFast, TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import save

from silomix.errors import FileError, MessageError, SettingsError
from silomix.families import make_family
from silomix.families.disclosure import basis as basis_of
from silomix.families.release_rounding import CLUSTER, SILO, UNIFORM
from silomix.kernels.arrays import Ints
from silomix.messages import Check, Release, SampleLocally, container
from silomix.messages.container import HEAD, LARGEST_MESSAGE, Arrays, Envelope, shorten
from silomix.messages.message_checks import release_problems
from silomix.messages.release_explained import NOT_INCLUDED_TEXT, draw_profiles, readme
from silomix.model.files import finishing, read_file, replace_file, unfinished, writing
from silomix.model.schema import Prior, Schema, Variable
from silomix.model.spreadsheet import for_spreadsheet
from silomix.study.policy import Policy
from silomix.study.settings import VariableSettings, check_variables, describe

if TYPE_CHECKING:
    from silomix.families.product import Product
    from silomix.study import Study

# Common limits of release checks: lines of a table, with its heading, and bytes of a file.
MOST_LINES, LARGEST_FILE = 5_000, 16_000_000

BASES = {CLUSTER: "cluster", SILO: "silo", UNIFORM: "uniform"}
NUMBER_BASES = BASES | {UNIFORM: "prior"}
KEYS = ["cluster", "variable", "level"]
NUMBERS = ["basis", "count", "of", "known", "mean", "concentration"]
UNITS = ["kind", "location", "scale", "transform", "in_data_units"]
CHECKS = [field.name for field in fields(Check) if field.name != "inside"]
ARRAYS = "arrays.txt"
README, NOT_INCLUDED, PICTURE = FOR_PEOPLE = "README.txt", "not_included.txt", "profile.png"
# Attributes of a variable that the tables of a release contain.
SHOWN = ("name", "levels", "kind", "location", "scale", "transform")
MOST_FILES = 2_000
FILES = TypeAdapter(dict[str, str])
VARIABLES = TypeAdapter(
    Annotated[tuple[VariableSettings, ...], FailFast(), AfterValidator(check_variables)]
)
# Fewest bytes of a number in a table: a digit, and a comma or the end of the line.
NUMBER_BYTES = 2


def write_release(
    release: Release, folder: str | Path, schema: Schema, *, force: bool = False
) -> list[Path]:
    """Write a release folder atomically, and return its files.

    Parameters
    ----------
    folder : must not exist, or be empty.
    schema : the study's, for the names of variables and levels.
    force : whether to replace an existing release folder.
    """
    target = Path(folder)
    check_target(target, force=force)
    files = release_files(release, schema)
    with writing(target, FileError):
        target.parent.mkdir(parents=True, exist_ok=True)
    with finishing([target]):
        write_folder(target, files.items())
    return [target / name for name in files]


def release_files(release: Release, schema: Schema) -> dict[str, bytes]:
    """Files of a release folder, which is the answer to the first question."""
    question = container.digest_record(SampleLocally())
    envelope = Envelope(release.study, release.silo, 1, answers=question)
    return message_files(envelope, release, schema)


def message_files(envelope: Envelope, record: Any, schema: Schema) -> dict[str, bytes]:
    """Files of a message: content by name; the same message gives the same bytes."""
    head, arrays = container.seal(envelope, record)
    files = _data_files(record, arrays, schema)
    if isinstance(record, Release):
        picture = draw_profiles(record.mean, record.sizes, schema)
        files |= {PICTURE: picture} if picture is not None else {}
        files[NOT_INCLUDED] = NOT_INCLUDED_TEXT.encode()
        files[README] = readme(record, schema, files).encode()
    return files | _head_file(head, arrays, schema, files)


def _data_files(record: Any, arrays: Arrays, schema: Schema) -> dict[str, bytes]:
    """Arrays, and the tables of them."""
    if isinstance(record, Release):
        return _array_files(arrays) | release_tables(record, schema)
    return _array_files(arrays) | array_tables(type(record), arrays)


def _head_file(
    head: dict[str, Any], arrays: Arrays, schema: Schema, files: dict[str, bytes]
) -> dict[str, bytes]:
    """`message.json`: the head of the message, its arrays and files, and a release's variables."""
    head["arrays"] = {path: (array.dtype.name, array.shape) for path, array in arrays.items()}
    if head["kind"] == Release.__name__:
        head["variables"] = [describe(variable) for variable in shown(schema)]
    head["files"] = {name: sha256(files[name]).hexdigest() for name in sorted(files)}
    return {HEAD: container.write_json(head, indent=1) + b"\n"}


def shown(schema: Schema) -> tuple[Variable, ...]:
    """Variables, without what a release does not say of them."""
    return tuple(Variable(**{key: getattr(v, key) for key in SHOWN}) for v in schema.variables)


def _array_files(arrays: Arrays) -> dict[str, bytes]:
    """Arrays in safetensors' form, as base64 in files of one line."""
    text = b64encode(save(arrays)) if arrays else b""
    parts = [text[start : start + LARGEST_FILE] for start in range(0, len(text), LARGEST_FILE)]
    return {part_name(ARRAYS, number): part for number, part in enumerate(parts, start=1)}


def _read_arrays(files: dict[str, bytes]) -> Arrays:
    names = takewhile(files.__contains__, (part_name(ARRAYS, number) for number in count(1)))
    text = b"".join(files[name] for name in names)
    return container.load_arrays(b64decode(text, validate=True)) if text else {}


def check_target(target: Path, *, force: bool = False) -> None:
    """Refuse a folder with content, unless it is an unfinished message, or one to replace."""
    with writing(target, FileError):
        occupied = target.exists() and (not target.is_dir() or any(target.iterdir()))
        replaceable = occupied and (target / HEAD).is_file()
    if occupied and not (force and replaceable) and not unfinished([target]):
        advice = "give another folder" + (", or --force to replace it" if replaceable else "")
        raise SettingsError(f"{target} exists already; {advice}")


def write_folder(target: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a folder under a temporary name, then rename it, replacing an old one.

    Nobody else writes it: the next writer removes the remains of a killed one. Each of the `files`,
    paths inside the folder and contents, is requested once the last is written.
    """
    scratch = target.with_name(f".{target.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        with writing(target, FileError):
            scratch.mkdir(parents=True)  # a link in its place is not followed
            for name, content in files:
                (scratch / name).parent.mkdir(exist_ok=True)
                replace_file(scratch / name, content)
            shutil.rmtree(target, ignore_errors=True)
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read(folder: str | Path, *, study: Study) -> tuple[Envelope, Any]:
    """Read and check the envelope and the record of a message in a folder.

    Parameters
    ----------
    folder : its content is untrusted.
    study : the study whose variables and levels a release must have.

    Raises
    ------
    MessageError
        When a file is changed, missing, foreign, too large or damaged, naming the file.
    """
    envelope, record, schema = _read(Path(folder))
    if isinstance(record, Release) and schema.variables != shown(study.table_schema):
        raise MessageError(
            f"{folder} is a release with different variables or levels from the study's; release "
            "again with this study file"
        )
    return envelope, record


def read_release(folder: str | Path) -> tuple[Release, Schema]:
    """Read and check the release in a folder, and its variables and levels, without its study."""
    _, release, schema = _read(Path(folder))
    if not isinstance(release, Release):
        raise MessageError(f"{folder} is a message, not a release")
    for problem in release_problems(release, make_family(schema, Prior())):
        raise MessageError(f"{folder}: it {problem}; have the silo release again")
    return release, schema


def _read(source: Path) -> tuple[Envelope, Any, Schema]:
    try:
        return _read_message(_read_folder(source))
    except OSError as error:
        problem = f"{error.strerror}; check the path"
    except MessageError as error:
        problem = f"{error}; put that right, or get the whole folder again"
    except (KeyError, SafetensorError, ValueError) as error:
        problem = f"its arrays are damaged ({type(error).__name__}); get the whole folder again"
    raise MessageError(f"{source} cannot be read: {problem}")


def _read_folder(source: Path) -> dict[str, bytes]:
    """Contents of the files of a folder, by name."""
    remaining = LARGEST_MESSAGE
    if source.name.startswith("."):
        raise MessageError("it was left by a writer that did not finish")
    if not (source / HEAD).exists() and (inner := sorted(source.glob(f"*/{HEAD}"))):
        name = shorten(inner[0].parent.name)
        raise MessageError(f"it is not a message but holds some, such as {name}; give one")
    files: dict[str, bytes] = {}
    with os.scandir(source) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                raise MessageError(f"{shorten(entry.name)} is not a file")
            files[entry.name] = read_file(Path(entry.path), LARGEST_FILE + 1)
            size = len(files[entry.name])
            remaining -= size
            if remaining < 0 or size > LARGEST_FILE or len(files) > MOST_FILES:
                raise MessageError("it has more files or bytes than silomix reads")
    if HEAD not in files:
        raise MessageError(f"{HEAD} is missing, so this is not a message")
    return files


def _read_message(files: dict[str, bytes]) -> tuple[Envelope, Any, Schema]:
    head = container.read_json(files[HEAD])
    listed = container.validate(FILES, head.pop("files", None))
    for name in sorted(listed.keys() | files.keys() - {HEAD}):
        if name not in files or name not in listed:
            state = "is missing" if name in listed else "is not part of this message"
            raise MessageError(f"{shorten(name)} {state}")
        if sha256(files[name]).hexdigest() != listed[name]:
            raise MessageError(f"{shorten(name)} was changed after it was written")
    head.pop("arrays", None)
    described = head.pop("variables", None)
    schema = _read_schema(described) if head.get("kind") == Release.__name__ else Schema(())
    envelope, record = container.unseal(head, _read_arrays(files))
    again, arrays = container.seal(envelope, record)
    tables = sum(len(content) for name, content in files.items() if name.endswith(".csv"))
    sizes = [array.size for array in arrays.values()]
    if 0 in sizes or NUMBER_BYTES * sum(sizes) > tables:
        raise MessageError("it has an array that is empty, or more numbers than its tables")
    # the tables show all that is in the arrays, and there is nothing else
    expected = _data_files(record, arrays, schema)
    if isinstance(record, Release):
        expected |= {name: files[name] for name in files.keys() & FOR_PEOPLE}
    expected |= _head_file(again, arrays, schema, expected)
    for name in sorted(expected.keys() | files.keys(), key=lambda name: (name == HEAD, name)):
        if expected.get(name) != files.get(name):
            problem = "does not have the expected numbers and names, in order"
            raise MessageError(f"{shorten(name)} {problem}")
    return envelope, record, schema


def _read_schema(described: Any) -> Schema:
    """Variables that `message.json` describes."""
    variables = [Variable(**v.model_dump()) for v in container.validate(VARIABLES, described)]
    if not all(text.isprintable() for v in variables for text in (v.name, *v.levels)):
        raise MessageError("its variables or levels have characters that do not print")
    return Schema(tuple(variables))


def array_tables(kind: type, arrays: Arrays) -> dict[str, bytes]:
    """Files of a record's arrays: content by name."""
    files: dict[str, bytes] = {}
    tables: dict[str, list[tuple[list[int], NDArray[Any]]]] = {}
    for path, array in arrays.items():
        places = [int(place) for place in container.PLACE_IN_LIST.findall(path)]
        columns = array[:, None] if array.ndim == 1 else array
        tables.setdefault(container.PLACE_IN_LIST.sub("", path), []).append((places, columns))
    for name, parts in tables.items():
        field = name.rpartition(".")[2]
        owner = Release if name.startswith("releases.") else kind
        axes = container.declared_arrays(owner)[field].axes
        lead = ["silo"] * len(parts[0][0]) + list(axes[: max(1, len(axes) - 1)])
        width = max(array.shape[-1] for _, array in parts)
        values = [f"{axes[-1]}_{place}" for place in range(width)] if len(axes) > 1 else [field]
        rows = (row for part in parts for row in _array_rows(*part, width))
        files |= csv_files(name, lead + values, rows)
    return files


def _array_rows(places: list[int], array: NDArray[Any], width: int) -> Iterator[list[object]]:
    *leading, columns = array.shape
    rows = array.reshape(math.prod(leading), columns).tolist()
    for place, row in zip(np.ndindex(*leading), rows, strict=True):
        yield [*places, *place, *row, *[""] * (width - columns)]


def release_tables(release: Release, schema: Schema) -> dict[str, bytes]:
    """Files of a release's tables: content by name."""
    checks = ([getattr(check, word) for word in CHECKS] for check in release.checks)
    files = csv_files("cluster_sizes", ["cluster", "rows"], enumerate(release.sizes.tolist()))
    files |= csv_files("checks", CHECKS, checks)
    family = make_family(schema, Prior())
    _check_shown(release, family)
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
    ends = np.cumsum(family.statistics)
    places = [np.arange(end - size, end) for end, size in zip(ends, family.parameters, strict=True)]
    return np.repeat(np.arange(len(family.variables)), family.parameters), np.concatenate(places)


def _profile_rows(release: Release, schema: Schema, family: Product) -> Iterator[Sequence[object]]:
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


def csv_files(
    name: str, heading: Sequence[str], rows: Iterable[Sequence[object]]
) -> dict[str, bytes]:
    """Files of a table, within the limits of release checks: content by name."""
    lines: list[str] = []
    writer = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\n")
    for row in chain([heading], rows):
        writer.writerow(for_spreadsheet(cell) if isinstance(cell, str) else cell for cell in row)
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
