"""Encoding with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.backends.base import GraphBackend, need
from starbucks_retrieval.models.backends.graph import (
    INPUTS,
    Graph,
    PooledLayersGraph,
    Run,
    check_close,
    quiet_export,
    trace,
)
from starbucks_retrieval.models.encoder import NestedEncoder
from starbucks_retrieval.sizes import Sizes

_LARGEST = 2_000_000_000  # bytes; an ONNX file is one protobuf message, which ends at 2 GiB


def open_onnx(encoder: NestedEncoder, sizes: Sizes) -> GraphBackend:
    """The taps that `sizes` need, as an ONNX graph in memory, in fp32. Raises UserError for what cannot be converted."""
    graph = PooledLayersGraph(encoder, sizes.layers)
    session = open_session(onnx_bytes(graph))
    check_close(graph, runner(session), "ONNX Runtime")
    return OnnxBackend(encoder, sizes, session)


class OnnxBackend(GraphBackend):
    """A session runs in any number of threads at once."""

    def __init__(self, encoder: NestedEncoder, sizes: Sizes, session: Any) -> None:
        super().__init__("onnx-fp32", encoder, sizes)
        self._session = session

    def runner(self) -> Run:
        """What runs a batch."""
        return runner(self._session)


def onnx_bytes(graph: Graph) -> bytes:
    """The graph as an ONNX file with its weights inside; equal graphs give equal bytes.

    Raises UserError without the packages, and for weights beyond the 2 GB that a file can hold.
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
                value.name += "_inside"  # torch calls what it looks up in a table "embedding", too
    content = exported.model_proto
    # The exporter notes at every node which source line it comes from: this machine's paths, and no part of the model.
    for part in (content.graph, *content.functions):
        for item in (part, *part.node, *part.value_info):
            del item.metadata_props[:]
    return content.SerializeToString(deterministic=True)


def open_session(content: bytes) -> Any:
    """An ONNX file, ready to run on as many cores as torch would take."""
    need("onnxruntime", extra="onnx")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.enable_mem_pattern = False  # it plans memory for one shape, and each batch has its own
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def runner(session: Any) -> Run:
    """A session as a function of token ids and mask."""

    def run(ids: np.ndarray, mask: np.ndarray) -> Sequence[np.ndarray]:
        return session.run(None, dict(zip(INPUTS, (ids, mask))))

    return run
