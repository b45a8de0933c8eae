"""Posterior -> one HTML page that opens offline: what was found, and whether to trust it.

The page has everything in one file, and a content security policy that lets nothing else in.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import numpy as np
from markupsafe import Markup

from silomix.errors import FileError
from silomix.messages.heat_map import LIGHT
from silomix.model.files import replace_file, writing
from silomix.model.sentences import amount, percent, plural, printable_lines
from silomix.posterior import characterise
from silomix.report import cluster_sections, run_sections
from silomix.report.display import DARK, STEPS, apart_class, heat_rules
from silomix.report.sections import sections

if TYPE_CHECKING:
    from silomix.posterior import Posterior
    from silomix.posterior.outside_variables import Outside

# Levels and numbers that a notebook shows: those that differ most between clusters.
MOST_LINES = 12


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
        clusters=cluster_sections,
        run=run_sections,
        sections=sections(posterior, outside),
        compared=outside,
        plural=plural,
        steps=STEPS,
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
    found, means = posterior.contrasts, cluster_sections.profile_means(posterior)
    order, family = characterise.likeness_order(found, posterior.family), posterior.family
    shown = np.flatnonzero(family.tells())
    strength = np.abs(found.scaled[:, shown]).max(axis=0)
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
        heat = map(apart_class, found.scaled[order, column])
        cells = zip(map(form, means[order, column]), heat, strict=True)
        rows.append(row("td", [(name, ""), (form(found.whole[column]), ""), *cells]))
    page = '<div data-view="d"><style>{}</style><p>{}</p><table>{}</table></div>'
    style, verdict = Markup(heat_rules(LIGHT["d"], "d")), posterior.diagnostics.verdict
    return str(Markup(page).format(style, verdict, Markup("").join(rows)))
