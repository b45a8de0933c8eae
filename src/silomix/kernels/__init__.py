"""Compiled inner loops; `tests/cases` has a readable twin of each that defines it."""
