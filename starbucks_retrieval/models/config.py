"""How a model turns hidden states into embeddings, stored beside its weights as starbucks.json."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal, get_args

from starbucks_retrieval.cli import read_text
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.sizes import Size, Sizes

FILE = "starbucks.json"
FORMAT = 1
Pooling = Literal["cls", "mean", "last"]

# sentence-transformers' names for the poolings that we have, in the spelling of its newest versions and of older ones.
_ST_POOLING: dict[str, Pooling] = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Everything besides the weights that an embedding depends on.

    sizes is the ladder that the model was trained for, or None for a backbone that was not.
    temperature divides scores in training; it is kept so that later training and cards agree with it.
    The lengths count tokens, special ones included; None means the backbone's own limit.
    passage_layers pairs layers of queries with those of the passages that they are scored against, where the model was
    trained with other depths for the two; layers it lacks are paired with themselves.
    source names the file that all this was read from; it is empty for the paper's choice over a bare backbone.
    """

    sizes: Sizes | None = None
    pooling: Pooling = "cls"
    normalize: bool = False
    temperature: float = 1.0
    query_prefix: str = ""
    passage_prefix: str = ""
    passage_field_separator: str = " "
    query_max_len: int | None = None
    passage_max_len: int | None = None
    passage_layers: tuple[tuple[int, int], ...] = ()
    source: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.pooling not in get_args(Pooling):
            raise UserError(f"unknown pooling {self.pooling!r}", f"take one of {', '.join(get_args(Pooling))}")
        if not self.temperature > 0:
            raise UserError(f"temperature {self.temperature} is not positive", "1 for dot products, 0.05 for cosines")
        for name in ("query_max_len", "passage_max_len"):
            length = getattr(self, name)
            if length is not None and length < 3:
                raise UserError(f"--{name} {length} leaves no room for text", "take at least 3 tokens")

    def passage_size(self, size: Size) -> Size:
        """The size of the passages that queries at `size` are scored against."""
        return Size(dict(self.passage_layers).get(size.layer, size.layer), size.dim)

    def query_sizes(self, passages: Size) -> list[Size]:
        """The sizes of queries that are scored against such passages, ascending."""
        pairs = dict(self.passage_layers)
        layers = {query for query, layer in pairs.items() if layer == passages.layer}
        if passages.layer not in pairs:
            layers.add(passages.layer)
        return [Size(layer, passages.dim) for layer in sorted(layers)]

    def save(self, folder: str | Path) -> None:
        """Write starbucks.json into a model folder."""
        content = dataclasses.asdict(self) | {"format": FORMAT, "sizes": str(self.sizes) if self.sizes else None}
        del content["source"]
        # Left out of models that have one depth for both, which version 0.1 reads, too.
        if pairs := content.pop("passage_layers"):
            content["passage_layers"] = {str(query): passage for query, passage in pairs}
        write_json(Path(folder) / FILE, content)

    @classmethod
    def load(cls, path: str | Path) -> EncoderConfig:
        """Read starbucks.json. Raises UserError for a newer format or an unknown key."""
        content = _json(path)
        if content.pop("format", None) != FORMAT:
            raise UserError(f"{path} is of another format than {FORMAT}", "update starbucks_retrieval")
        unknown = set(content) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise UserError(f"{path} has the unknown key {sorted(unknown)[0]!r}", "update starbucks_retrieval")
        content["sizes"] = Sizes.parse(content["sizes"]) if content.get("sizes") else None
        content["passage_layers"] = _layer_pairs(content.get("passage_layers") or {}, path)
        return cls(**content, source=FILE)


def _layer_pairs(written: Any, path: str | Path) -> tuple[tuple[int, int], ...]:
    try:
        pairs = tuple(sorted((int(query), int(passage)) for query, passage in written.items()))
        if min((min(pair) for pair in pairs), default=1) < 1:
            raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise UserError(
            f"{path}: passage_layers is {written!r}", 'write query layers and passage layers: {"2": 6, "4": 12}'
        ) from None
    return pairs


def find_config(name_or_path: str, num_layers: int, hidden_size: int) -> EncoderConfig:
    """The configuration of a model folder or hub name.

    starbucks.json first, then the modules of sentence-transformers, then the paper's choice for a bare backbone:
    cls pooling, dot product, temperature 1.
    """
    if path := _file(name_or_path, FILE):
        return EncoderConfig.load(path)
    if path := _file(name_or_path, "modules.json"):
        return _from_sentence_transformers(name_or_path, _json(path), num_layers, hidden_size)
    return EncoderConfig()


def _from_sentence_transformers(
    name_or_path: str, modules: list[dict[str, Any]], num_layers: int, hidden_size: int
) -> EncoderConfig:
    """Map the module list of sentence-transformers to our configuration.

    Their truncate_dim cuts after normalising and does not renormalise; cosines are the same, and we renormalise.
    """
    pooling: Pooling = "cls"
    normalize = False
    for module in modules:
        kind = module["type"].rsplit(".", 1)[-1]
        if kind == "Pooling":
            pooling = _pooling(name_or_path, module["path"])
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise UserError(
                f"{name_or_path} has a {kind} module after its transformer, which has no size to be cut to",
                "take a model of Transformer, Pooling and Normalize modules only",
            )
    length = None
    if path := _file(name_or_path, "sentence_bert_config.json"):
        length = _json(path).get("max_seq_length")
    settings = _json(path) if (path := _file(name_or_path, "config_sentence_transformers.json")) else {}
    prompts = settings.get("prompts") or {}
    dim = settings.get("truncate_dim")
    # We score by dot product: a model that says it wants cosines needs unit vectors, Normalize module or not.
    cosine = normalize or settings.get("similarity_fn_name") == "cosine"
    return EncoderConfig(
        sizes=Sizes([Size(num_layers, min(dim, hidden_size))]) if dim else None,
        pooling=pooling,
        normalize=cosine,
        temperature=0.05 if cosine else 1.0,
        query_prefix=prompts.get("query", ""),
        passage_prefix=prompts.get("document", prompts.get("passage", "")),
        query_max_len=length,
        passage_max_len=length,
        source="modules.json",
    )


def _pooling(name_or_path: str, folder: str) -> Pooling:
    path = _file(name_or_path, f"{folder}/config.json")
    if path is None:
        raise UserError(f"{name_or_path} lacks {folder}/config.json", "save the model again with sentence-transformers")
    content = _json(path)
    named = content.get("pooling_mode")
    modes = [named] if isinstance(named, str) else list(named or [])
    modes = modes or [key for key, value in content.items() if key.startswith("pooling_mode_") and value is True]
    if len(modes) != 1 or modes[0] not in _ST_POOLING:
        raise UserError(
            f"{name_or_path} pools by {' and '.join(modes) or 'nothing'}",
            "cls, mean and last-token pooling are supported",
        )
    if not content.get("include_prompt", True):
        raise UserError(
            f"{name_or_path} leaves prompt tokens out of its pooling", "only include_prompt=true is supported"
        )
    return _ST_POOLING[modes[0]]


def _file(name_or_path: str, filename: str) -> str | None:
    """A file of a local folder or of a hub repository, or None where there is none."""
    if Path(name_or_path).is_dir():
        local = Path(name_or_path) / filename
        return str(local) if local.is_file() else None
    from transformers.utils import cached_file

    return cached_file(
        name_or_path,
        filename,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )


def _json(path: str | Path) -> Any:
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: malformed JSON ({error.msg})", "restore the file") from None
