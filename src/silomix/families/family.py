"""The interface of a kind of variable, and what its vectors are.

A family is a block of variables of one kind, independent of each other within a cluster but for
those of a joint family, such as `gaussian_full`. Everything else in the package sees three flat
vectors of it:

statistics (..., T)
    T(x) summed over the rows of a cluster: level counts; or n, Σx and Σx². They add up over rows,
    silos and clusters, and are what leaves a silo.
parameters (..., P)
    Level probabilities; or mean and standard deviation. What is drawn, averaged and reported.
conjugate coordinates χ (..., H)
    Of a prior or posterior of the parameters: p(θ | χ) ∝ exp(χ · η(θ)) h(θ). The prior χ₀ is that
    of pseudo-observations, and rows add their statistics: the posterior is χ₀ + ΣT.

The families here are exponential families, log p(x | θ) = T(x) · η(θ) + log_base(x), with conjugate
priors. With F(χ) = ln ∫ exp(χ · η(θ)) h(θ) dθ, `log_normaliser`, the evidence of rows is
F(χ₀ + ΣT) − F(χ₀), and E η its gradient. Of most families χ has the columns of the statistics. A
normal family lists n twice, as its prior may be worth different numbers of rows for the mean and
for the spread: `conjugate` writes statistics so. `Product` joins blocks by concatenating their
columns; every study has one, even where all variables are of one kind.

Drift is a family's own matter too: how a silo's parameters vary around the shared ones at κ, which
at κ = ∞ they equal.

The methods are in four groups: `Likelihood`, `Conjugate`, `Drifts` and `Shown`. What a policy lets
out is here.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from silomix.families.drift import Drifts
from silomix.families.shown import Shown

if TYPE_CHECKING:
    from silomix.families.release_rounding import Rounded, Said
    from silomix.kernels.arrays import Array, Floats, Ints, Rng
    from silomix.study.policy import Policy


class Family(Drifts, Shown):
    """A block of variables of one kind; the module's docstring says what its vectors are."""

    @abstractmethod
    def disclose(
        self,
        cells: Array,
        member: Floats,
        concentration: Floats,
        sizes: Ints,
        rules: Policy,
        known: Ints | None = None,
    ) -> Rounded:
        """Return what a policy lets out of a silo's clusters.

        Parameters
        ----------
        cells : (row, variable); member : (row, cluster); concentration : (cluster, variable)
        sizes : (cluster,), as released; known : (cluster, variable), cells, likewise, where they
            follow from other released numbers.
        """

    @abstractmethod
    def basis(self, known: Ints, concentration: Floats, rules: Policy) -> Ints:
        """Say what each released profile is of: (cluster, variable).

        Parameters
        ----------
        known : (cluster, variable), rows whose cell is known, as released.
        """

    @abstractmethod
    def breach(self, mean: Floats, concentration: Floats, known: Ints, rules: Policy) -> str:
        """Say what released numbers have that no rule lets out, as the end of a sentence; or ""."""

    @abstractmethod
    def draw_behind(self, said: Said, draws: int, rng: Rng) -> Floats:
        """Draw parameters that all sources share, given what they released: (draw, parameter)."""
