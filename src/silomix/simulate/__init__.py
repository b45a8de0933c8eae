"""Simulated tables: designs of Fendler et al. (2026), tables like a schema, their cohort.

`import silomix` always imports this package, because `silomix.simulate` is the function: imported
later, the package would take its place. So slow imports are inside functions, and
`silomix.simulate.cohort`, which needs pandas, is imported by its users.
"""

from __future__ import annotations

from silomix.simulate.designs import DESIGNS, SILO_COLUMN, Truth, simulate, simulate_like

__all__ = ["DESIGNS", "SILO_COLUMN", "Truth", "simulate", "simulate_like"]
