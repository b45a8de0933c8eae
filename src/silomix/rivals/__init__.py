"""Methods for comparison with silomix, each implemented from its own definition.

All take a table and the column that names its silos, as `silomix.fit` does, and return a
`RivalResult`. Federated ones ask the silos through the same interface, with handlers of their own
questions.
"""

from __future__ import annotations

from silomix.rivals.block_gibbs import (
    DirichletProcess,
    FiniteDirichlet,
    MasterOdds,
    PitmanYor,
    Sweeps,
    block_gibbs,
)
from silomix.rivals.consensus import cmc, product, rabinovich
from silomix.rivals.federation import RivalResult
from silomix.rivals.fedmerdel import Merging, Search, fedmerdel
from silomix.rivals.kmeans_kmodes import fed_kmeans, fed_kmodes
from silomix.rivals.pooled import LatentClasses, latent_classes, pooled_mcmc

__all__ = [
    "DirichletProcess",
    "FiniteDirichlet",
    "LatentClasses",
    "MasterOdds",
    "Merging",
    "PitmanYor",
    "RivalResult",
    "Search",
    "Sweeps",
    "block_gibbs",
    "cmc",
    "fed_kmeans",
    "fed_kmodes",
    "fedmerdel",
    "latent_classes",
    "pooled_mcmc",
    "product",
    "rabinovich",
]
