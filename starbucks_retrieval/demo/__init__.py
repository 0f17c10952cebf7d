"""The offline demonstration: a backbone at its six sizes, before and after training."""

from typing import Any

__all__ = ["LONG", "SHORT", "Settings", "demo"]


def __getattr__(name: str) -> Any:
    if name == "demo":
        from starbucks_retrieval.demo.api import demo

        return demo
    if name in __all__:
        from starbucks_retrieval.demo import settings

        return getattr(settings, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
