"""How kernels are compiled and split among threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile without the interpreter lock, kept on disk between runs."""
    compile_it: Callable[..., Callable[[Function], Function]] = numba.njit
    return compile_it(nogil=True, cache=True)(function)


def split_work(size: int, threads: int, do: Callable[[int, int], object]) -> None:
    """Call `do(first, last)` on ranges that make up 0 … size, each on a thread of its own."""
    parts = max(1, min(threads, size))
    edges = [size * part // parts for part in range(parts + 1)]
    if parts == 1:
        do(0, size)
        return
    with ThreadPoolExecutor(parts) as pool:
        list(pool.map(do, *zip(*pairwise(edges), strict=True)))
