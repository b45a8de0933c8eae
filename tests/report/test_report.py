from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from cases.cli_cases import run
from cases.posteriors import (
    DOUBTED,
    SCHEMA,
    SILOS,
    TRUSTED,
    make_diagnostics,
    make_posterior,
    numbers_posterior,
    with_drift,
)

from silomix.errors import FileError, SettingsError
from silomix.messages.heat_map import LIGHT
from silomix.model import sentences
from silomix.model.draws import Correspondence
from silomix.model.schema import Schema, Variable
from silomix.posterior.characterise import Contrast
from silomix.posterior.global_posterior import Assignment
from silomix.report import cluster_sections, display, make_report, write_report
from silomix.report.outside_variables import compare_outside, regress_membership
from silomix.report.run_sections import (
    drift_sentences,
    drift_table,
    missing_shares,
    runs_table,
    steps,
)
from silomix.silo.release import NOT_TOLD

SECTIONS = ["trust", "sizes", "profiles", "traits", "silos", "drift"]
SECTIONS += ["weights", "missing", "number", "map", "traces", "made", "sent"]
VOID = {"meta", "input", "link", "br", "img", "hr"}
HOSTILE = "<script>alert(1)</script>\"'&</style></table>"


class Page(HTMLParser):
    """The elements, attributes and texts of a page; refuses elements that do not close."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts, self.inside = [], [], [], {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open:
            self.inside.setdefault(self.open[-1], []).append(data)

    def attributes(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def sections(self):
        return [attributes["id"] for attributes in self.attributes("section")]

    @property
    def text(self):
        skipped = {*self.inside.get("script", []), *self.inside.get("style", [])}
        return " ".join(" ".join(text for text in self.texts if text not in skipped).split())


def texts(table, columns=slice(None)):
    """The texts of a table, line by line."""
    return [[str(cell.text) for cell in row[columns]] for row in table.rows]


@pytest.fixture
def posterior(rng):
    return make_posterior(rng)


@pytest.fixture
def page(posterior):
    return Page(make_report(posterior))


def test_every_section_is_there_and_linked(page):
    assert page.sections == SECTIONS
    assert {f"#{name}" for name in SECTIONS} <= {a["href"] for a in page.attributes("a")}
    titles = {attributes.get("id") for attributes in page.attributes("h2")}
    assert {a["aria-labelledby"] for a in page.attributes("section")} == titles
    ranks = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert (ranks[0], ranks.count(1)) == (1, 1)
    assert all(after - before <= 1 for before, after in pairwise(ranks))
    assert len(page.attributes("caption")) == len(page.attributes("table"))
    assert {a.get("scope") for a in page.attributes("th")} == {"col", "row"}


def test_nothing_points_outside(posterior):
    text = make_report(posterior)
    assert not re.search("https?:", text)
    for _, attributes in Page(text).elements:
        assert not {"src", "style"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "#").startswith("#")


def test_the_policy_allows_just_the_style_and_scripts_of_the_page(page):
    policy = next(a["content"] for a in page.attributes("meta") if a.get("http-equiv") is not None)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    # the other script element holds data
    scripts = [text for text in page.inside["script"] if "use strict" in text]
    assert len(scripts) == 2
    for text in (*scripts, *page.inside["style"]):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.count("sha256-") == 3


def test_names_are_text_wherever_they_stand(rng):
    schema = Schema((Variable(HOSTILE, ("no", HOSTILE)), Variable("b", ("x", "y", "z"))))
    posterior = make_posterior(rng, schema=schema, diagnostics=make_diagnostics(notes=(HOSTILE,)))
    text = make_report(posterior)
    page = Page(text)
    assert len(page.attributes("script")) == 3
    assert HOSTILE in page.text
    assert "<script>alert" not in text
    chart = display.line_chart(np.arange(3.0), name=HOSTILE, along=HOSTILE)
    assert Page(str(chart)).attributes("svg")[0]["aria-label"] == HOSTILE
    assert "<script" not in chart


def test_every_picture_has_words_and_a_table(page):
    drawn = [a for a in page.attributes("svg") if a.get("aria-hidden") != "true"]
    assert len(drawn) == 3
    assert all(len(a["aria-label"]) > 20 for a in drawn)
    assert len(page.attributes("figcaption")) == len(drawn)
    tags = [tag for tag, _ in page.elements]
    for place in [i for i, tag in enumerate(tags) if tag == "figcaption"]:
        assert tags[place + 1 : place + 5] == ["details", "summary", "div", "table"]
    kinds = [attributes.get("class") for tag, attributes in page.elements if tag != "svg"]
    on_map = [kind for kind in kinds if kind in {"disc", "disc-name"}]
    assert on_map == ["disc"] * 3 + ["disc-name"] * 3


def test_every_method_is_explained_and_what_was_sent_is_shown(posterior, page):
    bytes_sent = ("1,000", "64 in 2 answers", "1,064", "Release: the silo's own posterior")
    settings = (posterior.provenance.study, "matching.method", "evidence", "schedule.chains")
    told = [words for _, *both in steps(posterior) for words in both]
    for shown in (*SILOS, *bytes_sent, *settings, *told):
        assert shown in page.text


def test_the_verdict_is_the_posterior_s(rng):
    posterior = make_posterior(rng, diagnostics=make_diagnostics(silos={"north": DOUBTED}))
    page = Page(make_report(posterior))
    assert posterior.diagnostics.causes[0].sentence in page.text
    assert "verdict distrust" in {a.get("class") for a in page.attributes("div")}


def test_a_posterior_without_parts_says_what_is_not_known(rng):
    bare = dict.fromkeys(("correspondence", "silo_weights", "assignment"))
    posterior = make_posterior(
        rng, clusters=1, **bare, diagnostics=make_diagnostics(silos={}, elbo=None, polish=None)
    )
    page = Page(make_report(posterior))
    assert "verdict unknown" in {a.get("class") for a in page.attributes("div")}
    assert {"svg", "figure"} & {tag for tag, _ in page.elements} == {"svg"}  # the bars
    for said in (
        "Cannot tell whether to trust it: no run was judged.",
        "There are none: the draws are not weighted means of the silos’ draws.",
        "The silos did not look for clusters of their own",
        "the probability that a cluster is really two was not computed",
        "it needs at least two clusters that differ, and two variables",
        "No trace was kept",
    ):
        assert said in page.text
    assert "expected rows" not in page.text
    single = replace(
        posterior,
        provenance=replace(posterior.provenance, silos=("north",)),
        weights_by_silo=posterior.weights_by_silo[:, :1],
    )
    assert "drift" not in Page(make_report(single)).sections


def test_the_heat_map_has_a_line_for_each_level_and_its_numbers(posterior, monkeypatch):
    text = make_report(posterior)
    data = json.loads(re.search(r'id="heat-data">(.*?)</script>', text)[1])
    means = posterior.probabilities.mean(axis=0)
    assert text.count("<tr data-i=") == len(SCHEMA.levels)
    np.testing.assert_allclose(np.array(data["mean"]).T / 1e4, means, atol=0.5e-4 + 1e-7)
    assert np.all(np.array(data["lower"]) <= np.array(data["mean"]))
    assert np.all(np.array(data["mean"]) <= np.array(data["upper"]))
    assert abs(sum(data["rows"]) - len(posterior.labels)) <= posterior.n_clusters
    monkeypatch.setattr(cluster_sections, "MOST_LINES", 4)
    text = make_report(posterior)
    assert text.count("<tr data-i=") == 4
    assert "Only the 4 of 7 levels that differ most between clusters" in Page(text).text


def test_the_strongest_traits_are_listed_and_the_others_counted(rng):
    schema = Schema(tuple(Variable(f"x{q}", ("no", "yes")) for q in range(60)))
    many = make_posterior(rng, schema=schema, clusters=1)
    scaled = np.repeat(2.0 - 0.01 * np.arange(60), 2)[None]
    vars(many)["contrasts"] = Contrast(
        None, scaled, None, high=np.ones((1, 120)), low=np.zeros((1, 120))
    )
    (row,) = cluster_sections.traits_table(many).rows
    *listed, last = row[2].text.splitlines()
    assert [line.split()[0] for line in listed] == [f"x{q}" for q in range(10)]
    assert (last, row[3].text) == ("and 50 more", "nothing specific")


def test_what_speaks_for_one_fewer_and_one_more(posterior):
    """Clusters 1 and 2 share no silo; one silo has two parts of cluster 0."""
    local = ["north 0", "north 1", "north 2", "south 0", "south 1"]
    groups = (np.array([0, 0, 1]), np.array([0, 2]))
    sure = np.eye(len(local))
    sure[2, 4] = sure[4, 2] = 0.25
    sure[:2, 3] = sure[3, :2] = 0.75
    sure[0, 1] = sure[1, 0] = 0.75
    sizes = (np.array([10, 10, 5]), np.array([20, 5]))
    match = Correspondence(SILOS, groups, sizes, "evidence", sure)
    found = replace(posterior, correspondence=match)
    fewer, more = list(cluster_sections.number_sentences(found))[-2:]
    assert re.search(r"clusters 1 and 2 .*0\.25", fewer)
    assert re.search(r"cluster 0 .*0\.75.*1 silo ", more)
    first, *others = texts(cluster_sections.pairs_table(found))
    assert (first[0], first[1], first[3]) == ("1 and 2", "0.25", "0")
    assert sorted(line[0] for line in others) == ["0 and 1", "0 and 2"]
    alone = list(cluster_sections.number_sentences(replace(posterior, correspondence=None)))
    assert len(alone) == 3
    assert alone[0] == "3 clusters."


def test_clear_rows_and_near_clusters_are_told(posterior, rng):
    sure = np.array([[0.95, 0.05, 0.0], [0.5, 0.4, 0.1], [0.1, 0.9, 0.0]], dtype=np.float32)
    rows = Assignment(sure.argmax(axis=1), sure, np.array([0, 1, 1]))
    whole, by_cluster = cluster_sections.clear_rows(rows)
    assert whole == pytest.approx(2 / 3)
    np.testing.assert_array_equal(by_cluster, [0.5, 1.0, np.nan])
    draws = posterior.profile_draws.copy()
    draws[:, 2] = draws[:, 0]
    match = replace(posterior.correspondence, confidence=None)
    twins = replace(posterior, profile_draws=draws, correspondence=match)
    notes = [row[0].note for row in cluster_sections.sizes_table(twins).rows]
    assert "2" in notes[0]
    assert "0" in notes[2]
    explained = "names a cluster that may be the same"
    assert explained in make_report(twins)
    assert explained not in make_report(make_posterior(rng, clusters=1))


def test_of_a_run_that_a_policy_keeps_nothing_is_shown(posterior):
    told = {"own": replace(TRUSTED, sweeps=4000), "ruled": NOT_TOLD}
    shown = texts(runs_table(replace(posterior, diagnostics=make_diagnostics(silos=told))))
    assert shown[0] == ["own", "4,000", "0.97", "1.010", "900", "0.2%"]
    assert shown[1][:2] == ["ruled", "–"]


def test_missing_cells_by_variable_and_silo(posterior):
    silos = np.array([0, 0, 0, 0, 1, 1])
    rows = Assignment(np.zeros(6, int), np.ones((6, 3), np.float32), silos)
    counted = replace(rows, missing=np.array([[0, 1, 0], [0, 2, 1]]))
    shares = missing_shares(replace(posterior, assignment=counted))
    assert shares.index.tolist() == ["stage", "sex"]
    np.testing.assert_allclose(shares.loc["stage"], [0.5, 0.25, 1.0])
    assert missing_shares(replace(posterior, assignment=rows)) is None
    page = Page(make_report(replace(posterior, assignment=rows)))
    assert "missing" not in page.sections


def test_many_clusters_stand_by_likeness(rng):
    """Two kinds of clusters, every other one: each kind stands together, in every part."""
    made = make_posterior(rng, clusters=10)
    draws = np.full_like(made.profile_draws, 0.5)
    draws[:, :, :2] = np.where(np.arange(10) % 2, 0.9, 0.1)[:, None] * [1, 0] + [0, 0]
    draws[:, :, 1] = 1 - draws[:, :, 0]
    draws[:, :, 2:5] = 1 / 3
    made = replace(made, profile_draws=draws)
    text = make_report(made)
    data = json.loads(re.search(r'id="heat-data">(.*?)</script>', text)[1])
    order = [int(name) for name in data["names"]]
    assert sorted(order) == list(range(10))
    kinds = [cluster % 2 for cluster in order]
    assert kinds in ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5)
    means = draws.mean(axis=0)[order]
    np.testing.assert_allclose(np.array(data["mean"]).T / 1e4, means, atol=1e-4)


@pytest.mark.parametrize("numbers", [False, True])
def test_a_notebook_shows_the_clusters(rng, numbers):
    made = numbers_posterior(rng) if numbers else make_posterior(rng)
    text = made.with_names({1: HOSTILE})._repr_html_()
    page = Page(text)
    assert made.diagnostics.verdict in page.text
    assert HOSTILE in page.text
    assert "<script>" not in text
    assert len(page.attributes("th")) == 2 + made.n_clusters
    heat = [a["class"] for a in page.attributes("td") if a["class"]]
    assert len(heat) % made.n_clusters == 0
    assert all(re.fullmatch(r"d\d+", kind) for kind in heat)


class TestDrift:
    def test_a_line_for_each_variable(self, posterior, rng):
        drifting = with_drift(posterior, rng)
        table = drift_table(drifting)
        assert texts(table, slice(4)) == [
            ["smoker", "0.100", "20.4", "0.0 to 20.4"],
            ["sex", "< 0.02", "3.5", "3.5 to 3.5"],
            ["stage", "> 0.98", "0.0", "0.0 to 0.0"],
        ]
        assert [row[2].note for row in table.rows] == ["κ 5", "κ 200", "κ ∞"]
        largest = drifting.drift().iloc[0]
        named = f"{largest['level_name']} in cluster {largest['cluster']}: "
        assert str(table.rows[0][5].text).startswith(f"{named}{largest['highest']:.1%} in ")
        assert str(table.rows[2][5].text) == "–"
        text = Page(make_report(drifting)).text
        assert all(sentence in text for sentence in drift_sentences(drifting))


@pytest.mark.parametrize("theme", [LIGHT, display.DARK])
def test_text_on_every_colour_can_be_read(theme):
    """By the relative luminance of WCAG 2.2."""
    for view, anchors in theme.items():
        rules = re.findall(r"background:#(\w{6});color:#(0|f)", display.heat_rules(anchors, view))
        assert len(rules) == display.STEPS + 1
        for colour, ink in rules:
            channels = [value / 255 for value in bytes.fromhex(colour)]
            linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
            light = np.dot(linear, [0.2126, 0.7152, 0.0722])
            bright, dark = (1.0, light) if ink == "f" else (light, 0.0)
            assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_colours_are_clipped_and_numbers_are_written_for_people():
    assert [display.heat_class(share) for share in (-0.1, 0.5, 1.2)] == ["p0", "p10", "p20"]
    assert [display.heat_class(d, "d") for d in (-1.75, 0.5, 0.75)] == ["d0", "d10", "d15"]
    shares = [sentences.percent(share) for share in (0.3214, 0.0004, np.nan)]
    assert shares == ["32.1%", "0.04%", "–"]
    assert [sentences.number(np.inf), sentences.number(-0.5, "+.2f")] == ["–", "−0.50"]
    surest = [sentences.probability(*pair) for pair in ((1.0, 1000), (0.0, 50), (0.953, 1000))]
    assert surest == ["> 0.999", "< 0.02", "0.953"]


def test_a_line_chart_has_room_for_large_numbers_and_a_constant_stays_inside():
    chart = display.line_chart(np.array([-4_719_283.0, -4_715_840.0]), name="x", along="y")
    assert "−4,719,283" in chart
    ends = [float(x) for x in re.findall(r'<text[^>]* x="([\d.]+)"[^>]*text-anchor="end"', chart)]
    assert min(ends) > 60  # ten figures of six
    points = re.search(r'points="([^"]*)"', display.line_chart(np.ones(3), name="x", along="y"))[1]
    assert all(0 <= float(point) <= 360 for point in re.split("[ ,]", points))


def test_a_report_is_written_or_refused(posterior, tmp_path):
    path = tmp_path / "report.html"
    assert write_report(posterior, path) == path
    written, undated = path.read_text(encoding="utf-8"), make_report(posterior)
    (date,) = re.findall(r", (\d{4}-\d\d-\d\d), by silomix", written)
    assert written == make_report(posterior, date=date) != undated
    with pytest.raises(FileError, match="No such file"):
        write_report(posterior, tmp_path / "nowhere" / "report.html")


@pytest.fixture
def saved(posterior, tmp_path):
    posterior.save(tmp_path / "posterior.silomix")
    return tmp_path


def test_the_command_reads_a_folder_or_a_file(saved):
    found, page = run("report", saved), saved / "report.html"
    assert found.exit_code == 0, found.output
    assert found.output.splitlines()[-1] == f"Report: {page}"
    other = run("report", saved / "posterior.silomix", "--out", saved / "other.html", "--json")
    record = json.loads(other.output)
    assert record["files"] == [str(saved / "other.html")]
    assert record["bytes"] == page.stat().st_size
    assert (saved / "other.html").read_bytes() == page.read_bytes()
    assert run("report", saved, "--force").exit_code == 0


@pytest.fixture
def rows(rng):
    """Rows of the posterior's study; in the first half all are old, and one age is missing."""
    table = pd.DataFrame({v.name: rng.choice(v.levels, 40) for v in SCHEMA.variables})
    old = np.arange(40) < 20
    return table.assign(
        silo=rng.choice(SILOS, 40),
        age=np.where(np.arange(40) == 39, np.nan, np.where(old, 90.0, 70.0) + rng.random(40)),
        region=np.where(old, HOSTILE, rng.choice(["north", "west"], 40)),
    )


def test_outside_variables_have_a_section_and_a_table_each(posterior, page, rows):
    assert "outside" not in page.sections
    labels = np.where(np.arange(40) < 20, 0, 1)
    found = compare_outside(posterior, rows, ["age", "region"], method="labels", labels=labels)
    text = make_report(posterior, outside=found)
    page = Page(text)
    assert page.sections == [*SECTIONS[:4], "outside", *SECTIONS[4:]]
    for said in (
        "5. Outside variables",
        "6. Which silos hold which cluster",
        f"at most {found.threshold:.2g}: Bonferroni’s threshold",
        "age; 1 of 40 rows left out",
        HOSTILE,
    ):
        assert said in page.text
    assert "<script>alert" not in text
    age, region = cluster_sections.outside_tables(found)
    assert age.heads[1:3] == ("rows", "mean (95% interval)")
    assert [line[-1].endswith(" *") for line in texts(age)] == [True, True, False, False]
    named = [[cluster, HOSTILE] for cluster in ("0", "1", "2", "all")]
    assert [line[:2] for line in texts(region)[:4]] == named
    one = found.comparisons[1]
    ends = [f"{100 * end[0]:+.1f}".replace("-", "−") for end in (one.lower, one.upper)]
    assert f" ({' to '.join(ends)})" in texts(region)[0][4]
    with pytest.raises(SettingsError, match="outside compares 3 clusters, and the posterior has 4"):
        make_report(make_posterior(np.random.default_rng(0), clusters=4), outside=found)


def test_the_command_compares_outside_variables(posterior, rows, saved):
    rows.to_csv(saved / "t.csv", index=False)
    asked = ["--table", saved / "t.csv", "--silo", "silo", "--outside", "age, region=levels"]
    record = json.loads(run("report", saved, *asked, "--json").output)
    assert record["files"] == [str(saved / "report.html"), str(saved / "outside.csv")]
    assert record["outside"]["missing"] == {"age": 1, "region": 0}
    lines = pd.read_csv(saved / "outside.csv")
    expected = compare_outside(posterior, rows, ["age", "region"], "silo")
    np.testing.assert_allclose(lines["p_value"], expected.frame()["p_value"], rtol=1e-5)
    page = (saved / "report.html").read_text(encoding="utf-8")
    (date,) = re.findall(r", (\d{4}-\d\d-\d\d), by silomix", page)
    assert page == make_report(posterior, outside=expected, date=date)


def test_the_command_names_clusters_and_regresses_membership(posterior, rows, saved):
    rows.to_csv(saved / "t.csv", index=False)
    asked = ["--table", saved / "t.csv", "--covariates", "age", "--name", "0=frail,1=well, so far"]
    record = json.loads(run("report", saved, *asked, "--json").output)
    assert record["files"] == [str(saved / "report.html"), str(saved / "odds.csv")]
    page = (saved / "report.html").read_text(encoding="utf-8")
    assert "0: frail" in page and "1: well, so far" in page
    odds = pd.read_csv(saved / "odds.csv")
    expected = regress_membership(posterior, rows, ["age"])
    np.testing.assert_allclose(odds["odds_ratio"], expected["odds_ratio"], rtol=1e-5)
    assert set(odds["name"].dropna()) == {"well, so far"}
    out = ["--out", saved / "l.csv", "--name", "0=frail"]
    assert "0: frail" in run("assign", saved, saved / "t.csv", *out).output
    assert "frail" in set(pd.read_csv(saved / "l.csv")["name"])


def test_numbers_stay_in_their_line_beside_long_names(posterior):
    named = posterior.with_names({0: "frail and old, with many conditions and long stays " * 2})
    text = display.as_text(display.as_view(cluster_sections.sizes_table(named)))
    (interval,) = cluster_sections.sizes_table(named).rows[0][-2:-1]
    assert any(line.startswith(" 0: ") and interval.text in line for line in text.splitlines())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--outside", "age"], 2),
        (["--table", "t.csv"], 2),
        (["--outside-method", "labels"], 2),
        (["--covariates", "age"], 2),
        (["--name", "frail"], 2),
        (["--name", "9=frail"], 4),
        (["--table", "t.csv", "--outside", "age", "--silo", "sillo"], 3),
        (["--table", "t.csv", "--outside", "age", "--outside-method", "soft"], 4),
        ([], 4),
    ],
)
def test_the_command_refuses(rows, saved, monkeypatch, options, code):
    """Options that do not go together, other names, a page that is there, a folder without one."""
    monkeypatch.chdir(saved)
    rows.to_csv("t.csv", index=False)
    page = saved / "report.html"
    if not options:
        page.write_text("mine")
    assert run("report", saved, *options).exit_code == code
    assert not page.exists() or page.read_text() == "mine"
    (saved / "empty").mkdir()
    assert run("report", saved / "empty").exit_code == 5
