"""The inner loops: `reference` defines them, `compiled` gives the same chain fast."""
