"""The folder a data officer reads: a release as csv, json, txt and png."""

from __future__ import annotations

from silomix.airlock.reading import Contents, read_contents, read_release
from silomix.airlock.words import explain, inferences
from silomix.airlock.writing import check_target, write_release

__all__ = [
    "Contents",
    "check_target",
    "explain",
    "inferences",
    "read_contents",
    "read_release",
    "write_release",
]
