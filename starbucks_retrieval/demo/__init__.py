"""The offline demonstration: a backbone at its six sizes, before and after training."""

from typing import TYPE_CHECKING

from starbucks_retrieval.lazy import lazy_exports

if TYPE_CHECKING:
    from starbucks_retrieval.demo.api import demo
    from starbucks_retrieval.demo.settings import LONG, SHORT, Settings

__all__ = ["LONG", "SHORT", "Settings", "demo"]
__getattr__, __dir__ = lazy_exports(
    __name__, {"LONG": ".settings", "SHORT": ".settings", "Settings": ".settings", "demo": ".api"}
)
