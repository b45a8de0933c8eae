"""From a site's decisions to its silo, and back to its rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import silomix
from silomix.errors import CheckpointError, StudyMismatch
from silomix.messages import Refused, SampleLocally
from silomix.model.table import infer_schema
from silomix.silo.answer import answer_or_refuse
from silomix.silo.local import open_site
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
    table.to_csv(data, index=False)
    where = {"store": tmp_path / "store", "silo_column": "silo"}
    return lambda study, name, policy: open_site(data, study, name, policy=policy, **where)


def test_labels_stand_next_to_the_numbers_of_their_rows(table, opened, study):
    with pytest.raises(StudyMismatch, match="no silo 'silo 3'; its roster is 'silo 1', 'silo 2'"):
        opened(study, "silo 3", find_policy("open"))
    silo, rows = opened(study, "silo 2", find_policy("default"))
    assert (table["silo"].to_numpy()[rows - 1] == "silo 2").all()
    assert silo.store.write_labels(rows) is None
    membership = np.random.default_rng(0).dirichlet(np.ones(3), silo.shard.rows).astype(np.float32)
    silo.store.assign(membership)
    found = pd.read_csv(silo.store.write_labels(rows))
    assert found["row"].tolist() == rows.tolist()
    assert found["cluster"].tolist() == membership.argmax(axis=1).tolist()
    np.testing.assert_array_equal(found["probability"].astype(np.float32), membership.max(axis=1))


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
