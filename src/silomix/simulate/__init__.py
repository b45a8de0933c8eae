"""Tables with a known truth: designs of Fendler et al. (2026), tables like a schema, their cohort.

`import silomix` always imports this package, because `silomix.simulate` is the function: imported
later, the package would take its place. So whatever is slow to import is imported in functions, and
`silomix.simulate.cohort`, which needs pandas, by whoever wants it.
"""

from __future__ import annotations

from silomix.simulate.designs import DESIGNS, SILO_COLUMN, Truth, simulate, simulate_like

__all__ = ["DESIGNS", "SILO_COLUMN", "Truth", "simulate", "simulate_like"]
