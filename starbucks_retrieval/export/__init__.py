"""One size of a model as a folder that other tools load."""

from typing import Any

__all__ = ["ExportArguments", "export"]


def __getattr__(name: str) -> Any:
    if name == "export":
        from starbucks_retrieval.export.api import export

        return export
    if name == "ExportArguments":
        from starbucks_retrieval.export.arguments import ExportArguments

        return ExportArguments
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
