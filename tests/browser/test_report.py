"""The report in a real browser: offline, in both themes, on a phone and on a desk.

Set SILOMIX_CHROMIUM to a Chromium that is not in the usual place.
"""

from __future__ import annotations

import os
import shutil
from importlib.resources import files

import numpy as np
import pandas as pd
import pytest
from cases.posteriors import MIXED, NUMBERS, make_posterior, numbers_posterior, with_drift
from cases.report_cases import large_posterior

from silomix.model.schema import Schema, Variable
from silomix.report import write_report
from silomix.report.outside_variables import compare_outside

CHROMIUM = os.environ.get("SILOMIX_CHROMIUM") or shutil.which("chromium")
if not CHROMIUM:
    pytest.skip("no chromium to open the report in", allow_module_level=True)
driver = pytest.importorskip("playwright.sync_api", reason="no playwright to drive chromium with")

PHONE, DESK = 360, 1400
MOST_BYTES = 6_000_000
HOSTILE = "<img src=x onerror=alert(1)>"
OVER = "document.documentElement.scrollWidth - window.innerWidth"
COLOUR = "getComputedStyle(document.body).backgroundColor"

CONTRASTS = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const c = channels(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const e of document.body.querySelectorAll("*")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.closest("svg, script, .unseen") || !e.checkVisibility()) continue;
    const ink = light(channels(getComputedStyle(e).color));
    const paper = light(behind(e));
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (contrast < 4.5) poor.push(`${e.tagName} ${e.className} ${contrast.toFixed(2)}`);
  }
  return poor;
}"""
"""Texts whose contrast is below 4.5 to 1."""


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """The report of a made-up posterior, one variable with a hostile name, and two outside ones."""
    rng = np.random.default_rng(1)
    variables = [Variable(HOSTILE, ("no", "yes")), Variable("x2", ("low", "middle", "high"))]
    variables += [Variable(f"x{q}", ("no", "yes")) for q in range(3, 9)]
    posterior = with_drift(
        make_posterior(rng, schema=Schema(tuple(variables))), rng, kappa=(5.0, np.inf, *[50.0] * 6)
    )
    labels = np.repeat([0, 1, 2], 40)
    table = pd.DataFrame({v.name: rng.choice(v.levels, 120) for v in variables})
    table = table.assign(age=80 + labels, region=[HOSTILE, "north", "west", "east"] * 30)
    outside = compare_outside(posterior, table, ["age", "region"], method="labels", labels=labels)
    folder = tmp_path_factory.mktemp("report")
    return write_report(posterior, folder / "report.html", outside=outside)


@pytest.fixture(scope="session")
def browser():
    with driver.sync_playwright() as playwright:
        # a container's root user has no sandbox; the page is our own
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def visit(browser, report):
    """Open the report; whatever it says on the console, or asks for, fails the test at its end."""
    contexts, complaints, requests = [], [], []

    def start(width=DESK, theme="light", height=900):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, offline=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(report.as_uri())
        return page

    yield start
    for context in contexts:
        context.close()
    assert complaints == []
    assert set(requests) <= {report.as_uri()}


def open_all(page):
    page.evaluate("for (const e of document.querySelectorAll('details')) e.open = true")


def shown(page):
    """The names of the heat map's lines that can be seen, in order."""
    return page.locator("#heat tbody tr:not([hidden]) th").all_inner_texts()


def column(page, place):
    """The numbers in a column of the heat map, top to bottom."""
    cells = page.locator(f"#heat tbody tr:not([hidden]) > :nth-child({place})").all_inner_texts()
    return np.array([float(text.replace("−", "-")) for text in cells])


@pytest.mark.parametrize("schema", [NUMBERS, MIXED], ids=["numbers", "mixed"])
def test_numbers_fit_a_phone_and_can_be_read(browser, tmp_path, seed, schema):
    made = numbers_posterior(np.random.default_rng(seed), schema, clusters=9, drifts=True)
    written, complaints = write_report(made, tmp_path / "numbers.html"), []
    for theme in ("light", "dark"):
        context = browser.new_context(
            viewport={"width": PHONE, "height": 900}, color_scheme=theme, offline=True
        )
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(written.as_uri())
        assert page.evaluate(OVER) <= 0
        assert page.evaluate(CONTRASTS) == []
        assert page.locator(".curve").first.bounding_box()["height"] > 10
        context.close()
    assert complaints == []


def test_a_large_study_fits_a_phone(browser, tmp_path, seed):
    large = write_report(large_posterior(np.random.default_rng(seed)), tmp_path / "large.html")
    assert large.stat().st_size < MOST_BYTES
    context = browser.new_context(viewport={"width": PHONE, "height": 900}, offline=True)
    page = context.new_page()
    page.goto(large.as_uri())
    assert page.locator("#heat-controls").is_visible()
    assert page.evaluate(OVER) <= 0
    context.close()


def test_the_theme_is_the_reader_s_at_first_and_switches_and_print_is_light(visit):
    page, white = visit(theme="dark"), "rgb(255, 255, 255)"
    assert page.evaluate(COLOUR) != white
    page.get_by_role("button", name="Light theme").click()
    assert page.evaluate(COLOUR) == white
    page.get_by_role("button", name="Dark theme").click()
    assert page.evaluate(COLOUR) != white
    page.emulate_media(media="print")
    assert page.evaluate(COLOUR) == white
    assert not page.locator("#heat-controls").is_visible()


def test_the_heat_map_sorts(visit):
    page = visit()
    head = page.locator("#heat thead th").nth(2)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert np.all(np.diff(column(page, 3)) <= 0)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert np.all(np.diff(column(page, 3)) >= 0)
    before = shown(page)
    page.get_by_role("button", name="variable and level").click()
    assert shown(page) != before
    assert shown(page)[0].startswith(HOSTILE)


def test_the_heat_map_shows_differences(visit):
    page = visit()
    page.get_by_role("radio", name="scaled difference").check()
    assert page.locator("#heat").get_attribute("data-view") == "d"
    values = column(page, 3)
    assert values.min() < 0 < values.max()
    page.locator("#heat thead th").nth(2).get_by_role("button").click()
    assert np.all(np.diff(column(page, 3)) <= 0)


def test_the_heat_map_filters(visit):
    page = visit()
    everything = shown(page)
    page.get_by_label("both levels").check()
    assert len(shown(page)) > len(everything)
    page.get_by_label("both levels").uncheck()
    page.get_by_label("Find").fill("x5")
    assert shown(page) == [name for name in everything if "x5" in name]
    assert page.locator("#heat-count").inner_text().startswith(f"{len(shown(page))} of ")
    page.get_by_label("Find").fill("no such level")
    assert shown(page) == []


def test_a_cell_tells_its_interval_and_count(visit):
    page = visit()
    page.locator("#heat tbody tr:not([hidden]) td").nth(2).hover()
    told = page.locator("#heat-detail").inner_text()
    assert f"Cluster 1, {HOSTILE}" in told
    assert "95% interval" in told
    assert "rows." in told


def test_tables_can_be_taken_away_as_csv(visit):
    page = visit()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download as CSV: Each cluster's share of the rows").click()
    sizes = pd.read_csv(waiting.value.path())
    assert waiting.value.suggested_filename.endswith(".csv")
    # a column for each heading but that of the drawings, and whole numbers as numbers
    assert [str(name)[0] for name in sizes["cluster"]] == ["0", "1", "2"]
    assert sizes["share"].str.endswith("%").all()
    assert pd.api.types.is_numeric_dtype(sizes["expected rows"])
    first = "#heat tbody tr:not([hidden]) th"
    page.evaluate(f"document.querySelector('{first}').textContent = '=1+1'")
    page.get_by_label("Find").fill("1")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download as CSV: Levels down").click()
    levels = pd.read_csv(waiting.value.path())
    assert len(levels) == len(shown(page))
    assert "'=1+1" in levels.iloc[:, 0].tolist()


def test_the_heat_map_is_one_stop_and_arrows_move_in_it(visit):
    page = visit()
    assert page.locator("#heat table [tabindex='0']").count() == 1
    page.get_by_role("button", name="variable and level").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    second = shown(page)[1]
    assert f"Cluster 0, {second}" in page.locator("#heat-detail").inner_text()
    assert page.evaluate("document.activeElement.tagName") == "TD"
    page.keyboard.press("End")
    assert page.evaluate(
        "document.activeElement === document.activeElement.parentNode.lastElementChild"
    )
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.tagName") == "TH"
    assert page.locator("#heat table [tabindex='0']").count() == 1


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_nothing_runs_off_the_side(visit, width):
    page = visit(width)
    assert page.evaluate(OVER) <= 0
    open_all(page)
    page.get_by_role("radio", name="scaled difference").check()
    assert page.evaluate(OVER) <= 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", ["probability", "scaled difference"])
def test_texts_stand_out(visit, theme, view):
    page = visit(theme=theme)
    open_all(page)
    page.get_by_role("radio", name=view).check()
    assert page.evaluate(CONTRASTS) == []
    # the check sees a text that is hard to read
    page.evaluate(f"document.querySelector('h1').style.color = {COLOUR}")
    assert [fault.split()[0] for fault in page.evaluate(CONTRASTS)] == ["H1"]


@pytest.mark.parametrize(("theme", "width"), [("light", DESK), ("dark", PHONE)])
def test_axe_finds_nothing(visit, theme, width):
    page = visit(width, theme)
    open_all(page)
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    assert [fault["id"] for fault in found] == []
    # the check has teeth
    page.evaluate("document.documentElement.removeAttribute('lang')")
    found = page.evaluate("axe.run({runOnly: ['html-has-lang']})")["violations"]
    assert [fault["id"] for fault in found] == ["html-has-lang"]


def test_the_policy_stops_what_would_be_fetched_or_run(browser, report):
    context = browser.new_context(offline=True)
    page = context.new_page()
    complaints, requests, fetched = [], [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    page.on("requestfinished", lambda request: fetched.append(request.url))
    page.goto(report.as_uri())
    injected = (
        "<img src='file:///x.png' onerror='window.ran = 1'><p onclick='window.ran = 1'>go</p>"
    )
    page.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", injected)
    page.locator("body > p").click()
    assert page.evaluate("window.ran === undefined")
    # an attempt is seen, as `visit` needs, though nothing comes of it
    assert requests == [report.as_uri(), "file:///x.png"]
    assert fetched == [report.as_uri()]
    assert any("Content Security Policy" in text for text in complaints)
    context.close()


def test_it_is_readable_without_its_script(browser, report):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("#heat tbody tr").first.is_visible()
    assert not page.locator("#heat-controls").is_visible()
    context.close()
