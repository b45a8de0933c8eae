"""Posterior -> one HTML page that opens offline: what was found, and whether to trust it."""

from __future__ import annotations

from silomix.report.page import make_report, notebook_view, write_report

__all__ = ["make_report", "notebook_view", "write_report"]
