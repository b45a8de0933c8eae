"""More attacks inside one study, by a reader who had seen the first ones mended."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from cases.cli_cases import run
from cases.release_cases import known_local

from silomix.errors import PolicyRefusal
from silomix.messages import AssignRows, SampleLocally
from silomix.messages.message_checks import check_query
from silomix.model.schema import Schema, Variable
from silomix.silo.answer import answer, permit
from silomix.silo.local import Silo, load_rows
from silomix.silo.release import make_release
from silomix.study import make_study, write_study
from silomix.study.policy import PRESETS

pytestmark = [
    pytest.mark.usefixtures("without_pictures"),
    pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning"),
    pytest.mark.filterwarnings("ignore::silomix.errors.DataWarning"),
]
RULED = [one for one in PRESETS.values() if one.has_rules and one.name != "ukllc"]
every_policy = pytest.mark.parametrize("policy", RULED, ids=lambda policy: policy.name)
NO_YES = ("no", "yes")


def study_of(variables, **settings):
    given = {"preset": "files", "components": 1, "iterations": 60, "chains": 1, "seed": 1}
    return make_study(Schema(tuple(variables)), ["a", "b"], **(given | settings))


def left_of(frame, study, policy):
    shard = load_rows(frame, study, "a", column=None, frequency=None).shard
    return answer(SampleLocally(), Silo("a", 0, shard, study, policy=policy))


@every_policy
def test_known_numbers_beside_their_split_do_not_count_a_rare_value(seed, policy):
    """Both count known cells, one with the value and one without it."""
    study = study_of(
        [
            Variable("99?", NO_YES, spike=99.0, source="x", na_values=("7",)),
            Variable("x", kind="gaussian", spike=99.0, na_values=("7",)),
        ]
    )
    told = set()
    for count in range(policy.minimum_count):
        x = np.random.default_rng(seed).normal(size=300).round(3)
        x[:60], x[60 : 60 + count] = 7.0, 99.0
        told.add(left_of(pd.DataFrame({"x": x}), study, policy).known.tobytes())
    assert len(told) == 1


@every_policy
@pytest.mark.parametrize("missing", [1, 4])
@pytest.mark.parametrize("rows", range(5, 45))
def test_no_size_of_cluster_tells_few_missing_cells_from_none(policy, rows, missing):
    """Neither by the released known cells nor by how the concentration compares with them."""
    if rows < policy.minimum_count or missing >= policy.minimum_count:
        pytest.skip("too few rows, or not too few missing cells")
    study, told = study_of([Variable("x", NO_YES), Variable("y", ("0", "1"))]), set()
    for count in (0, missing):
        x = pd.Series(np.resize(NO_YES, rows).astype(object))
        x[:count] = None
        frame = pd.DataFrame({"x": x, "y": np.arange(rows) % 2})
        release = left_of(frame, study, policy)
        told.add((release.known[0, 0], release.concentration[0, 0]))
    assert len(told) == 1


RARE = [f"rare {k}" for k in range(20)]


def with_group(rng, group, common, rows=300):
    """Two clusters or none, and `group` rows that share twenty conditions of their own."""
    old = rng.random(rows) < 0.45
    share = np.where(old, 0.85, 0.15) if common else np.full(rows, 0.4)
    frame = {f"a{k}": (rng.random(rows) < share).astype(int) for k in range(6)}
    return pd.DataFrame(frame | {name: (np.arange(rows) < group).astype(int) for name in RARE})


@pytest.mark.parametrize("group", [1, 2, 9])
def test_diagnostics_do_not_tell_that_a_group_too_small_is_there(seed, group):
    columns = [*(f"a{k}" for k in range(6)), *RARE]
    variables = [Variable(name, ("0", "1")) for name in columns]
    study = study_of(variables, components=2, alpha=0.1, iterations=400, chains=2)
    policy = PRESETS["default"]
    with_it, without = (
        left_of(with_group(np.random.default_rng(seed), size, False), study, policy).diagnostics
        for size in (group, 0)
    )
    assert repr(with_it) == repr(without)


def test_a_group_too_small_does_not_take_a_component_of_the_others(seed):
    columns = [*(f"a{k}" for k in range(6)), *RARE]
    variables = [Variable(name, ("0", "1")) for name in columns]
    study = study_of(variables, components=2, alpha=0.1, iterations=400, chains=2)
    told = {
        left_of(
            with_group(np.random.default_rng(seed), size, True), study, PRESETS["default"]
        ).clusters
        for size in (0, 9)
    }
    assert len(told) == 1


def test_one_extreme_value_does_not_change_the_number_of_clusters(seed):
    names = [f"a{k}" for k in range(6)]
    variables = [*(Variable(name, ("0", "1")) for name in names), Variable("x", kind="gaussian")]
    study = study_of(variables, components=2, alpha=0.1, iterations=400, chains=2)
    told = set()
    for value in (0.0, 1000.0):
        rng = np.random.default_rng(seed)
        frame = with_group(rng, 0, True)[names]
        frame["x"] = rng.normal(size=len(frame)).round(2)
        frame.loc[0, "x"] = value
        told.add(left_of(frame, study, PRESETS["default"]).clusters)
    assert len(told) == 1


@every_policy
def test_one_row_moves_no_sum_by_more_than_those_that_are_coded_with_it(policy):
    """Where it was the last of as many as the minimum, all of these move with it."""
    rank = -(-policy.minimum_count // policy.round_to) * policy.round_to
    study = study_of([Variable("x", kind="gaussian")])
    margin = max(1.6, policy.round_to)
    steps = np.array([8.0, 16.0]) * margin * np.ceil(1 + rank / margin)
    for number in range(10):
        values = np.random.default_rng(number).uniform(2, 4, 40 * rank).round(3)
        values[:rank] = -4.0
        sums = []
        for first in (-4.0, 4.0):
            values[0] = first
            release = left_of(pd.DataFrame({"x": values}), study, policy)
            sums.append(release.mean[0, 1:] * release.concentration[0])
        assert (np.abs(sums[0] - sums[1]) <= steps * (1 + 1e-9)).all()


def test_the_order_of_clusters_that_leave_alike_does_not_tell_the_larger():
    first = set()
    for sizes in ((102, 98), (98, 102)):
        group = np.repeat([0, 1], sizes)
        labels = group if sizes[0] > sizes[1] else 1 - group
        codes = np.stack([group, np.arange(200) % 2], axis=1)
        local = known_local(np.random.default_rng(0), codes, labels, (2, 2), draws=20)
        about = {"silo": "a", "place": 0, "study": "5" * 64, "tier": "summary"}
        release = make_release(local, policy=PRESETS["default"], **about)
        assert release.sizes.tolist() == [100, 100]
        first.add(release.mean[0, 0] > 0.5)
    assert len(first) == 1


def test_refusals_by_cost_do_not_tell_the_number_of_rows():
    """They are not counted, and a roster of many silos allows many clusters in a small question."""
    roster = ["a", *(f"b{number}" for number in range(499))]
    schema = Schema((Variable("s", ("0", "1")),))
    study = make_study(schema, roster, preset="files", components=100, iterations=60, seed=1)
    told = set()
    for rows in (9_998, 10_000, 10_002):
        frame, refused = pd.DataFrame({"s": np.arange(rows) % 2}), []
        shard = load_rows(frame, study, "a", column=None, frequency=None).shard
        silo = Silo("a", 0, shard, study, policy=PRESETS["default"])
        for guess in range(9_997, 10_004):
            clusters = int(8e9 // (24 * guess)) + 1
            weights = np.full((1, clusters), 1 / clusters, np.float32)
            query = AssignRows(weights, np.full((1, clusters, 2), 0.5, np.float32))
            check_query(query, study, "a")
            try:
                permit(query, silo)
            except PolicyRefusal:
                refused.append(guess)
        told.add(tuple(refused))
    assert len(told) == 1


def test_a_table_that_cannot_be_read_in_a_study_counts(tmp_path):
    """A number too far from the location for its scale: asked again with another scale."""
    frame = pd.DataFrame({"age": [*range(20, 90), 105], "s": np.arange(71) % 2})
    frame.to_csv(tmp_path / "t.csv", index=False)
    codes = []
    for limit in (100, 110):
        age = Variable("age", kind="gaussian", scale=limit * 1e-12)
        study = study_of([Variable("s", ("0", "1")), age])
        write_study(study, tmp_path / "study.toml")
        how = ["--study", tmp_path / "study.toml", "--silo", "a", "--ledger", tmp_path / "ledger"]
        done = run("release", tmp_path / "t.csv", *how, "--out", tmp_path / f"{limit}", "--quiet")
        codes.append(done.exit_code)
    assert codes[0] == 0 or codes[1] != 0


def test_a_table_answers_a_study_as_one_silo(tmp_path):
    """Another name in the roster has other random streams: another release of the same rows."""
    frame = with_group(np.random.default_rng(1), 0, True)[[f"a{k}" for k in range(6)]]
    frame.to_csv(tmp_path / "t.csv", index=False)
    variables = [Variable(name, ("0", "1")) for name in frame]
    write_study(study_of(variables, components=2), tmp_path / "study.toml")
    codes = []
    for name in ("a", "b"):
        how = ["--study", tmp_path / "study.toml", "--silo", name, "--ledger", tmp_path / "ledger"]
        done = run("release", tmp_path / "t.csv", *how, "--out", tmp_path / name, "--quiet")
        codes.append(done.exit_code)
    assert codes[0] == 0
    assert codes[1] != 0
