"""What several tests of the sampler look at."""

from __future__ import annotations

import pytest

from silomix.families.chains import CategoryChain


@pytest.fixture
def advances(monkeypatch):
    """The chain's key and sweeps of each call of the family, and whether a pool shared the rows."""
    calls = []
    advance = CategoryChain.advance

    def record(chain, sweeps, when, kept, pool):
        calls.append((chain.key, sweeps, pool is not None))
        advance(chain, sweeps, when, kept, pool)

    monkeypatch.setattr(CategoryChain, "advance", record)
    return calls
