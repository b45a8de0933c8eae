"""The methods that silomix is compared with, each written from its own definition.

All take a table and the column that names its silos, as `silomix.fit` does, and return a
`RivalResult`. Those that are federated ask the silos through the same seam, with questions of
their own: importing this package makes every silo of this process able to answer them.
"""

from __future__ import annotations

from silomix.rivals.blocks import Sweeps
from silomix.rivals.consensus import cmc, product, rabinovich
from silomix.rivals.federated_kmodes import fed_kmodes
from silomix.rivals.latent_classes import LatentClasses, latent_classes
from silomix.rivals.merdel import fedmerdel
from silomix.rivals.merging import Merging
from silomix.rivals.odds import DirichletProcess, FiniteDirichlet, MasterOdds, PitmanYor
from silomix.rivals.pooled import pooled_mcmc
from silomix.rivals.record import RivalResult
from silomix.rivals.two_stage import block_gibbs
from silomix.rivals.variational import Search

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
    "fed_kmodes",
    "fedmerdel",
    "latent_classes",
    "pooled_mcmc",
    "product",
    "rabinovich",
]
