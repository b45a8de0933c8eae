"""What a family of component distributions must offer to the sampler.

To add a family: write a module beside this one with a class that satisfies `Family`, give its
kernels a readable twin in `tests/cases`, list it in the contract tests, and say in
its docstring which conditional distributions it draws from. The sampler is not touched: it knows
chains, schedules, storage and interruption, and nothing of likelihoods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import numpy as np
    from numpy.typing import NDArray

    from silomix.kernels.arrays import Floats, Ints
    from silomix.model.schema import Schema, Shard


class Kept(NamedTuple):
    """Where one chain's kept draws go.

    Attributes
    ----------
    labels : (draw, row)
    weights : (draw, component)
    probabilities : (draw, component, column), the family's parameters.
    log_likelihood : (draw,)
    members : (draw, component), rows by component.
    """

    labels: NDArray[np.uint8]
    weights: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    log_likelihood: Floats
    members: Ints


@dataclass(frozen=True)
class Sweeps:
    """Which sweeps of which chain to run: first … last, numbered from one.

    Attributes
    ----------
    key : root of the chain's randomness; sweep i draws from (key, i) whatever ran before.
    burn_in, thin : sweep i is kept when i > burn_in and i − burn_in is a multiple of thin.
    """

    key: int
    first: int
    last: int
    burn_in: int
    thin: int


class Family(Protocol):
    """A family of component distributions with conjugate, or otherwise drawable, parameters."""

    def columns(self, schema: Schema) -> int:
        """Return how many parameter columns a component has."""
        ...

    def prepare(self, shard: Shard, components: int, alpha: float, beta: float) -> Any:
        """Return what all chains of a shard share: its layout and its prior."""
        ...

    def start(self, plan: Any, key: int) -> NDArray[np.uint8]:
        """Return a chain's first labels."""
        ...

    def resume(self, plan: Any, labels: NDArray[np.uint8], threads: int) -> Any:
        """Return a chain that goes on from `labels`, with room for `threads` threads.

        The labels are the whole state: a chain rebuilt from them goes on as if never stopped.
        """
        ...

    def advance(self, chain: Any, sweeps: Sweeps, kept: Kept, pool: Executor | None) -> None:
        """Run the sweeps on the chain in place and write the draws that are due into `kept`.

        With a `pool`, its threads share the rows of each sweep; the draws are the same.
        """
        ...

    def labels(self, chain: Any) -> NDArray[np.uint8]:
        """Return the chain's current labels."""
        ...
