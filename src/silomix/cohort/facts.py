"""What Fendler et al. (2026) publish on their cohort, read from `facts.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

LOW, UNMARKED, MEMBER, NAMED, FLAG = -1, 0, 1, 2, 3
"""How table 8 marks a condition in a cluster; the last three are high, the strongest last."""


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation and range of a number."""

    mean: float
    sd: float
    least: int
    most: int


@dataclass(frozen=True)
class Condition:
    """A condition of table 10.

    Attributes
    ----------
    prevalence : share of the cohort that has it, as printed, to three digits.
    planted : the share to plant; another one only where 0.000 is printed.
    sex : "female" or "male" where only they can have it, otherwise None.
    """

    name: str
    prevalence: float
    planted: float
    sex: str | None


@dataclass(frozen=True)
class Cluster:
    """A cluster of tables 7, 8 and 11.

    Attributes
    ----------
    size : people in it.
    low, high : what marks it, in the words of table 8.
    nearly_all : conditions that nearly everyone in it has, by the text.
    mortality, female : shares of its people.
    age_at_death : mean of those who died.
    """

    size: int
    low: tuple[str, ...]
    high: tuple[str, ...]
    nearly_all: tuple[str, ...]
    mortality: float
    age_at_death: float
    female: float


@dataclass(frozen=True, eq=False)
class Facts:
    """The published figures.

    Attributes
    ----------
    conditions, clusters : in the order of their tables.
    wordings : the words of table 8, each with the names of table 10 by kind of mark.
    regions : share of the cohort by region.
    mortality, female : shares of the cohort.
    age_at_entry, age_at_death, counts : counts are of the conditions of a person.
    """

    conditions: tuple[Condition, ...]
    clusters: tuple[Cluster, ...]
    wordings: Mapping[str, Mapping[str, tuple[str, ...]]]
    regions: Mapping[str, float]
    mortality: float
    female: float
    age_at_entry: Spread
    age_at_death: Spread
    counts: Spread

    @cached_property
    def rows(self) -> int:
        """People in the cohort."""
        return sum(cluster.size for cluster in self.clusters)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """Share of each cluster: (cluster,)."""
        return np.array([cluster.size for cluster in self.clusters]) / self.rows

    @cached_property
    def planted(self) -> NDArray[np.float64]:
        """Share of the cohort to plant for each condition: (condition,)."""
        return np.array([condition.planted for condition in self.conditions])

    @cached_property
    def female_by_cluster(self) -> NDArray[np.float64]:
        """Share of women: (cluster,)."""
        return np.array([cluster.female for cluster in self.clusters])

    @cached_property
    def mortality_by_cluster(self) -> NDArray[np.float64]:
        """Share of people who died: (cluster,)."""
        return np.array([cluster.mortality for cluster in self.clusters])

    @cached_property
    def age_at_death_by_cluster(self) -> NDArray[np.float64]:
        """Mean age of those who died: (cluster,)."""
        return np.array([cluster.age_at_death for cluster in self.clusters])

    @cached_property
    def marks(self) -> NDArray[np.int64]:
        """How each cluster marks each condition: (cluster, condition), from LOW to FLAG.

        The strongest mark holds where several words of a cluster name one condition.
        """
        place = {condition.name: q for q, condition in enumerate(self.conditions)}
        marks = np.zeros((len(self.clusters), len(self.conditions)), dtype=np.int64)
        for c, cluster in enumerate(self.clusters):
            for kind, mark in (("members", MEMBER), ("named", NAMED), ("flags", FLAG)):
                names = [
                    name for word in cluster.high for name in self.wordings[word].get(kind, ())
                ]
                marks[c, [place[name] for name in names]] = mark
            marks[c, [place[name] for name in cluster.nearly_all]] = FLAG
            low = [name for word in cluster.low for name in self.wordings[word]["named"]]
            marks[c, [place[name] for name in low]] = LOW
        return marks

    def only(self, sex: str) -> NDArray[np.bool_]:
        """Return which conditions only that sex can have: (condition,)."""
        return np.array([condition.sex == sex for condition in self.conditions])


@cache
def read_facts() -> Facts:
    """Return the published figures."""
    text = (resources.files("silomix.cohort") / "facts.json").read_text(encoding="utf-8")
    content = json.loads(text)
    summary = content["summary"]
    return Facts(
        conditions=tuple(map(_condition, content["conditions"]["items"])),
        clusters=tuple(map(_cluster, content["clusters"]["items"])),
        wordings={
            word: {kind: tuple(names) for kind, names in kinds.items()}
            for word, kinds in content["wordings"]["items"].items()
        },
        regions=summary["regions"],
        mortality=summary["mortality"],
        female=summary["female"],
        age_at_entry=Spread(**summary["age_at_entry"]),
        age_at_death=Spread(**summary["age_at_death"]),
        counts=Spread(**summary["conditions"]),
    )


def _condition(item: dict[str, Any]) -> Condition:
    prevalence = item["prevalence"]
    return Condition(item["name"], prevalence, item.get("planted", prevalence), item.get("sex"))


def _cluster(item: dict[str, Any]) -> Cluster:
    return Cluster(
        size=item["size"],
        low=tuple(item["low"]),
        high=tuple(item["high"]),
        nearly_all=tuple(item.get("nearly_all", ())),
        mortality=item["mortality"],
        age_at_death=item["age_at_death"],
        female=item["female"],
    )
