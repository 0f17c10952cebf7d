"""The pooled output of layer n is that of the truncated model, bit for bit, in every architecture."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import DECODERS, FAMILIES, TYPICAL, save_model, slow_except
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from starbucks_retrieval import NestedEncoder, Size, Sizes, UserError
from starbucks_retrieval.models.architectures import layers_of
from starbucks_retrieval.models.pooling import pool


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Callable[[str], Path]:
    """A function that saves a family's model on first use."""
    return cache(lambda family: save_model(tmp_path_factory.mktemp(family), family))


def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 100, (3, 20), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 11:] = 0
    mask[2, 1:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("family", slow_except(TYPICAL, FAMILIES))
def test_a_pooled_layer_equals_the_truncated_model_bit_for_bit(folders, family):
    from transformers import AutoConfig, AutoModel

    from starbucks_retrieval.models.attention import share_bias

    encoder = NestedEncoder.from_pretrained(folders(family))
    pooling = "last" if family in DECODERS else "mean"
    encoder.config = encoder.config.__class__(pooling=pooling)
    with torch.no_grad():
        pooled_layers = encoder(**batch(), layers=[1, 2, 3, 4])
    for layer, pooled in pooled_layers.items():
        config = AutoConfig.from_pretrained(folders(family))
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layer]
        config.num_hidden_layers = layer
        truncated = AutoModel.from_pretrained(folders(family), config=config).eval()
        if family == "mpnet":
            share_bias(truncated)
        with torch.no_grad():
            state = truncated(**batch()).last_hidden_state
        assert torch.equal(pooled, pool(state, batch()["attention_mask"], pooling)), (family, layer)
    assert not torch.equal(pooled_layers[3], pooled_layers[4])


@pytest.mark.parametrize("family", slow_except(TYPICAL, FAMILIES))
@pytest.mark.parametrize("training", [False, True])
def test_layer_zero_is_the_embedding_output(folders, family, training):
    encoder = NestedEncoder.from_pretrained(folders(family))
    seen = {}
    with torch.set_grad_enabled(training):
        pooled_layers = encoder(**batch(), layers=[0, 2])
        first = layers_of(encoder.backbone, encoder.layout)[0]
        first.register_forward_pre_hook(
            lambda module, inputs, words: seen.update(state=(inputs or [words["hidden_states"]])[0]), with_kwargs=True
        )
        encoder.backbone(**batch())
    norm = encoder.layout.final_norm
    state = encoder.backbone.get_submodule(norm)(seen["state"]) if norm else seen["state"]
    assert torch.equal(pooled_layers[0], pool(state, batch()["attention_mask"], encoder.config.pooling))
    assert not torch.equal(pooled_layers[0], pooled_layers[2])
    with pytest.raises(UserError):
        encoder(**batch(), layers=[0])


@pytest.mark.parametrize("family", slow_except(["modernbert"], FAMILIES))
def test_only_the_requested_layers_are_read_from_disk(folders, family, tmp_path):
    whole = NestedEncoder.from_pretrained(folders(family))
    stack = whole.layout.layers + "."
    for file in folders(family).iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folders(family) / "model.safetensors")
    # Layers 3 and 4 are taken out of the file: a load that touched them would fail.
    kept = {k: v for k, v in tensors.items() if not (stack in k and int(k.split(stack)[1].split(".")[0]) >= 2)}
    assert len(kept) < len(tensors)
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    cut = NestedEncoder.from_pretrained(tmp_path, layers=2)
    assert len(layers_of(cut.backbone, cut.layout)) == cut.num_layers == 2
    with torch.no_grad():
        assert torch.equal(cut(**batch(), layers=[2])[2], whole(**batch(), layers=[2, 4])[2])
    assert cut.fingerprint(2) == whole.fingerprint(2) != whole.fingerprint(3)
    with pytest.raises(UserError, match="lacks"):
        NestedEncoder.from_pretrained(tmp_path)


@pytest.mark.parametrize("family", slow_except(["bert"], ["bert", "mpnet", "modernbert", "qwen3"]))
def test_no_layer_above_the_deepest_requested_one_runs(folders, family):
    encoder = NestedEncoder.from_pretrained(folders(family))
    ran = []
    for number, layer in enumerate(layers_of(encoder.backbone, encoder.layout), 1):
        layer.register_forward_hook(lambda *_, number=number: ran.append(number))
    with torch.no_grad():
        encoder(**batch(), layers=[1, 3])
    assert ran == [1, 2, 3]


@pytest.mark.parametrize("family", slow_except(["bert"], ["bert", "modernbert", "llama"]))
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_pooled_layers_equal_those_of_truncated_models(folders, family, checkpointing):
    encoder = NestedEncoder.from_pretrained(folders(family)).train()
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if checkpointing:
        encoder.backbone.gradient_checkpointing_enable({"use_reentrant": False})

    def gradients(passes):
        encoder.zero_grad()
        sum(
            pooled.square().sum() for layers in passes for pooled in encoder(**batch(), layers=layers).values()
        ).backward()
        return {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}

    together = gradients([[1, 2, 4]])
    apart = gradients([[1], [2], [4]])
    assert together.keys() == apart.keys()
    for name in together:
        torch.testing.assert_close(together[name], apart[name], rtol=1e-4, atol=1e-5, msg=name)


def test_pooling_ignores_padding_and_its_side():
    hidden = torch.randn(2, 5, 4)
    right = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert torch.equal(pool(hidden, right, "last")[0], hidden[0, 2])
    torch.testing.assert_close(pool(hidden, right, "mean")[0], hidden[0, :3].mean(0))
    assert torch.equal(pool(hidden, right, "cls"), hidden[:, 0])
    left = right.flip(1)
    assert torch.equal(pool(hidden, left, "last")[0], hidden[0, 4])
    empty = torch.zeros_like(right)
    assert torch.isfinite(pool(hidden, empty, "mean")).all()


def test_bf16_states_pool_into_float32():
    assert pool(torch.randn(2, 5, 4, dtype=torch.bfloat16), torch.ones(2, 5), "mean").dtype == torch.float32
    assert pool(torch.randn(2, 5, 4, dtype=torch.float64), torch.ones(2, 5), "mean").dtype == torch.float64


def test_saved_folder_is_plain_and_loads_back(tiny_bert, tmp_path):
    from transformers import AutoModel

    encoder = NestedEncoder.from_pretrained(tiny_bert)
    encoder.config = encoder.config.__class__(sizes=Sizes.parse("1:4,4:32"), pooling="mean", query_prefix="q: ")
    encoder.save_pretrained(tmp_path)
    assert AutoModel.from_pretrained(tmp_path).config.num_hidden_layers == 4
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        poolers = [file.get_tensor(key) for key in file.keys() if "pooler" in key]  # noqa: SIM118
        assert poolers and not any(pooler.any() for pooler in poolers)  # AutoModel finds them, and nothing reads them
    again = NestedEncoder.from_pretrained(tmp_path)
    assert again.config == encoder.config
    texts = ["w1 w2", "w3"]
    ours, theirs = encoder.encode(texts), again.encode(texts)
    assert list(ours) == [Size(1, 4), Size(4, 32)]
    assert all(np.array_equal(ours[size], theirs[size]) for size in ours)


@pytest.mark.parametrize("times", slow_except([5], [5, 20]))
def test_views_of_different_depth_run_at_once(tiny_bert, times):
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    expected = {n: encoder.encode(["w1 w2 w3"], Size(n, 32))[Size(n, 32)] for n in (1, 2, 3, 4)}
    wrong = []

    def work(n):
        for _ in range(times):
            if not np.array_equal(encoder.encode(["w1 w2 w3"], Size(n, 32))[Size(n, 32)], expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
