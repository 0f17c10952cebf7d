"""OpenVINO: encoding with it, quantising with NNCF, and writing .xml and .bin files."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import sync_folder
from starbucks_retrieval.models import precision
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
    check,
    quiet_export,
    trace,
)
from starbucks_retrieval.models.backends.graph_cache import KeptGraph
from starbucks_retrieval.models.batching import pad
from starbucks_retrieval.models.encoder import NestedEncoder
from starbucks_retrieval.sizes import Size, Sizes

log = logging.getLogger(__name__)

_FILE = "openvino_model"
_HINTS = {"fp32": "f32", "bf16": "bf16"}


def open_openvino(encoder: NestedEncoder, sizes: Sizes, dtype: str, calibration: TokenRows | None = None) -> Backend:
    """Return the back end openvino, compiled for this CPU in fp32, bf16 or int8.

    int8 quantises weights and activations; the ranges come from the calibration rows. What is not quantised is in bf16
    where the CPU is fast in it. The converted model is kept in the cache. On an x86 CPU without VNNI, int8 gives a warning.

    Args:
        encoder: The model, on the CPU.
        sizes: The sizes whose layers the graph returns.
        dtype: auto, fp32, bf16 or int8.
        calibration: Token ids of some hundred texts, for int8.

    Raises:
        UserError: fp16, a CPU without bf16, int8 without calibration rows, an encoder that is not on the CPU or cannot
            be converted, a missing package.
    """
    need_cpu("openvino", encoder)
    if dtype == "fp16":
        raise UserError("openvino computes in fp32, bf16 or int8, not fp16", "take --dtype bf16")
    if dtype == "int8":
        check_calibration(calibration)  # before the conversion, which takes seconds
        _warn_without_vnni()
    fast = precision.dtype_name(precision.autocast_dtype("auto", encoder.device))
    dtype = fast if dtype == "auto" else dtype
    graph = PooledLayersGraph(encoder, graph_layers(sizes))
    rows = calibration if dtype == "int8" else None

    def make() -> Any:
        model = convert(graph)
        return model if rows is None else quantise(model, rows, _maps(model, graph))

    def open_saved(folder: Path) -> Any:
        compiled = compile_model(read(folder / f"{_FILE}.xml"), fast if dtype == "int8" else dtype)
        check(graph, runner(compiled), "OpenVINO", dtype, rows)
        return compiled

    kept = KeptGraph("openvino", graph, rows)
    compiled = kept.open(make, lambda model, to: save(model, to / f"{_FILE}.xml"), open_saved)
    # Each call of `embed` makes its own inference request, so several threads may call.
    return GraphBackend(f"openvino-{dtype}", encoder, sizes, lambda: runner(compiled), kept)


def write_openvino(encoder: NestedEncoder, size: Size, folder: Path, calibration: TokenRows | None = None) -> None:
    """Write the encoder at one size as openvino_model.xml and openvino_model.bin.

    The inputs are `input_ids` and `attention_mask`, the output is `embedding`, as in `write_onnx`. The files appear only
    after they were run and compared with torch.

    Args:
        encoder: The encoder, on the CPU.
        size: The size of the embedding.
        folder: Where the files go; others in it stay.
        calibration: Some hundred token rows like those to encode: weights and activations are quantised to int8. None
            writes fp32.

    Raises:
        UserError: The encoder cannot be converted, a package is missing, or int8 breaks the model.
        RuntimeError: fp32 differs from torch by more than 1e-4.
    """
    if calibration is not None:
        check_calibration(calibration)
    graph = EmbeddingGraph(encoder, size)
    model = convert(graph)
    if calibration is not None:
        model = quantise(model, calibration, _maps(model, graph))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{_FILE}.", dir=folder) as name:
        temporary = Path(name)
        save(model, temporary / f"{_FILE}.xml")
        run = runner(compile_model(read(temporary / f"{_FILE}.xml"), "fp32"))
        check(graph, run, "OpenVINO", "fp32" if calibration is None else "int8", calibration)
        # An old .xml must never lie beside a new .bin: the .xml is removed first and written last.
        (folder / f"{_FILE}.xml").unlink(missing_ok=True)
        for suffix in (".bin", ".xml"):
            os.replace(temporary / f"{_FILE}{suffix}", folder / f"{_FILE}{suffix}")
    sync_folder(folder)


def convert(graph: Graph) -> Any:
    """Convert a graph to an OpenVINO model in fp32. Raises UserError if the package is missing."""
    program, openvino = trace(graph), _openvino()
    with quiet_export():
        model = openvino.convert_model(program)
    for port, name in zip(model.outputs, graph.outputs):
        port.get_tensor().set_names({name})
    return model


def check_calibration(calibration: TokenRows | None) -> None:
    """Raise UserError unless there are rows to calibrate int8 with, and the packages that it needs."""
    if not calibration:
        raise UserError("int8 needs texts to calibrate it", "give some hundred of the kind that will be encoded")
    _openvino()  # before NNCF: it also keeps NNCF from sending reports
    need("nncf", extra="openvino")


@cache
def _warn_without_vnni() -> None:
    """Warn, once in a process, if this CPU is an x86 without VNNI, the instructions for sums of 8-bit products.

    Such a CPU sums two products in 16 bits, and large sums are cut. Weights of 7 bits (NNCF's overflow fix) avoid that and
    lose more: at 6:384 all-MiniLM-L6-v2 has a mean cosine of .9973 with float32 where sums are exact, .9951 where they are
    cut, and .9936 with 7 bits.
    """
    able = torch.cpu.get_capabilities()
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    if x86 and not any(able.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8")):
        log.warning(
            "this processor has no VNNI: int8 gains little speed over fp32, and is less exact than elsewhere\n"
            "  try: --dtype fp32"
        )


def quantise(model: Any, calibration: TokenRows, kept: Sequence[str] = ()) -> Any:
    """Return a copy of a model with int8 weights and activations, whose ranges come from the calibration rows.

    Args:
        model: The model in fp32.
        calibration: Token rows like those to encode.
        kept: The names of operations that stay in fp32.
    """
    import nncf

    # One text at a time, so that no padding is measured.
    batches = [{name: tensor.numpy() for name, tensor in pad([row], 0).items()} for row in calibration]
    nncf_log = logging.getLogger("nncf")
    level = nncf_log.level
    nncf_log.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # its progress bars would mix with the command's output
            return nncf.quantize(
                model,
                nncf.Dataset(batches),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=len(batches),
                ignored_scope=nncf.IgnoredScope(names=list(kept)) if kept else None,
            )
    finally:
        nncf_log.setLevel(level)


def _maps(model: Any, graph: Graph) -> list[str]:
    """Return the names of the products with projections and modules after pooling.

    They take one row per text, so int8 costs quality and saves no time: all-MiniLM-L6-v2, fitted, keeps .951 of the ten
    nearest at 4:128 without it and .929 with it.
    """
    encoder = graph.encoder
    count = (encoder.projections is not None) + (0 if encoder.head is None else encoder.head.kinds.count("Dense"))
    names = set()
    for result in model.get_results():
        level = {result.get_friendly_name(): result}
        for _ in range(count):
            # Layer by layer towards the inputs; the dictionary holds a node once that is reached on several paths.
            while level and not any(map(_is_product, level.values())):
                level = _before(level)
            found = {name: node for name, node in level.items() if _is_product(node)}
            names |= set(found)
            level = _before(found)
    return sorted(names)


def _is_product(node: Any) -> bool:
    return bool(node.get_type_name() == "MatMul")


def _before(level: dict[str, Any]) -> dict[str, Any]:
    """Return the nodes that give the inputs of nodes, by name."""
    nodes = [port.get_source_output().get_node() for node in level.values() for port in node.inputs()]
    return {node.get_friendly_name(): node for node in nodes}


def compile_model(model: Any, dtype: str) -> Any:
    """Compile a model for this CPU, in fp32 or bf16.

    The precision is always set, as OpenVINO uses bf16 by default where the CPU has it. One stream with as many threads
    as torch uses gives all of them to each batch.

    Args:
        model: An openvino.Model, as `convert`, `quantise` or `read` returns it.
        dtype: "fp32" or "bf16"; of a quantised model, the precision of the rest.

    Raises:
        UserError: The CPU has no bf16, or the package is missing.
    """
    core = _core(_openvino())
    if dtype == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise UserError("this CPU has no bf16", "take --dtype fp32")
    options = {
        "INFERENCE_PRECISION_HINT": _HINTS[dtype],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
    }
    return core.compile_model(model, "CPU", options)


def runner(compiled: Any) -> GraphFunction:
    """Return a compiled model as a function of token ids and mask, for one thread.

    The returned arrays share the memory of the inference request, and the next call overwrites them.

    Args:
        compiled: The result of `compile_model`.
    """
    request = compiled.create_infer_request()
    ports = list(compiled.outputs)

    def run(ids: np.ndarray, mask: np.ndarray) -> Sequence[np.ndarray]:
        results = request.infer(dict(zip(INPUTS, (ids, mask))), share_inputs=True, share_outputs=True)
        return [results[port] for port in ports]

    return run


def save(model: Any, path: Path) -> None:
    """Write a model without rounding its weights: `path`, a .xml file, and the .bin file beside it."""
    _openvino().save_model(model, path, compress_to_fp16=False)


def read(path: Path) -> Any:
    """Read an openvino.Model that `save` wrote, from its .xml file."""
    return _core(_openvino()).read_model(path)


@cache
def _core(openvino: Any) -> Any:
    """Return the core of this process; there must be only one.

    A core changes the thread's signal stack and restores the previous one at its end. If several end in another order
    than they began, the last one restores freed memory, and the next signal crashes the process.
    """
    return openvino.Core()


def _openvino() -> Any:
    """Import OpenVINO with its telemetry switched off."""
    # None makes the import of the telemetry module fail, and both OpenVINO and NNCF then run without it.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    need("openvino", extra="openvino")
    import openvino

    return openvino
