"""What a policy's rules mean for every kind of variable, and the records that kinds share for it.

A family says itself what its rules are, in three methods: `disclose`, what may leave of a silo's
rows; `breach`, whether released numbers could have left so; and `draw_behind`, parameters given
what a release can stand for. `level_rules` has those of categories, `sum_rules` those of numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from silomix.kernels.arrays import Bools, Floats, Ints

# Of a step of half an octave, as a share of its upper end.
MIDDLE = 2**-0.25
# What a released profile is of: the cluster, those of the silo that show theirs, or nothing.
CLUSTER, SILO, UNIFORM = 0, 1, 2
# Rules that put another profile in the place of a cluster's own. They may say how often they were
# needed: the released numbers say as much.
STAND_INS = ("pooled profile", "uniform profile")
# How far a share may be from none or all, floating point being what it is.
CERTAIN = 1e-9
# And a count, or a sum in steps, from a whole number.
SAME = 1e-6
# And a profile from the pool that it stands for.
NEAR = 1e-9
# Labels in doubt move together, and cost more than each by itself would: a rule of thumb, seen on
# simulated silos and not derived.
DOUBT_POWER = 3.0


class Rules(Protocol):
    """What a family needs to know of a policy: see `silomix.study.policy.Policy`."""

    @property
    def minimum_count(self) -> int:
        """The fewest rows that a released number may stand for."""

    @property
    def round_to(self) -> int:
        """What counts leave as multiples of."""

    @property
    def has_rules(self) -> bool:
        """Whether any number is changed on its way out."""


class Deed(NamedTuple):
    """What a rule did: the fields of `silomix.messages.Check`."""

    rule: str
    where: str
    threshold: int
    cells: int
    changed: int
    result: str
    inside: str = ""


class Rounded(NamedTuple):
    """What may leave of a silo's clusters.

    Attributes
    ----------
    mean : (cluster, statistic); concentration : (cluster, variable)
    deeds : what the rules did, with details that only the silo may see.
    """

    mean: Floats
    concentration: Floats
    deeds: tuple[Deed, ...]


class Said(NamedTuple):
    """What local clusters, of one release or several, say of a profile.

    Attributes
    ----------
    mean : (source, statistic); concentration : (source, variable); sizes : (source,)
    base : (source,), what counts were rounded to; 0 where no rule changed them.
    least : (source,), rows below which no count leaves.
    """

    mean: Floats
    concentration: Floats
    sizes: Ints
    base: Ints
    least: Ints

    def of(self, clusters: Ints | Bools) -> Said:
        """Return some of the sources."""
        return Said._make(part[clusters] for part in self)


def least_units(rules: Rules) -> int:
    """Return the smallest multiple of the base that reaches the minimum, in units of the base."""
    return -(-rules.minimum_count // rules.round_to)


def round_counts(counts: Ints, rules: Rules) -> Ints:
    """Round counts to the policy's base, and to no less than its minimum: same axes."""
    base = rules.round_to
    return np.maximum((counts + base // 2) // base, least_units(rules)) * base


def coarse_concentration(concentration: Floats, full: Floats) -> Floats:
    """Round concentrations to half octaves below that of a cluster whose members are certain.

    With certain members the concentration is the cluster's exact size, up to the noise of a
    finite number of draws: rounded finely, its average over the variables would give the size
    back. So whatever is near the full weight of the released size becomes it, and
    the rest the middle of its step.

    Parameters
    ----------
    concentration : (cluster, variable)
    full : (cluster, variable), released size.
    """
    some = np.maximum(concentration, 1.0)
    steps = np.maximum(np.floor(2 * np.log2(full / some)), 0)
    return full * np.where(steps == 0, 1.0, MIDDLE * 2 ** (-steps / 2))


def certain_members(member: Floats) -> Bools:
    """Tell for which clusters no draw doubts who belongs: (cluster,) from (row, cluster)."""
    return np.asarray((np.abs(member - np.rint(member)) < CERTAIN).all(axis=0))


def worth_in_doubt(member: Floats) -> Floats:
    """Return what a row of each cluster is worth, by the doubt about who belongs: (cluster,)."""
    doubt = (member * (1 - member)).sum(axis=0) / np.maximum(member.sum(axis=0), 1.0)
    return np.asarray((1 + doubt) ** -DOUBT_POWER)


def stand_in_deeds(basis: Ints, where: str, least: int) -> list[Deed]:
    """Say how often another profile stands in for a cluster's own: basis (cluster, variable)."""
    used = [int((basis == kind).sum()) for kind in (SILO, UNIFORM)]
    return [
        Deed(rule, where, least, basis.size, count, applied(count))
        for rule, count in zip(STAND_INS, used, strict=True)
    ]


def step_deed(before: Floats, after: Floats, base: int) -> Deed:
    """Say what became of concentrations, (cluster, variable)."""
    ratio, changed = after / np.maximum(before, 1.0), int((after != before).sum())
    inside = f"multiplied by {ratio.min():.2f} to {ratio.max():.2f}"
    rule, where = "steps of half octaves", "concentrations"
    return Deed(rule, where, base, before.size, changed, "applied", inside)


def applied(number: int) -> str:
    """Return the result of a rule that changed so many numbers."""
    return "applied" if number else "not needed"
