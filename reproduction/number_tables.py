"""Tables of numbers: our defaults in the cells of numbers, and against rivals."""

from __future__ import annotations

import numpy as np
import pandas as pd
from comparing import in_cell
from judging import mean_error
from number_cells import JUDGED, summarise
from number_rivals import DATA_KEYS, RIVALS, TABLES
from running import CELLS
from writing import signed, with_error


def cells_table(lines):
    """Right K, the index below the best possible, and coverage, in every cell of numbers."""
    lines = lines.assign(kappa=lines["kappa"].map(lambda kappa: f"{float(kappa):g}"))
    rows = []
    for row in summarise(lines).to_dict("records"):
        words = {name: row[name] for name in ("design", "separability", "variables", "kappa")}
        words |= {"data sets": row["sets"], "right K": with_error(row["right K"], row["K se"], 2)}
        words |= {"best": f"{row['best']:.3f}", "below": with_error(row["below"], row["gap se"])}
        words |= {what: with_error(row[what], row[f"{what} se"]) for what in JUDGED}
        words["less told"] = signed(row["less told"], row["less se"])
        for what in ("pi right", "mean right"):
            words[what + " K"] = with_error(row[what], row[f"{what} se"])
        rows.append(words)
    return pd.DataFrame(rows)


def rivals_table(lines):
    """Our defaults in every cell of every table, and their index less each rival's.

    Bold where they are below by two errors. One data set has no error, and cannot tell.
    """
    rows = []
    for table, cell in [(table, cell) for table in TABLES for cell in CELLS]:
        part = in_cell(lines[lines["table"] == table], *cell)
        ours = part[part["method"] == "default"]
        if not len(ours):
            continue
        rows.append(
            {
                "table": table,
                "cell": " ".join(cell),
                "data sets": len(ours),
                "right K": f"{(ours['clusters'] == ours['planted']).mean():.2f}",
                "best possible": f"{ours['best_ari'].mean():.3f}",
                "ours": with_error(*mean_error(ours["ari"])),
            }
            | {rival: less(part, rival) for rival in RIVALS}
        )
    return pd.DataFrame(rows)


def less(part, rival):
    """Return the defaults' index less a rival's, over the data sets that both have."""
    index = part.set_index([*DATA_KEYS, "method"])["ari"].unstack()
    if rival not in index:
        return "–"
    gain, error = mean_error(index["default"] - index[rival])
    text = signed(gain, error) if np.isfinite(gain) else "–"
    return f"**{text}**" if gain < -2 * error else text
