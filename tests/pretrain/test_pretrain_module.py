"""The loss against a literal reading of the papers, gradients included; and what it must not compute or change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses.functional import span_contrast
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.pretrain import PretrainOptions
from starbucks_retrieval.pretrain.module import PretrainingModule
from starbucks_retrieval.sizes import Sizes

from ..conftest import slow_except
from . import published
from .conftest import MASKED, OPTIONS, TWO_STREAM, TYPICAL, masked_batch, masked_lm

SIZES = Sizes.parse("1:8,2:8,2:20,4:32")


def build(family="bert", options=None, sizes=SIZES, double=True, seed=3, **changes) -> PretrainingModule:
    model = masked_lm(family, **changes)
    module = PretrainingModule(model, None, EncoderConfig(), sizes, options or PretrainOptions(), seed=seed)
    return (module.double() if double else module).eval()


def gradients(module, loss):
    module.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters() if parameter.grad is not None}


def same(found, expected, rtol=1e-8):
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=rtol, atol=rtol, msg=lambda m, n=name: f"{n}: {m}")


def check(module, batch, **reading):
    layers = module.decoder.layers if module.decoder else None
    expected, parts = published.loss(module.model, layers, batch, module.sizes, **reading)
    found = module(**batch)
    torch.testing.assert_close(found["loss"], expected, rtol=1e-8, atol=0)
    same(found["parts"], {name: part.detach() for name, part in parts.items()})
    wanted, got = gradients(module, expected), gradients(module, found["loss"])
    same(got, {name: wanted.get(name, torch.zeros_like(grad)) for name, grad in got.items()})
    assert all(name in got or not grad.any() for name, grad in wanted.items())
    return got


@pytest.mark.parametrize("family", slow_except(TYPICAL, MASKED))
def test_smae_is_the_published_loss(family):
    got = check(build(family), masked_batch())
    # every weight that the loss depends on was compared, the decoder's and the vocabulary's included
    assert sum(name.startswith("decoder.") for name in got) == len(list(build(family).decoder.parameters()))
    assert any("embeddings" in name for name in got)


@pytest.mark.parametrize(
    "family", slow_except(["bert"], [f for f in TWO_STREAM if f != "distilbert"])
)  # see the decoders' tests
def test_enhanced_decoding_is_the_published_loss(family):
    check(build(family, OPTIONS["smae-enhanced"]), masked_batch(enhanced=True), enhanced=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss_scale": "half"},
        {"projection": "linear"},
        {"decoder_layers": 2},
        {"decoder_init": "random"},
        {"size_batch": 1},
        pytest.param({"size_batch": 3, "decoder": "enhanced"}, marks=pytest.mark.slow),
        pytest.param({"projection": "linear", "decoder": "enhanced"}, marks=pytest.mark.slow),
        {"mae": False},
        {"mae": False, "projection": "linear"},
        {"sizes": "full", "mae": False},
        {"sizes": "full"},
        {"sizes": "full", "projection": "identity", "decoder_init": "random"},
        {"sizes": "full", "projection": "identity", "decoder_init": "random", "decoder": "enhanced"},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["bert", pytest.param("electra", marks=pytest.mark.slow)])
def test_every_option_is_the_published_loss(family, changes):
    options = PretrainOptions(**changes)
    enhanced = options.decoder == "enhanced"
    module = build(family, options)
    reading = {"projection": options.projection, "enhanced": enhanced, "half": options.loss_scale == "half"}
    check(module, masked_batch(enhanced=enhanced), **reading)


def test_sizes_below_the_last_layer_run_no_layer_above():
    module = build(sizes=Sizes.parse("1:8,3:16"))
    module.backbone.encoder.layer[3].register_forward_hook(lambda *_: pytest.fail("layer 4 ran"))
    module(**masked_batch())


def test_plain_mlm_is_the_model_s_own_loss():
    module, batch = build(options=OPTIONS["mlm"]), masked_batch()
    own = module.model(batch["encoder_ids"], batch["attention_mask"], labels=batch["encoder_labels"]).loss
    found = module(**batch)
    torch.testing.assert_close(found["loss"], own)
    assert set(found["parts"]) == {"enc/4:32"}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_preset_gives_finite_gradients(name):
    module = build(options=OPTIONS[name], double=False).train()
    found = module(**masked_batch(enhanced=OPTIONS[name].decoder == "enhanced"))
    grads = gradients(module, found["loss"])
    assert grads and all(grad.isfinite().all() for grad in grads.values())
    assert (module.decoder is None) == name.startswith("mlm")


@pytest.mark.parametrize("enhanced", [False, True])
def test_gradient_checkpointing_changes_nothing(enhanced):
    options = PretrainOptions(decoder="enhanced" if enhanced else "basic")
    batch = masked_batch(enhanced=enhanced)
    results = []
    for checkpointing in (False, True):
        module = build(options=options, hidden_dropout_prob=0.1).train()
        if checkpointing:
            module.gradient_checkpointing_enable({"use_reentrant": True})
        torch.manual_seed(5)
        found = module(**batch)
        results.append(gradients(module, found["loss"]) | found["parts"] | {"loss": found["loss"].detach()})
    same(results[1], results[0], rtol=1e-12)


@pytest.mark.parametrize("enhanced", [False, True])
@pytest.mark.parametrize("family", slow_except(["bert"], ["bert", "modernbert"]))
def test_under_bf16_losses_stay_float32(family, enhanced):
    if enhanced and family == "modernbert":
        return
    module = build(family, PretrainOptions(decoder="enhanced" if enhanced else "basic"), double=False)
    batch = masked_batch(enhanced=enhanced)
    exact = module(**batch)
    with torch.autocast("cpu", torch.bfloat16):
        found = module(**batch)
    assert {value.dtype for value in (found["loss"], *found["parts"].values())} == {torch.float32}
    torch.testing.assert_close(found["loss"], exact["loss"], rtol=0.03, atol=0)
    grads = gradients(module, found["loss"])
    wanted = gradients(module, exact["loss"])
    for name, grad in grads.items():
        assert grad.dtype == torch.float32
        cosine = torch.cosine_similarity(grad.flatten(), wanted[name].flatten(), dim=0)
        assert cosine > 0.95 or wanted[name].norm() < 1e-6, name


class Shapes(TorchDispatchMode):
    """The largest tensors that operations return, by their last dimension."""

    def __init__(self):
        super().__init__()
        self.rows: dict[int, int] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.dim() > 1:
                width = tensor.shape[-1]
                self.rows[width] = max(self.rows.get(width, 0), tensor.numel() // max(width, 1))
        return result


def test_logits_exist_for_a_few_rows_only():
    module, batch = build(double=False, vocab_size=131), masked_batch()
    whole = module(**batch)
    module.max_logits = 5 * 131
    with Shapes() as seen:
        found = module(**batch)
        found["loss"].backward()
    # [width, words] is the transposed vocabulary and its gradient, not logits
    assert seen.rows[131] <= 32
    torch.testing.assert_close(found["loss"], whole["loss"])


def test_the_decoder_s_input_is_embedded_once_and_left_alone():
    module, batch = build(double=False), masked_batch()
    calls = []
    module.backbone.embeddings.register_forward_hook(lambda m, i, output: calls.append((output, output.clone())))
    module(**batch)
    assert len(calls) == 2  # the encoder's text and the decoder's
    assert all(torch.equal(output, before) for output, before in calls)


def test_texts_do_not_depend_on_their_padding():
    module = build(double=True)
    batch = masked_batch()
    found = module(**batch)
    wide = {
        name: torch.nn.functional.pad(value, (0, 4), value=-100 if name.endswith("labels") else 0)
        for name, value in batch.items()
    }
    torch.testing.assert_close(module(**wide)["loss"], found["loss"], rtol=1e-10, atol=0)


def test_a_row_that_sees_nothing_sees_the_vector_alone():
    module, batch = build(options=OPTIONS["smae-enhanced"]), masked_batch(enhanced=True)
    batch["visible"][0, 3] = False
    batch["visible"][1] = False
    found = module(**batch)
    grads = gradients(module, found["loss"])
    assert all(grad.isfinite().all() for grad in grads.values())
    batch["visible"][0, 3, 0] = True
    batch["visible"][1, :, 0] = True
    again = module(**batch)
    same(again["parts"], found["parts"])
    same(gradients(module, again["loss"]), grads)


def test_batches_without_targets_count_nothing():
    module, batch = build(), masked_batch()
    for name in ("encoder_labels", "decoder_labels"):
        batch[name] = torch.full_like(batch[name], -100)
    found = module(**batch)
    assert found["loss"] == 0 and not any(found["parts"].values())
    assert not any(grad.any() for grad in gradients(module, found["loss"]).values())


@pytest.mark.slow  # hundreds of passes
@pytest.mark.parametrize("decoder", ["basic", "enhanced"])
def test_a_fraction_of_the_targets_has_the_expectation_of_all(decoder):
    batch = masked_batch(enhanced=decoder == "enhanced")
    whole = build(options=PretrainOptions(decoder=decoder))(**batch)["parts"]
    module = build(options=PretrainOptions(decoder=decoder, decoder_token_fraction=0.5))
    draws = []
    for step in range(120):
        module.step = (7, step)
        with torch.no_grad():
            draws.append(module(**batch)["parts"])
    assert len({float(draw["dec/1:8"]) for draw in draws}) > 50  # drawn anew every step
    for name in whole:
        values = np.array([float(draw[name]) for draw in draws])
        spread = values.std() / len(values) ** 0.5
        assert abs(values.mean() - float(whole[name])) <= 4 * spread + 1e-9, name
    module.step = (7, 11)
    assert module(**batch)["parts"] == draws[11]


def test_a_fraction_gives_the_gradient_of_its_own_targets():
    module = build(options=PretrainOptions(decoder_token_fraction=0.4, size_batch=2))
    batch = masked_batch()
    found = module(**batch)
    again = build(options=PretrainOptions(decoder_token_fraction=0.4))
    other = again(**batch)
    same(found["parts"], other["parts"])
    same(gradients(module, found["loss"]), gradients(again, other["loss"]))


def test_the_contrastive_term_joins_the_loss():
    options = PretrainOptions(contrastive_weight=0.5, contrastive_temperature=0.2, contrastive_normalize=True)
    module, batch = build(options=options), masked_batch()
    found = module(**batch)
    plain = build()(**batch)
    vectors = published.states_of(module.model, batch)[4][:, 0]
    contrast = span_contrast(vectors, 0.2, True)
    torch.testing.assert_close(found["parts"]["ctr"], contrast.detach())
    torch.testing.assert_close(found["loss"], plain["loss"] + 0.5 * contrast)


@pytest.mark.parametrize(
    ("family", "sizes", "settings", "word"),
    [
        ("bert", "2:8,5:32", {}, "5"),
        ("bert", "2:8,4:64", {}, "64"),
        ("bert", "2:8,4:32", {"projection": "identity"}, "identity"),
        ("bert", "4:32", {"decoder_layers": 5}, "5 layers"),
        ("modernbert", "4:32", {"decoder": "enhanced"}, "modernbert"),
        ("mpnet", "4:32", {"decoder": "enhanced"}, "mpnet"),
    ],
)
def test_options_that_do_not_fit_the_backbone_are_refused(family, sizes, settings, word):
    with pytest.raises(UserError, match=word):
        build(family, PretrainOptions(**settings), Sizes.parse(sizes))


def test_mpnet_has_no_gradient_checkpointing():
    with pytest.raises(UserError, match="mpnet"):
        build("mpnet").gradient_checkpointing_enable()


def test_the_default_sizes_are_the_stored_ones_or_the_paper_s():
    assert build(sizes=None).sizes == Sizes.default(4, 32)
    stored = PretrainingModule(masked_lm(), None, EncoderConfig(sizes=Sizes.parse("2:16,4:32"), pooling="mean"))
    assert str(stored.sizes) == "2:16,4:32" and stored.encoder_config.pooling == "cls"
    full = PretrainingModule(masked_lm(), None, EncoderConfig(), SIZES, OPTIONS["mlm"])
    assert str(full.sizes) == "4:32" and full.encoder_config.sizes is None
