"""The birth certificate of a posterior: settings, seed, version, digests, bytes sent."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.study import digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from silomix.messages import Release
    from silomix.study import Study


@dataclass(frozen=True)
class Provenance:
    """Where a posterior comes from.

    Attributes
    ----------
    version : of silomix.
    study : digest of the study.
    seed : of all randomness.
    silos : the silos that took part, in the order of the roster and of every silo axis.
    releases : by silo, digest of its release; empty where silos made none.
    sent : by silo, and by kind of reply, the bytes that left it.
    answered : by silo, and by kind of reply, how many questions it answered.
    """

    version: str
    study: str
    seed: int
    silos: tuple[str, ...]
    releases: Mapping[str, str]
    sent: Mapping[str, Mapping[str, int]]
    answered: Mapping[str, Mapping[str, int]]


def make_provenance(
    study: Study,
    releases: Iterable[Release],
    sent: Mapping[str, Mapping[str, int]],
    answered: Mapping[str, Mapping[str, int]],
    *,
    silos: Sequence[str] | None = None,
) -> Provenance:
    """Return the provenance of a posterior made now.

    Parameters
    ----------
    study : its settings.
    releases : of every silo that made one.
    sent : by silo and kind of reply, bytes, as `count_bytes` counts them.
    answered : by silo and kind of reply, how many.
    silos : those that took part; the whole roster when left out.
    """
    return Provenance(
        version=metadata.version("silomix"),
        study=digest(study),
        seed=study.seed,
        silos=study.silos if silos is None else tuple(silos),
        releases={release.silo: fingerprint(release) for release in releases},
        sent=deepcopy(sent),
        answered=deepcopy(answered),
    )


def fingerprint(record: object) -> str:
    """Return the SHA-256, in hexadecimal, of what a record says: names, types, shapes, values."""
    hashed = hashlib.sha256()
    for what, content in _parts(record):
        hashed.update(f"{what} {len(content)} ".encode() + content)
    return hashed.hexdigest()


def count_bytes(record: object) -> int:
    """Return the bytes of what a record says: arrays as they are, numbers in 8, text in UTF-8."""
    return sum(len(content) for _, content in _parts(record))


def _parts(value: object) -> Iterator[tuple[str, bytes]]:
    """Yield the arrays, numbers and texts of a record: what each is, and its bytes."""
    if isinstance(value, np.ndarray):
        portable = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        yield f"array {portable.dtype.str} {value.shape}", portable.tobytes()
    elif is_dataclass(value):
        yield f"record {type(value).__name__}", b""
        for field in fields(value):
            yield f"field {field.name}", b""
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, Mapping):
        yield f"mapping of {len(value)}", b""
        for key in sorted(value):
            yield from _parts(key)
            yield from _parts(value[key])
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield f"sequence of {len(value)}", b""
        for item in value:
            yield from _parts(item)
    else:
        yield _scalar(value)


def _scalar(value: Any) -> tuple[str, bytes]:
    if value is None:
        return "nothing", b""
    if isinstance(value, str):
        return "text", value.encode()
    if isinstance(value, float | np.floating):
        return "float", struct.pack("<d", value)
    return "whole number", struct.pack("<q", int(value))
