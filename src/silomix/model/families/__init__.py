"""Families of component distributions; `base` says what one must offer."""
