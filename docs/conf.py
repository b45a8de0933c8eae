"""Sphinx settings. Nothing here needs the network."""

from __future__ import annotations

import re

import silomix

project = "silomix"
author = "the silomix authors"
copyright = "2026, the silomix authors"
release = version = silomix.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "silomix"
html_copy_source = False

default_role = "literal"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar = True
python_maximum_signature_line_length = 88
myst_heading_anchors = 3

ENTRY = re.compile(r"(?P<indent> *)(?P<name>[\w, …]+) : (?P<text>.+)")
UNDERLINE = re.compile(r" *-{3,}")


def put_descriptions_below(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Turn our `name : description` into `name`, description below.

    Napoleon takes what stands behind the colon for a type.
    """
    del app, what, name, obj, options
    inside = False
    spread: list[str] = []
    for line in lines:
        inside = inside or bool(UNDERLINE.fullmatch(line))
        entry = ENTRY.fullmatch(line)
        if inside and entry and not entry["indent"]:
            spread += [entry["name"], f"    {entry['text']}"]
        else:
            spread.append(line)
    lines[:] = spread


def setup(app: object) -> None:
    """Run before napoleon, which listens at the priority of 500."""
    app.connect("autodoc-process-docstring", put_descriptions_below, priority=400)
