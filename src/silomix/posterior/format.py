"""What a saved posterior looks like: a zip archive of JSON and .npy members, deflated.

- ``posterior.json``: the kind and version of the file, the study's settings, diagnostics,
  provenance, and the type and shape of every array.
- ``weights.npy`` (draw, cluster), ``weights_by_silo.npy`` (draw, silo, cluster),
  ``probabilities.npy`` (draw, cluster, level), float32.
- ``correspondence_groups.npy`` and ``correspondence_sizes.npy``, the silos' local clusters one
  silo after the other, and ``correspondence_confidence.npy``.
- ``silo_weights.npy`` (silo,) and ``silo_profiles.npy`` (silo, cluster): λ and μ, how much each
  silo counts.
- ``kappa.npy`` (draw, variable), or one line of point values, and ``silo_probabilities.npy``
  (silo draw, silo, cluster, level), float32: how the silos' own profiles differ from the shared
  ones. The silo draws are the last of all draws.
- ``elbo.npy``, and ``polish_0.npy``, ``polish_1.npy``, … in the order of the traces' names.
- ``membership.npy`` (row, cluster), in parts of 10,000, and ``row_silos.npy`` (row,). A row's
  label is its most probable cluster.

A silo's weight or probability that is the shared one, bit for bit, is not written twice: nan stands
in its place. Only the first three arrays are always there. Arrays are little-endian, in C order, in
version 1.0 of NumPy's format; no object is ever pickled. A file is refused that claims to unfold to
more than `UNFOLDS` times its length. The same posterior always makes the same bytes.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

KIND: Literal["silomix posterior"] = "silomix posterior"
FORMAT: Literal[2] = 2
MANIFEST = "posterior.json"
LARGEST_MANIFEST = 50_000_000
"""Bytes: ten times the largest study file."""

UNFOLDS = 200
"""Times its length that a file may unfold to; deflate could make a thousand of one."""
ALWAYS = 100_000_000
"""Bytes that every file may unfold to."""

DRAWS = {"weights", "weights_by_silo", "probabilities", "silo_probabilities"}
"""Arrays of probabilities."""

TYPES = {
    **dict.fromkeys(DRAWS, "<f4"),
    **dict.fromkeys(("correspondence_groups", "correspondence_sizes", "row_silos"), "<i8"),
    "membership": "<u2",
}
"""The types of arrays; the others are float64, but for traces, which may be anything."""

TRACE = re.compile(r"elbo|polish_\d+")

DTYPE = r"^[<|][fiub][1248]$"

Number = Annotated[float, Field(strict=False)]
"""A float; JSON has no nan and no infinity, so they are written as text."""


class Entry(BaseModel):
    """Base of the records in `posterior.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="strings")


class ArrayEntry(Entry):
    """Type and shape of an array."""

    dtype: Annotated[str, Field(pattern=DTYPE)]
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=8)]


class SiloEntry(Entry):
    """A `silomix.release.ReleasedDiagnostics`."""

    verdict: str
    trusted: bool
    rhat: dict[str, Number]
    ess: dict[str, Number]
    prior_draws: Number
    agreement: Number = 1.0
    full: Number = 0.0
    sweeps: int = 0


class PolishEntry(Entry):
    """A `PolishTrace` without its arrays."""

    names: list[str]
    rounds: int
    still_moving: bool


class DiagnosticsEntry(Entry):
    """A `PosteriorDiagnostics` without its arrays."""

    silos: dict[str, SiloEntry]
    polish: PolishEntry | None
    chains: SiloEntry | None
    confidence: Number | None = None
    smallest: Number | None = None
    notes: list[str]


class CorrespondenceEntry(Entry):
    """A `silomix.types.Correspondence` without its arrays; `counts`: local clusters by silo."""

    silos: list[str]
    counts: list[Annotated[int, Field(ge=1)]]
    method: str


class SiloWeightsEntry(Entry):
    """A `silomix.types.SiloWeights` without its arrays."""

    silos: list[str]


class ProvenanceEntry(Entry):
    """A `Provenance`."""

    version: str
    study: str
    seed: int
    silos: Annotated[list[str], Field(min_length=1)]
    releases: dict[str, str]
    sent: dict[str, dict[str, int]]
    answered: dict[str, dict[str, int]]


class Manifest(Entry):
    """All of `posterior.json`."""

    kind: Literal["silomix posterior"] = KIND
    format: Literal[2] = FORMAT
    study: dict[str, Any]
    backend: Literal["pandas", "polars", "pyarrow"]
    correspondence: CorrespondenceEntry | None
    silo_weights: SiloWeightsEntry | None
    diagnostics: DiagnosticsEntry
    provenance: ProvenanceEntry
    arrays: dict[str, ArrayEntry]


def type_of(array: str) -> str | None:
    """Return the type of an array by its name; None for a trace."""
    return None if TRACE.fullmatch(array) else TYPES.get(array, "<f8")


def member_name(array: str) -> str:
    """Return the name of an array's member."""
    return f"{array}.npy"


def n_bytes(entry: ArrayEntry) -> int:
    """Return how long the array itself is."""
    return math.prod(entry.shape) * int(entry.dtype[-1])
