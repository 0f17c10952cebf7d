"""Convert a checkpoint to a model folder: weights as safetensors, tokenizer, configuration, and starbucks.json if known."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from starbucks_retrieval.convert import ConvertArguments
from starbucks_retrieval.convert.weights import Weights, read_weights
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_folder, umask_permissions
from starbucks_retrieval.locks import OutputLock, left_by_killed_run, lock_of
from starbucks_retrieval.models.architectures import check_numbers
from starbucks_retrieval.models.config import EncoderConfig, find_config, model_file
from starbucks_retrieval.models.encoder import NestedEncoder
from starbucks_retrieval.models.loading import explain_load_errors, quiet_transformers
from starbucks_retrieval.models.modules_json import Module
from starbucks_retrieval.models.saving import save_tokenizer
from starbucks_retrieval.models.sentence_modules import remove_modules, save_modules
from starbucks_retrieval.models.weight_files import explain_damage
from starbucks_retrieval.parsing import read_json


def convert(arguments: ConvertArguments) -> dict[str, Any]:
    """Convert a checkpoint to a folder that all commands read.

    The folder has the weights of the backbone, with the head of a masked language model if the checkpoint has it, in
    the checkpoint's own precision. Other weights, such as the decoders of a pre-training, are left out. Sizes, pooling and
    normalisation are stored in starbucks.json if the flags or the modules of sentence-transformers tell them.

    Args:
        arguments: The flags of `starbucks convert`.

    Returns:
        Figures: output, files, architecture, dtype, tensors, parameters, left_out and settings.

    Raises:
        UserError: The checkpoint is incomplete, of an unknown architecture, or holds anything but tensors; the output
            folder is not empty.

    Example:
        >>> convert(ConvertArguments("bert-base-uncased-fineweb100bt-smae", "smae"))  # doctest: +SKIP
    """
    output = Path(arguments.output_dir)
    _check_output(arguments, output)
    with OutputLock(output) as lock:
        _check_output(arguments, output)  # another process may have written it since
        return _convert(arguments, output, lock)


def _convert(arguments: ConvertArguments, output: Path, lock: OutputLock) -> dict[str, Any]:
    source = arguments.model_name_or_path
    with explain_load_errors(source):
        from transformers import AutoConfig, AutoTokenizer

        subfolder = _transformer_folder(source)
        hf_config = AutoConfig.from_pretrained(source, subfolder=subfolder)
        check_numbers(hf_config, source)
        tokenizer = AutoTokenizer.from_pretrained(source, subfolder=subfolder)
    if not getattr(tokenizer, "is_fast", False) or len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
        raise UserError(f"{source} has no tokenizer with a vocabulary", "copy the tokenizer's files into the folder")
    if arguments.append_eos_token:
        append_eos(tokenizer)
    config = _encoder_config(arguments, hf_config)
    weights, files = read_weights(source, subfolder)
    model, left_out = _load(source, weights, hf_config)
    if arguments.lora_name_or_path:
        model = merge_adapters(model, arguments.lora_name_or_path)
    with atomic_folder(output, lock.announce) as folder, quiet_transformers(), umask_permissions(folder):
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
        if config is not None:
            _save_settings(source, config, folder)
    return {
        "output": str(output),
        "files": files,
        "architecture": type(model).__name__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "tensors": len(model.state_dict()),
        "parameters": model.num_parameters(),
        "left_out": left_out,
        "settings": "no stored settings"
        if config is None
        else f"{config.pooling} pooling, sizes {config.sizes or 'not stored'}",
    }


def _check_output(arguments: ConvertArguments, output: Path) -> None:
    if (
        output.exists()
        and Path(arguments.model_name_or_path).exists()
        and output.samefile(arguments.model_name_or_path)
    ):
        raise UserError(f"--output_dir {output} is the checkpoint itself", "name another folder")
    may_replace = arguments.overwrite_output_dir or left_by_killed_run(output, lock_of(output))
    if output.is_file() or (output.is_dir() and any(output.iterdir()) and not may_replace):
        raise UserError(f"{output} is not empty", "name another folder, or add --overwrite_output_dir")


def _transformer_folder(source: str) -> str:
    """Return the folder of the weights in a checkpoint: that of the Transformer module of older sentence-transformers."""
    path = model_file(source, "modules.json")
    if path is None:
        return ""
    folder = next((module.path for module in read_json(path, list[Module]) if module.kind == "Transformer"), None)
    if folder is None:
        raise UserError(f"{path} names no Transformer module", "restore the file")
    if Path(folder).is_absolute() or ".." in Path(folder).parts:
        raise UserError(f"{path} names the folder {folder!r}", "restore the file")
    return folder


def _encoder_config(arguments: ConvertArguments, hf_config: Any) -> EncoderConfig | None:
    """Return the settings that starbucks.json will store, None for a backbone of which nothing is known."""
    depth, width = int(hf_config.num_hidden_layers), int(hf_config.hidden_size)
    config = find_config(arguments.model_name_or_path, depth, width)
    config = arguments.configured(config)
    if arguments.sizes is not None:
        from starbucks_retrieval.sizes import Sizes

        sizes = Sizes.parse(arguments.sizes, Sizes.default(depth, width))
        config = dataclasses.replace(config, sizes=config.check_sizes(sizes, depth, width))
    return config if config.source or config != EncoderConfig() else None


def _load(source: str, weights: Weights, hf_config: Any) -> tuple[Any, list[str]]:
    """Return the model that has all its weights in the checkpoint, and the names of the weights that it does not use.

    `weights` is emptied, so that they are in memory once.
    """
    from transformers import AutoModel, AutoModelForMaskedLM

    floating = [tensor.dtype for tensor in weights.values() if tensor.is_floating_point()]
    if not floating:
        raise UserError(f"{source} holds no weights of floating-point type", "download the checkpoint again")
    dtype = reduce(torch.promote_types, floating)
    makers: list[Callable[..., Any]] = [AutoModel.from_pretrained]
    if type(hf_config) in AutoModelForMaskedLM._model_mapping:
        makers.insert(0, AutoModelForMaskedLM.from_pretrained)
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as folder, explain_load_errors(source), quiet_transformers():
        hf_config.save_pretrained(folder)
        # safetensors refuses tensors that share memory, as tied weights do in a pickle.
        separate = {name: weights.pop(name).clone(memory_format=torch.contiguous_format) for name in list(weights)}
        save_file(separate, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        del separate
        # A pooler above the last layer is kept where the checkpoint has it.
        for make, options in [(make, {}) for make in makers] + [(makers[-1], {"add_pooling_layer": False})]:
            try:
                model, report = make(folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **options)
            except TypeError:
                if options:  # an architecture without a pooler
                    continue
                raise
            missing = sorted(report["missing_keys"])
            if report.get("mismatched_keys"):
                raise UserError(f"{source}: weights have other shapes than config.json says", "restore config.json")
            if not missing:
                return model, sorted(report["unexpected_keys"])
    raise UserError(
        f"{source} lacks {len(missing)} weights of its architecture, for example {missing[0]}",
        "the checkpoint belongs to another architecture or is incomplete",
    )


def _save_settings(source: str, config: EncoderConfig, folder: Path) -> None:
    """Write starbucks.json and the modules after pooling, and those of sentence-transformers around the weights."""
    for path in config.head:
        weights, _ = read_weights(source, path)
        (folder / path).mkdir()
        save_file(weights, folder / path / "model.safetensors")
        found = model_file(source, f"{path}/config.json")
        assert found is not None  # find_config has read it
        shutil.copyfile(found, folder / path / "config.json")
    config.save(folder)
    encoder = NestedEncoder.from_pretrained(folder, device="cpu")
    remove_modules(folder)
    if encoder.head is not None:
        encoder.head.save(folder)
        dataclasses.replace(config, head=encoder.head.folders).save(folder)
    save_modules(folder, encoder, encoder.max_length(False))


def merge_adapters(model: Any, name_or_path: str) -> Any:
    """Return a model with adapters merged into its weights.

    Args:
        model: The transformers model that the adapters were trained on.
        name_or_path: A folder or hub name with adapter_config.json, and adapter_model.safetensors or adapter_model.bin.

    Raises:
        UserError: peft is not installed, the adapters cannot be read, or belong to another model.
    """
    if not importlib.util.find_spec("peft"):
        raise UserError("--lora_name_or_path needs peft", "pip install 'starbucks-retrieval[lora]'")
    from peft import PeftConfig, PeftModel, set_peft_model_state_dict

    path = model_file(name_or_path, "adapter_config.json")
    if path is None:
        raise UserError(f"{name_or_path} has no adapter_config.json", "name the folder that training with --lora wrote")
    weights, _ = read_weights(name_or_path, stem="adapter_model")
    belongs = "name the model that the adapters were trained on with --model_name_or_path"
    with explain_damage(path, belongs):  # peft checks none of the values
        try:
            config = PeftConfig.from_pretrained(name_or_path)
            config.inference_mode = True
            adapted = PeftModel(model, config)
            result: Any = set_peft_model_state_dict(adapted, weights)
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            line = " ".join(str(error).split())
            raise UserError(f"cannot add the adapters of {name_or_path}: {line[:200]}", belongs) from None
        lacking = [name for name in result.missing_keys if "lora_" in name]
        if result.unexpected_keys or lacking:
            example = (result.unexpected_keys or lacking)[0]
            raise UserError(f"the adapters of {name_or_path} do not fit the model, for example {example}", belongs)
        return adapted.merge_and_unload()


def append_eos(tokenizer: Any) -> None:
    """Let a fast tokenizer end every text with its end-of-sequence token; truncated texts end with it, too.

    A tokenizer that ends texts with a special token, as BERT's does, stays as it is.

    Args:
        tokenizer: A fast tokenizer of transformers. Its post-processor is changed, and saved with it.

    Raises:
        UserError: It has no end-of-sequence token.
    """
    from tokenizers import processors

    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    ids = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(ids) + 1) if ids[i : i + len(bare)] == bare)
    if ids[start + len(bare) :]:
        return
    eos = tokenizer.eos_token
    if eos is None:
        raise UserError("the tokenizer has no end-of-sequence token", "leave --append_eos_token out")
    # One template for both ends: a second one after it would treat a first token such as <s> as a text of its own.
    first = tokenizer.convert_ids_to_tokens(ids[:start])
    single, pair = [*first, "$A", eos], [*first, "$A", eos, *first, "$B", eos]
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in dict.fromkeys([*first, eos])]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=special
    )
