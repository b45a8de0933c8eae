"""What the numbers of a release folder must satisfy; a file that does not is refused by name."""

from __future__ import annotations

import math
import re
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.airlock.format import BASES
from silomix.disclosure import UNIFORM, least_units, profile_basis, profile_rows
from silomix.errors import FileError
from silomix.release import LARGEST_CONCENTRATION

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from silomix.study.policy import Policy
    from silomix.types import Schema

WHOLE = re.compile(r"[0-9]{1,15}")
NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?(e[+-]?[0-9]{1,3})?")

NEARLY = 1e-5
"""How far the sum of draws in single precision may be from one."""

SAME = 1e-6
"""How far a count may be from a whole number, floating point being what it is."""


def whole(path: Path, text: str) -> int:
    """Return a whole number."""
    if not WHOLE.fullmatch(text):
        raise FileError(f"{path} is damaged: {text!r:.40} is no count")
    return int(text)


def number(path: Path, text: str) -> float:
    """Return a finite number."""
    found = float(text) if NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(found):
        raise FileError(f"{path} is damaged: {text!r:.40} is no number")
    return found


def check_sizes(path: Path, sizes: NDArray[np.int64], rows: int, policy: Policy) -> None:
    """Refuse sizes, (cluster,), that do not add up, or that the policy does not allow."""
    if (sizes < 1).any() or int(sizes.sum()) != rows:
        raise FileError(f"{path} is damaged: its sizes do not make up the {rows} rows released")
    least = least_units(policy) * policy.round_to
    if (sizes < least).any() or (sizes % policy.round_to).any():
        raise FileError(
            f"{path} has a size that its own policy does not let out: under {least}, or no "
            f"multiple of {policy.round_to}; have the silo release again"
        )


def check_levels(path: Path, levels: list[tuple[str, str]]) -> None:
    """Refuse variables that are not together, and levels that come twice."""
    runs = [name for name, _ in groupby(levels, key=lambda level: level[0])]
    if len(set(runs)) != len(runs) or len(set(levels)) != len(levels):
        raise FileError(f"{path} is damaged: a variable or a level comes twice")


def check_profile(
    path: Path, rows: list[list[str]], sizes: NDArray[np.int64], schema: Schema, policy: Policy
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the means, (cluster, level), and the concentrations, (cluster, variable)."""
    shape = (len(sizes), len(schema.levels))
    mean = np.array([number(path, row[6]) for row in rows]).reshape(shape)
    spread = np.array([number(path, row[7]) for row in rows]).reshape(shape)
    _check_simplex(path, mean, schema.offsets)
    concentration = spread[:, schema.offsets[:-1]]
    if (np.repeat(concentration, schema.sizes, axis=1) != spread).any():
        raise FileError(f"{path} is damaged: a variable has more than one concentration")
    if (concentration < 0).any() or (concentration > 2 * LARGEST_CONCENTRATION).any():
        raise FileError(f"{path} is damaged: a concentration is out of range")
    basis = np.repeat(profile_basis(sizes, schema.sizes, policy), schema.sizes, axis=1)
    of = np.repeat(profile_rows(sizes, schema.sizes, policy), schema.sizes, axis=1)
    _check_text(path, rows, mean, basis, of, policy)
    if policy.has_rules:
        _check_counts(path, mean * of, basis != UNIFORM, policy)
    return mean, concentration


def _check_text(
    path: Path,
    rows: list[list[str]],
    mean: NDArray[np.float64],
    basis: NDArray[np.int64],
    of: NDArray[np.int64],
    policy: Policy,
) -> None:
    """Refuse columns for people that say something else than the numbers."""
    for row, where, probability, total in zip(
        rows, basis.ravel(), mean.ravel(), of.ravel(), strict=True
    ):
        counted = policy.has_rules and where != UNIFORM
        count = str(round(probability * total)) if counted else ""
        if row[3:6] != [BASES[int(where)], count, "" if where == UNIFORM else str(total)]:
            raise FileError(
                f"{path} is damaged: cluster {row[0]!r:.20}, {row[1]!r:.40}: basis, count and of "
                "do not fit the mean"
            )


def _check_counts(
    path: Path, counts: NDArray[np.float64], real: NDArray[np.bool_], policy: Policy
) -> None:
    least = least_units(policy) * policy.round_to
    units = counts / policy.round_to
    wrong = real & ((counts < least - SAME) | (np.abs(units - np.rint(units)) > SAME))
    if wrong.any():
        raise FileError(
            f"{path} has a probability that its own policy does not let out: it stands for a "
            f"count under {least}, or no multiple of {policy.round_to}; have the silo release again"
        )


def check_draws(path: Path, draws: NDArray[Any], offsets: NDArray[np.int64]) -> None:
    """Refuse draws, (..., level), that are no probabilities."""
    _check_simplex(path, draws.astype(np.float64), offsets)


def _check_simplex(path: Path, values: NDArray[np.float64], offsets: NDArray[np.int64]) -> None:
    if (values < 0).any() or (values > 1 + NEARLY).any():
        raise FileError(f"{path} is damaged: a probability is not between 0 and 1")
    for start, end in pairwise(offsets):
        if (np.abs(values[..., start:end].sum(axis=-1) - 1) > NEARLY).any():
            raise FileError(f"{path} is damaged: probabilities do not add up to one")
