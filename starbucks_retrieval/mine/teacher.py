"""The model that scores the chosen pairs, for a student to be distilled from."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from starbucks_retrieval.data import Passage
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.mine.arguments import MineArguments

if TYPE_CHECKING:
    import numpy as np

log = logging.getLogger(__name__)


class Teacher(Protocol):
    """What scores pairs of query and passage, float32 [pairs], in a unit whose softmax over a group makes sense."""

    @property
    def kind(self) -> str: ...

    def score(self, pairs: Sequence[tuple[str, Passage]], label: str) -> np.ndarray: ...


def load_teacher(arguments: MineArguments) -> Teacher:
    """A cross-encoder where config.json names a ...ForSequenceClassification, else a bi-encoder.

    Raises UserError for a model that cannot be a teacher, and for a flag of the other kind.
    """
    try:
        return _load(arguments.teacher_name_or_path or "", arguments)
    except UserError as error:
        # The readers of models know the flag of the engine's model only.
        hint = error.hint.replace("--model_name_or_path", "--teacher_name_or_path")
        raise UserError(error.what, hint) from None


def _load(name: str, arguments: MineArguments) -> Teacher:
    from transformers import AutoConfig

    from starbucks_retrieval.models.loading import explained

    with explained(name):
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    if any(architecture.endswith("ForSequenceClassification") for architecture in config.architectures or ()):
        from starbucks_retrieval.mine.cross_encoder import CrossEncoder

        if arguments.teacher_size:
            raise UserError(f"{name} is a cross-encoder, which has no sizes", "leave --teacher_size out")
        log.info("the teacher is a cross-encoder: its logits are written")
        return CrossEncoder(name, config, arguments)
    from starbucks_retrieval.mine.bi_encoder import BiEncoder

    if arguments.teacher_max_len:
        raise UserError(
            f"{name} is a bi-encoder, which cuts texts to the lengths stored with it", "leave --teacher_max_len out"
        )
    teacher = BiEncoder(name, arguments.asked_teacher_size, arguments)
    settings = teacher.encoder.config
    similarity = "cosines" if settings.normalize else "inner products"
    log.info(
        "the teacher is a bi-encoder: its %s at %s / %g are written", similarity, teacher.size, settings.temperature
    )
    return teacher
