"""Another teacher of training without labels: an encoder or stored embeddings, and its map into the student's space."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.fit_report import texts_needed
from starbucks_retrieval.models.info import ModelInfo, model_info
from starbucks_retrieval.models.pooling import embedding
from starbucks_retrieval.models.texts import token_rows
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore, check_same
from starbucks_retrieval.store.dtypes import to_float32
from starbucks_retrieval.store.locate import open_each_size
from starbucks_retrieval.train.examples import Text, flat

if TYPE_CHECKING:
    from starbucks_retrieval.train.arguments import TrainArguments

# Pooled outputs of token rows in chunks, as `TrainingModule.pooled_layers`.
Pool = Callable[[NestedEncoder, list[list[int]], tuple[int, ...], torch.device], dict[int, Tensor]]


@dataclasses.dataclass(frozen=True)
class TeacherSource:
    """A teacher before its weights are read.

    Attributes:
        name: The model or the stores, as the user wrote them.
        width: Numbers of its embedding.
        model: Its configuration, or None for stored embeddings.
        stores: {whether it holds queries: the store of the teacher's largest size}; empty for a model.
    """

    name: str
    width: int
    model: ModelInfo | None
    stores: dict[bool, EmbeddingStore]


def find_teacher(arguments: TrainArguments) -> TeacherSource | None:
    """Return the teacher that the flags name, None if the model teaches itself.

    Raises:
        UserError: The model or a store cannot be read, stores do not belong together, or the passages or queries lack one.
    """
    if name := arguments.teacher_model_name_or_path:
        model = model_info(name)
        return TeacherSource(name, model.hidden_size, model, {})
    if not arguments.teacher_embeddings:
        return None
    name = ", ".join(arguments.teacher_embeddings)
    stores: dict[bool, EmbeddingStore] = {}
    for path in arguments.teacher_embeddings:
        store = list(open_each_size([path]).values())[-1]
        if (is_query := store.spec.kind == "queries") in stores:
            raise UserError(f"{name} hold {store.spec.kind} twice", "name one store of passages, and one of queries")
        stores[is_query] = store
    passages = arguments.dataset_path or arguments.dataset_name
    for is_query, paths, flag in ((False, passages, "--dataset_path"), (True, arguments.query_path, "--query_path")):
        kind = "queries" if is_query else "passages"
        if paths and is_query not in stores:
            raise UserError(
                f"{name} holds no {kind}, which {flag} names",
                f"add the teacher's embeddings of the {kind}, or drop them",
            )
        if is_query in stores and not paths:
            raise UserError(f"{name} holds {kind}, and {flag} names none", f"add {flag}, or drop the store of {kind}")
    if len(stores) == 2:
        check_same(stores[True].spec, stores[False].spec)
    return TeacherSource(name, next(iter(stores.values())).spec.size.dim, None, stores)


def find_guide(arguments: TrainArguments) -> TeacherSource | None:
    """Return the encoder that `--guide_model_name_or_path` names, or None. Raises UserError if it cannot be used."""
    name = arguments.guide_model_name_or_path
    if not name:
        return None
    model = model_info(name)
    return TeacherSource(name, model.hidden_size, model, {})


def row_finder(source: TeacherSource) -> Callable[[bool, str, str], int]:
    """Return a function that finds the row of a text in the stores by its id.

    Args:
        source: A teacher of stored embeddings.

    Returns:
        A function of whether the text is a query, the id of the query or the document, and where the text is from, for
        the message. It returns the row in the store of its kind, from 0, and raises UserError if the id is not there.
    """

    @cache
    def sorted_ids(is_query: bool) -> tuple[np.ndarray, np.ndarray]:
        store = source.stores[is_query]
        ids = np.array(store.id_bytes(np.arange(store.count)), dtype=np.bytes_)
        order = np.argsort(ids, kind="stable")
        return ids[order], order

    def find(is_query: bool, identifier: str, collection: str) -> int:
        (ids, order), wanted = sorted_ids(is_query), identifier.encode()
        position = min(int(np.searchsorted(ids, wanted)), len(ids) - 1)
        if ids[position] != wanted:
            what = "query" if is_query else "document"
            raise UserError(
                f"{source.name} has no embedding of the {what} {identifier} of {collection}",
                "encode all texts of the training data with the teacher, or train on those that it encoded",
            )
        return int(order[position])

    return find


class Teacher:
    """A teacher in training: the embeddings of texts in its own space.

    Args:
        source: Where it is.
        encoder: The loaded model, None for stored embeddings.
        lengths: Tokens of a query and of a passage at most.
    """

    def __init__(self, source: TeacherSource, encoder: NestedEncoder | None, lengths: tuple[int, int]) -> None:
        self.source = source
        self.encoder = encoder
        if encoder is not None:
            own = encoder.max_length(True), encoder.max_length(False)
            self._lengths = min(lengths[0], own[0]), min(lengths[1], own[1])

    @classmethod
    def load(cls, source: TeacherSource, lengths: tuple[int, int]) -> Teacher:
        """Load the weights of a teacher that is a model, on the CPU; stored embeddings stay on disk.

        Args:
            source: Where the teacher is.
            lengths: Tokens of a query and of a passage at most; the model's own lengths are not exceeded.

        Raises:
            UserError: The model cannot be loaded.
        """
        encoder = None
        if source.model is not None:
            encoder = NestedEncoder.from_pretrained(source.name, device="cpu").requires_grad_(False)
        return cls(source, encoder, lengths)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its full size, or the one that its stores record."""
        if self.encoder is not None:
            return self.encoder.fingerprint(self.encoder.num_layers)
        return next(iter(self.source.stores.values())).spec.fingerprint

    def inputs(self, texts: Sequence[Text]) -> dict[str, Tensor]:
        """Return what `vectors` needs of a batch: token ids and lengths, or stored embeddings."""
        if self.encoder is None:
            return {"teacher_vectors": torch.from_numpy(self._stored(texts))}
        return {f"teacher_{name}": values for name, values in flat(self._rows(texts)).items()}

    @torch.no_grad()
    def vectors(self, inputs: dict[str, Tensor], pool: Pool) -> Tensor:
        """Return the embeddings [texts, width] of a batch, float32.

        Args:
            inputs: What `inputs` returned, on the device of the step.
            pool: Encodes token rows.
        """
        encoder = self.encoder
        if encoder is None:
            return inputs["teacher_vectors"]
        ids = inputs["teacher_ids"]
        rows = [row.tolist() for row in ids.cpu().split(inputs["teacher_lengths"].tolist())]
        layer = encoder.num_layers
        pooled = pool(encoder.to(ids.device), rows, (layer,), ids.device)[layer]
        return embedding(pooled, self.source.width, encoder.config.normalize)

    def embed(self, texts: Sequence[Text]) -> np.ndarray:
        """Return the embeddings of texts, float32 [texts, width], computed outside a training step."""
        if self.encoder is None:
            return self._stored(texts)
        full = Size(self.encoder.num_layers, self.encoder.hidden_size)
        return self.encoder.embed(self._rows(texts), Sizes([full]))[full]

    def _rows(self, texts: Sequence[Text]) -> list[list[int]]:
        assert self.encoder is not None
        config = self.encoder.config
        prefixed = [(text.prefixed(config), text.is_query) for text in texts]
        return token_rows(self.encoder, prefixed, self._lengths)

    def _stored(self, texts: Sequence[Text]) -> np.ndarray:
        found = np.empty((len(texts), self.source.width), np.float32)
        for is_query, store in self.source.stores.items():
            chosen = np.array([text.is_query is is_query for text in texts])
            if chosen.any():
                rows = np.array([text.row for text, take in zip(texts, chosen) if take])
                found[chosen] = to_float32(store.vectors(rows))
        return found


def too_few_texts(count: int, width: int) -> UserError:
    """Return the error for fewer texts than the map of a teacher of `width` numbers needs, which the caller raises."""
    return UserError(
        f"{count} texts cannot fit the map of a teacher of {width} numbers",
        f"give at least {texts_needed(width)} texts, better ten times as many; --max_texts limits them",
    )
