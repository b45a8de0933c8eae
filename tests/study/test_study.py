from __future__ import annotations

import tempfile
import tomllib
import traceback
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from silomix.errors import SettingsError
from silomix.model.draws import Schedule
from silomix.model.schema import Prior, Schema, Variable
from silomix.study import (
    MATCHINGS,
    PRESETS,
    SETTINGS,
    SOLVERS,
    Aggregation,
    Ball,
    Divergence,
    Evidence,
    FewRounds,
    Hungarian,
    Lbfgs,
    Polish,
    Psgd,
    Study,
    default_thin,
    digest,
    make_study,
    read_study,
    validation,
    write_study,
)
from silomix.study.keywords import settings_table
from silomix.study.policy import policy_named
from silomix.study.settings import LocalSettings, ModelSettings, ScheduleSettings, VariableSettings
from silomix.transports.exchange_folder import expected_questions

SCHEMA = Schema((Variable("smoker", ("no", "yes")), Variable("bmi", ("low", "mid", "high"))))
SILOS = ("cambridge", "leeds", "york")
GOLDEN_DIGEST = "c206b24bb14fe18372602266356c73aef7aa8d2bc0b13be7bad0fe006dd1d463"

JARGON = ("pydantic", "validation error", "Input should", "[type=", "something else", "http")


@pytest.fixture
def study() -> Study:
    return make_study(SCHEMA, SILOS, title="Comorbidity")


@pytest.fixture
def document(study, tmp_path) -> dict:
    return tomllib.loads(write_study(study, tmp_path / "study.toml").read_text("utf-8"))


def read(document: dict | str, folder: Path) -> Study:
    text = document if isinstance(document, str) else tomli_w.dumps(document)
    path = folder / "study.toml"
    path.write_bytes(text.encode())
    return read_study(path)


def refused(document: dict | str, folder: Path) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        read(document, folder)
    return caught.value


def put(document: dict, path: tuple, value: object) -> dict:
    """Return a deep copy of the document with one value changed; None takes it away."""
    changed = deepcopy(document)
    table = changed
    for step in path[:-1]:
        table = table[step]
    table[path[-1]] = value
    if value is None:
        del table[path[-1]]
    return changed


def texts(**limits):
    readable = st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])
    return st.text(readable, min_size=1, **limits).filter(str.strip)


counts = st.integers(1, 2**63 - 1)
positive = st.floats(0, exclude_min=True, allow_infinity=False)
common = {"absorb": st.booleans() | st.integers(0, 100), "refine": st.integers(0, 3)}
matchings = st.one_of(
    st.builds(Hungarian, **common),
    st.builds(Evidence, **common),
    st.builds(Ball, exponent=positive, radius=st.none() | positive, **common),
    st.builds(
        Divergence,
        restarts=counts,
        start=st.sampled_from(["first", "most-informative"]),
        reference=st.sampled_from(["mean", "precision"]),
        **common,
    ),
)
solvers = st.one_of(
    st.builds(Lbfgs, starts=counts, steps=counts, tolerance=positive),
    st.builds(Psgd, starts=counts, steps=counts, tolerance=positive),
    st.builds(FewRounds, rounds=counts, starts=counts),
)
studies = st.builds(
    Study,
    title=st.none() | st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])),
    seed=st.integers(0, 2**63 - 1),
    missing=st.sampled_from(["marginalise", "level"]),
    silos=st.lists(st.from_regex(r"[a-z]{1,9}_[0-9]", fullmatch=True), min_size=1, unique=True),
    model=st.builds(ModelSettings, components=st.integers(1, 255), alpha=positive, beta=positive),
    matching=matchings,
    aggregation=st.builds(
        Aggregation, method=st.sampled_from(["vcmc", "cmc", "uniform", "product"]), solver=solvers
    ),
    polish=st.builds(Polish, rounds=st.just("until") | st.integers(0, 50)),
    variables=st.lists(
        st.builds(
            VariableSettings, name=texts(), levels=st.lists(texts(), min_size=1, unique=True)
        ),
        min_size=1,
        unique_by=lambda variable: variable.name,
    ),
)


@settings(max_examples=60, deadline=None)
@given(study=studies)
def test_a_study_comes_back_from_its_file_as_it_was(study):
    with tempfile.TemporaryDirectory() as folder:
        again = read_study(write_study(study, Path(folder) / "study.toml"))
    assert again == study
    assert digest(again) == digest(study)


def test_the_file_is_laid_out_for_a_reader(study, tmp_path):
    text = write_study(study, str(tmp_path / "study.toml")).read_text("utf-8")
    assert text.startswith("# A silomix study: every setting")
    assert "but the\n# title" in text
    assert '\nsilos = ["cambridge", "leeds", "york"]\n\n[model]\ncomponents = 15\n' in text
    assert '\n[matching]\nmethod = "evidence"\nabsorb = true\n' in text
    assert text.endswith('\n[[variables]]\nname = "bmi"\nlevels = ["low", "mid", "high"]\n')
    wards = Variable("ward", tuple(f"ward {i:03}" for i in range(50)))
    long = write_study(make_study(Schema((wards,)), ["a", "b"]), tmp_path / "l.toml").read_text()
    assert '\nlevels = [\n    "ward 000",\n' in long
    assert max(map(len, long.split("\n"))) <= 96


def test_the_properties_give_the_nouns_of_the_method(study):
    assert study.table_schema == SCHEMA
    assert study.prior == Prior()
    assert study.sampling == Schedule(adaptive=True)
    other = make_study(
        Schema(SCHEMA.variables, "level"), SILOS, alpha=1, beta=2.5, fractionate=False, thin=7
    )
    assert other.table_schema.missing == "level"
    assert other.prior == Prior(1.0, 2.5, fractionate=False)
    assert other.sampling == Schedule(thin=7)


@pytest.mark.golden
def test_digest_of_a_fixed_study_never_changes(tmp_path):
    schema = Schema((Variable("fumeur", ("non", "oui", "(missing)")),), "level")
    settings = {"title": "Not part of it", "seed": 20260401, "tier": "summary", "kept_draws": 1500}
    settings |= {"components": 12, "alpha": 0.1, "beta": 1, "drift": "none", "iterations": 3000}
    settings |= {"burn_in": 1000, "chains": 3, "thin": 2, "partition": "pam", "threshold": 8000}
    settings |= {"subsample": 4000, "matching": Ball(absorb=20, refine=1, exponent=1 / 3)}
    settings |= {"aggregation": Aggregation(oracle="federated", draws=100, floor=1e-7)}
    settings |= {"solver": FewRounds(rounds=5, starts=100)}
    settings |= {"polish": Polish(rounds=3, most=10, inner_sweeps=1, chains=100)}
    made = make_study(schema, ["Zoë's ward", "leeds"], **settings)
    assert digest(made) == GOLDEN_DIGEST
    assert digest(read_study(write_study(made, tmp_path / "study.toml"))) == GOLDEN_DIGEST


def test_digest_leaves_out_the_title_and_nothing_else(study, document, tmp_path):
    assert digest(read(put(document, ("title",), "Another"), tmp_path)) == digest(study)
    assert digest(read(put(document, ("title",), None), tmp_path)) == digest(study)


def test_digest_ignores_the_order_and_the_layout_of_the_file(study, document, tmp_path):
    def backwards(table):
        return {
            key: backwards(value) if isinstance(value, dict) else value
            for key, value in reversed(table.items())
        }

    shuffled = tomli_w.dumps(backwards(document))
    assert digest(read(shuffled, tmp_path)) == digest(study)
    assert digest(read("\ufeff" + shuffled.replace("\n", "\r\n"), tmp_path)) == digest(study)
    whole, decimal = (read(put(document, ("model", "alpha"), a), tmp_path) for a in (1, 1.0))
    assert digest(whole) == digest(decimal)


def test_folding_may_be_on_off_or_a_number_of_rows(document, tmp_path):
    """True is not one row, though Python says that they are equal."""
    kept, digests = [], set()
    for absorb in (True, False, 0, 1, 60):
        found = read(put(document, ("matching", "absorb"), absorb), tmp_path)
        kept.append(found.matching.absorb)
        digests.add(digest(found))
        given = make_study(SCHEMA, SILOS, absorb=absorb)
        assert given.matching.absorb is found.matching.absorb
    assert repr(kept) == "[True, False, 0, 1, 60]"
    assert len(digests) == 5


def leaves(record, path=()):
    """Yield (path, annotation, value) of every setting in a record."""
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        if hasattr(value, "model_fields_set"):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), field.annotation, value


def another(annotation, value):
    """Return another value that the setting could have."""
    words = [word for word in get_args(annotation) if isinstance(word, str) and word != value]
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value / 2
        case None:
            return 0.3
        case "until":
            return 0
    return words[0]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("matching", MATCHINGS)
def test_digest_changes_with_every_setting(matching, solver, tmp_path):
    # where it is adaptive, burn-in and iterations cannot change alone
    study = make_study(SCHEMA, SILOS, matching=matching, solver=solver, adaptive=False)
    document = tomllib.loads(write_study(study, tmp_path / "study.toml").read_text("utf-8"))
    tested_elsewhere = {("format",), ("title",), ("silos",), ("variables",)}
    tested_elsewhere |= {("matching", "method"), ("aggregation", "solver", "method")}
    changes = [
        put(document, path, another(annotation, value))
        for path, annotation, value in leaves(study)
        if path not in tested_elsewhere
    ]
    digests = [digest(study), *(digest(read(change, tmp_path)) for change in changes)]
    assert len(changes) >= 29
    assert len(set(digests)) == len(digests)


def test_digest_changes_with_silos_variables_and_methods(document, tmp_path):
    changed = [
        document,
        put(document, ("silos",), ["leeds", "cambridge", "york"]),
        put(document, ("silos", 0), "oxford"),
        put(document, ("variables",), document["variables"][::-1]),
        put(document, ("variables", 0, "name"), "smokes"),
        put(document, ("variables", 0, "levels"), ["yes", "no"]),
    ]
    digests = [digest(read(each, tmp_path)) for each in changed]
    digests += [digest(make_study(SCHEMA, SILOS, matching=m)) for m in MATCHINGS]
    digests += [digest(make_study(SCHEMA, SILOS, solver=s)) for s in SOLVERS]
    # the default matching and the default solver are the document itself
    assert len(set(digests)) == len(digests) - 2


NO_SILO_NAMES = ["", " ", "a/b", "a\\b", "a\tb", "..", "leeds ", "x" * 61, "Nul.a", 7]
WRONG = {
    ("seed",): ["x", -1, True, 2**63, 10**70],
    ("title",): [3, "a\x1b[2J"],
    ("format",): [0],
    ("strategy",): ["exat"],
    ("tier",): ["rows"],
    ("assign",): [1],
    ("kept_draws",): [999],
    ("missing",): ["marginalize"],
    ("silos",): [[], "leeds", ["a", "b", "a"], ["Leeds", "leeds"], ["Zoë", "Zoe\u0308"]],
    ("silos", 1): NO_SILO_NAMES,
    ("model",): [3],
    ("model", "components"): [0, 256, 15.0],
    ("model", "alpha"): [0, "0.5"],
    ("model", "beta"): [float("inf")],
    ("model", "fractionate"): [1],
    ("model", "drift"): ["non", False],
    ("schedule",): [[{}]],
    ("schedule", "burn_in"): [20_000],
    ("schedule", "thin"): [10_001, [1], {"a": 1}],
    ("local", "subsample"): [2],
    ("local", "relabel"): ["y" * 99],
    ("matching",): [3],
    ("matching", "method"): ["bal"],
    ("matching", "absorb"): [-1],
    ("aggregation", "oracle"): ["pooled"],
    ("aggregation", "floor"): [0.4],
    ("aggregation", "solver", "method"): ["adam"],
    ("aggregation", "solver", "starts"): [0],
    ("polish", "rounds"): [-1, "untl"],
    ("variables",): [{"name": 1}, []],
    ("variables", 1): [5],
    ("variables", 1, "name"): ["", "b\x1b[2J"],
    ("variables", 1, "levels"): [["a", "a"], []],
    ("variables", 1, "levels", 2): [3],
    ("variables", 1, "levels", 0): ["\t", "a\tb"],
}


@pytest.mark.parametrize("path", WRONG, ids=str)
def test_a_wrong_value_is_named_by_its_place(document, tmp_path, path):
    for value in WRONG[path]:
        error = refused(put(document, path, value), tmp_path)
        assert [problem.path for problem in error.problems] == [path]
        assert str(error).startswith(f"{tmp_path / 'study.toml'} cannot be used:\n  - ")
        assert not any(word in str(error) for word in JARGON)


SENTENCES = [
    (("seed",), True, "seed is true; it must be a whole number"),
    (("seed",), 10**70, "seed is a number of very many digits; it must be at most 92233720368547"),
    (("strategy",), "exat", "'exat'; it must be 'consensus' or 'exact'; did you mean 'exact'?"),
    (("silos", 1), " ", "silos entry 2 is ' '; it must not be blank, or begin"),
    (("model", "alpha"), 0, "[model] alpha is 0; it must be greater than 0"),
    (("schedule", "thin"), {"a": 1}, "[schedule] thin is a table; it must be a whole number"),
    (
        ("local", "relabel"),
        "y" * 99,
        f"relabel is '{'y' * 60}...'; it must be 'match' or 'average'",
    ),
    (("matching", "method"), "bal", "'divergence', 'ball' or 'evidence'; did you mean 'ball'?"),
    (("matching", "absorb"), -1, "absorb is -1; it must be true or false or at least 0"),
    (("polish", "rounds"), "untl", "'until' or a whole number; did you mean 'until'?"),
    (("variables", 1, "name"), "smoker", "variables lists 'smoker' more than once"),
    (("variables", 1, "levels", 2), 3, "[[variables]] 2 ('bmi') levels entry 3 is 3; it must be"),
    (("sed",), 1, "sed is not a setting; did you mean 'seed'?"),
    (("a key",), 1, "'a key' is not a setting"),
    (("schedule", "burnin"), 1, "[schedule] burnin is not a setting; did you mean 'burn_in'?"),
    (("matching", "exponent"), 1, "[matching] exponent is not a setting here"),
    (("variables", 0, "level"), 1, "[[variables]] 1 ('smoker') level is not a setting; did you"),
    (("silos",), None, "silos is missing"),
    (("variables", 1, "name"), None, "[[variables]] 2 name is missing"),
    (("matching", "method"), None, "[matching] method is missing"),
    (("aggregation", "solver"), None, "solver is missing; add the table [aggregation.solver]"),
    (("model", "fractionate"), None, "fractionate is missing; the default is fractionate = true"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), SENTENCES)
def test_a_problem_is_told_in_the_words_of_the_file(document, tmp_path, path, value, sentence):
    error = refused(put(document, path, value), tmp_path)
    assert len(error.problems) == 1
    assert sentence in str(error)


def test_every_setting_but_the_title_must_stand_in_the_file(study, document, tmp_path):
    for path, _, value in leaves(study):
        if value is not None and path != ("title",):
            error = refused(put(document, path, None), tmp_path)
            assert [problem.path for problem in error.problems] == [path]


def test_all_problems_are_listed_at_once_in_the_order_of_the_settings(document, tmp_path):
    document["polish"]["rounds"] = -1
    document["schedule"]["burnin"] = document["schedule"].pop("burn_in")
    document["seed"] = "x"
    document["extra"] = 1
    found = [problem.path for problem in refused(document, tmp_path).problems]
    assert found == [("seed",), ("schedule", "burnin"), ("polish", "rounds"), ("extra",)]


def test_a_very_long_list_of_problems_is_cut(document, tmp_path):
    many = document | {"silos": [1] * 1000}
    _, *lines = str(refused(many, tmp_path)).split("\n  - ")
    assert len(lines) == validation.MOST_LISTED + 1
    assert lines[-1] == "(and more)"


def test_no_trace_of_the_validator_is_shown(document, tmp_path):
    for wrong in (lambda: read(document | {"seed": "x"}, tmp_path), lambda: Ball(exponent=-1)):
        try:
            wrong()
        except SettingsError as error:
            shown = "".join(traceback.format_exception(error))
        assert "ValidationError" not in shown
        assert "another exception occurred" not in shown


def test_an_unforeseen_complaint_is_still_a_settings_error(monkeypatch):
    monkeypatch.delitem(validation.ALLOWED, "greater_than")
    with pytest.raises(SettingsError, match="exponent is -1; it must be something else"):
        Ball(exponent=-1)


toml_values = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.dates(),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab'", min_size=1), inner, max_size=3)
    ),
    max_leaves=5,
)
places = st.sampled_from(
    [path for path, _, _ in leaves(make_study(SCHEMA, SILOS))]
    + [("silos", 0), ("model",), ("matching",), ("aggregation", "solver"), ("polish", "new")]
    + [("variables", 0), ("variables", 0, "name"), ("variables", 0, "levels", 0)]
)


@settings(max_examples=150, deadline=None)
@given(place=places, value=toml_values)
def test_any_value_anywhere_is_taken_or_refused_in_plain_words(place, value):
    study = make_study(SCHEMA, SILOS, title="Comorbidity")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = write_study(study, folder / "study.toml").read_text("utf-8")
        changed = put(tomllib.loads(text), place, value)
        try:
            read(changed, folder)
        except SettingsError as error:
            assert not any(word in str(error) for word in JARGON if word not in str(value))


UNREADABLE = {
    "syntax": (b"format = \n", "is not valid TOML: Invalid value (at line 1, column 10)"),
    "twice": (b"seed = 1\nseed = 2\n", "is not valid TOML: Cannot overwrite a value (at line 2"),
    "latin-1": (b"seed = 1\ntitle = 'Zo\xeb'", "is not UTF-8 text: line 2 has the byte 0xeb; save"),
    "utf-16": ("seed = 1".encode("utf-16"), "is not UTF-8 text: line 1 has the byte 0xff"),
    "digits": (b"seed = " + b"9" * 5000, "has a number of too many digits"),
    "dotted": (b"a" + b".a" * 1_000_000 + b" = 1", "nests tables or lists too deeply"),
    "quoted": (b"['a'" + b" . 'a'" * 500_000 + b"]", "nests tables or lists too deeply"),
    "lists": (b"a = " + b"[" * 1_000_000, "nests tables or lists too deeply"),
    "tables": (b"a = " + b"{a = " * 500_000, "nests tables or lists too deeply"),
    "format": (b"format = 2", "is a study file of format 2, and this silomix reads format 1; use"),
}


@pytest.mark.parametrize(("content", "line"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_is_no_study_file_is_refused(tmp_path, content, line):
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_study(path)
    assert str(caught.value).startswith(f"{path} {line}")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_dots_in_text_and_in_comments_are_no_nesting(document, tmp_path):
    dotted = "1.2.3.4.5.6.7.8.9.10.11"
    document["title"] = f'"{dotted}" \\ \n {dotted}'
    document["variables"][0]["levels"] = [dotted, f"'{dotted}'", f'a"{dotted}']
    text = tomli_w.dumps(document)
    spread = f'format = 1\ntitle = """\n{dotted} \\""" """\n'
    assert read(f"# {dotted}\n" + text, tmp_path).variables[0].levels[0] == dotted
    assert read(spread + text.split("\n", 2)[2], tmp_path).title.startswith(dotted)


def test_a_huge_file_is_refused_without_reading_it_whole(tmp_path):
    path = tmp_path / "study.toml"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(
        SettingsError, match=r"is larger than 5,000 kB; is it really a study file\?"
    ):
        read_study(path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.toml cannot be read: No such file"):
        read_study(tmp_path / "none.toml")
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        read_study(tmp_path)


def test_a_file_is_written_whole_or_not_at_all(study, tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match=r"study\.toml cannot be written: No such file"):
        write_study(study, tmp_path / "nowhere" / "study.toml")
    path = write_study(study, tmp_path / "study.toml")
    assert read_study(write_study(make_study(SCHEMA, SILOS, seed=9), path)).seed == 9
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("silomix.model.files.os.fsync", full)
    with pytest.raises(SettingsError, match="cannot be written: No space left on device"):
        write_study(study, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_defaults_are_those_of_the_documentation(study):
    assert study.model == ModelSettings(
        components=15, alpha=0.5, beta=0.5, fractionate=True, drift="learn"
    )
    assert study.schedule == ScheduleSettings(
        iterations=20_000, burn_in=10_000, chains=2, thin=10, adaptive=True
    )
    assert study.sampling.kept * study.sampling.chains == 2_000
    assert (study.missing, study.seed) == ("marginalise", 0)
    assert study.local == LocalSettings(
        partition="linkage",
        one_cluster=True,
        threshold=10_000,
        subsample=5_000,
        relabel="match",
    )
    assert study.matching == Evidence(absorb=True, refine=0)
    assert study.aggregation == Aggregation(
        method="vcmc",
        oracle="contingency",
        draws=40,
        floor=1e-6,
        log_determinant="coordinates",
        solver=Lbfgs(starts=1, tolerance=0.2),
    )
    assert study.polish == Polish(rounds="until", most=200, inner_sweeps=2, chains=64)
    assert (study.strategy, study.tier, study.assign) == ("consensus", "draws", "posterior")
    assert study.kept_draws == 1_000


def test_the_paper_preset_is_that_of_the_documentation():
    paper = make_study(SCHEMA, SILOS, preset="paper")
    assert paper.model == ModelSettings(
        components=15, alpha=0.5, beta=0.5, fractionate=True, drift="none"
    )
    assert paper.schedule == ScheduleSettings(
        iterations=50_000, burn_in=25_000, chains=1, thin=5, adaptive=False
    )
    assert paper.sampling.kept == 5_000
    assert (paper.local.partition, paper.local.relabel) == ("pam", "average")
    assert not paper.local.one_cluster
    assert paper.matching == Ball(exponent=0.25, radius=None, absorb=0, refine=0)
    assert paper.aggregation == Aggregation(
        method="vcmc",
        oracle="contingency",
        log_determinant="literal",
        solver=Psgd(starts=3, steps=1000, tolerance=0.1),
    )
    assert paper.polish.rounds == 0
    assert (paper.strategy, paper.assign) == ("consensus", "matching")


def test_the_files_preset_asks_what_the_default_policy_allows():
    files = make_study(SCHEMA, SILOS, preset="files")
    plain = make_study(SCHEMA, SILOS)
    allowed = policy_named("default")
    assert files.tier in allowed.tiers
    assert files.aggregation.method == "product"
    assert (files.polish.rounds, allowed.exchanges.polish) == (0, 0)
    assert expected_questions(files) == 1 + allowed.exchanges.assign
    changed = {"tier", "aggregation", "polish"}
    assert files.model_dump(exclude=changed) == plain.model_dump(exclude=changed)
    courier = make_study(
        SCHEMA,
        SILOS,
        preset="files",
        aggregation="vcmc",
        oracle="federated",
        solver=FewRounds(rounds=3, starts=100),
    )
    assert (courier.tier, courier.polish.rounds) == ("summary", 0)
    assert courier.aggregation.solver == FewRounds(rounds=3, starts=100)


def test_keywords_win_over_the_preset():
    study = make_study(SCHEMA, SILOS, preset="paper", components=7, polish=2, assign="posterior")
    assert (study.model.components, study.polish.rounds, study.assign) == (7, 2, "posterior")
    assert study.local.partition == "pam"


def test_a_record_says_its_method_and_chosen_options_and_the_preset_the_others():
    matched = make_study(SCHEMA, SILOS, preset="paper", matching=Divergence(restarts=5))
    assert matched.matching == Divergence(restarts=5, absorb=0)
    kept = make_study(SCHEMA, SILOS, preset="paper", matching=Ball(absorb=30))
    assert kept.matching == Ball(absorb=30)
    polished = make_study(SCHEMA, SILOS, preset="paper", polish=Polish(inner_sweeps=5))
    assert polished.polish == Polish(rounds="until", inner_sweeps=5)
    solved = make_study(SCHEMA, SILOS, preset="paper", aggregation=Aggregation(solver=Lbfgs()))
    assert solved.aggregation == Aggregation(solver=Lbfgs(), log_determinant="literal")


@pytest.mark.parametrize("word", MATCHINGS)
def test_a_word_and_its_record_are_one_study(word):
    by_word = make_study(SCHEMA, SILOS, matching=word)
    assert by_word == make_study(SCHEMA, SILOS, matching=MATCHINGS[word])
    assert by_word.matching == MATCHINGS[word]


def test_records_may_be_given_to_every_keyword_that_has_options():
    study = make_study(
        SCHEMA,
        SILOS,
        matching=Ball(exponent=0.5, radius=0.2),
        aggregation=Aggregation(draws=50),
        solver=FewRounds(rounds=3),
        polish=Polish(rounds=4, inner_sweeps=1),
    )
    assert study.matching == Ball(exponent=0.5, radius=0.2)
    assert study.aggregation == Aggregation(draws=50, solver=FewRounds(rounds=3))
    assert study.polish == Polish(rounds=4, inner_sweeps=1)


def test_every_keyword_reaches_its_place():
    base = make_study(SCHEMA, SILOS)
    settled = {path: (annotation, value) for path, annotation, value in leaves(base)}
    for keyword, (path, *_) in SETTINGS.items():
        if keyword not in {"title", "kept", "matching", "solver"}:
            new = another(*settled[path])
            study = make_study(SCHEMA, SILOS, **{keyword: new})
            assert {p: v for p, _, v in leaves(study)}[path] == new
    for preset in PRESETS.values():
        assert set(preset) <= set(SETTINGS)


@pytest.mark.golden
def test_the_table_of_settings_is_that_of_the_documentation():
    page = Path(__file__).parents[2] / "docs" / "tables" / "settings.md"
    assert page.read_text(encoding="utf-8") == settings_table()


def test_the_aggregation_is_exact_where_nothing_follows():
    """Before a polish one rough solve is enough, unless the caller says otherwise."""
    exact = make_study(SCHEMA, SILOS, polish=0).aggregation
    assert exact == Aggregation(draws=200, solver=Lbfgs(starts=3, tolerance=1e-4))
    assert make_study(SCHEMA, SILOS, solver="few-rounds").aggregation.draws == 200
    asked = make_study(SCHEMA, SILOS, solver=Lbfgs(starts=2), aggregation=Aggregation(draws=7))
    assert (asked.aggregation.solver.starts, asked.aggregation.draws) == (2, 7)


def test_what_makes_a_schedule_fixed():
    assert make_study(SCHEMA, SILOS).schedule.adaptive
    for fixed in ({"burn_in": 100}, {"thin": 3}, {"strategy": "exact"}, {"preset": "paper"}):
        assert not make_study(SCHEMA, SILOS, **fixed).schedule.adaptive
    with pytest.raises(SettingsError, match="adaptive is true; then burn_in must be half"):
        make_study(SCHEMA, SILOS, burn_in=100, adaptive=True)


@pytest.mark.parametrize("iterations", [999, 1999, 2000, 2001, 12_345, 20_000])
def test_blocks_of_a_schedule_double_and_drop_what_came_before(iterations):
    whole = make_study(SCHEMA, SILOS, iterations=iterations).sampling
    blocks = whole.blocks
    assert blocks[-1] == replace(whole, adaptive=False)
    assert iterations < 1000 or 1000 <= blocks[0].iterations < 2000
    for shorter, longer in pairwise(blocks):
        assert longer.burn_in == shorter.iterations == longer.iterations // 2
    assert all(block.kept >= min(whole.kept, block.iterations // 2) for block in blocks)
    assert blocks[-1].blocks == blocks[-1:]


def test_burn_in_and_thin_follow_the_number_of_iterations():
    short = make_study(SCHEMA, SILOS, iterations=1_000)
    assert short.sampling == Schedule(
        iterations=1_000, burn_in=500, chains=2, thin=1, adaptive=True
    )
    assert make_study(SCHEMA, SILOS, iterations=1, adaptive=False).sampling == Schedule(1, 0, 2, 1)
    long = make_study(SCHEMA, SILOS, iterations=100_000, burn_in=0, chains=4, kept=1_000)
    assert long.sampling == Schedule(100_000, 0, 4, 400)
    assert make_study(SCHEMA, SILOS, preset="paper", iterations=100).sampling.burn_in == 50
    assert make_study(SCHEMA, SILOS, preset="paper", thin=1).sampling.kept == 25_000


@given(
    sweeps=st.integers(1, 10**6),
    burn_in=st.integers(0, 10**6),
    chains=st.integers(1, 50),
    kept=st.integers(1, 10**4),
)
def test_default_thin_keeps_enough_and_could_not_be_wider(sweeps, burn_in, chains, kept):
    iterations = burn_in + sweeps
    thin = default_thin(iterations, burn_in, chains, kept)
    total = Schedule(iterations, burn_in, chains, thin).kept * chains
    wider = Schedule(iterations, burn_in, chains, thin + 1).kept * chains
    assert total >= min(kept, sweeps * chains)
    assert wider < kept


def test_numbers_and_lists_of_numpy_are_taken():
    study = make_study(
        SCHEMA,
        np.array(SILOS),
        components=np.int64(7),
        alpha=np.float32(0.5),
        fractionate=np.bool_(False),
        iterations=np.int32(100),
    )
    same = make_study(SCHEMA, SILOS, components=7, fractionate=False, iterations=100)
    assert study == same
    assert digest(study) == digest(same)
    assert type(study.model.components) is int


WRONG_CALLS = [
    ({"itertions": 5}, "itertions is not a setting of a study; did you mean 'iterations'?"),
    ({"transport": 5}, "transport is not a setting of a study; the settings are title, seed"),
    ({"missing": "level"}, "missing is part of the schema; make the schema with it"),
    ({"preset": "papers"}, "preset is 'papers'; it must be 'paper' or 'files' or 'network'"),
    ({"iterations": 0}, "iterations is 0; it must be at least 1"),
    ({"iterations": "many"}, "iterations is 'many'; it must be a whole number"),
    ({"iterations": 100, "burn_in": 100}, "burn_in is 100; it must be less than iterations, 100"),
    ({"burn_in": "half"}, "burn_in is 'half'; it must be a whole number"),
    ({"chains": 0}, "chains is 0; it must be at least 1"),
    ({"matching": "bal"}, "matching is 'bal'; it must be 'hungarian', 'divergence', 'ball' or"),
    ({"matching": Psgd()}, "matching is 'psgd'; it must be 'hungarian'"),
    ({"solver": 3}, "solver is '3'; it must be 'lbfgs', 'psgd' or 'few-rounds'"),
    ({"aggregation": "vmc"}, "aggregation is 'vmc'; it must be 'vcmc', 'cmc', 'uniform' or"),
    ({"aggregation": Aggregation(floor=1 / 3)}, "[aggregation] floor is 0.3333333333333333; with"),
    ({"polish": "always"}, "polish is 'always'; it must be 'until' or a whole number"),
    ({"components": Ball()}, "components is method='ball'"),
    ({"title": "\ud800"}, r"title is '\ud800'; it must not contain control characters"),
]


@pytest.mark.parametrize(("keywords", "line"), WRONG_CALLS)
def test_a_wrong_keyword_is_named_as_the_caller_wrote_it(keywords, line):
    with pytest.raises(SettingsError) as caught:
        make_study(SCHEMA, SILOS, **keywords)
    heading, *lines = str(caught.value).split("\n  - ")
    assert heading == "these settings cannot be used:"
    assert len(lines) == 1
    assert lines[0].startswith(line)
    assert not any(word in lines[0] for word in JARGON)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"thin": 1, "kept": 5}, "thin and kept both say what a silo keeps; give one of them"),
        ({"kept": 0}, "kept is 0; it must be a whole number, at least 1"),
        ({"kept": 2.5}, "kept is 2.5; it must be a whole number, at least 1"),
        ({"matching": Ball(absorb=3), "absorb": 4}, "absorb is given twice, as 3 and 4"),
        (
            {"aggregation": Aggregation(solver=Psgd()), "solver": "lbfgs"},
            "solver is given twice, as 'psgd' and 'lbfgs'",
        ),
    ],
)
def test_keywords_that_contradict_each_other_are_refused(keywords, message):
    with pytest.raises(SettingsError) as caught:
        make_study(SCHEMA, SILOS, **keywords)
    assert str(caught.value) == message


def test_silos_must_be_an_ordered_list_of_names():
    for silos in ("leeds", {"leeds", "york"}):
        with pytest.raises(SettingsError, match=r"silos is .*; it must be a list"):
            make_study(SCHEMA, silos)
    with pytest.raises(SettingsError, match="silos entry 2 is 2; it must be text in quotes"):
        make_study(SCHEMA, ["a", 2])


def test_a_wrong_option_of_a_record_is_a_settings_error_every_time():
    for _ in range(2):
        with pytest.raises(SettingsError) as caught:
            Ball(exponent=-1, radius="wide", exponnt=3)
        assert str(caught.value).split("\n  - ") == [
            "Ball cannot be used:",
            "exponent is -1; it must be greater than 0",
            "radius is 'wide'; it must be a number",
            "exponnt is not a setting; did you mean 'exponent'?",
        ]
    with pytest.raises(SettingsError, match=r"\[solver\] starts is 0; it must be at least 1"):
        Aggregation(solver={"method": "psgd", "starts": 0})
    with pytest.raises(SettingsError, match="silos is missing\n  - variables is missing"):
        Study()


def test_a_study_cannot_be_changed(study):
    with pytest.raises(ValidationError, match="frozen"):
        study.seed = 2
    with pytest.raises(ValidationError, match="frozen"):
        study.matching.absorb = 2
    assert hash(study) == hash(make_study(SCHEMA, SILOS, title="Comorbidity"))
