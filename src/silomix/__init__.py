"""Bayesian clustering across data silos that may not pool their rows."""
