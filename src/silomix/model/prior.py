"""The prior of the pooled model, and its fractionation over silos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from silomix.families.product import Product


@dataclass(frozen=True)
class Prior:
    """Symmetric Dirichlet priors of the pooled model, and a silo's fraction of them.

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
        """One silo's (alpha, beta) in a study of `silos` silos.

        Other families fractionate priors of their own: `PooledModel.shared_family`.
        """
        if not self.fractionate:
            return self.alpha, self.beta
        from silomix.families.categorical import fractional

        return fractional(self.alpha, silos), fractional(self.beta, silos)


class PooledModel(NamedTuple):
    """Prior, family and seed, as every stage of the coordinator needs them.

    Attributes
    ----------
    prior : of the model of all silos' rows together, before fractionation.
    family : of the variables, under that prior.
    seed : of all random numbers; results are reproducible.
    """

    prior: Prior
    family: Product
    seed: int

    def shared_family(self, silos: int) -> Product:
        """Family under a silo's fraction of the prior in a study of `silos` silos."""
        return self.family.share(silos) if self.prior.fractionate else self.family
