"""How it was made: settings, seed, versions, digests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from silomix.report.records import Cell, Table, cells

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.posterior import Posterior


def settings_table(posterior: Posterior) -> Table:
    """Return every setting of the study but its roster and variables."""
    settings = posterior.study.model_dump(mode="json", exclude={"silos", "variables", "title"})
    rows = tuple(cells(name, value) for name, value in _flat(settings))
    return Table("Settings of the study", ("setting", "value"), rows, frozenset({0, 1}))


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif value is not None:
            yield f"{before}{name}", str(value)


def certificate_table(posterior: Posterior) -> Table:
    """Return the birth certificate: version, seed, digests."""
    made = posterior.provenance
    rows = [
        cells("silomix", made.version),
        cells("seed", str(made.seed)),
        cells("draws", Cell(f"{posterior.n_draws:,}", note=_how_many(posterior))),
        cells("digest of the study", made.study),
        *(cells(f"digest of {silo}'s release", digest) for silo, digest in made.releases.items()),
    ]
    return Table("Version, seed and digests", ("what", "value"), tuple(rows), frozenset({0, 1}))


def _how_many(posterior: Posterior) -> str:
    """Say why there are more draws than the setting has, which is the fewest."""
    least = posterior.study.kept_draws
    if posterior.n_draws <= least:
        return ""
    made = "of the last rounds of the polish" if posterior.diagnostics.rounds else "of all chains"
    return f"all {made}; the setting kept_draws, {least:,}, is the fewest there may be"


def variables_table(posterior: Posterior) -> Table:
    """Return the variables and their levels."""
    rows = tuple(
        cells(variable.name, ", ".join(variable.levels)) for variable in posterior.study.variables
    )
    return Table("Variables and their levels", ("variable", "levels"), rows, frozenset({0, 1}))
