"""Result files in the papers' layouts: tables, figures, one page."""

from starbucks_retrieval.report.api import Report, report

__all__ = ["Report", "report"]
