"""Back ends other than torch give the same numbers for any shape and thread, and check the files they write."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import math
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import DECODERS, FAMILIES, save_model

from starbucks_retrieval import NestedEncoder, Size, Sizes, UserError, clock
from starbucks_retrieval.models.backends import drift as drift_module
from starbucks_retrieval.models.backends import graph as graphs
from starbucks_retrieval.models.backends import graph_cache, onnx, openvino, selection
from starbucks_retrieval.models.backends.base import GraphBackend
from starbucks_retrieval.models.backends.drift import drift, kept_drift
from starbucks_retrieval.models.backends.graph import CONVERTIBLE, EmbeddingGraph, PooledLayersGraph
from starbucks_retrieval.models.backends.onnx import write_onnx
from starbucks_retrieval.models.backends.openvino import write_openvino
from starbucks_retrieval.models.backends.selection import Choices, choose_backend, open_backend
from starbucks_retrieval.models.backends.torch import TorchBackend
from starbucks_retrieval.models.batching import pad
from starbucks_retrieval.provenance import with_digest

SIZES = Sizes.parse("1:4,1:8,2:32")
BACKENDS = ("onnx", "openvino")


def token_rows(count=40, longest=50, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 100, length).tolist() for length in [*rng.integers(1, longest + 1, count - 2), 1, longest]]


CALIBRATION = token_rows(4)  # the same in all tests, so that int8 is calibrated once


def needs(backend):
    for module in {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino", "nncf")}.get(backend, ()):
        pytest.importorskip(module, reason=f"needs starbucks-retrieval[{backend}]")


def load(folder, family="bert", **config):
    layers = {"n_layers": 2} if family == "distilbert" else {"num_hidden_layers": 2}
    encoder = NestedEncoder.from_pretrained(save_model(folder, family, **layers), device="cpu")
    encoder.config = dataclasses.replace(encoder.config, **config)
    return encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return load(tmp_path_factory.mktemp("encoder"), pooling="mean", normalize=True)


@pytest.fixture(scope="module", autouse=True)
def conversions():
    """Converting takes seconds: keep each graph that was traced, converted or quantised for the next test that needs it."""
    kept = {}

    def keep(module, name, copy):
        convert = getattr(module, name)

        def convert_once(graph):
            key = (name, graph.encoder, type(graph), str(graph.outputs), str(getattr(graph, "size", "")))
            if key not in kept:
                kept[key] = convert(graph)
            return copy(kept[key])

        patch.setattr(module, name, convert_once)

    quantise = openvino.quantise

    def quantise_once(model, rows, maps):
        key = ("quantise", str(model.outputs), str(rows), str(maps))
        if key not in kept:
            kept[key] = quantise(model, rows, maps)
        return kept[key].clone()

    with pytest.MonkeyPatch.context() as patch:
        keep(onnx, "trace", lambda program: program)
        patch.setattr(openvino, "trace", onnx.trace)
        keep(onnx, "onnx_bytes", bytes)
        keep(openvino, "convert", lambda model: model.clone())
        patch.setattr(openvino, "quantise", quantise_once)
        yield


@pytest.fixture(scope="module")
def opened(encoder):
    """A function that opens a back end of the encoder on first use."""
    made = {}

    def get(backend, dtype="fp32"):
        needs(backend)
        if (backend, dtype) not in made:
            made[backend, dtype] = open_backend(backend, encoder, SIZES, dtype, CALIBRATION)
        return made[backend, dtype]

    return get


@pytest.mark.parametrize("backend", ["torch", *BACKENDS])
def test_every_size_equals_torch_for_any_shape_of_batch(encoder, opened, backend):
    runtime = opened(backend)
    assert runtime.name == {"torch": "fp32", "onnx": "onnx-fp32", "openvino": "openvino-fp32"}[backend]
    for count, longest, max_tokens in [(40, 50, 200), (40, 7, 4096), (3, 1, 4096)]:
        rows = token_rows(count, longest)
        found = runtime.embed(rows, SIZES, max_tokens=max_tokens)
        assert list(found) == list(SIZES)
        for size, expected in encoder.embed(rows, SIZES).items():
            assert found[size].dtype == np.float32
            assert found[size].shape == (count, size.dim)
            np.testing.assert_allclose(found[size], expected, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fewer_sizes_and_no_rows_are_accepted_and_an_unknown_layer_is_refused(opened, backend):
    rows = token_rows(5)
    narrow = opened(backend).embed(rows, Sizes.parse("1:6"), max_tokens=100)
    all_of_layer = opened(backend).embed(rows, Sizes.parse("1:8"), max_tokens=100)[Size(1, 8)][:, :6]
    np.testing.assert_allclose(
        narrow[Size(1, 6)], all_of_layer / np.linalg.norm(all_of_layer, axis=1, keepdims=True), atol=1e-6
    )
    assert opened(backend).embed([], SIZES, max_tokens=100)[Size(2, 32)].shape == (0, 32)
    with pytest.raises(UserError, match="layer 3"):
        opened(backend).embed(rows, Sizes.parse("3:8"), max_tokens=100)


def test_a_layer_left_out_of_the_conversion_is_refused(encoder):
    runtime = GraphBackend("onnx-fp32", encoder, Sizes.parse("2:8"), runner=None)
    with pytest.raises(UserError, match="onnx-fp32 was opened for layers 2, not for layer 1"):
        runtime.embed(token_rows(5), Sizes.parse("1:8"), max_tokens=100)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_calls_give_equal_bits_from_any_number_of_threads(opened, backend):
    runtime = opened(backend)
    inputs = [token_rows(60, 50, seed) for seed in range(4)]
    expected = [runtime.embed(rows, SIZES, max_tokens=300) for rows in inputs]
    found: dict[int, dict] = {}

    def work(i):
        for _ in range(3):
            found[i] = runtime.embed(inputs[i], SIZES, max_tokens=300)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, vectors in enumerate(expected):
        for size in SIZES:
            assert np.array_equal(found[i][size], vectors[size])


def test_bf16_is_close_and_its_name_says_bf16(encoder, opened):
    needs("openvino")
    import openvino

    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU has no bf16")
    runtime = opened("openvino", "bf16")
    assert runtime.name == "openvino-bf16"
    exact, found = encoder.embed(token_rows(), SIZES), runtime.embed(token_rows(), SIZES, max_tokens=300)
    for size in SIZES:
        assert 1e-5 < np.abs(found[size] - exact[size]).max() < 0.1


def test_int8_reports_its_drift_and_exact_back_ends_report_none(encoder, opened):
    int8 = opened("openvino", "int8")
    assert int8.name == "openvino-int8"
    rows = token_rows(60)
    for figures in drift(int8, encoder, rows, SIZES).values():
        assert 0.8 < figures["cosine"] < 1 - 1e-6
        assert 0.2 < figures["top10"] < 1
    for figures in drift(opened("openvino"), encoder, rows, SIZES).values():
        assert figures["cosine"] == pytest.approx(1, abs=1e-6)
        assert figures["top10"] > 0.98
    with pytest.raises(UserError, match="no neighbours"):
        drift(int8, encoder, rows[:1], SIZES)


def test_drift_counts_shared_neighbours(encoder):
    class Flipped(TorchBackend):
        def embed(self, rows, sizes, **options):
            return {size: -vectors for size, vectors in super().embed(rows, sizes, **options).items()}

    figures = drift(TorchBackend(encoder), encoder, token_rows(30), SIZES)
    assert all(f["cosine"] == pytest.approx(1) and f["top10"] == 1 for f in figures.values())
    figures = drift(Flipped(encoder), encoder, token_rows(30), SIZES)
    # Scores of pairs do not change when both change sign.
    assert all(f["cosine"] == pytest.approx(-1) and f["top10"] == 1 for f in figures.values())


# ------------------------------------------------------------------ architectures and poolings


def check(encoder, backend):
    """Same numbers as torch, from a text of one token to one of all, and no NaN from padding."""
    runtime = open_backend(backend, encoder, SIZES, "fp32")
    rows = token_rows(20)
    found = runtime.embed(rows, SIZES, max_tokens=400)
    for size, expected in encoder.embed(rows, SIZES).items():
        np.testing.assert_allclose(found[size], expected, atol=1e-5)
    ids, mask = np.zeros((3, 50), dtype=np.int64), np.zeros((3, 50), dtype=np.int64)
    ids[1:], mask[1, :3], mask[2] = 7, 1, 1
    run = runtime.runner()
    together = [np.array(pooled) for pooled in run(ids, mask)]
    assert all(np.isfinite(pooled).all() for pooled in together)
    for pooled, alone in zip(together, run(ids[1:2, :3], mask[1:2, :3])):
        np.testing.assert_allclose(pooled[1], alone[0], atol=1e-5)


@pytest.mark.parametrize(
    ("backend", "family"),
    [(b, f) for b in BACKENDS for f in sorted(FAMILIES)],
)
@pytest.mark.slow  # minutes together
def test_architectures(tmp_path, backend, family):
    needs(backend)
    assert family in CONVERTIBLE
    check(load(tmp_path, family, pooling="mean" if family in DECODERS else "cls"), backend)


def test_the_graph_pools_the_last_token(tmp_path):
    encoder, rows = load(tmp_path, pooling="last"), token_rows(8)
    batch = pad(rows, encoder.tokenizer.pad_token_id)
    pooled = PooledLayersGraph(encoder, [1, 2])(batch["input_ids"], batch["attention_mask"])
    for found, expected in zip(pooled, encoder.embed(rows, Sizes.parse("1:32,2:32")).values(), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-5)


@pytest.mark.slow  # converting takes seconds
@pytest.mark.parametrize("backend", BACKENDS)
def test_last_token_pooling(tmp_path, backend):
    needs(backend)
    check(load(tmp_path, pooling="last"), backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_mean_pooling(encoder, backend):
    needs(backend)
    check(encoder, backend)


def test_an_architecture_that_was_not_checked_is_refused_with_those_that_were(encoder, monkeypatch):
    assert set(CONVERTIBLE) == set(FAMILIES)
    monkeypatch.setattr(graphs, "CONVERTIBLE", ("electra", "mpnet"))
    with pytest.raises(UserError, match=r"'bert' has not been checked.*\n.*electra, mpnet"):
        graphs.trace(PooledLayersGraph(encoder, [1]))


# ------------------------------------------------------------------ files


@pytest.mark.slow  # converting takes seconds
def test_onnx_file_has_dynamic_axes_and_no_layer_above_the_size(encoder, tmp_path):
    needs("onnx")
    import onnx
    import onnxruntime

    path = tmp_path / "new" / "model.onnx"
    write_onnx(encoder, Size(1, 8), path)
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert [i.name for i in model.graph.input] == ["input_ids", "attention_mask"]
    assert [o.name for o in model.graph.output] == ["embedding"]
    stored = sum(np.prod(tensor.dims) for tensor in model.graph.initializer)
    assert stored < sum(p.numel() for p in EmbeddingGraph(encoder, Size(1, 8)).parameters()) + 1000  # a layer has 7,000
    assert b"site-packages" not in path.read_bytes()
    session = onnxruntime.InferenceSession(path)
    for row in token_rows(4):
        inputs = {"input_ids": np.array([row]), "attention_mask": np.ones((1, len(row)), dtype=np.int64)}
        expected = encoder.embed([row], Sizes.parse("1:8"))[Size(1, 8)]
        np.testing.assert_allclose(session.run(["embedding"], inputs)[0], expected, atol=1e-5)
    assert [p.name for p in path.parent.iterdir()] == ["model.onnx"]


@pytest.mark.slow  # converting takes seconds
@pytest.mark.parametrize("calibrated", [False, True])
def test_openvino_folder(encoder, tmp_path, calibrated):
    needs("openvino")
    import openvino

    rows = token_rows(16)
    (tmp_path / "openvino_model.xml").write_text("an older one")
    write_openvino(encoder, Size(1, 8), tmp_path, rows if calibrated else None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["openvino_model.bin", "openvino_model.xml"]
    model = openvino.Core().read_model(tmp_path / "openvino_model.xml")
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert any(node.get_type_name() == "FakeQuantize" for node in model.get_ops()) == calibrated
    for row in rows[:4]:
        inputs = {"input_ids": np.array([row]), "attention_mask": np.ones((1, len(row)), dtype=np.int64)}
        expected = encoder.embed([row], Sizes.parse("1:8"))[Size(1, 8)]
        np.testing.assert_allclose(compiled(inputs)["embedding"], expected, atol=0.5 if calibrated else 1e-5)


@pytest.fixture
def converted(encoder, opened, monkeypatch):
    """Files get the graph of the back ends, which is converted already, in place of that of one size."""
    for backend, module in zip(BACKENDS, (onnx, openvino)):
        opened(backend)
        monkeypatch.setattr(module, "EmbeddingGraph", lambda encoder, size: PooledLayersGraph(encoder, (1, 2)))


def test_files_hold_the_graph_that_was_checked(encoder, converted, tmp_path):
    import onnxruntime
    from openvino import Core

    (tmp_path / "openvino_model.xml").write_text("an older one")
    write_onnx(encoder, Size(1, 8), tmp_path / "new" / "model.onnx")
    write_openvino(encoder, Size(1, 8), tmp_path)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.onnx"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "openvino_model.bin", "openvino_model.xml"]
    session = onnxruntime.InferenceSession(tmp_path / "new" / "model.onnx")
    compiled = Core().compile_model(tmp_path / "openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    batch = {name: tensor.numpy() for name, tensor in pad(token_rows(4), 0).items()}
    for name, expected in zip(
        ("layer_1", "layer_2"), PooledLayersGraph(encoder, (1, 2)).expected(pad(token_rows(4), 0))
    ):
        np.testing.assert_allclose(session.run([name], batch)[0], expected, atol=1e-5)
        np.testing.assert_allclose(compiled(batch)[name], expected, atol=1e-5)


def test_a_conversion_that_differs_leaves_no_file(encoder, converted, tmp_path, monkeypatch):
    zeros = lambda self, batch: [np.zeros((len(batch["input_ids"]), 32))] * 2  # noqa: E731
    monkeypatch.setattr(PooledLayersGraph, "expected", zeros)
    with pytest.raises(RuntimeError, match="layer_1 of ONNX Runtime differs from torch by"):
        write_onnx(encoder, Size(1, 8), tmp_path / "model.onnx")
    with pytest.raises(RuntimeError, match="layer_1 of OpenVINO differs from torch by"):
        write_openvino(encoder, Size(1, 8), tmp_path)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("backend", "dtype", "message"),
    [
        ("torch", "int8", "torch has no int8"),
        ("torch", "fp16", "CPUs do not support fp16"),
        ("onnx", "bf16", "onnx computes in fp32"),
        ("onnx", "int8", "onnx computes in fp32"),
        ("openvino", "fp16", "not fp16"),
        ("jax", "fp32", "unknown encoding back end 'jax'"),
        ("torch", "fp8", "unknown dtype 'fp8'"),
    ],
)
def test_refuses_a_dtype_that_a_backend_lacks(encoder, backend, dtype, message):
    with pytest.raises(UserError, match=message):
        open_backend(backend, encoder, SIZES, dtype)


def test_int8_needs_calibration(encoder):
    needs("openvino")
    for nothing in (None, []):
        with pytest.raises(UserError, match="calibrate"):
            open_backend("openvino", encoder, SIZES, "int8", nothing)


@pytest.mark.parametrize(
    ("machine", "able", "warned"),
    [
        ("x86_64", {"avx2": True}, True),
        ("AMD64", {"avx512_vnni": True}, False),
        ("x86_64", {"avx_vnni": True}, False),
        ("aarch64", {}, False),
    ],
)
def test_int8_without_vnni_gives_a_warning(monkeypatch, caplog, machine, able, warned):
    monkeypatch.setattr(openvino.platform, "machine", lambda: machine)
    monkeypatch.setattr(openvino.torch.cpu, "get_capabilities", lambda: able)
    openvino._warn_without_vnni.cache_clear()
    openvino._warn_without_vnni()
    openvino._warn_without_vnni.cache_clear()
    assert ("no VNNI" in caplog.text and "--dtype fp32" in caplog.text) == warned


@pytest.mark.parametrize("backend", BACKENDS)
def test_refuses_a_model_that_is_not_on_the_cpu(tmp_path, backend):
    encoder = load(tmp_path).to("meta")
    with pytest.raises(UserError, match=f"{backend} runs on CPUs, and the model is on meta"):
        open_backend(backend, encoder, SIZES)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_absent_package_is_named_with_its_extra(encoder, backend, monkeypatch):
    monkeypatch.setitem(sys.modules, {"onnx": "onnxruntime"}.get(backend, backend), None)
    with pytest.raises(UserError, match=r"is not installed") as caught:
        open_backend(backend, encoder, SIZES)
    assert f"starbucks-retrieval[{backend}]" in caught.value.hint


# ------------------------------------------------------------------ choosing


class Timed:
    """A back end of a given speed that records its batches."""

    def __init__(self, name, seconds_per_token):
        self.name = name
        self.seconds_per_token = seconds_per_token
        self.seen = []

    def embed(self, rows, sizes, *, max_tokens, label=None):
        assert len(rows) * max(map(len, rows)) <= max_tokens or len(rows) == 1
        self.seen.append(rows)
        return {}


@pytest.fixture
def clocked(monkeypatch):
    """Time passes at the speeds that the back ends name."""

    def seconds(runtime, rows, sizes, max_tokens):
        runtime.embed(rows, sizes, max_tokens=max_tokens)
        return runtime.seconds_per_token * sum(map(len, rows))

    monkeypatch.setattr(selection, "_seconds", seconds)


def test_the_fastest_of_equal_arithmetic_is_chosen_on_equal_work(clocked):
    candidates = [
        Timed("fp32", 2e-5),
        Timed("onnx-fp32", 1e-5),
        Timed("openvino-fp32", 4e-5),
        Timed("openvino-int8", 0),
    ]
    rows = token_rows(400, 50)
    best, rates = choose_backend(candidates, rows, SIZES, 2000)
    assert best is candidates[1]
    assert set(rates) == {"fp32", "onnx-fp32", "openvino-fp32"}
    assert rates["onnx-fp32"] == pytest.approx(2 * rates["fp32"]) == pytest.approx(4 * rates["openvino-fp32"])
    assert candidates[0].seen == candidates[1].seen == candidates[2].seen
    timed = candidates[0].seen[2:]
    assert len(timed) == 5
    assert all(len(a[0]) > len(b[0]) for a, b in itertools.pairwise(timed))


def test_a_choice_is_remembered_for_one_model_and_machine(clocked, tmp_path, tiny_bert, monkeypatch):
    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    slow, fast = Timed("fp32", 2e-5), Timed("openvino-fp32", 1e-5)
    opened = []

    def choose(max_tokens: int = 400, installed: bool = True) -> str:
        def open_one(name: str, dtype: str) -> Timed:
            opened.append(f"{name}-{dtype}")
            if not installed:
                raise UserError("not installed", "install it")
            return fast

        def candidates() -> list[Timed]:
            opened.append("all")
            return [slow, fast]

        choices = Choices(tmp_path, encoder, SIZES, "fp32", max_tokens, {})
        backend, speeds = choices.fastest(open_one, candidates, token_rows(100, 50))
        assert set(speeds) == {"fp32", "openvino-fp32"}
        return backend.name

    assert choose() == choose() == "openvino-fp32"
    assert opened == ["all", "openvino-fp32"]
    choose(max_tokens=500)  # other circumstances
    choose(installed=False)  # no longer installed
    assert opened[2:] == ["all", "openvino-fp32", "all"]
    [file, _] = sorted((tmp_path / "backends").iterdir(), key=lambda path: '"max_tokens": 500' in path.read_text())
    for damaged in ("{", "[]", file.read_text().replace('"backend": "openvino-fp32"', '"backend": "other-fp32"')):
        file.write_text(damaged)
        opened.clear()
        assert choose() == "openvino-fp32" and opened == ["all"]
    monkeypatch.setattr(selection.torch, "get_num_threads", lambda: 97)
    opened.clear()
    choose()
    assert opened == ["all"]


@pytest.fixture
def open_counted(encoder, tmp_path, monkeypatch):
    """Open a graph of some rows through a new cache; returns how often it was converted, and the cache."""
    monkeypatch.setenv("STARBUCKS_CACHE", str(tmp_path / "cache"))
    graph, made = PooledLayersGraph(encoder, (1, 2)), []

    def open_one(calibration=None, refused=()):
        def make() -> bytes:
            made.append(calibration)
            return str(len(made)).encode()

        def open_saved(folder: Path) -> bytes:
            content = (folder / "graph").read_bytes()
            if content in refused:
                raise RuntimeError("differs from torch")
            return content

        save = lambda content, folder: (folder / "graph").write_bytes(content)  # noqa: E731
        return int(graph_cache.KeptGraph("fake", graph, calibration).open(make, save, open_saved))

    return open_one, tmp_path / "cache" / "backends"


def test_a_converted_graph_is_kept_for_its_circumstances(open_counted, encoder, monkeypatch):
    open_one, _ = open_counted
    assert [open_one(), open_one(), open_one([[7, 8]]), open_one([[7, 9]]), open_one([[7, 8]])] == [1, 1, 2, 3, 2]
    monkeypatch.setattr(encoder, "config", dataclasses.replace(encoder.config, pooling="cls"))
    assert open_one() == 4
    monkeypatch.setattr(graph_cache, "describe", lambda **_: {"packages": {"openvino": "1"}})
    assert open_one() == 5
    weight = next(encoder.backbone.parameters())
    monkeypatch.setattr(weight, "data", weight.data + 1)
    assert open_one() == 6


def test_a_kept_graph_that_is_damaged_or_foreign_is_made_again(open_counted, caplog):
    caplog.set_level("INFO")
    open_one, cache = open_counted
    assert open_one() == 1
    [folder] = cache.iterdir()
    for number, (file, content) in enumerate([("graph", "x"), ("manifest.json", "{"), ("manifest.json", None)], 2):
        (folder / file).write_text(content) if content else (folder / file).unlink()
        assert open_one() == open_one() == number
        assert f"{folder} is made again: " in caplog.text
        caplog.clear()
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"pooling": "mean"', '"pooling": "last"'))
    assert open_one() == 5 and "another model" in caplog.text
    assert open_one(refused=[b"5"]) == 6 and "differs from torch" in caplog.text
    with pytest.raises(RuntimeError, match="differs"):
        open_one(refused=[b"6", b"7"])
    assert open_one() == 6  # one that is refused is not kept


def test_few_graphs_are_kept_and_a_cache_that_cannot_be_written_is_no_error(open_counted, monkeypatch, caplog):
    caplog.set_level("INFO")
    open_one, cache = open_counted
    monkeypatch.setattr(graph_cache, "_KEPT", 2)
    for number in (1, 2, 1, 3):  # 2 was used longest ago
        open_one([[number]])
        for age, folder in enumerate(sorted(cache.iterdir(), key=lambda path: -path.stat().st_mtime)):
            os.utime(folder, (1e9 - age, 1e9 - age))
    assert [open_one([[1]]), open_one([[3]]), open_one([[2]])] == [1, 3, 4]
    monkeypatch.setenv("STARBUCKS_CACHE", str(next(cache.iterdir()) / "manifest.json"))
    assert open_one() == 5 and open_one() == 6 and "not kept" in caplog.text


@pytest.mark.slow
def test_int8_is_calibrated_once(encoder, tmp_path, monkeypatch):
    needs("openvino")
    monkeypatch.setenv("STARBUCKS_CACHE", str(tmp_path))
    first = open_backend("openvino", encoder, SIZES, "int8", CALIBRATION)
    monkeypatch.setattr(openvino, "quantise", None)
    second = open_backend("openvino", encoder, SIZES, "int8", CALIBRATION)
    for size, vectors in first.embed(token_rows(), SIZES, max_tokens=300).items():
        assert np.array_equal(second.embed(token_rows(), SIZES, max_tokens=300)[size], vectors)


@pytest.fixture
def kept_int8(encoder, tmp_path, monkeypatch):
    """Open an int8 graph through a cache, the first time or again, and return its drift on rows at sizes; returns how
    often that was measured."""
    needs("openvino")
    monkeypatch.setenv("STARBUCKS_CACHE", str(tmp_path / "cache"))
    opened, measured, real = [], [], drift_module.drift

    def counted(*args):
        measured.append(args)
        return real(*args)

    monkeypatch.setattr(drift_module, "drift", counted)

    def start(rows=3, sizes=SIZES, max_tokens=300, again=False):
        if again or not opened:
            opened.append(open_backend("openvino", encoder, SIZES, "int8", CALIBRATION))
        return kept_drift(opened[-1], encoder, token_rows(rows, seed=5), Sizes(sizes), max_tokens), len(measured)

    return start, tmp_path / "cache" / "backends"


def test_drift_is_measured_once_for_a_kept_graph(kept_int8, encoder, monkeypatch):
    start, _ = kept_int8
    found, count = start()
    assert count == 1 and start(again=True) == (found, 1) and found.keys() == set(SIZES)
    assert [start(rows=4)[1], start(sizes=SIZES.members[:1])[1], start(max_tokens=200)[1]] == [2, 3, 4]  # other figures
    assert start(again=True) == (found, 4)
    monkeypatch.setattr(encoder, "config", dataclasses.replace(encoder.config, normalize=not encoder.config.normalize))
    assert start(again=True)[1] == 5
    weight = next(encoder.backbone.parameters())
    monkeypatch.setattr(weight, "data", weight.data + 1e-3)
    assert start(again=True)[1] == 6


def test_kept_drift_that_is_damaged_or_foreign_is_measured_again(kept_int8, caplog):
    caplog.set_level("INFO")
    start, cache = kept_int8
    found, _ = start()
    [file] = cache.glob("*/drift-*.json")
    good = file.read_text()
    size = str(SIZES[0])
    wrong = good.replace(str(found[SIZES[0]]["cosine"]), "0.5")
    assert wrong != good
    foreign = json.loads(good)
    foreign["measured_for"]["circumstances"]["rows"] = "another"
    foreign = json.dumps(with_digest({name: foreign[name] for name in ("measured_for", "figures")}))
    for number, text in enumerate([wrong, foreign, "{", "[]", "", good.replace(size, "9:9"), good[:-40]], 2):
        file.write_text(text)
        assert start() == (found, number), text
        assert f"{file} is measured again: " in caplog.text
        caplog.clear()
        assert file.read_text() == good and start() == (found, number)
    graph = next(file.parent.glob("*.bin"))
    graph.write_bytes(graph.read_bytes()[:-1])
    assert start(again=True) == (found, number + 1)  # a graph that was made again has no figures yet
    [file] = cache.glob("*/drift-*.json")
    file.unlink()
    file.mkdir()  # neither read nor written
    assert start()[0] == start()[0] == found and "not kept" in caplog.text


def test_drift_of_a_graph_that_is_not_kept_is_measured(kept_int8, encoder, monkeypatch, tmp_path):
    start, _ = kept_int8
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STARBUCKS_CACHE", str(tmp_path / "file"))
    assert start()[0] == start()[0] and start()[1] == 3
    rows = token_rows(3)
    assert kept_drift(TorchBackend(encoder), encoder, rows, SIZES) == drift(TorchBackend(encoder), encoder, rows, SIZES)


def test_nothing_is_timed_where_there_is_no_choice():
    only = Timed("bf16", 0)
    assert choose_backend([only, Timed("onnx-fp32", 0)], token_rows(), SIZES, 100) == (only, {})
    assert not only.seen
    with pytest.raises(UserError, match="no back end"):
        choose_backend([], token_rows(), SIZES, 100)


def test_real_candidates(encoder, opened, ticking):
    candidates = [opened("torch"), opened("onnx")]
    best, rates = choose_backend(candidates, token_rows(), SIZES, 400)
    assert best is candidates[0]  # a second each, so the first of equals
    assert set(rates) == {"fp32", "onnx-fp32"}
    assert rates["fp32"] == rates["onnx-fp32"]


def test_a_clock_that_stands_still_gives_rates_too(encoder, opened, monkeypatch):
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: 5.0))
    _, rates = choose_backend([opened("torch"), opened("onnx")], token_rows(), SIZES, 400)
    assert all(0 < rate < math.inf for rate in rates.values())


def test_compiled_torch_gives_the_same_numbers(encoder, tmp_path):
    calls = []
    other = load(tmp_path, pooling="mean", normalize=True)
    other.compile_layers = lambda: calls.append(1)  # compiling itself takes a C++ compiler and half a minute
    found = TorchBackend(other, compiled=True).embed(token_rows(), SIZES, max_tokens=300)
    assert calls == [1]
    for size, expected in encoder.embed(token_rows(), SIZES, max_tokens=300).items():
        assert np.array_equal(found[size], expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_signals_arrive_after_models_of_openvino_are_gone(encoder):
    # Python handles signals on the stack that pytest's fault handler set up, and a core moves that.
    needs("openvino")
    first = open_backend("openvino", encoder, SIZES, "fp32")
    second = open_backend("openvino", encoder, SIZES, "fp32")
    del first
    gc.collect()
    del second
    gc.collect()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
        signal.raise_signal(signal.SIGUSR1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
