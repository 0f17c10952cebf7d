"""Packed layers and compiled loops compute what a BERT computes under autocast, up to rounding."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from conftest import save_model, slow_except
from torch.nn import functional

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.models import info, packed_encoding
from starbucks_retrieval.models import precision as precision_module
from starbucks_retrieval.models.backends.selection import choose_backend
from starbucks_retrieval.models.backends.torch import TorchBackend
from starbucks_retrieval.models.bert import FIRST_TOKEN_FAMILIES
from starbucks_retrieval.models.packed_bert import PackedBert
from starbucks_retrieval.sizes import Sizes

BF16 = torch.bfloat16
SIZES = Sizes.parse("1:16,2:8,4:32")


@pytest.fixture(scope="module")
def loops():
    pytest.importorskip("numba")
    from starbucks_retrieval.models import compiled

    return compiled


@pytest.fixture(autouse=True)
def kernels(monkeypatch) -> None:
    """Compute what oneDNN's kernels compute on processors that they do not support, and take packed layers for few tokens."""

    def linear(states, weight, bias, activation, *rest):
        product = functional.linear(states, weight, bias)
        return functional.gelu(product) if activation == "gelu" else product

    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
        monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", lambda weight, rows: weight)
        monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", linear)
    monkeypatch.setattr(packed_encoding, "_WORTH_COMPILING", 0)
    monkeypatch.setattr(precision_module, "_MIN_TOKENS", 0)


@pytest.fixture
def rows() -> list[list[int]]:
    """Texts of 1 to 40 tokens, of several batches."""
    rng = np.random.default_rng(0)
    return [rng.integers(5, 100, length).tolist() for length in rng.permutation([1, 2, 40, 33, *range(3, 40)] * 2)]


def bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.int16).numpy().view(np.uint16)


def embed_under_autocast(encoder, rows, sizes, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(packed_encoding, "_WORTH_COMPILING", 2**62)
        return encoder.embed(rows, sizes, dtype=BF16)


def test_heads_are_split_and_joined(loops):
    starts, heads, width = np.array([0, 3, 4, 9], np.uint64), 2, 5
    states = torch.randn(10, 3 * heads * width).to(BF16)  # a row that is no token comes last
    split = torch.full((3, 3 * heads, 6, width), float("nan")).to(BF16)
    loops.split_heads(bits(states), starts, heads, bits(split))
    for text, (first, end) in enumerate([(0, 3), (3, 4), (4, 9)]):
        expected = states[first:end].view(end - first, 3, heads, width).permute(1, 2, 0, 3)
        assert torch.equal(split[:, text * heads : (text + 1) * heads, : end - first], expected)
        assert not split[:, text * heads : (text + 1) * heads, end - first :].any()
    joined = torch.full((10, heads * width), float("nan")).to(BF16)
    loops.join_heads(bits(split[1].contiguous()), starts, heads, bits(joined))
    assert torch.equal(joined[:9], states[:9, heads * width : 2 * heads * width])
    assert not joined[9:].any()


def test_softmax_over_the_tokens_of_each_text(loops):
    starts, heads, width = np.array([0, 1, 32, 50], np.uint64), 2, 32
    scores = (torch.randn(3 * heads, width, width) * torch.tensor([0.1, 1, 3, 10, 30, 200])[:, None, None]).to(BF16)
    found = scores.clone()
    loops.softmax(bits(found), starts, heads)
    for text, tokens in enumerate([1, 31, 18]):
        of = slice(text * heads, (text + 1) * heads)
        expected = scores[of, :tokens, :tokens].double().softmax(-1)
        torch.testing.assert_close(found[of, :tokens, :tokens].double(), expected, rtol=0.005, atol=1e-5)
        assert found[of, :tokens, tokens:].abs().max() < 1e-25 if tokens < width else True
        assert torch.equal(found[of, tokens:], scores[of, tokens:])
    one_row = scores[:, :1].contiguous()  # of the first tokens
    loops.softmax(bits(one_row), starts, heads)
    assert torch.equal(one_row[:, 0], found[:, 0])


def test_a_score_that_is_not_finite_stays_visible(loops):
    starts = np.array([0, 32], np.uint64)
    for value in (float("nan"), float("inf")):
        scores = torch.zeros(1, 32, 32, dtype=BF16)
        scores[0, 3, 7] = value
        loops.softmax(bits(scores), starts, 1)
        assert scores[0, 3].isnan().all() and torch.all(scores[0, 2] == 1 / 32)


@pytest.mark.parametrize("width", [1, 33, 768])
def test_the_norm_of_a_sum(loops, width):
    states, residual = ((3 * torch.randn(7, width) + 5).to(BF16) for _ in range(2))
    weight, bias = torch.randn(2, width)
    normed = torch.empty_like(states)
    loops.add_norm(bits(states), bits(residual), weight.numpy(), bias.numpy(), np.float32(1e-5), bits(normed))
    expected = functional.layer_norm(states.float() + residual.float(), (width,), weight, bias, 1e-5)
    torch.testing.assert_close(normed.float(), expected, rtol=2**-8, atol=1e-4)
    states[2, 0] = float("nan")
    loops.add_norm(bits(states), bits(residual), weight.numpy(), bias.numpy(), np.float32(1e-5), bits(normed))
    assert normed[2].isnan().all() and not normed[3].isnan().any()


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("family", slow_except(["bert"], sorted(FIRST_TOKEN_FAMILIES)))
def test_embeddings_are_those_of_float32_rounded(loops, tmp_path, monkeypatch, rows, family, pooling):
    save_model(tmp_path, family)
    encoder = NestedEncoder.from_pretrained(tmp_path, device="cpu")
    encoder.config = encoder.config.__class__(pooling=pooling, sizes=SIZES)
    packed_layers = []
    run = PackedBert.__call__
    monkeypatch.setattr(
        PackedBert,
        "__call__",
        lambda self, *args: packed_layers.append(len(self._layers)) or run(self, *args),
    )
    for sizes in (SIZES, Sizes.parse("2:8"), Sizes.parse("1:16")):
        packed_layers.clear()
        expected, autocast = encoder.embed(rows, sizes), embed_under_autocast(encoder, rows, sizes, monkeypatch)
        assert not packed_layers
        found = encoder.embed(rows, sizes, dtype=BF16)
        assert set(packed_layers) == {sizes.layers[-1]} and len(packed_layers) > 2
        for size in sizes:
            theirs, ours = (np.abs(vectors[size] - expected[size]).mean() for vectors in (autocast, found))
            assert 0 < ours < 3 * theirs  # which keeps norms and sums in float32


def test_embeddings_do_not_depend_on_threads_or_on_other_texts(loops, tiny_bert, rows):
    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = encoder.embed(rows, SIZES, dtype=BF16)
        torch.set_num_threads(3)
        found = encoder.embed(rows, SIZES, dtype=BF16)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    for size in SIZES:
        assert np.array_equal(found[size], expected[size])
        alone = encoder.embed([rows[3]], SIZES, dtype=BF16)[size]
        np.testing.assert_allclose(alone[0], expected[size][3], atol=0.02)


def test_maps_and_the_token_table_apply_as_without_packing(loops, tiny_bert, rows, monkeypatch):
    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    encoder.fit([" ".join(f"w{n % 60}" for n in row) for row in rows * 8])
    sizes = Sizes.parse("0:8,2:16,4:32")
    autocast = embed_under_autocast(encoder, rows, sizes, monkeypatch)
    found = encoder.embed(rows, sizes, dtype=BF16)
    assert np.array_equal(found["0:8"], autocast["0:8"])
    for size in sizes:
        np.testing.assert_allclose(found[size], autocast[size], atol=0.05)


def test_only_where_it_pays_and_computes_the_same(loops, tiny_bert, monkeypatch):
    def packs(encoder, dtype=BF16, tokens=1000, layers=(2,)) -> bool:
        return packed_encoding.pack_bert(encoder.backbone, layers, dtype, tokens, first_only=False) is not None

    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    assert packs(encoder)
    assert not packs(encoder, dtype=None) and not packs(encoder, layers=(0,)) and not packs(encoder, layers=())
    monkeypatch.setattr(packed_encoding, "_WORTH_COMPILING", 1000)
    assert packs(encoder, tokens=500) and not packs(encoder, tokens=499)
    for name, value in (
        ("hidden_act", "relu"),
        ("model_type", "mpnet"),
        ("is_decoder", True),
        ("_attn_implementation", "eager"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(encoder.backbone.config.__dict__, name, value)
            if name == "_attn_implementation":
                patch.setitem(encoder.backbone.config.__dict__, "_attn_implementation_internal", value)
            assert not packs(encoder), name
    encoder.train()
    assert not packs(encoder)
    encoder.eval()
    only = NestedEncoder.from_pretrained(tiny_bert, device="cpu", encode_only=True)
    assert not packs(only)

    class Adapted(torch.nn.Linear):
        pass

    encoder.backbone.encoder.layer[0].output.dense = Adapted(48, 32)
    assert not packs(encoder)


def test_a_choice_of_back_ends_times_what_a_large_job_computes(loops, tiny_bert, rows, monkeypatch):
    monkeypatch.setattr(packed_encoding, "_WORTH_COMPILING", 10**6)
    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    made, make = [], PackedBert.__init__
    monkeypatch.setattr(PackedBert, "__init__", lambda self, *args: made.append(args[1:3]) or make(self, *args))
    candidates = [TorchBackend(encoder, BF16), TorchBackend(encoder, BF16)]
    _, rates = choose_backend(candidates, rows, SIZES, 200)
    assert set(rates) == {"bf16"} and made == [(4, True)]
    encoder.embed(rows, SIZES, dtype=BF16)
    assert len(made) == 1


def test_estimates_time_what_encoding_computes(loops, tiny_bert, ticking):
    shape = info.model_info(str(tiny_bert))
    tokens = 512 // 12 * 12 * torch.get_num_threads()
    assert shape.layer_seconds(12, 48, "cpu", BF16, budget=0.0) == pytest.approx(1 / (tokens * info._TIMED_LAYERS))
    training = shape.layer_seconds(12, 48, "cpu", BF16, budget=0.0, encoding=False)
    assert training == pytest.approx(1 / (48 * info._TIMED_LAYERS))


def test_without_numba_autocast_computes(tiny_bert, rows, monkeypatch):
    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    expected = embed_under_autocast(encoder, rows, SIZES, monkeypatch)
    monkeypatch.setitem(sys.modules, "starbucks_retrieval.models.compiled", None)
    packed_encoding._loops.cache_clear()
    try:
        found = encoder.embed(rows, SIZES, dtype=BF16)
    finally:
        packed_encoding._loops.cache_clear()
    for size in SIZES:
        assert np.array_equal(found[size], expected[size])
