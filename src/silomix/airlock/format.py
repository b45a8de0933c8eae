"""What a release folder looks like.

- ``README.txt`` and ``not_included.txt``: for people.
- ``manifest.json``: kind and version, study, silo, policy, diagnostics, and every other file's
  SHA-256, bytes and rows.
- ``cluster_sizes.csv``: rows of each cluster.
- ``profile.csv``: a line per cluster and level. `basis` says what the profile is of; `count` of
  `of` rows is what the mean stands for, where the policy has rules.
- ``checks.csv``: what each rule of the policy did.
- ``profile.png``: the profiles as a heat map, where matplotlib was installed.
- ``weights.csv`` and ``probabilities.csv``: the draws, in tier "draws" alone.

A table too long for one file goes on in ``profile_2.csv`` and so on. Numbers are written so that
they read back bit for bit, and texts as `silomix.spreadsheet` has them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from silomix.disclosure import CLUSTER, SILO, UNIFORM

KIND: Literal["silomix release"] = "silomix release"
FORMAT: Literal[1] = 1

README, MANIFEST, NOT_INCLUDED = "README.txt", "manifest.json", "not_included.txt"
SIZES, CHECKS, PICTURE = "cluster_sizes.csv", "checks.csv", "profile.png"
PROFILE, WEIGHTS, PROBABILITIES = "profile", "weights", "probabilities"
"""Tables that may need several files; `part_name` names them."""

MOST_LINES = 5_000
"""Of a file, its heading included: what airlocks take."""
LARGEST_FILE = 16_000_000
LARGEST_MANIFEST = 1_000_000
LARGEST_FOLDER = 2_000_000_000
MOST_FILES = 2_000
MOST_CLUSTERS = 255

PART = re.compile(rf"({PROFILE}|{WEIGHTS}|{PROBABILITIES})(?:_([2-9]|[1-9][0-9]{{1,3}}))?\.csv")

SIZES_HEADING = ["cluster", "rows"]
PROFILE_HEADING = [
    "cluster",
    "variable",
    "level",
    "basis",
    "count",
    "of",
    "mean",
    "concentration",
]
CHECKS_HEADING = ["rule", "where", "threshold", "cells", "changed", "result"]

BASES = {CLUSTER: "cluster", SILO: "silo", UNIFORM: "uniform"}


def part_name(table: str, number: int) -> str:
    """Return the name of a table's file, numbered from 1."""
    return f"{table}.csv" if number == 1 else f"{table}_{number}.csv"


def weights_heading(clusters: int) -> list[str]:
    """Return the columns of the drawn weights."""
    return ["draw", *(f"cluster {cluster}" for cluster in range(clusters))]


def probabilities_heading(levels: list[tuple[str, str]]) -> list[str]:
    """Return the columns of the drawn probabilities."""
    return ["draw", "cluster", *(f"{variable}={level}" for variable, level in levels)]


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("should be one line of printable text")
    return text


Line = Annotated[str, Field(max_length=2_000), AfterValidator(_one_line)]
Whole = Annotated[int, Field(ge=0, le=2**53)]


Number = Annotated[float, Field(strict=False)]
"""A float; JSON has no nan and no infinity, so they are written as text."""


class Entry(BaseModel):
    """Base of the records in `manifest.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="strings")


class FileEntry(Entry):
    """One file of the folder; rows without the heading, for tables."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0, le=LARGEST_FILE)]
    rows: Annotated[int, Field(ge=0, lt=MOST_LINES)] | None = None


class DiagnosticsEntry(Entry):
    """A `silomix.release.ReleasedDiagnostics`, fit to be shown."""

    verdict: Line
    trusted: bool
    rhat: dict[str, Number]
    ess: dict[str, Number]
    prior_draws: Number
    agreement: Number = 1.0
    full: Number = 0.0
    sweeps: Whole = 0


class Manifest(Entry):
    """`manifest.json`."""

    kind: Literal["silomix release"] = KIND
    format: Literal[1] = FORMAT
    silomix: Line
    study: Line
    silo: Line
    place: Whole
    tier: Literal["summary", "draws"]
    rows: Whole
    clusters: Annotated[int, Field(ge=1, le=MOST_CLUSTERS)]
    draws: Annotated[int, Field(ge=1, le=2**53)] | None
    policy: dict[str, Any]
    policy_digest: Line
    diagnostics: DiagnosticsEntry
    files: Annotated[dict[str, FileEntry], Field(max_length=MOST_FILES)]
