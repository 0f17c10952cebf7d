"""NestedEncoder.at: the methods of a SentenceTransformer at one size, with the vectors of NestedEncoder.encode."""

import sys

import numpy as np
import pytest
import torch
from fitted_models import fitted, load

from starbucks_retrieval import NestedEncoder, Size, Sizes, UserError

TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18 w19 w20", "w2 w2"]


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    """A model with prefixes and lengths of its own."""
    return load(
        tiny_bert,
        sizes=Sizes.parse("2:8,4:32"),
        query_prefix="w90 ",
        passage_prefix="w91 ",
        query_max_len=12,
        passage_max_len=20,
    )


@pytest.fixture(scope="module")
def fitted_encoder(tiny_bert):
    return fitted(load(tiny_bert, query_prefix="w90 ", passage_prefix="w91 "))[0]


def test_the_vectors_are_those_of_encode(encoder):
    model = encoder.at("2:8")
    passages, queries = (encoder.encode(TEXTS, "2:8", is_query=is_query)[Size(2, 8)] for is_query in (False, True))
    assert not np.array_equal(passages, queries)
    for found in (model.encode(TEXTS), model.encode_document(TEXTS), model.encode(inputs=TEXTS)):
        np.testing.assert_array_equal(found, passages)
    for found in (model.encode_query(TEXTS), model.encode(TEXTS, prompt_name="query"), model.encode(TEXTS, "query")):
        np.testing.assert_array_equal(found, queries)
    np.testing.assert_array_equal(encoder.at(Size(2, 8)).encode(np.array(TEXTS)), passages)
    np.testing.assert_allclose(model.encode(TEXTS, batch_size=1), passages, atol=1e-6)  # other padding
    assert encoder.at("4:32").at("2:8").encode(TEXTS).shape == (4, 8)
    assert repr(model).endswith("'2:8')")


def test_one_text_gives_one_vector_and_none_give_no_rows(encoder):
    model = encoder.at("2:8")
    one = model.encode(TEXTS[0])
    assert one.shape == (8,)
    np.testing.assert_array_equal(one, model.encode(TEXTS[:1])[0])
    assert model.encode([]).shape == (0, 8)
    assert model.encode_query(TEXTS[0], convert_to_tensor=True).shape == (8,)


def test_what_is_returned(encoder):
    model = encoder.at("2:8")
    vectors = model.encode(TEXTS)
    assert vectors.dtype == np.float32
    tensor = model.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor) and tensor.device == model.device
    rows = model.encode(TEXTS, convert_to_numpy=False)
    assert isinstance(rows, list) and all(isinstance(row, torch.Tensor) for row in rows)
    np.testing.assert_array_equal(tensor, vectors)
    np.testing.assert_array_equal(torch.stack(rows), vectors)


def test_truncate_dim_gives_the_vectors_of_the_smaller_size(encoder):
    np.testing.assert_array_equal(encoder.at("2:32").encode(TEXTS, truncate_dim=8), encoder.at("2:8").encode(TEXTS))


def test_normalize_embeddings(tiny_bert, encoder):
    dot = load(tiny_bert, normalize=False).at("2:8")
    assert dot.similarity_fn_name == "dot"
    np.testing.assert_allclose(np.linalg.norm(dot.encode(TEXTS, normalize_embeddings=True), axis=1), 1, atol=1e-6)
    assert abs(np.linalg.norm(dot.encode(TEXTS), axis=1) - 1).min() > 0.1
    cosine = encoder.at("2:8")
    np.testing.assert_array_equal(cosine.encode(TEXTS, normalize_embeddings=True), cosine.encode(TEXTS))


def test_a_prompt_replaces_the_prefix(encoder, tiny_bert):
    model = encoder.at("2:8")
    plain = load(tiny_bert, query_max_len=12, passage_max_len=20).at("2:8")
    np.testing.assert_array_equal(model.encode(TEXTS, prompt="w50 "), plain.encode([f"w50 {text}" for text in TEXTS]))
    np.testing.assert_array_equal(model.encode(TEXTS, prompt=""), plain.encode(TEXTS))
    # The length stays that of the side.
    np.testing.assert_array_equal(model.encode_query(TEXTS, prompt=""), plain.encode_query(TEXTS))
    assert not np.array_equal(plain.encode_query(TEXTS), plain.encode(TEXTS))
    assert model.prompts == {"query": "w90 ", "document": "w91 "}
    assert (model.default_prompt_name, plain.default_prompt_name) == ("document", None)


def test_pairs_embed_queries_and_passages_at_their_own_layer(fitted_encoder):
    model = fitted_encoder.at("2:8/4:8")
    assert (model.size, model.passage_size, model.size_name) == (Size(2, 8), Size(4, 8), "2:8/4:8")
    np.testing.assert_array_equal(
        model.encode_query(TEXTS), fitted_encoder.encode(TEXTS, "2:8", is_query=True)[Size(2, 8)]
    )
    np.testing.assert_array_equal(model.encode(TEXTS), fitted_encoder.encode(TEXTS, "4:8")[Size(4, 8)])
    np.testing.assert_array_equal(model.encode_document(TEXTS), model.encode(TEXTS))


def test_pairs_of_training_are_the_default(tiny_bert):
    encoder = load(tiny_bert, passage_layers=((2, 4),))
    model = encoder.at("2:8")
    assert (model.passage_size, model.size_name) == (Size(4, 8), "2:8")
    assert encoder.at("2:8/4:8").size_name == "2:8"
    assert encoder.at("2:8/2:8").size_name == "2:8/2:8"
    np.testing.assert_array_equal(model.encode_document(TEXTS), encoder.encode(TEXTS, "4:8")[Size(4, 8)])


def test_layer_0(fitted_encoder):
    np.testing.assert_array_equal(
        fitted_encoder.at("0:8").encode_query(TEXTS), fitted_encoder.encode(TEXTS, "0:8", is_query=True)[Size(0, 8)]
    )
    assert fitted_encoder.at("0:8/4:8").similarity(np.ones((2, 8)), np.ones((3, 8))).shape == (2, 3)


def test_similarity(encoder, tiny_bert):
    first, second = np.array([[3.0, 4.0], [1.0, 0.0]]), [np.array([0.0, 2.0]), np.array([1.0, 1.0])]
    cosine, dot = encoder.at("2:8"), load(tiny_bert, normalize=False).at("2:8")
    np.testing.assert_allclose(cosine.similarity(first, second)[0], [0.8, 1.4 / 2**0.5])
    np.testing.assert_allclose(dot.similarity(first, second), [[8, 7], [0, 1]])
    np.testing.assert_allclose(dot.similarity(first[0], torch.tensor(second[0])), [[8]])
    np.testing.assert_allclose(dot.similarity_pairwise(first, second), [8, 1])
    half = torch.tensor(first, dtype=torch.float16)
    assert dot.similarity(half, half).dtype == torch.float32


def test_lengths_and_tokens(encoder):
    model = encoder.at("2:8")
    assert model.get_sentence_embedding_dimension() == model.get_embedding_dimension() == 8
    assert model.max_seq_length == 20
    tokens = model.tokenize(TEXTS)
    assert tokens["input_ids"].shape == tokens["attention_mask"].shape == (4, 18)
    model.max_seq_length = 6
    assert model.max_seq_length == 6 and model.tokenize(TEXTS)["input_ids"].shape == (4, 6)
    np.testing.assert_array_equal(
        model.encode_query(TEXTS), encoder.encode(TEXTS, "2:8", is_query=True, max_length=6)[Size(2, 8)]
    )
    assert encoder.at("2:8").max_seq_length == 20
    for length in (2, 1000):
        with pytest.raises(UserError, match=str(length)):
            model.max_seq_length = length


def test_beirs_texts(encoder):
    model = encoder.at("2:8")
    passages = [{"title": "w1 w2", "text": "w3"}, {"text": "w4"}]
    np.testing.assert_array_equal(model.encode_corpus(passages, batch_size=8), model.encode(["w1 w2 w3", "w4"]))
    np.testing.assert_array_equal(model.encode_queries(TEXTS), model.encode_query(TEXTS))


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda m: m.encode(["w1", None]), r"text 1 \(from 0\) is None, not a string", "empty string"),
        (lambda m: m.encode([3.5]), r"text 0 \(from 0\) is 3.5, not a string", "turn numbers into strings"),
        (lambda m: m.encode([["w1", "w2"]]), "is of type list, not a string", "one flat list of strings"),
        (lambda m: m.encode(), "texts, not nothing", "list of strings"),
        (lambda m: m.encode(5), "texts, not something of type int", "list of strings"),
        (lambda m: m.encode({"a": "b"}), "not something of type dict", "list(texts.values())"),
        (lambda m: m.tokenize("w1"), "not one text", "list of strings"),
        (lambda m: m.encode(["w1"], "sts"), "no prompt 'sts', only 'query' and 'document'", "prompt="),
        (lambda m: m.encode(["w1"], prompt=3), "the prompt is 3", "prompt="),
        (lambda m: m.encode(["w1"], task="sts"), "no task 'sts'", "'query' or 'document'"),
        (lambda m: m.encode(["w1"], batch_size=0), "batch_size 0 is below 1", "raise it"),
        (lambda m: m.encode(["w1"], output_value="token_embeddings"), "'token_embeddings' is not supported", "export"),
        (lambda m: m.encode(["w1"], precision="int3"), "no precision 'int3'", "ubinary"),
        (lambda m: m.encode(["w1"], truncate_dim=9), "truncate_dim=9 does not fit 2:8", "1 to 8"),
        (lambda m: m.encode(["w1"], device=["cpu", "cpu"]), "on one device", "--num_processes"),
        (lambda m: m.at("9:8"), "needs layer 9", "1 to 4"),
        (lambda m: m.at("2:64"), "64 dimensions", "1 to 32"),
        (lambda m: m.at("0:8"), "token table", "starbucks fit"),
        (lambda m: m.at("large"), "cannot read the size 'large'", "6:128"),
        (lambda m: m.at(None), "None is not one size", "6:128"),
        (lambda m: m.at(["2:8"]), "is not one size", "6:128"),
        (lambda m: m.at("2:8/4:16"), "differ in dim", "2:8/4:8"),
        (lambda m: m.at("2:8/4:8"), "not comparable", "starbucks fit"),
    ],
)
def test_bad_input_is_refused_with_a_remedy(encoder, call, message, hint):
    with pytest.raises(UserError, match=message) as refused:
        call(encoder.at("2:8"))
    assert hint in refused.value.hint


def test_unknown_arguments_are_refused(encoder):
    with pytest.raises(TypeError, match="unexpected keyword argument 'chunk_size'"):
        encoder.at("2:8").encode(["w1"], chunk_size=5)


def test_sentence_transformers_is_not_needed(tiny_bert, monkeypatch):
    for name in (
        "sentence_transformers",
        "mteb",
        "mteb.models",
    ):  # test_startup sees that nothing imports them at first
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "starbucks_retrieval.integrations.mteb", raising=False)
    model = NestedEncoder.from_pretrained(tiny_bert, device="cpu").at("2:8")
    assert model.encode(["w1"]).shape == (1, 8)
    for call in (lambda: model.encode(["w1"], precision="int8"), lambda: model.mteb_model_meta):
        with pytest.raises(UserError) as error:
            call()
        assert "pip install" in error.value.hint


@pytest.fixture(scope="module")
def sentence_transformers():
    return pytest.importorskip("sentence_transformers", minversion="5.0", reason="needs sentence-transformers 5")


def test_precisions_of_sentence_transformers(sentence_transformers, encoder):
    model = encoder.at("2:8")
    expected = sentence_transformers.quantize_embeddings(model.encode(TEXTS), precision="ubinary")
    np.testing.assert_array_equal(model.encode(TEXTS, precision="ubinary"), expected)
    np.testing.assert_array_equal(model.encode(TEXTS, precision=None), model.encode(TEXTS))
