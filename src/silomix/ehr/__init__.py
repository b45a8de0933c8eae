"""Electronic health records → one row per person, one 0/1 column per condition.

From a long table of coded events, or from a database in the OMOP common data model, through
DuckDB and out of core. Nothing is dropped silently: the result counts dropped records by reason.
"""

from __future__ import annotations

from silomix.ehr.code_list import Code, CodeList, read_codes
from silomix.ehr.counting import EhrTable
from silomix.ehr.database import Engine, InDatabase
from silomix.ehr.long_and_omop import LongColumns, read_long, read_omop

__all__ = [
    "Code",
    "CodeList",
    "EhrTable",
    "Engine",
    "InDatabase",
    "LongColumns",
    "read_codes",
    "read_long",
    "read_omop",
]
