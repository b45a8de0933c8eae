"""Rivals that differ from silomix in one step: how draws are combined, or clusters matched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from silomix.aggregation import aggregate
from silomix.errors import SettingsError
from silomix.matching import match
from silomix.messages import SampleLocally
from silomix.pipeline import assign_rows
from silomix.posterior import Parts, ordered
from silomix.relabel import local_posterior
from silomix.release import make_release
from silomix.released_draws import matched_draws
from silomix.rivals.covariance import consensus_draws
from silomix.rivals.federation import COMBINING, open_silos, refuse_unused
from silomix.rivals.record import RivalResult, Stopwatch
from silomix.silo import HANDLERS, sample_locally
from silomix.store import Kept
from silomix.study import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from silomix.data.reading import Table
    from silomix.release import Release
    from silomix.rivals.federation import Federation
    from silomix.silo import Silo
    from silomix.types import Correspondence, MatchedDraws, Missing

    Global = tuple[NDArray[np.float64], NDArray[np.float64], MatchedDraws, tuple[str, ...]]
    Combine = Callable[[Federation, Sequence[Release], Correspondence], Global]


UNUSED_WHEN_KNOWN = (
    "aggregation", "polish", "strategy",
    "partition", "one_cluster", "threshold", "subsample", "relabel",
)  # fmt: skip


@dataclass(frozen=True)
class SampleKnown:
    """Sample with as many components as there are clusters; reply with a `Release`."""


def cmc(
    table: Table,
    silo: str | None = None,
    *,
    weights: str = "covariance",
    seed: int = 0,
    threads: int | None = None,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    **settings: Any,
) -> RivalResult:
    """Average the silos' matched draws by their precision: consensus Monte Carlo.

    Scott et al. (2016): θ = (Σ_s W_s)⁻¹ Σ_s W_s θ_s. "covariance" takes W_s = Σ_s⁻¹, exact where
    every silo's posterior is Gaussian; "independent" the inverse variance of each level probability
    alone, and one weight for all of a silo's π; "uniform" equal weights. Each silo samples under
    the prior to the power 1/S. Scott et al. have no clusters to match: silomix's matching comes
    first. How a mixture's parameters become coordinates is in `silomix.rivals.covariance`, and for
    "independent" in `silomix.aggregation.closed_form`.

    One θ is behind all silos in Scott et al. Weights of clusters that differ between silos are no
    such θ: their average by precision is not the weight over all rows, and its intervals are those
    of a parameter that all silos would share.

    Parameters
    ----------
    table, silo, seed, threads, variables, missing : as for `silomix.fit`.
    weights : "covariance", "independent" or "uniform".
    settings : of the silos' sampler, partition, matching and assignment, as for `silomix.fit`.

    Examples
    --------
    >>> result = silomix.rivals.cmc(table, "silo", iterations=600, seed=1)
    >>> result.n_clusters
    5
    """
    refuse_unused(settings, COMBINING)
    if weights not in AVERAGES:
        raise SettingsError(f"weights={weights!r} is unknown; choose from {list(AVERAGES)}")
    federation = open_silos(
        table,
        silo,
        seed=seed,
        threads=threads,
        variables=variables,
        missing=missing,
        **settings,
    )
    return _run("cmc", federation, SampleLocally(), AVERAGES[weights])


def product(
    table: Table,
    silo: str | None = None,
    *,
    seed: int = 0,
    threads: int | None = None,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    **settings: Any,
) -> RivalResult:
    """Multiply densities fitted to the silos' matched draws.

    The parametric product of Neiswanger, Wang and Xing (2014) with Dirichlet densities, fitted by
    moments, in place of Gaussian ones, whose tails cross 0 and 1. Only level probabilities are
    multiplied: a silo's weights are its own, so those over all rows are the silos' added up. Both
    are in `silomix.aggregation.closed_form`.

    Parameters
    ----------
    table, silo, seed, threads, variables, missing : as for `silomix.fit`.
    settings : of the silos' sampler, partition, matching and assignment, as for `silomix.fit`.

    Examples
    --------
    >>> result = silomix.rivals.product(table, "silo", iterations=600, seed=1)
    >>> result.n_clusters
    5
    """
    refuse_unused(settings, COMBINING)
    federation = open_silos(
        table,
        silo,
        seed=seed,
        threads=threads,
        variables=variables,
        missing=missing,
        **settings,
    )
    return _run("product", federation, SampleLocally(), _aggregation("product"))


def rabinovich(
    table: Table,
    silo: str | None = None,
    *,
    clusters: int,
    seed: int = 0,
    threads: int | None = None,
    variables: Sequence[str] | None = None,
    missing: Missing = "marginalise",
    **settings: Any,
) -> RivalResult:
    """Match by the Hungarian method and aggregate by variational consensus Monte Carlo.

    Rabinovich, Angelino and Jordan (2015), whose mixtures have a known number of components, all
    of them in every silo. Each silo samples `clusters` components; its clusters are those of its
    most likely draw, to which the other draws are relabelled one to one, and not those of the
    partition that a silo of silomix estimates. Clusters are matched to those of a reference silo,
    and the weights of the silos maximise the relaxed evidence lower bound, as in Fendler et al.
    (2026), section 4.4.

    Parameters
    ----------
    table, silo, seed, threads, variables, missing : as for `silomix.fit`.
    clusters : how many there are.
    settings : of the silos' sampler, the solver and the assignment, as for `silomix.fit`.

    Examples
    --------
    >>> result = silomix.rivals.rabinovich(table, "silo", clusters=5, iterations=600, seed=1)
    >>> result.n_clusters
    5
    """
    refuse_unused(settings, UNUSED_WHEN_KNOWN)
    given = {"components": clusters, "matching": "hungarian", "absorb": 0}
    for name in given.keys() & settings.keys():
        raise SettingsError(f"{name} is fixed by this method ({given[name]!r}); leave it out")
    federation = open_silos(
        table,
        silo,
        seed=seed,
        threads=threads,
        variables=variables,
        missing=missing,
        **(settings | given),
    )
    return _run("rabinovich", federation, SampleKnown(), _aggregation("vcmc"))


def _run(
    name: str,
    federation: Federation,
    sample: SampleLocally | SampleKnown,
    combine: Combine,
) -> RivalResult:
    """Sample, match, combine, assign."""
    study, watch = federation.study, Stopwatch()
    with watch.stage("sample"):
        releases: list[Release] = federation.ask(sample)
    with watch.stage("match"):
        correspondence, _ = match(
            releases,
            study.matching,
            federation.tally,
            prior=study.prior,
            offsets=study.table_schema.offsets,
            seed=study.seed,
        )
    with watch.stage("combine"):
        weights, probabilities, matched, notes = combine(federation, releases, correspondence)
    by_silo = np.moveaxis(matched.weights, 0, 1)
    parts = ordered(Parts(weights, by_silo, probabilities, correspondence, None))
    groups = parts.correspondence.groups if parts.correspondence else ()
    with watch.stage("assign"):
        assign_rows(parts, federation.tally, groups if study.assign == "matching" else None)
    return RivalResult(
        name=name,
        labels=federation.labels(),
        weights=parts.weights,
        probabilities=parts.probabilities,
        levels=study.table_schema.levels,
        seconds=watch.seconds,
        bytes_sent=federation.bytes_sent,
        notes=notes,
    )


def _aggregation(method: Literal["vcmc", "cmc", "uniform", "product"]) -> Combine:
    """Combine by one of silomix's own aggregations."""

    def combine(
        federation: Federation, releases: Sequence[Release], correspondence: Correspondence
    ) -> Global:
        study = federation.study
        found = aggregate(
            releases,
            correspondence,
            study.aggregation.model_copy(update={"method": method}),
            federation.tally,
            prior=study.prior,
            offsets=study.table_schema.offsets,
            count=study.kept_draws,
            seed=study.seed,
            threads=federation.threads,
        )
        return found.weights, found.probabilities, found.matched, found.notes

    return combine


def _covariance(
    federation: Federation, releases: Sequence[Release], correspondence: Correspondence
) -> Global:
    study = federation.study
    offsets = study.table_schema.offsets
    matched = matched_draws(
        releases, correspondence.groups, study.kept_draws, study.prior, offsets, study.seed
    )
    rows = np.array([release.rows for release in releases], dtype=np.int64)
    weights, probabilities, outside = consensus_draws(matched, rows, offsets)
    note = f"{outside:.2%} of the averaged weights and probabilities fell below 0 and became 0."
    return weights, probabilities, matched, (note,) if outside > 0 else ()


AVERAGES: dict[str, Combine] = {
    "covariance": _covariance,
    "independent": _aggregation("cmc"),
    "uniform": _aggregation("uniform"),
}


def _sample_known(_: SampleKnown, silo: Silo) -> Release:
    with silo.store.lock:
        draws = sample_locally(silo).draws
        local = local_posterior(draws, draws.labels[draws.log_likelihood.argmax()], "match")
        release = make_release(
            local,
            silo=silo.name,
            place=silo.place,
            study=digest(silo.study),
            tier=silo.study.tier,
            policy=silo.policy,
        )
        silo.store.keep(Kept(release, local.weights, local.probabilities, local.partition.labels))
    return release


HANDLERS.update({SampleKnown: _sample_known})
