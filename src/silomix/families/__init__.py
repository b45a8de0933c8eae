"""Families of distributions: one file for each kind of variable, and what they share."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from silomix.families.categorical import Categorical
from silomix.families.drift import Drifts
from silomix.families.gaussian import Gaussian
from silomix.families.gaussian_full import FullGaussian
from silomix.families.negative_binomial import NegativeBinomial
from silomix.families.parameter import Parameter
from silomix.families.poisson import Poisson
from silomix.families.product import Product
from silomix.families.student_t import StudentT

if TYPE_CHECKING:
    from silomix.families.family import Family
    from silomix.families.numeric import NumberFamily
    from silomix.model.prior import Prior
    from silomix.model.schema import Schema

# The family of each kind of numbers, by the word that tables and study files have for it. A class
# that is added here, in every program that reads the study, is a kind like the others.
KINDS: dict[str, type[NumberFamily]] = {
    "gaussian": Gaussian,
    "gaussian-full": FullGaussian,
    "student-t": StudentT,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
    "parameter": Parameter,  # of clusters sampled elsewhere: no column of a table
}


def all_kinds() -> list[str]:
    """Return the kinds of variables, in the order that they have in a schema."""
    return ["categorical", *KINDS]


def has_drift(kind: str) -> bool:
    """Tell whether silos may differ in variables of this kind: whether its family says how."""
    return KINDS[kind].draw_own is not Drifts.draw_own


def make_family(schema: Schema, prior: Prior) -> Product:
    """Return the family of a study's variables under the prior of the pooled model."""
    blocks: list[Family] = []
    for kind, group in groupby(schema.variables, key=lambda variable: variable.kind):
        variables = tuple(group)
        own = kind == "categorical"
        blocks.append(Categorical(variables, prior.beta) if own else KINDS[kind](variables))
    return Product(tuple(blocks))
