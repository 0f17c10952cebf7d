"""Back ends other than torch give the projected embeddings of a fitted model, at every layer."""

import numpy as np
import pytest
import torch
from conftest import DECODERS, FAMILIES, save_model
from fitted_models import fitted, load, token_rows

from starbucks_retrieval.models.architectures import shallow_copy
from starbucks_retrieval.models.backends import onnx, openvino
from starbucks_retrieval.models.backends.base import GraphBackend, graph_layers
from starbucks_retrieval.models.backends.drift import drift
from starbucks_retrieval.models.backends.graph import EmbeddingGraph, PooledLayersGraph
from starbucks_retrieval.models.backends.onnx import write_onnx
from starbucks_retrieval.models.backends.openvino import write_openvino
from starbucks_retrieval.models.backends.selection import choose_backend, open_backend
from starbucks_retrieval.sizes import Size, Sizes

SIZES = Sizes.parse("0:8,1:8,2:32")
BACKENDS = ("onnx", "openvino")
MODULES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino", "nncf")}


def needs(backend):
    for module in MODULES[backend]:
        pytest.importorskip(module, reason=f"needs starbucks-retrieval[{backend}]")


def fitted_model(folder, family="bert", **config):
    layers = {"n_layers": 2} if family == "distilbert" else {"num_hidden_layers": 2}
    return fitted(load(save_model(folder, family, **layers), **config))[0]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return fitted_model(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def opened(encoder):
    """A function that opens a back end of the encoder on first use."""
    made = {}

    def get(backend, dtype="fp32"):
        needs(backend)
        if (backend, dtype) not in made:
            made[backend, dtype] = open_backend(backend, encoder, SIZES, dtype, token_rows(16))
        return made[backend, dtype]

    return get


def assert_equals_torch(runtime, encoder, sizes=SIZES):
    rows = token_rows(20, seed=3)
    found = runtime.embed(rows, sizes, max_tokens=200)
    for size, expected in encoder.embed(rows, sizes).items():
        assert found[size].dtype == np.float32
        np.testing.assert_allclose(found[size], expected, atol=1e-5)


def torch_graph(encoder):
    """Return the graph that other back ends convert, run by torch."""
    graph = PooledLayersGraph(encoder, graph_layers(SIZES))

    def run(*inputs):
        return [pooled.detach().numpy() for pooled in graph(*map(torch.from_numpy, inputs))]

    return GraphBackend("torch", encoder, SIZES, lambda: run)


def test_the_graph_projects_every_layer(encoder):
    assert_equals_torch(torch_graph(encoder), encoder)
    assert_equals_torch(torch_graph(encoder), encoder, Sizes.parse("0:4,2:8"))


@pytest.mark.slow  # converting takes seconds
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_layer_is_projected(encoder, opened, backend):
    assert_equals_torch(opened(backend), encoder)
    assert_equals_torch(opened(backend), encoder, Sizes.parse("0:4,2:8"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_architectures(tmp_path, family, backend):
    needs(backend)
    options = {"pooling": "last", "normalize": False} if family in DECODERS else {}
    encoder = fitted_model(tmp_path, family, **options)
    assert_equals_torch(open_backend(backend, encoder, SIZES, "fp32"), encoder)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_concatenated_layers_are_part_of_the_graph(tmp_path, backend):
    needs(backend)
    encoder = fitted(load(save_model(tmp_path, num_hidden_layers=3)), concat_layers=True)[0]
    sizes = Sizes.parse("2:8")  # layer 1 is needed and not returned
    assert_equals_torch(open_backend(backend, encoder, sizes, "fp32"), encoder, sizes)


@pytest.mark.slow
def test_bf16_and_int8_are_close(encoder, opened):
    needs("openvino")
    from openvino import Core

    dtypes = ["int8"]
    if "BF16" in Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        dtypes.append("bf16")
    for dtype in dtypes:
        figures = drift(opened("openvino", dtype), encoder, token_rows(60, seed=3), SIZES)
        assert figures[Size(0, 8)]["cosine"] == pytest.approx(1)  # looked up in float32
        for size in (Size(1, 8), Size(2, 32)):
            assert 0.8 < figures[size]["cosine"] < 1 - 1e-7


@pytest.mark.slow
def test_int8_leaves_the_maps_in_fp32(encoder):
    needs("openvino")
    plain = shallow_copy(encoder)
    plain.projections = None
    for graph, count in (
        (PooledLayersGraph(encoder, (1, 2)), 2),
        (EmbeddingGraph(encoder, Size(1, 8)), 1),
        (EmbeddingGraph(encoder, Size(0, 8)), 0),
        (PooledLayersGraph(plain, (1,)), 0),
    ):
        model = openvino.convert(graph)
        names = openvino._maps(model, graph)
        assert len(names) == count
        if count:
            quantised = openvino.quantise(model, token_rows(4), names)
            operations = {node.get_friendly_name(): node for node in quantised.get_ops()}
            for name in names:
                inputs = {port.get_source_output().get_node().get_type_name() for port in operations[name].inputs()}
                assert "FakeQuantize" not in inputs


@pytest.mark.parametrize("name", ["torch", *BACKENDS])
def test_layer_0_alone_is_looked_up_without_a_conversion(encoder, monkeypatch, name):
    monkeypatch.setattr(onnx, "onnx_bytes", None)
    sizes = Sizes.parse("0:8,0:16")
    runtime = open_backend(name, encoder, sizes, "auto")
    assert runtime.name == "fp32"
    assert not isinstance(runtime, GraphBackend)
    assert_equals_torch(runtime, encoder, sizes)
    assert open_backend("openvino", encoder, sizes, "int8").name == "fp32"  # nothing to calibrate
    candidates = [open_backend(other, encoder, sizes, "auto") for other in ("torch", *BACKENDS)]
    assert choose_backend(candidates, token_rows(30), sizes, 200)[0].name == "fp32"


def test_layer_0_beside_others_runs_the_graph_only_where_it_is_needed(encoder):
    runtime = GraphBackend("onnx-fp32", encoder, SIZES, runner=None)
    assert_equals_torch(runtime, encoder, Sizes.parse("0:8"))
    assert graph_layers(SIZES) == (1, 2)


def test_a_graph_holds_only_the_maps_that_it_needs(encoder):
    def count(module):
        return sum(parameter.numel() for parameter in module.parameters())

    hidden, vocabulary = encoder.hidden_size, 100
    graph = PooledLayersGraph(encoder, [1])
    table = vocabulary * hidden
    assert count(graph) == count(graph.backbone) + 2 * hidden * hidden + hidden + table
    cut = EmbeddingGraph(encoder, Size(1, 8))
    assert count(cut) == count(graph.backbone) + 8 * 2 * hidden + 8 + table
    assert count(EmbeddingGraph(encoder, Size(2, 8))) == count(encoder.backbone) + 8 * hidden  # the last layer
    assert count(EmbeddingGraph(encoder, Size(0, 8))) == vocabulary * 8


@pytest.mark.slow
@pytest.mark.parametrize("size", [Size(0, 8), Size(2, 8)])
def test_files_hold_the_map_at_its_size(encoder, tmp_path, size):
    for backend in BACKENDS:
        needs(backend)
    import onnx as onnx_package
    import onnxruntime
    from openvino import Core

    write_onnx(encoder, size, tmp_path / "model.onnx")
    write_openvino(encoder, size, tmp_path)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = Core().compile_model(tmp_path / "openvino_model.xml", "CPU", exact)
    for row in [*token_rows(3, seed=4), [2, 3]]:
        inputs = {"input_ids": np.array([row]), "attention_mask": np.ones((1, len(row)), dtype=np.int64)}
        expected = encoder.embed([row], Sizes([size]))[size]
        np.testing.assert_allclose(session.run(["embedding"], inputs)[0], expected, atol=1e-5)
        np.testing.assert_allclose(compiled(inputs)["embedding"], expected, atol=1e-5)
    graph = onnx_package.load(tmp_path / "model.onnx").graph
    stored = sum(int(np.prod(tensor.dims)) for tensor in graph.initializer)
    assert stored < sum(p.numel() for p in EmbeddingGraph(encoder, size).parameters()) + 1000
