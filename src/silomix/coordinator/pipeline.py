"""The paper on one screen: what a coordinator does, for any transport."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from silomix.coordinator.aggregation import aggregate
from silomix.coordinator.exact import align, sample_exactly
from silomix.coordinator.matching import match
from silomix.coordinator.notes import (
    doubtful_clusters,
    empty_notes,
    least_confident,
    method_notes,
    policy_notes,
    prior_notes,
)
from silomix.coordinator.polish import SILO_DRAWS, chains_for, polish, starting_point
from silomix.messages import AssignRows, ReleasedDiagnostics, SampleLocally
from silomix.messages.progress import Progress
from silomix.messages.rounding import allow_for_rounding
from silomix.model.diagnostics import diagnose
from silomix.model.draws import SiloProfiles
from silomix.model.families.dirichlet import draw_levels
from silomix.model.families.drift import discount
from silomix.posterior import (
    Parts,
    PolishTrace,
    Posterior,
    PosteriorDiagnostics,
    count_bytes,
    make_provenance,
    ordered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from silomix.coordinator.aggregation import Aggregated
    from silomix.coordinator.exact import ExactDraws
    from silomix.coordinator.polish import Polished
    from silomix.kernels.arrays import Bools, Floats, Ints
    from silomix.messages import AssignReply, Query, Release, Silos
    from silomix.model.draws import Correspondence, MatchedDraws, SiloWeights
    from silomix.study import Study

    Report = Callable[[Progress], None]
    Say = Callable[..., None]

# bytes that a silo may send: the larger of a megabyte and fifty times its own table
LEAST_BUDGET, TABLES_BUDGET = 1_000_000, 50
# Sets the draws of shared profiles without a polish apart from other draws of the same seed.
DRIFT_STREAM = 0x647266


def run_study(
    study: Study, silos: Silos, *, threads: int = 1, report: Report | None = None
) -> Posterior:
    """Run a study over its silos and return one global posterior; its rows stay where they are.

    Fendler et al. (2026), section 4: apply (each silo samples), match, aggregate; then polish,
    which is ours. `strategy="exact"` samples the pooled posterior over the silos instead.
    """
    tally = Tally(silos)
    if study.strategy == "exact":
        return _run_exactly(study, tally, report)
    say = _saying(report)
    replies: Mapping[str, Release] = tally.ask(SampleLocally())
    offsets, everyone = study.table_schema.offsets, len(silos.names)
    releases = [
        allow_for_rounding(replies[name], study.prior, everyone, offsets, study.seed)
        for name in silos.names
    ]

    matched, aggregated = _match_and_aggregate(study, releases, tally, threads, say)
    for _ in range(study.matching.refine):
        weighed = reweigh(releases, matched.correspondence, aggregated.silo_weights)
        matched, aggregated = _match_and_aggregate(study, weighed, tally, threads, say)

    polished = None
    if study.polish.rounds != 0:
        polished = _polish(study, releases, matched, aggregated, tally, say)
        draws = Global.of_polished(polished, releases)
    elif matched.kappa is None:
        draws = Global.of(aggregated)
    else:
        draws = Global.of_counts(study, releases, matched, aggregated)

    parts = ordered(
        Parts(
            draws.weights,
            draws.weights_by_silo,
            draws.probabilities,
            matched.correspondence,
            aggregated.silo_weights,
            draws.silo_profiles,
        )
    )
    groups = parts.correspondence.groups if parts.correspondence else ()
    say("assigning")
    sizes = assign_rows(parts, tally, groups if study.assign == "matching" else None)
    means = parts.weights.mean(axis=0, dtype=np.float64)
    diagnostics = PosteriorDiagnostics(
        silos={release.silo: release.diagnostics for release in releases},
        elbo=aggregated.elbo_trace,
        polish=_polish_trace(polished) if polished else None,
        confidence=least_confident(parts.correspondence),
        smallest=float(means.min() * sum(release.rows for release in releases)),
        notes=(
            *policy_notes(releases),
            *aggregated.notes,
            *prior_notes(releases, polished),
            *method_notes(study),
            *doubtful_clusters(parts, releases, study.table_schema.offsets),
            *empty_notes(sizes),
        ),
    )
    return Posterior(
        study=study,
        **vars(parts),
        diagnostics=diagnostics,
        provenance=make_provenance(study, releases, tally.sent, tally.answered),
    )


def _match_and_aggregate(
    study: Study, releases: Sequence[Release], silos: Tally, threads: int, say: Say
) -> tuple[Matched, Aggregated]:
    offsets = study.table_schema.offsets
    say("matching")
    correspondence, kappa = match(
        releases,
        study.matching,
        silos,
        prior=study.prior,
        offsets=offsets,
        seed=study.seed,
        drift=study.drifts,
    )
    say("aggregating")
    aggregated = aggregate(
        releases,
        correspondence,
        study.aggregation,
        silos,
        prior=study.prior,
        offsets=offsets,
        count=_draws_needed(study),
        seed=study.seed,
        threads=threads,
    )
    return Matched(correspondence, kappa), aggregated


def _draws_needed(study: Study) -> int:
    """Return how many aggregated draws the posterior, or the chains of the polish, need."""
    rounds = study.polish.rounds
    if rounds == 0:
        return study.kept_draws
    most = study.polish.most if rounds == "until" else rounds
    return chains_for(most, study.kept_draws, study.polish.chains)


def _polish(
    study: Study,
    releases: Sequence[Release],
    matched: Matched,
    aggregated: Aggregated,
    silos: Tally,
    say: Say,
) -> Polished:
    say("polishing")
    rows = np.array([release.rows for release in releases])
    offsets = study.table_schema.offsets
    start = starting_point(
        aggregated.matched, aggregated.probabilities, rows, offsets, matched.kappa
    )
    return polish(
        start,
        silos,
        study.polish,
        kept_draws=study.kept_draws,
        prior=study.prior,
        offsets=offsets,
        seed=study.seed,
        most_bytes=_bytes_left(study, rows, silos),
        report=partial(say, "polishing"),
    )


def _bytes_left(study: Study, rows: Ints, silos: Tally) -> Ints:
    """Return what each silo may still send: (silo,). A cell takes two bytes in a CSV file."""
    tables = 2 * rows * len(study.variables)
    sent = np.array([sum(silos.sent[name].values()) for name in silos.names])
    return np.maximum(LEAST_BUDGET, TABLES_BUDGET * tables) - sent


def reweigh(
    releases: Sequence[Release], correspondence: Correspondence, weights: SiloWeights
) -> list[Release]:
    """Let clusters count for less where the aggregation gives their silo less than its share.

    The paper's discussion proposes to match again with the weights of a first aggregation; it
    leaves open how. Effective counts are multiplied by μ over the silo's share of the cluster's
    rows, at most one; distances between medians do not change.
    """
    rows = np.zeros(weights.profiles.shape)
    for place, (group, sizes) in enumerate(
        zip(correspondence.groups, correspondence.sizes, strict=True)
    ):
        np.add.at(rows[place], group, sizes)
    shares = rows / np.maximum(rows.sum(axis=0), 1)
    factor = np.minimum(1.0, weights.profiles / np.where(shares > 0, shares, 1.0))
    return [
        replace(
            release,
            effective_counts=release.effective_counts * factor[place][group][:, None],
        )
        for place, (release, group) in enumerate(zip(releases, correspondence.groups, strict=True))
    ]


def assign_rows(parts: Parts, silos: Silos, groups: Sequence[Ints] | None) -> Ints:
    """Have every silo find its rows' clusters; return how many rows each cluster got.

    A silo may withhold a count: then the total is not known, and −1.
    """
    own = parts.silo_profiles
    last = slice(-len(own.probabilities), None) if own else slice(None)
    replies: Mapping[str, AssignReply] = silos.ask(
        {
            name: AssignRows(
                parts.weights_by_silo[last, place],
                own.probabilities[:, place] if own else parts.probabilities,
                groups[place] if groups is not None else None,
            )
            for place, name in enumerate(silos.names)
        }
    )
    sizes = np.array([replies[name].sizes for name in silos.names])
    return np.where((sizes < 0).any(axis=0), -1, sizes.sum(axis=0))


def _run_exactly(study: Study, silos: Tally, report: Report | None) -> Posterior:
    """Sample the pooled posterior over the silos, one exchange a sweep."""
    offsets = study.table_schema.offsets
    say = _saying(report)
    draws = sample_exactly(
        silos,
        study.model.components,
        study.sampling,
        prior=study.prior,
        offsets=offsets,
        seed=study.seed,
        drift=study.drifts,
        report=partial(say, "sampling"),
    )
    found = align(draws, prior=study.prior, offsets=offsets, absorb=study.matching.absorb)
    by_silo = found.weights_by_silo
    if by_silo is None:
        everyone = (len(found.weights), len(silos.names), found.weights.shape[1])
        by_silo = np.broadcast_to(found.weights[:, None, :], everyone)
    own = None
    if draws.kappa is not None and found.own is not None:
        own = SiloProfiles(draws.kappa, found.own.astype(np.float32))
    parts = ordered(Parts(found.weights, by_silo, found.probabilities, None, None, own))
    say("assigning")
    sizes = assign_rows(parts, silos, None)
    notes = [
        f"Exact strategy: {study.sampling.iterations} exchanges"
        + ("." if study.drifts else "; one set of weights for all silos."),
        f"{found.unmatched:.1%} of the rows sat, on average, in components without a cluster.",
    ]
    if found.folded:
        notes.append(f"{found.folded} small components were folded into their neighbours.")
    return Posterior(
        study=study,
        **vars(parts),
        diagnostics=PosteriorDiagnostics(
            silos={},
            chains=_judge(draws, study.sampling.iterations),
            notes=(*notes, *empty_notes(sizes)),
        ),
        provenance=make_provenance(study, [], silos.sent, silos.answered),
    )


def _judge(draws: ExactDraws, sweeps: int) -> ReleasedDiagnostics:
    """Judge the exact strategy's chains as a silo would judge its own."""

    def by_chain(values: NDArray[Any]) -> NDArray[Any]:
        return values.reshape(int(draws.chain.max()) + 1, -1, *values.shape[1:])

    found = diagnose(
        by_chain(draws.log_likelihood), by_chain(draws.members), by_chain(draws.weights)
    )
    return ReleasedDiagnostics.of(found, prior_draws=0.0, sweeps=sweeps)


class Matched(NamedTuple):
    """Which local clusters are the same, and how alike the silos are.

    Attributes
    ----------
    kappa : (variable,); None without drift.
    """

    correspondence: Correspondence
    kappa: Floats | None


@dataclass(frozen=True, eq=False)
class Global:
    """Global draws: weights (draw, cluster), by silo (draw, silo, cluster), and profiles."""

    weights: Floats
    weights_by_silo: NDArray[np.floating]
    probabilities: NDArray[np.floating]
    silo_profiles: SiloProfiles | None = None

    @classmethod
    def of(cls, aggregated: Aggregated) -> Global:
        """Take the aggregated draws; a silo's own weights are those of its own draws."""
        by_silo = np.moveaxis(aggregated.matched.weights, 0, 1)[: len(aggregated.weights)]
        return cls(aggregated.weights, by_silo, aggregated.probabilities)

    @classmethod
    def of_polished(cls, polished: Polished, releases: Sequence[Release]) -> Global:
        """Take the polished draws; the global weights are Σ_s (n_s/n) π^s."""
        rows = np.array([release.rows for release in releases], dtype=np.float64)
        weights = np.einsum("tsc,s->tc", polished.weights_by_silo, rows / rows.sum())
        own = None
        if polished.kappa is not None and polished.silo_probabilities is not None:
            own = SiloProfiles(polished.kappa, polished.silo_probabilities.astype(np.float32))
        return cls(weights, polished.weights_by_silo, polished.probabilities, own)

    @classmethod
    def of_counts(
        cls, study: Study, releases: Sequence[Release], matched: Matched, aggregated: Aggregated
    ) -> Global:
        """Take the aggregated weights; under drift the profiles need another spread.

        Where no round is made, the shared profiles are drawn given the silos' counts, discounted
        at the matching's κ; a silo's own are those of its own draws.
        """
        plain = cls.of(aggregated)
        assert matched.kappa is not None
        offsets = study.table_schema.offsets
        if np.isfinite(matched.kappa).any():
            counts = shared_counts(releases, matched.correspondence, matched.kappa, offsets)
            rng = np.random.default_rng([study.seed, DRIFT_STREAM])
            draws = len(plain.weights)
            shared = draw_levels(study.prior.beta + counts, offsets, rng, draws)
            plain = replace(plain, probabilities=shared)
        drifts = np.repeat(np.isfinite(matched.kappa), np.diff(offsets))
        own = own_profiles(aggregated.matched, plain.probabilities, drifts)
        return replace(plain, silo_profiles=SiloProfiles(matched.kappa[None], own))


def shared_counts(
    releases: Sequence[Release], correspondence: Correspondence, kappa: Floats, offsets: Ints
) -> Floats:
    """Return what the silos' clusters together say of the shared profiles: (cluster, level)."""
    counts = np.zeros((correspondence.clusters, int(offsets[-1])))
    for release, group in zip(releases, correspondence.groups, strict=True):
        own = np.zeros_like(counts)
        np.add.at(own, group, release.effective_counts)
        counts += discount(own, kappa, offsets)
    return counts


def own_profiles(
    matched: MatchedDraws, shared: NDArray[np.floating], drifts: Bools
) -> NDArray[np.float32]:
    """Return each silo's own profiles, the shared ones where it lacks a cluster or all are alike.

    Parameters
    ----------
    shared : (draw, cluster, level); drifts : (level,), whether silos differ in its variable.

    Returns
    -------
    (silo draw, silo, cluster, level), of the last draws.
    """
    last = slice(-min(SILO_DRAWS, len(shared)), None)
    differ = matched.held[:, None, :, None] & drifts
    own = np.where(differ, matched.probabilities[:, last], shared[last])
    return np.moveaxis(own, 0, 1).astype(np.float32)


class Tally:
    """Silos that count their replies and the bytes of them, by silo and kind."""

    def __init__(self, silos: Silos) -> None:
        self._silos = silos
        self.sent: dict[str, dict[str, int]] = {name: {} for name in silos.names}
        self.answered: dict[str, dict[str, int]] = {name: {} for name in silos.names}

    @property
    def names(self) -> tuple[str, ...]:
        """The roster, in order."""
        return self._silos.names

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask, and count what comes back."""
        replies = self._silos.ask(query)
        for name, reply in replies.items():
            kind = type(reply).__name__
            self.sent[name][kind] = self.sent[name].get(kind, 0) + count_bytes(reply)
            self.answered[name][kind] = self.answered[name].get(kind, 0) + 1
        return replies


def _saying(report: Report | None) -> Say:
    """Return a function that tells the caller which stage is running, and how far it is."""

    def say(stage: str, done: int = 0, total: int = 0) -> None:
        if report is not None:
            report(Progress(stage, done, total))

    return say


def _polish_trace(polished: Polished) -> PolishTrace:
    return PolishTrace(
        values={
            "log_likelihood": polished.log_likelihood.mean(axis=1),
            "movement": polished.movement,
        },
        rounds=polished.rounds,
        still_moving=polished.still_moving,
    )
