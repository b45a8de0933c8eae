"""Pattern counts of four small published tables, as printed with the R package poLCA."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A table of patterns, where it was published, and its maximum log-likelihoods by classes."""

    source: str
    variables: tuple[str, ...]
    patterns: dict[tuple[str, ...], int]
    maxima: dict[int, float]


CARCINOMA = Published(
    source="Agresti (2002), table 13.1; maxima: Linzer and Lewis (2011), J. Stat. Softw. 42(10)",
    variables=("A", "B", "C", "D", "E", "F", "G"),
    patterns={
        ("1", "1", "1", "1", "1", "1", "1"): 34,
        ("1", "1", "1", "1", "2", "1", "1"): 2,
        ("1", "2", "1", "1", "1", "1", "1"): 6,
        ("1", "2", "1", "1", "1", "1", "2"): 1,
        ("1", "2", "1", "1", "2", "1", "1"): 4,
        ("1", "2", "1", "1", "2", "1", "2"): 5,
        ("2", "1", "1", "1", "1", "1", "1"): 2,
        ("2", "1", "2", "1", "2", "1", "2"): 1,
        ("2", "2", "1", "1", "1", "1", "1"): 2,
        ("2", "2", "1", "1", "1", "1", "2"): 1,
        ("2", "2", "1", "1", "2", "1", "1"): 2,
        ("2", "2", "1", "1", "2", "1", "2"): 7,
        ("2", "2", "1", "1", "2", "2", "2"): 1,
        ("2", "2", "1", "2", "1", "1", "2"): 1,
        ("2", "2", "1", "2", "2", "1", "2"): 2,
        ("2", "2", "1", "2", "2", "2", "2"): 3,
        ("2", "2", "2", "1", "2", "1", "2"): 13,
        ("2", "2", "2", "1", "2", "2", "2"): 5,
        ("2", "2", "2", "2", "2", "1", "2"): 10,
        ("2", "2", "2", "2", "2", "2", "2"): 16,
    },
    maxima={2: -317.2568, 3: -293.705},
)

GSS82 = Published(
    source="McCutcheon (1987), Latent Class Analysis; maxima: poLCA manual",
    variables=("PURPOSE", "ACCURACY", "UNDERSTA", "COOPERAT"),
    patterns={
        ("Depends", "Mostly true", "Fair/Poor", "Cooperative"): 2,
        ("Depends", "Mostly true", "Fair/Poor", "Interested"): 6,
        ("Depends", "Mostly true", "Good", "Cooperative"): 4,
        ("Depends", "Mostly true", "Good", "Impatient"): 1,
        ("Depends", "Mostly true", "Good", "Interested"): 23,
        ("Depends", "Not true", "Fair/Poor", "Cooperative"): 3,
        ("Depends", "Not true", "Fair/Poor", "Impatient"): 2,
        ("Depends", "Not true", "Fair/Poor", "Interested"): 9,
        ("Depends", "Not true", "Good", "Cooperative"): 9,
        ("Depends", "Not true", "Good", "Impatient"): 2,
        ("Depends", "Not true", "Good", "Interested"): 43,
        ("Good", "Mostly true", "Fair/Poor", "Cooperative"): 25,
        ("Good", "Mostly true", "Fair/Poor", "Impatient"): 5,
        ("Good", "Mostly true", "Fair/Poor", "Interested"): 71,
        ("Good", "Mostly true", "Good", "Cooperative"): 35,
        ("Good", "Mostly true", "Good", "Impatient"): 2,
        ("Good", "Mostly true", "Good", "Interested"): 419,
        ("Good", "Not true", "Fair/Poor", "Cooperative"): 16,
        ("Good", "Not true", "Fair/Poor", "Impatient"): 5,
        ("Good", "Not true", "Fair/Poor", "Interested"): 42,
        ("Good", "Not true", "Good", "Cooperative"): 25,
        ("Good", "Not true", "Good", "Impatient"): 4,
        ("Good", "Not true", "Good", "Interested"): 270,
        ("Waste of time", "Mostly true", "Fair/Poor", "Cooperative"): 2,
        ("Waste of time", "Mostly true", "Fair/Poor", "Interested"): 1,
        ("Waste of time", "Mostly true", "Good", "Cooperative"): 3,
        ("Waste of time", "Mostly true", "Good", "Interested"): 26,
        ("Waste of time", "Not true", "Fair/Poor", "Cooperative"): 12,
        ("Waste of time", "Not true", "Fair/Poor", "Impatient"): 8,
        ("Waste of time", "Not true", "Fair/Poor", "Interested"): 13,
        ("Waste of time", "Not true", "Good", "Cooperative"): 23,
        ("Waste of time", "Not true", "Good", "Impatient"): 6,
        ("Waste of time", "Not true", "Good", "Interested"): 85,
    },
    maxima={2: -2783.268, 3: -2754.545},
)

VALUES = Published(
    source="Stouffer and Toby (1951), Goodman (1974); maxima: poLCA manual",
    variables=("A", "B", "C", "D"),
    patterns={
        ("1", "1", "1", "1"): 20,
        ("1", "1", "1", "2"): 2,
        ("1", "1", "2", "1"): 9,
        ("1", "1", "2", "2"): 2,
        ("1", "2", "1", "1"): 6,
        ("1", "2", "1", "2"): 1,
        ("1", "2", "2", "1"): 4,
        ("1", "2", "2", "2"): 1,
        ("2", "1", "1", "1"): 38,
        ("2", "1", "1", "2"): 7,
        ("2", "1", "2", "1"): 24,
        ("2", "1", "2", "2"): 6,
        ("2", "2", "1", "1"): 25,
        ("2", "2", "1", "2"): 6,
        ("2", "2", "2", "1"): 23,
        ("2", "2", "2", "2"): 42,
    },
    maxima={2: -504.4677},
)

CHEATING = Published(
    source="Dayton (1998), Latent Class Scaling Analysis; maxima: poLCA manual",
    variables=("LIEEXAM", "LIEPAPER", "FRAUD", "COPYEXAM"),
    patterns={
        ("1", "1", "1", "1"): 207,
        ("1", "1", "1", "2"): 46,
        ("1", "1", "2", "1"): 7,
        ("1", "1", "2", "2"): 5,
        ("1", "2", "1", "1"): 13,
        ("1", "2", "1", "2"): 4,
        ("1", "2", "2", "1"): 1,
        ("1", "2", "2", "2"): 2,
        ("2", "1", "1", "1"): 10,
        ("2", "1", "1", "2"): 3,
        ("2", "1", "2", "1"): 1,
        ("2", "1", "2", "2"): 2,
        ("2", "2", "1", "1"): 11,
        ("2", "2", "1", "2"): 4,
        ("2", "2", "2", "1"): 1,
        ("2", "2", "2", "2"): 2,
    },
    maxima={2: -440.0271},
)
