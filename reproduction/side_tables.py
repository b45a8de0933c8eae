"""Tables of the smaller questions: solvers, prior fractionation, shards, shares and thinning."""

from __future__ import annotations

import pandas as pd
from comparing import PUBLISHED, STUDY_METHODS, agrees, compare, in_cell
from judging import mean_error
from pages import not_run
from running import CELLS
from shares import FOUND
from writing import as_markdown, with_error


def inference_table(lines):
    """Inference strategies: 3 starts of up to 1000 steps against 300 starts of 10."""
    published = pd.read_csv(PUBLISHED, dtype={"table": str})
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
    page = page.sort_index(axis=1).map("{:.2f}".format)
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
        misses = found.index[found <= 0.5]
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


def pairing_table(lines):
    """In how many places the published tables 4 and 5 are found again, by way of pairing."""
    rows = []
    names = {paper: ours for paper, ours in STUDY_METHODS.items() if ours in set(lines["method"])}
    for pairing, part in lines.groupby("pairing", sort=False):
        compared = compare(part, ["4", "5"], STUDY_METHODS)
        compared = compared[compared["method"].isin(names) & compared["difference se"].notna()]
        for (method, table), both in compared.groupby(["method", "table"], sort=False):
            row = {"pairing": pairing, "method": method, "data sets": both["data sets"].max()}
            row["values"] = {"4": "π", "5": "p"}[table]
            for what in ("bias", "coverage"):
                some = both[both["quantity"].str.endswith(what)]
                same = sum(agrees(line) for _, line in some.iterrows())
                row[what] = f"{same} of {len(some)}" if len(some) else "–"
            rows.append(row)
    return as_markdown(pd.DataFrame(rows))
