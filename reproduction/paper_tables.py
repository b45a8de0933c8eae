"""The paper's tables beside ours, and where its figures are found again."""

from __future__ import annotations

import numpy as np
import pandas as pd
from comparing import MATCHINGS, STUDY_METHODS, agrees, compare, in_cell, less_full, measure
from judging import MOST_CLUSTERS, mean_error
from running import CELLS, in_cell_order
from writing import as_markdown, number, signed, with_error

ADDED = {"default": "default", "no-polish": "no polish", "pooled": "pooled, our settings"}
"""Methods without a published figure that stand beside those that have one."""
QUANTITIES = {"seconds": "CPU s", "clusters": "clusters", "ari": "ARI", "vi": "VI"}
CLUSTER_WORDS = {f"pi{c}": f"π{c}" for c in range(1, MOST_CLUSTERS + 1)}
TELLING = 0.1
"""Three errors beyond this do not tell a coverage or an agreement from others."""
BAND_WORDS = {
    "plow": "p < .0001", "p0": "to .1", "p1": "to .5", "p2": "to .9", "p3": "to .9999",
    "phigh": "above",
}  # fmt: skip


def beside(line, digits=3):
    """Return "published, ours (difference ± error)"."""
    if not np.isfinite(line["ours"]):
        return f"{line['published']:g}, –"
    difference = signed(line["difference"], line["difference se"], digits)
    return f"{line['published']:g}, {number(line['ours'], digits)} ({difference})"


def told_sets(compared):
    """Say how many data sets some figures of ours are from: "100", or "36 to 37"."""
    least, most = compared["data sets"].min(), compared["data sets"].max()
    return f"{least}" if least == most else f"{least} to {most}"


def matching_tables(lines, partition, table):
    """Tables 2 and 9: how often a matching is right, and its agreement with the truth."""
    part = lines[lines["partition"] == partition]
    compared = compare(part, [table], MATCHINGS, column="matching")
    rows = []
    for (cell, method), both in compared.groupby(["cell", "method"], sort=False):
        own = in_cell(part, *cell.split())
        own = own[own["matching"] == MATCHINGS[method]]
        by_quantity = {line["quantity"]: beside(line) for _, line in both.iterrows()}
        rows.append(matching_row(cell, method, own, by_quantity))
    for cell in CELLS:
        own = in_cell(part, *cell)
        own = own[own["matching"] == "evidence"]
        ours = {name: with_error(*measure(own, name)) for name in ("right", "ari")}
        rows.append(matching_row(" ".join(cell), "evidence (ours)", own, ours))
    return compared, as_markdown(in_cell_order(pd.DataFrame(rows)))


def matching_row(cell, method, own, values):
    local = own[own["local_right"] == 1]
    right = with_error(*measure(local, "right"))
    return {
        "cell": cell,
        "matching": method,
        "data sets": len(own),
        "right": values["right"],
        "right, of those with the right local numbers": f"{right}, of {len(local)}",
        "ARI": values["ari"],
        "clusters": with_error(*mean_error(own["clusters"]), digits=2),
    }


def clustering_table(lines):
    """Table 3: time, clusters, ARI and VI."""
    compared = compare(lines, ["3"], STUDY_METHODS)
    rows = []
    for (cell, quantity), both in compared.groupby(["cell", "quantity"], sort=False):
        row = {"cell": cell, "quantity": QUANTITIES[quantity], "data sets": told_sets(both)}
        row |= {line["method"]: beside(line) for _, line in both.iterrows()}
        part = in_cell(lines, *cell.split())
        for method, words in ADDED.items():
            row[words] = with_error(*measure(part[part["method"] == method], quantity))
        one = part.drop_duplicates("seed")
        row["best possible"] = with_error(*mean_error(one["best_ari"])) if quantity == "ari" else ""
        rows.append(row)
    return compared, as_markdown(pd.DataFrame(rows))


def less_full_table(lines):
    """ARI and VI of VCMC less those of full MCMC, on the same data sets."""
    columns = {QUANTITIES[name]: less_full(lines, "VCMC", name) for name in ("ari", "vi")}
    shown = {name: found.apply(beside, axis=1) for name, found in columns.items()}
    return as_markdown(pd.DataFrame({"cell": [" ".join(cell) for cell in CELLS]} | shown))


def parameter_table(lines, table, what, names):
    """Tables 4 and 5: relative bias, or coverage, of π by cluster or of p by band."""
    compared = compare(lines, [table], STUDY_METHODS)
    compared = compared[compared["quantity"].str.endswith(what)]
    rows = []
    for cell in map(" ".join, CELLS):
        for method in STUDY_METHODS:
            both = compared[(compared["cell"] == cell) & (compared["method"] == method)]
            if len(both):
                row = {"cell": cell, "method": method, "data sets": told_sets(both)}
                row |= dict.fromkeys(names.values(), "na")
                for _, line in both.iterrows():
                    row[names[line["quantity"].partition("_")[0]]] = beside(line)
                rows.append(row)
        for method, words in ADDED.items():
            part = in_cell(lines, *cell.split())
            part = part[part["method"] == method]
            values = {names[name]: measure(part, f"{name}_{what}") for name in names}
            shown = {name: with_error(*value) for name, value in values.items()}
            rows.append({"cell": cell, "method": words, "data sets": str(len(part))} | shown)
    return compared, as_markdown(pd.DataFrame(rows))


def reproduced(study, matching):
    """Say where the paper's figures are found again: sentences."""
    said = [*methods_again(study), *matchings_again(matching)]
    return "".join(f"- {line}\n" for line in said)


def methods_again(study):
    """Yield a sentence for each method and each quantity of tables 3 to 5."""
    compared = compare(study, ["3", "4", "5"], STUDY_METHODS)
    for method in ("VCMC", "Full MCMC", "FedMerDel", "Fed K-modes"):
        own = compared[compared["method"] == method]
        for quantity in ("ari", "vi", "clusters"):
            some = own[own["quantity"] == quantity]
            yield sentence(f"{method}, {QUANTITIES[quantity]}", some)
        for table, words in (("4", "π"), ("5", "p")):
            for what in ("bias", "coverage"):
                some = own[own["quantity"].str.endswith(what) & (own["table"] == table)]
                if len(some):
                    yield sentence(f"{method}, {what} of {words}", some, every=False)


def matchings_again(matching):
    """Yield a sentence for each matching and each quantity of tables 2 and 9."""
    for partition, table in (("estimated", "2"), ("true", "9")):
        part = matching[matching["partition"] == partition]
        compared = compare(part, [table], MATCHINGS, column="matching")
        for name in MATCHINGS:
            for quantity, words in (("right", "right"), ("ari", "ARI")):
                wanted = (compared["method"] == name) & (compared["quantity"] == quantity)
                title = f"{name} matching, {words}, {partition} local partitions"
                yield sentence(title, compared[wanted])


def sentence(title, compared, every=True):
    """Say in how many places a figure is found again, where it is not, and how far off we are.

    A place where three errors are more than `TELLING` finds nearly anything again: those are
    counted. So is the mean difference told, as many small ones of one sign would else hide.
    """
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
    return f"{text}. {mean_difference(known)}".rstrip()


def mean_difference(known):
    """Say how far we are from the paper on average, where the scale is that of shares."""
    if known["quantity"].str.endswith("_bias").any() or known["quantity"].eq("clusters").any():
        return ""
    vague = (3 * known["difference se"] > TELLING).sum()
    error = np.sqrt((known["difference se"] ** 2).sum()) / len(known)
    text = f"On average {signed(known['difference'].mean(), error)}"
    if vague:
        text += f"; in {vague} of them three errors are more than {TELLING:g}"
    return f"{text}."
