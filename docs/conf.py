"""Sphinx settings. Nothing here needs the network."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import silomix

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "silomix"
author = "the silomix authors"
copyright = "2026, the silomix authors"
release = version = silomix.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "tables"]
html_theme = "furo"
html_title = "silomix"
html_copy_source = False

default_role = "literal"
autodoc_typehints = "none"
autodoc_mock_imports = ["sklearn"]  # an extra that the pages do without
autodoc_member_order = "bysource"
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
myst_heading_anchors = 3

ENTRY = re.compile(r"(?P<name>\w[\w, …]*) : (?P<text>.+)")
UNDERLINE = re.compile(r"-{3,}")


def put_descriptions_below(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Turn our `name : description` into `name`, with the description below.

    Napoleon takes what stands behind a colon for a type.
    """
    del app, what, name, obj, options
    section = ""
    spread: list[str] = []
    for before, line in zip(["", *lines], lines, strict=False):
        section = before if UNDERLINE.fullmatch(line) else section
        entry = ENTRY.fullmatch(line)
        if section and entry:
            # several names in one field must stay one word
            joined = entry["name"].replace(", ", ",")
            spread.append(joined if section == "Attributes" else entry["name"])
            spread.append(f"    {entry['text']}")
        else:
            spread.append(line)
    lines[:] = spread


def keep_property(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Undo what napoleon makes of a property: half its sentence becomes a type."""
    del app, name, options
    if what == "property":
        lines[:] = [*(inspect.getdoc(obj) or "").splitlines(), ""]


def setup(app: Sphinx) -> None:
    """Run before and after napoleon, which listens at the priority of 500."""
    app.connect("autodoc-process-docstring", put_descriptions_below, priority=400)
    app.connect("autodoc-process-docstring", keep_property, priority=600)
