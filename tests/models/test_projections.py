"""Fitted projections: the maths, every architecture, saving and loading, and back ends."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from conftest import FAMILIES, save_model, slow_except
from fitted_models import fitted, load, texts, token_rows

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import EncoderConfig, NestedEncoder, table_fitter
from starbucks_retrieval.models.batching import pad
from starbucks_retrieval.models.fit_report import FitReport, Quality
from starbucks_retrieval.models.fitter import Fitter
from starbucks_retrieval.models.fitting import Moments, principal_axes, solve, unit
from starbucks_retrieval.models.layer_maps import LayerMap, TokenTable
from starbucks_retrieval.models.projections import FILE, FORMAT, Projections
from starbucks_retrieval.models.table_fitter import refined_table, sparse_from, token_shares, token_states
from starbucks_retrieval.models.texts import join_short
from starbucks_retrieval.sizes import Size, Sizes


@pytest.fixture(scope="module")
def fitted_once(tiny_bert):
    return fitted(load(tiny_bert))[0]


@pytest.fixture
def encoder(fitted_once):
    """A fitted encoder that a test may change."""
    return copy.deepcopy(fitted_once)


def test_axes_and_maps_equal_those_of_the_definition():
    rng = np.random.default_rng(0)
    x, e = unit(rng.normal(size=(120, 5))), unit(rng.normal(size=(120, 5)))
    fit, held = slice(0, 100), slice(100, 120)
    moments = Moments.zeros(5, {3: 5})
    moments.add({3: x[:40]}, e[:40])
    moments.add({3: x[40:100]}, e[40:100])
    found = solve(moments, {3: x[held]}, e[held], ridges=[1e-3])
    _, vectors = np.linalg.eigh(e[fit].T @ e[fit])
    for axis, expected in zip(found.axes.T, vectors.T[::-1]):
        assert abs(axis @ expected) == pytest.approx(1)
    ones = np.hstack([x[fit], np.ones((100, 1))])
    penalty = 1e-3 * np.trace(ones.T @ ones) / 6
    expected = np.linalg.solve(ones.T @ ones + penalty * np.eye(6), ones.T @ (e[fit] @ found.axes))
    np.testing.assert_allclose(found.coefficients[3], expected, atol=1e-10)


def test_the_ridge_with_the_smallest_error_on_held_out_texts_is_taken():
    rng = np.random.default_rng(1)
    x = unit(rng.normal(size=(60, 40)))
    e = unit(x @ rng.normal(size=(40, 40)) + 3 * rng.normal(size=(60, 40)))
    moments = Moments.zeros(40, {1: 40})
    moments.add({1: x[:45]}, e[:45])
    found = solve(moments, {1: x[45:]}, e[45:], ridges=[1e-8, 1.0])
    assert found.ridges == {1: 1.0}  # 45 noisy texts and 41 coefficients


@pytest.mark.parametrize("normalize", slow_except([False], [True, False]))
@pytest.mark.parametrize("family", slow_except(["bert"], sorted(FAMILIES)))
def test_full_size_keeps_its_scores_and_small_sizes_come_closer(tmp_path, family, normalize):
    encoder = load(save_model(tmp_path, family), normalize=normalize)
    full, probe = Size(encoder.num_layers, encoder.hidden_size), token_rows(30, seed=1)
    before = encoder.embed(probe, Sizes([full]))[full]
    encoder, report = fitted(encoder)
    after = encoder.embed(probe, Sizes([full]))[full]
    np.testing.assert_allclose(after @ after.T, before @ before.T, rtol=1e-4, atol=1e-5)
    for layer in range(1, encoder.num_layers):
        assert report.after[Size(layer, 32)].cosine > report.before[Size(layer, 32)].cosine
    assert report.after[full] == Quality(pytest.approx(1), pytest.approx(1))


@pytest.mark.parametrize("family", slow_except(["qwen3"], ["bert", "mpnet", "modernbert", "qwen3"]))
def test_saved_and_truncated_models_give_the_same_vectors_and_fingerprints(tmp_path, family):
    encoder, _ = fitted(load(save_model(tmp_path / "base", family), sizes=None))
    encoder.save_pretrained(tmp_path / "fitted")
    probe = token_rows(20, seed=2)
    expected = encoder.embed(probe, Sizes.parse("0:16,1:8,2:32"))
    whole = NestedEncoder.from_pretrained(tmp_path / "fitted", device="cpu")
    assert whole.projections.space == encoder.projections.space
    assert whole.config.projected_layers == (0, 1, 2, 3, 4)
    for layer in (0, 1, 2):
        part = NestedEncoder.from_pretrained(tmp_path / "fitted", layers=layer, device="cpu")
        reachable = Sizes([size for size in expected if size.layer <= layer])
        for size, vectors in part.embed(probe, reachable).items():
            np.testing.assert_allclose(vectors, expected[size], atol=1e-6)
        assert part.num_layers == max(1, layer)
        assert part.fingerprint(layer) == whole.fingerprint(layer) != whole.backbone_fingerprint(layer)
        assert part.projections.space == whole.projections.space


def test_layer_0_is_the_mean_of_the_table_without_special_tokens(encoder):
    rows = encoder.projections.table.rows.detach()
    assert not rows[[0, 2, 3]].any()  # [PAD], [CLS], [SEP]
    mean = (
        rows[encoder.tokenizer.convert_tokens_to_ids("w1")] + rows[encoder.tokenizer.convert_tokens_to_ids("w2")]
    ) / 2
    expected = torch.nn.functional.normalize(mean[:8], dim=0).numpy()
    alone = encoder.encode(["w1 w2"], "0:8")[Size(0, 8)]
    beside = encoder.encode(["w1 w2", "w3 w4 w5 w6"], "0:8,2:8")[Size(0, 8)]
    np.testing.assert_allclose(alone[0], expected, atol=1e-6)
    np.testing.assert_allclose(beside[0], expected, atol=1e-6)


def test_layer_0_is_looked_up_alike_alone_and_beside_others(encoder, tiny_bert, monkeypatch):
    from starbucks_retrieval.models import token_encoder as module

    rows = token_rows(9, seed=4)
    alone = encoder.embed(rows, Sizes.parse("0:8,0:32"))
    beside = encoder.embed(rows, Sizes.parse("0:8,0:32,2:8"), max_tokens=20)
    monkeypatch.setattr(module, "_LOOKED_UP", 4)
    in_blocks = encoder.look_up(rows, alone)
    for size in alone:
        np.testing.assert_array_equal(alone[size], beside[size])
        np.testing.assert_array_equal(alone[size], in_blocks[size])
    with pytest.raises(UserError, match="layer 0 needs the token table"):
        load(tiny_bert).look_up(rows, [Size(0, 8)])


def test_a_token_table_is_cut_to_dims_and_takes_texts_without_tokens():
    table = TokenTable(torch.arange(12.0).reshape(4, 3))
    rows = [[1, 2], [], [3, 0]]
    torch.testing.assert_close(table.embed_rows(rows, 2), table.embed_rows(rows)[:, :2])
    assert table.embed_rows(rows)[1].tolist() == [0, 0, 0]


def test_a_text_of_special_tokens_only_is_zero_at_layer_0(encoder):
    assert not encoder.encode([""], "0:8")[Size(0, 8)].any()


def test_token_states_are_the_output_of_the_embedding_layer_averaged_over_positions(tiny_bert):
    encoder = load(tiny_bert)
    with torch.no_grad():
        states = encoder.backbone(torch.full((1, 16), 7), output_hidden_states=True).hidden_states[0][0]
    np.testing.assert_allclose(token_states(encoder)[7], states[1:].mean(dim=0).numpy(), atol=1e-6)


def test_the_refined_table_is_better_for_other_texts_and_keeps_unseen_tokens():
    rng = np.random.default_rng(0)
    true, first = rng.normal(size=(30, 4)), rng.normal(size=(30, 4))
    rows = [rng.integers(0, 29, 8).tolist() for _ in range(300)]  # token 29 never occurs
    shares = token_shares(rows, frozenset(), 30)
    target = shares @ true
    table = refined_table(first, shares[:200], target[:200], shares[200:], target[200:])
    before, after = (np.square(shares[200:] @ found - target[200:]).sum() for found in (first, table))
    assert after < before / 10
    np.testing.assert_array_equal(table[29], first[29].astype(np.float32))


def test_a_table_that_only_gets_worse_for_other_texts_stays_as_it_was():
    rng = np.random.default_rng(1)
    shares = token_shares([[i] for i in range(20)], frozenset(), 20)
    first = rng.normal(size=(20, 4))
    table = refined_table(first, shares, rng.normal(size=(20, 4)) * 9, shares, shares @ first)
    np.testing.assert_array_equal(table, first.astype(np.float32))


def test_sparse_matrices_survive_a_checkpoint():
    shares = token_shares([[1, 1, 4], [], [2]], frozenset([4]), 5)
    assert shares.sum(axis=1).ravel().tolist()[0] == [1, 0, 1]
    arrays = {f"x_{field}": getattr(shares, field) for field in ("data", "indices", "indptr")}
    assert (sparse_from(arrays, "x", 5) != shares).nnz == 0


def test_a_sixth_of_short_texts_is_joined_up_to_the_length_of_passages():
    rows = [[2, i, i, 3] for i in range(5, 41)]
    joined = join_short(rows, 12, [2, 3])
    assert joined[:15] == rows[:15]
    assert joined[15] == [2, 20, 20, 21, 21, 22, 22, 3]
    assert joined[16:31] == rows[18:33]
    assert join_short(rows, 7, [2, 3]) == rows  # two do not fit
    assert max(map(len, join_short([[2, *range(5, 30), 3]] * 12, 60, [2, 3]))) == 52
    assert join_short([[7, 8], [9]] * 24, 40, [2])[40:] == [[7, 8, 9] * 4]  # without special tokens


def test_concatenated_layers_are_nested_and_saved(tiny_bert, tmp_path):
    encoder, _ = fitted(load(tiny_bert), concat_layers=True)
    assert encoder.projections.map(3).inputs == (0, 1, 2, 3)
    encoder.save_pretrained(tmp_path / "fitted")
    probe = texts(5, seed=3)
    part = NestedEncoder.from_pretrained(tmp_path / "fitted", layers=3, device="cpu")
    np.testing.assert_allclose(
        part.encode(probe, "3:16")[Size(3, 16)], encoder.encode(probe, "3:16")[Size(3, 16)], atol=1e-6
    )


def test_maps_take_the_token_table(tiny_bert, tmp_path):
    encoder, report = fitted(load(tiny_bert))
    _, alone = fitted(load(tiny_bert), table_input=False)
    assert report.after[Size(4, 16)] == alone.after[Size(4, 16)]
    assert report.after[Size(0, 16)] == alone.after[Size(0, 16)]
    assert report.after[Size(2, 16)] != alone.after[Size(2, 16)]
    found = encoder.projections.map(2)
    assert found.inputs == (0, 2) and found.weight.shape == (32, 64)
    rows = token_rows(6, seed=4)
    batch = pad(rows, 0, encoder.device)
    mean = unit(encoder.projections.token_table.embed_rows(rows).detach().numpy())
    own = unit(encoder.unprojected(**batch, layers=[2])[2].detach().numpy())
    expected = np.hstack([mean, own]) @ found.weight.detach().numpy().T + found.bias.detach().numpy()
    np.testing.assert_allclose(encoder(**batch, layers=[2])[2].detach().numpy(), expected, atol=1e-6)
    assert set(encoder(**batch, layers=[0, 2])) == {0, 2}


def test_a_table_that_is_an_input_only_is_no_layer(encoder, tmp_path):
    encoder.save_pretrained(tmp_path / "whole")
    probe = encoder.encode(["w1 w2 w3"], "2:16")[Size(2, 16)]
    encoder.projections = encoder.projections.subset([2, 4])
    assert encoder.projections.layers == (2, 4)
    assert encoder.fingerprint(2) == NestedEncoder.from_pretrained(tmp_path / "whole", device="cpu").fingerprint(2)
    with pytest.raises(UserError, match="no projection for layer 0"):
        encoder.projections.parts([0])
    encoder.config = dataclasses.replace(encoder.config, projected_layers=(2, 4))
    encoder.save_pretrained(tmp_path / "part")
    part = NestedEncoder.from_pretrained(tmp_path / "part", device="cpu")
    # Kernels may sum in another order where weights lie elsewhere in memory.
    np.testing.assert_allclose(part.encode(["w1 w2 w3"], "2:16")[Size(2, 16)], probe, atol=1e-6)
    with pytest.raises(UserError, match="0:8 needs a token table"):
        part.encode(["w1"], "0:8")


def test_maps_see_a_table_that_was_fitted_on_other_texts(tiny_bert):
    fitter = Fitter(load(tiny_bert))
    fitter.add(token_rows())
    table = fitter._table.fit(fitter._target({4: fitter._held_out[0][4]}))
    own = fitter._table._tokens[0] @ table.table.rows.detach().numpy()
    assert table.means.shape == own.shape
    assert np.abs(table.means - own).min(axis=1).max() > 0
    (outputs, targets), *rest = fitter._table.texts(table.means)
    assert not rest and len(targets) == 180
    np.testing.assert_array_equal(outputs[0], table.means)


def test_a_fit_that_takes_the_table_ends_at_a_number_of_texts(tiny_bert, monkeypatch):
    monkeypatch.setattr(table_fitter, "MAX_TEXTS", 100)
    encoder = load(tiny_bert)
    fitter = Fitter(encoder)
    for start in range(0, 400, 50):
        fitter.add(token_rows(400)[start : start + 50])
    assert fitter.is_full and fitter.seen == 150
    assert fitter.finish()[1].texts == 131  # of the last 50, joined texts count once
    read = iter(texts(5000))
    encoder.fit(read)
    assert len(list(read)) > 3000
    assert not Fitter(encoder, table_input=False).is_full


def test_a_fit_that_continues_from_a_checkpoint_gives_the_same_bits(tiny_bert):
    rows = load(tiny_bert).tokenize(texts(), 40)
    whole, first = Fitter(load(tiny_bert)), Fitter(load(tiny_bert))
    for start in (0, 100):
        whole.add(rows[start : start + 100])
    first.add(rows[:100])
    second = Fitter(load(tiny_bert))
    second.load_state({name: array.copy() for name, array in first.state().items()})
    second.add(rows[100:])
    (one, report), (other, same) = whole.finish(), second.finish()
    assert one.space == other.space
    assert report == same


def test_sizes_are_checked_against_the_fitted_layers(tiny_bert):
    encoder, _ = fitted(load(tiny_bert), layers=[2])
    assert encoder.projections.layers == (2, 4)
    with pytest.raises(UserError, match="no projection for layer 1, only for 2, 4"):
        encoder.encode(["w1"], "1:8")
    with pytest.raises(UserError, match="0:8 needs a token table"):
        encoder.encode(["w1"], "0:8")


def test_too_few_texts_are_refused(tiny_bert):
    encoder = load(tiny_bert)
    fitter = Fitter(encoder)
    fitter.add(encoder.tokenize(texts(20), 40))
    with pytest.raises(UserError, match="18 texts cannot fit maps of 32 numbers"):
        fitter.finish()


def test_constant_and_nan_outputs_are_refused(tiny_bert):
    encoder = load(tiny_bert)
    fitter = Fitter(encoder)
    fitter.add(encoder.tokenize(["w1 w2"] * 80, 40))
    with pytest.raises(UserError, match="all these texts the same embedding"):
        fitter.finish()
    torch.nn.init.constant_(encoder.backbone.encoder.layer[3].output.dense.weight, float("nan"))
    fitter = Fitter(encoder)
    fitter.add(encoder.tokenize(texts(80), 40))
    with pytest.raises(UserError, match="not finite"):
        fitter.finish()


def test_an_absent_layer_is_refused(tiny_bert):
    with pytest.raises(UserError, match="no layers"):
        Fitter(load(tiny_bert), layers=[5])


def test_projections_of_other_weights_are_refused(encoder, tmp_path):
    encoder.save_pretrained(tmp_path / "one")
    other = save_model(tmp_path / "other", seed=1)
    for name in (FILE, "starbucks.json"):
        (other / name).write_bytes((tmp_path / "one" / name).read_bytes())
    with pytest.raises(UserError, match="belongs to other weights"):
        NestedEncoder.from_pretrained(other, device="cpu")


def test_a_missing_or_damaged_file_is_refused(encoder, tmp_path):
    encoder.save_pretrained(tmp_path / "one")
    path = tmp_path / "one" / FILE
    content = path.read_bytes()
    path.write_bytes(content[:1000])
    with pytest.raises(UserError, match="damaged"):
        NestedEncoder.from_pretrained(tmp_path / "one", device="cpu")
    path.unlink()
    with pytest.raises(UserError, match=f"lacks {FILE}"):
        NestedEncoder.from_pretrained(tmp_path / "one", device="cpu")


def test_saving_trained_maps_names_another_space(encoder, tmp_path):
    space = encoder.projections.space
    with torch.no_grad():
        encoder.projections.map(2).weight += 0.1
    encoder.save_pretrained(tmp_path / "trained")
    assert NestedEncoder.from_pretrained(tmp_path / "trained", device="cpu").projections.space != space


def test_a_model_that_is_cut_keeps_its_space_until_it_is_trained(encoder, tmp_path):
    encoder.save_pretrained(tmp_path / "fitted")
    for layers in (0, 2):
        part = NestedEncoder.from_pretrained(tmp_path / "fitted", layers=layers, device="cpu")
        part.save_pretrained(tmp_path / f"cut{layers}")
        cut = NestedEncoder.from_pretrained(tmp_path / f"cut{layers}", device="cpu")
        assert cut.projections.space == encoder.projections.space
        cut.save_pretrained(tmp_path / "again")
        assert NestedEncoder.from_pretrained(tmp_path / "again").projections.space == encoder.projections.space
    assert encoder.projections.subset([0, 4]).identity() == encoder.projections.space
    with torch.no_grad():
        cut.projections.map(2).weight += 0.1
    cut.save_pretrained(tmp_path / "trained")
    assert NestedEncoder.from_pretrained(tmp_path / "trained").projections.space != encoder.projections.space


def test_maps_are_computed_in_float32_under_autocast(encoder):
    bf16 = encoder.encode(["w1 w2 w3"], "0:32,2:32", dtype=torch.bfloat16)
    fp32 = encoder.encode(["w1 w2 w3"], "0:32,2:32")
    np.testing.assert_array_equal(bf16[Size(0, 32)], fp32[Size(0, 32)])
    assert (bf16[Size(2, 32)] * fp32[Size(2, 32)]).sum() > 0.99


def test_recommended_sizes_serve_all_budgets():
    after = {Size(layer, dim): Quality(0, layer / 10 + dim / 100) for layer in (0, 1, 2) for dim in (16, 32, 64)}
    report = FitReport(1, 1, {}, {}, after)
    assert str(report.recommended(1)) == "2:64"
    assert str(report.recommended(9)) == "0:32,0:64,1:32,1:64,2:32,2:64"  # 16 dims are too few
    assert Size(2, 64) in report.recommended(3)


def test_axes_have_defined_signs():
    axes = principal_axes(np.cov(np.random.default_rng(0).normal(size=(3, 50))))
    assert all(column[np.abs(column).argmax()] > 0 for column in axes.T)


def test_a_map_and_a_table_alone():
    maps = {1: LayerMap(torch.eye(2), torch.ones(2), (1,), normalize=True)}
    found = Projections(maps, TokenTable(torch.eye(2)), {1: "a"}, "space")
    assert found.layers == (0, 1)
    assert found.inputs([1]) == {1}
    assert found.inputs([0, 1]) == {0, 1}
    torch.testing.assert_close(found.map(1)({1: torch.tensor([[0.0, 2.0]])}), torch.tensor([[1.0, 2.0]]))
    with pytest.raises(UserError, match="no projection for layer 2"):
        found.map(2)


def test_the_configuration_names_the_projected_layers(tmp_path):
    config = EncoderConfig(sizes=Sizes.parse("0:8,2:16"), projected_layers=(0, 2))
    config.save(tmp_path)
    assert EncoderConfig.load(tmp_path / "starbucks.json").projected_layers == (0, 2)
    (tmp_path / "starbucks.json").write_text('{"format": 1, "projected_layers": "0"}')
    with pytest.raises(UserError, match="projected_layers"):
        EncoderConfig.load(tmp_path / "starbucks.json")


@pytest.mark.parametrize("inputs", ['{"1": [1, 1]}', "[" * 10**5])
def test_damaged_inputs_of_maps_are_refused(tmp_path, inputs):
    from safetensors.torch import save_file

    settings = {"format": FORMAT, "version": "1", "inputs": inputs, "normalize": '{"1": true}', "fingerprints": "{}"}
    path = tmp_path / "projections.safetensors"
    save_file({"layer_1.weight": torch.ones(4, 4)}, path, settings | {"space": ""})
    with pytest.raises(UserError, match="is damaged"):
        Projections.load(path)
