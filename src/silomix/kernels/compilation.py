"""Compilation of kernels, and their work on several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile without the interpreter lock, cached on disk between runs."""
    compile_it: Callable[..., Callable[[Function], Function]] = numba.njit
    return compile_it(nogil=True, cache=True)(function)


def ranges(size: int, parts: int, step: int = 1) -> list[tuple[int, int]]:
    """Cut 0 … size into `parts` ranges that start at multiples of `step`."""
    steps = -(-size // step)
    return list(pairwise(min(size, steps * part // parts * step) for part in range(parts + 1)))


def split_work(size: int, threads: int, do: Callable[[int, int], object]) -> None:
    """Call `do(first, last)` on ranges that cover 0 … size, each on its own thread."""
    parts = max(1, min(threads, size))
    if parts == 1:
        do(0, size)
        return
    with ThreadPoolExecutor(parts) as pool:
        list(pool.map(do, *zip(*ranges(size, parts), strict=True)))
