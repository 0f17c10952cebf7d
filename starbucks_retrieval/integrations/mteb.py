"""Models for mteb.evaluate: task prompts, several sizes from one pass, and a loader."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.integrations.base import SharedEmbeddings, SizedModel
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.precision import Precision
from starbucks_retrieval.models.sized_options import DOCUMENT, QUERY, mteb_inputs
from starbucks_retrieval.sizes import Size, Sizes, parse_pair


class MtebModel(SizedModel):
    """A model at one size for `mteb.evaluate`: the encoder protocol of mteb 2.

    Queries get the model's query prefix and length, all other texts those of passages. mteb files its results under
    the model's name, the fingerprint of its weights as revision, and the size.

    Args:
        model: A folder, a hub name, or an encoder that is open already.
        size: The size, such as `6:128`, or `2:64/4:64`; by default the model's full size.
        prompts: Texts put before queries and passages in place of the model's prefixes, by mteb's keys: the name of a
            task (`NFCorpus`), its type (`Retrieval`), `query` or `document`, or `NFCorpus-query`.
        instruction_template: For models that follow instructions, such as "Instruct: {instruction}\\nQuery: ". The
            instruction of a task is the one in `prompts`, or the one that mteb knows.
        instruct_passages: The template applies to passages too, not only to queries and to tasks without passages.
        device: `cpu`, `cuda`, `cuda:1` …; by default a GPU where there is one. Not for an open encoder.
        dtype: The precision of the computation.
        max_tokens: The largest rows x longest row of a batch; mteb's batch size is ignored.

    Raises:
        UserError: The model cannot be read or does not have that size, or the template lacks `{instruction}`.

    Example:
        >>> import mteb  # doctest: +SKIP
        >>> mteb.evaluate(MtebModel("my-model", "6:128"), mteb.get_tasks(tasks=["NFCorpus"]))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str | Path | NestedEncoder,
        size: Size | str | None = None,
        *,
        prompts: Mapping[str, str] | None = None,
        instruction_template: str | None = None,
        instruct_passages: bool = False,
        device: str | None = None,
        dtype: Precision = "fp32",
        max_tokens: int = 8192,
    ) -> None:
        super().__init__(model, size, device=device, dtype=dtype, max_tokens=max_tokens)
        if instruction_template is not None and "{instruction}" not in instruction_template:
            raise UserError(
                f"instruction_template {instruction_template!r} has no place for the instruction",
                "write it with {instruction}: 'Instruct: {instruction}\\nQuery: '",
            )
        self.task_prompts = dict(prompts or {})
        self.instruction_template = instruction_template
        self.instruct_passages = instruct_passages
        self._options: dict[str, Any] = {"dtype": dtype, "max_tokens": max_tokens}
        self._shared: SharedEmbeddings | None = None
        self._shared_sizes: dict[bool, Sizes] = {}

    @cached_property
    def mteb_model_meta(self) -> Any:
        """The model's metadata in mteb's form, with a loader. Raises UserError if mteb is not installed."""
        meta = super().mteb_model_meta
        instructed = bool(meta.use_instructions or self.task_prompts or self.instruction_template)
        return meta.model_copy(update={"use_instructions": instructed} | self._loading([self]))

    def sizes_meta(self, sizes: Iterable[Size | str] | None = None) -> Any:
        """Return metadata of several sizes, from which mteb loads one; its `embed_dim` is the list of their dims.

        `mteb.evaluate` takes it as a model, at the deepest size. `load_model(embed_dim=128)` loads the deepest size of
        that dim, `load_model(size="4:128")` any size.

        Args:
            sizes: The sizes; by default those that the model stores.

        Raises:
            UserError: mteb is not installed, or the model lacks a size.
        """
        models = self._at_each(sizes)
        meta = max(models, key=lambda model: model.size).mteb_model_meta
        dims = sorted({model.size.dim for model in models})
        return meta.model_copy(update={"embed_dim": dims, "experiment_kwargs": None} | self._loading(models))

    def encode(  # type: ignore[override]
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        **options: Any,
    ) -> np.ndarray:
        """Return the embeddings, float32 [texts, dim], of all batches of a loader, in its order.

        Args:
            inputs: Batches with a column `text`, or, as mteb gives for corpora, `title` and `body`.
            task_metadata: The task, which decides the prompt.
            hf_split: Ignored.
            hf_subset: Ignored.
            prompt_type: "query", or anything else for passages.
            options: Ignored.
        """
        separator = self.encoder.config.passage_field_separator
        texts, task = mteb_inputs(inputs, separator, {"prompt_type": prompt_type})
        return super().encode(texts, prompt=self._task_prompt(task_metadata, prompt_type), task=task)

    def evaluate(self, tasks: Any, sizes: Iterable[Size | str] | None = None, **options: Any) -> dict[str, Any]:
        """Evaluate at several sizes. Each text is encoded once, for all of them.

        The embeddings of a task are kept in a temporary folder until all sizes are done with it.

        Args:
            tasks: A task of mteb, several, or a benchmark.
            sizes: The sizes, such as ["2:32", "6:128"]; by default those that the model stores.
            options: Passed to `mteb.evaluate`, such as `cache` and `show_progress_bar`.

        Returns:
            {size: mteb's ModelResult}, in the order of the sizes.

        Raises:
            UserError: mteb is not installed, or the model lacks a size.

        Example:
            >>> import mteb  # doctest: +SKIP
            >>> model = MtebModel("my-model")  # doctest: +SKIP
            >>> results = model.evaluate(mteb.get_tasks(tasks=["NFCorpus"]), ["2:32", "6:384"])  # doctest: +SKIP
            >>> results["2:32"].task_results[0].get_score()  # doctest: +SKIP
        """
        models = self._at_each(sizes)
        mteb = _import_mteb()
        single = isinstance(tasks, mteb.AbsTask)
        results: dict[str, list[Any]] = {model.size_name: [] for model in models}
        shared_sizes = {
            True: Sizes(sorted({model.size for model in models})),
            False: Sizes(sorted({model.passage_size for model in models})),
        }
        for task in [tasks] if single else tasks:
            with tempfile.TemporaryDirectory(prefix="starbucks-mteb-") as folder:
                for model in models:
                    model._shared, model._shared_sizes = SharedEmbeddings(Path(folder)), shared_sizes
                    results[model.size_name].append(mteb.evaluate(model, task, **options))
        return {size: _joined(found) for size, found in results.items()}

    def _embed(
        self, texts: list[str], prefix: str, is_query: bool, size: Size, batch_size: int | None, label: str | None
    ) -> np.ndarray:
        if self._shared is None:
            return super()._embed(texts, prefix, is_query, size, batch_size, label)
        return self._shared.get(
            texts,
            f"{self._length(is_query)} {prefix}",
            size,
            lambda: self._embed_sizes(texts, prefix, is_query, self._shared_sizes[is_query], batch_size, label),
        )

    def _task_prompt(self, task_metadata: Any, prompt_type: Any) -> str | None:
        """Return the prompt of a task as mteb chooses it, or None for the model's own prefix."""
        if task_metadata is None or not (self.task_prompts or self.instruction_template):
            return None
        chooser = _prompt_chooser(self.task_prompts)
        if self.instruction_template is None:
            return self.task_prompts.get(chooser.get_prompt_name(task_metadata, prompt_type))
        is_passage = getattr(prompt_type, "value", prompt_type) == DOCUMENT
        if is_passage and not self.instruct_passages:
            return None
        instruction = chooser.get_instruction(task_metadata, prompt_type)
        if isinstance(instruction, Mapping):  # of a task that has queries, for texts that are not said to be any
            instruction = instruction.get(QUERY, "")
        return self.instruction_template.replace("{instruction}", instruction)

    def _at_each(self, sizes: Iterable[Size | str] | None) -> list[MtebModel]:
        named = list(self.encoder.sizes) if sizes is None else [sizes] if isinstance(sizes, str | Size) else list(sizes)
        if not named:
            raise UserError("no sizes are given", "name at least one, such as ['6:128']")
        return [self.at(size) for size in named]

    def _loading(self, models: Sequence[MtebModel]) -> dict[str, Any]:
        """Return the fields of the metadata with which mteb loads one of these models again."""
        if not self.encoder.name:
            return {}
        names = [model.size_name for model in models]
        options = {"model": self.encoder.name, "sizes": ",".join(names), **self._options}
        if len(names) == 1:
            options["size"] = names[0]  # mteb adds it, from `experiment_kwargs`, to the metadata of a loaded model
        for name, value in (
            ("prompts", self.task_prompts),
            ("instruction_template", self.instruction_template),
            ("instruct_passages", self.instruct_passages),
        ):
            if value:
                options[name] = value
        return {"loader": load_mteb_model, "loader_kwargs": options}


def load_mteb_model(
    name: str,
    revision: str | None = None,
    *,
    model: str,
    sizes: str,
    size: str | None = None,
    embed_dim: int | None = None,
    device: str | None = None,
    **options: Any,
) -> MtebModel:
    """Load a model for mteb: the loader in the metadata of an `MtebModel`.

    Args:
        name: Its name in mteb's results.
        revision: The fingerprint that it must have.
        model: A folder or hub name.
        sizes: The sizes that the metadata is about.
        size: The size to load; by default the deepest of `sizes`.
        embed_dim: Load the deepest of `sizes` with this dim.
        device: As in `MtebModel`.
        options: Other arguments of `MtebModel`.

    Raises:
        UserError: The model cannot be read, has other weights, or no size of that dim.
    """
    listed = {parse_pair(one)[0]: one for one in sizes.split(",")}
    fitting = [at for at in listed if embed_dim in (None, at.dim)]
    if not fitting:
        raise UserError(f"{name} has no size of {embed_dim} dims", f"its sizes are {sizes}")
    wanted = size or listed[max(fitting)]
    layers = [at.layer for pair in (*listed.values(), wanted) for at in parse_pair(pair) if at]
    encoder = NestedEncoder.from_pretrained(model, layers=max(layers), passage_layers=True, device=device)
    found = encoder.fingerprint(max(listed).layer)
    if revision not in (None, found):
        raise UserError(
            f"{model} has other weights than the metadata says: revision {found}, not {revision}",
            "make the metadata again from this model",
        )
    return MtebModel(encoder, wanted, **options)


def _import_mteb() -> Any:
    try:
        import mteb
    except ImportError:
        raise UserError("the package mteb 2 is not installed", "pip install 'mteb>=2'") from None
    return mteb


def _prompt_chooser(prompts: Mapping[str, str]) -> Any:
    """Return an object with mteb's own choice of the prompt or instruction of a task."""
    from mteb.models.abs_encoder import AbsEncoder

    class Chooser(AbsEncoder):
        def __init__(self) -> None:
            self.model_prompts = self.prompts_dict = dict(prompts)

        def encode(self, *arguments: Any, **options: Any) -> Any:
            raise NotImplementedError

    return Chooser()


def _joined(results: Sequence[Any]) -> Any:
    """Return the results of one model on several tasks as one ModelResult."""
    tasks = [one for result in results for one in result.task_results]
    exceptions = [one for result in results for one in result.exceptions or ()]
    return results[0].model_copy(update={"task_results": tasks, "exceptions": exceptions or None})
