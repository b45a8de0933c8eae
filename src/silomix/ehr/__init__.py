"""Electronic health records → one row per person, one 0/1 column per condition.

From a long table of coded events, or from a database in the OMOP common data model, through
DuckDB and out of core. Nothing is left out in silence: each record says what was dropped, and why.
"""

from __future__ import annotations

from silomix.ehr.code_list import Code as Code
from silomix.ehr.code_list import CodeList as CodeList
from silomix.ehr.code_list import read_codes as read_codes
from silomix.ehr.counting import EhrTable as EhrTable
from silomix.ehr.database import Engine as Engine
from silomix.ehr.database import InDatabase as InDatabase
from silomix.ehr.long_and_omop import LongColumns as LongColumns
from silomix.ehr.long_and_omop import read_long as read_long
from silomix.ehr.long_and_omop import read_omop as read_omop
