"""`[[variables]]` of kinds other than categorical: written, read, digested and refused."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pandas as pd
import pytest
import tomli_w

from silomix.errors import SettingsError
from silomix.model.schema import Schema, Variable
from silomix.model.table import encode, infer_schema
from silomix.study import digest, make_study, read_study, write_study
from silomix.study.roster import own_rows

VARIABLES = (
    Variable("sex", ("f", "m"), na_values=("", "-9")),
    Variable("age group", ("below 54", "54 or more"), edges=(54.0,)),
    Variable("income is 0", ("no", "yes"), spike=0.0, source="income"),
    Variable("income", kind="gaussian", location=23300.0, scale=25900.0, spike=0.0),
    Variable("crp", kind="gaussian", location=-0.13, scale=0.97, transform="log"),
    Variable("visits", kind="poisson", location=1.9),
)
SCHEMA = Schema(VARIABLES)


@pytest.fixture
def path(tmp_path):
    return write_study(make_study(SCHEMA, ["north", "south"]), tmp_path / "study.toml")


def test_a_study_file_states_what_each_kind_needs(path):
    assert path.read_text("utf-8").endswith("""
[[variables]]
name = "sex"
levels = ["f", "m"]
na_values = ["", "-9"]

[[variables]]
name = "age group"
levels = ["below 54", "54 or more"]
edges = [54.0]

[[variables]]
name = "income is 0"
levels = ["no", "yes"]
spike = 0.0
source = "income"

[[variables]]
name = "income"
kind = "gaussian"
location = 23300.0
scale = 25900.0
transform = "none"
spike = 0.0

[[variables]]
name = "crp"
kind = "gaussian"
location = -0.13
scale = 0.97
transform = "log"

[[variables]]
name = "visits"
kind = "poisson"
location = 1.9
scale = 1.0
transform = "none"
""")
    study = read_study(path)
    assert study == make_study(SCHEMA, ["north", "south"])
    assert study.table_schema == SCHEMA


def test_every_key_changes_the_digest(path):
    others = [
        SCHEMA.variables,
        *(
            (*VARIABLES[:3], replace(VARIABLES[3], **change), *VARIABLES[4:])
            for change in (
                {"location": 23400.0},
                {"scale": 25000.0},
                {"transform": "log"},
            )
        ),
        (*VARIABLES[:2], *(replace(v, spike=1.0) for v in VARIABLES[2:4]), *VARIABLES[4:]),
        (VARIABLES[0], replace(VARIABLES[1], edges=(55.0,)), *VARIABLES[2:]),
        (*VARIABLES[:2], replace(VARIABLES[2], source="wages"), *VARIABLES[3:]),
    ]
    digests = {digest(make_study(Schema(each), ["north", "south"])) for each in others}
    assert len(digests) == len(others)
    assert digest(read_study(path)) in digests


def test_a_category_may_state_its_kind(path):
    document = tomllib.loads(path.read_text("utf-8"))
    document["variables"][0]["kind"] = "categorical"
    document["variables"][5]["scale"] = 1
    before = read_study(path)
    path.write_text(tomli_w.dumps(document), "utf-8")
    assert digest(read_study(path)) == digest(before)


WRONG = [
    (0, {"kind": "Gaussian"}, "kind is 'Gaussian'; it must be one of 'categorical', 'gaussian', "),
    (0, {"location": 1.0}, "location is not a setting of a categorical variable"),
    (0, {"levels": None}, "levels is missing"),
    (0, {"spike": 1.0}, "source and spike need each other"),
    (1, {"edges": [1.0, 2.0]}, "edges must be one number fewer than there are levels"),
    (1, {"edges": []}, "edges must be one number fewer than there are levels"),
    (2, {"levels": ["yes", "no"]}, "levels must be ['no', 'yes'], since there is a spike"),
    (3, {"levels": ["a"]}, "levels is not a setting of a gaussian variable"),
    (3, {"edges": [1.0]}, "edges is not a setting of a gaussian variable"),
    (3, {"location": None}, "location is missing"),
    (3, {"scale": 0.0}, "scale is 0.0; it must be greater than 0"),
    (3, {"location": float("inf")}, "location is inf"),
    (3, {"transform": "logit"}, "transform is 'logit'; it must be 'none' or 'log'"),
    (5, {"location": 0.0}, "location is 0.0; the mean of counts must be above 0"),
    (5, {"scale": 2.0}, "scale changes counts"),
    (5, {"transform": "log"}, "transform changes counts"),
]


@pytest.mark.parametrize(("place", "change", "sentence"), WRONG)
def test_what_a_kind_cannot_have_is_refused(path, place, change, sentence):
    document = tomllib.loads(path.read_text("utf-8"))
    changed = document["variables"][place] | change
    document["variables"][place] = {k: v for k, v in changed.items() if v is not None}
    path.write_text(tomli_w.dumps(document), "utf-8")
    with pytest.raises(SettingsError) as caught:
        read_study(path)
    assert f"\n  - variables.{place + 1}.{sentence}" in str(caught.value)


CUT = Variable("cut", ("low", "high"), edges=(5.0,))
SPIKE = Variable("income is 7", ("no", "yes"), spike=7.0, source="income")
ASKED_TWICE = {
    "another cut": (replace(CUT, name="income"), VARIABLES[2]),
    "another spike": (SPIKE, *VARIABLES[2:4]),
    "another value beside the numbers": (SPIKE, VARIABLES[3]),
    "numbers with their spike": (VARIABLES[2], replace(VARIABLES[3], spike=None)),
    "counts too": (SPIKE, replace(VARIABLES[5], name="income")),
}


@pytest.mark.parametrize("variables", ASKED_TWICE.values(), ids=ASKED_TWICE)
def test_a_column_is_asked_for_once(variables):
    """Each release is rounded by itself: many cuts of one column would give single rows away."""
    text = "are both made of the column 'income'"
    with pytest.raises(SettingsError, match=text):
        make_study(Schema(variables), ["north", "south"])


def test_a_cut_reads_no_other_column(path):
    text = path.read_text("utf-8").replace(
        "spike = 0.0\nsource", "spike = 0.0\nedges = [1]\nsource"
    )
    path.write_text(text, "utf-8")
    with pytest.raises(SettingsError, match="edges cuts numbers, and so does spike"):
        read_study(path)


def test_kinds_that_are_mixed_up_are_refused():
    kinds = "categorical, gaussian, gaussian-full, student-t, poisson"
    with pytest.raises(SettingsError, match=f"order of their kinds: {kinds}"):
        make_study(Schema(VARIABLES[::-1]), ["north", "south"])


def test_a_silo_reads_its_rows_in_the_units_of_the_study(tmp_path):
    pilot = pd.DataFrame({"income": [0, 0, 0, *range(100, 1200, 100)], "sex": ["f", "m"] * 7})
    study = make_study(infer_schema(pilot), ["north", "south"])
    schema = read_study(write_study(study, tmp_path / "study.toml")).table_schema
    rows = own_rows(pd.DataFrame({"income": [0, 700.5], "sex": "m"}), None, "north", study)
    shard = encode(rows, schema)
    twin = [v.name for v in schema.categories].index("income is 0")
    (income,) = schema.numbers
    assert shard.codes[:, twin].tolist() == [1, 0]
    assert shard.numbers[1, 0] == (700.5 - income.location) / income.scale
    assert shard.numbers[0, 0] != shard.numbers[0, 0]
