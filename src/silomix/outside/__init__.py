"""Variables that were not clustered: how each cluster differs from the population in them."""

from __future__ import annotations

from silomix.outside.columns import read_outside
from silomix.outside.compare import check_method, compare_outside
from silomix.outside.record import Comparison, Outside

__all__ = ["Comparison", "Outside", "check_method", "compare_outside", "read_outside"]
