"""Published figures → the probabilities to plant. No randomness: one answer for every cohort."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

from silomix.cohort.counts import at_least_two, count_moments, prevalence
from silomix.cohort.facts import FLAG, LOW, MEMBER, NAMED, UNMARKED, Facts, read_facts

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLAG_CHANCE = 0.95
NAMED_POWER, MEMBER_POWER = 1 / 6, 1 / 3
LOW_FACTOR = 0.5
NAMED_ROOM, MARKED_ROOM = 0.5, 0.8
SEX_ROOM = 0.5
EXACT = 1e-10
"""How close the planted prevalences come to the published ones; those have three digits."""


@dataclass(frozen=True, eq=False)
class Planted:
    """The mixture that a cohort is drawn from.

    Attributes
    ----------
    weights : (cluster,).
    chances : (cluster, condition), of independent conditions; who has fewer than two is drawn
        again, in the same cluster.
    prevalence : (cluster, condition), share with the condition after that.
    at_least_two : (cluster,), share that is not drawn again.
    """

    weights: NDArray[np.float64]
    chances: NDArray[np.float64]
    prevalence: NDArray[np.float64]
    at_least_two: NDArray[np.float64]

    def count_mean_and_sd(self) -> tuple[float, float]:
        """Return mean and standard deviation of the number of conditions of a person."""
        means, squares = count_moments(self.chances)
        mean = float(self.weights @ means)
        return mean, float(np.sqrt(self.weights @ squares - mean**2))


@cache
def planted() -> Planted:
    """Return the planted mixture.

    A cell of (cluster, condition) that table 8 of Fendler et al. (2026) marks has the chance
    that `marked_chances` gives it. Of the others, with b_q for the condition, d_c for the
    deaths of the cluster above the average (table 11) and s_cq for the share of the sex that
    can have the condition,

        logit chance = b_q + k · d_c + log s_cq.

    The b_q are such that each condition is as frequent in the cohort as in table 10, after
    people with fewer than two conditions are drawn again. The excess of deaths stands in for
    how ill a cluster is otherwise, which is not published, and k makes the standard deviation
    of the number of conditions that of table 6. Their mean is the sum of table 10.
    """
    facts = read_facts()
    fixed = marked_chances(facts)
    excess = facts.mortality_by_cluster - facts.weights @ facts.mortality_by_cluster
    shares = np.log(_sex_shares(facts))

    def mixture(k: float) -> Planted:
        return _with_prevalences(facts, fixed, shares + k * excess[:, np.newaxis])

    def too_wide(k: float) -> float:
        return mixture(k).count_mean_and_sd()[1] - facts.counts.sd

    return mixture(brentq(too_wide, 0.0, 10.0))


def marked_chances(facts: Facts) -> NDArray[np.float64]:
    """Return the chances of the marked cells: (cluster, condition), NaN elsewhere.

    With π for the prevalence in the cohort: π/2 for a low condition, less where few are of the
    sex that can have it; π^(1/6) for one that is named; 0.95 for one that stands for a group, or
    that nearly everyone has; π^(1/3) for the other members of a group. The roots lift rare
    conditions most. No more than half of a cluster's men, or women, have a condition that only
    they can have. Of all people with a condition, at most half are in clusters that name it, and
    four fifths in clusters where it is high: the chances that would need more shrink by a common
    factor, those of members first, then those of flags.
    """
    marks, share = facts.marks, facts.planted
    aims = {
        NAMED: (share**NAMED_POWER, NAMED_ROOM),
        FLAG: (np.full_like(share, FLAG_CHANCE), MARKED_ROOM),
        MEMBER: (share**MEMBER_POWER, MARKED_ROOM),
    }
    able = _able(facts)
    most = np.where(able < 1.0, SEX_ROOM * able, 1.0)
    chances = np.full(marks.shape, np.nan)
    used = np.zeros_like(share)
    for mark, (aim, room) in aims.items():
        wanted = np.where(marks == mark, np.minimum(aim, most), 0.0)
        people = facts.weights @ wanted
        left = room * share - used
        factor = np.minimum(1.0, np.divide(left, people, out=np.ones_like(left), where=people > 0))
        chances = np.where(marks == mark, factor * wanted, chances)
        used += factor * people
    return np.where(marks == LOW, LOW_FACTOR * share * np.minimum(_sex_shares(facts), 1.0), chances)


def _able(facts: Facts) -> NDArray[np.float64]:
    """Return the share of each cluster that can have the condition: (cluster, condition)."""
    women = facts.female_by_cluster[:, np.newaxis]
    return np.select([facts.only("male"), facts.only("female")], [1.0 - women, women], 1.0)


def _sex_shares(facts: Facts) -> NDArray[np.float64]:
    """Return that share relative to the one in the cohort: (cluster, condition)."""
    able = _able(facts)
    return able / (facts.weights @ able)


def _with_prevalences(
    facts: Facts, fixed: NDArray[np.float64], offsets: NDArray[np.float64]
) -> Planted:
    """Return the mixture whose unmarked cells are expit(b_q + offset), b_q by Newton's method.

    Parameters
    ----------
    fixed, offsets : (cluster, condition).
    """
    unmarked = facts.marks == UNMARKED
    base = logit(facts.planted)
    while True:
        chances = np.where(unmarked, expit(base + offsets), fixed)
        shares = prevalence(chances)
        gap = facts.planted - facts.weights @ shares
        if np.abs(gap).max() < EXACT:
            return Planted(facts.weights, chances, shares, at_least_two(chances))
        slope = facts.weights @ np.where(unmarked, chances * (1.0 - chances), 0.0)
        # the slope leaves out the drawing again, which is weak; a long first step may overshoot
        base += np.clip(gap / slope, -1.0, 1.0)
