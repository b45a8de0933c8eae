"""The sections of a report: one list for the page, the terminal and the results folder."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from silomix.posterior import Posterior
from silomix.report import cluster_sections as clusters
from silomix.report import run_sections as run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from silomix.posterior.outside_variables import Outside
    from silomix.report.display import Table

TRUST = "What was done, and whether to trust it"
SIZES, PROFILES, LABELS = "cluster_sizes.csv", "profiles.csv", "labels.csv"


class Section(NamedTuple):
    """A section of a report, whose parts are functions of a posterior.

    The page shows all but the files, explained where `assets/sections.html.j2` has a macro of the
    section's name; a terminal shows sentences and tables; the results folder has the files.

    Attributes
    ----------
    id : of the section on the page.
    title : of the section.
    sentences : the results in words.
    tables : those that a terminal has room for; None where a posterior has no such table.
    details : what only the page shows: tables, pictures, and a heat map.
    files : CSV files: a name, the attribute that a posterior with it has, and the frame.
    applies : whether a report has the section, by its posterior and outside variables.
    """

    id: str
    title: str
    sentences: Callable[[Posterior], Iterable[str]] = lambda _: ()
    tables: Sequence[Callable[[Posterior], Table | None]] = ()
    details: Sequence[Callable[[Posterior], Any]] = ()
    files: Sequence[tuple[str, tuple[str, Callable[..., Any]]]] = ()
    applies: Callable[[Posterior, Outside | None], bool] = lambda *_: True


def _several(posterior: Posterior, _: object) -> bool:
    return len(posterior.silos) > 1


SECTIONS = (
    Section("trust", TRUST, run.trust_sentences, details=[run.runs_table]),
    Section(
        "sizes",
        "Cluster sizes",
        tables=[clusters.sizes_table],
        files=[
            (SIZES, ("weights", clusters.sizes_frame)),
            (LABELS, ("assignment", Posterior.labels_frame)),
        ],
    ),
    Section(
        "profiles",
        "Profiles",
        clusters.kinds_sentences,
        details=[clusters.heat_map, clusters.numbers_table, clusters.curves_table],
        files=[(PROFILES, ("weights", Posterior.profiles))],
    ),
    Section(
        "traits",
        "What sets each cluster apart",
        tables=[clusters.traits_table],
        files=[("contrast.csv", ("weights", Posterior.contrast))],
    ),
    Section("outside", "Outside variables", applies=lambda _, outside: outside is not None),
    Section(
        "silos",
        "Which silos hold which cluster",
        tables=[run.found_table, run.silos_table],
        details=[run.shares_table],
        files=[("correspondence.csv", ("correspondence", Posterior.correspondence_frame))],
        applies=_several,
    ),
    Section(
        "drift",
        "In which variables the silos differ",
        run.drift_sentences,
        details=[run.drift_table],
        files=[("drift.csv", ("silo_profiles", Posterior.drift))],
        applies=_several,
    ),
    Section(
        "weights",
        "Silo weights",
        details=[run.influence_table],
        files=[("silo_weights.csv", ("silo_weights", Posterior.silo_weights_frame))],
        applies=_several,
    ),
    Section(
        "missing",
        "Missing cells",
        tables=[run.missing_table],
        applies=lambda posterior, _: run.missing_table(posterior) is not None,
    ),
    Section(
        "number", "How many clusters", clusters.number_sentences, details=[clusters.pairs_table]
    ),
    Section("map", "A map of the clusters", details=[clusters.map_picture]),
    Section("traces", "Traces", details=[partial(run.trace_picture, name) for name in run.TRACES]),
    Section(
        "made", "Settings, seed and digests", details=[run.provenance_table, run.settings_table]
    ),
    Section("sent", "What left each silo", run.sent_sentences, [run.sent_table]),
)


def sections(posterior: Posterior, outside: Outside | None = None) -> list[Section]:
    """Return the sections of a posterior's report; `outside` as for `make_report`."""
    return [section for section in SECTIONS if section.applies(posterior, outside)]
