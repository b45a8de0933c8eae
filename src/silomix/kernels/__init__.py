"""The inner loops, compiled; `tests/cases` has a readable twin of each that defines it."""
