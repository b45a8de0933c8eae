"""The paper on one screen: what a coordinator does, for any transport."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from silomix.coordinator.aggregation import Aggregated, aggregate
from silomix.coordinator.exact_strategy import find_pooled_posterior
from silomix.coordinator.matching import match
from silomix.coordinator.polish import own_profiles, polish, starting_point
from silomix.coordinator.verdict_notes import cluster_notes, consensus_notes
from silomix.families.dirichlet import sum_by
from silomix.messages import AssignRows, PolishReply, Query, Release, SampleLocally, Silos
from silomix.messages.progress import Progress, Report
from silomix.messages.released_draws import effective_counts
from silomix.model.draws import Correspondence, SiloProfiles, SiloWeights
from silomix.posterior.chains import SILO_DRAWS, polish_chains
from silomix.posterior.global_posterior import Parts, Posterior, ordered
from silomix.posterior.verdict import PosteriorDiagnostics, count_bytes, make_provenance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from silomix.kernels.arrays import Floats, Ints, Reals
    from silomix.model.prior import PooledModel
    from silomix.study import Study


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
    asked = CountingSilos(silos, report)
    releases: list[Release] = []
    model = study.pooled_model
    if study.strategy == "exact":
        tell = partial(asked.say, "sampling")
        found, diagnostics = find_pooled_posterior(study, asked, model, tell)
    else:
        replies: Mapping[str, Release] = asked.ask(SampleLocally())
        releases = [replies[name] for name in silos.names]
        found, diagnostics = find_consensus(study, releases, asked, model, threads)

    parts = ordered(found)
    asked.say("assigning")
    by_matching = parts.correspondence if study.assign == "matching" else None
    assign_rows(parts, asked, by_matching.groups if by_matching else None)
    notes = cluster_notes(parts, asked.rows, model.family, expected=study.rows or ())
    return Posterior(
        study=study,
        **vars(parts),
        diagnostics=replace(diagnostics, notes=(*diagnostics.notes, *notes)),
        provenance=make_provenance(study, releases, asked.sent, asked.answered),
    )


def find_consensus(
    study: Study, releases: list[Release], silos: CountingSilos, model: PooledModel, threads: int
) -> tuple[Parts, PosteriorDiagnostics]:
    """Match the silos' clusters, aggregate their draws, and polish the result."""
    settings, polishes = study.polish, study.polish.rounds != 0
    # the aggregated draws are the posterior's, or where the chains of the polish begin
    count = polish_chains(study) if polishes else study.kept_draws

    def combine(counts: list[Floats]) -> tuple[Correspondence, Floats | None, Aggregated]:
        silos.say("matching")
        how = {"drift": study.drifts, "polishes": polishes}
        found, kappa = match(releases, counts, study.matching, silos, model, **how)
        silos.say("aggregating")
        size = {"count": count, "threads": threads}
        return found, kappa, aggregate(releases, found, study.aggregation, silos, model, **size)

    counts = [effective_counts(release, model, len(releases)) for release in releases]
    correspondence, kappa, aggregated = combine(counts)
    for _ in range(study.matching.refine):
        weighed = reweigh(counts, correspondence, aggregated.silo_weights)
        correspondence, kappa, aggregated = combine(weighed)

    rows = np.array([release.rows for release in releases])
    matched, trace, own = aggregated.matched, None, None
    weights: Reals = aggregated.weights
    shared: Reals = aggregated.parameters
    by_silo: Reals = np.moveaxis(matched.weights, 0, 1)
    if polishes:
        silos.say("polishing")
        start = starting_point(matched, aggregated.parameters, rows, model.family, kappa)
        left, tell = _bytes_left(study, rows, silos), partial(silos.say, "polishing")
        kept = study.kept_draws
        found = polish(start, silos, settings, model, kept_draws=kept, most_bytes=left, report=tell)
        trace, by_silo = found.trace, found.weights_by_silo
        weights = np.einsum("tsc,s->tc", by_silo, rows / rows.sum())
        shared, own = found.parameters, found.silo_profiles
    elif kappa is not None:
        shared, own = draw_under_drift(counts, correspondence, aggregated, kappa, model)
    parts = Parts(weights, by_silo, shared, correspondence, aggregated.silo_weights, own)
    smallest = parts.weights.astype(np.float32).mean(axis=0, dtype=np.float64).min() * rows.sum()
    unknown = correspondence.confidence is None
    judged = {release.silo: release.diagnostics for release in releases}
    if study.model.clusters is not None:  # no component is spare: that all hold rows is as it is
        judged = {name: replace(run, full=0.0) for name, run in judged.items()}
    return parts, PosteriorDiagnostics(
        silos=judged,
        elbo=aggregated.elbo_trace,
        polish=trace,
        confidence=None if unknown else float(correspondence.cluster_confidence().min()),
        smallest=float(smallest),
        notes=tuple(consensus_notes(study, releases, aggregated.notes)),
    )


def _bytes_left(study: Study, rows: Ints, silos: CountingSilos) -> Ints:
    """Return what each silo may still send: (silo,).

    A category takes two bytes in a CSV file, a number at least six.
    """
    schema = study.table_schema
    tables = rows * (2 * len(schema.variables) + 4 * len(schema.numbers))
    sent = np.array([sum(silos.sent[name].values()) for name in silos.names])
    return np.maximum(LEAST_BUDGET, TABLES_BUDGET * tables) - sent


def reweigh(counts: list[Floats], match: Correspondence, weights: SiloWeights) -> list[Floats]:
    """Let clusters count for less where the aggregation gives their silo less than its share.

    The paper's discussion proposes to match again with the weights of a first aggregation; it
    leaves open how. Effective counts are multiplied by μ over the silo's share of the cluster's
    rows, at most one; distances between medians do not change.
    """
    shares = match.rows / np.maximum(match.rows.sum(axis=0), 1)
    factors = np.minimum(1.0, weights.profiles / np.where(shares > 0, shares, 1.0))
    return [
        own * factor[group][:, None]
        for own, factor, group in zip(counts, factors, match.groups, strict=True)
    ]


def draw_under_drift(
    counts: list[Floats],
    match: Correspondence,
    found: Aggregated,
    kappa: Floats,
    model: PooledModel,
) -> tuple[Floats, SiloProfiles]:
    """Return shared and silos' own profiles where silos differ and no polish round is made.

    The average of profiles that drift has another spread than the profile they share, which is
    drawn given the silos' counts, discounted at the matching's κ; a silo's own are its own draws.
    """
    shared, family = found.parameters, model.family
    if np.isfinite(kappa).any():
        sums = np.zeros((match.clusters, int(family.statistics.sum())))
        for own, group in zip(counts, match.groups, strict=True):
            sums += family.discount(sum_by(group, own, len(sums)), kappa)
        rng = np.random.default_rng([model.seed, DRIFT_STREAM])
        shared = family.draw(family.prior() + family.conjugate(sums), rng, len(shared))
    silo_draws = own_profiles(found.matched, shared, kappa, family)[:, -SILO_DRAWS:]
    return shared, SiloProfiles(kappa[None], np.moveaxis(silo_draws, 0, 1).astype(np.float32))


def assign_rows(parts: Parts, silos: Silos, groups: Sequence[Ints] | None) -> None:
    """Have every silo find its rows' clusters, and keep them."""
    own = parts.silo_profiles
    last = slice(-len(own.parameters), None) if own else slice(None)
    asked = {}
    for place, name in enumerate(silos.names):
        profiles = own.parameters[:, place] if own else parts.profile_draws
        by_matching = groups[place] if groups is not None else None
        asked[name] = AssignRows(parts.weights_by_silo[last, place], profiles, by_matching)
    silos.ask(asked)


class CountingSilos:
    """Silos whose replies, and the bytes of them, are counted by silo and kind; tells a report."""

    def __init__(self, silos: Silos, report: Report | None = None) -> None:
        self._silos, self.names, self._report = silos, silos.names, report
        self.sent: dict[str, dict[str, int]] = {name: {} for name in silos.names}
        self.answered: dict[str, dict[str, int]] = {name: {} for name in silos.names}
        # of each silo, as its last answer that tells it says
        self.rows: dict[str, int] = {}

    def say(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Report how far the study is."""
        if self._report is not None:
            self._report(Progress(stage, done, total))

    def ask(self, query: Query | Mapping[str, Query]) -> Mapping[str, Any]:
        """Ask, and count what comes back."""
        replies = self._silos.ask(query)
        for name, reply in replies.items():
            kind = type(reply).__name__
            self.sent[name][kind] = self.sent[name].get(kind, 0) + count_bytes(reply)
            self.answered[name][kind] = self.answered[name].get(kind, 0) + 1
            if isinstance(reply, Release):
                self.rows[name] = reply.rows
            elif isinstance(reply, PolishReply):
                self.rows[name] = int(reply.members[0].sum())
        return replies
