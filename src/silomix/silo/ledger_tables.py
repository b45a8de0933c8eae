"""Records of the ledger: tables, their versions, and the studies answered from these."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from silomix.errors import SettingsError

# Stands beside the records that left: a question failed on the rows.
FAILED = "failed"


class Answered(BaseModel):
    """A study that was answered from a table, or failed on it.

    Attributes
    ----------
    study, title : its digest, and its line for people.
    silo : the table's silo in it.
    policy, rounding : name of the policy, and its minimum count and rounding.
    rows : digest of the coded rows that it was answered from.
    cells : digest of all cells of the table, in the order of the rows.
    columns : by name of the column, a digest of its cells in any order.
    left : what left, by name of the record, and when it first did; FAILED for a failed question.
    """

    study: str
    title: str
    silo: str
    policy: str
    rounding: str
    rows: str
    cells: str = ""
    columns: dict[str, str] = {}
    left: dict[str, str]

    @property
    def since(self) -> str:
        """When the first answer left, or failed."""
        return min(self.left.values(), default="")

    @property
    def only_failed(self) -> bool:
        """Whether nothing left but that a question failed."""
        return self.left.keys() == {FAILED}

    def is_like(self, other: Answered) -> bool:
        """Tell whether the two are one study, answered alike: together they tell no more."""
        # a table that could not be read may be mended: the study that told so goes on
        never_read = self.only_failed and not self.rows
        same = (self.study, self.silo) == (other.study, other.silo)
        same = same and (never_read or self.rows == other.rows)
        return same and (self.rounding == other.rounding or self.only_failed)


class Version(BaseModel):
    """A table as long as it stays the same.

    Attributes
    ----------
    since : when it was first answered from, or said to be new.
    digest : of its cells; None until it is answered from.
    studies : answered from it.
    """

    since: str
    digest: str | None = None
    studies: list[Answered] = []

    def has(self, cells: str) -> bool:
        """Tell whether a table with these cells was answered from."""
        return cells in {self.digest, *(study.cells for study in self.studies)}


class PolicyChange(BaseModel):
    """A policy that was replaced between two answers: the settings that differ, and when."""

    at: str
    before: dict[str, Any]
    now: dict[str, Any]


class Table(BaseModel):
    """All that left from one table.

    Attributes
    ----------
    name : what its owner calls it, or its path.
    allowed : studies that the owner allowed, whatever the policy's number: digests.
    versions : the last one is what is counted.
    policy : settings of the policy of the last answer, by name.
    changes : of that policy.
    """

    name: str
    allowed: list[str] = []
    versions: list[Version] = []
    policy: dict[str, Any] = {}
    changes: list[PolicyChange] = []

    @property
    def ever(self) -> list[Answered]:
        """Studies answered from any version."""
        return [study for version in self.versions for study in version.studies]

    @property
    def counted(self) -> Version:
        """The version that counts."""
        return self.versions[-1] if self.versions else Version(since="")

    def has(self, cells: str) -> bool:
        """Tell whether it ever had these cells when it was answered from."""
        return any(version.has(cells) for version in self.versions)


class Ledger(BaseModel):
    """What the file says.

    Attributes
    ----------
    imported : digests of the ledgers of version 0.2.0 whose tables are in it.
    """

    tables: list[Table] = []
    imported: list[str] = []

    def table(self, name: str | None) -> Table:
        """Return the table of that name, which is there from now on; the only one without a name.

        Of a table that nothing is said of afterwards, nothing is written.
        """
        names = [known.name for known in self.tables]
        if name is None and len(names) != 1:
            known = f"they are {', '.join(map(repr, names))}" if names else "it has none yet"
            raise SettingsError(
                f"the ledger does not say which table is meant; {known}: give --data TABLE or "
                "--table-name NAME"
            )
        if name not in names and name is not None:
            self.tables.append(Table(name=name))
        return next(known for known in self.tables if name in (known.name, None))
