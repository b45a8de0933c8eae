"""Families, models and rows of variables that have nothing but sizes."""

from __future__ import annotations

from functools import partial

from silomix.families import derived
from silomix.families import family as interface
from silomix.families.categorical import Categorical
from silomix.families.product import Product
from silomix.model.schema import PooledModel, Prior, Schema, Shard, Variable


class Asked:
    """A family, and the functions of families with it as their first argument."""

    def __init__(self, family):
        self.family = family

    def __getattr__(self, name):
        for module in (derived, interface):
            if name in vars(module) and not hasattr(self.family, name):
                return partial(getattr(module, name), self.family)
        return getattr(self.family, name)


def posterior(family, statistics, prior=None):
    """Conjugate coordinates of the parameters given rows with these sums."""
    return (family.prior() if prior is None else prior) + family.conjugate(statistics)


def variables_of(sizes):
    return tuple(Variable(f"v{q}", tuple(map(str, range(k)))) for q, k in enumerate(sizes))


def categories(sizes, beta=0.5):
    """Variables with so many levels each, under Dirichlets of this concentration."""
    return Product((Categorical(variables_of(sizes), beta),))


def model_of(sizes, seed, prior=None):
    """The pooled model of categories."""
    prior = prior or Prior()
    return PooledModel(prior, categories(sizes, prior.beta), seed)


def shard_of(codes, sizes):
    return Shard(Schema(variables_of(sizes)), codes)
