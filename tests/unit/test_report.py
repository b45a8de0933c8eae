from __future__ import annotations

import base64
import errno
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from silomix.cli.report import report_command
from silomix.errors import FileError, SettingsError
from silomix.posterior import PolishTrace
from silomix.posterior.characterise import Trait
from silomix.posterior.outside import compare_outside
from silomix.report import heat, make_report, write_report
from silomix.report.clusters import pairs_table, splits_table, traits_table
from silomix.report.drawing import line_chart, thin
from silomix.report.drift import drift_section
from silomix.report.heat import embed
from silomix.report.palette import (
    DARK,
    LIGHT,
    STEPS,
    difference_class,
    heat_rules,
    luminance,
    share_class,
)
from silomix.report.records import decimal, percent, probability, signed
from silomix.report.silos import alone_sentences, holders_table
from silomix.report.trust import trust
from silomix.report.words import AGGREGATIONS, MATCHINGS, ORACLES, words
from silomix.study import make_study
from silomix.study.settings import Aggregation, Ball, Divergence, Evidence, Hungarian
from silomix.types import Correspondence, Schema, SiloProfiles, Variable
from unit.posteriors import (
    DOUBTED,
    SCHEMA,
    SILOS,
    make_diagnostics,
    make_posterior,
    with_drift,
)
from unit.report_cases import large_posterior

SECTIONS = (
    "trust",
    "sizes",
    "profiles",
    "traits",
    "silos",
    "drift",
    "weights",
    "number",
    "map",
    "traces",
    "made",
    "sent",
)
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

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open:
            self.inside.setdefault(self.open[-1], []).append(data)

    def attributes(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self):
        skipped = {*self.inside.get("script", []), *self.inside.get("style", [])}
        return " ".join(" ".join(text for text in self.texts if text not in skipped).split())


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


@pytest.fixture
def posterior(rng):
    return make_posterior(rng)


@pytest.fixture
def page(posterior):
    return Page(make_report(posterior))


def test_every_section_is_there_and_linked(page):
    ids = [attributes.get("id") for attributes in page.attributes("section")]
    assert ids == list(SECTIONS)
    assert {f"#{name}" for name in SECTIONS} <= {a["href"] for a in page.attributes("a")}
    titles = {attributes.get("id") for attributes in page.attributes("h2")}
    assert {a["aria-labelledby"] for a in page.attributes("section")} == titles


def test_nothing_points_outside(posterior):
    text = make_report(posterior)
    assert "http:" not in text
    assert "https:" not in text
    page = Page(text)
    for _, attributes in page.elements:
        assert "src" not in attributes
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("href", "#").startswith("#")


def test_the_policy_allows_just_the_style_and_scripts_of_the_page(page):
    policy = next(a["content"] for a in page.attributes("meta") if a.get("http-equiv") is not None)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    scripts = [
        text
        for text in page.inside["script"]
        if "use strict" in text  # the other script element holds data
    ]
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


def test_data_cannot_end_its_element():
    text = embed({"name": "</script><!--&"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"name": "</script><!--&"}


def test_the_same_posterior_makes_the_same_page(posterior):
    assert make_report(posterior) == make_report(posterior)


def test_headings_do_not_skip_a_rank(page):
    ranks = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert ranks[0] == 1
    assert ranks.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(ranks))


def test_every_picture_has_words_and_a_table(page):
    drawn = [a for a in page.attributes("svg") if a.get("aria-hidden") != "true"]
    assert len(drawn) == 3
    assert all(len(a["aria-label"]) > 20 for a in drawn)
    assert len(page.attributes("figcaption")) == len(drawn)
    tags = [tag for tag, _ in page.elements]
    for place in [i for i, tag in enumerate(tags) if tag == "figcaption"]:
        assert tags[place + 1 : place + 5] == ["details", "summary", "div", "table"]


def test_the_verdict_is_the_posterior_s(rng):
    posterior = make_posterior(rng, diagnostics=make_diagnostics(silos={"north": DOUBTED}))
    page = Page(make_report(posterior))
    assert "Do not trust this result yet: the chains of north" in page.text
    classes = {a.get("class") for a in page.attributes("div")}
    assert "verdict distrust" in classes


def test_a_posterior_without_parts_says_what_is_not_known(rng):
    posterior = make_posterior(
        rng,
        correspondence=None,
        silo_weights=None,
        assignment=None,
        diagnostics=make_diagnostics(silos={}, elbo=None, polish=None),
    )
    text = Page(make_report(posterior)).text
    assert "Cannot tell whether to trust it: no run was judged." in text
    assert "There are none: the draws are not weighted means of the silos’." in text
    assert "The silos did not look for clusters of their own" in text
    assert "Whether two clusters may be one, or one two, is not known" in text
    assert "No trace was kept" in text
    assert "expected rows" not in text


def test_one_cluster_has_no_map(rng):
    text = Page(make_report(make_posterior(rng, clusters=1))).text
    assert "it takes at least two clusters that differ, and two variables" in text


def test_a_polish_of_no_check_has_no_table_of_checks(rng):
    polish = PolishTrace({"log_likelihood": np.zeros(1), "movement": np.zeros((0, 3))}, 1, True)
    posterior = make_posterior(rng, diagnostics=make_diagnostics(polish=polish))
    text = Page(make_report(posterior)).text
    assert "Whether the draws were still moving" not in text
    assert "1 exact Gibbs round over the silos" in text


def test_the_heat_map_has_a_line_for_each_level_and_its_numbers(posterior):
    text = make_report(posterior)
    data = json.loads(re.search(r'id="heat-data">(.*?)</script>', text)[1])
    means = posterior.probabilities.mean(axis=0)
    assert text.count("<tr data-i=") == len(SCHEMA.levels)
    np.testing.assert_allclose(np.array(data["mean"]).T / 1e4, means, atol=0.5e-4 + 1e-7)
    assert np.all(np.array(data["lower"]) <= np.array(data["mean"]))
    assert np.all(np.array(data["mean"]) <= np.array(data["upper"]))
    rows = sum(int(sizes.sum()) for sizes in posterior.correspondence.sizes)
    assert abs(sum(data["rows"]) - rows) <= posterior.n_clusters


def test_a_long_schema_shows_the_levels_that_differ_most(posterior, monkeypatch):
    monkeypatch.setattr(heat, "MOST_LINES", 4)
    text = make_report(posterior)
    assert text.count("<tr data-i=") == 4
    assert "Shown are the 4 of 7 levels that differ most between clusters" in Page(text).text


def test_words_are_explained_where_they_are_met(posterior, page):
    study = posterior.study
    told = page.inside["dt"]
    for word in (
        "allocation entropy",
        f"matched by {study.matching.method}",
        f"combined by {study.aggregation.method}",
        f"oracle {study.aggregation.oracle!r}",
        "weight of a silo, λ",
    ):
        assert word in told
    assert all(len(meaning) > 20 for meaning in page.inside["dd"][-len(words(posterior)) :])


def test_every_method_has_its_word():
    fields = Aggregation.model_fields
    assert set(AGGREGATIONS) == set(get_args(fields["method"].annotation))
    assert set(ORACLES) == set(get_args(fields["oracle"].annotation))
    assert set(MATCHINGS) == {kind().method for kind in (Ball, Divergence, Evidence, Hungarian)}


def test_words_are_those_of_the_run(rng):
    study = make_study(SCHEMA, SILOS, seed=1, strategy="exact")
    bare = {"correspondence": None, "silo_weights": None}
    posterior = make_posterior(rng, **bare, diagnostics=make_diagnostics(silos={}, polish=None))
    exact = replace(posterior, study=study)
    assert [word for word, _ in words(exact)] == ["sweep", "component"]


def test_the_strongest_traits_are_shown_and_the_others_folded():
    told = [Trait(f"x{place}", "yes", place, 2.0 - 0.01 * place, 1.0) for place in range(60)]
    table = traits_table([(told, told[:5])], np.full((1, 60), 0.5), 100)
    high, low = table.rows[0][1:3]
    assert [line.split()[0] for line in high.text.splitlines()] == ["x0", "x1", "x2", "x3", "x4"]
    assert high.folded[0].startswith("x5 = yes")
    assert high.folded[-1] == "and 10 others"
    assert high.more == "55 more"
    assert len(high.folded) == 46
    assert low.folded == ()


def test_the_map_names_its_clusters_above_all_discs(page):
    kinds = [attributes.get("class") for tag, attributes in page.elements if tag != "svg"]
    drawn = [kind for kind in kinds if kind in {"disc", "doubt", "disc-name"}]
    assert drawn == ["disc"] * 3 + ["doubt"] * 3 + ["disc-name"] * 3


def test_a_share_that_is_next_to_nothing_is_told_as_such(posterior):
    shares = posterior.weights_by_silo.copy()
    shares[:, 0, 0] = 1e-4
    table = holders_table(replace(posterior, weights_by_silo=shares))
    assert table.rows[0][1].text == "<0.1%"


class TestDrift:
    def test_a_line_for_each_variable(self, posterior, rng):
        drifting = with_drift(posterior, rng)
        section = drift_section(drifting)
        lines = [[cell.text for cell in row[:4]] for row in section.variables.rows]
        assert lines == [
            ["smoker", "0.100", "20.4", "0.0 to 20.4"],
            ["sex", "< 0.02", "3.5", "3.5 to 3.5"],
            ["stage", "> 0.98", "0.0", "0.0 to 0.0"],
        ]
        assert [row[2].note for row in section.variables.rows] == ["κ 5", "κ 200", "κ ∞"]
        text = Page(make_report(drifting)).text
        assert "In which variables do the silos differ?" in text
        assert all(sentence in text for sentence in section.sentences)
        assert "drift, κ" in text

    def test_the_largest_differences_are_those_of_the_means(self, posterior, rng):
        drifting = with_drift(posterior, rng, kappa=(5.0, 2.0, 9.0))
        table = drift_section(drifting).differences
        means = drifting.silo_profiles.probabilities.mean(axis=0, dtype=np.float64)
        largest = drifting.drift().sort_values("difference").iloc[-1]
        first = [cell.text for cell in table.rows[0]]
        assert first[0] == f"{largest['variable']} = {largest['level_name']}"
        assert first[1] == str(largest["cluster"])
        assert first[2] == f"{percent(largest['highest'])} in {largest['highest_silo']}"
        assert first[3] == f"{percent(largest['lowest'])} in {largest['lowest_silo']}"
        assert first[4] == f"{100 * largest['difference']:.1f}"
        # one line for each variable and cluster, as far as they are worth one
        gaps = np.abs(means[0] - means[1])
        worth = [
            gaps[:, part].max(axis=1) >= 0.005 for part in (slice(2), slice(2, 5), slice(5, 7))
        ]
        assert len(table.rows) == min(np.sum(worth), 10)
        shown = [float(row[4].text) for row in table.rows]
        assert shown == sorted(shown, reverse=True)

    @pytest.mark.parametrize(
        ("same", "expected"),
        [
            (
                [0.9, 0.6, 1.0],
                [
                    (
                        "The silos are probably alike in every variable: a cluster has the same "
                        "profile in all of them. The least sure is stage, with a probability of "
                        "0.60."
                    )
                ],
            ),
            (
                [0.0, 0.12, 0.3],
                [
                    (
                        "The silos differ in 1 of 3 variables, with a probability of at least 95% "
                        "each: smoker."
                    ),
                    "The silos probably differ in 1 variable: stage.",
                    "Nothing shows clearly that they differ in 1 other variable.",
                ],
            ),
            (
                [0.8, 0.3, 0.4],
                [
                    (
                        "No variable shows clearly that the silos differ: the probability that "
                        "they are alike in it is at least 0.30 (stage), and was 0.50 before the "
                        "data."
                    )
                ],
            ),
        ],
    )
    def test_sentences(self, posterior, rng, same, expected):
        own = with_drift(posterior, rng).silo_profiles
        kappa = np.where(np.arange(50)[:, None] < 50 * np.array(same), np.inf, 20.0)
        section = drift_section(replace(posterior, silo_profiles=replace(own, kappa=kappa)))
        assert list(section.sentences) == expected

    def test_silos_that_are_the_same(self, posterior, rng):
        alike = with_drift(posterior, rng, kappa=(np.inf,) * 3)
        text = Page(make_report(alike)).text
        assert "The silos are probably alike in every variable" in text
        assert "No two silos differ by as much as half a percentage point" in text

    @pytest.mark.parametrize(
        ("kappa", "told"),
        [
            ((50.0, 50.0, 50.0), "How much the silos differ was estimated once, by the matching"),
            ((np.inf,) * 3, "As far as the matching tells, the silos are alike in every variable"),
        ],
    )
    def test_point_values(self, posterior, rng, kappa, told):
        drifting = with_drift(posterior, rng, kappa=kappa, point=True)
        text = Page(make_report(drifting)).text
        assert told in text
        assert "is the posterior probability that the spread is zero" not in text
        assert {row[1].text for row in drift_section(drifting).variables.rows} == {"–"}

    def test_what_was_not_learned_is_said(self, posterior):
        study = make_study(SCHEMA, SILOS, drift="none")
        text = Page(make_report(replace(posterior, study=study))).text
        assert "This is not known: its study says drift = 'none'" in text

    def test_a_single_silo_has_no_section(self, posterior):
        provenance = replace(posterior.provenance, silos=("north",))
        alone = replace(
            posterior,
            provenance=provenance,
            correspondence=None,
            assignment=None,
            silo_weights=None,
            weights_by_silo=posterior.weights_by_silo[:, :1],
        )
        page = Page(make_report(alone))
        assert "drift" not in [attributes.get("id") for attributes in page.attributes("section")]

    def test_many_variables_are_counted(self, rng):
        schema = Schema(tuple(Variable(f"x{q}", ("no", "yes")) for q in range(20)))
        many = make_posterior(rng, schema=schema)
        own = SiloProfiles(np.full((50, 20), 9.0), np.repeat(many.probabilities[:, None], 2, 1))
        (sentence,) = drift_section(replace(many, silo_profiles=own)).sentences
        assert sentence.endswith("x0, x1, x2, x3, x4, x5 and 14 more.")


class TestAlike:
    def match(self, confidence):
        return Correspondence(
            silos=SILOS,
            groups=(np.array([0, 1]), np.array([0, 2])),
            sizes=(np.array([500, 100]), np.array([400, 50])),
            method="evidence",
            confidence=confidence,
        )

    def made(self, posterior, shared=0.0, confidence=True, **settings):
        """Cluster 1 in the north, cluster 2 in the south; how sure they are two is given."""
        sure = np.eye(4)
        sure[0, 2] = sure[2, 0] = 0.99
        sure[1, 3] = sure[3, 1] = shared
        weights = np.array([[0.83, 0.17, 0.0], [0.88, 0.002, 0.118]], dtype=np.float32)
        return replace(
            posterior,
            study=make_study(SCHEMA, SILOS, **settings),
            weights_by_silo=np.tile(weights, (50, 1, 1)),
            correspondence=self.match(sure if confidence else None),
        )

    def test_a_cluster_of_one_silo_is_named_with_its_probability(self, posterior):
        told = alone_sentences(self.made(posterior, shared=0.25))
        sure = (
            "The probability that it is a cluster of its own, and not one found elsewhere that "
            "looks different in this silo, is 0.75."
        )
        assert told == (
            f"Cluster 1 lives in north: 99.1% of its expected rows are there. {sure}",
            f"Cluster 2 lives in south: 100.0% of its expected rows are there. {sure}",
        )
        text = Page(make_report(self.made(posterior, shared=0.25))).text
        assert all(sentence in text for sentence in told)
        assert "is more than 0.99." in alone_sentences(self.made(posterior))[0]

    def test_what_was_not_computed_or_not_allowed_for_is_said(self, posterior):
        told = alone_sentences(self.made(posterior, confidence=False, drift="none"))
        assert "looks different in this silo, was not computed." in told[0]
        assert "takes a cluster's profile to be the same in all silos" in told[-1]
        assert len(told) == 3

    def test_pairs_that_may_be_one_are_named(self, posterior):
        table = pairs_table(self.made(posterior, shared=0.25))
        assert ["1 and 2", "0.25"] in [[cell.text for cell in row[:2]] for row in table.rows]
        text = Page(make_report(self.made(posterior, shared=0.25))).text
        assert "Clusters that may be one" in text

    def test_clusters_that_may_be_two_are_named(self, posterior):
        assert splits_table(self.made(posterior)).rows == ()
        made = self.made(posterior)
        sure = made.correspondence.confidence.copy()
        sure[0, 2] = sure[2, 0] = 0.7
        (row,) = splits_table(replace(made, correspondence=self.match(sure))).rows
        assert [cell.text for cell in row] == ["0", "0.30"]
        text = Page(make_report(made)).text
        assert "No cluster was split in more than 5% of the sampled groupings." in text


def test_more_draws_than_the_setting_has_are_explained(posterior, rng):
    assert posterior.n_draws < posterior.study.kept_draws
    assert "kept_draws, 1,000, is the fewest" not in Page(make_report(posterior)).text
    many = make_posterior(rng, draws=1001)
    assert "kept_draws, 1,000, is the fewest there may be" in Page(make_report(many)).text


def test_a_large_study_makes_a_page_of_moderate_size(rng):
    """27 clusters, 94 two-level variables and 30 silos, as in Fendler et al. (2026), section 6."""
    text = make_report(large_posterior(rng))
    assert text.count("<tr data-i=") == 188
    assert len(text.encode()) < 12_000_000


def test_what_left_each_silo_is_told_in_bytes_and_kinds(page):
    for told in ("1,000", "64 in 2 answers", "1,064", "Release : the silo's own posterior"):
        assert told in page.text


def test_settings_and_digests_are_told(posterior, page):
    for told in (posterior.provenance.study, "matching.method", "evidence", "schedule.chains"):
        assert told in page.text


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_on_every_colour_can_be_read(theme):
    for view, anchors in theme.items():
        rules = re.findall(
            r"background:#(\w{6});color:#(0|f)", heat_rules(anchors, view), re.MULTILINE
        )
        assert len(rules) == STEPS + 1
        for colour, ink in rules:
            light = luminance(np.array([int(colour[i : i + 2], 16) for i in (0, 2, 4)], float))
            bright, dark = (1.0, light) if ink == "f" else (light, 0.0)
            assert (bright + 0.05) / (dark + 0.05) >= 4.5


def test_colours_are_clipped_to_their_scale():
    assert [share_class(share) for share in (-0.1, 0.5, 1.2)] == ["p0", "p10", "p20"]
    assert [difference_class(d, 2.0) for d in (-9.0, 0.0, 1.0)] == ["d0", "d10", "d15"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (percent(0.3214), "32.1%"),
        (percent(0.0004), "0.04%"),
        (percent(float("nan")), "–"),
        (decimal(float("inf")), "–"),
        (signed(-0.5), "−0.50"),
        (probability(1.0, 1000), "> 0.999"),
        (probability(0.0, 50), "< 0.02"),
        (probability(0.953, 1000), "0.953"),
    ],
)
def test_numbers_are_written_for_people(written, expected):
    assert written == expected


def test_large_numbers_have_room_beside_a_line_chart():
    chart = line_chart(np.array([[-4_719_283.0], [-4_715_840.0]]), name="x", along="y")
    assert "−4,719,283" in chart
    ends = [float(x) for x in re.findall(r'<text[^>]* x="([\d.]+)"[^>]*text-anchor="end"', chart)]
    assert min(ends) > 60  # ten figures of six


def test_rhat_of_chains_that_stand_still_apart(posterior):
    diagnostics = posterior.diagnostics
    silo = next(iter(diagnostics.silos))
    for huge in (7e15, np.inf):
        run = replace(diagnostics.silos[silo], rhat={"occupied": huge, "x": 1.0})
        changed = replace(diagnostics, silos={**diagnostics.silos, silo: run})
        table = trust(replace(posterior, diagnostics=changed)).runs
        assert table.rows[0][3].text == "over 100"


def test_a_line_chart_of_a_constant_stays_inside():
    points = re.search(r'points="([^"]*)"', line_chart(np.ones((3, 1)), name="x", along="y"))[1]
    assert all(0 <= float(number) <= 360 for number in re.split("[ ,]", points))


def test_thinning_keeps_both_ends():
    assert thin(3, 10) == [0, 1, 2]
    assert thin(1000, 3)[0] == 0
    assert thin(1000, 3)[-1] == 999


def test_a_report_is_written_whole(posterior, tmp_path):
    path = write_report(posterior, tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == make_report(posterior)


def test_a_full_disk_leaves_the_old_report(posterior, tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(FileError, match=r"report\.html cannot be written: No space left"):
        write_report(posterior, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_that_cannot_be_written_says_so(posterior, tmp_path):
    with pytest.raises(FileError, match=r"report\.html cannot be written: No such file"):
        write_report(posterior, tmp_path / "nowhere" / "report.html")


def run(*args):
    app = typer.Typer()
    app.command()(report_command)
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_the_command_reads_a_folder_or_a_file(posterior, tmp_path):
    posterior.save(tmp_path / "posterior.silomix")
    found = run(tmp_path)
    assert found.exit_code == 0, found.output
    page = tmp_path / "report.html"
    assert found.output.splitlines()[-1] == f"Report: {page}"
    other = run(tmp_path / "posterior.silomix", "--out", tmp_path / "other.html", "--json")
    record = json.loads(other.output)
    assert record["files"] == [str(tmp_path / "other.html")]
    assert record["bytes"] == page.stat().st_size
    assert (tmp_path / "other.html").read_bytes() == page.read_bytes()


def test_the_command_replaces_nothing_unasked(posterior, tmp_path):
    posterior.save(tmp_path / "posterior.silomix")
    (tmp_path / "report.html").write_text("mine")
    found = run(tmp_path)
    assert found.exit_code == 4
    assert (
        f"{tmp_path / 'report.html'} is there already, as fit writes it with its results: open it; "
        "or give --out for another page, or --force to write it again"
    ) in " ".join(found.output.split())
    assert (tmp_path / "report.html").read_text() == "mine"
    assert run(tmp_path, "--force").exit_code == 0


def test_the_command_says_what_a_folder_lacks(tmp_path):
    found = run(tmp_path)
    assert found.exit_code == 5
    assert "has no posterior.silomix; give a folder that `silomix fit --out` wrote" in " ".join(
        found.output.split()
    )


def test_every_silo_has_its_line(page):
    for name in SILOS:
        assert name in page.text


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


def test_without_outside_variables_there_is_no_section(posterior):
    text = make_report(posterior)
    assert "Outside variables" not in text
    assert "5. Which silos hold which cluster" in text


def test_outside_variables_have_a_section_and_a_table_each(posterior, rows):
    labels = np.where(np.arange(40) < 20, 0, 1)
    found = compare_outside(posterior, rows, ["age", "region"], method="labels", labels=labels)
    text = make_report(posterior, outside=found)
    page = Page(text)
    ids = [attributes["id"] for attributes in page.attributes("section")]
    assert ids == [*SECTIONS[:4], "outside", *SECTIONS[4:]]
    assert {a["aria-labelledby"] for a in page.attributes("section")} == {
        a["id"] for a in page.attributes("h2")
    }
    for told in (
        "5. Outside variables",
        "6. Which silos hold which cluster",
        "compared with all rows, itself included, as Fendler et al. (2026) do",
        f"at most {found.threshold:.2g}: Bonferroni’s threshold",
        f"in {found.tests} tests at 5%",
        "age; 1 of 40 rows left out without a value",
        ", differs",
        "region; below each share: less the whole, in points, with its 95% interval",
        HOSTILE,
    ):
        assert told in page.text
    assert "<script>alert" not in text
    section = text[text.index('<section id="outside"') : text.index('<section id="silos"')]
    assert section.count("<td>yes</td>") == 2
    assert len(re.findall("<caption>", section)) == 2
    one = found.comparisons[1]
    ends = [f"{100 * end[0]:+.1f}".replace("-", "−") for end in (one.lower, one.upper)]
    assert f"({ends[0]} to {ends[1]})\np " in section


def test_the_section_says_how_memberships_were_averaged(posterior, rows):
    found = compare_outside(posterior, rows, "age", "silo", draws=7)
    text = Page(make_report(posterior, outside=found)).text
    assert "Each cluster is compared with the rest of the rows." in text
    assert "in 7 draws of the posterior, pooled by Rubin’s rules" in text


def test_outside_variables_of_other_clusters_are_refused(posterior, rows, rng):
    found = compare_outside(make_posterior(rng, clusters=4), rows, "age", "silo")
    with pytest.raises(SettingsError, match="outside compares 4 clusters, and the posterior has 3"):
        make_report(posterior, outside=found)


def test_a_posterior_passes_outside_variables_on(posterior, rows, tmp_path):
    found = compare_outside(posterior, rows, "age", "silo")
    page = posterior.report(tmp_path / "report.html", outside=found)
    assert page.read_text(encoding="utf-8") == make_report(posterior, outside=found)


def test_the_command_compares_outside_variables(posterior, rows, tmp_path):
    posterior.save(tmp_path / "posterior.silomix")
    rows.to_csv(tmp_path / "t.csv", index=False)
    asked = ["--table", tmp_path / "t.csv", "--silo", "silo", "--outside", "age, region=levels"]
    told = run(tmp_path, *asked, "--json")
    assert told.exit_code == 0, told.output
    record = json.loads(told.output)
    assert record["files"] == [str(tmp_path / "report.html"), str(tmp_path / "outside.csv")]
    assert record["outside"]["missing"] == {"age": 1, "region": 0}
    lines = pd.read_csv(tmp_path / "outside.csv")
    expected = compare_outside(posterior, rows, ["age", "region"], "silo")
    np.testing.assert_allclose(lines["p_value"], expected.frame()["p_value"], rtol=1e-5)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page == make_report(posterior, outside=expected)
    labels = run(tmp_path, *asked, "--outside-method", "labels", "--force", "--json")
    assert json.loads(labels.output)["outside"]["method"] == "labels"
    plain = run(tmp_path, *asked, "--force").output.splitlines()
    assert plain[-2].startswith("Outside variables: ")
    assert plain[-2].endswith(f": {tmp_path / 'outside.csv'}")
    assert plain[-1] == f"Report: {tmp_path / 'report.html'}"


@pytest.mark.parametrize(
    ("options", "code", "complaint"),
    [
        (["--outside", "age"], 2, "--table and --outside need each other; give both or none"),
        (["--table", "t.csv"], 2, "--table and --outside need each other; give both or none"),
        (["--outside-method", "labels"], 2, "--outside-method needs --outside: say which"),
        (
            ["--table", "t.csv", "--outside", "age", "--silo", "sillo"],
            3,
            "'sillo' is neither a column of the table that names silos nor a silo",
        ),
        (
            ["--table", "t.csv", "--outside", "age", "--outside-method", "soft"],
            4,
            "method is 'soft'; it must be one of ('averaged', 'labels')",
        ),
    ],
)
def test_the_command_refuses(posterior, rows, tmp_path, monkeypatch, options, code, complaint):
    monkeypatch.chdir(tmp_path)
    posterior.save(tmp_path / "posterior.silomix")
    rows.to_csv(tmp_path / "t.csv", index=False)
    found = run(tmp_path, *options)
    assert found.exit_code == code
    assert complaint in " ".join(found.output.replace("│", " ").split())
    assert not (tmp_path / "report.html").exists()
