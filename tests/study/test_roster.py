from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from silomix.errors import DataError, DataWarning
from silomix.model.table import infer_schema
from silomix.study import make_study
from silomix.study.roster import own_rows, read_roster


@pytest.fixture
def study():
    table = pd.DataFrame({"a": list("wxyz"), "b": list("pqpq")})
    return make_study(infer_schema(table), ["north", "south"], seed=1)


def test_roster_places_every_row(study):
    table = pd.DataFrame({0: [10, 9.0, 10, 2], "a": list("wxyz")})
    roster = read_roster(table, 0)
    assert roster.names == ("2", "9", "10")
    np.testing.assert_array_equal(roster.places, [2, 1, 2, 0])
    assert own_rows(table, 0, "10", study)["a"].to_list() == ["w", "y"]
    alone = read_roster(table, None)
    assert (alone.names, alone.places.tolist()) == (("all",), [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("column", "silo", "words"),
    [
        ("SITE", "a", r"no column 'SITE' to tell the silos apart \(did you mean 'site'\?\)"),
        (
            "ward",
            "a",
            "no column 'ward' to tell the silos apart; its columns are 'site', 'a', 'twin'",
        ),
        ("site", "north", r"has no row of 'north' \(did you mean 'North'\?\); it has 'North', 'b'"),
        ("a", "x", "the silo column 'a' is empty in data row 2"),
        ("twin", "north", "has 'north', 'north ', which differ only in capitals or spaces"),
    ],
)
def test_a_silo_that_is_not_there_is_named(study, column, silo, words):
    table = pd.DataFrame({"site": ["North", "b"], "a": ["x", None], "twin": ["north", "north "]})
    with pytest.raises(DataError, match=words):
        own_rows(table, column, silo, study)


def test_another_silo_of_the_study_is_not_offered(study):
    table = pd.DataFrame({"site": ["south", "south"]})
    with pytest.raises(DataError) as refused:
        own_rows(table, "site", "north", study)
    assert "did you mean" not in str(refused.value)


def test_without_a_column_all_rows_are_the_silos_own(study):
    """A column of silo names that is not used is warned of; other columns are not."""
    table = pd.DataFrame({"a": list("wx"), "b": list("pq"), "site": ["north", "south"]})
    with pytest.warns(DataWarning, match=r"all 2 rows are taken for those of 'north'.*'site'"):
        own_rows(table, None, "north", study)
    assert len(own_rows(table, "site", "north", study)) == 1
    for other in ("north", "1", [["north"], ["south"]]):
        assert len(own_rows(table.assign(site=other), None, "north", study)) == 2
