"""Arrays as CSV tables with named columns, and back bit for bit.

One field is one table: the columns are the array's axes but the last, as numbers from 0, and then
one column for each place along the last; an array of one axis has one column of values. Arrays
that stand in a list share a table, which then starts with their place in the list; rows of those
that have fewer columns end in empty cells. Numbers in single precision are written as the doubles
that they are. A table too long for one file goes on in others.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.errors import MessageError
from silomix.messages.documents import shorten
from silomix.messages.fields import check_finite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from silomix.messages.fields import Arrays, Slot

MOST_ROWS = 5_000
LARGEST_FILE = 16_000_000
"""Bytes. Airlocks take no more rows and bytes than these in a file."""

MOST_COLUMNS = 100_000
LONGEST_CELL = 30
CELLS = re.compile(r"[0-9eE.,+\-\n]*+", re.ASCII)


@dataclass(frozen=True)
class Table:
    """The arrays of one field.

    Attributes
    ----------
    name : of the field, dots between the steps that lead to it.
    heading : of the columns.
    width : how many of them are values.
    slots : of its arrays.
    """

    name: str
    heading: tuple[str, ...]
    width: int
    slots: tuple[Slot, ...]

    @property
    def rows(self) -> int:
        """How many rows all parts have together."""
        return sum(_rows(slot) for slot in self.slots)


def make_tables(slots: Iterable[Slot]) -> list[Table]:
    """Return the tables that these arrays fill, by name of field."""
    by_field: dict[tuple[str, ...], list[Slot]] = {}
    for slot in slots:
        by_field.setdefault(tuple(s for s in slot.path if isinstance(s, str)), []).append(slot)
    return [_make_table(field, tuple(group)) for field, group in by_field.items()]


def _make_table(field: tuple[str, ...], slots: tuple[Slot, ...]) -> Table:
    first = slots[0]
    width = max(_columns(slot) for slot in slots)
    if width > MOST_COLUMNS:
        raise MessageError(f"{first} has {width:,} columns; a file may have {MOST_COLUMNS:,}")
    if len(first.axes) == 1:
        heading = (*first.over, *first.axes, field[-1])
    else:
        *lead, last = first.axes
        heading = (*first.over, *lead, *(f"{last}_{number}" for number in range(width)))
    return Table(".".join(field), heading, width, slots)


def _columns(slot: Slot) -> int:
    return 1 if len(slot.shape) == 1 else slot.shape[-1]


def _lead(slot: Slot) -> tuple[int, ...]:
    return slot.shape if len(slot.shape) == 1 else slot.shape[:-1]


def _rows(slot: Slot) -> int:
    return math.prod(_lead(slot))


def _places(slot: Slot) -> Iterator[str]:
    """Yield the start of each row: where in lists and along the axes its numbers stand."""
    if _rows(slot) == 0:  # a long axis beside an empty one has no rows
        return
    start = [step for step in slot.path if isinstance(step, int)]
    for place in product(*map(range, _lead(slot))):
        yield ",".join(map(str, (*start, *place)))


def write_table(table: Table, arrays: Arrays) -> list[tuple[str, bytes, int]]:
    """Return the files of a table: name, content and rows of each.

    Parameters
    ----------
    arrays : those of the table's slots, in their order.
    """
    heading = ",".join(table.heading) + "\n"
    parts: list[list[str]] = [[heading]]
    length = len(heading)
    for line in _lines(table, arrays):
        if length + len(line) > LARGEST_FILE or len(parts[-1]) > MOST_ROWS:
            parts.append([heading])
            length = len(heading)
        if length + len(line) > LARGEST_FILE:
            raise MessageError(f"a row of {table.name} is too long for a file")
        parts[-1].append(line)
        length += len(line)
    return [
        (name, "".join(lines).encode("ascii"), len(lines) - 1)
        for name, lines in zip(part_names(table, len(parts)), parts, strict=True)
    ]


def _lines(table: Table, arrays: Arrays) -> Iterator[str]:
    for slot, array in arrays:
        empty = [""] * (table.width - _columns(slot))
        rows = array.reshape(_rows(slot), _columns(slot)).tolist()
        for place, row in zip(_places(slot), rows, strict=True):
            yield ",".join([place, *map(repr, row), *empty]) + "\n"


def part_names(table: Table, count: int) -> list[str]:
    """Return the names of the files of a table in `count` parts."""
    if count == 1:
        return [f"{table.name}.csv"]
    return [f"{table.name}_part{number}.csv" for number in range(1, count + 1)]


def find_parts(table: Table, names: Iterable[str]) -> list[str]:
    """Return the names of a table's files among `names`, in order."""
    known = set(names)
    pattern = re.compile(rf"{re.escape(table.name)}_part[0-9]+\.csv", re.ASCII)
    parts = part_names(table, max(1, sum(1 for name in known if pattern.fullmatch(name))))
    for name in parts:
        if name not in known:
            raise MessageError(f"{name} is missing")
    return parts


def read_table(table: Table, files: Mapping[str, bytes]) -> list[NDArray[Any]]:
    """Return the arrays of a table, in the order of its slots.

    Parameters
    ----------
    files : contents of its files by name, in order.

    Raises
    ------
    MessageError
        When a file is not the part of the table that it should be, naming the file.
    """
    lines = [line for name, content in files.items() for line in _read_lines(table, name, content)]
    names = " and ".join([next(iter(files)), "others"][: len(files)])
    if len(lines) != table.rows:
        raise MessageError(f"{names} has {len(lines):,} rows instead of {table.rows:,}")
    left = iter(lines)
    try:
        return [_read_array(table, slot, list(islice(left, _rows(slot)))) for slot in table.slots]
    except MessageError as error:
        raise MessageError(f"{names}: {error}") from None


def _read_lines(table: Table, name: str, content: bytes) -> Sequence[str]:
    heading = ",".join(table.heading).encode() + b"\n"
    if not content.startswith(heading) or not content.endswith(b"\n"):
        columns = ", ".join(table.heading)
        raise MessageError(f"{name} must have the columns {columns:.200} and end with a line end")
    text = content[len(heading) :].decode("latin-1")
    if not CELLS.fullmatch(text):
        raise MessageError(f"{name} has characters that are no part of a number")
    return text.split("\n")[:-1]


def _read_array(table: Table, slot: Slot, lines: list[str]) -> NDArray[Any]:
    parse = float if slot.dtype[1] == "f" else int
    columns, empty = _columns(slot), table.width - _columns(slot)
    rows: list[list[float]] = []
    for place, line in zip(_places(slot), lines, strict=True):
        cells = line.removeprefix(place).split(",")
        if not line.startswith(place) or cells[0] or len(cells) != 1 + table.width:
            raise MessageError(f"it should have a row {place} of {table.width} numbers there")
        values = cells[1 : 1 + columns]
        if any(cells[1 + columns :]) or max(map(len, values), default=0) > LONGEST_CELL:
            raise MessageError(f"row {place} must have {columns} numbers and {empty} empty cells")
        try:
            rows.append(list(map(parse, values)))
        except ValueError:
            raise MessageError(f"row {place} has {shorten(line)}, not all numbers") from None
    try:
        with np.errstate(over="ignore"):  # an infinity is refused below
            array = np.array(rows, dtype=slot.dtype[1:]).reshape(slot.shape)
    except OverflowError:
        raise MessageError(f"{slot} has a number too large for its type") from None
    check_finite(slot, array)
    return array
