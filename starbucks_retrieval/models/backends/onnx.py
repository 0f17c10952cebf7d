"""ONNX Runtime: encoding with it, and writing .onnx files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.models.backends.base import (
    Backend,
    GraphBackend,
    GraphFunction,
    TokenRows,
    graph_layers,
    need,
    need_cpu,
)
from starbucks_retrieval.models.backends.graph import (
    INPUTS,
    EmbeddingGraph,
    Graph,
    PooledLayersGraph,
    check_close,
    quiet_export,
    trace,
)
from starbucks_retrieval.models.backends.graph_cache import KeptGraph
from starbucks_retrieval.models.encoder import NestedEncoder
from starbucks_retrieval.sizes import Size, Sizes

_FILE = "model.onnx"
_LARGEST = 2_000_000_000  # bytes; an ONNX file is one protobuf message, which ends at 2 GiB


def open_onnx(encoder: NestedEncoder, sizes: Sizes, dtype: str, calibration: TokenRows | None = None) -> Backend:
    """Return the back end onnx, in fp32. The converted model is kept in the cache.

    Args:
        encoder: The model, on the CPU.
        sizes: The sizes whose layers the graph returns.
        dtype: auto or fp32.
        calibration: Not used.

    Raises:
        UserError: Another dtype, an encoder that is not on the CPU or cannot be converted, a missing package.
    """
    need_cpu("onnx", encoder)
    if dtype not in ("auto", "fp32"):
        raise UserError(f"onnx computes in fp32, not {dtype}", "take --backend openvino, or --dtype fp32")
    graph = PooledLayersGraph(encoder, graph_layers(sizes))
    need("onnxruntime", extra="onnx")

    def open_saved(folder: Path) -> Any:
        session = _open_session((folder / _FILE).read_bytes())
        check_close(graph, runner(session), "ONNX Runtime")
        return session

    def save(content: bytes, folder: Path) -> None:
        (folder / _FILE).write_bytes(content)

    session = KeptGraph("onnx", graph, None).open(lambda: onnx_bytes(graph), save, open_saved)
    return GraphBackend("onnx-fp32", encoder, sizes, lambda: runner(session))


def write_onnx(encoder: NestedEncoder, size: Size, path: Path) -> None:
    """Write the encoder at one size as an ONNX file.

    The inputs are `input_ids` and `attention_mask`, int64 [batch, tokens] with dynamic axes; the output is `embedding`,
    float32 [batch, dim]. Layers above the size's are not in the file. The file appears only after ONNX Runtime has
    given the same numbers as torch, to 1e-4.

    Args:
        encoder: The encoder, on the CPU.
        size: The size that the file embeds texts at.
        path: The file to write.

    Raises:
        UserError: The encoder cannot be converted, or a package is missing.
        RuntimeError: The numbers differ.
    """
    graph = EmbeddingGraph(encoder, size)
    content = onnx_bytes(graph)
    check_close(graph, runner(_open_session(content)), "ONNX Runtime")
    with atomic_writer(path) as handle:
        handle.write(content)


def onnx_bytes(graph: Graph) -> bytes:
    """Return a graph as an ONNX file with its weights inside; equal graphs give equal bytes.

    Raises:
        UserError: A package is missing, or the weights are beyond the 2 GB that a file can hold.
    """
    need("onnx", "onnxscript", "onnxruntime", extra="onnx")
    weights = sum(p.numel() * p.element_size() for p in graph.parameters())
    if weights > _LARGEST:
        raise UserError(
            f"the weights take {weights / 1e9:.1f} GB, and an ONNX file holds 2", "take a lower layer, or openvino"
        )
    program = trace(graph)
    with torch.no_grad(), quiet_export():
        exported = torch.onnx.export(
            program, dynamo=True, input_names=INPUTS, output_names=graph.outputs, verbose=False
        )
    assert exported is not None
    for node in exported.model.graph:
        for value in node.outputs:
            if value.name in graph.outputs and value not in exported.model.graph.outputs:
                value.name += "_inside"  # torch names the outputs of table look-ups "embedding" too
    content = exported.model_proto
    # The exporter records the source line of every node: paths of this machine, which are not part of the model.
    for part in (content.graph, *content.functions):
        for item in (part, *part.node, *part.value_info):
            del item.metadata_props[:]
    return content.SerializeToString(deterministic=True)


def _open_session(content: bytes) -> Any:
    """Open an ONNX file in ONNX Runtime on the CPU, with as many threads as torch uses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.enable_mem_pattern = False  # memory patterns are for batches of one shape
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def runner(session: Any) -> GraphFunction:
    """Return a session as a function of token ids and mask.

    Args:
        session: An onnxruntime.InferenceSession.
    """

    def run(ids: np.ndarray, mask: np.ndarray) -> Sequence[np.ndarray]:
        return session.run(None, dict(zip(INPUTS, (ids, mask))))

    return run
