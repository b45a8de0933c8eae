"""File -> Posterior; `silomix.posterior.format` says what is in it. Nothing in it is believed."""

from __future__ import annotations

import io
import json
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from silomix.errors import FileError, SettingsError
from silomix.posterior.diagnosis import PolishTrace, PosteriorDiagnostics
from silomix.posterior.format import (
    FORMAT,
    KIND,
    LARGEST_MANIFEST,
    MANIFEST,
    Manifest,
    member_name,
    n_bytes,
)
from silomix.posterior.provenance import Provenance
from silomix.posterior.record import Assignment, Posterior
from silomix.release import ReleasedDiagnostics
from silomix.study import Study, digest
from silomix.study.problems import file_place
from silomix.study.record import validate
from silomix.types import Correspondence, SiloWeights

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from silomix.posterior.format import ArrayEntry, DiagnosticsEntry

    Arrays = Mapping[str, NDArray[Any]]

LONGEST_HEADER = 10_000
ENCRYPTED = 0x1
SUM_TOLERANCE = 1e-3
"""How far weights or probabilities may be from adding up to one: a thousand float32 roundings."""


class _Damage(Exception):
    """What is wrong with the content, as the end of a sentence."""


def load(path: str | Path) -> Posterior:
    """Read a posterior that `Posterior.save` wrote.

    Raises
    ------
    FileError
        When the file is missing, damaged, of another version, or no saved posterior.
    """
    source = Path(path)
    try:
        with zipfile.ZipFile(source) as archive:
            members = _members(archive, source.stat().st_size)
            manifest = _read_manifest(archive, members)
            arrays = _read_arrays(archive, members, manifest)
        return _assemble(manifest, arrays)
    except OSError as error:
        reason = error.strerror or "damaged"
        raise FileError(f"{source} cannot be read: {reason}; check the path") from None
    except zipfile.BadZipFile:
        text = "is no saved posterior, or is damaged or truncated"
        raise FileError(f"{source} {text}; give a file that posterior.save wrote") from None
    except _Damage as damage:
        text = f"{source} {damage}; save the posterior again, or get another copy"
        raise FileError(text) from None
