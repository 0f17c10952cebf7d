"""NestedEncoder.at in sentence-transformers' own functions, and directly in beir and mteb: our own figures."""

import json

import numpy as np
import pytest
from conftest import slow_except
from fitted_models import fitted, load
from made_tasks import made_collection, made_pairs, ndcg, retrieval_task, sts_task

from starbucks_retrieval import NestedEncoder, Size
from starbucks_retrieval.sts import StsArguments, sts

SIZES = ["0:8", "2:8", "4:32", "1:16/4:16"]


@pytest.fixture(scope="module", params=[True, False], ids=["cosine", "dot"])
def encoder(request, tiny_bert, tmp_path_factory):
    """A fitted model with prefixes and lengths of its own."""
    settings = {"query_prefix": "w90 ", "passage_prefix": "w91 ", "query_max_len": 12, "passage_max_len": 20}
    folder = tmp_path_factory.mktemp("fitted")
    fitted(load(tiny_bert, normalize=request.param, **settings))[0].save_pretrained(folder)
    return NestedEncoder.from_pretrained(folder, device="cpu")


@pytest.fixture(scope="module")
def collection():
    """A collection without titles, whose judgements are all 1."""
    corpus, queries, qrels = made_collection()
    return (
        {key: {"title": "", "text": passage["text"]} for key, passage in corpus.items()},
        queries,
        {query: dict.fromkeys(grades, 1) for query, grades in qrels.items()},
    )


def expected_ndcg(encoder, size, collection):
    query_size, _, passage_size = size.partition("/")
    return ndcg(encoder, query_size, collection, passage_size or query_size)


@pytest.fixture(scope="module")
def evaluation():
    pytest.importorskip("sentence_transformers", minversion="5.0", reason="needs sentence-transformers 5")
    from sentence_transformers import evaluation

    return evaluation


@pytest.mark.parametrize("size", slow_except(["0:8", "1:16/4:16"], SIZES))
def test_information_retrieval_evaluator(evaluation, encoder, collection, size):
    corpus, queries, qrels = collection
    evaluator = evaluation.InformationRetrievalEvaluator(
        queries,
        {key: passage["text"] for key, passage in corpus.items()},
        {query: set(grades) for query, grades in qrels.items()},
        name="made",
    )
    figures = evaluator(encoder.at(size))
    kind = "cosine" if encoder.config.normalize else "dot"
    expected = expected_ndcg(encoder, size, collection)
    assert figures[f"made_{kind}_ndcg@10"] == pytest.approx(expected, abs=1e-6)
    assert 0.05 < expected < 0.999


@pytest.mark.parametrize("size", slow_except(["2:8"], SIZES[:3]))
def test_embedding_similarity_evaluator(evaluation, encoder, size, tmp_path):
    rows = made_pairs()
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = ([row[name] for row in rows] for name in ("sentence1", "sentence2", "score"))
    figures = evaluation.EmbeddingSimilarityEvaluator(*columns, main_similarity="cosine")(encoder.at(size))
    [cell] = sts(StsArguments(encoder.name, sizes=size, data=[str(tmp_path / "p.jsonl")])).cells
    assert figures["spearman_cosine"] == pytest.approx(cell.value, abs=1e-5)


def test_other_evaluators_and_functions(evaluation, encoder, collection):
    from sentence_transformers import util

    model, texts = encoder.at("2:8"), list(collection[1].values())
    # Which similarities these compute, and under which names, depends on the version.
    for evaluator in (
        evaluation.TripletEvaluator(texts, texts, texts[::-1]),
        evaluation.BinaryClassificationEvaluator(texts * 2, [*texts, *texts[::-1]], [1] * 12 + [0] * 12),
    ):
        figures = evaluator(model)
        assert figures[evaluator.primary_metric] > 0.5
    assert len(util.paraphrase_mining(model, texts, top_k=1)) >= 6
    passages = [passage["text"] for passage in collection[0].values()]
    hits = util.semantic_search(
        model.encode_query(texts),
        model.encode_document(passages, convert_to_tensor=True),
        score_function=util.dot_score,
    )
    scores = encoder.encode(texts, "2:8", is_query=True)[Size(2, 8)] @ encoder.encode(passages, "2:8")[Size(2, 8)].T
    assert [hit[0]["corpus_id"] for hit in hits] == scores.argmax(1).tolist()


@pytest.mark.parametrize("size", slow_except(["1:16/4:16"], SIZES))
def test_beir(encoder, collection, size):
    pytest.importorskip("beir", reason="needs the package beir")
    from beir.retrieval.evaluation import EvaluateRetrieval
    from beir.retrieval.search.dense import DenseRetrievalExactSearch

    corpus, queries, qrels = collection
    search = DenseRetrievalExactSearch(encoder.at(size), batch_size=16, show_progress_bar=False)
    retriever = EvaluateRetrieval(search, k_values=[10], score_function="dot")
    found, *_ = retriever.evaluate(qrels, retriever.retrieve(corpus, queries), [10])
    assert found["NDCG@10"] == pytest.approx(expected_ndcg(encoder, size, collection), abs=1e-5)


@pytest.mark.parametrize("size", slow_except(["2:8"], SIZES))
def test_mteb(encoder, collection, size):
    mteb = pytest.importorskip("mteb", minversion="2.0", reason="needs the package mteb 2")
    model = encoder.at(size)
    result = mteb.evaluate(model, retrieval_task(collection), cache=None, show_progress_bar=False)
    assert result.task_results[0].get_score() == pytest.approx(expected_ndcg(encoder, size, collection), abs=1e-5)
    assert model.mteb_model_meta.experiment_kwargs == {"size": size}
    pairs = mteb.evaluate(model, sts_task(made_pairs()), cache=None, show_progress_bar=False)
    assert np.isfinite(pairs.task_results[0].get_score())
