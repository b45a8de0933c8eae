"""Families of distributions: one file for each kind of variable, and what they share."""

from silomix.families.product import KINDS as KINDS
from silomix.families.product import has_drift as has_drift
from silomix.families.product import make_family as make_family
