"""A site's settings -> its `Silo`: table, study, policy and store, all its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from silomix.errors import SettingsError
from silomix.sampler import cores
from silomix.site import load_rows, open_account, open_silo
from silomix.study import digest, read_study
from silomix.study.policy import find_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from silomix.silo import Silo
    from silomix.study import Study
    from silomix.transports.flare.kit import SiteSettings

SHOWN = 16
"""Characters of a study's digest in the name of its store."""


def without(study: Study, silos: Sequence[str]) -> Study:
    """Return the study that goes on without these silos: another study, and its title says so.

    The roster deals the random streams and sets each silo's share of the prior, so nothing of
    the whole study's answers is used, and every silo that stays has to agree to it.
    """
    if not silos:
        return study
    for name in silos:
        if name not in study.silos:
            raise SettingsError(
                f"the study has no silo {name!r} to go on without; its roster is "
                f"{', '.join(map(repr, study.silos))}: correct the name"
            )
    staying = tuple(name for name in study.silos if name not in silos)
    if not staying:
        raise SettingsError("no silo is left to go on with; leave out fewer")
    title = f"{study.title or 'Untitled'} (without {', '.join(sorted(silos))})"
    return study.model_copy(update={"silos": staying, "title": title})


def open_site(settings: SiteSettings, name: str) -> tuple[Silo, NDArray[np.int64]]:
    """Read what the site decided, and open its store: a folder for each study.

    Returns the silo, and the number that each of its rows has in its table.

    Raises
    ------
    SilomixError
        When something does not fit; the text stays here.
    """
    study = without(read_study(settings.study), settings.without)
    policy = find_policy(settings.policy)
    loaded = load_rows(
        settings.data, study, name, column=settings.silo_column, frequency=settings.frequency
    )
    account = open_account(
        loaded,
        study,
        name,
        policy=policy,
        data=Path(settings.data),
        column=settings.silo_column,
        table=settings.table,
        ledger=Path(settings.ledger) if settings.ledger else None,
    )
    silo = open_silo(
        loaded.shard,
        study,
        name,
        policy=policy,
        store=Path(settings.store) / digest(study)[:SHOWN],
        account=account,
    )
    return replace(silo, threads=cores(settings.threads)), loaded.rows
