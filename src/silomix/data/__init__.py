"""Table → Shard: level codes, missing cells, and the checks at the door."""

from __future__ import annotations

from silomix.data.encoding import UNOBSERVED_LEVEL, encode, expand, infer_schema, load
from silomix.data.reading import read_table

__all__ = ["UNOBSERVED_LEVEL", "encode", "expand", "infer_schema", "load", "read_table"]
