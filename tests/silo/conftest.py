"""What several tests of the sampler look at."""

from __future__ import annotations

import pytest

from silomix.model.families.categorical import Categorical


@pytest.fixture
def advances(monkeypatch):
    """The chain's key and sweeps of each call of the family, and whether a pool shared the rows."""
    calls = []
    advance = Categorical.advance

    def record(self, chain, sweeps, when, kept, pool):
        calls.append((chain.key, sweeps, pool is not None))
        advance(self, chain, sweeps, when, kept, pool)

    monkeypatch.setattr(Categorical, "advance", record)
    return calls
