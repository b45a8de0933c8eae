"""The page: everything in one file, and a content security policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from silomix.coordinator.polish import LIKELIHOOD_LIMIT, NOISE
from silomix.errors import FileError
from silomix.model.files import replace_file
from silomix.posterior.characterise import MARGIN, PROBABILITY, contrast
from silomix.posterior.diagnosis import sentences
from silomix.report import cluster_sections as clusters
from silomix.report import run_sections as run
from silomix.report import silo_sections as silos
from silomix.report.drawing import DARK, LIGHT, heat_rules

if TYPE_CHECKING:
    from silomix.posterior import Posterior
    from silomix.posterior.outside import Outside


def write_report(posterior: Posterior, path: str | Path, **settings: Any) -> Path:
    """Write the report of a posterior as one HTML file, and return its path.

    Parameters
    ----------
    path : such as report.html; a file that is there is replaced.
    settings : as for `make_report`.
    """
    text, target = make_report(posterior, **settings), Path(path)
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
    probability : posterior probability of such a difference from which it is shown.
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
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.globals |= {
        "clusters": clusters,
        "silos": silos,
        "run": run,
        "sentences": sentences,
    }
    page = environment.get_template("report.html.j2").render(
        posterior=posterior,
        margin=margin,
        probability=probability,
        contrast=contrast(posterior.weights, posterior.probabilities, margin=margin),
        outside=outside,
        limits=(LIKELIHOOD_LIMIT, NOISE),
        **_frame(),
    )
    return page.lstrip()


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
