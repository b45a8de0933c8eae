"""Mixtures that were fitted elsewhere, put together: `silomix.combine`.

Its silos answer from draws, and from log-likelihoods that their owners wrote.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix import messages
from silomix.coordinator.aggregation.objective import by_differences
from silomix.coordinator.pipeline import run_study
from silomix.errors import DataError, SettingsError
from silomix.families import make_family
from silomix.families.parameter import TRANSFORMS
from silomix.messages.container import LARGEST, MOST_ROWS
from silomix.messages.folder import read_release
from silomix.messages.released_draws import release_draws, shared_draws
from silomix.model.schema import PooledModel, Prior, Schema, Variable
from silomix.model.sentences import at_least, check_mapping, listing, one_of, quoted
from silomix.silo import given_draws
from silomix.study import AGGREGATIONS, MATCHINGS, Aggregation, Lbfgs, Study, digest, make_study
from silomix.study.keywords import check_keywords
from silomix.study.policy import OPEN, Policy
from silomix.study.validation import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from silomix.kernels.arrays import Floats
    from silomix.messages import Query, Release
    from silomix.model.draws import MatchedDraws
    from silomix.posterior import Posterior
    from silomix.silo.given_draws import Given

    # weights (draw, cluster), and by name parameters (draw, cluster), to (draw,)
    LogDensity = Callable[[Floats, Mapping[str, Floats]], Floats]

# Settings of a study beside those.
OTHERS = ("drift", "seed", "title", "alpha", "fractionate", "solver", "kept_draws")
# Draws made anew of a silo that released a summary of them.
REMADE = 2000
# Characters of a word that is quoted back.
LONGEST = 60
# Weight below which a component is as good as empty.
SMALLEST = 0.01
# What silos sampled under, as `combine` has it.
WHOLE = Prior(alpha=1.0, fractionate=False)


def combine(
    draws: Mapping[str, Any],
    *,
    rows: Mapping[str, int] | None = None,
    weights: str = "weights",
    parameters: Sequence[str] | None = None,
    component: str | None = None,
    transforms: Mapping[str, str] | None = None,
    prior: Mapping[str, tuple[float, float]] | None = None,
    smallest: float = SMALLEST,
    aggregation: str | Aggregation = "product",
    log_likelihood: Mapping[str, LogDensity] | None = None,
    matching: Any = "evidence",
    **settings: Any,
) -> Posterior:
    """Put together the posteriors of mixtures that were fitted elsewhere, one for each silo.

    The silos' clusters are matched, and their draws aggregated, by what their posteriors say about
    the parameters, taken as normal after the transforms. There is no polish, and nothing can be
    said about rows.

    Parameters
    ----------
    draws : by silo, a mapping with "weights", (draw, cluster), and "parameters", by name (draw,
        cluster) or (draw, cluster, element), or one array (draw, cluster, parameter) with "names";
        chains may come first. Or an ArviZ DataTree or InferenceData, its group `posterior`, or the
        path of its netCDF file.
    rows : by silo, how many it has; by default estimated from how much its
        weights vary.
    weights, parameters : names of these variables in a DataTree; by default all that have the
        dimension of the weights are parameters.
    component : the dimension of the components; by default that of the weights, or a variable's
        last.
    transforms : by parameter, "log", "logit" or "none"; by default the range of its draws decides.
    prior : by parameter, mean and standard deviation of the normal prior, transformed, that every
        silo had; it then counts once. Left out, the priors are taken as too wide to matter.
    smallest : weight that a component must have in most draws to be a cluster.
    aggregation : "product" multiplies the silos' posteriors; "cmc" averages their draws by inverse
        variances; "vcmc" by weights that maximise the relaxed ELBO, "uniform" by equal ones.
    log_likelihood : under "vcmc", by silo a function of the weights, (draw, cluster), and of a
        mapping of the parameters, each (draw, cluster): the log-likelihood of its rows, (draw,).
    matching : "evidence", "ball" or "hungarian", or a record of one with its options.
    **settings : others of `make_study`: `drift`, `seed`, `title`, `kept_draws`, `solver`; `alpha`,
        the concentration of the weights' prior, here 1; `fractionate`, whether silos took a share
        of that prior, here False.

    Returns
    -------
    Posterior
        Its notes say what was guessed.

    Raises
    ------
    DataError
        When draws cannot be read, or silos have different parameters.
    SettingsError
        When a setting is wrong, or needs rows.

    Examples
    --------
    >>> import numpy as np
    >>> rng, ill = np.random.default_rng(1), np.array([0.3, 0.7])
    >>> def sampled(n):  # as if by a sampler of two clusters at 0 and 5
    ...     weights = rng.dirichlet(n * ill, 500)
    ...     mean = [5.0, 0.0] + rng.normal(size=(500, 2)) / np.sqrt(n * ill)
    ...     return {"weights": weights, "parameters": {"mean": mean}}
    >>> silos = {"north": sampled(300), "south": sampled(200)}
    >>> posterior = silomix.combine(silos, rows={"north": 300, "south": 200}, seed=1)
    >>> posterior.weights.mean(axis=0).round(1), posterior.parameters.mean(axis=0).round(0).ravel()
    (array([0.7, 0.3], dtype=float32), array([0., 5.]))
    """
    word: Any = getattr(aggregation, "method", aggregation)
    one_of("aggregation", word, AGGREGATIONS)
    # nobody has rows here to ask about
    unasked = [name for name, method in MATCHINGS.items() if not method.record().asks(2)]
    one_of("matching", getattr(matching, "method", matching), unasked)
    check_keywords(None, settings, OTHERS)
    if not check_mapping("draws", draws, "silo"):
        raise DataError("there are no draws; give those of at least one silo")
    rows = check_mapping("rows", rows, "silo")
    transforms = check_mapping("transforms", transforms, "parameter")
    laws = check_mapping("prior", prior, "parameter").items()
    prior = {name: _check_normal(name, law) for name, law in laws}
    options = AGGREGATIONS[word].record()
    if options.asks(len(draws)):
        if not log_likelihood:
            text = "{aggregation} needs {log_likelihood}, one for each silo: only in Python"
            raise SettingsError(text, aggregation=word, log_likelihood=...)
        check_named("log_likelihood", log_likelihood, draws, needed=True)
    if hasattr(options, "solver"):  # a gradient is many calls of the functions
        settings = {"solver": Lbfgs(starts=1, tolerance=0.01)} | settings
    study, releases, notes = sum_up_draws(
        draws,
        (weights, parameters, component),
        rows=rows,
        transforms=transforms,
        prior=prior,
        smallest=smallest,
        aggregation=aggregation,
        matching=matching,
        **settings,
    )
    posterior = run_study(study, GivenDraws(study, releases, log_likelihood or {}))
    diagnostics = posterior.diagnostics
    return replace(posterior, diagnostics=replace(diagnostics, notes=(*notes, *diagnostics.notes)))


def _check_normal(name: str, law: Any) -> tuple[float, float]:
    """Mean and standard deviation of a parameter's prior; anything else is refused."""
    with suppress(TypeError, ValueError, OverflowError):
        mean, sd = map(float, law)
        if abs(mean) <= LARGEST and 0 < sd <= LARGEST:
            return mean, sd
    text = f"{{prior}} of {quote(name)} is {quote(law)}; give its mean, and an sd above 0"
    raise SettingsError(text, prior=...)


def combine_releases(folders: Sequence[Path], **settings: Any) -> Posterior:
    """Combine what silos released of draws that were made elsewhere, folder by folder."""
    draws: dict[str, Any] = {}
    rows, judged = {}, {}
    for folder in folders:
        release, schema = read_release(folder)
        if not schema.of_parameters or release.silo in draws:
            problem = "is the second of its silo" if release.silo in draws else "is of a table"
            advice = "give one of each silo, made with silomix release --draws"
            raise SettingsError(f"{folder}, a release of {release.silo!r}, {problem}; {advice}")
        model = PooledModel(WHOLE, make_family(schema, WHOLE), int(settings.get("seed", 0)))
        weights, parameters = release.weights, release.parameters
        if weights is None or parameters is None:
            rng = np.random.default_rng([model.seed, len(draws)])
            weights, parameters = release_draws(release, REMADE, model, 1, rng)
        values, names = model.family.describe(parameters), [n for n, _ in model.family.names()]
        draws[release.silo] = {"weights": weights, "parameters": values, "names": names}
        rows[release.silo], judged[release.silo] = release.rows, release.diagnostics
    posterior = combine(draws, rows=rows, **settings)
    # a silo's chains are known there alone
    return replace(posterior, diagnostics=replace(posterior.diagnostics, silos=judged))


class GivenDraws:
    """The silos of draws made elsewhere; satisfies `silomix.messages.Silos`.

    Attributes
    ----------
    names : the roster, in order.
    """

    def __init__(
        self, study: Study, releases: Sequence[Release], functions: Mapping[str, LogDensity]
    ) -> None:
        self.names = study.silos
        self._releases = dict(zip(study.silos, releases, strict=True))
        self._model, self._functions = study.pooled_model, functions
        self._matched: MatchedDraws | None = None

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask every silo one query, or each of the named silos its own."""
        asked = messages.by_silo(query, self.names)
        return {name: self._answer(name, question) for name, question in asked.items()}

    def _answer(self, name: str, query: Query) -> Any:
        match query:
            case messages.SampleLocally():
                return self._releases[name]
            case messages.ShareReleases():
                self._matched = shared_draws(query, self._model)
                return messages.Received()
            case messages.LogLikelihood():
                assert self._matched is not None
                some = self._matched.some(query.first, query.last)
                points, value = (query.weights, query.profiles), partial(self._value, name)
                return by_differences(some, *points, self._model.family, value)
            case messages.AssignRows():
                return messages.Received()  # there are no rows
        raise NotImplementedError(type(query).__name__)

    def _value(self, name: str, weights: Floats, parameters: Floats) -> float:
        """Mean of a silo's function over draws."""
        family = self._model.family
        described = np.moveaxis(np.asarray(family.describe(parameters)), -1, 0)
        names = [variable.name for variable in family.variables]
        shares = weights / weights.sum(axis=1, keepdims=True)
        by_name = dict(zip(names, described, strict=True))
        values = np.asarray(self._functions[name](shares, by_name))
        if values.shape != (len(weights),) or not np.isfinite(values).all():
            raise DataError(
                f"{name}: its log_likelihood returned an array of shape {values.shape}, or "
                f"infinities; it must return a finite number for each of {len(weights)} draws"
            )
        return float(values.mean())


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
) -> tuple[Study, list[Release], list[str]]:
    """Align the draws of each silo, and sum them up in units that all silos share.

    Parameters are those of `combine`; `where` is `weights`, `parameters` and `component`.
    """
    read = {silo: given_draws.read_draws(each, silo, *where) for silo, each in draws.items()}
    first, names = next((silo, each.names) for silo, each in read.items())
    for silo, each in read.items():
        if sorted(each.names) != sorted(names):
            theirs = f"the parameters of {first!r} are {quoted(names)}, of {silo!r} "
            raise DataError(f"{theirs}{quoted(each.names)}; give the same ones")
        order = [each.names.index(name) for name in names]
        read[silo] = each._replace(names=names, values=each.values[..., order])
    check_named("rows", rows, read)
    check_named("transforms", transforms, names)
    check_named("prior", prior, names)
    words = {}
    for place, name in enumerate(names):
        everywhere = [each.values[..., place] for each in read.values()]
        guess, chosen = given_draws.guess_transform, transforms.get(name)
        words[name] = guess(everywhere) if chosen is None else str(chosen)[:LONGEST]
        one_of("transforms", words[name], TRANSFORMS)
    settings = {"alpha": WHOLE.alpha, "fractionate": WHOLE.fractionate, **settings}
    clusters, counted, spare = {}, {}, {}
    for silo, each in read.items():
        free = given_draws.transform(each, words, smallest, silo)
        kept = clusters[silo] = given_draws.drop_empty(free, smallest, silo)
        spare[silo] = len(free.shares) - len(kept.shares)
        if silo in rows:
            counted[silo] = min(at_least("rows", rows[silo], len(kept.shares)), MOST_ROWS)
        else:
            counted[silo] = given_draws.count_rows(kept, float(settings["alpha"]), silo)
    variables = find_units(clusters, counted, words, prior)
    study = make_study(Schema(variables), list(clusters), polish=0, **settings)
    family = study.pooled_model.family
    shared: dict[str, Any] = {"policy": policy, "tier": study.tier, "study": digest(study)}
    releases = [
        given_draws.release_given(
            clusters[silo], family, counted[silo], silo, place=place, **shared
        )
        for place, silo in enumerate(study.silos)
    ]
    notes = {
        "Judging by the range of their draws, these were treated as normal: {}.": [
            f"{word} {n}" for n, word in words.items() if n not in transforms and word != "none"
        ],
        "The numbers of rows were not given; judging by how the weights vary, there are {}.": [
            f"{count:,} in {silo!r}" for silo, count in counted.items() if silo not in rows
        ],
        "The silos' priors of {} were taken as too wide to matter.": [
            name for name in names if name not in prior
        ],
        "Components with too little weight to be clusters were left out: {}.": [
            f"{count} in {silo!r}" for silo, count in spare.items() if count
        ],
    }
    return study, releases, [text.format(listing(of)) for text, of in notes.items() if of]


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
    """Variables of the study, with a location and a scale for each parameter.

    The scale is √(rows × posterior variance), which is what one row tells: the median over rows.

    Parameters
    ----------
    clusters, rows : by silo, its clusters in free coordinates, and its rows.
    words, prior : by parameter, its transform, and its prior if that is known.
    """
    members = np.concatenate([rows[silo] * each.shares for silo, each in clusters.items()])
    stacked = [each.stacked[1] for each in clusters.values()]
    means = np.concatenate([part.mean(axis=0) for part in stacked])
    variances = np.concatenate([part.var(axis=0) for part in stacked])
    locations = np.average(means, axis=0, weights=members)
    of_a_row = members[:, None] * variances
    scales = np.sqrt(np.quantile(of_a_row, 0.5, axis=0, method="inverted_cdf", weights=members))
    variables = []
    for name, word, location, scale in zip(words, words.values(), locations, scales, strict=True):
        if not scale > 0:
            raise DataError(f"{name!r} is the same in all draws of a cluster; leave it out")
        units: dict[str, Any] = {"location": float(location), "scale": float(scale)}
        law = tuple(prior.get(name, ()))
        variables.append(Variable(name, (), "parameter", transform=word, prior=law, **units))
    return tuple(variables)
