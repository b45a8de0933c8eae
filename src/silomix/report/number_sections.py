"""The page's section on profiles of numbers: their means and spreads, and what they look like."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix.model.families import KINDS
from silomix.model.sentences import amount
from silomix.report.cluster_sections import LARGEST, profile_means
from silomix.report.display import Cell, Table, curve, heat_class, make_table, shown_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from silomix.kernels.arrays import Floats
    from silomix.model.schema import Variable
    from silomix.posterior import Posterior
    from silomix.posterior.characterise import Contrast

# Numbers on the page: those that differ most between clusters.
MOST_NUMBERS = 200
# Numbers whose curves are drawn, likewise.
MOST_CURVES = 30
# Places along a curve, and standard deviations that it shows of every cluster.
PLACES, REACH = 61, 3.0


class Number(NamedTuple):
    """What the page says of one number, in the units of the table.

    Attributes
    ----------
    parameters : (cluster, parameter)
    means, spreads, scaled : (cluster,); scaled differences are those of the means.
    whole : mean over all rows; within : standard deviation within clusters.
    """

    variable: Variable
    parameters: Floats
    means: Floats
    spreads: Floats
    scaled: Floats
    whole: float
    within: float

    def densities(self) -> tuple[Floats, Floats]:
        """Return places that hold all clusters, (place,), and densities: (cluster, place)."""
        means, spreads = self.means[:, None], self.spreads[:, None]
        shown = means + spreads * [-REACH, -1.0, 0.0, 1.0, REACH]
        family = KINDS[self.variable.kind]
        if family.support == "counts":
            top = np.ceil(max(shown.max(), 1.0))
            # of few counts, each of them
            x = np.linspace(0.0, top, int(min(top + 1, PLACES)))
        else:
            # narrow peaks lie between even places
            x = np.unique([*np.linspace(shown.min(), shown.max(), PLACES), *shown.ravel()])
            x = x[x > 0] if family.support == "positive" else x
        if family.units == "scaled":
            return x, np.exp(-0.5 * ((x - means) / spreads) ** 2) / spreads
        block = family((self.variable,))
        logs = block.natural(self.parameters) @ block.features(x[:, None]).T
        return x, np.exp(logs + block.log_base(x[:, None]))


def find_numbers(posterior: Posterior, contrast: Contrast, most: int) -> list[Number]:
    """Return the numbers that differ most between clusters, in the order of the table."""
    found = list(_numbers(posterior, contrast))
    strength = np.array([-np.abs(number.scaled).max() for number in found])
    return [found[place] for place in np.sort(np.argsort(strength, kind="stable")[:most])]


def _numbers(posterior: Posterior, contrast: Contrast) -> Iterator[Number]:
    means, family = profile_means(posterior), posterior.family
    for variable, (start, stop) in zip(family.variables, pairwise(family.offsets), strict=True):
        if variable.kind == "categorical":
            continue
        own = np.vstack([contrast.whole, means])[:, start:stop]
        scaled = contrast.scaled[:, start]
        block = KINDS[variable.kind]((variable,))
        # those of scaled numbers are their mean and standard deviation, in the table's units here
        x, sd = (
            (own[:, 0], own[:, 1])
            if block.units == "scaled"
            else (block.moments(own)[:, 1], block.spread(own)[:, 0])
        )
        yield Number(variable, own[1:], x[1:], sd[1:], scaled, float(x[0]), float(sd[0]))


def numbers_table(posterior: Posterior, contrast: Contrast) -> Table:
    """Return mean and spread of each number in each cluster, coloured by the scaled difference.

    Parameters
    ----------
    contrast : how the clusters differ from the whole population.
    """
    found = find_numbers(posterior, contrast, MOST_NUMBERS)
    columns: dict[str, Any] = {"variable": [shown_name(number.variable) for number in found]}
    columns["whole"] = [
        Cell(amount(number.whole), note=_spread(number.variable, number.within)) for number in found
    ]
    for cluster in range(posterior.n_clusters):
        columns[str(cluster)] = [
            Cell(
                amount(number.means[cluster]),
                heat_class((number.scaled[cluster] / LARGEST + 1) / 2, "d"),
                _spread(number.variable, number.spreads[cluster]),
            )
            for number in found
        ]
    caption = "Means, and in small print standard deviations; numbers down, clusters across"
    return make_table(caption, columns)


def _spread(variable: Variable, sd: float) -> str:
    """Return the small print of a number; that of a raw one follows from its mean."""
    return "" if KINDS[variable.kind].units == "raw" else f"sd {amount(sd)}"


def curves_table(posterior: Posterior, contrast: Contrast) -> Table:
    """Return a small curve of each number in each cluster; parameters as for `numbers_table`."""
    found = find_numbers(posterior, contrast, MOST_CURVES)
    sizes = posterior.weights.mean(axis=0, dtype=np.float64)
    names, drawn = [], []
    for number in found:
        x, densities = number.densities()
        names.append(Cell(shown_name(number.variable), note=f"{amount(x[0])} to {amount(x[-1])}"))
        drawn.append([curve(x, density, sizes @ densities) for density in densities])
    columns: dict[str, Any] = {"variable": names}
    for cluster in range(posterior.n_clusters):
        columns[str(cluster)] = [curves[cluster] for curves in drawn]
    return make_table("What the numbers look like in each cluster, before all rows", columns)
