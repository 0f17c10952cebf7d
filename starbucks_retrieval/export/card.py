"""The model card that export writes: what the folder holds, and lines that use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from starbucks_retrieval.export.arguments import ExportArguments, public_name
from starbucks_retrieval.models import EncoderConfig, NestedEncoder
from starbucks_retrieval.models.info import base_model
from starbucks_retrieval.sizes import Size

_LOADERS = {
    "sentence-transformers": "sentence-transformers",
    "transformers": "transformers' AutoModel",
    "onnx": "ONNX Runtime",
    "openvino": "OpenVINO",
}

# `batch` holds tensors padded on the right, `hidden` the last layer's states.
_POOL = {
    "cls": "hidden[:, 0]",
    "mean": "(hidden * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)",
    "last": "hidden[torch.arange(len(hidden)), mask.sum(dim=1) - 1]",
}


def write_card(
    folder: Path, encoder: NestedEncoder, size: Size, arguments: ExportArguments, figures: dict[str, Any]
) -> None:
    """Write README.md: front matter, what was exported, how to use it, what a text has to look like."""
    name = arguments.hub_model_id or Path(arguments.output_dir).name
    base = public_name(arguments.model_name_or_path)
    head = {
        "library_name": arguments.to,
        "pipeline_tag": "sentence-similarity",
        **base_model(arguments.model_name_or_path),
        "tags": ["sentence-similarity", "dense-retrieval", "matryoshka", "starbucks"],
    }
    score = "cosine" if encoder.config.normalize else "dot product"
    weights = "8-bit integers" if arguments.int8 else "float32"
    lines = [
        "---",
        yaml.safe_dump(head, sort_keys=False).strip(),
        "---",
        f"# {name}: `{base}` at size {size}",
        "",
        f"The text encoder `{base}` cut to its first {size.layer} layers and its embeddings to their first {size.dim} "
        f"numbers, for {_LOADERS[arguments.to]}: {figures['parameters_kept']:,} of {figures['parameters_total']:,} "
        f"parameters, {weights}. Pooling: {encoder.config.pooling}; score: {score}. Nothing was measured on this "
        "export; quality and licence are those of the model that it comes from.",
        "",
        "## Use",
        "",
        "```python",
        *_usage(name, encoder, size, arguments.to),
        "```",
        "",
        *_notes(encoder, size, arguments, figures),
        "",
        "Written by `starbucks export`; `export.json` says from what and with which versions.",
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")


def _usage(name: str, encoder: NestedEncoder, size: Size, target: str) -> list[str]:
    if target == "sentence-transformers":
        return [
            "from sentence_transformers import SentenceTransformer",
            "",
            f'model = SentenceTransformer("{name}")',
            'queries = model.encode_query(["a question"])',
            'passages = model.encode_document(["a passage", "another passage"])',
            "scores = model.similarity(queries, passages)",
        ]
    text = json.dumps(encoder.config.passage_prefix + "a passage", ensure_ascii=False)
    tokenized = (
        f"tokenizer([{text}], padding=True, truncation=True, max_length={encoder.max_length(False)}, return_tensors="
    )
    tokenizer = f'tokenizer = AutoTokenizer.from_pretrained("{name}")'
    if target == "transformers":
        cut = f"({_POOL[encoder.config.pooling]})[:, :{size.dim}]"
        normalized = f"torch.nn.functional.normalize({cut}, dim=-1)" if encoder.config.normalize else cut
        return [
            "import torch",
            "from transformers import AutoModel, AutoTokenizer",
            "",
            tokenizer,
            f'model = AutoModel.from_pretrained("{name}")',
            f'batch = {tokenized}"pt")',
            "ids, mask = batch.input_ids, batch.attention_mask",
            "with torch.no_grad():",
            "    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state",
            f"passages = {normalized}",
        ]
    run = (
        [
            f'session = onnxruntime.InferenceSession("{name}/model.onnx", providers=["CPUExecutionProvider"])',
            f'batch = {tokenized}"np")',
            'inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}',
            '(passages,) = session.run(["embedding"], inputs)',
        ]
        if target == "onnx"
        else [
            f'model = openvino.Core().compile_model("{name}/openvino_model.xml", "CPU")',
            f'batch = {tokenized}"np")',
            'inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}',
            'passages = model(inputs)["embedding"]',
        ]
    )
    library = "onnxruntime" if target == "onnx" else "openvino"
    return [f"import {library}", "from transformers import AutoTokenizer", "", tokenizer, *run]


def _notes(encoder: NestedEncoder, size: Size, arguments: ExportArguments, figures: dict[str, Any]) -> list[str]:
    config: EncoderConfig = encoder.config
    query, passage = encoder.max_length(True), encoder.max_length(False)
    notes = [
        f"- Put {config.query_prefix!r} in front of a query and {config.passage_prefix!r} in front of a passage."
        if config.query_prefix or config.passage_prefix
        else "- Queries and passages get no prefix.",
        f"- Lengths: queries {query}, passages {passage} tokens, special ones included.",
        f"- A passage with a title is the title, {config.passage_field_separator!r} and the text; white space at both "
        "ends is stripped.",
    ]
    if arguments.to == "sentence-transformers":
        if config.query_prefix or config.passage_prefix:
            notes[0] += " `encode_query` and `encode_document` do so themselves."
        if query != passage:
            notes[1] += f" `max_seq_length` is the passages'; set `model.max_seq_length = {query}` to embed queries."
    elif arguments.to in ("onnx", "openvino"):
        notes.append(
            f"- The graph pools, cuts{' and normalises' if config.normalize else ''} by itself: its output is "
        )
        notes[-1] += f"`embedding`, [texts, {size.dim}]. Pad on the right, as this tokenizer does."
    else:
        notes.append("- Read `last_hidden_state`; a `pooler_output`, where the architecture has one, is zeros here.")
        notes.append(f"- `starbucks encode --model_name_or_path {Path(arguments.output_dir).name}` does all of this.")
    if arguments.to == "openvino" and not arguments.int8:
        notes.append(
            "- Where the processor computes bfloat16, OpenVINO does so unasked; for float32 give `compile_model`"
        )
        notes[-1] += ' `{"INFERENCE_PRECISION_HINT": "f32"}`.'
    if arguments.int8:
        notes.append(f"- The 8-bit scales were set on {figures['calibration_texts']} texts.")
    return notes
