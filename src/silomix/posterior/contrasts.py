"""What sets each cluster apart, as columns of a frame and in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.model.metrics import highest_density_interval
from silomix.model.sentences import listing
from silomix.posterior.characterise import MARGIN, PROBABILITY, contrast, shown_columns, traits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from silomix.model.schema import Variable
    from silomix.posterior.characterise import Contrast
    from silomix.posterior.global_posterior import Posterior

# Traits in a cluster's description.
MOST_WORDS = 5
# Levels that only say that a variable is so: the variable's name is then enough.
YES = {"yes", "true", "1"}


def contrast_of(posterior: Posterior, margin: float = MARGIN) -> Contrast:
    """Return how the clusters of a posterior differ from the whole population."""
    return contrast(posterior.weights, posterior.profile_draws, posterior.family, margin)


def contrast_columns(
    posterior: Posterior, clusters: Iterable[int], level: float, margin: float
) -> dict[str, Any]:
    """Return columns with a line for each cluster and parameter, the clearest first."""
    family, found = posterior.family, contrast_of(posterior, margin)
    overall = family.describe(family.whole(posterior.profile_draws, posterior.weights))
    shown, names = np.flatnonzero(shown_columns(family)), np.array(family.names(), dtype=object)
    parts = []
    for cluster in clusters:
        order = shown[np.argsort(-np.abs(found.scaled[cluster, shown]), kind="stable")]
        own = family.describe(posterior.profile_draws[:, cluster])[:, order]
        differences = own.astype(np.float64) - overall[:, order]
        lower, upper = highest_density_interval(differences, level)
        scaled = found.scaled[cluster, order]
        sure = np.where(scaled > 0, found.high[cluster, order], found.low[cluster, order])
        parts.append(
            {
                "cluster": np.full(len(order), cluster),
                "variable": names[order, 0],
                "level_name": names[order, 1],
                "mean": own.mean(axis=0, dtype=np.float64),
                "whole": overall[:, order].mean(axis=0, dtype=np.float64),
                "difference": differences.mean(axis=0),
                "lower": lower,
                "upper": upper,
                "interval": np.full(len(order), f"{100 * level:g}% HDI"),
                "scaled": scaled,
                "probability": sure,
                "sets_apart": sure >= PROBABILITY,
            }
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def describe_clusters(posterior: Posterior, found: Contrast) -> list[str]:
    """Return each cluster in words: what is clearest about it, one trait of a variable."""
    family = posterior.family
    variables = np.repeat(np.array(family.variables, dtype=object), family.parameters)
    words = [word for _, word in family.names()]
    means = family.describe(posterior.profile_draws.mean(axis=0, dtype=np.float64))
    texts = []
    for cluster, sides in enumerate(traits(found, family)):
        both = np.concatenate(sides)
        scaled = found.scaled[cluster]
        said: dict[str, str] = {}
        for column in both[np.argsort(-np.abs(scaled[both]), kind="stable")]:
            variable, is_high = variables[column], bool(scaled[column] > 0)
            text = _trait(variable, words[column], means[cluster, column], is_high=is_high)
            said.setdefault(variable.name, text)
        texts.append(listing([*said.values()], MOST_WORDS) or "like the whole population")
    return texts


def _trait(variable: Variable, word: str, mean: float, *, is_high: bool) -> str:
    if not variable.levels:
        return f"{'high' if is_high else 'low'} {variable.name}"
    named = f"{variable.name} = {word}"
    if len(variable.levels) == 2 and word.casefold() in YES:
        named = variable.name
    elif len(variable.levels) == 2 and not is_high:  # of two names, the one that is common
        named, mean, is_high = f"{variable.name} = {variable.levels[0]}", 1 - mean, True
    if is_high:
        often = "nearly always" if mean >= 0.9 else "mostly" if mean >= 0.5 else "more often"
    else:
        often = "rarely" if mean <= 0.1 else "less often"
    return f"{often} {named}"
