"""Read and check a code list, which maps codes to conditions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from silomix.errors import DataError
from silomix.model.reading import read_table

COLUMNS = ("condition", "code", "vocabulary", "include_descendants", "description")
YES, NO = {"true", "yes", "1"}, {"false", "no", "0", ""}
MOST_SHOWN = 5
ONE_CODE = str | int | np.integer


@dataclass(frozen=True)
class Code:
    """One code of one condition.

    Attributes
    ----------
    condition, code : as they are spelled in the list, without spaces around them.
    place : place of the code in the list, such as "data row 2".
    vocabulary : the code system, or "" if the list does not have it.
    include_descendants : whether all concepts below it count too (OMOP).

    Examples
    --------
    >>> from silomix import ehr
    >>> ehr.Code("asthma", "317009", "row 1", include_descendants=True).condition
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
    source : its file, or "the code list".
    codes : in the order of the list.

    Examples
    --------
    >>> from silomix import ehr
    >>> codes = (ehr.Code("asthma", "J45", "row 1"), ehr.Code("asthma", "J46", "row 2"))
    >>> ehr.CodeList("codes.csv", codes).conditions
    ('asthma',)
    """

    source: str
    codes: tuple[Code, ...]

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions, in the order in which they first appear."""
        return tuple(dict.fromkeys(code.condition for code in self.codes))


Codes: TypeAlias = CodeList | Mapping[str, Iterable[str | int] | int] | str | Path


def read_codes(codes: Codes) -> CodeList:
    r"""Read a code list and check it.

    Parameters
    ----------
    codes : the path of a table with the columns condition and code, and if wanted vocabulary,
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
    if isinstance(codes, Mapping):
        pairs = [
            (name.strip(), str(code).strip())
            for name, values in codes.items()
            for code in ([values] if isinstance(values, ONE_CODE) else [*values] or [""])
        ]
        entries = (Code(*pair, f"entry {n}") for n, pair in enumerate(pairs, start=1))
        codes = CodeList("the code list", tuple(entries))
    elif not isinstance(codes, CodeList):
        codes = _from_file(Path(codes))
    refuse(codes.source, _problems(codes))
    return codes


def refuse(source: str, problems: Iterable[str]) -> None:
    """Raise an error with the first few problems of a code list, if any."""
    listed = list(problems)
    if len(listed) > MOST_SHOWN:
        listed[MOST_SHOWN:] = [f"and {len(listed) - MOST_SHOWN} more; correct the code list"]
    if listed:
        raise DataError(f"{source}: " + "\n".join(listed))


def refuse_codes(codes: CodeList, refused: Iterable[Code], why: str) -> None:
    """Refuse a list for some of its codes."""
    refuse(codes.source, (f"{code.place}: the code {code.code!r} {why}" for code in refused))


def _from_file(path: Path) -> CodeList:
    table = read_table(path).to_pandas()
    header = [name.strip().casefold() for name in table.columns]
    unique = len(set(header)) == len(header)
    if not (unique and {"condition", "code"} <= set(header) <= set(COLUMNS)):
        raise DataError(
            f"{path}: the first line of the code list is {','.join(header)!r}; it must name the "
            f"columns condition and code, and of {', '.join(COLUMNS[2:])} those there are, once"
        )
    cells = table.set_axis(header, axis=1).astype(object).fillna("").map(str.strip)
    entries, problems = [], []
    for number, row in enumerate(cells.to_dict("records"), start=1):
        place, below = f"data row {number}", row.get("include_descendants", "").casefold()
        if below not in YES | NO:
            problems.append(f"{place}: include_descendants is {below!r}; write true or false")
        elif any(row.values()):
            vocabulary = row.get("vocabulary", "")
            entries.append(Code(row["condition"], row["code"], place, vocabulary, below in YES))
    refuse(str(path), problems)
    return CodeList(str(path), tuple(entries))


def _problems(codes: CodeList) -> Iterator[str]:
    if not codes.codes:
        yield "the list has no code; add at least one line with a condition and a code"
    places: dict[tuple[str, str, str], str] = {}
    spelled: dict[str, str] = {}
    for code in codes.codes:
        name, place = code.condition, code.place
        if not (name and code.code) or "\0" in name:
            yield f"{place}: the condition {name!r} or its code {code.code!r} is empty or a NUL"
        earlier = places.setdefault((name, code.code, code.vocabulary), place)
        if earlier != place:
            yield f"{place}: the code {code.code!r} of {name!r} is already in {earlier}"
        spelling = spelled.setdefault(name.casefold(), name)
        if spelling != name:
            yield f"{place}: {name!r} and {spelling!r} differ only in capitals; spell them alike"
