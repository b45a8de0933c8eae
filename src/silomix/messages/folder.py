"""Messages as folders of JSON and CSV, for people and release checks.

`message.json` has the head of the message (`silomix.messages.container`), type and shape of its
arrays, and the SHA-256 of every other file. `arrays.txt` has the arrays for programs; the CSV
tables (`silomix.messages.csv_tables`) show people every number in it. Whoever reads a folder writes
`message.json`, `arrays.txt` and the tables again from what was read, and refuses the folder unless
every byte is the same, so that nothing can be in it that the tables do not show.

The folder of a `Release` is what a data officer reads: its `message.json` also has the variables,
and there are `README.txt`, `not_included.txt` and, where matplotlib is installed, `profile.png`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from base64 import b64decode, b64encode
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, FailFast, TypeAdapter
from safetensors import SafetensorError
from safetensors.numpy import save

from silomix.errors import FileError, MessageError, SettingsError
from silomix.families import make_family
from silomix.messages import Release, SampleLocally, container, csv_tables
from silomix.messages.container import HEAD, LARGEST_MESSAGE, Arrays, Envelope, shorten
from silomix.messages.csv_tables import LARGEST_FILE, part_name
from silomix.messages.message_checks import release_problems
from silomix.messages.release_explained import NOT_INCLUDED_TEXT, draw_profiles, readme
from silomix.model.files import finishing, read_file, replace_file, unfinished, writing
from silomix.model.prior import Prior
from silomix.model.schema import Schema, Variable
from silomix.study.settings import VariableSettings, check_variables, describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from silomix.study import Study

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
        return _array_files(arrays) | csv_tables.release_tables(record, schema)
    return _array_files(arrays) | csv_tables.array_tables(type(record), arrays)


def _head_file(
    head: dict[str, Any], arrays: Arrays, schema: Schema, files: dict[str, bytes]
) -> dict[str, bytes]:
    """`message.json`: the head of the message, its arrays and files, and a release's variables."""
    head["arrays"] = {path: (array.dtype.name, array.shape) for path, array in arrays.items()}
    if head["kind"] == Release.__name__:
        head["variables"] = [describe(variable) for variable in shown(schema)]
    head["files"] = {name: _sha256(content) for name, content in sorted(files.items())}
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


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check_target(target: Path, *, force: bool = False) -> None:
    """Refuse a folder with content, unless it is an unfinished message, or one to replace.

    Raises
    ------
    SettingsError
        When it has other content.
    FileError
        When it cannot be read.
    """
    with writing(target, FileError):
        occupied = target.exists() and (not target.is_dir() or any(target.iterdir()))
        replaceable = occupied and (target / HEAD).is_file()
    if occupied and not (force and replaceable) and not unfinished([target]):
        advice = "give another folder" + (", or --force to replace it" if replaceable else "")
        raise SettingsError(f"{target} exists already; {advice}")


def write_folder(target: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a folder under a temporary name, then rename it, replacing an old one.

    Nobody else writes this folder: the next writer replaces the remains of a killed one.

    Parameters
    ----------
    files : paths inside the folder and contents; each item is requested once the last is written.

    Raises
    ------
    FileError
        When it cannot be written.
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
    """Read and check the release in a folder, and its variables and levels, without its study.

    Raises
    ------
    MessageError
        When a file is missing, damaged or too large, or has impossible values.
    """
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
        if _sha256(files[name]) != listed[name]:
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
            raise MessageError(
                f"{shorten(name)} does not have the expected numbers and names, in order"
            )
    return envelope, record, schema


def _read_schema(described: Any) -> Schema:
    """Variables that `message.json` describes."""
    variables = [Variable(**v.model_dump()) for v in container.validate(VARIABLES, described)]
    if not all(text.isprintable() for v in variables for text in (v.name, *v.levels)):
        raise MessageError("its variables or levels have characters that do not print")
    return Schema(tuple(variables))
