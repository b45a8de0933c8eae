"""What is known of a person beside the conditions: sex, ages, death. Tables to draw from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, gammainc

from silomix.cohort.calibrate import planted
from silomix.cohort.counts import at_least_two
from silomix.cohort.facts import Facts, read_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

STUDY_YEARS = 7
"""1 January 2010 to 1 January 2017: who dies does so within these."""

DEATH_BY_AGE = np.log(1.08)
SOONER_BY_AGE = 0.027
"""By year of age at entry: the odds of death rise by 8 %, and the years to it become fewer, as
many fewer as make the standard deviation of the age at death that of table 6."""


@dataclass(frozen=True, eq=False)
class Outside:
    """Distributions of the outside variables, given the cluster.

    Attributes
    ----------
    ages : (age,), in years, those at entry.
    entry : (cluster, age), probability of each age at entry.
    died : (cluster, age), probability of death by age at entry.
    years : (cluster, age, year), probability of each number of years from entry to death.
    female : (cluster,), probability of a woman where no condition tells the sex.
    """

    ages: NDArray[np.int64]
    entry: NDArray[np.float64]
    died: NDArray[np.float64]
    years: NDArray[np.float64]
    female: NDArray[np.float64]


@cache
def outside() -> Outside:
    """Return the distributions, such that each cluster has the figures of table 11.

    Age at entry is a gamma variable above 80, in whole years, with the mean and standard
    deviation of table 6 in the cohort; a cluster that dies older by a year enters older by a
    year. Death is logistic in the age at entry, and the years to it are exponentially tilted
    over 0 … 7, less for the old; the intercept and the tilt of a cluster give its mortality
    and its mean age at death.
    """
    facts = read_facts()
    oldest = facts.age_at_entry.most
    ages = np.arange(facts.age_at_entry.least, oldest + 1)
    entry = _entry(facts, ages)
    died = _died(facts, ages, entry)
    years = _years(facts, ages, entry * died)
    return Outside(ages, entry, died, years, _open_female(facts))


def _entry(facts: Facts, ages: NDArray[np.int64]) -> NDArray[np.float64]:
    deaths = facts.age_at_death_by_cluster
    shift = deaths - facts.weights @ deaths
    # whole years: half a year lower than the age itself, and a twelfth more variance
    mean = (facts.age_at_entry.mean - ages[0] + 0.5 + shift)[:, np.newaxis]
    variance = facts.age_at_entry.sd**2 - 1 / 12 - facts.weights @ shift**2
    edges = np.arange(len(ages) + 1)
    below = gammainc(mean**2 / variance, edges * mean / variance)
    return _normalised(np.diff(below, axis=1))


def _died(facts: Facts, ages: NDArray[np.int64], entry: NDArray[np.float64]) -> NDArray[np.float64]:
    possible = ages <= facts.age_at_death.most

    def chance(intercept: NDArray[np.float64]) -> NDArray[np.float64]:
        slope = DEATH_BY_AGE * (ages - facts.age_at_entry.mean)
        return np.where(possible, expit(intercept[:, np.newaxis] + slope), 0.0)

    def mortality(intercept: NDArray[np.float64]) -> NDArray[np.float64]:
        return (entry * chance(intercept)).sum(axis=1)

    return chance(_solve(mortality, facts.mortality_by_cluster))


def _years(facts: Facts, ages: NDArray[np.int64], dead: NDArray[np.float64]) -> NDArray[np.float64]:
    years = np.arange(STUDY_YEARS + 1)
    at_death = ages[:, np.newaxis] + years
    # who is too old to die within the range has no death to draw, and may have any years
    possible = (at_death <= facts.age_at_death.most) | (years == 0)
    sooner = SOONER_BY_AGE * (ages - facts.age_at_entry.mean)[:, np.newaxis]

    def chance(tilt: NDArray[np.float64]) -> NDArray[np.float64]:
        exponent = (tilt[:, np.newaxis, np.newaxis] - sooner) * years
        return _normalised(np.where(possible, np.exp(exponent), 0.0))

    def age_at_death(tilt: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.einsum("ca,cat,at->c", _normalised(dead), chance(tilt), at_death)

    return chance(_solve(age_at_death, facts.age_at_death_by_cluster))


def _open_female(facts: Facts) -> NDArray[np.float64]:
    """Return the share of women where no condition tells the sex: (cluster,).

    Who has a condition of men is one, who has one of women and none of men is a woman; the
    others make the share of women in the cluster that of table 11.
    """
    men, women = facts.only("male"), facts.only("female")
    chances = planted().chances

    def without(some: NDArray[np.bool_]) -> NDArray[np.float64]:
        none = np.prod(1.0 - chances[:, some], axis=1)
        return none * at_least_two(chances[:, ~some]) / planted().at_least_two

    open_to_both = without(men | women)
    told = without(men) - open_to_both
    return (facts.female_by_cluster - told) / open_to_both


def _solve(
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the arguments, (cluster,), where an increasing function takes its targets."""
    lower, upper = np.full(len(target), -5.0), np.full(len(target), 5.0)
    for _ in range(50):
        middle = (lower + upper) / 2
        short = function(middle) < target
        lower, upper = np.where(short, middle, lower), np.where(short, upper, middle)
    return upper


def _normalised(masses: NDArray[np.float64]) -> NDArray[np.float64]:
    return masses / masses.sum(axis=-1, keepdims=True)
