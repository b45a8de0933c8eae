from __future__ import annotations

import dataclasses
import functools
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from shutil import copytree

import numpy as np
import pandas as pd
import pytest
from cases.cli_cases import mode
from typer.testing import CliRunner

import silomix
from silomix import cli
from silomix.cli import EXITS, as_option, one_table, prepare
from silomix.cli.prepare import compare, run_demo
from silomix.errors import DataWarning, SettingsError
from silomix.messages.progress import Progress
from silomix.model.reading import read_table
from silomix.model.spreadsheet import write_table
from silomix.study.keywords import SETTINGS

SHORT = ["--iterations", "400", "--threads", "1"]
NO_WARNING = ["--relabel", "average"]
"""The other relabelling may warn that so short a run draws from the prior."""


COLOURING = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE")


def run(*args):
    plain = dict.fromkeys(COLOURING)
    return CliRunner().invoke(cli.app, [str(arg) for arg in args], env=plain)


def words(text):
    """The words of a help page, without its boxes and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.fixture
def table(tmp_path, seed):
    """A small table of four silos, on disk."""
    path = tmp_path / "table.csv"
    made = run("simulate", "non-nested", "--rows", 400, "--seed", seed, "--out", path)
    assert made.exit_code == 0, made.output
    return path


def test_version_and_exit_codes():
    assert run("--version").stdout == f"silomix {silomix.__version__}\n"
    page = words(run("--help").stdout)
    assert all(f"{code} {meaning}" in page for code, meaning in EXITS.items())
    assert "--install-completion" in page and "--show-completion" in page


GROUPS = ("flare", "ehr")
"""Commands that have commands of their own."""


def every_command():
    """Each command by the words that call it."""
    commands = {name: cli.find_command(name) for name in cli.COMMANDS}
    groups = {group: commands.pop(group).commands for group in GROUPS}
    inner = {f"{group} {name}": c for group, all_ in groups.items() for name, c in all_.items()}
    return commands | inner


def test_every_option_says_what_to_choose():
    for name, command in every_command().items():
        assert command.help, name
        for param in command.params:
            assert param.help and len(param.help) < 100, (name, param.name)
        options, last = {param.name for param in command.params}, name.split()[-1]
        assert "debug" in options, name
        assert "as_json" in options or last in {"server", "site"}, name
        without = {"answer", "inspect", "ledger", "server", "site", "stop"}
        assert "out" in options or last in without, name


def test_a_help_page_names_types_only_where_a_value_is_one():
    page = run("release", "--help").stdout
    assert all(re.search(rf"{flag} +[A-Z]", page) for flag in ("--force", "--json", "--dry-run"))
    page = words(run("study", "--help").stdout)
    assert "--absorb <int|true> " in page and "--polish <int|until> " in page


def test_every_help_page_has_an_example_that_parses():
    for name, command in every_command().items():
        example = command.epilog.partition("\n")[2].strip()
        assert example.startswith(f"silomix {name} ")
        assert example in words(run(*name.split(), "--help").stdout)
        args = shlex.split(example)[1 + len(name.split()) :]
        command.make_context(name, args)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("silomix re", ["release", "report"]),
        ("silomix fit t.csv --matching b", ["ball"]),
        ("silomix simulate n", ["nested", "non-nested"]),
    ],
)
def test_bash_completes(line, offered):
    spoken = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    protocol = {"_SILOMIX_COMPLETE": "complete_bash", **spoken}
    result = CliRunner().invoke(cli.app, [], prog_name="silomix", env=protocol)
    assert result.exit_code == 0, result.output
    assert sorted(result.stdout.split()) == offered


WITH_NUMBERS = "silo,patient,x1,x2,n\n" + "".join(
    f"{'ab'[i % 2]},p{i},{i % 2},{i % 3},{1 + i % 2}\n" for i in range(60)
)


@pytest.fixture
def noted(monkeypatch):
    """The settings that the command passes on to `fit`, which does not run."""
    seen = {}

    def note(table, silo, **settings):
        assert callable(settings.pop("progress"))
        seen.update(settings, table=table, silo=silo)
        raise silomix.SilomixError("enough")

    monkeypatch.setattr(one_table, "fit", note)
    return seen


def test_columns_are_left_out(tmp_path, noted):
    table, out = tmp_path / "t.csv", tmp_path / "study.toml"
    table.write_text(WITH_NUMBERS)
    study = ["study", table, "--silo", "silo", "--out", out]
    refused = run(*study)
    assert refused.exit_code == 3
    assert "leave it out with --exclude, or" in refused.stderr
    assert run(*study, "--frequency", "n", "--exclude", "patient, x2").exit_code == 0
    assert [variable.name for variable in silomix.read_study(out).variables] == ["x1"]
    common = ["--exclude", "patient", "--frequency", "n"]
    mine = ["--silo-column", "silo", "--silo", "a"]
    sampled = run("sample", table, *mine, *common, *SHORT, *NO_WARNING, "--out", tmp_path / "r")
    assert "a: 30 rows, 2 variables" in sampled.stdout
    run("fit", table, "--silo", "silo", *common, "--out", tmp_path / "f")
    assert (noted["frequency"], noted["exclude"]) == ("n", ["patient"])


@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
def test_labels_say_which_row_they_are_of(tmp_path):
    table, out = tmp_path / "t.csv", tmp_path / "f"
    table.write_text(WITH_NUMBERS)
    common = ["--silo", "silo", "--frequency", "n", "--id", "patient", *SHORT, "--polish", "0"]
    told = run("fit", table, *common, "--out", out)
    assert told.exit_code == 0, told.output
    labels = pd.read_csv(out / "labels.csv")
    assert list(labels.columns) == ["row", "id", "silo", "cluster", "probability", "second"]
    # rows with a count of two come twice
    assert list(labels["id"][:4]) == ["p0", "p1", "p1", "p2"] and len(labels) == 90
    given = ["--silo", "silo", "--id", "patient", "--out", tmp_path / "l.csv"]
    assert run("assign", out, table, *given).exit_code == 0
    assert list(pd.read_csv(tmp_path / "l.csv")["id"]) == [f"p{i}" for i in range(60)]


def test_what_is_odd_about_a_table_is_told_once(tmp_path):
    """However often a command reads it; rows with the same id are among it, but of the files only
    the labels have ids."""
    lines = ["id;silo;x;y", *(f"Ann {i // 2};{'ab'[i % 2]};{i % 7},5;{i}" for i in range(40))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    line = ["fit", tmp_path / "t.csv", "--silo", "silo", "--id", "id", "--outside", "y", *SHORT]
    told = run(*line, "--out", tmp_path / "r").stderr
    assert told.count("tells 0 of 40 rows apart (it repeats 'Ann 0', 'Ann 1', 'Ann 2' and") == 1
    assert told.count("t.csv: commas") == 1
    having = [path.name for path in (tmp_path / "r").iterdir() if b"Ann" in path.read_bytes()]
    assert having == ["labels.csv"]
    assert silomix.load(tmp_path / "r" / "posterior.silomix").assignment.ids is None


FIT, STUDY = ["fit", "t.csv", "--silo", "silo"], ["study", "t.csv", "--silo", "silo"]
SAMPLE, SIMULATE = ["sample", "t.csv"], ["simulate", "cohort", "--out", "c.parquet"]
OF_A_STUDY = [*SAMPLE, "--study", "s.toml", "--silo", "a"]
REFUSED = [
    ([*FIT, "--id", "x1", "--variables", "x1,x2"], 3, "'x1' names the rows and is among the var"),
    ([*FIT, "--outside", "silo"], 2, "--outside names 'silo', which another option uses too"),
    ([*FIT, "--id", "Patient"], 3, "(did you mean 'patient'?)"),
    ([*FIT, "--exclude", "x1", "--variables", "x2"], 4, "--variables and --exclude both"),
    ([*STUDY, "--exclude", "X1"], 3, "(did you mean 'x1'?)"),
    (["fit", "t.csv", "--silo", "Silo"], 3, "(did you mean 'silo'?)"),
    ([*FIT, "--shards", 2], 2, "--silo and --shards both say how to split"),
    ([*FIT, "--nonsense"], 2, "No such option"),
    ([*FIT, "--n-components", 3], 2, "there is no --n-components: use --clusters or --components"),
    ([*FIT, "--random-state=3"], 2, "use --seed"),
    ([*FIT, "--polish", "often", "--exclude", "patient"], 4, "--polish is 'often'"),
    ([*FIT, "--matching", "bal", "--exclude", "patient"], 4, "did you mean 'ball'?"),
    ([*FIT, "--exclude", "b", "--exclude", "c"], 2, "'--exclude': given 2 times; give it once"),
    (["ehr", "long", "t", "--codes", "a", "--codes", "b"], 2, "'--codes': given 2 times"),
    ([*STUDY, "--kind", "x1"], 2, "'x1' is not NAME=VALUE"),
    ([*STUDY, "--bins", "x1=2", "--bins", "x1=3"], 2, "'x1=3' names the same twice"),
    ([*STUDY, "--kind", "x3=gaussian"], 4, "--kind names 'x3', which is not among the variables"),
    ([*STUDY, "--kind", "x1=normal"], 4, "--kind 'normal' of 'x1' is not known; choose one of"),
    ([*STUDY, "--bins", "x1=two"], 4, "--bins is 'two'; it must be a whole number, at least 2"),
    ([*STUDY, "--kind", "patient=poisson"], 3, "'patient' has 'p0' in data row 1, which is no"),
    ([*OF_A_STUDY, "--kind", "x1=poisson"], 2, "leave out --kind"),
    (["study", "t.csv"], 2, "give --silo COLUMN, or --silos with the names: not both"),
    ([*SAMPLE, "--silo", "silo 1"], 2, "--silo needs --silo-column COLUMN"),
    ([*SAMPLE, "--silo-column", "silo"], 2, "need --silo NAME: which silo is it?"),
    ([*SAMPLE, "--silo-column", "silo", "--silo", "a", "--silos", 4], 2, "leave out --silos"),
    ([*OF_A_STUDY, "--burn-in", 3, "--exclude", "x1"], 2, "leave out --exclude, --burn-in"),
    ([*SAMPLE, "--components", 999, "--chains", 0, "--exclude", "patient"], 4, "must be at most"),
    (["sample", "absent.csv"], 3, "Error: absent.csv: no such file; check the path"),
    (["simulate", "nestled"], 4, "DESIGN 'nestled' is not known (did you mean 'nested'?)"),
    (["simulate", "cohort", "--out", "c.csv"], 2, "c.csv does not end in .parquet"),
    ([*SIMULATE, "--silos", 3], 2, "cohort has its own clusters and no silos"),
    (["assign", "t.csv", "t.csv"], 5, "is not a saved posterior, is damaged or truncated, or"),
]


@pytest.mark.parametrize(("line", "code", "complaint"), REFUSED, ids=str)
def test_a_wrong_command_is_refused_before_the_work(tmp_path, monkeypatch, line, code, complaint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(WITH_NUMBERS)
    out = [] if "--out" in line else ["--out", "r"]
    result = run(*line, *out, *(["--json"] if code == 4 else []))
    assert result.exit_code == code, result.output
    assert complaint in words(result.stderr)
    assert result.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_messages_speak_in_options():
    """Each front door words the settings that a message names."""
    error = SettingsError("{burn_in} is 9; give {silo}, without {exclude}, {method} or {x}",
                          burn_in=None, silo="ward", exclude=..., method=None)  # fmt: skip
    assert str(error) == "burn_in is 9; give silo='ward', without exclude=..., method or {x}"
    assert error.worded(as_option) == (
        "--burn-in is 9; give --silo 'ward', without --exclude, --outside-method or {x}"
    )


def test_simulate_writes_the_table_and_the_truth(tmp_path, seed):
    out = tmp_path / "made.csv"
    options = ["--separability", "poor", "--rows", 90, "--silos", 3, "--seed", seed]
    result = run("simulate", "nested", *options, "--out", out, "--json")
    record = json.loads(result.stdout)
    table, truth = silomix.simulate("nested", separability="poor", rows=90, silos=3, seed=seed)
    pd.testing.assert_frame_equal(pd.read_csv(out, dtype=str), table.astype("str"))
    on_disk = pd.read_csv(tmp_path / "made.truth.csv")
    assert on_disk["cluster"].tolist() == truth.labels.tolist()
    assert on_disk["silo"].tolist() == table["silo"].tolist()
    assert record["files"] == [str(out), str(tmp_path / "made.truth.csv")]
    assert (record["rows"], record["clusters"]) == (90, 6)


def test_simulate_writes_a_cohort(tmp_path, seed):
    out = tmp_path / "cohort.parquet"
    result = run("simulate", "cohort", "--rows", 60, "--seed", seed, "--out", out, "--json")
    record = json.loads(result.stdout)
    people, truth = silomix.simulate_cohort(60, seed=seed)
    assert pd.read_parquet(out)["Hypertension"].tolist() == people["Hypertension"].tolist()
    labels = pd.read_parquet(tmp_path / "cohort.truth.parquet")
    assert labels["cluster"].tolist() == truth.labels.tolist()
    names = ["cohort.parquet", "cohort.truth.parquet", "cohort.truth.json"]
    assert record["files"] == [str(tmp_path / name) for name in names]
    assert (record["rows"], record["clusters"], len(record["conditions"])) == (60, 27, 94)


def test_study_describes_what_it_wrote(tmp_path, table):
    out = tmp_path / "study.toml"
    named = ["--silos", "north, south", "--variables", "x5,x1", "--title", "Trial"]
    settings = ["--components", 9, "--iterations", 900, "--burn-in", 300, "--absorb", "false"]
    common = ["study", table, "--out", out, *named, *settings, "--alpha", 0.1, "--force"]
    record = json.loads(run(*common, "--json").stdout)
    study = silomix.read_study(out)
    assert (study.silos, study.title) == (("north", "south"), "Trial")
    assert record["variables"] == {"x5": ["1", "2", "3"], "x1": ["1", "2"]}
    assert record["digest"] == silomix.study.digest(study)
    schedule = {"iterations": 900, "burn_in": 300, "chains": 2, "thin": 1, "adaptive": False}
    assert record["settings"]["schedule"] == schedule
    assert (study.model.components, study.model.alpha, study.matching.absorb) == (9, 0.1, False)
    assert run(*common).stdout.endswith(f"Study: {out}\n")


def test_study_takes_a_preset_missing_cells_and_counts(tmp_path):
    table, out = tmp_path / "t.csv", tmp_path / "study.toml"
    table.write_text("site,a\n10,x\n9,\n10,y\n")
    common = ["study", table, "--silo", "site", "--out", out]
    assert run(*common, "--preset", "paper", "--missing", "level").exit_code == 0
    study = silomix.read_study(out)
    assert (study.silos, study.local.partition) == (("9", "10"), "pam")
    assert study.variables[0].levels == ("x", "y", "(missing)")
    table.write_text("site,a,n\n" + "".join(f"s,{a},{a}\n" for a in range(1, 13)))
    assert run(*common, "--frequency", "n", "--kind", "a=categorical", "--force").exit_code == 0
    (variable,) = silomix.read_study(out).variables
    assert (variable.name, variable.levels) == ("a", tuple(str(a) for a in range(1, 13)))


AGES = "site,age,visits,dose\n" + "".join(
    f"{'ab'[i % 2]},{20 + 1.5 * i},{i % 4},{(i % 3) * (i + 0.5)}\n" for i in range(40)
)
KINDS = ["--kind", "visits=poisson", "--bins", "age=2"]


def test_kinds_are_declared_or_told(tmp_path, noted):
    table, out = tmp_path / "t.csv", tmp_path / "study.toml"
    table.write_text(AGES)
    common = ["study", table, "--silo", "site", "--out", out, "--force"]
    told = words(run(*common).stdout)
    assert (
        "age, dose are taken as numbers (gaussian, independent within a cluster); "
        "dose is split into whether it is 0 and its other values; declare --kind to change that"
    ) in told
    assert "age gaussian, about 49.2 with scale 21.7" in told
    logs = run(*common, "--kind", "dose=gaussian,age=log-gaussian")
    assert "age log-gaussian, the logarithm about 3.9 with" in words(logs.stdout)
    record = json.loads(run(*common, *KINDS, "--kind", "dose=gaussian", "--json").stdout)
    assert record["variables"]["age"] == ["below 49.2", "49.2 or more"]
    units = {"kind": "poisson", "location": 1.5, "scale": 1.0, "transform": "none"}
    assert record["variables"]["visits"] == units
    kinds = {v.name: v.kind for v in silomix.read_study(out).variables}
    assert kinds == {"age": "categorical", "dose": "gaussian", "visits": "poisson"}
    assert "taken as" not in run(*common, *KINDS, "--kind", "dose=gaussian").stdout
    assert "taken as" not in run(*common, "--quiet").stdout
    assert run(*common, "--kind", "dose=gaussian,visits=poisson", "--bins", "age=2").exit_code == 0
    assert {v.name: v.kind for v in silomix.read_study(out).variables} == kinds
    run("fit", table, "--silo", "site", *KINDS, "--out", tmp_path / "f")
    assert (noted["kinds"], noted["bins"]) == ({"visits": "poisson"}, {"age": 2})


def test_a_code_book_with_a_few_ages_is_told(tmp_path):
    """Whole numbers with gaps are levels, so that other ages would be refused later."""
    table, out = tmp_path / "t.csv", tmp_path / "study.toml"
    table.write_text("age,sex,stage\n34,f,1\n51,m,2\n67,f,3\n")
    told = words(run("study", table, "--silos", "a,b", "--out", out).stdout)
    assert "taken as levels: age (34, 51, 67); declare --kind to change that" in told


def test_codes_for_missing_cells_go_into_the_study_and_are_advised(tmp_path, noted):
    table, out = tmp_path / "t.csv", tmp_path / "study.toml"
    table.write_text("site,sex,age\n" + "".join(f"s,{'fm9'[i % 3]},{i}.5\n" for i in range(40)))
    common = ["study", table, "--silo", "site", "--out", out, "--force"]
    assert run(*common).stderr.endswith("if they mean a missing cell, give --na-value sex=9\n")
    codes = ["--na-value", "9, 99,age=39.5"]
    told = run(*common, *codes)
    assert (told.exit_code, told.stderr) == (0, "")
    sex, age = silomix.read_study(out).variables
    assert (sex.levels, sex.na_values) == (("f", "m"), ("9", "99"))
    assert age.na_values == ("9", "99", "39.5")
    run("fit", table, "--silo", "site", *codes, "--out", tmp_path / "f")
    assert noted["na_values"] == ["9", "99", {"age": "39.5"}]
    run("fit", table, "--na-value", 9, "--na-value", "age=1,sex=9", "--out", tmp_path / "g")
    assert noted["na_values"] == ["9", {"age": "1"}, {"sex": "9"}]
    wrong = run(*common, "--na-value", "Age=9")
    assert (wrong.exit_code, "--na-value names 'Age'" in wrong.stderr) == (4, True)


def test_files_are_replaced_only_by_force(tmp_path, table):
    for command in (
        ["study", table, "--silo", "silo", "--out", tmp_path / "study.toml"],
        ["simulate", "nested", "--rows", 40, "--out", tmp_path / "again.csv"],
        ["sample", table, *SHORT, "--out", tmp_path / "results"],
    ):
        assert run(*command).exit_code == 0
        refused = run(*command)
        assert (refused.exit_code, refused.stdout) == (4, "")
        assert "--force" in refused.stderr
        assert run(*command, "--force").exit_code == 0
    blocked = run("sample", table, *SHORT, "--out", tmp_path / "again.csv" / "folder")
    assert blocked.exit_code == 4
    assert "cannot be written: Not a directory" in blocked.stderr


def test_sample_writes_what_the_library_finds(tmp_path, table, seed):
    out = tmp_path / "results"
    chosen = ["--variables", "x1,x5,x6", "--components", 4, "--silos", 3, *NO_WARNING]
    result = run("sample", table, *SHORT, *chosen, "--seed", seed, "--out", out, "--keep-draws")
    assert result.exit_code == 0, result.output
    frame = pd.read_csv(table, dtype=str)
    variables = ["x1", "x5", "x6"]
    draws = silomix.sample(
        frame, components=4, silos=3, iterations=400, seed=seed, variables=variables
    )
    posterior = silomix.local_posterior(draws, relabel="average")
    sizes = pd.read_csv(out / "cluster_sizes.csv")
    profile = pd.read_csv(out / "profiles.csv", dtype={"level": str})
    assert sizes["rows"].tolist() == posterior.sizes.tolist()
    np.testing.assert_allclose(sizes["weight"], posterior.weights.mean(axis=0), rtol=1e-5)
    assert list(zip(profile["variable"], profile["level"], strict=True)) == (
        posterior.levels * len(sizes)
    )
    bounds = silomix.metrics.highest_density_interval(posterior.probabilities)
    for column, bound in zip(("lower_95_hdi", "upper_95_hdi"), bounds, strict=True):
        np.testing.assert_allclose(profile[column], bound.ravel(), rtol=1e-5)
    labels = pd.read_csv(out / "labels.csv")
    assert labels["cluster"].tolist() == posterior.partition.labels.tolist()
    with np.load(out / "draws.npz", allow_pickle=False) as kept:
        for name in ("labels", "weights", "probabilities", "log_likelihood", "chain"):
            np.testing.assert_array_equal(kept[name], getattr(draws, name))
        assert [tuple(pair) for pair in kept["levels"]] == draws.levels
        assert kept["probabilities"].dtype == np.float32
    for text in ((out / "summary.txt").read_text(encoding="utf-8"), result.stdout):
        assert draws.diagnostics.verdict in " ".join(text.split())
    assert result.stdout.endswith(f"Results: {out}\n")


def test_sample_one_silo_with_and_without_a_study_file(tmp_path, table):
    study = tmp_path / "study.toml"
    run("study", table, "--silo", "silo", *SHORT[:2], "--out", study)
    mine = ["--silo-column", "silo", "--silo", "silo 3"]
    by_file = run("sample", table, *mine, "--study", study, "--out", tmp_path / "a", "--json")
    by_hand = run("sample", table, *mine, *SHORT, "--out", tmp_path / "b", "--json")
    alone = tmp_path / "alone.csv"
    rows = pd.read_csv(table, dtype=str)
    rows[rows["silo"] == "silo 3"].drop(columns="silo").to_csv(alone, index=False)
    given = ["--silo", "silo 3", "--study", study, "--json"]
    apart = run("sample", alone, *given, "--out", tmp_path / "c")
    records = [json.loads(result.stdout) for result in (by_file, by_hand, apart)]
    for record in records:
        del record["files"]
    assert records[0] == records[1] == records[2]
    assert (records[0]["silo"], records[0]["rows"]) == ("silo 3", 100)
    assert set(records[0]["traces"]["log_likelihood"]) == {"rhat", "ess"}


def test_sample_repeats_rows_and_its_json_has_no_nan(tmp_path):
    table = tmp_path / "patterns.csv"
    table.write_text("a,b,n\nx,y,30\nu,v,20\n")
    chosen = ["--frequency", "n", "--partition", "pam", "--relabel", "average"]
    common = ["sample", table, *SHORT, *chosen, "--out", tmp_path, "--json", "--force"]
    record = json.loads(run(*common).stdout)
    assert (record["rows"], record["sizes"]) == (50, [30, 20])
    assert (record["partition"], record["relabel"]) == ("pam", "average")
    record = json.loads(run(*common, "--components", 1).stdout, parse_constant=pytest.fail)
    assert record["traces"]["occupied"] == {"rhat": None, "ess": None}


def test_mismatches(tmp_path, table):
    study = tmp_path / "study.toml"
    run("study", table, "--silos", "a,b", "--variables", "x1", "--out", study)
    stranger = run("sample", table, "--study", study, "--silo", "c", "--out", tmp_path / "r")
    assert stranger.exit_code == 5
    assert "the study has no silo 'c'; its roster is 'a', 'b'" in stranger.stderr
    kept = ["--checkpoint", tmp_path / "checkpoint"]
    sampled = run("sample", table, *SHORT, *kept, "--out", tmp_path / "r")
    assert "may be deleted now (" in sampled.stdout
    other = run("sample", table, *SHORT, *kept, "--seed", 9, "--out", tmp_path / "s")
    assert other.exit_code == 5
    assert "belongs to another run: seed is 0 there and 9 here" in other.stderr


def test_something_unexpected(tmp_path, monkeypatch):
    def fail(folder, **settings):
        raise RuntimeError("the floor gave way")

    monkeypatch.setattr(prepare, "run_demo", fail)
    plain, debug = run("demo", "--out", tmp_path), run("demo", "--out", tmp_path, "--debug")
    assert plain.exit_code == debug.exit_code == 1
    assert plain.stderr.startswith("Unexpected error: RuntimeError: the floor gave way\n")
    assert "--debug" in plain.stderr and "Traceback" not in plain.stderr
    assert "in fail" in debug.stderr


def test_warnings_are_sentences(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("a,b\nx,\ny,\n")
    result = run("study", table, "--silos", "one", "--out", tmp_path / "s.toml", "--json")
    assert result.exit_code == 0
    json.loads(result.stdout)
    assert result.stderr.startswith("Warning: the table: column 'b' is missing in every row")
    assert ".py" not in result.stderr


RESULTS = {
    *("cluster_sizes.csv", "profiles.csv", "contrast.csv", "labels.csv", "correspondence.csv"),
    *("silo_weights.csv", "drift.csv", "summary.txt", "report.html", "study.toml"),
    "posterior.silomix",
}
QUICK = ["--iterations", "600", "--threads", "2"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A table, the folder of its results, and what the command printed."""
    folder = tmp_path_factory.mktemp("fitted")
    table, out = folder / "table.csv", folder / "results"
    made = run("simulate", "non-nested", "--rows", 400, "--seed", 2, "--out", table)
    assert made.exit_code == 0, made.output
    result = run("fit", table, "--silo", "silo", *QUICK, "--seed", 3, "--out", out)
    assert result.exit_code == 0, result.output
    return table, out, result


@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
def test_a_name_goes_into_all_files_of_a_fit_and_ids_stay(fitted, tmp_path):
    out = tmp_path / "results"
    copytree(fitted[1], out)
    labels = pd.read_csv(out / "labels.csv").assign(id=["=1", "007"] * 200)
    write_table(labels, out / "labels.csv")
    labels = read_table(out / "labels.csv").to_native()
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert run("report", out, "--name", "0=frail").exit_code == 4
    assert run("report", out, "--name", "0=frail", "--out", out / "new.html").exit_code == 0
    (out / "new.html").rename(out / "report.html")
    del before["report.html"]
    assert all((out / file).read_bytes() == content for file, content in before.items())
    assert run("report", out, "--name", "0=frail", "--force").exit_code == 0
    for name in ("cluster_sizes.csv", "profiles.csv", "contrast.csv", "summary.txt", "report.html"):
        assert "frail" in (out / name).read_text(encoding="utf-8"), name
    assert silomix.load(out / "posterior.silomix").names == {0: "frail"}
    for _ in range(2):
        labelled = read_table(out / "labels.csv").to_native()
        assert list(labelled)[2:4] == ["cluster", "name"]
        assert labelled.pop("name").isin(["frail"]).tolist() == (labels["cluster"] == "0").tolist()
        assert labelled.equals(labels)
        assert mode(out / "labels.csv") == 0o600
        assert run("report", out, "--name", "0=frail", "--force").exit_code == 0
    assert {path.name for path in out.iterdir()} == RESULTS


def test_fit_writes_what_the_library_finds(fitted):
    table, out, result = fitted
    assert "leave a cluster without" not in result.stderr  # silos do not warn one by one
    assert {path.name for path in out.iterdir()} == RESULTS
    found = silomix.load(out / "posterior.silomix")
    again = silomix.fit(table, "silo", iterations=600, seed=3, progress=False)
    np.testing.assert_array_equal(found.weights, again.weights)
    np.testing.assert_array_equal(found.labels, again.labels)
    assert silomix.read_study(out / "study.toml") == found.study
    labels = pd.read_csv(out / "labels.csv")
    assert labels.columns.tolist() == ["row", "silo", "cluster", "probability", "second"]
    assert labels["row"].tolist() == list(range(1, 401))
    assert labels["silo"].tolist() == pd.read_csv(table)["silo"].tolist()
    assert labels["cluster"].tolist() == found.labels.tolist()
    assert " ".join(found.diagnostics.verdict.split()) in " ".join(result.stdout.split())
    assert result.stdout.endswith(f"Results: {out}\n")


@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
def test_what_is_odd_in_a_table_is_printed_once_and_kept_in_the_files(tmp_path, rng):
    rows, _ = silomix.simulate("homogeneous", rows=120, silos=2, seed=1)
    rows["crp"] = rng.normal(5, 1, 120).round(2)
    rows.loc[:8, "crp"] = -9.0
    rows.assign(died=rows["x1"]).to_csv(tmp_path / "t.csv", index=False)
    quick, out = ["--iterations", 200, "--polish", 0, "--threads", 1], tmp_path / "r"
    quick += ["--outside", "died"]
    result = run("fit", tmp_path / "t.csv", "--silo", "silo", *quick, "--out", out)
    told = "'crp' has '-9' in 9 rows: taken as they stand; if they mean a missing cell, give "
    assert (
        result.stderr.count(f"{told}--na-value crp=-9\n")
        == result.stderr.count("as they stand")
        == 1
    )
    assert "as they stand" not in words(result.stdout)
    assert f"{told}--na-value crp=-9. " in words((out / "summary.txt").read_text(encoding="utf-8"))
    with pytest.warns(DataWarning):
        found = silomix.fit(rows, silo="silo", iterations=200, polish=0, progress=False)
    assert found.diagnostics.notes[-1].endswith(told + "na_values={'crp': ['-9']}.")


def test_fit_as_json(tmp_path, fitted, monkeypatch):
    table, out, _ = fitted
    found = silomix.load(out / "posterior.silomix")

    def fit(_table, _silo, progress):
        progress(Progress("matching", 0, 0))
        return found

    monkeypatch.setattr(one_table, "fit", fit)
    result = run("fit", table, "--out", tmp_path / "r", "--json")
    record = json.loads(result.stdout, parse_constant=pytest.fail)
    assert record["silos"] == list(found.silos)
    assert [c["rows"] for c in record["clusters"]] == np.bincount(found.labels).tolist()
    assert record["verdict"] == found.diagnostics.verdict
    assert record["sent"] == {silo: dict(sent) for silo, sent in found.provenance.sent.items()}
    assert list(record["seconds"]) == ["sampling", "matching"]
    assert set(record["files"]) == {str(tmp_path / "r" / name) for name in RESULTS}


def test_fit_passes_every_option_on(tmp_path, table, noted):
    options = {name: setting.words[-1] if setting.words else setting.kind(3)
               for name, setting in SETTINGS.items() if setting.panel}  # fmt: skip
    options |= {"polish": 2, "preset": "paper", "threads": 1, "missing": "level", "policy": "omop"}
    options |= {"frequency": "n", "checkpoint": tmp_path / "kept", "transport": "joblib"}
    args = [part for name, value in options.items()
            for part in (f"--{name.replace('_', '-')}", value)]  # fmt: skip
    run("fit", table, "--silo", "silo", "--variables", "x1,x2", *args, "--out", tmp_path / "r")
    assert noted == {**options, "variables": ["x1", "x2"], "table": table, "silo": "silo"}
    noted.clear()
    run("fit", table, "--shards", 3, "--polish", "until", "--out", tmp_path / "r")
    assert noted == {"shards": 3, "polish": "until", "table": table, "silo": None}


def test_fit_without_local_clusters_leaves_nothing_of_another_run(tmp_path, fitted):
    table, out = fitted[0], tmp_path / "results"
    out.mkdir()
    (out / "correspondence.csv").write_text("of another run")
    exact = ["--strategy", "exact", "--chains", 1, "--components", 7, "--iterations", 60]
    refused = run("fit", table, "--silo", "silo", *exact, "--out", out)
    assert refused.exit_code == 4
    result = run("fit", table, "--silo", "silo", *exact, "--out", out, "--force")
    assert result.exit_code == 0, result.output
    missing = {"correspondence.csv", "silo_weights.csv"}
    assert {path.name for path in out.iterdir()} == RESULTS - missing
    assert "Sampled over all silos at once: 7 components" in " ".join(result.stdout.split())


def test_fit_needs_the_extra_before_it_samples(tmp_path, fitted, monkeypatch):
    monkeypatch.setattr("silomix.silo.partition.find_spec", lambda name: None)
    result = run("fit", fitted[0], "--silo", "silo", "--preset", "paper", "--out", tmp_path / "r")
    assert result.exit_code == 4
    assert "pip install 'silomix[pam]'" in result.stderr


def test_a_study_that_needs_the_extra_is_made_without_it_and_refused_by_the_silo_at_once(
    table, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("silomix.silo.partition.find_spec", lambda name: None)
    monkeypatch.setattr("silomix.silo.local.sample_in_blocks", pytest.fail)
    columns = ["--silo", "silo", "--exclude", "x9"]
    made = run("study", table, *columns, "--preset", "paper", "--out", "study.toml")
    assert made.exit_code == 0, made.output
    asked = run("coordinate", "study.toml", "--exchange", "exchange", "--out", "results")
    assert asked.exit_code == 7, asked.output
    own = ["--silo", "silo 1", "--silo-column", "silo", "--study", "study.toml"]
    for line in (
        ["answer", "exchange", "--data", table, *own],
        ["release", table, *own, "--policy", "open", "--out", "released"],
        ["sample", table, *own, "--out", "sampled"],
        ["sample", table, "--partition", "pam", "--out", "sampled"],
    ):
        result = run(*line)
        assert result.exit_code == 4, result.output
        assert "--partition 'pam', also part of --preset 'paper'" in words(result.stderr)
        assert "pip install 'silomix[pam]'" in result.stderr


def test_assign_gives_old_rows_their_old_labels(tmp_path, fitted):
    table, results, _ = fitted
    out = tmp_path / "labels.csv"
    saved = results / "posterior.silomix"
    result = run("assign", saved, table, "--silo", "silo", "--out", out)
    assert result.exit_code == 0, result.output
    assert out.read_bytes() == (results / "labels.csv").read_bytes()
    assert result.stdout.endswith(f"Labels: {out}\n")
    refused = run("assign", results, table, "--silo", "silo", "--out", out)
    assert refused.exit_code == 4


def test_assign_new_rows(tmp_path, fitted, seed):
    saved, table = fitted[1] / "posterior.silomix", tmp_path / "new.csv"
    rows = silomix.simulate("non-nested", rows=40, seed=seed)[0]
    rows["silo"] = rows["silo"].replace("silo 4", "elsewhere")
    rows.to_csv(table, index=False)
    found = silomix.load(saved)
    expected = {
        "silo": (found.membership(rows, silo="silo"), rows["silo"].tolist(), 10),
        "silo 2": (found.membership(rows, silo="silo 2"), ["silo 2"] * 40, 0),
        None: (found.membership(rows), [None] * 40, 40),
    }
    for silo, (membership, names, strangers) in expected.items():
        given = [] if silo is None else ["--silo", silo]
        out = tmp_path / f"{silo}.csv"
        record = json.loads(run("assign", saved, table, *given, "--out", out, "--json").stdout)
        labels = pd.read_csv(out)
        assert labels["cluster"].tolist() == membership.argmax(axis=1).tolist()
        assert labels["silo"].astype(object).where(labels["silo"].notna(), None).tolist() == names
        assert record["rows_of_other_silos"] == strangers
    without = run("assign", saved, fitted[0], "--out", tmp_path / "w.csv")
    assert "to use their own, give --silo 'silo'" in without.stderr


@pytest.mark.filterwarnings("ignore::silomix.errors.DataWarning")
@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
def test_rows_of_one_table_are_of_no_other_silo(table, tmp_path):
    kept, out = tmp_path / "kept", tmp_path / "one"
    line = ["--exclude", "silo", *SHORT, "--checkpoint", kept, "--out", out]
    fitted = run("fit", table, *line)
    assert f" MB): {kept}\nResults: {out}\n" in fitted.stdout
    assert "Checkpoint, which may be deleted now (" in fitted.stdout
    result = run("assign", out, table, "--quiet", "--out", tmp_path / "l.csv")
    assert result.exit_code == 0, result.output
    assert "not fitted" not in result.output
    named = run("assign", out, table, "--silo", "silo", "--out", tmp_path / "l.csv", "--force")
    assert (
        "Rows of silos that were not fitted, labelled by the overall weights: 400" in named.stdout
    )


def test_assign_refuses_other_tables(tmp_path, fitted):
    table, results, _ = fitted
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for line in ((table, "--silo", "sillo"), (tmp_path / "other.csv",)):
        assert run("assign", results, *line, "--out", tmp_path / "labels.csv").exit_code == 3
    assert not (tmp_path / "labels.csv").exists()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demonstration as it is, once: what the command printed, and its outcome."""
    folder = tmp_path_factory.mktemp("demo")
    kept = []

    def keep(out, **settings):
        kept.append(run_demo(out, **settings))
        return kept[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "run_demo", keep)
        result = run("demo", "--out", folder)
    assert result.exit_code == 0, result.output
    return folder, result, kept[0]


def test_demo_finds_the_planted_clusters(demo):
    _, _, found = demo
    planted, local = (pd.DataFrame(found.record[name]) for name in ("planted", "correspondence"))
    assert len(found.record["clusters"]) == 6
    assert sorted(planted["found"]) == list(range(6))
    assert list(local.groupby("silo").size()) == [5, 5, 3, 2]  # as many as each was given
    # not better than the truth, but for luck, and hardly worse
    assert abs(found.record["ari"] - found.record["best_ari"]) < 0.01
    assert found.record["trusted"]
    # six intervals of 95 %
    assert planted["weight"].between(planted["lower"], planted["upper"]).sum() >= 4


def test_demo_tells_and_writes(demo):
    folder, result, found = demo
    assert {path.name for path in folder.iterdir()} == RESULTS | {"table.csv", "comparison.txt"}
    report = (folder / "comparison.txt").read_text(encoding="utf-8")
    assert result.stdout.splitlines()[-2:] == [
        f"Against the truth: {folder / 'comparison.txt'}",
        f"Report: {folder / 'report.html'}",
    ]
    for text in (report, result.stdout):
        told = " ".join(text.split())
        assert f"planted clusters: {found.record['ari']:.3f}" in told
        assert "found by" in told
        assert found.record["verdict"] in told


@pytest.mark.parametrize("out", ["page.html", "folder", "folder.2026"])
def test_report_writes_a_page_or_into_a_folder(demo, tmp_path, out):
    if "2026" in out:
        (tmp_path / out).mkdir()
    result = run("report", demo[0], "--out", tmp_path / out)
    page = tmp_path / out if out.endswith("html") else tmp_path / out / "report.html"
    assert result.exit_code == 0, result.output
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (800, {"iterations": 400}),
        pytest.param(4000, {}, marks=pytest.mark.slow),
    ],
    ids=["less", "as it is"],
)
def test_mixed_demo_finds_the_planted_clusters_and_compares_their_numbers(
    rows, settings, tmp_path, monkeypatch
):
    monkeypatch.setattr(prepare, "draw_table", functools.partial(prepare.draw_table, rows=rows))
    monkeypatch.setattr(prepare, "fit", functools.partial(prepare.fit, **settings))
    result = run("demo", "--mixed", "--out", tmp_path, "--quiet")
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == RESULTS | {"table.csv", "comparison.txt"}
    told = " ".join(result.stdout.split())
    assert "and found 6 clusters" in told
    both = re.search(r"clusters: (0\.\d+); the true parameters would give (0\.\d+)", told)
    agreement, best = both.groups()
    assert abs(float(agreement) - float(best)) < 0.01
    # 54 intervals of 95 %: fewer than 45 cover in three of 10,000 tables, and this one is fixed
    true, inside = re.search(r"Of (\d+) true means, [a-z ]+, (\d+) are in", told).groups()
    assert "are in their 95% intervals (51 expected)." in told
    assert true == "54"
    assert int(inside) >= 45


def test_demo_as_json_with_a_cluster_that_was_not_found(demo, monkeypatch):
    folder, _, _ = demo
    table = pd.read_csv(folder / "table.csv", dtype=str)
    _, truth = silomix.simulate("non-nested", separability="easy", seed=1)
    whole_fit = silomix.load(folder / "posterior.silomix")
    assignment = whole_fit.assignment
    merged = dataclasses.replace(assignment, labels=np.minimum(assignment.labels, 4))
    fewer = compare(dataclasses.replace(whole_fit, assignment=merged), table, truth, folder)
    assert [planted["found"] for planted in fewer.record["planted"]].count(None) == 1
    monkeypatch.setattr(prepare, "run_demo", lambda out, **_: fewer)
    assert "not found" in run("demo", "--out", folder).stdout
    record = json.loads(run("demo", "--out", folder, "--json").stdout, parse_constant=pytest.fail)
    assert None in [planted["share"] for planted in record["planted"]]


def start(*args, **options):
    command = [sys.executable, "-m", "silomix", *map(str, args)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_piped_output_is_plain(tmp_path, table, quiet):
    result = run("sample", table, *SHORT, *NO_WARNING, "--out", tmp_path / "r", *quiet)
    assert result.exit_code == 0, result.output
    assert set(result.stderr.splitlines()) <= (set() if quiet else {"compiling", "sampling"})
    assert ("sampling" in result.stderr) != bool(quiet)
    assert "\x1b" not in result.output
    assert result.stdout.endswith(f"Results: {tmp_path / 'r'}\n")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    process = start("simulate", "nested", "--rows", 40, "--out", tmp_path / "t.csv")
    with process:
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, "")
    assert len(pd.read_csv(tmp_path / "t.csv")) == 40


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_interruption(tmp_path, table):
    checkpoint = tmp_path / "checkpoint"
    process = start(
        *("sample", table, "--iterations", 50_000_000, "--out", tmp_path / "r"),
        *("--checkpoint", checkpoint, "--quiet"),
        # a shell may start its background jobs deaf to this signal
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for _ in range(1200):
        if list(checkpoint.glob("chain-*.npz")) or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert err == ("Interrupted: with --checkpoint, the same command continues where it stopped\n")
    assert not (tmp_path / "r").exists()


@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
def test_a_new_page_keeps_the_comparison_of_other_columns(fitted, tmp_path):
    """It cannot be made without the rows: the page is not written anew without it."""
    table, out = tmp_path / "t.csv", tmp_path / "results"
    copytree(fitted[1], out)
    rows = pd.read_csv(fitted[0])
    rows.assign(died=rows.index % 3 // 2).to_csv(table, index=False)
    asked = ["--table", table, "--silo", "silo", "--outside", "died"]
    assert run("report", out, *asked, "--force").exit_code == 0
    page, numbers = (out / "report.html").read_bytes(), (out / "outside.csv").read_bytes()
    refused = run("report", out, "--name", "0=frail", "--force")
    assert refused.exit_code == 4
    assert "give --table and --outside again" in words(refused.stderr)
    assert (out / "report.html").read_bytes() == page
    assert (out / "outside.csv").read_bytes() == numbers
    assert run("report", out, *asked, "--name", "0=frail", "--force").exit_code == 0
    assert "died" in (out / "report.html").read_text(encoding="utf-8")
    for name in ("report.html", "outside.csv", "labels.csv"):
        assert "frail" in (out / name).read_text(encoding="utf-8")
    assert run("report", out, "--name", "0=old", "--out", tmp_path / "new.html").exit_code == 0


@pytest.mark.filterwarnings("ignore::silomix.errors.SamplingWarning")
@pytest.mark.usefixtures("without_pictures")
def test_names_that_reorder_text_or_are_not_seen_are_shown_escaped(tmp_path, monkeypatch, rng):
    """On a screen and in texts for people; tables for programs have them as they are."""
    monkeypatch.chdir(tmp_path)
    age, dose, levels = "ag\u202ee", "do\u200bse", np.array(["\u2066a", "b\u00a0c"])
    rows = {age: levels[rng.integers(0, 2, 60)], dose: rng.normal(size=60).round(3)}
    pd.DataFrame(rows).to_csv("t.csv", index=False)
    study = run("study", "t.csv", "--silos", "north", "--title", "up\u202edown", "--out", "s.toml")
    line = ["t.csv", "--study", "s.toml", "--silo", "north"]
    sampled = run("sample", *line, "--out", "sampled")
    released = run("release", *line, "--out", "released", "--policy", "open")
    fitted = run("fit", "t.csv", *SHORT, "--out", "fitted")
    refused = run("fit", "t.csv", "--silo", f"x\u202e{age}", "--out", "no")
    unusable = run("fit", "t.csv", "--outside", f"{age}=\u200b", "--out", "no")
    asked = run("coordinate", "s.toml", "--exchange", "exchange", "--out", "no")
    told = [study, sampled, released, fitted, refused, unusable, asked]
    texts = [each.output for each in told]
    assert [each.exit_code for each in told] == [0, 0, 0, 0, 3, 3, 7], texts
    files = ["sampled/summary.txt", "fitted/summary.txt", "released/README.txt"]
    files += ["exchange/README.txt", "fitted/report.html"]
    texts += [Path(file).read_text(encoding="utf-8") for file in files]
    for text in texts:
        assert not set(text) & set("\u202e\u200b\u2066"), text
    assert r"ag\u202ee" in study.stdout and "b\u00a0c" in study.stdout
    assert r"do\u200bse" in texts[len(told) + 2]
    assert pd.read_csv("fitted/profiles.csv")["variable"].isin([age, dose]).all()
