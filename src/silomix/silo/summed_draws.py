"""Draws made elsewhere, summed up in units that all silos share: a study of their parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix.errors import DataError, SettingsError
from silomix.model.families.parameter import TRANSFORMS
from silomix.model.prior import Prior
from silomix.model.schema import Schema, Variable
from silomix.model.sentences import at_least, listing, one_of, quoted
from silomix.silo import given_draws
from silomix.study import digest, make_study
from silomix.study.policy import OPEN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from silomix.messages import Release
    from silomix.silo.given_draws import Given
    from silomix.study import Study
    from silomix.study.policy import Policy

# Weight below which a component is as good as empty.
SMALLEST = 0.01
# What silos sampled under, as `combine` has it.
WHOLE = Prior(alpha=1.0, fractionate=False)


class Summed(NamedTuple):
    """Draws that were made elsewhere, as a study of their parameters.

    Attributes
    ----------
    releases : of each silo, in the order of the study's roster.
    notes : sentences on what was guessed or left out.
    """

    study: Study
    releases: list[Release]
    notes: list[str]


def sum_up_draws(
    draws: Mapping[str, Any],
    where: tuple[str, Sequence[str] | None, str | None],
    *,
    rows: Mapping[str, int],
    transforms: Mapping[str, str],
    prior: Mapping[str, tuple[float, float]],
    smallest: float = SMALLEST,
    policy: Policy = OPEN,
    **settings: Any,
) -> Summed:
    """Align the draws of each silo, and sum them up in units that all silos share.

    Parameters are those of `combine`; `where` is `weights`, `parameters` and `component`.
    """
    if not draws:
        raise DataError("there are no draws; give those of at least one silo")
    read = {silo: given_draws.read_draws(own, silo, *where) for silo, own in draws.items()}
    first, names = next((silo, one.names) for silo, one in read.items())
    for silo, one in read.items():
        if sorted(one.names) != sorted(names):
            found = f"the parameters of {first!r} are {quoted(names)}, of {silo!r} "
            raise DataError(f"{found}{quoted(one.names)}; give the same ones")
        same = [one.names.index(name) for name in names]
        read[silo] = one._replace(names=names, values=one.values[..., same])
    for keyword, given, known in (
        ("rows", rows, read),
        ("transforms", transforms, names),
        ("prior", prior, names),
    ):
        check_named(keyword, given, known)
    words = {}
    for place, name in enumerate(names):
        everywhere = [one.values[..., place] for one in read.values()]
        words[name] = transforms.get(name) or given_draws.guess_transform(everywhere)
        one_of("transforms", words[name], TRANSFORMS)
    settings = {"alpha": WHOLE.alpha, "fractionate": WHOLE.fractionate, **settings}
    clusters, counted, spare = {}, {}, {}
    for silo, one in read.items():
        free = given_draws.transform(one, words, smallest, silo)
        own = clusters[silo] = given_draws.drop_empty(free, smallest, silo)
        spare[silo] = len(free.shares) - len(own.shares)
        if silo in rows:
            counted[silo] = at_least("rows", rows[silo], len(own.shares))
        else:
            counted[silo] = given_draws.count_rows(own, float(settings["alpha"]), silo)
    variables = find_units(clusters, counted, words, prior)
    study = make_study(Schema(variables), list(clusters), polish=0, **settings)
    family = study.pooled_model.family
    about: dict[str, Any] = {"policy": policy, "tier": study.tier, "study": digest(study)}
    releases = [
        given_draws.release_given(clusters[silo], family, counted[silo], silo, place=place, **about)
        for place, silo in enumerate(study.silos)
    ]
    said = {
        "By the range of their draws, these were treated as normal: {}.": [
            f"{word} {n}" for n, word in words.items() if n not in transforms and word != "none"
        ],
        "The rows were not given; by how the weights vary, there are {}.": [
            f"{count:,} in {silo!r}" for silo, count in counted.items() if silo not in rows
        ],
        "The silos' priors of {} were taken as too wide to matter.": [
            name for name in names if name not in prior
        ],
        "Components with too little weight to be clusters were left out: {}.": [
            f"{count} in {silo!r}" for silo, count in spare.items() if count
        ],
    }
    return Summed(study, releases, [text.format(listing(of)) for text, of in said.items() if of])


def check_named(
    keyword: str, given: Collection[str], known: Collection[str], *, needed: bool = False
) -> None:
    """Refuse what names a silo or parameter that there is not; or, if needed, leaves one out."""
    wrong = [name for name in given if name not in known]
    lacks = [name for name in known if name not in given] if needed else []
    if wrong or lacks:
        problem = f"names {quoted(wrong)}" if wrong else f"leaves out {quoted(lacks)}"
        text = f"{{{keyword}}} {problem}; there are {quoted(list(known))}"
        raise SettingsError(text, **{keyword: None})


def find_units(
    clusters: Mapping[str, Given],
    rows: Mapping[str, int],
    words: Mapping[str, str],
    prior: Mapping[str, tuple[float, float]],
) -> tuple[Variable, ...]:
    """Return the study's variables, with a location and a scale for each parameter.

    The scale is √(rows × posterior variance), which is what one row tells: the median over rows.

    Parameters
    ----------
    clusters, rows : by silo, its clusters in free coordinates, and its rows.
    words, prior : by parameter, its transform, and its prior if that is known.
    """
    members = np.concatenate([rows[silo] * one.shares for silo, one in clusters.items()])
    stacked = [one.stacked[1] for one in clusters.values()]
    means = np.concatenate([part.mean(axis=0) for part in stacked])
    variances = np.concatenate([part.var(axis=0) for part in stacked])
    locations = np.average(means, axis=0, weights=members)
    told = members[:, None] * variances
    scales = np.sqrt(np.quantile(told, 0.5, axis=0, method="inverted_cdf", weights=members))
    found = []
    for name, word, location, scale in zip(words, words.values(), locations, scales, strict=True):
        if not scale > 0:
            raise DataError(f"{name!r} is the same in all draws of a cluster; leave it out")
        about: dict[str, Any] = {"location": float(location), "scale": float(scale)}
        stated = tuple(prior.get(name, ()))
        found.append(Variable(name, (), "parameter", transform=word, prior=stated, **about))
    return tuple(found)
