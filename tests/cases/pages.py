"""Pages of the documentation: their blocks, and running them."""

from __future__ import annotations

import contextlib
import io
import re

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def blocks(text, language):
    """The blocks of a language on a page, each with the text block that follows it, or ''."""
    return [(code, printed) for kind, code, printed in FENCE.findall(text) if kind == language]


def run_page(text):
    """Run the Python blocks of a page in order, in one namespace, and return that."""
    namespace = {"__name__": "page"}
    for code, expected in blocks(text, "python"):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "page", "exec", dont_inherit=True), namespace)
        if expected:
            assert printed.getvalue() == expected
    return namespace
