"""Tables of silos that differ, of other regimes, of real tables, and of whether trust is earned."""

from __future__ import annotations

import numpy as np
import pandas as pd
from comparing import in_cell
from drift import KAPPAS, METHODS, is_right, kappa_word, trust_by_quality
from judging import mean_error, share
from real import REAL_METHODS
from regimes import REGIMES
from running import CELL_KEYS, CELLS, SEPARABILITIES
from writing import signed, with_error

WORDS = {"inf": "∞", "third": "20 in a third"}
"""How a page calls κ, where not by its number."""
RIVALS = ("none", "fedmerdel", "pooled", "truth")
"""What the defaults are compared with on the same data sets."""
LEVELS = ("trust", "care", "distrust")
DATA_KEYS = [*CELL_KEYS, "kappa", "seed"]
PARAMETERS = {"m": "m", "p": "p of a silo", "pi": "π"}
SEPARABILITY = {0.3: "easy", 0.5: "–", 1.0: "poor"}
"""Concentrations of the profiles in the study of the matching."""


def whole_lines(lines, last):
    """Return the lines that were written to their end; the last may not be, while a run goes on."""
    return None if lines is None else lines[lines[last].notna()]


def with_kappa_words(lines):
    """Return the lines of the study of drift with κ as its word."""
    lines = whole_lines(lines, "seconds")
    return None if lines is None else lines.assign(kappa=lines["kappa"].map(kappa_word))


def with_regime_words(lines):
    """Return the lines of the regimes; pandas reads the name of one of them as missing."""
    lines = whole_lines(lines, "seconds")
    return None if lines is None else lines.assign(regime=lines["regime"].fillna("null"))


def said(kappa):
    """Return κ as a page says it."""
    return WORDS.get(kappa, kappa)


def parts_of(lines):
    """Yield (κ, cell, lines) for every κ and cell that has lines, and then all cells of a kind."""
    for kappa in KAPPAS:
        of_kappa = lines[lines["kappa"] == kappa]
        for cell in CELLS:
            if len(part := in_cell(of_kappa, *cell)):
                yield kappa, " ".join(cell), part
        for separability in SEPARABILITIES:
            if len(part := of_kappa[of_kappa["separability"] == separability]):
                yield kappa, f"all {separability}", part


def of_method(lines, method):
    """Return the lines of a method."""
    return lines[lines["method"] == method]


def paired(lines, one, other, column="ari", keys=DATA_KEYS):
    """Return a column of one method less that of another, on the data sets that both have."""
    a, b = (of_method(lines, name).set_index(keys)[column] for name in (one, other))
    return (a - b).dropna()


def below_best(lines):
    """Return the defaults' index less the best possible."""
    ours = of_method(lines, "default")
    return ours["ari"] - ours["best_ari"]


def drift_table(lines):
    """Agreement of every method, by κ and cell, beside the best possible."""
    rows = []
    for kappa, cell, part in parts_of(lines):
        row = {"κ": said(kappa), "cell": cell, "data sets": len(of_method(part, "default"))}
        for method in METHODS:
            row[method] = with_error(*mean_error(of_method(part, method)["ari"]))
        best = of_method(part, "default")["best_ari"]
        rows.append(row | {"best possible": with_error(*mean_error(best))})
    return pd.DataFrame(rows)


def numbers_table(lines):
    """How often every method finds the right number of clusters, by κ and cell."""
    rows = []
    for kappa, cell, part in parts_of(lines):
        row = {"κ": said(kappa), "cell": cell}
        for method in METHODS:
            if method != "truth":  # it is told the number
                row[method] = with_error(*mean_error(of_method(part, method)["right"]), digits=2)
        rows.append(row)
    return pd.DataFrame(rows)


def differences_table(lines):
    """The defaults' index less the best possible and less each rival's, paired."""
    rows = []
    for kappa, cell, part in parts_of(lines):
        row = {"κ": said(kappa), "cell": cell, "best possible": bold(*mean_error(below_best(part)))}
        for rival in RIVALS:
            row[rival] = bold(*mean_error(paired(part, "default", rival)))
        rows.append(row)
    return pd.DataFrame(rows)


def bold(value, error):
    """Return a signed difference, bold beyond two standard errors; a dash where there is none."""
    if not np.isfinite(value):
        return "–"
    text = signed(value, error)
    return f"**{text}**" if abs(value) > 2 * error else text


def coverage_table(lines):
    """Coverage of m, of the silos' own profiles and of π, by κ and cell."""
    rows = []
    for kappa, cell, part in parts_of(lines):
        row = {"κ": said(kappa), "cell": cell}
        for method, what in (("default", "m p pi"), ("none", "m p"), ("truth", "m p")):
            for name in what.split():
                words = PARAMETERS[name] if method == "default" else f"{PARAMETERS[name]}, {method}"
                row[words] = with_error(*share(of_method(part, method), name))
        rows.append(row)
    return pd.DataFrame(rows)


def kappa_table(lines):
    """How much drift is found: medians over data sets, and the mass at infinity."""
    rows = []
    for kappa, cell, part in parts_of(of_method(lines, "default")):
        drifting = int(np.isfinite(KAPPAS[kappa]).sum())
        alike = len(KAPPAS[kappa]) - drifting
        of_alike = (part["infinite"] - part["infinite_drifting"]).mean()
        of_drifting = part["infinite_drifting"].mean()
        rows.append(
            {
                "κ": said(kappa),
                "cell": cell,
                "κ found": quartiles(part["kappa_drifting"]) if drifting else "–",
                "mass at ∞": with_error(*mean_error(part["at_infinity"]), digits=2),
                "alike, found alike": f"{of_alike:.1f} of {alike}" if alike else "–",
                "drifting, found alike": f"{of_drifting:.1f} of {drifting}" if drifting else "–",
            }
        )
    return pd.DataFrame(rows)


def quartiles(values):
    """Return "median (quartile to quartile)"; values may be infinite, so none is interpolated."""
    values = values.dropna()
    if not len(values):
        return "–"
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], method="inverted_cdf")
    shown = ["∞" if np.isinf(value) else f"{value:.0f}" for value in (middle, low, high)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def regimes_table(lines):
    """A line for each regime: the right number and the agreement of every method."""
    rows = []
    for regime in REGIMES:
        part = lines[lines["regime"] == regime]
        if not len(part):
            continue
        best = part.drop_duplicates("seed")["best_ari"].mean()
        row = {
            "regime": regime,
            "clusters": part["planted"].iloc[0],
            "data sets": part["seed"].nunique(),
            "best possible": f"{best:.3f}",
            "default less best": bold(*mean_error(below_best(part))),
        }
        rows.append(row | {method: right_and_ari(of_method(part, method)) for method in METHODS})
    return pd.DataFrame(rows)


def right_and_ari(part):
    """Return "5 of 6; 0.953": how often the number was right, and the mean index."""
    if not len(part):
        return "–"
    return f"{int(part['right'].sum())} of {len(part)}; {part['ari'].mean():.3f}"


def trust_table(drift, regimes):
    """How many right and wrong fits of the defaults are trusted, by study and together."""
    rows = []
    for words, part in trust_parts(drift, regimes):
        for line in trust_by_quality(part).itertuples(index=False):
            row = {"data sets": words, "fits": line.fits, "number": line.number}
            row |= {"trusted": line.trusted}
            if line.number:
                lower, upper = line[-2:]
                row["share trusted"] = f"{line.share:.2f} ({lower:.2f} to {upper:.2f})"
            else:
                row["share trusted"] = "–"
            rows.append(row | levels_of(part, right=line.fits == "right"))
    return pd.DataFrame(rows)


def trust_parts(drift, regimes):
    """Yield what a line of the table is on, and its lines."""
    columns = ["method", "right", "ari", "best_ari", "trusted", "level"]
    parts = {}
    if drift is not None:
        alike = drift["kappa"] == "inf"
        parts["the six cells, silos alike"] = drift.loc[alike, columns]
        parts["the six cells, silos that differ"] = drift.loc[~alike, columns]
    if regimes is not None:
        parts["regimes"] = regimes[columns]
    parts = {words: part for words, part in parts.items() if len(of_method(part, "default"))}
    yield from parts.items()
    if len(parts) > 1:
        yield "all", pd.concat(parts.values())


def levels_of(lines, *, right):
    """Return how many of the right, or of the wrong, fits got each other level."""
    ours = of_method(lines, "default")
    levels = ours.loc[is_right(ours) == right, "level"]
    if levels.isna().all():
        return dict.fromkeys(LEVELS[1:], "–")
    return {level: int((levels == level).sum()) for level in LEVELS[1:]}


def real_table(lines):
    """A line for each real table and method: clusters, agreement with label and silo."""
    rows = []
    for table, part in lines.groupby("table", sort=True):
        for method in REAL_METHODS:
            found = of_method(part, method)
            if not len(found):
                continue
            rows.append(
                {
                    "table": table,
                    "method": method,
                    "seeds": len(found),
                    "clusters": f"{found['clusters'].median():g}",
                    "ARI, label": with_error(*mean_error(found["ari_label"])),
                    "ARI, silo": with_error(*mean_error(found["ari_silo"])),
                    "verdict": levels_in_words(found),
                    "CPU s": f"{found['seconds'].mean():.1f}",
                }
            )
    return pd.DataFrame(rows)


def levels_in_words(found):
    """Return "8 trust, 2 care", or how many are trusted where there is no level."""
    if found["trusted"].isna().all():
        return "–"
    counts = {level: int((found["level"] == level).sum()) for level in LEVELS}
    told = [f"{count} {level}" for level, count in counts.items() if count]
    return ", ".join(told) or f"{int(found['trusted'].sum())} of {len(found)} trusted"


def sizes_table(lines):
    """What the real tables are: rows, silos, variables, classes of the label."""
    first = lines.drop_duplicates("table").sort_values("table")
    classes = first["labels"].map("{:g}".format).replace("nan", "–")
    sizes = first[["table", "rows", "silos", "variables"]]
    return sizes.assign(**{"classes of the label": classes})


def matching_table(lines):
    """How often the matching alone joins what differs, and misses what is the same."""
    rows = []
    keys = ["held", "variables", "concentration", "kappa", "noise"]
    lines = lines.assign(right=1 - lines[["joined_wrongly", "missed"]].max(axis=1))
    for (held, _, concentration, kappa, noise), part in lines.groupby(keys, sort=False):
        rows.append(
            {
                "clusters in silos": held,
                "separability": SEPARABILITY[concentration],
                "κ": "∞" if np.isinf(kappa) else f"{kappa:g}",
                "noise variables": noise,
                "sets": len(part),
                "joined wrongly": with_error(*mean_error(part["joined_wrongly"]), digits=2),
                "missed": with_error(*mean_error(part["missed"]), digits=2),
                "right": with_error(*mean_error(part["right"]), digits=2),
                "variables found to drift": f"{part['drifting'].mean():.1f}",
            }
        )
    return pd.DataFrame(rows)
