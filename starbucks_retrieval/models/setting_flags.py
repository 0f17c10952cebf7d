"""The flags for what a trained model stores itself: pooling, normalisation, prefixes and lengths."""

from __future__ import annotations

import dataclasses
from typing import Literal

from starbucks_retrieval.cli import flag


@dataclasses.dataclass(kw_only=True)
class SettingFlags:
    """Settings of a backbone, shared by the commands that embed texts; `EncoderConfig.with_flags` reads them.

    A flag that contradicts what a model stores needs `override`.
    """

    pooling: Literal["cls", "mean", "last"] | None = flag(
        None, "for a backbone; a trained model stores this setting", rare=True
    )
    normalize: bool | None = flag(None, "likewise: compare by cosine instead of dot product", rare=True)
    query_prefix: str | None = flag(None, "likewise", rare=True)
    passage_prefix: str | None = flag(None, "likewise", rare=True)
    passage_field_separator: str | None = flag(
        None, "likewise: the text between title and text of a passage", rare=True
    )
    query_max_len: int | None = flag(None, "likewise: tokens of a query at most", rare=True)
    passage_max_len: int | None = flag(None, "likewise: tokens of a passage at most", rare=True)
    override: bool = flag(False, "let these flags contradict the stored settings of the model", rare=True)
