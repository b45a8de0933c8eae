"""A site's settings -> its `Silo`: table, study, policy and store, all its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from silomix.data import load
from silomix.errors import SettingsError, StudyMismatch
from silomix.policy import find_policy, policy_digest
from silomix.roster import rows_of
from silomix.sampler import cores
from silomix.silo import Silo
from silomix.store import digest_rows, open_store
from silomix.study import digest, read_study

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def open_silo(settings: SiteSettings, name: str) -> Silo:
    """Read what the site decided, and open its store: a folder for each study.

    Raises
    ------
    SilomixError
        When something does not fit; the text stays here.
    """
    study = without(read_study(settings.study), settings.without)
    if name not in study.silos:
        raise StudyMismatch(
            f"the study {settings.study} has no silo {name!r}, the name in this site's "
            f"certificate; its roster is {', '.join(map(repr, study.silos))}: use the study file "
            "that this silo is part of"
        )
    column = settings.silo_column
    table = rows_of(settings.data, column, name) if column else settings.data
    shard = load(table, schema=study.table_schema, frequency=settings.frequency, where=name)
    policy = find_policy(settings.policy)
    identity = {
        "silo": name,
        "study": digest(study),
        "table": digest_rows(shard.codes),
        "policy": policy_digest(policy),
    }
    store = open_store(Path(settings.store) / identity["study"][:SHOWN], identity)
    return Silo(
        name=name,
        place=study.silos.index(name),
        shard=shard,
        study=study,
        store=store,
        policy=policy,
        threads=cores(settings.threads),
        checkpoint=store.checkpoint,
    )
