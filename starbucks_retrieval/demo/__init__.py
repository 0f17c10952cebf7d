"""The offline demonstration: a backbone at its six sizes as it is, fitted without labels, and trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starbucks_retrieval.lazy import lazy_exports

if TYPE_CHECKING:
    from starbucks_retrieval.demo.api import demo

__all__ = ["LONG", "SHORT", "Settings", "demo"]
__getattr__, __dir__ = lazy_exports(__name__, {"demo": ".api"})


@dataclass(frozen=True)
class Settings:
    """How much is read, trained and shown. The defaults suit two CPU cores without fast bf16."""

    seed: int = 42
    # corpus
    passages: int = 5000
    per_module: int = 250  # so that no package fills a split by itself
    test_share: float = 0.15
    dev_share: float = 0.08
    test_queries: int = 300
    dev_queries: int = 150
    # the same lengths before and after, so that only the training differs
    query_max_len: int = 32
    passage_max_len: int = 128
    fit_texts: int = 6000
    # training: as many steps as fit into the seconds, within bounds
    train_seconds: float = 180.0
    min_steps: int = 30
    max_steps: int = 150
    batch_queries: int = 32
    dropout: float = 0.0  # a few minutes of training do not overfit, and a step without it is cheaper
    learning_rate: float = 3e-4
    anchor_weight: float = 5.0  # without it the full size loses what the small ones gain
    dev_passages: int = 500  # the dev set is scored before and after training; 0 leaves it out
    # a step costs what encoding its tokens costs, times this (forward, backward, losses), plus the optimiser's time
    step_over_encode: float = 4.0
    optimizer_seconds: float = 0.1
    # measurements and page
    depth: int = 100
    speed_passages: int = 96
    speed_rounds: int = 3
    examples: int = 6
    shard_size: int = 1024  # small shards: a killed run loses little


LONG = Settings()
SHORT = Settings(
    passages=1500,
    per_module=75,
    test_queries=150,
    dev_queries=50,
    fit_texts=2000,
    train_seconds=25.0,
    min_steps=12,
    max_steps=60,
    dev_passages=0,
    speed_passages=40,
)
