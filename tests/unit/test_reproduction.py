"""Scripts of the reproduction: tiny runs that resume, and give the same numbers twice."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import silomix
from silomix.metrics import coverage, relative_bias

SCRIPTS = Path(__file__).parents[2] / "reproduction"
TINY = {
    "study": "--cells=nested/easy --iterations=200 --rows=200 --methods={}",
    "matching": "--cells=non-nested/easy --iterations=200 --rows=100",
    "pairing": "--cells=nested/easy --rows=200",
    "fractionation": "--iterations=100 --rows=400 --shards=2",
    "shards": "--iterations=100 --rows=200 --shards=2",
    "shares": "--iterations=100 --rows=100 --shares=0.2",
}
LINES = {"study": 5, "matching": 8, "pairing": 4, "fractionation": 4, "shards": 6, "shares": 6}
"""Lines of one data set, by script."""
SOME_METHODS = "no-polish,product,paper,fedmerdel,fed-kmodes"
QUICK = ("study", "matching", "pairing")
SLOW = ("fractionation", "shards", "shares")
every_script = pytest.mark.parametrize(
    "name", [*QUICK, *[pytest.param(name, marks=pytest.mark.slow) for name in SLOW]]
)


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))


def load(name):
    __import__(name)
    return sys.modules[name]


def run(name, folder, methods=SOME_METHODS):
    words = [word.replace("/", " ").format(methods) for word in TINY[name].split()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load("study"), "warm_up", None)
        load(name).main([*words, "--datasets=1", "--jobs=1", f"--results={folder}"])
    return pd.read_csv(folder / f"{name}.csv")


def without_times(lines):
    return lines[[column for column in lines.columns if "seconds" not in column]]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Tiny runs of scripts, made once: a function that returns their folder."""
    folder = tmp_path_factory.mktemp("results")

    def made(*names):
        for name in names:
            if not (folder / f"{name}.csv").exists():
                run(name, folder)
        return folder

    return made


@every_script
def test_a_run_writes_every_line_and_is_not_repeated(name, results):
    path = results(name) / f"{name}.csv"
    before = path.read_bytes()
    assert len(run(name, path.parent)) == LINES[name]
    assert path.read_bytes() == before


@every_script
def test_a_stopped_run_goes_on_and_gives_the_same_numbers(name, results, tmp_path):
    path = results(name) / f"{name}.csv"
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = lines[: len(lines) // 2]
    cut = lines[len(kept)][: len(lines[len(kept)]) // 2]
    (tmp_path / f"{name}.csv").write_text("".join([header, *kept, cut]), encoding="utf-8")
    again = run(name, tmp_path)
    pd.testing.assert_frame_equal(without_times(again), without_times(pd.read_csv(path)))


@pytest.mark.slow
def test_every_method_runs(tmp_path):
    assert list(run("study", tmp_path, "")["method"]) == list(load("study").METHODS)


@pytest.mark.parametrize("name", ["cells", "strategies", "solvers"])
def test_results_that_are_there_have_the_columns_of_their_script(name):
    lines = pd.read_csv(SCRIPTS / "results" / f"{name}.csv", nrows=1)
    assert list(lines.columns) == load(name).COLUMNS


def test_shared_sampling_changes_nothing_and_counts_the_time(seed):
    study = load("study")
    case, names = ("nested", "easy", seed), ("cmc-independent", "product")
    alone = [study.run_group(*case, (name,), 200, 200)[0] for name in names]
    together = study.run_group(*case, names, 200, 200)
    frames = [without_times(pd.DataFrame(lines)) for lines in (alone, together)]
    pd.testing.assert_frame_equal(*frames)
    # what product did not sample again counts as if it had
    assert together[1]["seconds_sample"] > 0.5 * together[0]["seconds_sample"]


def test_a_case_that_fails_is_named_and_the_others_go_on(tmp_path, capsys):
    running = load("running")

    def invert(value):
        return [{"value": value, "inverse": 1 / value}]

    path, columns = tmp_path / "inverse.csv", ["value", "inverse"]
    with pytest.raises(SystemExit, match="1 of 3 runs failed; start again to try them again"):
        running.run_cases(path, columns, invert, [(2,), (0,), (4,)], 1)
    assert "(0,) failed: ZeroDivisionError: division by zero" in capsys.readouterr().out
    assert running.done_cases(path, columns, ["value"]) == {(2,), (4,)}


def test_every_method_tells_how_long_its_silos_took(results):
    lines = pd.read_csv(results("study") / "study.csv")
    assert (lines["seconds_sample"] > 0).all()


def test_no_stage_is_left_out_of_the_times(seed):
    """The seconds of a line are those of all stages that a method told."""
    study = load("study")
    table, truth = silomix.simulate("nested", rows=200, seed=seed)
    known = {word for words in study.STAGES.values() for word in words}
    common = {"iterations": 200, "seed": seed, "threads": 1}
    for name in ("default", "paper", "cmc-covariance", "block-gibbs", "fedmerdel", "fed-kmodes"):
        method = study.METHODS[name]
        told = load("judging").quietly(lambda m=method: m(table, len(truth.weights), common))[1]
        assert set(told) <= known, name


def test_a_run_of_another_size_stays_out_of_the_results(monkeypatch, tmp_path):
    monkeypatch.setattr(load("running"), "RESULTS", tmp_path)
    for words, message in (
        (["--rows=200"], "--rows 200: the lines in .* are of 4000; give another folder"),
        (["--iterations=10"], "--iterations 10: the lines in .* are of 50000"),
    ):
        with pytest.raises(SystemExit, match=message):
            load("study").main([*words, "--datasets=0", f"--results={tmp_path}"])


def test_judging_follows_the_conventions_of_the_paper(seed):
    judging = load("judging")
    table, truth = silomix.simulate("homogeneous", rows=200, seed=seed)
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(40 * truth.weights, 400)
    probabilities = np.clip(truth.probabilities * rng.uniform(0.8, 1.3, (400, 1, 1)), 0, 1)
    # clusters 3 and 4 were found as one, under another number
    order = np.array([2, 0, 1, 3, 3])
    found = judging.Found(
        order[truth.labels], weights[:, [1, 2, 0, 3]], probabilities[:, [1, 2, 0, 3]], 4
    )
    line = judging.judge(found, table, truth)
    assert line["planted"] == 5 and line["clusters"] == 4
    lost = 3 if np.sum(truth.labels == 3) < np.sum(truth.labels == 4) else 4
    assert line[f"pi{lost + 1}_bias"] == "" and line[f"pi{lost + 1}_tails"] == 0
    first = relative_bias(truth.weights[0], weights[:, 0].mean())
    assert line["pi1_bias"] == pytest.approx(float(first), rel=1e-4)
    lower, upper = np.quantile(weights[:, 0], [0.025, 0.975])
    assert line["pi1_tails"] == coverage(truth.weights[0], lower, upper)
    totals = sum(line[f"{band}_total"] for band in judging.BANDS)
    assert totals == truth.probabilities.size
    held = sum(line[f"{band}_biased"] for band in judging.BANDS)
    assert held == truth.probabilities.size - truth.probabilities.shape[1]


def test_a_point_estimate_has_bias_and_no_coverage(seed):
    judging = load("judging")
    table, truth = silomix.simulate("nested", rows=300, seed=seed)
    found = judging.Found(truth.labels, truth.weights[None], truth.probabilities[None], 6)
    line = judging.judge(found, table, truth)
    assert line["ari"] == 1.0 and line["pi1_bias"] == 0.0
    assert line["pi_covered"] == line["p1_tails"] == ""


def test_right_matching():
    rightly_matched = load("judging").rightly_matched
    true = [np.array([0, 0, 1, 1]), np.array([1, 1, 2, 2])]
    local = [np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])]
    groups = [np.array([0, 1]), np.array([1, 2])]
    assert rightly_matched(local, groups, true) == (True, True)
    assert rightly_matched(local, [groups[0], np.array([0, 1])], true) == (False, True)
    # a cluster found in two parts may still be matched rightly, but was not found rightly
    parts = [np.array([0, 1, 2, 2]), local[1]]
    assert rightly_matched(parts, [np.array([0, 0, 1]), groups[1]], true) == (True, False)
    assert rightly_matched(parts, [np.array([0, 3, 1]), groups[1]], true) == (False, False)


def test_the_draw_of_least_binder_loss(seed):
    fractionation = load("fractionation")
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, (20, 12)).astype(np.uint8)
    found = fractionation.least_binder_loss(labels, 3)
    same = labels[:, :, None] == labels[:, None, :]
    losses = np.abs(same - same.mean(axis=0)).sum(axis=(1, 2))
    chosen = np.abs((found[:, None] == found) - same.mean(axis=0)).sum()
    assert chosen == pytest.approx(losses.min(), rel=1e-5)


def test_the_rare_cluster_has_its_share(seed):
    shares = load("shares")
    table, truth = shares.rare_cluster("poor", 0.05, 200, seed)
    rare = truth.labels == shares.RARE
    assert table.loc[rare, "silo"].unique().tolist() == ["silo 1"]
    assert rare.sum() == 10 and table["silo"].value_counts().tolist() == [200] * 4
    assert shares.overlap(truth.labels, rare) == 1.0
    assert shares.overlap(np.zeros(800, dtype=np.int64), rare) == 10 / 800


def test_published_figures_of_all_tables():
    comparing = load("comparing")
    published = pd.read_csv(comparing.PUBLISHED, dtype={"table": str})
    assert published.groupby("table").size().to_dict() == {
        "2": 36, "3": 96, "4": 238, "5": 231, "5.3": 1, "9": 36,
    }  # fmt: skip
    assert not published.duplicated(["table", "design", "separability", "method", "quantity"]).any()
    shares = published[published["quantity"].isin(["right", "ari", "higher_elbo"])]["value"]
    assert shares.between(0, 1).all()


@pytest.mark.parametrize("scripts", [QUICK, pytest.param(tuple(TINY), marks=pytest.mark.slow)])
def test_collected_tables(scripts, results, tmp_path):
    folder = results(*scripts)
    load("collect").main([f"--results={folder}", f"--docs={tmp_path}"])
    pages = {page.stem: page.read_text(encoding="utf-8") for page in tmp_path.glob("tables/*.md")}
    compared = pd.read_csv(folder / "tables" / "table-3.csv")
    line = compared[(compared["cell"] == "nested easy") & (compared["method"] == "VCMC")]
    line = line.set_index("quantity").loc["ari"]
    lines = pd.read_csv(folder / "study.csv").set_index("method")
    assert line["published"] == 0.97
    assert line["difference"] == pytest.approx(lines.loc["paper", "ari"] - 0.97, abs=1e-4)
    assert f"0.97, {lines.loc['paper', 'ari']:.3f}" in pages["table-3"]
    missing = {name for name, text in pages.items() if text.startswith("*Not run yet")}
    assert "inference" in missing and ("shards" in missing) == ("shards" not in scripts)
    images = re.findall(r"!\[.+\]\((.+)\)", "".join(pages.values()))
    # two figures of the study, two of the matchings, none of the pairing, one of each other script
    assert len(images) == len(scripts) + 1
    assert all((tmp_path / image).exists() for image in images)


def test_without_results_every_page_says_so(tmp_path):
    load("collect").main([f"--results={tmp_path / 'none'}", f"--docs={tmp_path}"])
    pages = sorted(tmp_path.glob("tables/*.md"))
    assert all(page.read_text(encoding="utf-8").startswith("*Not run yet") for page in pages)
    made = {page.stem for page in pages}
    text = (SCRIPTS.parent / "docs" / "reproduction.md").read_text(encoding="utf-8")
    wanted = {line.split("tables/")[1][:-3] for line in text.splitlines() if "include}" in line}
    assert wanted <= made


def lines_of(method, covered):
    """Lines of a method on two data sets; of ten values of each parameter so many are covered."""
    line = {"design": "nested", "separability": "poor", "method": method, "planted": 6}
    line |= {"clusters": 6, "ari": 0.8, "best_ari": 0.8, "vi": 0.5, "seconds": 1.0, "bytes": 1000}
    for what in load("judging").BANDS:
        line |= {f"{what}_covered": 0, f"{what}_total": 0}
    for what, inside in zip(load("comparing").PARAMETERS, covered, strict=True):
        line |= {f"{what}_covered": inside, f"{what}_total": 10}
    return [line | {"seed": seed} for seed in (1, 2)]


def test_a_missed_coverage_is_said_to_be_above_or_below():
    own_tables = load("own_tables")
    both = lines_of("default", (10, 7, 9, 9, 9)) + lines_of("pooled", (9, 9, 9, 9, 9))
    study = pd.DataFrame(both)
    page = own_tables.targets(study, load("comparing").summarise(study))
    reached = page[page["target"].str.startswith("coverage")]["reached"].tolist()
    assert reached == ["**no (above)**", "**no (below)**", "yes", "yes", "yes"]
    said = own_tables.missed(page)
    assert said.startswith(f"{len(page) - 2} of {len(page)} targets are reached.")
    assert "+0.100 ± 0.000 | **no (above)** |" in said
    assert "-0.200 ± 0.000 | **no (below)** |" in said


def published(quantity, value, sd=np.nan):
    return pd.Series({"quantity": quantity, "value": value, "sd": sd})


def test_data_sets_that_agree_leave_a_difference_its_error():
    """Eleven data sets of coverage one against a published .97 of a hundred: no finding."""
    error = load("comparing").difference_error
    lines = pd.DataFrame({"p0_total": [50.0] * 11})
    rate = (11 + 97) / 111
    chance = np.sqrt(rate * (1 - rate) * (1 / 11 + 1 / 100))
    assert error(published("pi1_coverage", 0.97), lines, 1.0, 0.0) == pytest.approx(chance)
    assert error(published("right", 0.97), lines, 1.0, 0.0) == pytest.approx(chance)
    inside = error(published("p0_coverage", 0.97), lines, 1.0, 0.0)
    assert inside == pytest.approx(chance / np.sqrt(50))
    # values of a data set that hang together have the error that they show
    assert error(published("p0_coverage", 0.9), lines, 0.9, 0.1) == pytest.approx(
        0.1 * np.sqrt(11) * np.sqrt(1 / 11 + 1 / 100)
    )
    spread = np.sqrt(100 * 0.4**2 / 111)
    number = error(published("clusters", 5.2, 0.4), lines, 5.0, 0.0)
    assert number == pytest.approx(spread * np.sqrt(1 / 11 + 1 / 100))
    assert np.isnan(error(published("clusters", 5.2, 0.4), lines[:0], np.nan, np.nan))


def test_a_difference_of_printed_decimals_meets_its_margin():
    agrees = load("comparing").agrees
    assert abs(1.0 - 0.97) > 0.03

    def line(quantity, published, difference, error):
        return pd.Series(
            {"quantity": quantity, "published": published}
            | {"difference": difference, "difference se": error}
        )

    assert agrees(line("ari", 0.97, 1.0 - 0.97, 0.0))
    assert not agrees(line("ari", 0.97, 0.0301, 0.01))
    # relative biases are small themselves: only their rounding is forgiven
    assert agrees(line("p2_bias", 0.029, 0.0005, 0.0)) and agrees(line("plow_bias", -2e7, 4e6, 0))
    assert not agrees(line("p2_bias", 0.029, -0.028, 0.001))


def test_harder_data_sets_fall_out_of_a_difference_to_full_mcmc():
    comparing = load("comparing")
    cell = {"design": "nested", "separability": "poor"}
    hard = [0.5, 0.6, 0.7]
    lines = pd.DataFrame(
        [
            cell | {"seed": seed, "method": method, "ari": ari + gain}
            for seed, ari in enumerate(hard)
            for method, gain in (("paper", 0.05 + seed / 100), ("pooled-paper", 0.0))
        ]
    )
    found = comparing.less_full(lines, "VCMC", "ari").set_index("cell")
    line = found.loc["nested poor"]
    # table 3 has .72 for VCMC and .67 for full MCMC
    assert line["published"] == 0.05
    assert line["difference"] == pytest.approx(0.01)
    spread = np.std([0.05, 0.06, 0.07], ddof=1)
    assert line["difference se"] == pytest.approx(spread * np.sqrt(1 / 3 + 1 / 100))
    assert found.drop(index="nested poor")["ours"].isna().all()


def test_data_sets_beyond_the_hundred_count_in_coverage_alone(results, tmp_path):
    """A data set beyond those that all methods have changes no mean."""
    folder = tmp_path / "results"
    folder.mkdir()
    lines = pd.read_csv(results("study") / "study.csv")
    more = lines.assign(seed=load("study").FIRST_SEED + 100, ari=0.0)
    pd.concat([lines, more]).to_csv(folder / "study.csv", index=False)
    load("collect").main([f"--results={folder}", f"--docs={tmp_path}"])
    summary = pd.read_csv(folder / "tables" / "methods.csv")
    assert (summary["data sets"] == 1).all()
    np.testing.assert_allclose(summary["ARI"], lines["ari"], atol=1e-4)
    assert len(load("comparing").first_hundred(pd.concat([lines, more]))) == len(lines)


def test_the_best_rival_is_found_on_common_data_sets():
    """The rival with the higher mean has it from an easy data set that the defaults lack."""
    lines = [
        ("default", 1, 0.8), ("default", 2, 0.6), ("cmc-independent", 1, 0.75),
        ("cmc-independent", 2, 0.59), ("product", 1, 0.7), ("product", 3, 0.99),
    ]  # fmt: skip
    study = pd.DataFrame(lines, columns=["method", "seed", "ari"])
    study = study.assign(design="nested", separability="easy")
    ((cell, best, value, _),) = load("comparing").against_rivals(study)
    assert (cell, best) == ("nested easy", "cmc-independent")
    assert value == pytest.approx(0.03)


def test_one_found_cluster_may_serve_two_true_ones():
    pairing = load("pairing")
    true, found = np.array([0, 0, 1, 1, 1, 2]), np.array([1, 1, 1, 1, 0, 2])
    sizes = {"true_clusters": 3, "clusters": 3}
    assert pairing.largest_overlap(true, found, **sizes).tolist() == [1, 1, 2]
    assert pairing.PAIRINGS["one to one"](true, found, **sizes).tolist() == [1, 0, 2]


def test_the_error_of_a_ratio_is_that_of_a_mean_where_totals_are_equal(seed):
    judging = load("judging")
    parts = np.random.default_rng(seed).integers(0, 10, 12).astype(float)
    expected = judging.mean_error(pd.Series(parts / 10))
    assert judging.ratio(parts, np.full(12, 10.0)) == pytest.approx(expected)


def test_a_target_with_one_side_is_just_missed():
    own_tables = load("own_tables")
    slow = pd.DataFrame(lines_of("default", (9, 9, 9, 9, 9))).assign(seconds=20.0)
    page = own_tables.targets(slow, load("comparing").summarise(slow))
    assert dict(zip(page["target"], page["reached"], strict=True))["at most 15 CPU s"] == "**no**"


def test_lists_of_numbers_are_read_as_numbers(capsys):
    parser = load("running").arguments("Some.", datasets=1, shards=(1, 2), shares=(0.5,))
    assert parser.parse_args([]).shards == (1, 2)
    chosen = parser.parse_args(["--shards=4,8", "--shares=0.1,1"])
    assert chosen.shards == (4, 8) and chosen.shares == (0.1, 1.0)
    with pytest.raises(SystemExit):
        parser.parse_args(["--shards=4,many"])
    assert "argument --shards: invalid numbers value: '4,many'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cells=nested hard"], "'nested hard' is no cell; choose from homogeneous easy"),
        (["--methods=best"], "'best' is not known; choose from"),
    ],
)
def test_unknown_words_are_refused(words, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        load("study").main([*words, f"--results={tmp_path}"])


def test_a_file_with_nothing_in_it_is_begun(tmp_path):
    """What a run that was stopped at once leaves behind."""
    running = load("running")
    path = tmp_path / "some.csv"
    path.touch()
    assert running.done_cases(path, ["a"], ["a"]) == set()
    running.run_cases(path, ["a"], lambda value: [{"a": value}], [(1,), (2,)], 1)
    assert path.read_text() == "a\n1\n2\n"
