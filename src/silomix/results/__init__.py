"""Results as files and words for people: of one silo, and of the whole method."""

from __future__ import annotations

from silomix.results.common import (
    as_text,
    check_free,
    table_view,
    write_table,
    write_text,
    writing,
)
from silomix.results.labels import assign_rows, assigned_record, assigned_view, read_ids, with_ids
from silomix.results.posterior import PAGE, posterior_files, write_posterior
from silomix.results.silo import as_record, describe, silo_files, write_silo
from silomix.results.words import posterior_record, posterior_view, verdict_view

__all__ = [
    "PAGE",
    "as_record",
    "as_text",
    "assign_rows",
    "assigned_record",
    "assigned_view",
    "check_free",
    "describe",
    "posterior_files",
    "posterior_record",
    "posterior_view",
    "read_ids",
    "silo_files",
    "table_view",
    "verdict_view",
    "with_ids",
    "write_posterior",
    "write_silo",
    "write_table",
    "write_text",
    "writing",
]
