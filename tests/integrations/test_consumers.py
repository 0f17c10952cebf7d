"""Embedding consumers: the evaluators of mteb and beir give our own figures."""

import json

import numpy as np
import pytest
from conftest import slow_except
from fitted_models import fitted, load
from made_tasks import made_collection, made_pairs, ndcg, retrieval_task, sts_task

from starbucks_retrieval import NestedEncoder, Size, Sizes, UserError
from starbucks_retrieval.integrations import CONSUMERS, BeirModel, MtebModel, SizedModel
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.models.architectures import count_parameters
from starbucks_retrieval.sts import StsArguments, sts

SIZES = ["2:8", "4:32"]


@pytest.fixture(scope="module", params=slow_except([True], [True, False]), ids=["cosine", "dot"])
def model(request, tiny_bert, tmp_path_factory):
    """A model with prefixes, lengths and a separator of its own."""
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    encoder.config = EncoderConfig(
        sizes=Sizes.parse("2:8,4:32"),
        pooling="mean",
        normalize=request.param,
        query_prefix="w90 ",
        passage_prefix="w91 ",
        passage_field_separator=" w92 ",
        query_max_len=12,
        passage_max_len=20,
    )
    folder = tmp_path_factory.mktemp("model")
    encoder.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def collection():
    """corpus {id: title and text}, queries {id: text}, qrels."""
    return made_collection()


def our_ndcg(model, size, collection):
    """nDCG@10 the way the other stages get it."""
    return ndcg(NestedEncoder.from_pretrained(model), size, collection, separator=" w92 ")


@pytest.mark.parametrize("size", slow_except(["2:8"], SIZES))
def test_beir_evaluates_as_we_do(model, size, collection):
    pytest.importorskip("beir", reason="needs the package beir")
    from beir.retrieval.evaluation import EvaluateRetrieval
    from beir.retrieval.search.dense import DenseRetrievalExactSearch

    corpus, queries, qrels = collection
    search = DenseRetrievalExactSearch(BeirModel(model, size), batch_size=16, show_progress_bar=False)
    retriever = EvaluateRetrieval(search, k_values=[10], score_function="dot")
    ndcg, *_ = retriever.evaluate(qrels, retriever.retrieve(corpus, queries), [10])
    assert ndcg["NDCG@10"] == pytest.approx(our_ndcg(model, size, collection), abs=1e-5)  # beir rounds to 5 digits
    assert 0.05 < ndcg["NDCG@10"] < 0.999


def test_beir_corpora_of_every_shape(model):
    client = BeirModel(model, "2:8")
    passages = [{"title": "w1 w2", "text": "w3"}, {"text": "w4"}]
    vectors = client.encode_corpus(passages)
    assert isinstance(vectors, np.ndarray) and vectors.shape == (2, 8)
    columns = {"title": ["w1 w2", ""], "text": ["w3", "w4"]}
    np.testing.assert_array_equal(client.encode_corpus(columns), vectors)
    np.testing.assert_array_equal(client.encode_corpus(["w1 w2 w92 w3", "w4"]), vectors)
    assert client.encode_queries(["w1"], 4, convert_to_tensor=True).tolist() == client.encode_queries(["w1"]).tolist()


@pytest.fixture(scope="module")
def mteb():
    return pytest.importorskip("mteb", minversion="2.0", reason="needs the package mteb 2")


@pytest.mark.parametrize("size", slow_except(["2:8"], SIZES))
def test_mteb_retrieval_as_we_do(mteb, model, size, collection):
    result = mteb.evaluate(MtebModel(model, size), retrieval_task(collection), cache=None, show_progress_bar=False)
    found = result.task_results[0].get_score()
    assert found == pytest.approx(our_ndcg(model, size, collection), abs=1e-5)


def test_mteb_sts_as_we_do(mteb, model, tmp_path):
    rows = made_pairs()
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    ours = {
        str(cell.size): cell.value for cell in sts(StsArguments(str(model), data=[str(tmp_path / "p.jsonl")])).cells
    }
    for size in SIZES:
        result = mteb.evaluate(MtebModel(model, size), sts_task(rows), cache=None, show_progress_bar=False)
        assert result.task_results[0].get_score() == pytest.approx(ours[size], abs=1e-4)
    assert ours["2:8"] != ours["4:32"]


def test_mteb_keeps_sizes_apart(mteb, model):
    from mteb.models import EncoderProtocol

    small, large = MtebModel(model, "2:8"), MtebModel(model)
    assert isinstance(small, EncoderProtocol)
    assert large.size == Size(4, 32)
    assert small.mteb_model_meta != large.mteb_model_meta
    assert (small.mteb_model_meta.embed_dim, large.mteb_model_meta.embed_dim) == (8, 32)
    vectors = small.embed_passages(["w1", "w2 w3"])
    np.testing.assert_allclose(small.similarity(vectors, vectors[0]), vectors @ vectors[:1].T, rtol=1e-5)
    np.testing.assert_allclose(small.similarity_pairwise(vectors, vectors), (vectors**2).sum(1), rtol=1e-5)


@pytest.fixture(scope="module")
def fitted_model(tiny_bert, tmp_path_factory):
    """A fitted model with prefixes and lengths of its own."""
    encoder = load(tiny_bert, query_prefix="w90 ", passage_prefix="w91 ", passage_field_separator=" w92 ")
    folder = tmp_path_factory.mktemp("fitted")
    fitted(encoder)[0].save_pretrained(folder)
    return folder


@pytest.mark.parametrize("size", slow_except(["0:8", "2:8"], ["0:8", "2:8", "4:32"]))
def test_fitted_models_serve_both_at_every_layer(mteb, fitted_model, collection, size):
    corpus, queries, _ = collection
    encoder, (layer, dim) = NestedEncoder.from_pretrained(fitted_model), map(int, size.split(":"))
    beir_model, mteb_model = BeirModel(fitted_model, size), MtebModel(fitted_model, size)
    texts = [f"{p['title']} w92 {p['text']}" if p["title"] else p["text"] for p in corpus.values()]
    passages = encoder.encode(texts, size)[Size(layer, dim)]
    np.testing.assert_allclose(beir_model.encode_corpus(list(corpus.values())), passages, atol=1e-6)
    batch = {"title": [p["title"] for p in corpus.values()], "body": [p["text"] for p in corpus.values()]}
    np.testing.assert_allclose(mteb_model.encode([batch]), passages, atol=1e-6)
    found = mteb_model.encode([{"text": list(queries.values())}], prompt_type="query")
    np.testing.assert_allclose(
        found, encoder.encode(list(queries.values()), size, is_query=True)[Size(layer, dim)], atol=1e-6
    )
    meta = mteb_model.mteb_model_meta
    assert meta.revision == encoder.fingerprint(layer)
    assert (meta.embed_dim, meta.n_parameters) == (dim, count_parameters(encoder, Size(layer, dim)))
    assert MtebModel(encoder, size).mteb_model_meta.n_parameters == meta.n_parameters  # of the layers that run


def test_layer_0_of_an_unfitted_model_is_refused(model):
    with pytest.raises(UserError, match=r"0:8|layer 0"):
        BeirModel(model, "0:8")


def test_refusals(model):
    with pytest.raises(UserError, match="needs 64 dimensions"):
        BeirModel(model, "2:64")
    with pytest.raises(UserError, match="layer 9"):
        MtebModel(model, "9:8")
    with pytest.raises(UserError, match="cannot read the size"):
        MtebModel(model, "large")


def test_an_open_encoder_serves_several_sizes(model):
    encoder = NestedEncoder.from_pretrained(model)
    small, large = (BeirModel(encoder, size) for size in SIZES)
    np.testing.assert_array_equal(BeirModel(model, SIZES[1]).encode_queries(["w1 w2"]), large.encode_queries(["w1 w2"]))
    assert small.encode_queries(["w1"]).shape == (1, 8)


def test_the_registry_opens_consumers_and_takes_more(model, monkeypatch):
    monkeypatch.setattr(CONSUMERS, "_entries", dict(CONSUMERS._entries))
    assert isinstance(CONSUMERS["beir"](model, "2:8"), BeirModel) and CONSUMERS["mteb"] is MtebModel

    class Listing(SizedModel):
        def embed(self, texts):
            return self.embed_passages(texts).tolist()

    CONSUMERS.register("lists", Listing, help="lists of numbers")
    assert list(CONSUMERS) == ["beir", "mteb", "lists"]
    assert len(CONSUMERS["lists"](model, "2:8").embed(["w1"])[0]) == 8
    with pytest.raises(UserError, match="unknown embedding consumer 'bier'"):
        CONSUMERS["bier"]
