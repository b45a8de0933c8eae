"""What a notebook shows of a posterior: the verdict, and the clusters as a small heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from silomix.model.sentences import amount, percent
from silomix.posterior.characterise import likeness_order, shown_columns
from silomix.posterior.contrasts import contrast_of
from silomix.report.cluster_sections import LARGEST, profile_means
from silomix.report.display import LIGHT, heat_class, heat_rules

if TYPE_CHECKING:
    from silomix.posterior import Posterior

# Levels and numbers that are shown: those that differ most between clusters.
MOST_LINES = 12


def notebook_view(posterior: Posterior) -> str:
    """Return HTML: clusters across with their shares, what differs most between them down."""
    found, means = contrast_of(posterior), profile_means(posterior)
    order, levels = likeness_order(found, posterior.family), len(posterior.levels)
    shown = np.flatnonzero(shown_columns(posterior.family))
    strength = np.abs(found.scaled[:, shown]).max(axis=0)
    lines = shown[np.argsort(-strength, kind="stable")[:MOST_LINES]]
    shares = posterior.weights.mean(axis=0, dtype=np.float64)

    def row(tag: str, cells: list[tuple[object, str]]) -> Markup:
        written = (Markup('<{0} class="{2}">{1}</{0}>').format(tag, *cell) for cell in cells)
        return Markup("<tr>{}</tr>").format(Markup("").join(written))

    heads = [(f"{posterior.cluster_names[c]} ({percent(shares[c])})", "") for c in order]
    rows = [row("th", [("cluster (share)", ""), ("whole", ""), *heads])]
    for column in lines:
        name = (" = " if column < levels else " ").join(posterior.parameter_names[column])
        form = percent if column < levels else amount
        heat = (heat_class((apart / LARGEST + 1) / 2, "d") for apart in found.scaled[order, column])
        cells = zip(map(form, means[order, column]), heat, strict=True)
        rows.append(row("td", [(name, ""), (form(found.whole[column]), ""), *cells]))
    page = '<div data-view="d"><style>{}</style><p>{}</p><table>{}</table></div>'
    style, verdict = Markup(heat_rules(LIGHT["d"], "d")), posterior.diagnostics.verdict
    return str(Markup(page).format(style, verdict, Markup("").join(rows)))
