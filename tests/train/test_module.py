"""The sorted, the unpadded and the cached step equal the padded one, and its parts are what the objective says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from conftest import slow_except

from starbucks_retrieval import NestedEncoder, Size, Sizes
from starbucks_retrieval.losses import LOSSES
from starbucks_retrieval.losses.batch import Batch
from starbucks_retrieval.losses.srl import SRL, SRLOptions
from starbucks_retrieval.models import unpadded
from starbucks_retrieval.models.batching import pad
from starbucks_retrieval.train.examples import Collator, Example
from starbucks_retrieval.train.module import Chunks, TrainingModule, excluded_passages

SIZES = Sizes.parse("1:8,4:32")


@pytest.fixture
def encoder(tiny_bert):
    return NestedEncoder.from_pretrained(tiny_bert).eval()


def srl(sizes=SIZES, **options):
    return SRL(sizes, Size(4, 32), SRLOptions(**options))


def flat(rows, queries):
    return {
        "ids": torch.tensor([token for row in rows for token in row]),
        "lengths": torch.tensor([len(row) for row in rows]),
        "num_queries": torch.tensor(queries),
        "docids": torch.arange(1, 1 + len(rows) - queries),
        "known": torch.zeros(queries, 1, dtype=torch.int64),
    }


def random_rows(count):
    rng = np.random.default_rng(0)
    return [rng.integers(5, 100, length).tolist() for length in rng.integers(1, 50, count)]


def gradients(module, batch):
    module.zero_grad()
    output = module(**batch)
    output["loss"].backward()
    found = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return output["loss"].detach(), found


@pytest.mark.parametrize("end_to_end", [False, True])
@pytest.mark.parametrize("max_tokens", slow_except([60], [1, 60, 100_000]))
def test_sorted_chunks_equal_the_padded_batch(encoder, max_tokens, end_to_end):
    objective = srl(Sizes.parse("1:8,3:16,4:32"), temperature=0.5)
    rows = random_rows(4 + 8)
    rows[3:6] = (row[:7] for row in rows[3:6])  # texts of one length
    if end_to_end:
        unpadded.enable(encoder.backbone)
    computed = []
    hook = encoder.backbone.encoder.layer[0].register_forward_hook(lambda *states: computed.append(states[2][..., 0]))
    loss, ours = gradients(TrainingModule(encoder, objective, Chunks(max_tokens)), flat(rows, 4))
    hook.remove()
    assert not end_to_end or sum(one.numel() for one in computed) == sum(map(len, rows))
    encoder.zero_grad()
    queries = encoder(**pad(rows[:4], 0), layers=(1, 3, 4))
    passages = encoder(**pad(rows[4:], 0), layers=(1, 3, 4))
    expected = objective(Batch(queries, passages)).total
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    for name, parameter in encoder.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(ours[f"encoder.{name}"], parameter.grad, rtol=1e-3, atol=1e-5, msg=name)


TYPICAL = ("2dmse-v1",)  # layers that each step draws; srl makes the unpadded step


@pytest.mark.parametrize(
    ("method", "variant"),
    [
        pytest.param(method, name, marks=pytest.mark.slow if number or method not in TYPICAL else ())
        for method in LOSSES
        for number, name in enumerate(LOSSES[method].variants)
    ],
)
def test_the_gradient_cache_repeats_the_step_with_its_dropout(tiny_bert, method, variant):
    check_the_cache(tiny_bert, method, variant)


def test_the_gradient_cache_repeats_an_unpadded_step(tiny_bert):
    check_the_cache(tiny_bert, "srl", "starbucks", end_to_end=True)


def test_the_gradient_cache_repeats_a_step_over_rounded_passages(tiny_bert):
    check_the_cache(tiny_bert, "srl", "starbucks", binary_weight=1.0)


def check_the_cache(tiny_bert, method, variant, end_to_end=False, **changes):
    options = dataclasses.replace(LOSSES[method].variants[variant], **changes)
    if getattr(options, "pca", "exact") == "lowrank":  # takes random numbers of its own, which a cache does not move
        options = dataclasses.replace(options, pca="exact")
    single = method in ("separate", "full")
    sizes = Sizes([Size(4, 32)]) if single else Sizes.parse("1:8,2:16,4:32")
    objective = LOSSES[method].objective(sizes, Size(4, 32), options)
    encoder = NestedEncoder.from_pretrained(tiny_bert, dropout=0.2)
    if end_to_end:
        unpadded.enable(encoder.backbone)
    batch = flat(random_rows(4 + 8), 4)
    results = []
    for cached in (False, True):
        module = TrainingModule(encoder, objective, Chunks(60, cached=cached)).train()
        module.step = (0, 1)
        torch.manual_seed(3)
        results.append(gradients(module, batch))
    (plain_loss, plain), (cached_loss, cached) = results
    assert torch.equal(plain_loss, cached_loss)
    assert plain.keys() == cached.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(cached[name], gradient, rtol=1e-5, atol=1e-7, msg=name)
    module.zero_grad()
    torch.manual_seed(4)
    assert not torch.equal(module(**batch)["loss"], plain_loss)  # dropout was on


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_cache_works_with_bf16_and_checkpointing(tiny_bert, checkpointing, precision):
    encoder = NestedEncoder.from_pretrained(tiny_bert, dropout=0.2)
    batch, results = flat(random_rows(4 + 8), 4), []
    for cached in (False, True):
        module = TrainingModule(encoder, srl(), Chunks(60, 2, 3, cached)).train()
        if checkpointing:
            module.gradient_checkpointing_enable()
        torch.manual_seed(3)
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            results.append(gradients(module, batch))
    torch.testing.assert_close(results[0][0], results[1][0])
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_the_cache_keeps_no_activations(encoder):
    def kept(cached):
        module = TrainingModule(encoder, srl(), Chunks(200, cached=cached))
        sizes = {}

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = module(**flat(random_rows(8 + 24), 8))["loss"]
        weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
        assert loss.requires_grad
        return sum(size for where, size in sizes.items() if where not in weights)

    assert kept(True) < 0.05 * kept(False)


@pytest.mark.parametrize(
    ("query_rows", "passage_rows"),
    [(3, 5), pytest.param(1, None, marks=pytest.mark.slow), pytest.param(None, 2, marks=pytest.mark.slow)],
)
def test_chunks_by_rows_change_nothing(encoder, query_rows, passage_rows):
    batch, widths = flat(random_rows(4 + 8), 4), []
    plain, _ = gradients(TrainingModule(encoder, srl()), batch)
    hook = encoder.backbone.embeddings.register_forward_pre_hook(
        lambda module, inputs, keywords: widths.append(len(keywords["input_ids"])), with_kwargs=True
    )
    chunked, _ = gradients(TrainingModule(encoder, srl(), Chunks(None, query_rows, passage_rows)), batch)
    hook.remove()
    torch.testing.assert_close(plain, chunked)
    assert widths == [*_cut(4, query_rows), *_cut(8, passage_rows)]


def _cut(rows, at_most):
    at_most = at_most or rows
    return [min(at_most, rows - start) for start in range(0, rows, at_most)]


def test_queries_run_no_layer_that_only_passages_need(encoder):
    objective = LOSSES["separate"].objective(
        Sizes.parse("2:16"),
        Size(4, 32),
        dataclasses.replace(LOSSES["separate"].variants["separate"], passage_layers=((2, 4),)),
    )
    rows = []
    encoder.backbone.encoder.layer[3].register_forward_hook(lambda module, inputs, output: rows.append(len(inputs[0])))
    TrainingModule(encoder, objective)(**flat(random_rows(4 + 8), 4))
    assert sum(rows) == 8


@pytest.mark.parametrize("cached", slow_except([True], [False, True]))
@pytest.mark.parametrize("end_to_end", [False, True])
def test_checkpointing_changes_nothing(tiny_bert, end_to_end, cached):
    encoder = NestedEncoder.from_pretrained(tiny_bert, dropout=0.0).double()
    expected_loss, expected = gradients(TrainingModule(encoder, srl(), Chunks(100)), flat(random_rows(6), 3))
    if end_to_end:
        unpadded.enable(encoder.backbone)
    module = TrainingModule(encoder, srl(), Chunks(100, cached=cached)).train()
    module.gradient_checkpointing_enable({"use_reentrant": True})  # as an old configuration would ask
    computed = []
    encoder.backbone.encoder.layer[0].intermediate.register_forward_hook(
        lambda module, inputs, output: computed.append(inputs[0].shape[:-1].numel())
    )
    loss, found = gradients(module, flat(random_rows(6), 3))
    times = 3 if cached else 2  # a layer runs again in the backward pass, and with the cache once more before
    assert len(computed) >= 2 * times
    assert not end_to_end or sum(computed) == times * sum(map(len, random_rows(6)))
    torch.testing.assert_close(loss, expected_loss)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


def test_the_loss_is_not_computed_in_bf16(encoder):
    module = TrainingModule(encoder, srl(), Chunks(100))
    with torch.autocast("cpu", torch.bfloat16):
        assert module(**flat(random_rows(6), 3))["loss"].dtype == torch.float32


def test_compiled_layers_give_the_same_loss(tiny_bert):
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    batch = flat(random_rows(6), 3)
    plain, expected = gradients(TrainingModule(encoder, srl(), Chunks(60)), batch)
    compiled = []
    with pytest.MonkeyPatch.context() as patch:
        # the compiler itself is torch's; that each layer's forward, and nothing else, goes to it is ours
        patch.setattr(torch, "compile", lambda function, **options: compiled.append(options) or function)
        encoder.compile_layers()
    assert compiled == [{"dynamic": True}] * 4
    again, found = gradients(TrainingModule(encoder, srl(), Chunks(60)), batch)
    assert torch.equal(plain, again) and all(torch.equal(found[name], expected[name]) for name in expected)


def test_collator_puts_queries_first_and_keeps_lengths(encoder):
    examples = [
        Example("w1 w2", ["0 a", "0 b"], ["w3", "w4 w5 w6"], frozenset({"0 a"}), "q1"),
        Example("w7", ["0 c", "0 a"], ["w8", "w3"], frozenset({"0 c", "0 b"}), "q2"),
    ]
    batch = Collator(encoder)(examples)
    assert batch["lengths"].tolist() == [4, 3, 3, 5, 3, 3]
    assert len(batch["ids"]) == 21
    assert batch["query_ids"] == ["q1", "q2"]
    assert "labels" not in batch and "teacher" not in batch
    targets = torch.tensor([0, 2])
    excluded = excluded_passages(batch["docids"], batch["known"], targets)
    assert excluded.tolist() == [[False, False, False, True], [False, True, False, False]]
    kept = Collator(encoder, mask_false_negatives=False)(examples)
    assert not excluded_passages(kept["docids"], kept["known"], targets).any()


def test_collator_returns_labels_and_teacher_scores(encoder):
    examples = [
        Example("w1", ["0 a"], ["w3"], frozenset({"0 a"}), "q1", scores=[2.0], label=0.5),
        Example("w2", ["0 b"], ["w4"], frozenset({"0 b"}), "q2", scores=[1.0], label=0.25),
    ]
    batch = Collator(encoder)(examples)
    assert batch["labels"].tolist() == [0.5, 0.25] and batch["teacher"].tolist() == [[2.0], [1.0]]


def test_the_anchor_loss_is_zero_until_the_full_size_changes(encoder, tiny_bert):
    batch = flat(random_rows(6), 3)
    plain = TrainingModule(encoder, srl())
    anchored = TrainingModule(encoder, srl(), anchor=NestedEncoder.from_pretrained(tiny_bert), anchor_weight=3.0)
    assert len(list(anchored.parameters())) == len(list(plain.parameters()))
    assert anchored.state_dict().keys() == plain.state_dict().keys()
    first = anchored(**batch)
    torch.testing.assert_close(first["loss"], plain(**batch)["loss"])
    assert first["parts"]["anchor"] == pytest.approx(0.0, abs=1e-6)
    with torch.no_grad():
        for parameter in encoder.backbone.encoder.layer[3].parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    moved = anchored(**batch)
    drift = moved["parts"]["anchor"]
    assert drift > 1e-3
    torch.testing.assert_close(moved["loss"], plain(**batch)["loss"] + 3 * drift)
    rows, before = random_rows(6), NestedEncoder.from_pretrained(tiny_bert)
    with torch.no_grad():
        ours, theirs = (model(**pad(rows, 0), layers=[4])[4] for model in (encoder, before))
    torch.testing.assert_close(drift, (1 - torch.cosine_similarity(ours, theirs)).mean())


def test_an_anchor_computes_in_the_training_precision(encoder, tiny_bert):
    anchor, seen = NestedEncoder.from_pretrained(tiny_bert), []
    anchor.backbone.encoder.layer[0].register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    with torch.autocast("cpu", torch.bfloat16):
        TrainingModule(encoder, srl(), anchor=anchor, anchor_weight=1.0)(**flat(random_rows(6), 3))
    assert seen and all(seen)
