from __future__ import annotations

import tempfile
import tomllib
import traceback
from copy import deepcopy
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from silomix.errors import SettingsError
from silomix.model.draws import Schedule
from silomix.model.schema import Schema, Variable
from silomix.paper import Ball, Divergence, FewRounds, Hungarian, Psgd
from silomix.study import (
    AGGREGATIONS,
    MATCHINGS,
    Lbfgs,
    Matching,
    Polish,
    Study,
    Vcmc,
    digest,
    make_study,
    read_study,
    validation,
    write_study,
)
from silomix.study.keywords import KNOWN_CLUSTERS, PRESETS, SETTINGS, default_thin
from silomix.study.policy import Policy
from silomix.transports.exchange_folder import expected_questions

SCHEMA = Schema((Variable("smoker", ("no", "yes")), Variable("bmi", ("low", "mid", "high"))))
SILOS = ("cambridge", "leeds", "york")
GOLDEN_DIGEST = "a87a4eb1a49372fcd7b8cfc9cab31979047f3e902c3cb4098f01a3b15b6a0b38"

JARGON = ("pydantic", "validation error", "Input should", "[type=", "http")


def make(**settings) -> Study:
    return make_study(SCHEMA, SILOS, **settings)


@pytest.fixture
def study() -> Study:
    return make(title="Comorbidity")


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
    assert not any(word in str(caught.value) for word in JARGON)
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
        case "tables":
            return "any"
    return words[0]


texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).filter(
    str.strip
)


@settings(max_examples=30, deadline=None)
@given(
    title=st.none() | texts,
    silos=st.lists(st.from_regex(r"[a-z]{1,9}_[0-9]", fullmatch=True), min_size=1, unique=True),
    variables=st.dictionaries(texts, st.lists(texts, min_size=1, unique=True), min_size=1),
    missing=st.sampled_from(["marginalise", "level"]),
    numbers=st.tuples(st.integers(0, 2**63 - 1), st.floats(0, 1e308, exclude_min=True)),
)
def test_names_and_numbers_come_back_from_a_file_as_they_were(
    title, silos, variables, missing, numbers
):
    schema = Schema(tuple(Variable(name, tuple(v)) for name, v in variables.items()), missing)
    study = make_study(schema, silos, title=title, seed=numbers[0], alpha=numbers[1])
    assert study.table_schema == schema
    with tempfile.TemporaryDirectory() as folder:
        again = read_study(write_study(study, Path(folder) / "study.toml"))
    assert again == study
    assert digest(again) == digest(study)


@pytest.mark.parametrize(
    ("matching", "solver"), list(zip(MATCHINGS, cycle(SETTINGS["solver"].words), strict=False))
)
def test_every_setting_comes_back_and_changes_the_digest(matching, solver, tmp_path):
    # where it is adaptive, burn-in and iterations cannot change alone
    study = make(matching=matching, solver=solver, adaptive=False)
    document = tomllib.loads(write_study(study, tmp_path / "study.toml").read_text("utf-8"))
    tested_elsewhere = {("format",), ("title",), ("silos",), ("variables",)}
    methods = (("matching",), ("aggregation",), ("aggregation", "solver"))
    tested_elsewhere |= {(*table, "method") for table in methods}
    tested_elsewhere |= {("model", "clusters"), ("rows",)}
    digests = [digest(study)]
    for path, annotation, value in leaves(study):
        if path not in tested_elsewhere:
            changed = read(put(document, path, another(annotation, value)), tmp_path)
            assert read_study(write_study(changed, tmp_path / "again.toml")) == changed
            digests.append(digest(changed))
    assert len(set(digests)) == len(digests) >= 30


def test_digest_changes_with_silos_variables_and_methods_and_not_with_title_or_layout(
    study, document, tmp_path
):
    changed = [
        document,
        put(document, ("silos",), ["leeds", "cambridge", "york"]),
        put(document, ("silos", 0), "oxford"),
        put(document, ("variables",), document["variables"][::-1]),
        put(document, ("variables", 0, "name"), "smokes"),
        put(document, ("variables", 0, "levels"), ["yes", "no"]),
    ]
    digests = [digest(read(each, tmp_path)) for each in changed]
    digests += [digest(make(matching=m)) for m in MATCHINGS]
    digests += [digest(make(solver=s)) for s in SETTINGS["solver"].words]
    digests += [digest(make(aggregation=a)) for a in AGGREGATIONS]
    # the default methods are the document itself
    assert len(set(digests)) == len(digests) - 3
    for title in ("Another", None):
        assert digest(read(put(document, ("title",), title), tmp_path)) == digest(study)
    backwards = tomli_w.dumps(dict(reversed(document.items()))).replace("\n", "\r\n")
    assert digest(read("\ufeff" + backwards, tmp_path)) == digest(study)


@pytest.mark.golden
def test_digest_of_a_fixed_study_never_changes(tmp_path):
    schema = Schema((Variable("fumeur", ("non", "oui", "(missing)")),), "level")
    settings = {"title": "Not part of it", "seed": 20260401, "tier": "summary", "kept_draws": 1500}
    settings |= {"components": 12, "alpha": 0.1, "beta": 1, "drift": "none", "iterations": 3000}
    settings |= {"burn_in": 1000, "chains": 3, "thin": 2, "partition": "pam", "threshold": 8000}
    settings |= {"subsample": 4000, "matching": Ball(absorb=20, refine=1, exponent=1 / 3)}
    settings |= {"aggregation": Vcmc(oracle="federated", draws=100, floor=1e-7)}
    settings |= {"solver": FewRounds(rounds=5, starts=100)}
    settings |= {"polish": Polish(rounds=3, most=10, inner_sweeps=1, chains=100)}
    made = make_study(schema, ["Zoë's ward", "leeds"], **settings)
    assert digest(made) == GOLDEN_DIGEST
    assert digest(read_study(write_study(made, tmp_path / "study.toml"))) == GOLDEN_DIGEST


def test_the_file_is_laid_out_for_a_reader(study, tmp_path):
    text = write_study(study, str(tmp_path / "study.toml")).read_text("utf-8")
    assert text.startswith("# A silomix study: every setting")
    assert '\nsilos = ["cambridge", "leeds", "york"]\n\n[model]\ncomponents = 15\n' in text
    assert text.endswith('\n[[variables]]\nname = "bmi"\nlevels = ["low", "mid", "high"]\n')


def test_folding_may_be_on_off_or_a_number_of_rows(document, tmp_path):
    """True is not one row, though Python says that they are equal."""
    found = []
    for absorb in (True, False, 0, 1, 60):
        found.append(read(put(document, ("matching", "absorb"), absorb), tmp_path))
        assert make(absorb=absorb).matching.absorb is found[-1].matching.absorb
    assert repr([one.matching.absorb for one in found]) == "[True, False, 0, 1, 60]"
    assert len(set(map(digest, found))) == 5


NO_SILO_NAMES = ["", " ", "a/b", "a\\b", "a\tb", "..", "leeds ", "x" * 61, 7]
WRONG = {
    ("seed",): ["x", -1, True, 2**63, 10**70],
    ("title",): [3, "a\x1b[2J"],
    ("kept_draws",): [999],
    ("silos",): [[], "leeds", ["a", "b", "a"], ["Leeds", "leeds"], ["Zoë", "Zoe\u0308"]],
    ("silos", 1): NO_SILO_NAMES,
    ("model",): [3],
    ("model", "components"): [0, 256, 15.0],
    ("model", "alpha"): [0, "0.5"],
    ("model", "beta"): [float("inf")],
    ("model", "fractionate"): [1],
    ("schedule", "burn_in"): [20_000],
    ("schedule", "thin"): [10_001, [1], {"a": 1}],
    ("matching",): [3],
    ("aggregation", "floor"): [0.4],
    ("aggregation", "solver", "method"): ["adam"],
    ("polish", "rounds"): [-1, "untl"],
    ("variables",): [{"name": 1}, []],
    ("variables", 1): [5],
    ("variables", 1, "name"): ["", "b\x1b[2J"],
    ("variables", 1, "levels"): [["a", "a"], []],
    ("variables", 1, "levels", 0): ["\t", "a\tb"],
}


def blamed(error):
    return [line.partition(" ")[0] for line in str(error).split("\n  - ")[1:]]


@pytest.mark.parametrize("path", WRONG, ids=str)
def test_a_wrong_value_is_named_by_its_place(document, tmp_path, path):
    for value in WRONG[path]:
        error = refused(put(document, path, value), tmp_path)
        assert blamed(error) == [validation.file_place(path)]
        assert str(error).startswith(f"{tmp_path / 'study.toml'} cannot be used:\n  - ")


SENTENCES = [
    (("seed",), True, "seed is true; it must be a whole number"),
    (("strategy",), "exat", "'exat'; it must be 'consensus' or 'exact' (did you mean 'exact'?)"),
    (("model", "alpha"), 0, "model.alpha is 0; it must be greater than 0"),
    (("schedule", "thin"), {"a": 1}, "schedule.thin is a table; it must be a whole number"),
    (("local", "relabel"), "y" * 99, f"relabel is '{'y' * 60}...'; it must be 'match' or"),
    (("matching", "method"), "bal", "'divergence', 'ball' (did you mean 'ball'?)"),
    (("matching", "absorb"), -1, "absorb is -1; it must be true or false or at least 0"),
    (("variables", 1, "name"), "smoker", "variables lists 'smoker' more than once"),
    (("variables", 1, "levels", 2), 3, "variables.2.levels.3 is 3; it must be"),
    (("a key",), 1, "'a key' is not a setting"),
    (("schedule", "burnin"), 1, "schedule.burnin is not a setting (did you mean 'burn_in'?)"),
    (("matching", "exponent"), 1, "matching.exponent is not a setting here"),
    (("aggregation", "solver"), None, "solver is missing; add the table [aggregation.solver]"),
    (("model", "fractionate"), None, "fractionate is missing; the default is fractionate = true"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), SENTENCES)
def test_a_problem_is_told_in_the_words_of_the_file(document, tmp_path, path, value, sentence):
    error = refused(put(document, path, value), tmp_path)
    assert len(blamed(error)) == 1
    assert sentence in str(error)


def test_every_setting_but_the_title_must_stand_in_the_file(study, document, tmp_path):
    for path, _, value in leaves(study):
        if value is not None and path != ("title",):
            error = refused(put(document, path, None), tmp_path)
            assert blamed(error) == [validation.file_place(path)]


def test_all_problems_are_listed_at_once_and_very_many_cut(document, tmp_path):
    many = document | {"silos": [1] * 1000}
    _, *lines = str(refused(many, tmp_path)).split("\n  - ")
    assert (len(lines), lines[-1]) == (validation.MOST_LISTED + 1, "(and more)")
    document["polish"]["rounds"] = -1
    document["schedule"]["burnin"] = document["schedule"].pop("burn_in")
    document["seed"] = "x"
    document["extra"] = 1
    found = blamed(refused(document, tmp_path))
    assert found == ["seed", "schedule.burnin", "polish.rounds", "extra"]


def test_no_trace_of_the_validator_is_shown(document, tmp_path):
    for wrong in (lambda: read(document | {"seed": "x"}, tmp_path), lambda: Ball(exponent=-1)):
        with pytest.raises(SettingsError) as caught:
            wrong()
        assert "ValidationError" not in "".join(traceback.format_exception(caught.value))


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
    [path for path, _, _ in leaves(make())]
    + [("silos", 0), ("model",), ("matching",), ("aggregation", "solver"), ("polish", "new")]
    + [("variables", 0), ("variables", 0, "name"), ("variables", 0, "levels", 0)]
)


@settings(max_examples=100, deadline=None)
@given(place=places, value=toml_values)
def test_any_value_anywhere_is_taken_or_refused_in_plain_words(place, value):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = write_study(make(title="Comorbidity"), folder / "study.toml").read_text("utf-8")
        try:
            read(put(tomllib.loads(text), place, value), folder)
        except SettingsError as error:
            assert not any(word in str(error) for word in JARGON if word not in str(value))


UNREADABLE = {
    "syntax": (b"format = \n", "is not valid TOML, in UTF-8: Invalid value (at line 1, column 10)"),
    "latin-1": (
        b"seed = 1\ntitle = 'Zo\xeb'",
        "is not valid TOML, in UTF-8: 'utf-8' codec",
    ),
    "digits": (
        b"seed = " + b"9" * 5000,
        "is not valid TOML, in UTF-8: Exceeds the limit",
    ),
    "dotted": (b"a" + b".a" * 1_000_000 + b" = 1", "nests tables or lists too deeply"),
    "quoted": (b"['a'" + b" . 'a'" * 500_000 + b"]", "nests tables or lists too deeply"),
    "lists": (b"a = " + b"[" * 100_000, "nests tables or lists too deeply"),
    "format": (b"format = 2", "is a study file of format 2, and this silomix reads format 1; use"),
    "many": (
        b"a = [" + b"1," * 200_000,
        "has more than 200,000 entries; is it really a study file?",
    ),
    "huge": (b"#" * 5_000_001, "is larger than 5,000 kB; is it really a study file?"),
}


@pytest.mark.parametrize(("content", "line"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_is_no_study_file_is_refused(tmp_path, content, line):
    path = tmp_path / "study.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        read_study(path)
    assert str(caught.value).startswith(f"{path} {line}")
    for absent in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(SettingsError, match=r"cannot be read: (No such file|Is a directory)"):
            read_study(absent)


def test_a_file_is_written_whole_or_not_at_all(study, tmp_path, monkeypatch):
    with pytest.raises(SettingsError, match=r"study\.toml cannot be written: No such file"):
        write_study(study, tmp_path / "nowhere" / "study.toml")
    path = write_study(study, tmp_path / "study.toml")
    assert read_study(write_study(make(seed=9), path)).seed == 9
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("silomix.model.files.os.fsync", full)
    with pytest.raises(SettingsError, match="cannot be written: No space left on device"):
        write_study(study, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.golden
def test_the_table_of_settings_is_that_of_the_documentation():
    """Every keyword with its default and the paper's value."""
    page = Path(__file__).parents[2] / "docs" / "tables" / "settings.md"
    for (name, one), line in zip(SETTINGS.items(), page.read_text().splitlines()[2:], strict=True):
        values = ["" if value is None else str(value) for value in (one.default, one.paper)]
        found = [cell.strip("` ") for cell in line.lower().split("|")]
        assert found[1:4] + found[5:6] == [text.lower() for text in (name, *values, one.text)]


def test_every_keyword_reaches_its_place():
    settled = {path: (annotation, value) for path, annotation, value in leaves(make())}
    for keyword, (path, *_) in SETTINGS.items():
        if keyword not in {"title", "kept", "matching", "aggregation", "solver", "clusters"}:
            new = another(*settled[path])
            assert {p: v for p, _, v in leaves(make(**{keyword: new}))}[path] == new
    for preset in PRESETS.values():
        assert set(preset) <= set(SETTINGS)


def test_a_table_is_no_schema():
    with pytest.raises(SettingsError, match=r"of type DataFrame; give .*infer_schema\(table"):
        make_study(pd.DataFrame({"x": [0, 1]}), ["north"])


def test_the_paper_preset_is_the_papers_method_and_other_keywords_win_over_it():
    paper = make(preset="paper")
    assert paper.sampling == Schedule(50_000, 25_000, 1, 5)
    assert (paper.local.partition, paper.local.relabel) == ("pam", "average")
    assert paper.matching == Ball(exponent=0.25, radius=None, absorb=0, refine=0)
    solver = Psgd(starts=3, steps=1000, tolerance=0.1)
    assert paper.aggregation == Vcmc(log_determinant="literal", solver=solver)
    assert (paper.polish.rounds, paper.assign, paper.drifts) == (0, "matching", False)
    other = make(preset="paper", components=7, polish=2, assign="posterior")
    assert (other.model.components, other.polish.rounds, other.assign) == (7, 2, "posterior")
    assert other.local.partition == "pam"


def test_a_known_number_of_clusters_leaves_no_component_to_spare(tmp_path):
    study = make(clusters=3)
    assert (study.model.clusters, study.model.components, study.model.alpha) == (3, 3, 1.0)
    assert (study.matching, study.local.one_cluster) == (Hungarian(absorb=0), False)
    assert read_study(write_study(study, tmp_path / "study.toml")) == study
    assert digest(study) != digest(make(components=3, **KNOWN_CLUSTERS))
    assert make(clusters=None) == make()
    # what is given wins, and the ball's radius is that of a finite mixture
    assert make(clusters=3, alpha=4.0).model.alpha == 4.0
    for wrong in ("3", 3.0, True, 1):
        with pytest.raises(SettingsError) as caught:
            make(clusters=wrong)
        assert blamed(caught.value) == ["clusters"]
    assert make(clusters=3, matching="ball").matching == Ball(exponent=0.5, absorb=0)
    assert make(clusters=3, preset="paper").matching == Ball(exponent=0.5, absorb=0)
    assert make(clusters=3, matching=Ball(exponent=0.3)).matching.exponent == 0.3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clusters": 1}, "clusters is 1; it must be at least 2"),
        ({"clusters": 256}, "clusters is 256; it must be at most 255"),
        ({"clusters": 4, "components": 3}, "components is 3; where clusters is 4 it must be 4"),
        ({"clusters": 3, "components": 15}, "components is 15; where clusters is 3 it must be 3"),
        ({"clusters": 3, "absorb": True}, "absorb is true; where clusters is 3 it must be 0"),
        ({"clusters": 3, "one_cluster": True}, "one_cluster is true; where clusters is 3 it must"),
    ],
)
def test_settings_that_do_not_fit_a_known_number_of_clusters(settings, said):
    with pytest.raises(SettingsError, match=said):
        make(**settings)


def test_the_files_preset_asks_what_the_default_policy_allows():
    files, allowed = make(preset="files"), Policy()
    assert files.tier in allowed.tiers
    assert (files.polish.rounds, allowed.exchanges.polish) == (0, 0)
    assert expected_questions(files) == 2
    changed = {"tier", "aggregation", "polish"}
    assert files.model_dump(exclude=changed) == make().model_dump(exclude=changed)


def test_a_record_says_its_method_and_chosen_options_and_the_preset_the_others():
    matched = make(preset="paper", matching=Divergence(restarts=5))
    assert matched.matching == Divergence(restarts=5, absorb=0)
    polished = make(preset="paper", polish=Polish(inner_sweeps=5))
    assert polished.polish == Polish(rounds="until", inner_sweeps=5)
    solved = make(preset="paper", aggregation=Vcmc(solver=Lbfgs()))
    assert solved.aggregation == Vcmc(solver=Lbfgs(), log_determinant="literal")
    both = make(aggregation=Vcmc(draws=50), solver=FewRounds(rounds=3))
    assert both.aggregation == Vcmc(draws=50, solver=FewRounds(rounds=3))
    for word, (record, _) in MATCHINGS.items():
        assert make(matching=word) == make(matching=record())
        assert make(matching=word).matching == record()


class Nearest(Matching):
    """Not one of ours."""

    method: Literal["nearest"] = "nearest"
    distance: float = 0.5


def test_a_method_from_elsewhere_is_a_method_like_the_others(tmp_path, monkeypatch):
    """A study file names it by its word; what carries it out is not imported to read that."""
    for word in ("nearest", "os:system"):
        with pytest.raises(SettingsError, match=r"it must be one of 'evidence', 'hungarian'"):
            make(matching=word)
    with pytest.raises(SettingsError, match="must be one of"):
        make(matching=Nearest())
    monkeypatch.setitem(MATCHINGS, "nearest", None)
    MATCHINGS.register(Nearest, "not_a_package:function")
    assert make(matching="nearest").matching == Nearest()
    study = make(matching=Nearest(distance=2.0, absorb=0))
    again = read_study(write_study(study, tmp_path / "study.toml"))
    assert again == study
    assert again.matching == Nearest(distance=2.0, absorb=0)
    assert digest(study) != digest(make(matching=Nearest(absorb=0)))
    # a preset's options go to the methods that have them
    assert make(preset="paper", aggregation="product").aggregation.method == "product"
    assert make(preset="paper", matching="nearest").matching.absorb == 0
    with pytest.raises(ModuleNotFoundError, match="not_a_package"):
        MATCHINGS.function(study.matching)


def test_the_aggregation_is_exact_where_nothing_follows():
    """Before a polish one rough solve is enough, unless the caller says otherwise."""
    assert make().aggregation == Vcmc(draws=40, solver=Lbfgs(starts=1, tolerance=0.2))
    exact = make(polish=0).aggregation
    assert exact == Vcmc(draws=200, solver=Lbfgs(starts=3, tolerance=1e-4))
    assert make(solver="few-rounds").aggregation.draws == 200
    asked = make(solver=Lbfgs(starts=2), aggregation=Vcmc(draws=7))
    assert (asked.aggregation.solver.starts, asked.aggregation.draws) == (2, 7)


@pytest.mark.parametrize("iterations", [999, 1999, 2000, 2001, 12_345, 20_000])
def test_blocks_of_a_schedule_double_and_drop_what_came_before(iterations):
    whole = make(iterations=iterations).sampling
    blocks = whole.blocks
    assert blocks[-1] == replace(whole, adaptive=False)
    assert iterations < 1000 or 1000 <= blocks[0].iterations < 2000
    for shorter, longer in pairwise(blocks):
        assert longer.burn_in == shorter.iterations == longer.iterations // 2
    assert all(block.kept >= min(whole.kept, block.iterations // 2) for block in blocks)
    assert blocks[-1].blocks == blocks[-1:]


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
    given = {"components": np.int64(7), "alpha": np.float32(0.5), "iterations": np.int32(100)}
    study = make_study(SCHEMA, np.array(SILOS), fractionate=np.bool_(False), **given)
    same = make(components=7, fractionate=False, iterations=100)
    assert study == same
    assert digest(study) == digest(same)
    assert type(study.model.components) is int


WRONG_CALLS = [
    ({"aggregation": "product", "solver": "psgd"}, "solver is not a setting here"),
    ({"itertions": 5}, "itertions is not a keyword (did you mean 'iterations'?)"),
    ({"transport": 5}, "transport is not a keyword; the keywords are title, seed"),
    ({"preset": "papers"}, "preset='papers' is not known (did you mean 'paper'?); choose one of"),
    ({"iterations": -5}, "iterations is -5; it must be at least 1"),
    ({"iterations": 100, "burn_in": 100}, "burn_in is 100; it must be less than iterations, 100"),
    ({"burn_in": 100, "adaptive": True}, "adaptive is true; then burn_in must be half"),
    ({"matching": "bal"}, "matching is 'bal'; it must be one of 'evidence', 'hungarian'"),
    ({"solver": 3}, "solver is 3; it must be one of 'lbfgs', 'psgd', 'few-rounds'"),
    ({"aggregation": Vcmc(floor=1 / 3)}, "aggregation.floor is 0.3333333333333333; with"),
    ({"polish": "always"}, "polish is 'always'; it must be 'until' or a whole number"),
    ({"title": "\ud800"}, r"title is '\ud800'; it must not contain control characters"),
    ({"thin": 1, "kept": 5}, "thin and kept both say what a silo keeps; give one of them"),
    ({"kept": 2.5}, "kept is 2.5; it must be a whole number, at least 1"),
    ({"matching": Ball(absorb=3), "absorb": 4}, "absorb is given twice, as 3 and 4"),
]


@pytest.mark.parametrize(("keywords", "line"), WRONG_CALLS)
def test_a_wrong_keyword_is_named_as_the_caller_wrote_it(keywords, line):
    with pytest.raises(SettingsError) as caught:
        make(**keywords)
    (found,) = str(caught.value).removeprefix("these settings cannot be used:\n  - ").splitlines()
    assert found.startswith(line)
    assert not any(word in found for word in JARGON)


def test_a_record_refuses_wrong_options_and_any_change(study):
    with pytest.raises(SettingsError) as caught:
        Ball(exponent=-1, radius="wide", exponnt=3)
    assert blamed(caught.value) == ["exponent", "radius", "exponnt"]
    with pytest.raises(SettingsError, match=r"solver.starts is 0; it must be at least 1"):
        Vcmc(solver={"method": "psgd", "starts": 0})
    with pytest.raises(SettingsError, match="silos is missing\n  - variables is missing"):
        Study()
    with pytest.raises(ValidationError, match="frozen"):
        study.matching.absorb = 2
    assert hash(study) == hash(make(title="Comorbidity"))
