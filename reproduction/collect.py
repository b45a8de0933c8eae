"""The paper's tables beside ours, from the results so far: as CSV, and as pieces of the docs.

    python reproduction/collect.py

Writes results/tables/*.csv, docs/tables/*.md and docs/images/study-*.svg. What has no results yet
says so; nothing is run here.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import figures
import numpy as np
import pandas as pd
from comparing import (
    MATCHINGS,
    PARAMETERS,
    STUDY_METHODS,
    against_rivals,
    agrees,
    compare,
    gains,
    in_cell,
    measure,
    paired_coverage,
    summarise,
)
from judging import BANDS, mean_error
from running import CELLS, RESULTS, read_lines
from shares import FOUND
from writing import as_markdown, signed, with_error

DOCS = Path(__file__).parents[1] / "docs"
ADDED = {"default": "default", "no-polish": "no polish", "pooled": "pooled, our settings"}
"""Methods without a published figure that stand beside those that have one."""
QUANTITIES = {"seconds": "CPU s", "clusters": "clusters", "ari": "ARI", "vi": "VI"}
BAND_WORDS = {
    "plow": "p < .0001", "p0": "to .1", "p1": "to .5", "p2": "to .9", "p3": "to .9999",
    "phigh": "above",
}  # fmt: skip
PARAMETER_WORDS = {"pi": "π", "p0": "p to .1", "p1": "to .5", "p2": "to .9", "p3": "to .9999"}
PAPER_POOLED_SECONDS = 4338.0


def beside(line, digits=3):
    """Return "published, ours (difference ± error)"."""
    if not np.isfinite(line["ours"]):
        return f"{line['published']:g}, –"
    if abs(line["published"]) >= 1e4:
        return f"{line['published']:.0e}, {line['ours']:.0e}"
    difference = signed(line["difference"], line["difference se"], digits)
    return f"{line['published']:g}, {line['ours']:.{digits}f} ({difference})"


def matching_tables(lines, partition, table):
    """Tables 2 and 9: how often a matching is right, and its agreement with the truth."""
    part = lines[lines["partition"] == partition]
    compared = compare(part, [table], MATCHINGS, column="matching")
    rows = []
    for (cell, method), both in compared.groupby(["cell", "method"], sort=False):
        own = of_cell(part, cell)
        own = own[own["matching"] == MATCHINGS[method]]
        by_quantity = {line["quantity"]: beside(line) for _, line in both.iterrows()}
        rows.append(matching_row(cell, method, own, by_quantity))
    for cell in CELLS:
        own = in_cell(part, *cell)
        own = own[own["matching"] == "evidence"]
        ours = {name: with_error(*measure(own, name)) for name in ("right", "ari")}
        rows.append(matching_row(" ".join(cell), "evidence (ours)", own, ours))
    order = {" ".join(cell): place for place, cell in enumerate(CELLS)}
    page = pd.DataFrame(rows).sort_values("cell", key=lambda c: c.map(order), kind="stable")
    return compared, as_markdown(page)


def matching_row(cell, method, own, values):
    local = own[own["local_right"] == 1]
    return {
        "cell": cell,
        "matching": method,
        "data sets": len(own),
        "right": values["right"],
        "right, of those with the right local numbers": with_error(*measure(local, "right")),
        "ARI": values["ari"],
        "clusters": with_error(*mean_error(own["clusters"]), digits=2),
    }


def of_cell(lines, cell):
    """Return the lines of a cell by its words."""
    return in_cell(lines, *cell.split())


def clustering_table(lines):
    """Table 3: time, clusters, ARI and VI."""
    compared = compare(lines, ["3"], STUDY_METHODS)
    rows = []
    for (cell, quantity), both in compared.groupby(["cell", "quantity"], sort=False):
        row = {"cell": cell, "quantity": QUANTITIES[quantity]}
        row |= {line["method"]: beside(line) for _, line in both.iterrows()}
        part = of_cell(lines, cell)
        for method, words in ADDED.items():
            row[words] = with_error(*measure(part[part["method"] == method], quantity))
        one = part.drop_duplicates("seed")
        row["best possible"] = with_error(*mean_error(one["best_ari"])) if quantity == "ari" else ""
        rows.append(row)
    return compared, as_markdown(pd.DataFrame(rows))


def parameter_table(lines, table, what, names):
    """Tables 4 and 5: relative bias, or coverage, of π by cluster or of p by band."""
    compared = compare(lines, [table], STUDY_METHODS)
    compared = compared[compared["quantity"].str.endswith(what)]
    rows = []
    for cell in map(" ".join, CELLS):
        for method in STUDY_METHODS:
            both = compared[(compared["cell"] == cell) & (compared["method"] == method)]
            if len(both):
                row = {"cell": cell, "method": method} | dict.fromkeys(names.values(), "na")
                for _, line in both.iterrows():
                    row[names[line["quantity"].partition("_")[0]]] = beside(line)
                rows.append(row)
        for method, words in ADDED.items():
            part = of_cell(lines, cell)
            part = part[part["method"] == method]
            values = {names[name]: measure(part, f"{name}_{what}") for name in names}
            shown = {name: with_error(*value) for name, value in values.items()}
            rows.append({"cell": cell, "method": words} | shown)
    return compared, as_markdown(pd.DataFrame(rows))


def methods_table(summary):
    """Every method in every cell: clusters, agreement, cost."""
    rows = [
        {
            "cell": line["cell"],
            "method": line["method"],
            "data sets": line["data sets"],
            "right number": with_error(line["right K"], line["right K se"], 2),
            "clusters": f"{line['K']:.2f}",
            "ARI": with_error(line["ARI"], line["ARI se"]),
            "below best": with_error(line["below best"], line["below best se"]),
            "VI": f"{line['VI']:.3f}",
            "CPU s": f"{line['CPU s']:.2f}",
            "kB out of a silo": f"{line['kB']:,.1f}",
        }
        for _, line in summary.iterrows()
    ]
    return as_markdown(pd.DataFrame(rows))


def gains_table(study):
    """Our defaults' ARI less every other method's, cell by cell; bold beyond two errors."""
    rows = []
    for method, by_cell in gains(study):
        row = {"method": method}
        for cell in map(" ".join, CELLS):
            value, error = by_cell.get(cell, (np.nan, np.nan))
            text = signed(value, error) if np.isfinite(value) else "–"
            row[cell] = f"**{text}**" if abs(value) > 2 * error else text
        rows.append(row)
    return as_markdown(pd.DataFrame(rows))


def coverage_table(summary):
    """Coverage of highest-density intervals of every method in every cell."""
    rows = [
        {"cell": line["cell"], "method": line["method"]}
        | {
            words: with_error(line[what], line[f"{what} se"])
            for what, words in PARAMETER_WORDS.items()
        }
        for _, line in summary.iterrows()
    ]
    return as_markdown(pd.DataFrame(rows))


def reproduced(study, matching):
    """Say where the paper's figures are found again: sentences."""
    said = []
    compared = compare(study, ["3", "4", "5"], STUDY_METHODS)
    coverage = compared["quantity"].str.endswith("coverage")
    for method in ("VCMC", "Full MCMC", "FedMerDel", "Fed K-modes"):
        of_method = compared["method"] == method
        for quantity in ("ari", "vi", "clusters"):
            some = compared[of_method & (compared["quantity"] == quantity)]
            said.append(sentence(f"{method}, {QUANTITIES[quantity]}", some))
        for table, words in (("4", "coverage of π"), ("5", "coverage of p")):
            some = compared[of_method & coverage & (compared["table"] == table)]
            if len(some):
                said.append(sentence(f"{method}, {words}", some, every=False))
    for partition, table in (("estimated", "2"), ("true", "9")):
        part = matching[matching["partition"] == partition]
        some = compare(part, [table], MATCHINGS, column="matching")
        for name in MATCHINGS:
            wanted = (some["method"] == name) & (some["quantity"] == "right")
            title = f"{name} matching right, {partition} local partitions"
            said.append(sentence(title, some[wanted]))
    return "".join(f"- {line}\n" for line in said)


def sentence(title, compared, every=True):
    """Say in how many places a figure is found again, and where it is not."""
    known = compared[compared["ours"].notna() & compared["difference se"].notna()]
    if not len(known):
        return f"**{title}**: not run yet."
    same = known.apply(agrees, axis=1)
    text = f"**{title}**: found again in {same.sum()} of {len(known)} places"
    away = known[~same]
    if len(away) and every:
        places = [
            f"{line['cell']} ({line['published']:g}, ours {line['ours']:.3f})"
            for _, line in away.iterrows()
        ]
        text += f"; not in {', '.join(places)}"
    elif len(away):
        above = (away["difference"] > 0).sum()
        text += f"; above it in {above} and below it in {len(away) - above}"
    return f"{text}."


def targets(study, summary):
    """Hold our defaults to what we want of them: a table."""
    rows = []
    ours = summary[summary["method"] == "default"].set_index("cell")
    for cell, best, value, error in against_rivals(study):
        aim = f"ARI not below the best federated rival ({best}) by two errors"
        rows.append((cell, aim, signed(value, error), not value < -2 * error))
    for cell, line in ours.iterrows():
        least = 0.95 if cell.endswith("easy") else 0.9
        right = line["right K"]
        rows.append((cell, f"right number in at least {least:.0%}", f"{right:.0%}", right >= least))
        gap = line["below best"]
        text = with_error(gap, line["below best se"])
        rows.append((cell, "ARI within .01 of the best possible", text, gap <= 0.01))
        rows.append((cell, "at most 15 CPU s", f"{line['CPU s']:.1f}", line["CPU s"] <= 15))
        for what in PARAMETERS:
            value, error = paired_coverage(of_cell(study, cell), "default", "pooled", what)
            if np.isfinite(value):
                aim = f"coverage of {PARAMETER_WORDS[what]} within .02 of the pooled sampler's"
                rows.append((cell, aim, signed(value, error), abs(value) <= 0.02))
    for _, line in summary[summary["method"] == "pooled-paper"].iterrows():
        limit = PAPER_POOLED_SECONDS / 500
        aim = f"pooled sampler, 50,000 iterations, under {limit:.2f} CPU s"
        rows.append((line["cell"], aim, f"{line['CPU s']:.2f}", line["CPU s"] < limit))
    page = pd.DataFrame(rows, columns=["cell", "target", "ours", "reached"])
    page["reached"] = page["reached"].map({True: "yes", False: "**no**"})
    places = {" ".join(cell): place for place, cell in enumerate(CELLS)}
    return page.sort_values("cell", key=lambda cells: cells.map(places), kind="stable")


def missed(page):
    """Say how many targets were reached: a sentence, and those that were not."""
    away = page[page["reached"] != "yes"]
    text = f"{len(page) - len(away)} of {len(page)} targets are reached.\n"
    return text + (f"\n{as_markdown(away)}" if len(away) else "")


def times(summary):
    """Times of our defaults, FedMerDel and the pooled sampler, and their ratios."""
    by_method = summary.pivot_table(index="cell", columns="method", values="CPU s", sort=False)
    wanted = [name for name in ("default", "fedmerdel", "pooled-paper") if name in by_method]
    page = by_method[wanted].map("{:.2f}".format)
    if {"default", "fedmerdel"} <= set(wanted):
        page["default / fedmerdel"] = (by_method["default"] / by_method["fedmerdel"]).map(
            "{:.1f}".format
        )
    if "pooled-paper" in wanted:
        page["4338 / pooled-paper"] = (PAPER_POOLED_SECONDS / by_method["pooled-paper"]).map(
            "{:.0f}".format
        )
    return as_markdown(page.reset_index())


def inference_table(lines):
    """Inference strategies: 3 starts of up to 1000 steps against 300 starts of 10."""
    published = pd.read_csv(Path(__file__).with_name("published.csv"), dtype={"table": str})
    (theirs,) = published[published["table"] == "5.3"]["value"]
    higher = (lines["difference"] > 0).astype(float)
    row = {
        "data sets": len(lines),
        "300 × 10 has the higher ELBO, published": f"{theirs:.2f}",
        "ours": with_error(*mean_error(higher), digits=2),
        "by at least 0.1": with_error(*mean_error((lines["difference"] >= 0.1) * 1.0), digits=2),
        "lower by at least 0.1": with_error(
            *mean_error((lines["difference"] <= -0.1) * 1.0), digits=2
        ),
        "largest difference": f"{lines['difference'].abs().max():.2f}",
        "CPU s, 300 × 10": f"{lines['few_rounds_seconds'].mean():.1f}",
        "CPU s, 3 × 1000": f"{lines['psgd_seconds'].mean():.1f}",
    }
    return as_markdown(pd.DataFrame([row]))


def fractionation_table(lines):
    """Appendix B: local and matched clusters and agreement, by number of shards."""
    rows = []
    keys = ["partition", "shards", "fractionate"]
    for (partition, shards, fractionate), part in lines.groupby(keys, sort=True):
        excess = part["clusters"] - part["planted"]
        rows.append(
            {
                "local partition": partition,
                "shards": shards,
                "prior": "fractionated" if fractionate else "whole",
                "data sets": len(part),
                "local clusters less true": with_error(*mean_error(part["local_excess"]), digits=2),
                "spread over shards": f"{part['local_excess_sd'].mean():.2f}",
                "local ARI": with_error(*mean_error(part["local_ari"])),
                "matched clusters less true": with_error(*mean_error(excess), digits=2),
                "matched ARI": with_error(*mean_error(part["ari"])),
                "CPU s": f"{(part['seconds_sample'] + part['seconds_match']).mean():.0f}",
            }
        )
    return as_markdown(pd.DataFrame(rows))


def shards_table(lines):
    """Clusters found against the number of shards."""
    rows = []
    for (separability, method, shards), part in lines.groupby(
        ["separability", "method", "shards"], sort=False
    ):
        right = (part["clusters"] == part["planted"]).astype(float)
        rows.append(
            {
                "separability": separability,
                "method": method,
                "shards": shards,
                "data sets": len(part),
                "clusters": with_error(*mean_error(part["clusters"]), digits=2),
                "right number": with_error(*mean_error(right), digits=2),
                "ARI": with_error(*mean_error(part["ari"])),
            }
        )
    page = pd.DataFrame(rows).sort_values(["separability", "method", "shards"], kind="stable")
    return as_markdown(page)


def with_found(lines):
    """Add whether the rare cluster was found, and a method that knows the true parameters."""
    best = lines.drop_duplicates(["separability", "seed", "share"])
    best = best.assign(method="true parameters", overlap=best["best_overlap"])
    every = pd.concat([lines, best], ignore_index=True)
    return every.assign(found=(every["overlap"] >= FOUND).astype(float))


def shares_table(lines):
    """How often a cluster is found, by its share of the one silo that has it."""
    lines = with_found(lines)
    keys = ["separability", "method"]
    page = lines.pivot_table(index=keys, columns="share", values="found", sort=False)
    page = page.map("{:.2f}".format)
    page.columns = [f"{share:.1%}" for share in page.columns]
    sets = lines.groupby(keys, sort=False)["seed"].nunique().rename("data sets")
    return as_markdown(page.join(sets).reset_index())


def thresholds(lines):
    """Say the smallest share at which a cluster is found in most data sets: sentences."""
    said = []
    for (separability, method), part in with_found(lines).groupby(
        ["separability", "method"], sort=False
    ):
        found = part.groupby("share")["found"].mean()
        # from the first share on at which it, and every larger one, is found more often than not
        misses = found.index[found < 0.5]
        above = found.index[found.index > misses.max()] if len(misses) else found.index
        text = f"from a share of {above.min():.1%} on" if len(above) else "at none of the shares"
        said.append(f"- {separability}, {method}: {text}\n")
    return "".join(said)


def thinning_table(study, matching):
    """Clusters found by the paper's method with one sweep in five kept, and with every sweep."""
    keys = ["design", "separability", "seed"]
    balls = matching[(matching["partition"] == "estimated") & (matching["matching"] == "ball")]
    thinned = study[study["method"] == "paper"][[*keys, "clusters"]]
    both = thinned.merge(balls[[*keys, "clusters"]], on=keys, suffixes=(" thinned", " whole"))
    if not len(both):
        return not_run("matching")
    rows = []
    for cell in CELLS:
        part = in_cell(both, *cell)
        change = part["clusters thinned"] - part["clusters whole"]
        rows.append(
            {
                "cell": " ".join(cell),
                "data sets": len(part),
                "one sweep in five": with_error(*mean_error(part["clusters thinned"]), digits=2),
                "every sweep": with_error(*mean_error(part["clusters whole"]), digits=2),
                "difference": with_error(*mean_error(change), digits=2),
            }
        )
    return as_markdown(pd.DataFrame(rows))


def not_run(script):
    return f"*Not run yet: `python reproduction/{script}.py`.*\n"


class Pages:
    """Where tables and figures go."""

    def __init__(self, results, docs):
        self.results, self.tables, self.images = results, docs / "tables", docs / "images"
        for folder in (results / "tables", self.tables, self.images):
            folder.mkdir(parents=True, exist_ok=True)

    def lines(self, script):
        """Return the lines of a script's results, or None while there are none."""
        lines = read_lines(self.results / f"{script}.csv", [])
        return lines if len(lines) else None

    def page(self, name, text):
        """Write a piece of the docs."""
        (self.tables / f"{name}.md").write_text(text, encoding="utf-8")

    def table(self, name, found):
        """Write a comparison as CSV, and a page."""
        compared, text = found
        compared.round(5).to_csv(self.results / "tables" / f"{name}.csv", index=False)
        self.page(name, text)

    def figure(self, name, title, draw=None, lines=None, script=None):
        """Draw a figure, and write the line of the docs that shows it."""
        if lines is None:
            self.page(f"{name}-figure", not_run(script))
            return
        draw(lines, self.images / f"study-{name}.svg")
        self.page(f"{name}-figure", f"![{title}](images/study-{name}.svg)\n")


STUDY_PAGES = (
    "table-3", "table-4-bias", "table-4-coverage", "table-5-bias", "table-5-coverage",
    "methods", "gains", "coverage", "targets", "targets-missed", "times", "study-figures",
)  # fmt: skip


def collect_study(pages):
    study = pages.lines("study")
    if study is None:
        for name in STUDY_PAGES:
            pages.page(name, not_run("study"))
        return
    summary = summarise(study)
    summary.round(5).to_csv(pages.results / "tables" / "methods.csv", index=False)
    clusters = {f"pi{c}": f"π{c}" for c in range(1, 7)}
    bands = {band: BAND_WORDS[band] for band in BANDS}
    pages.table("table-3", clustering_table(study))
    for what in ("bias", "coverage"):
        pages.table(f"table-4-{what}", parameter_table(study, "4", what, clusters))
        pages.table(f"table-5-{what}", parameter_table(study, "5", what, bands))
    pages.page("methods", methods_table(summary))
    pages.page("gains", gains_table(study))
    pages.page("coverage", coverage_table(summary))
    aims = targets(study, summary)
    aims.to_csv(pages.results / "tables" / "targets.csv", index=False)
    pages.page("targets", as_markdown(aims))
    pages.page("targets-missed", missed(aims))
    pages.page("times", times(summary))
    figures.overview(summary, pages.images)
    shown = [
        f"![{word} of six methods in six cells](images/study-{word}.svg)\n"
        for word in ("agreement", "coverage")
    ]
    pages.page("study-figures", "\n".join(shown))


def collect_matching(pages):
    lines = pages.lines("matching")
    for partition, number in (("estimated", "2"), ("true", "9")):
        if lines is None:
            pages.page(f"table-{number}", not_run("matching"))
        else:
            pages.table(f"table-{number}", matching_tables(lines, partition, number))
        pages.figure(
            f"clusters-{partition}",
            f"Clusters found by each matching, {partition} local partitions",
            figures.clusters_by_matching,
            None if lines is None else lines[lines["partition"] == partition],
            "matching",
        )


def collect_others(pages):
    solvers = pages.lines("solvers")
    pages.page("inference", not_run("solvers") if solvers is None else inference_table(solvers))
    for script, table, draw, title in (
        ("fractionation", fractionation_table, figures.fractionation,
         "Clusters and agreement against the number of shards"),
        ("shards", shards_table, figures.clusters_by_shards,
         "Clusters found against the number of shards"),
    ):  # fmt: skip
        lines = pages.lines(script)
        pages.page(script, not_run(script) if lines is None else table(lines))
        pages.figure(script, title, draw, lines, script)
    lines = pages.lines("shares")
    pages.page("shares", not_run("shares") if lines is None else shares_table(lines))
    pages.page("thresholds", not_run("shares") if lines is None else thresholds(lines))
    found = None if lines is None else with_found(lines)
    title = "How often a cluster is found against its share"
    pages.figure("shares", title, figures.found_by_share, found, "shares")


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, default=DOCS)
    chosen = parser.parse_args(words)
    pages = Pages(chosen.results, chosen.docs)
    collect_study(pages)
    collect_matching(pages)
    collect_others(pages)
    study, matching = pages.lines("study"), pages.lines("matching")
    if study is None or matching is None:
        missing = not_run("matching" if matching is None else "study")
        pages.page("reproduced", missing)
        pages.page("thinning", missing)
    else:
        pages.page("reproduced", reproduced(study, matching))
        pages.page("thinning", thinning_table(study, matching))


if __name__ == "__main__":
    main()
