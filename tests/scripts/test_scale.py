"""A table the size of a national cohort, in a laptop's memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, sys
import numpy as np, pandas as pd
import silomix

rng = np.random.default_rng(0)
rows, conditions, clusters = 289_821, 94, 12
labels = rng.integers(0, clusters, rows)
present = rng.beta(0.4, 6.0, (clusters, conditions))
table = pd.DataFrame({
    f"c{q}": (rng.random(rows) < present[labels, q]).astype(np.int8) for q in range(conditions)
})
draws = silomix.sample(table, components=50, iterations=200, chains=1, seed=1, progress=False)
posterior = silomix.local_posterior(draws)
print(json.dumps({
    "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    "draws": len(draws.labels),
    "subsample": posterior.partition.subsample,
    "rows": int(posterior.sizes.sum()),
    "ari": silomix.metrics.adjusted_rand_index(labels, posterior.partition.labels),
}))
"""


@pytest.mark.slow
def test_a_cohort_of_289821_rows_stays_under_two_gigabytes():
    """No row × row object at any step: one would need 84 GB in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["peak"] < 2e9
    assert found["draws"] == 100
    assert found["rows"] == 289_821
    assert found["subsample"] == 5_000
    assert found["ari"] > 0.5
