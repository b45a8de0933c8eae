"""Small studies made from true counts: releases are conjugate draws, no sampler is run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from cases.families import categories, model_of, shard_of

from silomix.coordinator.aggregation.objective import of_rows
from silomix.families.chains import Rows
from silomix.kernels.arrays import distinct_rows
from silomix.messages import (
    CountDistinctRows,
    DistinctRows,
    LogLikelihood,
    Received,
    Release,
    ReleasedDiagnostics,
    ShareReleases,
)
from silomix.messages.released_draws import effective_counts, matched_draws, shared_draws
from silomix.model.draws import Correspondence
from silomix.model.schema import Prior

PAPER_SIZES = (2,) * 4 + (3,) * 6
PRIOR = Prior()


@dataclass(frozen=True, eq=False)
class Case:
    """A study whose every row's cluster is known."""

    releases: list[Release]
    correspondence: Correspondence
    codes: list[np.ndarray]
    labels: list[np.ndarray]
    sizes: np.ndarray
    prior: Prior

    @property
    def offsets(self):
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def family(self):
        return categories(self.sizes, self.prior.beta)

    @property
    def silos(self):
        return FakeSilos(self)

    def model(self, seed):
        return model_of(self.sizes, seed, self.prior)

    def matched(self, draws, seed):
        groups = self.correspondence.groups
        return matched_draws(self.releases, groups, draws, self.model(seed))

    def pooled(self, threads=1):
        """The oracle of all rows, at hand."""
        return self.oracle(np.concatenate(self.codes), threads)

    def oracle(self, codes, threads=1):
        rows = Rows(shard_of(codes, self.sizes), self.family)
        return of_rows(self.family, partial(rows.expected, threads=threads))


class FakeSilos:
    """Answers as silos would, and remembers what it was asked."""

    def __init__(self, case):
        self.case, self.asked, self.shared = case, [], None

    @property
    def names(self):
        return self.case.correspondence.silos

    def ask(self, query):
        self.asked.append(query)
        answer = {
            ShareReleases: self._share,
            LogLikelihood: self._log_likelihood,
            CountDistinctRows: self._rows,
        }
        return {
            name: answer[type(query)](query, codes)
            for name, codes in zip(self.names, self.case.codes, strict=True)
        }

    def _share(self, query, _):
        self.shared = query
        return Received()

    def _log_likelihood(self, query, codes):
        assert query.shared == self.shared.key
        # made already, by whoever shared the releases, under a seed that nobody here knows
        known = shared_draws(self.shared, self.case.model(-1))
        some = known.some(query.first, query.last)
        return self.case.oracle(codes)(some, query.first, query.weights, query.profiles)

    def _rows(self, _, codes):
        return DistinctRows(*distinct_rows(codes))


def make_case(
    seed,
    *,
    rows=(400, 300, 200, 300),
    clusters=4,
    sizes=PAPER_SIZES,
    spread=0.3,
    holds=None,
    missing=0.0,
    draws=400,
    prior=PRIOR,
):
    """Latent-class rows in silos; `holds` (silo, cluster) says which clusters occur where.

    `spread` is the concentration of the true profiles: smaller is easier to tell apart.
    """
    rng = np.random.default_rng(seed)
    sizes = np.array(sizes)
    holds = np.ones((len(rows), clusters), bool) if holds is None else np.array(holds, bool)
    profiles = [rng.dirichlet(np.full(k, spread), clusters) for k in sizes]
    codes, labels = [], []
    for n, held in zip(rows, holds, strict=True):
        here = np.flatnonzero(held)
        # every cluster occurs, so that what is held is what was asked for
        label = np.concatenate([here, rng.choice(here, n - len(here))])
        cells = draw_cells(rng, label, profiles)
        cells = np.where(rng.random(cells.shape) < missing, sizes, cells)
        codes.append(cells.astype(np.uint8))
        labels.append(label)
    return case_of(rng, codes, labels, holds, sizes, prior, draws)


def draw_cells(rng, labels, profiles):
    """Codes (row, variable) of rows with these labels; a table (cluster, level) each variable."""
    ends = [table[labels].cumsum(axis=1)[:, :-1] for table in profiles]
    columns = [(rng.random((len(labels), 1)) > end).sum(axis=1) for end in ends]
    return np.stack(columns, axis=1).astype(np.uint8)


def case_of(rng, codes, labels, holds, sizes, prior, draws):
    """The case of these rows, one array of codes and of labels for each silo."""
    releases = [
        conjugate_release(rng, place, part, label, sizes, prior, len(codes), draws)
        for place, (part, label) in enumerate(zip(codes, labels, strict=True))
    ]
    correspondence = Correspondence(
        silos=tuple(release.silo for release in releases),
        groups=tuple(np.flatnonzero(held) for held in holds),
        sizes=tuple(release.sizes for release in releases),
        method="truth",
    )
    return Case(releases, correspondence, codes, labels, sizes, prior)


def counts_of(releases, model):
    """The effective counts of releases."""
    return [effective_counts(release, model, len(releases)) for release in releases]


def share_of(case, draws, seed):
    """What the silos of a case are shown before they are asked about points, and its draws."""
    share = ShareReleases(tuple(case.releases), case.correspondence.groups, draws)
    return share, shared_draws(share, case.model(seed))


def level_counts(codes, sizes):
    """Cells by level column, missing ones nowhere: (level,)."""
    return np.concatenate(
        [np.bincount(codes[:, q], minlength=k + 1)[:k] for q, k in enumerate(sizes)]
    )


def dirichlet_levels(rng, shapes, sizes, draws):
    """Draws of level probabilities, (draw, cluster, level), of shapes (cluster, level)."""
    gammas = rng.standard_gamma(shapes, (draws, *shapes.shape))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    totals = np.add.reduceat(gammas, offsets[:-1], axis=-1)
    return gammas / np.repeat(totals, sizes, axis=-1)


def conjugate_release(rng, place, codes, labels, sizes, prior, silos, draws):
    """One silo's posterior given its rows' true clusters."""
    alpha, beta = prior.share(silos)
    local, members = np.unique(labels, return_counts=True)
    counts = np.stack([level_counts(codes[labels == c], sizes) for c in local])
    return release_of(
        f"silo-{place}",
        place,
        members,
        rng.dirichlet(members + alpha, draws),
        dirichlet_levels(rng, counts + beta, sizes, draws),
        sizes,
        beta,
    )


def release_of(silo, place, members, weights, probabilities, sizes, beta):
    """A release with these draws."""
    family = categories(sizes, beta)
    mean, concentration = family.means(family.valid(family.fit(probabilities)))
    return Release(
        silo=silo,
        place=place,
        sizes=members,
        known=np.repeat(members[:, None], len(sizes), axis=1),
        mean=mean,
        concentration=concentration,
        tier="draws",
        weights=weights.astype(np.float32),
        parameters=probabilities.astype(np.float32),
        diagnostics=ReleasedDiagnostics("made from counts", True, {}, {}, 0.0),
        study="0" * 64,
    )
