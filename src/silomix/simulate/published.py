"""Figures of Fendler et al. (2026) on their cohort, and comparison of a simulated one with them."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from silomix.kernels.arrays import Bools, Floats, Ints
    from silomix.simulate.cohort import CohortTruth

    Figure = tuple[int, str, int | None, float, float]

# Marks of a condition in a cluster in table 8; the last three mean high, the strongest last.
LOW, UNMARKED, MEMBER, NAMED, FLAG = -1, 0, 1, 2, 3

FLAG_CHANCE = 0.95
NAMED_POWER, MEMBER_POWER = 1 / 6, 1 / 3
LOW_FACTOR = 0.5
NAMED_ROOM, MARKED_ROOM = 0.5, 0.8
SEX_ROOM = 0.5


class Facts(NamedTuple):
    """The published figures.

    Attributes
    ----------
    summary : of the cohort (table 6): mortality, female, regions (shares); age_at_entry,
        age_at_death, conditions (mean, sd, least, most; of the number of a person's conditions).
    conditions : one row for each of table 10, by name: prevalence, as printed; planted, another one
        only where 0.000 is printed; sex, "female" or "male" where only they can have it.
    clusters : one row for each of tables 7, 8 and 11: size, mortality, female, age_at_death (of
        those who died), low and high (what marks it, in the words of table 8).
    weights : (cluster,), share of each cluster.
    marks : (cluster, condition), from LOW to FLAG; the strongest mark holds where several words of
        a cluster name one condition.
    """

    summary: Mapping[str, Any]
    conditions: pd.DataFrame
    clusters: pd.DataFrame
    weights: Floats
    marks: Ints

    def only(self, sex: str) -> Bools:
        """Whether only that sex can have a condition: (condition,)."""
        return (self.conditions["sex"] == sex).to_numpy()


@cache
def read_facts() -> Facts:
    """The published figures in `facts.json`."""
    file = resources.files("silomix.simulate") / "facts.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    conditions = pd.DataFrame(content["conditions"]["items"]).set_index("name")
    conditions["planted"] = conditions["planted"].fillna(conditions["prevalence"])
    items, wordings = content["clusters"]["items"], content["wordings"]["items"]
    clusters = pd.DataFrame(items)
    marks = np.zeros((len(clusters), len(conditions)), dtype=np.int64)

    kinds = [("members", MEMBER), ("named", NAMED), ("flags", FLAG)]
    for c, cluster in enumerate(items):
        for side, kind, value in (*(("high", *each) for each in kinds), ("low", "named", LOW)):
            names = [name for word in cluster[side] for name in wordings[word].get(kind, ())]
            marks[c, conditions.index.isin(names)] = value
        marks[c, conditions.index.isin(cluster.get("nearly_all", ()))] = FLAG
    weights = (clusters["size"] / clusters["size"].sum()).to_numpy()
    return Facts(content["summary"], conditions, clusters, weights, marks)


def marked_chances() -> Floats:
    """Chances of the marked cells: (cluster, condition), NaN elsewhere.

    With π for the prevalence in the cohort: π/2 for a low condition, less where few are of the
    sex that can have it; π^(1/6) for one that is named; 0.95 for one that stands for a group, or
    that nearly everyone has; π^(1/3) for the other members of a group. The roots lift rare
    conditions most. No more than half of a cluster's men, or women, have a condition that only
    they can have. Of all people with a condition, at most half are in clusters that name it, and
    four fifths in clusters where it is high: the chances that would need more shrink by a common
    factor, those of members first, then those of flags.
    """
    facts = read_facts()
    marks, share, can = facts.marks, facts.conditions["planted"].to_numpy(), able()
    most = np.where(can < 1.0, SEX_ROOM * can, 1.0)
    chances, used = np.full(marks.shape, np.nan), np.zeros_like(share)
    for mark, aim, room in (
        (NAMED, share**NAMED_POWER, NAMED_ROOM),
        (FLAG, np.full_like(share, FLAG_CHANCE), MARKED_ROOM),
        (MEMBER, share**MEMBER_POWER, MARKED_ROOM),
    ):
        target = np.where(marks == mark, np.minimum(aim, most), 0.0)
        people = facts.weights @ target
        free = room * share - used
        factor = np.minimum(1.0, np.divide(free, people, out=np.ones_like(free), where=people > 0))
        chances = np.where(marks == mark, factor * target, chances)
        used += factor * people
    return np.where(marks == LOW, LOW_FACTOR * share * np.minimum(relative(can), 1.0), chances)


def able() -> Floats:
    """Share of each cluster that can have the condition: (cluster, condition)."""
    facts = read_facts()
    women = facts.clusters["female"].to_numpy()[:, np.newaxis]
    return np.select([facts.only("male"), facts.only("female")], [1.0 - women, women], 1.0)


def relative(able: Floats) -> Floats:
    """That share relative to the share in the cohort: (cluster, condition)."""
    return able / (read_facts().weights @ able)


def compare_with_published(table: pd.DataFrame, truth: CohortTruth) -> pd.DataFrame:
    """Compare the figures of the paper's tables with those of a simulated cohort.

    Parameters
    ----------
    table, truth : from `simulate_cohort`.

    Returns
    -------
    One row per figure: table (its number in Fendler et al., 2026), figure, cluster (from 1 on,
    or none), published, drawn, difference. A cluster without people has NaN.
    """
    columns = ["table", "figure", "cluster", "published", "drawn"]
    frame = pd.DataFrame(_figures(table, truth), columns=columns)
    frame = frame.astype({"cluster": "Int64", "published": "float64", "drawn": "float64"})
    return frame.assign(difference=frame["drawn"] - frame["published"])


def _figures(table: pd.DataFrame, truth: CohortTruth) -> Iterator[Figure]:
    facts = read_facts()
    summary, clusters, cells = facts.summary, facts.clusters, table[list(facts.conditions.index)]
    people = table[["died", "age_at_entry", "age_at_death"]].assign(
        female=table["sex"] == "female", conditions=cells.sum(axis=1)
    )
    yield 6, "died", None, summary["mortality"], people["died"].mean()
    yield 6, "female", None, summary["female"], people["female"].mean()
    for name in ("age_at_entry", "age_at_death", "conditions"):
        simulated = people[name].agg(["mean", "std", "min", "max"])
        for (word, published), value in zip(summary[name].items(), simulated, strict=True):
            yield 6, f"{name.replace('_', ' ')}: {word}", None, published, value
    for region, share in summary["regions"].items():
        yield 6, region, None, share, (table["region"] == region).mean()
    for condition, share in facts.conditions["prevalence"].items():
        yield 10, str(condition), None, share, cells[condition].mean()
    rows = np.bincount(truth.labels, minlength=len(clusters))
    means = people.groupby(truth.labels).mean().reindex(clusters.index)
    for c in range(len(clusters)):
        yield 7, "share", c + 1, facts.weights[c], rows[c] / len(table)
        yield 11, "died", c + 1, clusters["mortality"][c], means["died"][c]
        yield 11, "age at death: mean", c + 1, clusters["age_at_death"][c], means["age_at_death"][c]
        yield 11, "female", c + 1, clusters["female"][c], means["female"][c]
