"""Tables, figures and one HTML page from result files, in the layouts of the papers."""

from starbucks_retrieval.report.api import Report, report

__all__ = ["Report", "report"]
