"""What long and OMOP tables are asked for alike, checked at the door."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from silomix.ehr.codes import check_columns
from silomix.ehr.counting import Request
from silomix.errors import SettingsError
from silomix.sampler import at_least as whole_at_least

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silomix.ehr.codes import CodeList


def make_request(
    codes: CodeList,
    person: str,
    carried: Sequence[str],
    at_least: int,
    out: str | Path | None,
) -> Request:
    """Return what is asked for; refuse names that stand twice and files that cannot be written."""
    names = [person, *carried]
    folded = [name.casefold() for name in names]
    for name in names:
        if folded.count(name.casefold()) > 1:
            raise SettingsError(
                f"the column {name!r} would stand twice in the result (capitals do not count); "
                "carry it along once"
            )
    check_columns(codes, names)
    fewest = whole_at_least("at_least", at_least, 0)
    if fewest > len(codes.conditions):
        raise SettingsError(
            f"{{at_least}} is {fewest}, and the code list has {len(codes.conditions)} conditions; "
            "ask for fewer",
            at_least=None,
        )
    return Request(
        conditions=codes.conditions,
        person=person,
        carried=tuple(carried),
        at_least=fewest,
        out=_file_to_write(out),
    )


def _file_to_write(out: str | Path | None) -> Path | None:
    if out is None:
        return None
    path = Path(out)
    if path.suffix != ".parquet":
        raise SettingsError(
            f"{path} does not end in .parquet, which is what is written; name it "
            f"{path.with_suffix('.parquet').name}"
        )
    if not path.parent.is_dir():
        raise SettingsError(f"{path}: there is no folder {path.parent}; make it first")
    return path
