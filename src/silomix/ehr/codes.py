"""The code list: which codes mean which condition, checked at the door."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

import numpy as np

from silomix.errors import DataError
from silomix.roster import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REQUIRED = ("condition", "code")
OPTIONAL = ("vocabulary", "include_descendants", "description")
YES, NO = {"true", "yes", "1"}, {"false", "no", "0", ""}
MOST_SHOWN = 5


@dataclass(frozen=True)
class Code:
    """One code of one condition.

    Attributes
    ----------
    condition, code : as they are spelled in the list, without spaces around them.
    place : where it stands in the list, such as "line 2".
    vocabulary : the code system, or "" if the list does not say.
    include_descendants : whether all concepts below it count too (OMOP).

    Examples
    --------
    >>> from silomix import ehr
    >>> ehr.Code("asthma", "317009", "line 2", include_descendants=True).condition
    'asthma'
    """

    condition: str
    code: str
    place: str
    vocabulary: str = ""
    include_descendants: bool = False


@dataclass(frozen=True)
class CodeList:
    """The codes of all conditions; a code of several conditions counts for each of them.

    Attributes
    ----------
    source : the file it came from, or "the code list".
    codes : in the order of the list.

    Examples
    --------
    >>> from silomix import ehr
    >>> codes = (ehr.Code("asthma", "J45", "line 2"), ehr.Code("asthma", "J46", "line 3"))
    >>> ehr.CodeList("codes.csv", codes).conditions
    ('asthma',)
    """

    source: str
    codes: tuple[Code, ...]

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions, in the order in which they first appear."""
        return tuple(dict.fromkeys(code.condition for code in self.codes))


Codes: TypeAlias = CodeList | Mapping[str, "Iterable[str | int] | int"] | str | Path


def read_codes(codes: Codes) -> CodeList:
    r"""Read a code list and check it.

    Parameters
    ----------
    codes : the path of a CSV file with the columns condition and code, and if wanted vocabulary,
        include_descendants (true or false) and description; or a mapping from each condition to
        its codes, or its only one.

    Returns
    -------
    CodeList
        With at least one code, no name empty and no code twice under one condition.

    Examples
    --------
    >>> from pathlib import Path
    >>> from silomix import ehr
    >>> lines = ["condition,code", "asthma,J45", "asthma,J46", "hypertension,I10"]
    >>> _ = Path("codes.csv").write_text("\n".join(lines), encoding="utf-8")
    >>> ehr.read_codes("codes.csv").conditions
    ('asthma', 'hypertension')
    """
    if isinstance(codes, CodeList):
        found = codes
    elif isinstance(codes, Mapping):
        found = _of_mapping(codes)
    else:
        found = _of_file(Path(codes))
    _refuse(found.source, list(_problems(found)))
    return found


def check_whole(codes: CodeList) -> None:
    """Refuse codes that are no OMOP concept ids."""
    _refuse(
        codes.source,
        [
            f"{code.place}: the code {code.code!r} of {code.condition!r} is no concept id, "
            "which is a whole number above 0"
            for code in codes.codes
            if not (code.code.isascii() and code.code.isdigit() and 0 < int(code.code) < 2**63)
        ],
    )


def check_flat(codes: CodeList) -> None:
    """Refuse codes that ask for descendants, which a long table does not know."""
    _refuse(
        codes.source,
        [
            f"{code.place}: include_descendants is for OMOP; list the codes below {code.code!r}"
            for code in codes.codes
            if code.include_descendants
        ],
    )


def check_columns(codes: CodeList, others: Iterable[str]) -> None:
    """Refuse conditions with the name of another column of the result."""
    taken = {name.casefold(): name for name in others}
    _refuse(
        codes.source,
        [
            f"the condition {name!r} has the name of the column {taken[name.casefold()]!r}, which "
            "is carried along; rename the condition"
            for name in codes.conditions
            if name.casefold() in taken
        ],
    )


def _of_mapping(codes: Mapping[str, Iterable[str | int] | int]) -> CodeList:
    pairs = [
        (name, code)
        for name, its in codes.items()
        for code in ([its] if isinstance(its, str | int | np.integer) else [*its] or [""])
    ]
    return CodeList(
        "the code list",
        tuple(
            Code(name.strip(), str(code).strip(), f"entry {place}")
            for place, (name, code) in enumerate(pairs, start=1)
        ),
    )


def _of_file(path: Path) -> CodeList:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return CodeList(str(path), tuple(_rows(path, file)))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path of the code list") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path}: the code list cannot be read: {error}; save it as CSV in UTF-8"
        ) from None


def _rows(path: Path, file: TextIO) -> Iterator[Code]:
    reader = csv.reader(file, strict=True)
    header = [name.strip().casefold() for name in next(reader, [])]
    _check_header(path, header)
    problems = []
    line = reader.line_num + 1
    for cells in reader:
        place, line = f"line {line}", reader.line_num + 1
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            problems.append(f"{place}: {len(cells)} cells, where the header has {len(header)}")
            continue
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        below = row.get("include_descendants", "").casefold()
        if below not in YES | NO:
            problems.append(f"{place}: include_descendants is {below!r}; write true or false")
        yield Code(row["condition"], row["code"], place, row.get("vocabulary", ""), below in YES)
    _refuse(str(path), problems)


def _check_header(path: Path, header: list[str]) -> None:
    known = (*REQUIRED, *OPTIONAL)
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise DataError(
            f"{path}: the code list has no column {missing[0]!r}; its first line is "
            f"{','.join(header)!r} and must name condition and code"
        )
    for name in header:
        if name not in known:
            raise DataError(
                f"{path}: the code list has a column {name!r}{did_you_mean(name, known)}; "
                f"it may have {', '.join(known)}: rename or drop it"
            )
    if len(set(header)) < len(header):
        raise DataError(f"{path}: a column of the code list stands twice; drop one of them")


def _problems(found: CodeList) -> Iterator[str]:
    if not found.codes:
        yield "the list has no code; add at least one line with a condition and a code"
    seen: dict[tuple[str, str, str], str] = {}
    spelled: dict[str, Code] = {}
    for code in found.codes:
        if not code.condition or "\0" in code.condition:
            yield f"{code.place}: the condition has no name, or one with a NUL in it"
        if not code.code:
            yield f"{code.place}: {code.condition!r} has an empty code"
        key = (code.condition, code.code, code.vocabulary)
        if key in seen:
            yield (
                f"{code.place}: the code {code.code!r} of {code.condition!r} stands in "
                f"{seen[key]} already"
            )
        seen.setdefault(key, code.place)
        first = spelled.setdefault(code.condition.casefold(), code)
        if first.condition != code.condition:
            yield (
                f"{code.place}: {code.condition!r} and {first.condition!r} ({first.place}) differ "
                "only in capitals; spell them one way"
            )


def _refuse(source: str, problems: list[str]) -> None:
    if problems:
        shown = "\n".join(problems[:MOST_SHOWN])
        more = len(problems) - MOST_SHOWN
        rest = f"\nand {more} more; correct the code list" if more > 0 else ""
        raise DataError(f"{source}: {shown}{rest}")
