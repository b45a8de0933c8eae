"""The report: one list of sections for the page, the terminal and the results folder; the page.

The page has everything in one file, and a content security policy that lets nothing else in.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup

from silomix.errors import FileError, SettingsError
from silomix.messages.heat_map import LIGHT
from silomix.model.files import replace_file, writing
from silomix.model.sentences import amount, percent, plural, printable_lines
from silomix.posterior import Posterior, characterise
from silomix.report import cluster_sections as clusters
from silomix.report import display
from silomix.report import run_sections as run
from silomix.report.display import DARK, Table, apart_class, heat_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from silomix.report.outside_variables import Outside

# Levels and numbers that a notebook shows: those that differ most between clusters.
MOST_LINES = 12
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


def write_report(posterior: Posterior, path: str | Path, *, outside: Outside | None = None) -> Path:
    """Write the report of a posterior as one HTML file with today's date, and return its path.

    Parameters
    ----------
    path : such as report.html; a file that is there is replaced.
    outside : as for `make_report`.
    """
    today = datetime.now().astimezone().date().isoformat()
    text, target = make_report(posterior, outside=outside, date=today), Path(path)
    with writing(target, FileError):
        replace_file(target, text.encode())
    return target


def make_report(posterior: Posterior, *, outside: Outside | None = None, date: str = "") -> str:
    """Return the report of a posterior as HTML that needs no other file and no network.

    It shows summaries of the posterior, never a row.

    Parameters
    ----------
    outside : how the clusters differ in other variables, as `silomix.compare_outside` returns it;
        left out, the page has no such section.
    date : of the report, if it is to have one.
    """
    if outside is not None and outside.posterior.n_clusters != posterior.n_clusters:
        raise SettingsError(
            f"outside compares {outside.posterior.n_clusters} clusters, and the posterior has "
            f"{posterior.n_clusters}; call compare_outside with this posterior"
        )
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    page = environment.get_template("report.html.j2").render(
        posterior=posterior,
        clusters=clusters,
        run=run,
        sections=sections(posterior, outside),
        compared=outside,
        plural=plural,
        display=display,
        characterise=characterise,
        date=date,
        **_frame(),
    )
    return page.lstrip()


def _printable(value: object) -> object:
    return value if isinstance(value, Markup) else printable_lines(str(value))


def _asset(name: str) -> str:
    return (resources.files("silomix.report") / "assets" / name).read_text(encoding="utf-8")


def _frame() -> dict[str, str]:
    """Return style and scripts, and the policy that allows just these by their hashes."""
    light = "".join(heat_rules(anchors, view) for view, anchors in LIGHT.items())
    dark = "".join(heat_rules(DARK[view], view, ":root[data-theme=dark] ") for view in DARK)
    style = f"{_asset('report.css')}\n{light}@media screen {{\n{dark}}}\n"
    early, script = _asset("theme.js"), _asset("report.js")
    policy = (
        f"default-src 'none'; script-src {_hashed(early)} {_hashed(script)}; "
        f"style-src {_hashed(style)}; base-uri 'none'; form-action 'none'"
    )
    return {"policy": policy, "style": style, "early": early, "script": script}


def _hashed(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def notebook_view(posterior: Posterior) -> str:
    """Return HTML: clusters across with their shares, what differs most between them down."""
    contrasts, means = posterior.contrasts, clusters.profile_means(posterior)
    order, family = characterise.likeness_order(contrasts, posterior.family), posterior.family
    shown = np.flatnonzero(family.tells())
    strength = np.abs(contrasts.scaled[:, shown]).max(axis=0)
    lines = shown[np.argsort(-strength, kind="stable")[:MOST_LINES]]
    shares = posterior.weights.mean(axis=0, dtype=np.float64)

    def row(tag: str, cells: list[tuple[object, str]]) -> Markup:
        written = (Markup('<{0} class="{2}">{1}</{0}>').format(tag, *cell) for cell in cells)
        return Markup("<tr>{}</tr>").format(Markup("").join(written))

    heads = [(f"{posterior.cluster_names[c]} ({percent(shares[c])})", "") for c in order]
    rows = [row("th", [("cluster (share)", ""), ("whole", ""), *heads])]
    for column in lines:
        joint, form = (" = ", percent) if family.shares()[column] else (" ", amount)
        name = joint.join(posterior.parameter_names[column])
        heat = map(apart_class, contrasts.scaled[order, column])
        cells = zip(map(form, means[order, column]), heat, strict=True)
        rows.append(row("td", [(name, ""), (form(contrasts.whole[column]), ""), *cells]))
    page = '<div data-view="d"><style>{}</style><p>{}</p><table>{}</table></div>'
    style, verdict = Markup(heat_rules(LIGHT["d"], "d")), posterior.diagnostics.verdict
    return str(Markup(page).format(style, verdict, Markup("").join(rows)))
