"""Short names of array types; docstrings give the axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
# kept draws; and either these or what is computed from them
Singles = NDArray[np.float32]
Reals = NDArray[np.floating]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
# labels of rows, and bits; a table's cells, of as few bytes as its levels need
Bytes = NDArray[np.uint8]
Codes = NDArray[np.unsignedinteger]
Rng = np.random.Generator
