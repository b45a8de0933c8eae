"""Ways to ask the silos; none contains statistics."""
