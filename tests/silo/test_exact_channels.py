"""Attacks through questions that are answered with exact sums, as a curious coordinator would.

The coordinator chooses what such questions are about: releases that nobody made, whose clusters
are single rows, or differ in one condition. The presets answer none of them; a policy that allows
them refuses what its own release could not be; and what it still gives away, it says in its file.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases.families import categories
from cases.release_cases import clustered
from numpy.testing import assert_allclose, assert_array_equal

from silomix.errors import PolicyRefusal
from silomix.kernels.arrays import distinct_rows
from silomix.messages import (
    CountDistinctRows,
    DivergenceCost,
    LogLikelihood,
    PolishRound,
    Refused,
    SampleLocally,
    ShareReleases,
)
from silomix.messages.message_checks import breaches
from silomix.messages.released_draws import make_reference
from silomix.model.schema import Schema, Shard, Variable
from silomix.paper import FewRounds
from silomix.silo.answer import answer, answer_or_refuse
from silomix.silo.local import Silo
from silomix.silo.release import make_release
from silomix.study import digest, make_study
from silomix.study.policy import OPEN, PRESETS, Exchanges, Policy, find_policy

CONDITIONS = 5
NAMES = ("north", "south", "west")
SCHEMA = Schema(tuple(Variable(f"condition {q}", ("no", "yes")) for q in range(CONDITIONS)))
COMPONENTS = 16
DEFAULT = find_policy("default")
ALLOWING = DEFAULT.model_copy(
    update={"exchanges": Exchanges(divergence=9, sharing=9, gradients=9, polish=9, distinct_rows=9)}
)
STRICT = [policy for policy in PRESETS.values() if policy.has_rules]
QUICK = {"seed": 3, "components": COMPONENTS, "iterations": 200, "chains": 1}
WEIGHED = make_study(
    SCHEMA,
    NAMES,
    tier="summary",
    oracle="federated",
    solver=FewRounds(rounds=3, starts=100),
    polish=0,
    **QUICK,
)
MATCHED = make_study(SCHEMA, NAMES, tier="summary", matching="divergence", polish=0, **QUICK)


@pytest.fixture(scope="module")
def rows():
    """People of whom one is unique: (row, condition)."""
    rng = np.random.default_rng(2)
    codes = (rng.random((300, CONDITIONS)) < [0.5, 0.4, 0.5, 0.3, 0.6]).astype(np.uint8)
    kept = codes[(codes != 1).any(axis=1)]
    return np.concatenate([kept, np.ones((1, CONDITIONS), np.uint8)])


def silo_of(rows, policy, study):
    return Silo("north", 0, Shard(SCHEMA, rows), study, policy=policy)


def made_up(own, place, mean, **changes):
    """A release that no silo made, with these probabilities of each condition: (cluster, level)."""
    clusters = len(mean)
    parts = {
        "silo": NAMES[place],
        "place": place,
        "sizes": np.full(clusters, 10),
        "known": np.full((clusters, CONDITIONS), 10),
        "mean": np.asarray(mean, dtype=float),
        "concentration": np.full((clusters, CONDITIONS), 1e9),
    } | changes
    return replace(own, **parts)


def as_profiles(codes):
    """Each row as a profile that is certain: (row, level)."""
    return np.stack([1 - codes, codes], axis=2).reshape(len(codes), -1).astype(float)


def single_rows(own, distinct):
    """All silos' releases, the others' with a cluster for each distinct row; and their groups."""
    half = len(distinct) // 2
    parts = distinct[:half], distinct[half:]
    others = [made_up(own, place, as_profiles(part)) for place, part in enumerate(parts, start=1)]
    groups = np.zeros(own.clusters, np.int64), np.arange(half), np.arange(half, len(distinct))
    return ShareReleases((own, *others), groups, 1)


def at_the_others(share):
    """One point, at which the silo's own release has no part."""
    clusters = 1 + max(int(group.max()) for group in share.groups)
    profiles = np.zeros((1, 3, clusters))
    for place in (1, 2):
        profiles[0, place, share.groups[place]] = 1.0
    return LogLikelihood(share.key, 0, 1, np.array([[0.0, 0.5, 0.5]]), profiles)


class TestGradients:
    def test_without_rules_one_question_tells_how_often_each_row_occurs(self, rows):
        silo, known = silo_of(rows, OPEN, WEIGHED), distinct_rows(rows)
        share = single_rows(answer_or_refuse(SampleLocally(), silo), known.codes)
        answer_or_refuse(share, silo)
        reply = answer_or_refuse(at_the_others(share), silo)
        told = (reply.profiles[0, 1] + reply.profiles[0, 2]) / CONDITIONS
        assert len(known.counts) > 25
        assert (known.counts == 1).any()
        assert_allclose(told, known.counts, atol=1e-3)

    def test_what_it_gives_away_all_the_same(self, rows):
        """Derivatives in the weights, times these, sum to the exact number of rows."""
        silo = silo_of(rows, ALLOWING, WEIGHED)
        own = answer_or_refuse(SampleLocally(), silo)
        others = [replace(own, silo=NAMES[place], place=place) for place in (1, 2)]
        groups = (np.arange(own.clusters),) * 3
        share = ShareReleases((own, *others), groups, 1)
        answer(share, silo)
        even = np.full((1, 3), 1 / 3)
        point = LogLikelihood(share.key, 0, 1, even, np.full((1, 3, own.clusters), 1 / 3))
        told = float((answer(point, silo).weights * even).sum())
        assert round(told, 6) == len(rows) != own.rows


def one_condition_each(own, **changes):
    """A release whose clusters differ from the first in one condition each: a question of it."""
    mean = np.full((CONDITIONS + 1, 2 * CONDITIONS), 0.5)
    for condition in range(CONDITIONS):
        mean[condition + 1, 2 * condition : 2 * condition + 2] = 0.1, 0.9
    release = made_up(own, 1, mean, **changes)
    return DivergenceCost((release,), (np.arange(len(mean)),), 1)


def read_off(query, cost, total):
    """Solve for how many rows have each condition; `total` is their number.

    Summed over the silo's own clusters, the costs of two reference clusters differ by the sum over
    the rows of the log of their ratio, which is linear in the counts.
    """
    known = make_reference(query, "mean", MATCHED.pooled_model, 3)
    logs = np.log(known.parameters).mean(axis=0)
    no, yes = logs[:, 0::2], logs[:, 1::2]
    clusters = len(known.weights)
    by_row = (np.log(known.weights) + no.sum(axis=1))[1:] - (np.log(known.weights[0]) + no[0].sum())
    by_condition = (yes - no)[1:] - (yes - no)[0]
    differences = cost.sum(axis=0)[1:clusters] - cost.sum(axis=0)[0]
    return np.linalg.solve(by_condition, -differences - total * by_row)


class TestDivergence:
    def test_without_rules_one_question_tells_every_count(self, rows):
        silo = silo_of(rows, OPEN, MATCHED)
        query = one_condition_each(answer_or_refuse(SampleLocally(), silo))
        told = read_off(query, answer_or_refuse(query, silo).cost, len(rows))
        assert_allclose(told, rows.sum(axis=0), atol=1e-6)

    def test_what_it_gives_away_all_the_same(self, rows):
        """Counts that are rounded as they should be differ in one condition each, too."""
        silo = silo_of(rows, ALLOWING, MATCHED)
        concentration = np.full((CONDITIONS + 1, CONDITIONS), 100.0)
        sizes = np.full(CONDITIONS + 1, 100)
        own = answer_or_refuse(SampleLocally(), silo)
        known = np.full((CONDITIONS + 1, CONDITIONS), 100)
        query = one_condition_each(own, sizes=sizes, known=known, concentration=concentration)
        told = read_off(query, answer(query, silo).cost, len(rows))
        assert_allclose(told, rows.sum(axis=0), atol=1e-6)


@pytest.mark.parametrize("policy", STRICT, ids=lambda policy: policy.name)
def test_no_preset_answers_any_of_them(rows, policy):
    silo = silo_of(rows, policy, WEIGHED)
    own = answer(SampleLocally(), silo)
    share = single_rows(own, distinct_rows(rows).codes)
    pooled = updated(WEIGHED, "aggregation", oracle="contingency")
    even = np.full((2, 1, 2 * CONDITIONS), 0.5)
    for study, query in (
        (WEIGHED, share),
        (WEIGHED, at_the_others(share)),
        (MATCHED, one_condition_each(replace(own, study=digest(MATCHED)))),
        (pooled, CountDistinctRows()),
        (
            updated(WEIGHED, "polish", rounds=3, most=3),
            PolishRound(1, np.ones((2, 1)), even, 0.1, 1),
        ),
    ):
        assert answer_or_refuse(query, replace(silo, study=study)) == Refused("policy")


def updated(study, part, **changes):
    return study.model_copy(update={part: getattr(study, part).model_copy(update=changes)})


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_a_policy_that_allows_them_refuses_what_its_own_release_could_not_be(rows, size):
    """Clusters of single rows, whatever size they claim, or in which nobody has a condition."""
    silo = silo_of(rows, ALLOWING, WEIGHED)
    own = answer_or_refuse(SampleLocally(), silo)
    share = single_rows(own, distinct_rows(rows).codes)
    others = [replace(one, sizes=np.full(one.clusters, size)) for one in share.releases[1:]]
    share = replace(share, releases=(own, *others))
    assert answer_or_refuse(share, silo) == Refused("shown")
    assert answer_or_refuse(at_the_others(share), silo) == Refused("order")
    matched = replace(silo, study=MATCHED)
    one, own = (replace(release, study=digest(MATCHED)) for release in (others[0], own))
    of_rows = DivergenceCost((one,), (np.arange(one.clusters),), 1)
    for query in (of_rows, one_condition_each(own)):
        assert answer_or_refuse(query, matched) == Refused("shown")
    with pytest.raises(PolicyRefusal, match=r"shown as that of 'south' has a"):
        answer(share, silo)
    assert silo.store.asked == {}
    assert silo.store.shared is None


SIZES = (2, 3, 2, 4)
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
COARSE = Policy(name="coarse", minimum_count=20, round_to=10)
MEMBERS = (203, 61, 48, 25, 13)


def honest(seed, policy, members=MEMBERS, tier="summary"):
    local = clustered(np.random.default_rng(seed), members, SIZES)
    return make_release(local, silo="south", place=1, study="s", tier=tier, policy=policy)


def told(release, policy):
    return next(breaches(release, policy, categories(SIZES)), None)


class TestShown:
    @pytest.mark.parametrize("policy", [*STRICT, COARSE], ids=lambda policy: policy.name)
    @pytest.mark.parametrize("members", [MEMBERS, (22,), (2000, 11), (40, 40, 40)], ids=str)
    def test_what_leaves_under_a_policy_may_be_shown_under_it(self, seed, policy, members):
        assert told(honest(seed, policy, members), policy) is None
        assert told(honest(seed, OPEN, members, tier="draws"), OPEN) is None

    def test_a_coarser_release_may_be_shown_to_a_finer_silo_and_not_the_other_way(self, seed):
        for name in ("default", "opensafely", "omop", "ukllc", "open"):
            assert told(honest(seed, COARSE), find_policy(name)) is None
        for name in ("omop", "pcornet", "open"):
            assert told(honest(seed, find_policy(name)), DEFAULT) is not None

    def test_each_rule_is_named(self, seed):
        release = honest(seed, DEFAULT)
        certain = np.zeros_like(release.mean)
        certain[:, OFFSETS[:-1]] = 1.0
        for changes, words in (
            ({"tier": "draws"}, "tier 'draws'"),
            ({"weights": np.ones((1, 5))}, "has draws"),
            ({"sizes": np.array([200, 60, 50, 25, 5])}, "5 rows, under 10"),
            ({"sizes": np.array([203, 60, 50, 25, 15])}, "203 rows, under"),
            ({"mean": certain}, "profile of variable 1"),
            ({"concentration": release.concentration + 300}, "claims more precision than its rows"),
        ):
            assert words in told(replace(release, **changes), DEFAULT)

    def test_honest_silos_are_answered(self, rows):
        silos = [
            Silo(name, place, Shard(SCHEMA, rows[place::3]), WEIGHED, policy=ALLOWING)
            for place, name in enumerate(NAMES)
        ]
        releases = tuple(answer(SampleLocally(), silo) for silo in silos)
        groups = tuple(np.arange(release.clusters) for release in releases)
        for silo in silos:
            answer(ShareReleases(releases, groups, 1), silo)
            assert silo.store.shared is not None
        assert_array_equal(silos[0].store.shared.releases[1].mean, releases[1].mean)
