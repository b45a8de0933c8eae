"""From a site's decisions to its silo, and back to its rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import silomix
from silomix.errors import CheckpointError, StudyMismatch
from silomix.messages import Refused, SampleLocally
from silomix.model.draws import to_four_decimals
from silomix.model.reading import read_table
from silomix.model.table import infer_schema
from silomix.silo.answer import answer_or_refuse
from silomix.silo.local import open_site, write_labels
from silomix.study import make_study
from silomix.study.policy import Policy, find_policy


@pytest.fixture(scope="module")
def table():
    made, _ = silomix.simulate("nested", rows=60, silos=2, seed=1)
    return made


@pytest.fixture(scope="module")
def study(table):
    return make_study(infer_schema(table, silo="silo"), ["silo 1", "silo 2"])


@pytest.fixture
def opened(table, tmp_path):
    """Return what opens a silo of the table, with one store and one ledger."""
    data = tmp_path / "table.csv"
    table.assign(id=[f"-{row}" for row in range(60)]).to_csv(data, index=False)
    where = {"store": tmp_path / "store", "silo_column": "silo"}
    return lambda study, name, policy, **more: open_site(
        data, study, name, policy=policy, **where, **more
    )


def test_labels_stand_next_to_the_numbers_of_their_rows(table, opened, study):
    with pytest.raises(StudyMismatch, match="no silo 'silo 3'; its roster is 'silo 1', 'silo 2'"):
        opened(study, "silo 3", find_policy("open"))
    silo, loaded = opened(study, "silo 2", find_policy("default"), id_column="id")
    assert (table["silo"].to_numpy()[loaded.rows - 1] == "silo 2").all()
    assert write_labels(silo, loaded) is None
    drawn = np.random.default_rng(0).dirichlet(np.ones(3), silo.shard.rows)
    membership = to_four_decimals(drawn)
    silo.store.assign(membership)
    found = read_table(write_labels(silo, loaded)).to_native()
    assert found["row"].astype(int).tolist() == loaded.rows.tolist()
    assert found["id"].tolist() == [f"-{row - 1}" for row in loaded.rows]
    assert set(found["silo"]) == {"silo 2"}
    assert found["cluster"].astype(int).tolist() == membership.argmax(axis=1).tolist()
    sure = found["probability"].astype(np.float32)
    np.testing.assert_array_equal(sure, membership.max(axis=1))
    assert "id" not in pd.read_csv(write_labels(silo, loaded._replace(ids=None)))


def test_a_store_is_kept_by_a_policy_that_only_allows_more(opened, study):
    policy = find_policy("default")
    opened(study, "silo 2", policy)
    more = policy.model_copy(
        update={"exchanges": policy.exchanges.model_copy(update={"polish": 9})}
    )
    opened(study, "silo 2", more)
    with pytest.raises(CheckpointError, match="was made for another minimum count or rounding"):
        opened(study, "silo 2", find_policy("omop"))


def test_a_store_is_kept_by_a_stricter_policy_that_holds_from_then_on(table, opened):
    study = make_study(
        infer_schema(table, silo="silo"), ["silo 1", "silo 2"], tier="draws", iterations=200
    )

    def release(policy):
        silo, _ = opened(study, "silo 2", policy)
        return answer_or_refuse(SampleLocally(), silo)

    both = Policy(tiers=("summary", "draws"))
    assert release(both).policy["studies"] == 1
    assert release(both.model_copy(update={"studies": 3})).policy["studies"] == 3
    assert release(find_policy("default")) == Refused("policy")
