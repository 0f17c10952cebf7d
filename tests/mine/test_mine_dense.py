"""Candidates by a model, against everything scored at once."""

from __future__ import annotations

import numpy as np
import pytest
from fitted_models import fitted, load

from starbucks_retrieval import NestedEncoder, Size, UserError
from starbucks_retrieval.data import join_text
from starbucks_retrieval.mine import MineArguments, dense
from starbucks_retrieval.mine.dense import BiEncoder

from .conftest import id_row, opened, write_jsonl


def engine(model, tmp_path, **changes):
    settings = {"dataset_path": "g", "output_path": str(tmp_path / "o.jsonl"), "dtype": "fp32", **changes}
    arguments = MineArguments(model_name_or_path=str(model), **settings)
    return BiEncoder(str(model), arguments.model_size, arguments)


def reference(queries, passages, docids, depth):
    """Rows and scores of each query's best, by sorting everything in Python."""
    scores = queries @ passages.T
    rows = [
        sorted(range(len(passages)), key=lambda row: (line[row], docids[row].encode()), reverse=True)[:depth]
        for line in scores
    ]
    return rows, [[line[row] for row in own] for line, own in zip(scores, rows)]


@pytest.fixture
def collection(tmp_path):
    rng = np.random.default_rng(2)
    ids = [f"d{i}" for i in rng.permutation(97)]
    rows = [{"_id": name, "title": "w5" if i % 3 else "", "text": " ".join(f"w{k}" for k in rng.integers(0, 95, 6))}
            for i, name in enumerate(ids)]  # fmt: skip
    corpus = write_jsonl(tmp_path / "corpus.jsonl", rows)
    stray = {"docid": "stray", "title": "", "text": "w1 w2 w3"}
    groups = [id_row(f"q{i}", [ids[i], ids[50 - i]], f"w{i} w{i + 1} w3") for i in range(20)]
    groups.append({"query_id": "inline", "query": "w9", "positive_passages": [stray], "negative_passages": []})
    return opened(write_jsonl(tmp_path / "groups.jsonl", groups), corpus), ids


@pytest.mark.parametrize(
    ("window", "tile", "depth"),
    [
        *((10_000, 2**25, 13), (7, 2**25, 97), (10, 60, 13), (10, 60, 1)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *((10_000, 2**25, 1), (10_000, 2**25, 97), (7, 2**25, 1), (7, 2**25, 13), (10, 60, 97)),
                *((1, 1, depth) for depth in (1, 13, 97)),
            )
        ),
    ],
)
def test_equal_scores_are_ordered_by_docid_however_the_work_is_cut(
    tiny_bert, tmp_path, collection, monkeypatch, window, tile, depth
):
    (topics, corpus, docids), ids = collection
    rng = np.random.default_rng(3)
    # Whole numbers are exact in every order of summing, and few of them make many ties.
    vectors = {True: rng.integers(-1, 2, (21, 4)), False: rng.integers(-1, 2, (98, 4))}
    done = {True: 0, False: 0}

    def embed(self, texts, is_query, label):
        start = done[is_query]
        done[is_query] += len(texts)
        return vectors[is_query][start : done[is_query]].astype(np.float32)

    monkeypatch.setattr(BiEncoder, "_embed", embed)
    monkeypatch.setattr(dense, "_WINDOW", window)
    monkeypatch.setattr(dense, "_SCORES", tile)
    found = engine(tiny_bert, tmp_path).search(topics, corpus, docids, depth)
    rows, scores = reference(vectors[True], vectors[False][:97], ids, depth)
    assert found.rows.tolist() == rows
    assert found.scores.tolist() == scores
    pairs = zip(topics.topic_of_pair(), topics.rows)
    assert found.positive_scores.tolist() == [vectors[True][topic] @ vectors[False][row] for topic, row in pairs]


def test_scores_are_those_of_the_python_api(tiny_bert, tmp_path, collection, monkeypatch):
    (topics, corpus, docids), ids = collection
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    encoder.config = encoder.config.__class__(
        normalize=True, query_prefix="w7 ", passage_prefix="w8 ", passage_field_separator=" w6 ", passage_max_len=9
    )
    encoder.save_pretrained(tmp_path / "model")
    monkeypatch.setattr(dense, "_WINDOW", 40)
    miner = engine(tmp_path / "model", tmp_path, size="2:8", max_tokens_per_batch=64)
    found = miner.search(topics, corpus, docids, 10)
    size = Size(2, 8)
    queries = encoder.encode(topics.texts, [size], is_query=True)[size].astype(np.float64)
    texts = [join_text(p, " w6 ") for p in (*corpus, *topics.out_of_corpus)]
    passages = encoder.encode(texts, [size])[size].astype(np.float64)
    _, scores = reference(queries, passages[:97], ids, 10)
    np.testing.assert_allclose(found.scores, scores, atol=1e-5)
    np.testing.assert_allclose(
        np.take_along_axis(queries @ passages.T, found.rows.astype(int), 1), found.scores, atol=1e-5
    )
    expected = [queries[topic] @ passages[row] for topic, row in zip(topics.topic_of_pair(), topics.rows)]
    np.testing.assert_allclose(found.positive_scores, expected, atol=1e-5)


def test_only_the_layers_asked_for_are_loaded(tiny_bert, tmp_path):
    miner = engine(tiny_bert, tmp_path, size="2:8")
    assert miner.encoder.num_layers == 2
    whole = engine(tiny_bert, tmp_path)
    assert whole.size == Size(4, 32)
    assert miner.identity["fingerprint"] == whole.encoder.fingerprint(2)
    assert miner.identity != engine(tiny_bert, tmp_path, size="2:16").identity


@pytest.mark.parametrize("size", [Size(0, 8), Size(2, 8)], ids=str)
def test_a_fitted_model_mines_at_its_projected_sizes(tiny_bert, tmp_path, collection, size):
    (topics, corpus, docids), ids = collection
    encoder = fitted(load(tiny_bert))[0]
    encoder.save_pretrained(tmp_path / "model")
    miner = engine(tmp_path / "model", tmp_path, size=str(size))
    found = miner.search(topics, corpus, docids, 10)
    queries = encoder.encode(topics.texts, [size], is_query=True)[size].astype(np.float64)
    passages = encoder.encode([join_text(p, " ") for p in corpus], [size])[size].astype(np.float64)
    np.testing.assert_allclose(found.scores, reference(queries, passages, ids, 10)[1], atol=1e-5)
    assert miner.identity["fingerprint"] == encoder.fingerprint(size.layer)
    with pytest.raises(UserError, match="layer 5"):
        engine(tmp_path / "model", tmp_path, size="5:8")


@pytest.mark.parametrize(("size", "message"), [("5:8", "layer 5"), ("2:64", "64 dimensions")])
def test_a_size_out_of_reach_is_refused(tiny_bert, tmp_path, size, message):
    with pytest.raises(UserError, match=message):
        engine(tiny_bert, tmp_path, size=size)


def test_embeddings_that_are_no_numbers_are_refused(tiny_bert, tmp_path, collection):
    (topics, corpus, docids), _ = collection
    miner = engine(tiny_bert, tmp_path)
    next(miner.encoder.backbone.parameters()).data.fill_(float("nan"))
    with pytest.raises(UserError, match="queries hold NaN"):
        miner.search(topics, corpus, docids, 3)
