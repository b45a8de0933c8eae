from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cases.cli_cases import run, words
from federation.exchange_cases import DEFAULT, STUDIES, Case, assert_same, in_process, make_case
from federation.mutations import time_limit
from typer.testing import CliRunner

import silomix
from silomix import cli
from silomix.messages import REPLIES
from silomix.model.metrics import adjusted_rand_index
from silomix.model.reading import read_table
from silomix.model.table import encode
from silomix.report.run_sections import REPLY_NAMES
from silomix.study import digest, make_study, read_study, write_study
from silomix.study.policy import Exchanges, find_policy, write_policy

USAGE, WRONG, SETTING, FOREIGN, REFUSED, OPEN = 2, 3, 4, 5, 6, 7


pytestmark = pytest.mark.usefixtures("without_pictures")


@pytest.fixture
def desk(tmp_path, seed, monkeypatch):
    """A folder with a study file of two silos, and a table of each of them."""
    case = make_case(
        seed, silos=2, rows=120, **STUDIES["files"] | {"aggregation": "uniform", "components": 3}
    )
    write_study(case.study, tmp_path / "study.toml")
    for place, name in enumerate(case.study.silos, start=1):
        own = case.table[case.table["silo"] == name]
        (tmp_path / f"site{place}").mkdir()
        own.to_csv(tmp_path / f"site{place}" / "table.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return case


def coordinate(*more):
    return run("coordinate", "study.toml", "--exchange", "exchange", "--out", "results", *more)


def answer(place, *more):
    table = f"site{place}/table.csv"
    return run("answer", "exchange", "--silo", f"silo {place}", "--data", table, "--yes", *more)


def test_every_reply_has_a_name():
    assert set(REPLY_NAMES) == {kind.__name__ for kind in REPLIES.values()}


def test_a_study_by_file_from_beginning_to_end(desk, tmp_path):
    result = coordinate()
    assert result.exit_code == OPEN, result.output
    assert "Question 1 of about 2: sample locally" in result.output
    assert "In each silo: silomix answer exchange --silo NAME --data TABLE" in result.output

    result = answer(1)
    assert result.exit_code == 0, result.output
    assert "policy 'default' (no --policy was given), minimum count 10" in result.output
    assert "The silo's own run: " in result.output
    assert "To the coordinator: exchange/answers/01-silo-1\n" in result.output
    assert re.search(r"may be deleted now \(\d+\.\d MB\): site1/.*/checkpoint\n", result.output)
    store = result.output.rpartition("Stays here: ")[2].strip()
    assert store.startswith("site1/silomix-store/01-silo-1-")
    assert answer(2).exit_code == 0

    record = json.loads(coordinate("--json").stdout)
    assert (record["question"], record["about"], record["kind"]) == (2, 2, "AssignRows")
    assert [silo["silo"] for silo in record["silos"]] == ["silo 1", "silo 2"]

    record = json.loads(answer(1, "--json").stdout)
    assert record["policy"]["name"] == "default"
    assert [item["reply"] for item in record["answers"]] == ["Received"]
    labels = pd.read_csv(record["labels"])
    assert record["labels"].startswith("site1/")
    assert labels["row"].tolist() == list(range(1, 61))
    assert "Clusters of the rows, which stay here too: site2/" in answer(2).output
    assert "No question is open." in answer(2).output

    result = coordinate()
    assert result.exit_code == 0, result.output
    assert "Questions: 2, all answered\nResults: results\n" in result.output
    found = silomix.load("results/posterior.silomix")
    assert_same(in_process(desk), found)
    assert not list((tmp_path / "exchange").rglob("*labels*"))


def test_a_study_of_numbers_by_file_from_beginning_to_end(tmp_path, seed, monkeypatch):
    """Young smokers who seldom visit, and old others who often do, in two silos."""
    monkeypatch.chdir(tmp_path)
    rng, names = np.random.default_rng(seed), ["silo 1", "silo 2"]
    old = rng.random(780) < 0.4
    columns = {
        "silo": np.repeat(names, [420, 360]),
        "smoker": np.where(rng.random(780) < np.where(old, 0.2, 0.8), "yes", "no"),
        "age": rng.normal(np.where(old, 65.0, 46.0), 4.5).round(1),
        "dose": np.exp(rng.normal(np.where(old, 1.0, 2.0), 0.5)),
        "visits": rng.poisson(np.where(old, 7, 1.5)),
    }
    table = pd.DataFrame(columns)
    table.loc[rng.random(780) < 0.1, ["age", "smoker"]] = 999.0, "unknown"
    table.to_csv("all.csv", index=False)
    kinds = ["--kind", "dose=log-gaussian,visits=poisson"]
    kinds += ["--na-value", "unknown", "--na-value", "age=999"]
    short = ["--preset", "files", "--iterations", 200, "--components", 3, "--seed", 2]
    result = run("study", "all.csv", "--silo", "silo", *kinds, *short, "--out", "study.toml")
    assert result.exit_code == 0, result.output

    parts = {name: table[table["silo"] == name] for name in names}
    for place, rows in enumerate(parts.values(), start=1):
        Path(f"site{place}").mkdir()
        rows.drop(columns="silo").to_csv(f"site{place}/table.csv", index=False)
    found = []
    for _ in range(2):
        assert coordinate().exit_code == OPEN
        results = [answer(place, "--json") for place in (1, 2)]
        assert [result.exit_code for result in results] == [0, 0], results[0].output
        found = [json.loads(result.stdout).get("labels") for result in results]
    result = coordinate()
    assert result.exit_code == 0, result.output

    posterior = silomix.load("results/posterior.silomix")
    study = read_study("study.toml")
    shards = {name: encode(rows, study.table_schema) for name, rows in parts.items()}
    assert_same(in_process(Case(study, shards, DEFAULT, table)), posterior)
    labels = np.concatenate([pd.read_csv(path)["cluster"] for path in found])
    assert adjusted_rand_index(labels, old) > 0.8
    means = dict(zip(posterior.parameter_names, posterior.parameters.mean(axis=0).T, strict=True))
    assert np.sort(means["age", "mean"]) == pytest.approx([46.0, 65.0], abs=2.0)
    assert np.sort(means["dose", "mean of log"]) == pytest.approx([1.0, 2.0], abs=0.2)
    assert np.sort(means["visits", "rate"]) == pytest.approx([1.5, 7.0], abs=0.6)
    profiles = pd.read_csv("results/profiles.csv").set_index(["variable", "level_name"])
    assert profiles.loc[("age", "mean"), "mean"].between(44, 67).all()

    # the codes are the study's: new rows have them too
    result = run("assign", "results", "all.csv", "--silo", "silo", "--out", "labels.csv")
    assert result.exit_code == 0, result.output
    empty = table.replace({"age": {999.0: None}, "smoker": {"unknown": None}})
    np.testing.assert_array_equal(
        posterior.membership(table, "silo"), posterior.membership(empty, "silo")
    )


def test_labels_have_the_row_numbers_of_a_table_of_all_silos(desk, tmp_path):
    coordinate()
    shuffled = desk.table.sample(frac=1, random_state=0)
    mixed = pd.concat(
        [shuffled[shuffled["silo"] == "silo 2"], shuffled[shuffled["silo"] != "silo 2"]]
    )
    counted = mixed.groupby([*mixed.columns], sort=False).size().rename("times").reset_index()
    counted["patient"] = [f"=p{row}" for row in counted.index]
    counted.to_csv("all.csv", index=False)
    options = ["--silo-column", "silo", "--frequency", "times", "--study", "study.toml"]
    options += ["--id", "patient"]
    for name in desk.study.silos:
        result = run("answer", "exchange", "--silo", name, "--data", "all.csv", *options)
        assert result.exit_code == 0, result.output
    coordinate()
    result = run("answer", "exchange", "--silo", "silo 1", "--data", "all.csv", *options, "--json")
    labels = read_table(json.loads(result.stdout)["labels"]).to_native()
    assert list(labels) == ["row", "id", "silo", "cluster", "probability", "second"]
    own = counted.index[counted["silo"] == "silo 1"] + 1
    expected = np.repeat(own, counted.loc[own - 1, "times"])
    np.testing.assert_array_equal(labels["row"].astype(int), expected)
    assert labels["id"].tolist() == [f"=p{row - 1}" for row in expected]


def test_a_refusal_shows_on_both_sides_and_can_be_taken_back(desk, tmp_path):
    coordinate()
    strict = find_policy("default").model_copy(update={"name": "strict", "tiers": ("draws",)})
    write_policy(strict, "strict.toml")
    result = answer(1, "--policy", "strict.toml")
    assert result.exit_code == REFUSED, result.output
    assert "refused: its policy does not" in words(result)
    log = next(tmp_path.glob("site1/silomix-store/*/log.txt")).read_text()
    assert "asks for a release of tier 'summary'" in log
    assert not list((tmp_path / "exchange").rglob("log*"))
    answer(2)
    waiting = coordinate("--json")
    assert waiting.exit_code == REFUSED  # going on asking would never end
    record = json.loads(waiting.stdout)
    assert [(silo["silo"], silo["refused"]) for silo in record["silos"]] == [("silo 1", "policy")]
    assert "--again" in record["silos"][0]["do"]
    assert "No question is open." in answer(1).output
    result = answer(1, "--policy", "default", "--again")
    assert result.exit_code == 0, result.output
    assert json.loads(coordinate("--json").stdout)["question"] == 2


def test_a_policy_that_only_allows_more_keeps_the_store(desk):
    coordinate()
    answer(1)
    more = find_policy("default").model_copy(update={"exchanges": Exchanges(polish=5)})
    write_policy(more, "more.toml")
    assert answer(1, "--policy", "more.toml").exit_code == 0
    result = answer(1, "--policy", "opensafely")
    assert result.exit_code == REFUSED
    assert "policy 'default', with minimum count 10 and counts rounded to 5, on" in words(result)
    result = answer(1, "--policy", "opensafely", "--ledger", "elsewhere.json")
    assert result.exit_code == FOREIGN
    assert "was made for another minimum count or rounding" in result.output


def test_a_silo_answers_only_the_study_it_agreed_to(desk):
    coordinate()
    other = make_study(desk.study.table_schema, desk.study.silos, seed=99)
    write_study(other, "agreed.toml")
    result = answer(1, "--study", "agreed.toml")
    assert result.exit_code == FOREIGN
    assert "is for a different study from agreed.toml" in result.output
    result = run(*ASKED, "--study", "study.toml")
    assert result.exit_code == 0
    assert "about to follow" not in result.output


ASKED = ["answer", "exchange", "--silo", "silo 1", "--data", "site1/table.csv"]


def untouched(folder):
    """Tell whether nothing was answered or kept."""
    return not [*folder.glob("exchange/answers/*"), *folder.glob("site1/silomix-store")]


def test_off_a_terminal_a_study_needs_a_word(desk, tmp_path):
    titled = desk.study.model_copy(update={"title": "All hearts\n\u202eof the north"})
    write_study(titled, "study.toml")
    coordinate()
    result = run(*ASKED)
    assert result.exit_code == USAGE
    for told in (
        "  title: All hearts\\n\\u202eof the north\n",
        f"  digest: {digest(desk.study)}\n",
        "  silos: silo 1, silo 2\n",
        "  variables: x1, x2, x5\n",
        "  questions: at most 2.",
        "    - a release: the size and the profile of each of its clusters\n",
        "--yes",
    ):
        assert told in result.stderr
    assert result.stdout == ""
    assert untouched(tmp_path)
    result = run(*ASKED, "--yes", "--json")
    assert result.exit_code == 0
    assert "is about to take part in the study of exchange" in result.stderr
    assert json.loads(result.stdout)["study"] == digest(desk.study)


@pytest.mark.parametrize(
    ("typed", "code"), [("y\n", 0), ("\n", REFUSED), ("", REFUSED)], ids=["yes", "no", "end"]
)
def test_on_a_terminal_somebody_is_asked(desk, tmp_path, monkeypatch, typed, code):
    coordinate()
    monkeypatch.setattr("silomix.cli.exchange._at_a_terminal", lambda: True)
    result = CliRunner().invoke(cli.app, ASKED, input=typed)
    assert result.exit_code == code, result.output
    assert "Take part as 'silo 1'? [y/N]" in result.stderr
    assert untouched(tmp_path) == bool(code)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are POSIX's")
def test_a_pipe_is_not_waited_for(desk, tmp_path):
    coordinate()
    os.mkfifo(tmp_path / "pipe.toml")
    with time_limit(60):  # it waited for ever
        result = run(*ASKED, "--study", "study.toml", "--policy", "pipe.toml")
    assert result.exit_code == SETTING
    assert "pipe.toml cannot be read" in result.stderr
    assert untouched(tmp_path)


def test_what_is_carried_away_holds_neither_table_nor_store(desk, tmp_path):
    coordinate()
    (tmp_path / "exchange" / "table.csv").write_bytes(Path("site1/table.csv").read_bytes())
    inside = [*ASKED[:-1], "exchange/table.csv", "--yes"]
    outside = ["coordinate", "study.toml", "--exchange", "exchange", "--out", "exchange/results"]
    (tmp_path / "link").symlink_to(tmp_path / "exchange")
    by_link = [*ASKED, "--yes", "--store", "link/mine"]
    by_way = [*ASKED, "--yes", "--store", "exchange/../exchange/mine"]
    stores = [*ASKED, "--yes", "--store", "exchange/mine"]
    for line in (stores, by_link, by_way, inside, outside):
        result = run(*line)
        assert result.exit_code == SETTING
        assert "is inside the exchange" in result.output


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        ({"--silo": "silo 9"}, FOREIGN, "has no silo 'silo 9'"),
        ({"--data": "nowhere.csv"}, WRONG, "no such file"),
        ({"--policy": "defualt"}, SETTING, "did you mean 'default'"),
    ],
    ids=str,
)
def test_a_wrong_answer_command_is_explained(options, code, told, desk):
    coordinate()
    given = {"--silo": "silo 1", "--data": "site1/table.csv", "--study": "study.toml"} | options
    result = run("answer", "exchange", *(part for pair in given.items() for part in pair))
    assert result.exit_code == code, result.output
    assert told in result.output


def test_what_was_changed_or_is_no_exchange_is_refused(desk, tmp_path):
    result = answer(1)
    assert result.exit_code == FOREIGN
    assert "give the folder that the coordinator made" in result.output
    coordinate()
    answer(1)
    next(tmp_path.glob("exchange/answers/01-silo-1/*/profile.csv")).write_text("x\n")
    result = coordinate()
    assert result.exit_code == FOREIGN
    assert "profile.csv" in result.output and "Bring it from 'silo 1'" in result.output
