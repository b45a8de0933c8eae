"""Attacks inside one study: everything that leaves in it is held against everything else.

The coordinator wrote the study and its questions, and knows all of a table but for one row or one
column. Each attack succeeded against version 0.2.0.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cases.cli_cases import run
from cases.families import categories
from cases.number_cases import AGE, shard_of
from cases.release_cases import known_local
from cases.release_cases import shard_of as levels_shard

from silomix.errors import OpenQuestion
from silomix.families import make_family
from silomix.families.disclosure import disclose
from silomix.families.release_rounding import least_units, round_counts
from silomix.messages import AssignRows, Received
from silomix.messages.container import digest_record
from silomix.model.schema import Prior, Schema
from silomix.silo.answer import answer
from silomix.silo.local import Silo
from silomix.silo.release import make_release
from silomix.study import make_study, read_study
from silomix.study.policy import OPEN, PRESETS
from silomix.transports.exchange_folder import FileExchange

pytestmark = pytest.mark.usefixtures("without_pictures")

RULED = [one for one in PRESETS.values() if one.has_rules and one.name != "ukllc"]
every_policy = pytest.mark.parametrize("policy", RULED, ids=lambda policy: policy.name)
QUICK = {"preset": "files", "components": 2, "iterations": 60, "seed": 1}


def person_or_rest(target, offsets):
    """Profiles of two clusters: the target's cells, nearly certain, and everything else."""
    exact = np.full(offsets[-1], 1e-6)
    exact[offsets[:-1] + target] = 1.0
    exact /= np.repeat(np.add.reduceat(exact, offsets[:-1]), np.diff(offsets))
    even = np.repeat(1 / np.diff(offsets), np.diff(offsets))
    draws = np.tile(np.stack([exact, even]), (20, 1, 1)).astype(np.float32)
    return AssignRows(np.full((20, 2), 0.5, np.float32), draws)


class TestAssignedSizes:
    """Rows of a release less rows of clusters that the coordinator chooses."""

    @pytest.mark.parametrize("policy", [*RULED, OPEN], ids=lambda policy: policy.name)
    def test_no_answer_depends_on_the_rows(self, seed, policy):
        rng, sizes, left = np.random.default_rng(seed), (2, 3, 2), set()
        codes = np.stack([rng.integers(0, size, 60) for size in sizes], axis=1)
        target = np.array([1, 2, 1])
        for is_there in (False, True):
            codes[0] = target if is_there else 0
            shard = levels_shard(codes, sizes)
            silo = Silo("a", 0, shard, make_study(shard.schema, ["a", "b"], **QUICK), policy=policy)
            reply = answer(person_or_rest(target, shard.schema.offsets), silo)
            left.add(digest_record(reply))
            assert silo.store.membership is not None
        assert reply == Received()
        assert len(left) == 1

    def test_by_file_the_answer_is_the_same_with_and_without_the_person(self, tmp_path, seed):
        """The coordinator's own question, answered by the real command."""
        rng = np.random.default_rng(seed)
        table = pd.DataFrame(rng.integers(0, 2, (80, 4)), columns=list("pqrs")).astype(str)
        table.to_csv(tmp_path / "codebook.csv", index=False)
        make = ["--preset", "files", "--iterations", 60, "--components", 2, "--seed", 1]
        study = tmp_path / "study.toml"
        run("study", tmp_path / "codebook.csv", "--silos", "a,b", *make, "--out", study)
        left = set()
        for name in ("without", "with"):
            folder = tmp_path / name
            folder.mkdir()
            table.loc[0] = ["1"] * 4 if name == "with" else ["0"] * 4
            table.to_csv(folder / "table.csv", index=False)
            plan = read_study(study)
            asked = FileExchange(folder / "exchange", plan)
            with pytest.raises(OpenQuestion):
                asked.ask(person_or_rest(1, plan.table_schema.offsets))
            where = ["--silo", "a", "--data", folder / "table.csv", "--study", study]
            done = run("answer", folder / "exchange", *where, "--ledger", folder / "ledger")
            assert done.exit_code == 0, done.output
            files = sorted((folder / "exchange" / "answers").rglob("*.*"))
            left.add(tuple((file.name, file.read_bytes()) for file in files))
            assert files
        assert len(left) == 1


LEVELS, COLUMNS, ROWS, KNOWN = 3, 6, 5000, 137


def mostly_missing(seed):
    """Columns of three levels, known for the same few of many rows: codes and counts of levels."""
    rng = np.random.default_rng(seed)
    codes = np.full((ROWS, COLUMNS), LEVELS, dtype=np.uint8)
    for column in codes.T:
        few = rng.integers(0, 10)
        first = rng.integers(30, KNOWN - few - 30)
        column[:KNOWN] = np.repeat([0, 1, 2], [first, KNOWN - few - first, few])
    counts = np.stack([np.bincount(c, minlength=LEVELS + 1)[:LEVELS] for c in codes.T])
    return codes, counts


def release_of(codes, policy):
    rng, labels = np.random.default_rng(0), np.zeros(len(codes), dtype=np.int64)
    local = known_local(rng, codes, labels, (LEVELS,) * codes.shape[1], draws=20)
    about = {"silo": "a", "place": 0, "study": "5" * 64, "tier": "summary"}
    return make_release(local, policy=policy, **about)


class TestMissingCells:
    """Shares are of the known cells: counts of few known cells are no finer than others."""

    @pytest.mark.parametrize("policy", [one for one in RULED if one.round_to > 1], ids=str)
    def test_counts_above_the_minimum_are_not_read_off(self, policy):
        """Of three levels and K shared by all columns, read by the shares and the exact K."""
        hits = {KNOWN: [], round(KNOWN / policy.round_to) * policy.round_to: []}
        for seed in range(60):
            codes, counts = mostly_missing(seed)
            mean = release_of(codes, policy).mean[0].reshape(COLUMNS, LEVELS)
            for known, right in hits.items():
                right.extend((np.rint(mean * known) == counts)[counts >= policy.minimum_count])
        assert max(np.mean(right) for right in hits.values()) < 1.4 / policy.round_to

    @every_policy
    def test_a_rare_level_is_not_what_is_left_of_the_known_cells(self, policy):
        """Every number of rare cells under the minimum may leave so, wherever K is known."""
        minimum, left = least_units(policy) * policy.round_to, {}
        near = range(-8, 9)
        for rare, more, total in product(range(minimum), near, near):
            first, known = 50 + more, KNOWN + total
            codes = np.full((ROWS, 1), LEVELS, dtype=np.uint8)
            codes[:known, 0] = np.repeat([0, 1, 2], [first, known - first - rare, rare])
            member, sizes = np.ones((ROWS, 1)), np.array([ROWS])
            given = levels_shard(codes, (LEVELS,)), member, np.full((1, 1), 1.0), sizes, policy
            found = disclose(categories((LEVELS,)), *given)
            tables = left.setdefault((found.mean.tobytes(), found.known.tobytes()), [])
            tables.append((rare, abs(more) <= 2 and abs(total) <= 2))
        inner = [tables for tables in left.values() if any(is_inner for _, is_inner in tables)]
        assert len(inner) > 1
        for tables in inner:
            assert {rare for rare, _ in tables} == set(range(minimum))

    @every_policy
    def test_what_is_known_of_fewer_than_the_minimum_is_not_known_at_all(self, policy):
        left = set()
        for known in range(policy.minimum_count):
            codes = np.full((ROWS, 1), LEVELS, dtype=np.uint8)
            codes[:known] = 0
            release = release_of(codes, policy)
            left.add((release.mean.tobytes(), release.concentration.tobytes(), *release.known[0]))
        assert len(left) == 1

    @every_policy
    def test_nor_are_missing_cells_counted_below_the_minimum(self, policy):
        """A missing cell is a level, too: none and nine missing leave the same known cells."""
        known = set()
        for missing in range(policy.minimum_count):
            codes = np.repeat([0, 1], [150, 153])[:, None]
            codes[:missing] = 2
            member, sizes = np.ones((303, 1)), round_counts(np.array([303]), policy)
            given = levels_shard(codes, (2,)), member, np.full((1, 1), 303.0), sizes, policy
            known.add(disclose(categories((2,)), *given).known.item())
        assert known == {int(sizes[0])}


class TestCodedColumns:
    """0, 1 and 2 as a normal variable, location and scale chosen so that they fill its bounds."""

    ROWS = 300

    @every_policy
    def test_their_sums_are_no_finer_than_counts_of_levels(self, policy):
        """As many tables leave the same sums as leave the same counts of three levels, or more."""
        numbers, levels = make_family(Schema((AGE,)), Prior()), categories((3,))
        member, sizes = np.ones((self.ROWS, 1)), round_counts(np.array([self.ROWS]), policy)
        keys = []
        # levels that are common: rare ones are top-coded, or raised to the minimum
        for none, two in product(range(60, 90), repeat=2):
            codes = np.repeat([0, 1, 2], [none, self.ROWS - none - two, two])[:, None]
            given = member, np.full((1, 1), float(self.ROWS)), sizes, policy
            as_number = disclose(numbers, shard_of(Schema((AGE,)), 4.0 * codes - 4), *given)
            as_level = disclose(levels, levels_shard(codes, (3,)), *given)
            keys.append([found.mean.tobytes() for found in (as_number, as_level)])
        inner = [all(70 <= n < 80 for n in table) for table in product(range(60, 90), repeat=2)]
        alike = []
        for column in zip(*keys, strict=True):
            tables = Counter(column)
            alike.append(np.mean([tables[key] for key in np.array(column, object)[inner]]))
        assert alike[0] >= 0.95 * alike[1]


def test_the_explanations_do_not_offer_what_no_policy_answers():
    from silomix.messages.release_explained import QUESTIONS

    assert "assign" not in QUESTIONS
    text = Path(__file__).parents[2].joinpath("docs/explanation/privacy.md").read_text("utf-8")
    assert "parameters that the coordinator supplied" in " ".join(text.split())
