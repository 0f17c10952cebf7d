"""A model whose queries and passages are of different depth, from training to tables."""

import json

import numpy as np
import pytest

from starbucks_retrieval import NestedEncoder, Size
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.data import read_run
from starbucks_retrieval.encode.__main__ import main as encode
from starbucks_retrieval.evaluate.__main__ import main as evaluate
from starbucks_retrieval.integrations import BeirModel
from starbucks_retrieval.metrics.results import read_results
from starbucks_retrieval.mine.__main__ import main as mine
from starbucks_retrieval.report.__main__ import main as report
from starbucks_retrieval.search import Searcher
from starbucks_retrieval.search.__main__ import main as search
from starbucks_retrieval.store.__main__ import main as store
from starbucks_retrieval.train.__main__ import main as train

PAIRS = {"1:8": "4:8", "2:16": "4:16", "4:32": "4:32"}


def did(door, *words):
    assert run_command(door, [*map(str, words), "--quiet"]) == 0


def texts(data, name):
    return [json.loads(line)["text"] for line in (data / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def made(tiny_bert, tmp_path_factory):
    """data: a BEIR folder; model: trained with passages of the last layer; q, p: its stores, of all sizes."""
    folder = tmp_path_factory.mktemp("depths")
    data = folder / "data"
    (data / "qrels").mkdir(parents=True)
    rng = np.random.default_rng(0)
    words = [[f"w{i}" for i in rng.integers(0, 95, 6)] for _ in range(30)]
    corpus = [{"_id": f"d{i}", "title": "", "text": " ".join(own)} for i, own in enumerate(words)]
    queries = [{"_id": f"q{i}", "text": " ".join(own[:3])} for i, own in enumerate(words[:10])]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(10))]
    for split in ("train", "test"):
        (data / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    flags = "--sizes 1:8,2:16,4:32 --passage_layers last --train_group_size 1 --max_steps 2 --save_strategy no"
    flags += " --per_device_train_batch_size 5 --eval_steps 1 --eval_dataset_split test --load_best_model_at_end false"
    where = ["--dataset_path", data, "--eval_dataset_path", data, "--output_dir", folder / "model"]
    did(train, "--model_name_or_path", tiny_bert, *where, *flags.split())
    for name, more in (("p", []), ("q", ["--encode_is_query"])):
        where = [
            "--model_name_or_path",
            folder / "model",
            "--dataset_path",
            data,
            "--encode_output_path",
            folder / name,
        ]
        did(encode, *where, "--store_dtype", "float32", "--dtype", "fp32", *more)
    return folder


@pytest.fixture(scope="module")
def expected(made):
    """{size of queries: scores [queries, passages]} by the model itself."""
    encoder = NestedEncoder.from_pretrained(made / "model", device="cpu")
    passages = encoder.encode(texts(made / "data", "corpus.jsonl"), ",".join(PAIRS.values()))
    queries = encoder.encode(texts(made / "data", "queries.jsonl"), ",".join(PAIRS), is_query=True)
    return {size: queries[Size.parse(size)] @ passages[Size.parse(other)].T for size, other in PAIRS.items()}


def test_the_model_and_its_stores_tell_their_depths(made, capsys):
    assert json.loads((made / "model" / "starbucks.json").read_text())["passage_layers"] == {"1": 4, "2": 4}
    config = NestedEncoder.from_pretrained(made / "model", layers=2).config
    assert config.passage_size(Size(2, 16)) == Size(4, 16)
    assert config.query_sizes(Size(4, 16)) == [Size(1, 16), Size(2, 16), Size(4, 16)]
    assert sorted(path.name for path in (made / "p").iterdir()) == ["L4-D16", "L4-D32", "L4-D8"]
    assert sorted(path.name for path in (made / "q").iterdir()) == ["L1-D8", "L2-D16", "L4-D32"]
    did(store, "info", made / "q" / "L2-D16")
    assert "(queries/passages): 1:8/4:8, 2:16/4:16." in (made / "model" / "README.md").read_text()
    assert "10 queries at 2:16 for passages at 4:16" in capsys.readouterr().out


def test_the_dev_set_is_scored_as_search_would(made):
    history = json.loads((made / "model" / "training.json").read_text())["history"]
    last = [entry for entry in history if "eval_nDCG@10/2:16" in entry][-1]
    did(search, *stores(made), "--size", "2:16", "--save_ranking_to", made / "dev.trec")
    did(
        evaluate,
        "--run",
        made / "dev.trec",
        "--qrels",
        made / "data",
        "--measures",
        "nDCG@10",
        "--output",
        made / "dev",
    )
    assert read_results(made / "dev").cells[0].value == pytest.approx(last["eval_nDCG@10/2:16"], abs=1e-6)


def stores(made):
    return ["--query_reps", made / "q", "--passage_reps", made / "p"]


def test_search_finds_what_the_model_says(made, expected, tmp_path):
    did(search, *stores(made), "--sizes", "all", "--save_ranking_to", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["L1-D8.trec", "L2-D16.trec", "L4-D32.trec"]
    for size, scores in expected.items():
        name = size.replace(":", "-D")
        run = read_run(tmp_path / f"L{name}.trec")
        for line, ranking in zip(scores, run.values()):
            found = [ranking[f"d{i}"] for i in range(30)]
            np.testing.assert_allclose(found, line, rtol=1e-4, atol=1e-5)
    tag = (tmp_path / "L2-D16.trec").read_text().split("\n")[0].split(" ")[-1]
    assert tag == "starbucks-2:16/4:16"
    # One size alone, by another engine, through an index that looks at all, and through a funnel that keeps all.
    whole = (tmp_path / "L2-D16.trec").read_bytes()
    for more in (["--engine", "torch"], ["--index", "SQ8", "--rescore", "30"]):
        did(search, *stores(made), "--size", "2:16", "--save_ranking_to", tmp_path / "run", *more)
        assert (tmp_path / "run").read_bytes() == whole
    did(search, *stores(made), "--funnel", "1:8@30,2:16@30", "--save_ranking_to", tmp_path / "run")
    assert (tmp_path / "run").read_text().replace("1:8@30,2:16@30", "2:16/4:16").encode() == whole
    # The passages of 1:8, if they were not stored, are cut from wider ones of their layer.
    narrow = ["--query_reps", made / "q", "--passage_reps", made / "p" / "L4-D32"]
    did(search, *narrow, "--funnel", "1:8@30,4:32", "--save_ranking_to", tmp_path / "run")
    flags = [*stores(made), "--save_ranking_to", tmp_path / "dry", "--dry_run"]
    for more in (["--size", "2:16"], ["--sizes", "all"], ["--funnel", "1:8@30,2:16@30"]):
        did(search, *flags, *more)
    assert not (tmp_path / "dry").exists()


def test_what_was_not_trained_together_is_refused(made, tiny_bert, tmp_path, capsys):
    def refused(queries, passages, *more):
        words = ["--query_reps", queries, "--passage_reps", passages, "--save_ranking_to", tmp_path / "run", *more]
        assert run_command(search, [*map(str, words)]) == 2
        assert not (tmp_path / "run").exists()
        return capsys.readouterr().err

    def encoded(name, model, *more):
        where = [
            "--dataset_path",
            made / "data",
            "--encode_output_path",
            tmp_path / name,
            "--store_dtype",
            "float32",
            "--dtype",
            "fp32",
        ]
        did(encode, "--model_name_or_path", model, *where, *more)
        return tmp_path / name

    queries = made / "q" / "L2-D16"
    same = encoded("same", made / "model", "--sizes", "2:16")
    assert "queries at 2:16 of this model are scored against passages at 4:16, these are at 2:16" in refused(
        queries, same
    )
    assert "4:16" in refused(made / "q", same, "--size", "2:16")
    assert "these are at 4:8" in refused(queries, made / "p" / "L4-D8")
    # Another model of the same shape, which tells nothing of its lower layers, or tells of others.
    plain = encoded("plain", tiny_bert, "--sizes", "4:16")
    assert "do not record the fingerprints" in refused(queries, plain)
    other = tmp_path / "other"
    NestedEncoder.from_pretrained(tiny_bert).save_pretrained(other)
    (other / "starbucks.json").write_text((made / "model" / "starbucks.json").read_text())
    assert "different models" in refused(queries, encoded("others", other, "--sizes", "4:16"))
    # Queries of a model that has one depth for both, against passages that lie deeper.
    assert "differ in size: 2:16 and 4:16" in refused(
        encoded("lone", tiny_bert, "--sizes", "2:16", "--encode_is_query"), made / "p" / "L4-D16"
    )


@pytest.mark.slow
def test_milvus_takes_the_passages_layer(made, expected, tmp_path):
    pytest.importorskip("milvus_lite")
    for where in (["--size", "2:16"], ["--query_size", "2:16", "--size", "4:16"], ["--funnel", "1:8@30,2:16@30"]):
        milvus = ["--engine", "milvus", "--uri", tmp_path / "x.db", "--save_ranking_to", tmp_path / "run"]
        did(search, *stores(made), *where, *milvus)
        for line, ranking in zip(expected["2:16"], read_run(tmp_path / "run").values()):
            np.testing.assert_allclose([ranking[f"d{i}"] for i in range(30)], line, rtol=1e-4, atol=1e-5)


def test_a_model_without_the_passages_layers_asks_as_the_whole_one(made, tmp_path):
    NestedEncoder.from_pretrained(made / "model", layers=2).save_pretrained(tmp_path / "small")
    where = [
        "--dataset_path",
        made / "data",
        "--encode_output_path",
        tmp_path / "q",
        "--store_dtype",
        "float32",
        "--dtype",
        "fp32",
    ]
    did(encode, "--model_name_or_path", tmp_path / "small", *where, "--encode_is_query")
    for queries, name in ((tmp_path / "q", "small"), (made / "q", "whole")):
        words = ["--passage_reps", made / "p", "--size", "2:16", "--save_ranking_to", tmp_path / f"{name}.trec"]
        did(search, "--query_reps", queries, *words)
    assert (tmp_path / "small.trec").read_bytes() == (tmp_path / "whole.trec").read_bytes()
    hits = Searcher(tmp_path / "small", made / "p", size=Size(2, 16)).search(
        texts(made / "data", "queries.jsonl")[0], 5
    )
    assert [hit.docid for hit in hits] == list(read_run(tmp_path / "whole.trec")["q0"])[:5]


def test_typed_queries(made, expected, tmp_path, capsys):
    query = texts(made / "data", "queries.jsonl")[3]
    searcher = Searcher(made / "model", made / "p", size=Size(1, 8))
    assert Size(2, 16) in searcher.stored_sizes
    for size in PAIRS:
        searcher.use(Size.parse(size))
        hits = searcher.search(query, 30)
        found = [hit.score for hit in sorted(hits, key=lambda hit: int(hit.docid[1:]))]
        np.testing.assert_allclose(found, expected[size][3], rtol=1e-4, atol=1e-5)
    words = ["--model_name_or_path", made / "model", "--passage_reps", made / "p", "--query", query]
    did(search, *words, "--funnel", "1:8@30,2:16")
    # Passages at 4:16 alone do not say which of their queries are meant.
    words[3] = made / "p" / "L4-D16"
    assert run_command(search, [*map(str, words)]) == 2
    assert "are searched at 1:16, 2:16, 4:16" in capsys.readouterr().err


def test_figures_and_tables(made, tmp_path, capsys):
    did(search, *stores(made), "--sizes", "all", "--save_ranking_to", tmp_path / "ours")
    runs = sorted((tmp_path / "ours").iterdir())
    did(evaluate, "--run", *runs, "--qrels", made / "data", "--measures", "nDCG@10", "--output", tmp_path / "r.json")
    assert "starbucks 2:16/4:16" in capsys.readouterr().out
    results = read_results(tmp_path / "r.json")
    assert results.label == "starbucks"
    assert {str(cell.size): str(cell.passage_size or cell.size) for cell in results.cells} == PAIRS
    did(report, "--input", tmp_path / "r.json", "--output_dir", tmp_path / "tables", "--no_figures")
    table = (tmp_path / "tables" / "by_size.csv").read_text()
    for cell in results.cells:
        assert str(cell.size) in table and f"{cell.value:.4f}"[:5] in table
    assert "(queries/passages): 1:8/4:8, 2:16/4:16." in (tmp_path / "tables" / "index.html").read_text()


def test_other_stages_take_the_passages_layer_too(made, expected, tmp_path):
    model = BeirModel(made / "model", "2:16")
    data = made / "data"
    queries = model.encode_queries(texts(data, "queries.jsonl"))
    passages = model.encode_corpus([{"title": "", "text": text} for text in texts(data, "corpus.jsonl")])
    np.testing.assert_allclose(queries @ passages.T, expected["2:16"], rtol=1e-4, atol=1e-5)
    flags = ["--model_name_or_path", made / "model", "--size", "2:16", "--dtype", "fp32", "--num_negatives", "3"]
    flags += ["--dataset_path", data, "--output_path", tmp_path / "n.jsonl", "--save_scores", "--sampling", "top"]
    did(mine, *flags)
    rows = [json.loads(line) for line in (tmp_path / "n.jsonl").read_text().splitlines()]
    for row, scores in zip(rows, expected["2:16"]):
        number = int(row["query_id"][1:])
        assert row["positive_scores"] == pytest.approx([expected["2:16"][number][number]], rel=1e-4)
        assert len(scores) == 30


def test_a_map_that_cannot_be_read(made, tmp_path, capsys):
    content = json.loads((made / "model" / "starbucks.json").read_text())
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(made / "model" / name)
    (tmp_path / "starbucks.json").write_text(json.dumps(content | {"passage_layers": {"2": "deep"}}))
    where = ["--model_name_or_path", tmp_path, "--dataset_path", made / "data", "--encode_output_path", tmp_path / "x"]
    assert run_command(encode, [*map(str, where)]) == 2
    assert "passage_layers: 2 is 'deep'" in capsys.readouterr().err
