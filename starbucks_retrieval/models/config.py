"""The configuration of an encoder: how hidden states become embeddings. Stored beside the weights as starbucks.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from annotated_types import Predicate

from starbucks_retrieval.cli import flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import write_json
from starbucks_retrieval.models.modules_json import model_file, read_head, read_modules
from starbucks_retrieval.parsing import Count, Finite, Positive, check_value, read_json
from starbucks_retrieval.sizes import Size, Sizes

FILE = "starbucks.json"
FORMAT = 1
Pooling = Literal["cls", "mean", "last"]


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

    def configured(self, config: EncoderConfig) -> EncoderConfig:
        """Return a model's settings changed by the flags. Raises UserError if they contradict stored ones."""
        return config.with_flags(self)


_FLAGS = tuple(field.name for field in dataclasses.fields(SettingFlags) if field.name != "override")


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Everything besides the weights that an embedding depends on.

    Args:
        sizes: The sizes that the model was trained for; None for a bare backbone.
        pooling: "cls", "mean" or "last" (the last token).
        normalize: Embeddings have length 1, so that dot products are cosines.
        temperature: Divides scores in training; later training and model cards use it.
        query_prefix: Put before every query.
        passage_prefix: Put before every passage.
        passage_field_separator: Put between the title and the text of a passage.
        query_max_len: Tokens of a query, special ones included; None: the backbone's limit.
        passage_max_len: Tokens of a passage, likewise.
        passage_layers: Pairs (query layer, passage layer) of a model whose queries are scored against passages of
            another depth; other layers are paired with themselves.
        projected_layers: The layers that have a projection in projections.safetensors, 0 for the token table; empty for
            a model without projections.
        include_prompt: The tokens of the prefixes are part of mean pooling.
        head: The folders of the Dense and LayerNorm modules between the pooling and the embedding, in their order.
        source: The file that the configuration was read from; empty for the defaults of a bare backbone.

    Raises:
        UserError: A value is out of range.

    Example:
        >>> config = EncoderConfig(pooling="mean", passage_layers=((2, 6),))
        >>> str(config.passage_size(Size(2, 32))), str(config.passage_size(Size(4, 32)))
        ('6:32', '4:32')
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
    projected_layers: tuple[int, ...] = ()
    include_prompt: bool = True
    head: tuple[str, ...] = ()
    source: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.sizes is not None and not isinstance(self.sizes, Sizes):  # a string or a list, in Python
            object.__setattr__(self, "sizes", Sizes(self.sizes))
        if self.pooling not in get_args(Pooling):
            raise UserError(f"unknown pooling {self.pooling!r}", f"take one of {', '.join(get_args(Pooling))}")
        if self.pooling == "cls" and not self.include_prompt:
            raise UserError("cls pooling cannot leave out prompts (include_prompt is false)", "use mean pooling")
        if not self.temperature > 0:
            raise UserError(f"temperature {self.temperature} is not positive", "1 for dot products, 0.05 for cosines")
        for name in ("query_max_len", "passage_max_len"):
            length = getattr(self, name)
            if length is not None and length < 3:
                raise UserError(f"--{name} {length} is too short for any text", "take at least 3 tokens")

    def check_sizes(self, sizes: Iterable[Size], num_layers: int, hidden_size: int) -> Sizes:
        """Check that a model with this configuration has sizes, and return them.

        Args:
            sizes: The sizes, ascending.
            num_layers: Layers of the backbone.
            hidden_size: Its width.

        Raises:
            UserError: A layer or dim is beyond the backbone, or has no projection where other layers have one.
        """
        checked = Sizes(sizes).check(num_layers, hidden_size, layer_0=0 in self.projected_layers)
        for layer in checked.layers:
            if self.projected_layers and layer not in self.projected_layers:
                raise UserError(
                    f"this model has no projection for layer {layer}, only for "
                    + ", ".join(map(str, self.projected_layers)),
                    "run starbucks fit with --layers that name it",
                )
        return checked

    def passage_size(self, size: Size) -> Size:
        """Return the size of the passages that queries at `size` are scored against."""
        return Size(dict(self.passage_layers).get(size.layer, size.layer), size.dim)

    def query_sizes(self, passages: Size) -> list[Size]:
        """Return the sizes of the queries that are scored against passages at this size, ascending."""
        pairs = dict(self.passage_layers)
        layers = {query for query, layer in pairs.items() if layer == passages.layer}
        if passages.layer not in pairs:
            layers.add(passages.layer)
        return [Size(layer, passages.dim) for layer in sorted(layers)]

    def with_flags(self, flags: Any) -> EncoderConfig:
        """Return these settings changed by the flags that are not None.

        Args:
            flags: A dataclass of flags, some of which have the name of a setting. Its flag `override` lets them
                contradict the settings that a model stores.

        Raises:
            UserError: A flag contradicts a stored setting, without `override`.
        """
        changes = {name: value for name in _FLAGS if (value := getattr(flags, name, None)) is not None}
        for name, value in changes.items():
            stored = getattr(self, name)
            if self.source and value != stored and not flags.override:
                raise UserError(
                    f"--{name} {value} contradicts the model's own {stored!r} ({self.source})",
                    "leave the flag out, or add --override",
                )
        return dataclasses.replace(self, **changes)

    def save(self, folder: str | Path) -> None:
        """Write starbucks.json into a model folder."""
        content = dataclasses.asdict(self) | {"format": FORMAT, "sizes": str(self.sizes) if self.sizes else None}
        del content["source"]
        # Left out where queries and passages have one depth: version 0.1 reads such files.
        if pairs := content.pop("passage_layers"):
            content["passage_layers"] = {str(query): passage for query, passage in pairs}
        for name in ("projected_layers", "include_prompt", "head"):
            if content[name] == getattr(EncoderConfig, name):
                del content[name]
        write_json(Path(folder) / FILE, content)

    @classmethod
    def load(cls, path: str | Path) -> EncoderConfig:
        """Read starbucks.json. Raises UserError for a newer format or an unknown key."""
        content = read_json(path)
        if content.pop("format", None) != FORMAT:
            raise UserError(f"{path} is of another format than {FORMAT}", "update starbucks_retrieval")
        unknown = set(content) - set(_STORED)
        if unknown:
            raise UserError(f"{path} has the unknown key {sorted(unknown)[0]!r}", "update starbucks_retrieval")
        for name, value in content.items():
            kind, hint = _STORED[name]
            check_value(value, kind, f"{path}: {name}", hint)
        pairs = content.get("passage_layers") or {}
        try:
            content["sizes"] = Sizes.parse(content["sizes"]) if content.get("sizes") else None
            content["passage_layers"] = tuple(sorted((int(query), passage) for query, passage in pairs.items()))
            content["projected_layers"] = tuple(sorted(content.get("projected_layers") or ()))
            content["head"] = tuple(content.get("head", ()))
            return cls(**content, source=FILE)
        except UserError as error:
            raise UserError(f"{path}: {error.what}", error.hint) from None


_RESTORE = "restore the file"
_LAYER = Annotated[str, Predicate(lambda text: text.isascii() and text.isdigit() and len(text) < 9)]
# What starbucks.json can hold, and the hint for other content.
_STORED: dict[str, tuple[Any, str]] = {
    "sizes": (str | None, "write sizes: 2:32,4:64"),
    "pooling": (str, _RESTORE),
    "normalize": (bool, _RESTORE),
    "temperature": (Finite, _RESTORE),
    **dict.fromkeys(("query_prefix", "passage_prefix", "passage_field_separator"), (str, _RESTORE)),
    **dict.fromkeys(("query_max_len", "passage_max_len"), (Count | None, _RESTORE)),
    "passage_layers": (dict[_LAYER, Positive] | None, 'write query layers and passage layers: {"2": 6, "4": 12}'),
    "projected_layers": (list[Count] | None, "write a list of layers: [0, 1, 2]"),
    "include_prompt": (bool, _RESTORE),
    "head": (list[str], _RESTORE),
}


def find_config(name_or_path: str, num_layers: int, hidden_size: int) -> EncoderConfig:
    """Return the configuration of a model folder or hub name.

    It is read from starbucks.json, else from the modules of sentence-transformers. A bare backbone gets the paper's
    defaults: cls pooling, dot product, temperature 1.

    Args:
        name_or_path: A folder or hub name.
        num_layers: Layers of the backbone.
        hidden_size: Width of the backbone.

    Raises:
        UserError: A file is malformed, of a newer format, or asks for modules that have no sizes.
    """
    if path := model_file(name_or_path, FILE):
        return EncoderConfig.load(path)
    if path := model_file(name_or_path, "modules.json"):
        return _from_sentence_transformers(name_or_path, path, num_layers, hidden_size)
    return EncoderConfig()


@dataclasses.dataclass(frozen=True)
class _TransformerFile:
    """sentence_bert_config.json, as far as it counts."""

    max_seq_length: Count | None = None


@dataclasses.dataclass(frozen=True)
class _SettingsFile:
    """config_sentence_transformers.json, as far as it counts."""

    prompts: dict[str, str | None] | None = None
    truncate_dim: Positive | None = None
    similarity_fn_name: str | None = None


def _from_sentence_transformers(name_or_path: str, path: str, num_layers: int, hidden_size: int) -> EncoderConfig:
    """Map the module list of sentence-transformers to a configuration.

    sentence-transformers cuts to truncate_dim after normalising; here embeddings are normalised after the cut. Cosines
    are the same.
    """
    modules = read_modules(name_or_path, path)
    head = read_head(name_or_path, modules.head, hidden_size)
    length = None
    if found := model_file(name_or_path, "sentence_bert_config.json"):
        length = read_json(found, _TransformerFile).max_seq_length
    found = model_file(name_or_path, "config_sentence_transformers.json")
    settings = read_json(found, _SettingsFile) if found else _SettingsFile()
    prompts = settings.prompts or {}
    width = head[-1].width if head else hidden_size
    dim = settings.truncate_dim
    # Scores are dot products: a model made for cosines needs unit vectors, with or without a Normalize module.
    cosine = modules.normalize or settings.similarity_fn_name == "cosine"
    return EncoderConfig(
        sizes=Sizes([Size(num_layers, min(dim, width))]) if dim else None,
        pooling=cast(Pooling, modules.pooling),
        include_prompt=modules.include_prompt,
        head=modules.head,
        normalize=cosine,
        temperature=0.05 if cosine else 1.0,
        query_prefix=prompts.get("query") or "",
        passage_prefix=prompts.get("document", prompts.get("passage")) or "",
        query_max_len=length,
        passage_max_len=length,
        source="modules.json",
    )
