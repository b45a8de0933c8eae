"""The methods that silomix is compared with, each written from its own definition.

All take a table and the column that names its silos, as `silomix.fit` does, and return a
`RivalResult`. Those that are federated ask the silos through the same seam, and bring the handlers
of their own questions with them.
"""

from __future__ import annotations

from silomix.rivals.blocks import DirichletProcess as DirichletProcess
from silomix.rivals.blocks import FiniteDirichlet as FiniteDirichlet
from silomix.rivals.blocks import MasterOdds as MasterOdds
from silomix.rivals.blocks import PitmanYor as PitmanYor
from silomix.rivals.blocks import Sweeps as Sweeps
from silomix.rivals.blocks import block_gibbs as block_gibbs
from silomix.rivals.consensus import cmc as cmc
from silomix.rivals.consensus import product as product
from silomix.rivals.consensus import rabinovich as rabinovich
from silomix.rivals.federation import RivalResult as RivalResult
from silomix.rivals.kmodes import fed_kmodes as fed_kmodes
from silomix.rivals.merdel import Merging as Merging
from silomix.rivals.merdel import Search as Search
from silomix.rivals.merdel import fedmerdel as fedmerdel
from silomix.rivals.pooled import LatentClasses as LatentClasses
from silomix.rivals.pooled import latent_classes as latent_classes
from silomix.rivals.pooled import pooled_mcmc as pooled_mcmc
