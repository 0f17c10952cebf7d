"""Fit small sizes of any encoder in minutes, from texts without labels."""

from typing import TYPE_CHECKING

from starbucks_retrieval.lazy import lazy_exports

if TYPE_CHECKING:
    from starbucks_retrieval.fit.api import fit
    from starbucks_retrieval.fit.arguments import FitArguments

__all__ = ["FitArguments", "fit"]

__getattr__, __dir__ = lazy_exports(__name__, {"FitArguments": ".arguments", "fit": ".api"})
