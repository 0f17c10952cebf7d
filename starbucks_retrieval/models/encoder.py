"""NestedEncoder: one backbone, pooled outputs of any of its layers, embeddings at any size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import unpadded
from starbucks_retrieval.models.by_size import Embeddings
from starbucks_retrieval.models.fingerprint import layer_digests
from starbucks_retrieval.models.fit_report import FitReport
from starbucks_retrieval.models.head import load_head
from starbucks_retrieval.models.input_texts import checked_texts
from starbucks_retrieval.models.loading import load_backbone, load_projections
from starbucks_retrieval.models.saving import StoredWeights, save_backbone
from starbucks_retrieval.models.sentence_modules import remove_modules, save_modules
from starbucks_retrieval.models.sized import SizedEncoder
from starbucks_retrieval.models.token_encoder import TokenEncoder
from starbucks_retrieval.sizes import Size, Sizes, as_sizes


class NestedEncoder(TokenEncoder):
    """A Hugging Face backbone whose embedding can be taken at any size (layer, dim).

    The embedding at layer n equals that of the model truncated to n layers, and no layer above the deepest one needed
    runs. Several threads may use one encoder.

    Args:
        backbone: A bare Hugging Face model of a supported architecture.
        tokenizer: Its fast tokenizer.
        config: Pooling, normalisation, sizes, prefixes and lengths.
        name: A name for messages and cards.
        projections: Maps of the layers into one space, or None.
        head: Dense and LayerNorm modules after pooling, or None.

    Attributes:
        num_layers: Layers of the backbone.
        hidden_size: Width of the full embedding.

    Raises:
        UserError: The architecture is not supported, or the backbone lacks a size of the configuration.

    Example:
        ```python
        encoder = NestedEncoder.from_pretrained("my-model")
        vectors = encoder.encode(["hens lay eggs"], "2:32,6:384")
        vectors["2:32"].shape  # (1, 32)
        ```
    """

    def __repr__(self) -> str:
        config = self.config
        normalized = ", normalized" if config.normalize else ""
        return (
            f"NestedEncoder({self.name!r}, {self.num_layers} layers of {self.hidden_size}, sizes {self.sizes}, "
            f"{config.pooling} pooling{normalized}, {self.device})"
        )

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        layers: int | None = None,
        passage_layers: bool = False,
        device: str | torch.device | None = None,
        attn_implementation: str | None = None,
        dropout: float | None = None,
        trust_remote_code: bool = False,
        weights_dtype: torch.dtype = torch.float32,
        encode_only: bool = False,
    ) -> NestedEncoder:
        """Load a Hugging Face or sentence-transformers model, in evaluation mode.

        Args:
            name_or_path: A folder or hub name.
            layers: Read only the weights up to this layer; None reads all.
            passage_layers: With `layers`, read also up to the layer of the passages that queries there are scored
                against.
            device: "cpu", "cuda", "cuda:1" …; None: a GPU where there is one.
            attn_implementation: An attention implementation of transformers, or "unpadded", which computes no padding
                where a GPU computes in half precision.
            dropout: Replaces the model's dropout probabilities, for training.
            trust_remote_code: Run code from the model's repository.
            weights_dtype: The type of the backbone's weights in memory. torch.bfloat16 or torch.float16 takes half the
                memory of float32, and embeddings are computed under autocast of that type. For encoding only.
            encode_only: Load a BERT in half the time. It gives the same bits, but cannot be trained or saved.

        Returns:
            The encoder.

        Raises:
            UserError: The model cannot be found, is incomplete or not supported, or the device is not available.

        Example:
            ```python
            small = NestedEncoder.from_pretrained("my-model", layers=2)  # a third of a six-layer model
            ```
        """
        if not isinstance(name_or_path, str | Path):
            shown = f"something of type {type(name_or_path).__name__}"
            raise UserError(f"a model is a folder or a hub name, not {shown}", "give its path or its name")
        target = resolve_device(device)
        end_to_end = attn_implementation == unpadded.NAME
        if end_to_end and target.type == "cuda":
            unpadded.kernel()  # raises for a torch that lacks it, before the model is read
        backbone, tokenizer, config = load_backbone(
            str(name_or_path),
            layers,
            passage_layers=passage_layers,
            attn_implementation=None if end_to_end else attn_implementation,
            dropout=dropout,
            trust_remote_code=trust_remote_code,
            weights_dtype=None if weights_dtype == torch.float32 else weights_dtype,
            encode_only=encode_only and not end_to_end,
        )
        if end_to_end:
            unpadded.enable(backbone)
        projections = load_projections(str(name_or_path), config, layers)
        head = load_head(str(name_or_path), config.head, backbone.config.hidden_size)
        encoder = cls(backbone, tokenizer, config, str(name_or_path), projections, head).eval()
        if weights_dtype != torch.float32:
            encoder.stored = StoredWeights(str(name_or_path), backbone, trust_remote_code)
        if projections is not None:
            projections.check(encoder._backbone_digests, str(name_or_path))
        return encoder.to(target)

    def save_pretrained(
        self,
        folder: str | Path,
        weights: dict[str, Tensor] | None = None,
        projections: dict[str, Tensor] | None = None,
        head: dict[str, Tensor] | None = None,
    ) -> None:
        """Write a Hugging Face folder: safetensors, tokenizer, modules after pooling, and starbucks.json.

        It is also a folder of sentence-transformers at the full size, unless no sequence of its modules gives these
        embeddings (`sentence_modules.no_modules`).

        Args:
            folder: Where to write; it is created.
            weights: Written in place of the backbone's own weights, by name.
            projections: Written in place of the projections' own weights, by name.
            head: Written in place of the head's own weights, by name.
        """
        modules, config = self.head, self.config
        remove_modules(Path(folder))
        trained = () if config.projected_layers else config.sizes or ()
        dims = [size.dim for size in trained if size.layer == self.num_layers]
        save_backbone(self.backbone, self.tokenizer, folder, weights, dims)
        if modules is not None:
            modules = modules.with_weights(head) if head else modules
            modules.save(folder)
            config = dataclasses.replace(config, head=modules.folders)
        if self.projections is not None:
            digests = layer_digests(self.backbone, self.layout, self.tokenizer, weights, modules)
            self.projections.save(folder, dict(enumerate(digests)), projections)
        config.save(folder)
        save_modules(Path(folder), self, self.max_length(False), projections)

    def encode(
        self,
        texts: str | Iterable[str],
        sizes: Sizes | Sequence[Size | str] | Size | str | None = None,
        *,
        is_query: bool = False,
        max_length: int | None = None,
        max_tokens: int = 8192,
        batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        convert_to_tensor: bool = False,
        show_progress_bar: bool = False,
        label: str | None = None,
    ) -> Embeddings:
        """Embed texts at several sizes in one pass.

        Args:
            texts: One text, or a list, an array, a column of a table or a generator of texts. The stored query or passage
                prefix is put before each.
            sizes: Sizes, a Size, a list of them, or a string such as "2:32,6:128"; None: the model's sizes.
            is_query: Texts are queries, with their prefix and length; otherwise passages.
            max_length: Tokens of a text; None: the stored length.
            max_tokens: The largest rows x longest row of a batch.
            batch_size: The most texts of a batch; None: only `max_tokens` limits it.
            dtype: torch.bfloat16 or torch.float16 computes under autocast; None in float32.
            convert_to_tensor: Return tensors on the model's device instead of arrays.
            show_progress_bar: Show progress.
            label: Shows progress under this name.

        Returns:
            {size: float32 [texts, dim]}, texts in their order; [dim] for one text. A size may be text: `vectors["2:32"]`.

        Raises:
            UserError: The model lacks a size, the length is beyond its limit, or an item is not a text.

        Example:
            ```python
            query = encoder.encode("do hens fly?", "2:32", is_query=True)["2:32"]
            passages = encoder.encode(["hens lay eggs", "moths fly at night"], "2:32")["2:32"]
            scores = query @ passages.T  # [2]
            ```
        """
        wanted = as_sizes(sizes, self.sizes)
        given = checked_texts([texts] if isinstance(texts, str) else texts)
        prefix = self.config.query_prefix if is_query else self.config.passage_prefix
        length = self.max_length(is_query, max_length)
        rows = self.tokenize([(prefix + text).strip() for text in given], length) if given else []
        label = label or ("texts" if show_progress_bar else None)
        found = self.embed(rows, wanted, max_tokens=max_tokens, max_rows=batch_size, dtype=dtype, label=label)
        for size, vectors in found.items():
            one = vectors[0] if isinstance(texts, str) else vectors
            found[size] = torch.from_numpy(one).to(self.device) if convert_to_tensor else one
        return found

    def at(self, size: Size | str, *, max_tokens: int = 8192, dtype: torch.dtype | None = None) -> SizedEncoder:
        """Return this encoder at one size, with the methods of a SentenceTransformer.

        sentence-transformers' evaluators, mteb and beir take it as a model. Nothing is copied: objects of several sizes
        share the weights.

        Args:
            size: A Size, a string such as "4:128", or "2:64/4:64" for queries at 2:64 and passages at 4:64. Without the
                second part, passages have the size that the model scores such queries against.
            max_tokens: The largest rows x longest row of a batch.
            dtype: torch.bfloat16 or torch.float16 computes under autocast; None in float32.

        Raises:
            UserError: The model lacks a size, or its layers are not comparable.

        Example:
            ```python
            model = encoder.at("4:128")
            queries, passages = model.encode_query(["do hens fly?"]), model.encode_document(["hens lay eggs"])
            model.similarity(queries, passages)  # tensor([[0.7...]])
            ```
        """
        return SizedEncoder(self, size, max_tokens=max_tokens, dtype=dtype)

    def fit(
        self,
        texts: Iterable[str],
        queries: Iterable[str] | None = None,
        layers: Sequence[int] | None = None,
        *,
        concat_layers: bool = False,
        table_input: bool = True,
        max_tokens: int = 8192,
        dtype: torch.dtype | None = None,
        label: str | None = None,
    ) -> FitReport:
        """Fit a linear map per layer on texts without labels, in place, so that all sizes become useful.

        The weights do not change, nor do scores at the full size. `projections`, and in `config` the fitted layers and
        the recommended sizes, are replaced; pairs of query and passage layers are dropped. Write the model with
        `save_pretrained`.

        Args:
            texts: Passages; ten for each number of an embedding are enough. They are read once, up to 50,000 of them
                where maps take the token table.
            queries: Queries, with their own prefix and length.
            layers: The layers to fit, 0 for the token table; None: all. The last layer is always among them.
            concat_layers: Fit each layer from all layers up to it.
            table_input: Fit each layer from its own output and that of the token table, if layer 0 is fitted. Without it,
                layers below the last are less good, but can be exported to sentence-transformers.
            max_tokens: The largest rows x longest row of a batch.
            dtype: torch.bfloat16 or torch.float16 computes under autocast; None in float32.
            label: Shows progress under this name; None shows none.

        Returns:
            How good each layer and dim is on texts that were held out, before and after.

        Raises:
            UserError: There are too few texts, the model lacks a layer, or its outputs are constant or not finite. The
                encoder is then as it was.

        Example:
            ```python
            report = encoder.fit(passages)
            print(report.after["4:128"].top10)  # share of the ten nearest texts that stay the same
            encoder.save_pretrained("my-model-fitted")
            ```
        """
        from starbucks_retrieval.models.fitter import Fitter  # needs scipy, which encoding does not

        fitter = Fitter(self, layers, concat_layers, table_input)
        fitter.read(texts, queries, max_tokens, dtype, label)
        projections, report = fitter.finish()
        self.projections = projections.to(self.device).train(self.training)
        self.config = dataclasses.replace(
            self.config, projected_layers=projections.layers, sizes=report.recommended(), passage_layers=()
        )
        return report
