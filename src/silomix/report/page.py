"""The page: everything in one file, and a content security policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np

from silomix.atomic import replace_file
from silomix.errors import FileError
from silomix.posterior.characterise import MARGIN, PROBABILITY, contrast, traits

if TYPE_CHECKING:
    from silomix.posterior import Posterior
    from silomix.posterior.outside import Outside


def write_report(
    posterior: Posterior,
    path: str | Path,
    *,
    margin: float = MARGIN,
    probability: float = PROBABILITY,
    outside: Outside | None = None,
) -> Path:
    """Write the report of a posterior as one HTML file, and return its path.

    Parameters
    ----------
    path : such as report.html; a file that is there is replaced.
    margin, probability, outside : as for `make_report`.
    """
    text = make_report(posterior, margin=margin, probability=probability, outside=outside)
    target = Path(path)
    try:
        replace_file(target, text.encode())
    except OSError as error:
        raise FileError(
            f"{target} cannot be written: {error.strerror}; choose a folder that exists, with "
            "enough space"
        ) from None
    return target


def make_report(
    posterior: Posterior,
    *,
    margin: float = MARGIN,
    probability: float = PROBABILITY,
    outside: Outside | None = None,
) -> str:
    """Return the report of a posterior as HTML that needs no other file and no network.

    It shows summaries of the posterior, never a row.

    Parameters
    ----------
    margin : smallest scaled difference from the whole population that sets a cluster apart.
    probability : posterior probability of such a difference from which it is told.
    outside : how the clusters differ in other variables, as `silomix.compare_outside` returns it;
        left out, the page has no such section.
    """
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        **_frame(posterior), **_sections(posterior, margin, probability, outside)
    )
    return page.lstrip()


def _asset(name: str) -> str:
    return (resources.files("silomix.report") / "assets" / name).read_text(encoding="utf-8")


def _frame(posterior: Posterior) -> dict[str, Any]:
    """Return title, style, scripts, and the policy that allows just these by their hashes."""
    from markupsafe import Markup

    style, early, script = _style(), _asset("theme.js"), _asset("report.js")
    policy = (
        "default-src 'none'; "
        f"script-src {_hashed(early)} {_hashed(script)}; style-src {_hashed(style)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return {
        "title": posterior.study.title or "Clusters across silos",
        "policy": policy,
        "style": Markup(style),
        "early": Markup(early),
        "script": Markup(script),
    }


def _style() -> str:
    from silomix.report.palette import DARK, LIGHT, heat_rules

    light = "".join(heat_rules(anchors, view) for view, anchors in LIGHT.items())
    dark = "".join(
        heat_rules(anchors, view, before=":root[data-theme=dark] ")
        for view, anchors in DARK.items()
    )
    return f"{_asset('report.css')}\n{light}@media screen {{\n{dark}}}\n"


def _hashed(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _sections(
    posterior: Posterior, margin: float, probability: float, compared: Outside | None
) -> dict[str, Any]:
    from silomix.polish import LIKELIHOOD_LIMIT, NOISE
    from silomix.report import clusters, drift, heat, made, outside, silos, trust, words

    found = contrast(posterior.weights, posterior.probabilities, margin=margin)
    counts = silos.rows_by_silo(posterior)
    rows = None if counts is None else sum(counts)
    told = traits(
        found,
        posterior.levels,
        posterior.study.table_schema.offsets,
        probability=probability,
    )
    means = posterior.probabilities.mean(axis=0, dtype=np.float64)
    say, match = posterior.silo_weights, posterior.correspondence
    return {
        "posterior": posterior,
        "rows": rows,
        "margin": margin,
        "probability": probability,
        "limits": (LIKELIHOOD_LIMIT, NOISE),
        "trust": trust.trust(posterior),
        "words": words.words(posterior),
        "sizes": clusters.sizes_table(posterior, rows),
        "heat": heat.heat_map(posterior, found, rows, probability),
        "traits": clusters.traits_table(told, means, posterior.n_draws),
        "outside": outside.outside_section(posterior, compared),
        "number": clusters.number_table(posterior),
        "local_numbers": clusters.local_numbers_table(posterior),
        "pairs": clusters.pairs_table(posterior),
        "splits": clusters.splits_table(posterior),
        "map": clusters.map_picture(posterior),
        "alone": silos.alone_sentences(posterior),
        "holders": silos.holders_table(posterior),
        "matches": silos.matches_table(posterior),
        "confident": match is not None and match.confidence is not None,
        "drift": drift.drift_section(posterior),
        "weights": None if say is None else silos.weights_table(say),
        "profiles": None if say is None else silos.profiles_table(say),
        "traces": trust.traces(posterior),
        "checks": trust.checks_table(posterior),
        "settings": made.settings_table(posterior),
        "certificate": made.certificate_table(posterior),
        "variables": made.variables_table(posterior),
        "sent": silos.sent_table(posterior),
        "kinds": [(kind, silos.KINDS.get(kind, kind)) for kind in silos.sent_kinds(posterior)],
    }
