"""Scripts of the reproduction: tiny runs that resume, and give the same numbers twice."""

from __future__ import annotations

import re
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from cases.script_cases import ROOT
from scipy.stats import binom

import silomix
from silomix.model.metrics import coverage, relative_bias

pytestmark = pytest.mark.slow
SCRIPTS = ROOT / "reproduction"
TINY = {
    "study": "--cells=nested/easy --iterations=200 --rows=200 --methods={}",
    "matching": "--cells=non-nested/easy --iterations=200 --rows=100",
    "pairing": "--cells=nested/easy --rows=200",
    "drift": "--cells=nested/easy --kappas=20 --iterations=200 --rows=200",
    "regimes": "--regimes=ties/of/4 --methods=default,fedmerdel --iterations=100",
    "fractionation": "--iterations=100 --rows=400 --shards=2",
    "shards": "--iterations=100 --rows=200 --shards=2",
    "shares": "--iterations=100 --rows=100 --shares=0.2",
}
LINES = {
    "study": 5, "matching": 8, "pairing": 4, "drift": 5, "regimes": 2,
    "fractionation": 4, "shards": 6, "shares": 6,
}  # fmt: skip
"""Lines of one data set, by script."""
SOME_METHODS = "no-polish,product,paper,fedmerdel,fed-kmodes"
QUICK = ("study", "matching", "pairing")
APART = ("drift", "regimes")
"""Scripts whose results are on no page of tables yet."""
SLOW = ("fractionation", "shards", "shares")
every_script = pytest.mark.parametrize("name", [*QUICK, *APART, *SLOW])


@pytest.fixture(autouse=True)
def scripts_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))


def load(name):
    return import_module(name)


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


def test_best_labels_follow_the_silos_own_profiles_and_skip_missing_cells(seed):
    rng = np.random.default_rng(seed)
    table, truth = silomix.simulate("nested", rows=60, seed=seed, drift=5)
    names = list(table.columns[1:])
    table[names] = table[names].where(rng.random((60, 10)) < 0.7)
    found = load("judging").best_labels(table, truth)
    for label, (silo, *levels) in zip(found, table.itertuples(index=False), strict=True):
        place, seen = truth.silos.index(silo), set(zip(names, levels, strict=True))
        columns = [column for column, level in enumerate(truth.levels) if level in seen]
        profiles = truth.probabilities_by_silo[place][:, columns]
        assert label == (truth.weights_by_silo[place] * profiles.prod(axis=1)).argmax()


def made_fit(truth, own=None, kappa=None):
    """What a method found that knows the truth, under other numbers, and its intervals."""
    order = np.roll(np.arange(len(truth.weights)), 1)
    number = np.argsort(order)

    def around(values):
        return np.stack([values - 0.01, values, values + 0.01])

    profiles = None
    if own is not None:
        # (draw, silo, cluster, level), the silos in another order
        profiles = SimpleNamespace(probabilities=around(own[::-1][:, order]), kappa=kappa)
    return SimpleNamespace(
        labels=number[truth.labels],
        weights=around(truth.weights[order]),
        probabilities=around(truth.probabilities[order]),
        n_clusters=len(order),
        silo_profiles=profiles,
        silos=truth.silos[::-1],
    )


def test_shared_and_own_profiles_are_held_to_their_own_truths(seed):
    judging = load("judging")
    table, truth = silomix.simulate("nested", rows=400, seed=seed, drift=20)
    best = judging.best_labels(table, truth)
    kappa = np.full((4, 10), np.inf)
    kappa[:3, :2], kappa[0, 2] = 20.0, 15.0
    true = np.where(np.arange(10) < 2, 20.0, np.inf)
    fit = made_fit(truth, truth.probabilities_by_silo, kappa)
    line = judging.judge_fit(fit, truth, best, true)
    assert line["planted"] == line["clusters"] == 6 and line["right"] == 1 and line["ari"] == 1
    for what in ("m", "p", "pi"):
        assert line[f"{what}_covered"] == line[f"{what}_total"] > 0
    present = truth.weights_by_silo > 0
    inner = judging.inner(truth.probabilities_by_silo)
    assert line["p_total"] == inner[present].sum()
    assert line["kappa_hat"] == np.inf and line["kappa_drifting"] == 20
    assert (line["infinite"], line["infinite_drifting"]) == (8, 0)
    assert line["at_infinity"] == pytest.approx((7 + 0.75 + 2 * 0.25) / 10)
    alike = judging.judge_fit(made_fit(truth), truth, best)
    assert alike["m_covered"] == alike["m_total"]
    assert alike["p_covered"] < 0.5 * alike["p_total"]
    assert alike["kappa_hat"] == alike["level"] == ""


def test_trust_is_counted_among_right_and_wrong_fits():
    right, ari, trusted = [1, 1, 1, 0, 1], [0.90, 0.90, 0.70, 0.90, 0.9], [1, 0, 0, 1, 1]
    lines = pd.DataFrame({"right": right, "ari": ari, "trusted": trusted})
    lines = lines.assign(method=["default"] * 4 + ["none"], best_ari=0.92)
    found = load("drift").trust_by_quality(lines).set_index("fits")
    assert found["number"].tolist() == [2, 2]
    assert found["trusted"].tolist() == [1, 1]
    assert (found["from"] < 0.5).all() and (found["to"] > 0.5).all()


def test_tables_of_regimes_are_what_their_truth_says(seed):
    for name in load("regimes").REGIMES:
        check_regime(name, seed)


def check_regime(name, seed):
    table, truth, best = load("regimes").regime(name, seed)
    assert table.equals(load("regimes").regime(name, seed)[0])
    codes, silo = load("judging").coded(table, truth)
    assert len(table) == len(truth.labels) == len(best)
    assert (truth.weights_by_silo[silo, truth.labels] > 0).all()
    assert len(np.unique(truth.labels)) == len(truth.weights)
    # shares of levels, cluster by cluster, are within five of their standard errors
    for cluster in range(len(truth.weights)):
        rows = truth.labels == cluster
        by_silo = np.bincount(silo[rows], minlength=len(truth.silos)) / rows.sum()
        expected = by_silo @ truth.probabilities_by_silo[:, cluster]
        cells = zip(codes[rows].T, load("judging").level_counts(truth), strict=True)
        counts = [np.bincount(column, minlength=size + 1)[:size] for column, size in cells]
        totals = np.repeat([c.sum() for c in counts], [len(c) for c in counts])
        error = np.sqrt(np.maximum(expected * (1 - expected), 0.01) / totals)
        assert (np.abs(np.concatenate(counts) / totals - expected) < 5 * error).all(), name


def test_regimes_have_the_clusters_that_their_names_promise(seed):
    regime = load("regimes").regime
    shared = {
        name: (regime(name, seed)[1].weights_by_silo > 0).sum(axis=0).tolist()
        for name in ("one shared of four", "none shared of four", "4 of 15 clusters")
    }
    assert sorted(shared["one shared of four"]) == [1] * 6 + [2]
    assert shared["none shared of four"] == [1] * 8
    assert min(shared["4 of 15 clusters"]) >= 2
    table, truth, _ = regime("40 noise variables", seed)
    assert table.shape[1] == 51
    assert (np.ptp(truth.probabilities[:, 26:], axis=0) == 0).all()
    assert regime("30 % missing", seed)[0].iloc[:, 1:].isna().mean().mean() == pytest.approx(
        0.3, abs=0.02
    )
    rare, truth, _ = regime("40 rows in one silo", seed)
    assert rare.loc[truth.labels == 4, "silo"].tolist() == ["silo 1"] * 40
    assert (load("regimes").regime("null", seed)[1].labels == 0).all()


def test_dependent_variables_are_seen_by_their_best_labels(seed):
    """Labels that know of the pairs are better than those that take variables for independent."""
    table, truth, best = load("regimes").regime("dependent pairs", seed)
    blind = load("judging").best_labels(table, truth)
    assert (best == truth.labels).mean() > (blind == truth.labels).mean()
    assert (table["x1"] == table["x2"]).mean() > 0.5


def test_real_tables_with_silos_are_found_and_cut_into_levels(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"test": rng.choice(["low", "high", ""], 60)})
    rows = rows.assign(age=rng.integers(20, 80, 60), visits=np.maximum(np.arange(60) - 46, 0))
    rows = rows.assign(silo=rng.choice(["n", "s"], 60), label=rng.choice(["ill", "well"], 60))
    for name in ("clinic", "heart_disease_mixed", "heart_disease_4sites"):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    rows.drop(columns="silo").to_csv(tmp_path / "alone.csv", index=False)
    real = load("real")
    found = real.tables_with_silos(tmp_path)
    assert list(found) == ["clinic", "heart_disease_4sites"]
    table, label = real.read_table(found["clinic"])
    assert list(table.columns) == ["test", "age", "visits", "silo"]
    assert table["test"].isna().sum() == (rows["test"] == "").sum()
    assert table["age"].nunique() == 4 and table["visits"].nunique() == 2
    assert label.tolist() == rows["label"].tolist()
    monkeypatch.setenv("SILOMIX_DATA", str(tmp_path))
    monkeypatch.setattr(real, "warm_up", None)
    words = ["--tables=clinic", "--methods=fedmerdel,lca", "--datasets=1", "--jobs=1"]
    for _ in range(2):
        real.main([*words, f"--results={tmp_path / 'results'}"])
        lines = pd.read_csv(tmp_path / "results" / "real.csv")
        assert lines["method"].tolist() == ["fedmerdel", "lca"]
        assert list(lines.columns) == real.COLUMNS
    monkeypatch.delenv("SILOMIX_DATA")
    with pytest.raises(SystemExit, match="set SILOMIX_DATA to the folder"):
        real.main([])


def test_stepmix_is_left_out_where_it_is_not_installed(monkeypatch, capsys):
    classes = load("classes")
    monkeypatch.setattr(classes, "find_spec", lambda name: None)
    assert classes.installed(["lca", "stepmix"]) == ["lca"]
    assert "pip install stepmix" in capsys.readouterr().out


@pytest.mark.parametrize("missing", [False, True])
def test_stepmix_finds_the_classes_of_our_own_em(missing):
    pytest.importorskip("stepmix")
    classes = load("classes")
    table, _ = silomix.simulate("homogeneous", rows=300, seed=0)
    if missing:
        table.loc[::7, "x1"] = None
    both = classes.our_classes, classes.stepmix_classes
    ours, theirs = (fit(table, "silo", classes=2, seed=0) for fit in both)
    assert theirs.bic == pytest.approx(ours.bic, rel=1e-8)
    found, expected = (np.sort(fit.probabilities[0], axis=0) for fit in (theirs, ours))
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert theirs.bytes_sent == ours.bytes_sent


def test_published_figures_of_all_tables():
    comparing = load("comparing")
    published = pd.read_csv(comparing.PUBLISHED, dtype={"table": str})
    assert published.groupby("table").size().to_dict() == {
        "2": 36, "3": 96, "4": 238, "5": 231, "5.3": 1, "9": 36,
    }  # fmt: skip
    assert not published.duplicated(["table", "design", "separability", "method", "quantity"]).any()
    shares = published[published["quantity"].isin(["right", "ari", "higher_elbo"])]["value"]
    assert shares.between(0, 1).all()


@pytest.mark.parametrize("scripts", [QUICK, (*QUICK, *SLOW)])
def test_collected_tables(scripts, results, tmp_path):
    folder = results(*scripts)
    load("collect").main([f"--results={folder}", f"--pages={tmp_path}"])
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
    # two figures of the study, two of the matchings, none of the pairing, one of each other script
    assert len(list(tmp_path.glob("images/study-*.svg"))) == len(scripts) + 1


def test_without_results_every_page_says_so(tmp_path):
    load("collect").main([f"--results={tmp_path / 'none'}", f"--pages={tmp_path}"])
    pages = sorted(tmp_path.glob("tables/*.md"))
    assert all(page.read_text(encoding="utf-8").startswith("*Not run yet") for page in pages)
    made = {page.stem for page in pages}
    for page in ("study", "drift"):
        text = (SCRIPTS / f"{page}.md").read_text(encoding="utf-8")
        assert set(re.findall(r"tables/([\w-]+)\.md", text)) <= made


def lines_of(method, covered):
    """Lines of a method on two data sets; of ten values of each parameter so many are covered."""
    line = {"design": "nested", "separability": "poor", "method": method, "planted": 6}
    line |= {"clusters": 6, "ari": 0.8, "best_ari": 0.8, "vi": 0.5, "seconds": 1.0, "bytes": 1000}
    for what in load("judging").BANDS:
        line |= {f"{what}_covered": 0, f"{what}_total": 0}
    for what, inside in zip(load("comparing").PARAMETERS, covered, strict=True):
        line |= {f"{what}_covered": inside, f"{what}_total": 10}
    return [line | {"seed": seed} for seed in (1, 2)]


def test_a_missed_target_is_said_to_be_missed_above_or_below():
    own_tables = load("own_tables")
    both = lines_of("default", (10, 7, 9, 9, 9)) + lines_of("pooled", (9, 9, 9, 9, 9))
    study = pd.DataFrame(both).assign(seconds=20.0)
    page = own_tables.targets(study, load("comparing").summarise(study))
    reached = page[page["target"].str.startswith("coverage")]["reached"].tolist()
    assert reached == ["**no (above)**", "**no (below)**", "yes", "yes", "yes"]
    assert page.set_index("target")["reached"]["at most 15 CPU s"] == "**no**"
    said = own_tables.missed(page)
    assert said.startswith(
        f"{(page['reached'] == 'yes').sum()} of {len(page)} targets are reached."
    )
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
    load("collect").main([f"--results={folder}", f"--pages={tmp_path}"])
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
        ("--cells=nested hard", "'nested hard' is no cell; choose from homogeneous easy"),
        ("--methods=best", "'best' is not known; choose from"),
        ("--rows=200", "--rows 200: the lines in .* are of 4000; give another folder"),
        ("--iterations=10", "--iterations 10: the lines in .* are of 50000"),
    ],
)
def test_unknown_words_and_runs_of_another_size_are_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr(load("running"), "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match=message):
        load("study").main([words, "--datasets=0", f"--results={tmp_path}"])


def test_a_file_with_nothing_in_it_is_begun(tmp_path):
    """What a run that was stopped at once leaves behind."""
    running = load("running")
    path = tmp_path / "some.csv"
    path.touch()
    assert running.done_cases(path, ["a"], ["a"]) == set()
    running.run_cases(path, ["a"], lambda value: [{"a": value}], [(1,), (2,)], 1)
    assert path.read_text() == "a\n1\n2\n"


class TestMembership:
    """The likelihood ratio of whether a person is in a table."""

    @pytest.mark.parametrize("name", ["open", "default", "omop"])
    def test_it_is_one_on_average_without_the_person(self, name):
        membership, size, prevalence = load("membership"), 40, np.array([0.3])
        policy = silomix.study.policy.find_policy(name)
        left = membership.released_as(size, policy)
        chances = binom.pmf(np.arange(size + 1), size, prevalence)
        found = np.zeros(2)
        for released in np.unique(left):
            ratios = membership.log_ratios(size, np.array([released]), prevalence, policy)[0]
            found += chances[left == released].sum() * np.exp(ratios)
        np.testing.assert_allclose(found, 1.0, rtol=1e-6)

    def test_counts_that_leave_alike_are_taken_together(self):
        membership, policy = load("membership"), silomix.study.policy.find_policy("default")
        assert set(membership.released_as(40, policy)[:11]) == {10.0}
        lacking, having = membership.log_ratios(40, np.array([30]), np.array([0.3]), policy)[0]
        assert lacking < 0 < having

    def test_the_area(self):
        area = load("membership").area
        assert area(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 1.0
        assert area(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 0.5
