"""The prior of the pooled model, and the share that each of several silos takes: fractionation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from silomix.families.product import Product


@dataclass(frozen=True)
class Prior:
    """Symmetric Dirichlet priors of the pooled model, and how one silo takes its share.

    Attributes
    ----------
    alpha : concentration of the mixture weights.
    beta : concentration of the level probabilities.
    fractionate : whether a silo uses the prior to the power 1/S.

    Examples
    --------
    >>> silomix.Prior().share(silos=2)
    (0.75, 0.75)
    >>> silomix.Prior(fractionate=False).share(silos=2)
    (0.5, 0.5)
    """

    alpha: float = 0.5
    beta: float = 0.5
    fractionate: bool = True

    def share(self, silos: int) -> tuple[float, float]:
        """Return one silo's (alpha, beta) in a study of `silos` silos.

        Every family takes its own share of what it has for β: `PooledModel.shared_family`.
        """
        if not self.fractionate:
            return self.alpha, self.beta
        from silomix.families.dirichlet import fractional

        return fractional(self.alpha, silos), fractional(self.beta, silos)


class PooledModel(NamedTuple):
    """What every stage of the coordinator needs to know of a study.

    Attributes
    ----------
    prior : of the model of all silos' rows together, not a silo's share of it.
    family : of the variables, under that prior.
    seed : of all randomness: same seed, same answer.
    """

    prior: Prior
    family: Product
    seed: int

    def shared_family(self, silos: int) -> Product:
        """Return the family under a silo's share of the prior in a study of `silos` silos."""
        return self.family.share(silos) if self.prior.fractionate else self.family
