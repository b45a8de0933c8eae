"""Pattern counts of four small published tables, as printed with the R package poLCA."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pandas as pd


@dataclass(frozen=True)
class Published:
    """A table of patterns, where it was published, and its maximum log-likelihoods by classes."""

    source: str
    variables: tuple[str, ...]
    patterns: dict[tuple[str, ...], int]
    maxima: dict[int, float]


def counted(levels, counts):
    """Patterns of which there are any; the counts are by level, those of the last variable next."""
    every = zip(product(*levels), counts, strict=True)
    return {pattern: count for pattern, count in every if count}


CARCINOMA = Published(
    source="Agresti (2002), table 13.1; maxima: Linzer and Lewis (2011), J. Stat. Softw. 42(10)",
    variables=("A", "B", "C", "D", "E", "F", "G"),
    patterns={
        tuple("1111111"): 34,
        tuple("1111211"): 2,
        tuple("1211111"): 6,
        tuple("1211112"): 1,
        tuple("1211211"): 4,
        tuple("1211212"): 5,
        tuple("2111111"): 2,
        tuple("2121212"): 1,
        tuple("2211111"): 2,
        tuple("2211112"): 1,
        tuple("2211211"): 2,
        tuple("2211212"): 7,
        tuple("2211222"): 1,
        tuple("2212112"): 1,
        tuple("2212212"): 2,
        tuple("2212222"): 3,
        tuple("2221212"): 13,
        tuple("2221222"): 5,
        tuple("2222212"): 10,
        tuple("2222222"): 16,
    },
    maxima={2: -317.2568, 3: -293.705},
)

GSS82 = Published(
    source="McCutcheon (1987), Latent Class Analysis; maxima: poLCA manual",
    variables=("PURPOSE", "ACCURACY", "UNDERSTA", "COOPERAT"),
    patterns=counted(
        (("Depends", "Good", "Waste of time"), ("Mostly true", "Not true"), ("Fair/Poor", "Good"),
         ("Cooperative", "Impatient", "Interested")),
        [
            2, 0, 6, 4, 1, 23, 3, 2, 9, 9, 2, 43,
            25, 5, 71, 35, 2, 419, 16, 5, 42, 25, 4, 270,
            2, 0, 1, 3, 0, 26, 12, 8, 13, 23, 6, 85,
        ],
    ),
    maxima={2: -2783.268, 3: -2754.545},
)  # fmt: skip

VALUES = Published(
    source="Stouffer and Toby (1951), Goodman (1974); maxima: poLCA manual",
    variables=("A", "B", "C", "D"),
    patterns=counted(
        ["12"] * 4,
        [
            20, 2, 9, 2, 6, 1, 4, 1,
            38, 7, 24, 6, 25, 6, 23, 42,
        ],
    ),
    maxima={2: -504.4677},
)  # fmt: skip

CHEATING = Published(
    source="Dayton (1998), Latent Class Scaling Analysis; maxima: poLCA manual",
    variables=("LIEEXAM", "LIEPAPER", "FRAUD", "COPYEXAM"),
    patterns=counted(
        ["12"] * 4,
        [
            207, 46, 7, 5, 13, 4, 1, 2,
            10, 3, 1, 2, 11, 4, 1, 2,
        ],
    ),
    maxima={2: -440.0271},
)  # fmt: skip


def table_of(name):
    """The patterns as a frame, and how often each occurs in its column `n`."""
    data = globals()[name.upper()]
    table = pd.DataFrame(data.patterns.keys(), columns=list(data.variables))
    return table.assign(n=list(data.patterns.values()))
