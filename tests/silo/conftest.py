"""What several tests of the sampler look at."""

from __future__ import annotations

import pytest

from silomix.model.families import compiled_sweeps


@pytest.fixture
def advances(monkeypatch):
    """The chain's key and sweeps of each call of the family, and whether a pool shared the rows."""
    calls = []
    advance = compiled_sweeps.advance

    def record(chain, sweeps, when, kept, pool):
        calls.append((chain.key, sweeps, pool is not None))
        advance(chain, sweeps, when, kept, pool)

    monkeypatch.setattr(compiled_sweeps, "advance", record)
    return calls
