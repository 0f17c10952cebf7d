"""Search over stores of different layers of a fitted model: every engine against numpy's products, and refusals."""

import dataclasses
import io
import json

import numpy as np
import pytest

from starbucks_retrieval import NestedEncoder, Size, Sizes
from starbucks_retrieval.choose.__main__ import main as choose
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.data import read_run
from starbucks_retrieval.data.run_reader import read_tag
from starbucks_retrieval.encode.__main__ import main as encode
from starbucks_retrieval.evaluate.__main__ import main as evaluate
from starbucks_retrieval.grid.__main__ import main as grid
from starbucks_retrieval.metrics.results import read_results
from starbucks_retrieval.models.fitter import Fitter
from starbucks_retrieval.report.__main__ import main as report
from starbucks_retrieval.search import Searcher
from starbucks_retrieval.search.__main__ import main as search
from starbucks_retrieval.store import open_store

COUNT, QUERIES = 40, 7


def did(command, *words):
    assert run_command(command, [*map(str, words), "--quiet"]) == 0


def encode_flags(model, data, output, sizes, *more):
    flags = ["--model_name_or_path", model, "--dataset_path", data, "--encode_output_path", output, "--sizes", sizes]
    return [*flags, "--store_dtype", "float32", "--dtype", "fp32", *more]


def fit(base, folder, layers=None):
    encoder = NestedEncoder.from_pretrained(base, device="cpu")
    encoder.config = dataclasses.replace(encoder.config, pooling="mean", normalize=True, sizes=Sizes.parse("4:32"))
    rng = np.random.default_rng(0)
    fitter = Fitter(encoder, layers=layers)
    fitter.add([[2, *rng.integers(5, 100, 12).tolist(), 3] for _ in range(100)])
    encoder.projections, _ = fitter.finish()
    encoder.config = dataclasses.replace(encoder.config, projected_layers=encoder.projections.layers)
    encoder.save_pretrained(folder)
    return folder


def texts(data, name):
    return [json.loads(line)["text"] for line in (data / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def made(tiny_bert, tmp_path_factory):
    """model: fitted; data: a BEIR folder; p: passages at 2:16 and 4:32; q: queries at 0:32, 1:32 and 4:32."""
    folder = tmp_path_factory.mktemp("fitted")
    fit(tiny_bert, folder / "model")
    data = folder / "data"
    (data / "qrels").mkdir(parents=True)
    rng = np.random.default_rng(1)
    words = [[f"w{i}" for i in rng.integers(0, 95, 8)] for _ in range(COUNT)]
    corpus = [{"_id": f"d{i}", "title": "", "text": " ".join(own)} for i, own in enumerate(words)]
    queries = [{"_id": f"q{i}", "text": " ".join(own[:4])} for i, own in enumerate(words[:QUERIES])]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(QUERIES))]
    (data / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    did(encode, *encode_flags(folder / "model", data, folder / "p", "2:16,4:32"))
    did(encode, *encode_flags(folder / "model", data, folder / "q", "0:32,1:32,4:32", "--encode_is_query"))
    return folder


@pytest.fixture(scope="module")
def expected(made):
    """A function: scores [queries, passages] of a size of the queries and one of the passages, by numpy."""
    encoder = NestedEncoder.from_pretrained(made / "model", device="cpu")

    def scores(query_size, size):
        queries = encoder.encode(texts(made / "data", "queries.jsonl"), query_size, is_query=True)
        passages = encoder.encode(texts(made / "data", "corpus.jsonl"), size)
        return queries[Size.parse(query_size)].astype(float) @ passages[Size.parse(size)].astype(float).T

    return scores


@pytest.fixture
def searched(made, tmp_path):
    def run(*more, passages="p", queries="q"):
        stores = ["--query_reps", made / queries, "--passage_reps", made / passages]
        did(search, *stores, "--save_ranking_to", tmp_path / "run", *more)
        ranked = read_run(tmp_path / "run")
        return np.array([[scores[f"d{i}"] for i in range(COUNT)] for scores in ranked.values()])

    return run


def close(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


PAIRS = [("0:32", "4:32"), ("1:32", "4:32"), ("1:8", "4:8"), ("0:16", "2:16"), ("4:16", "2:16"), ("4:8", "4:8")]


@pytest.mark.parametrize(("query_size", "size"), PAIRS)
def test_scores_are_the_products_of_the_two_layers(searched, expected, tmp_path, query_size, size):
    found = searched("--query_size", query_size, "--size", size)
    close(found, expected(query_size, size))
    pair = size if query_size == size else f"{query_size}/{size}"
    assert read_tag(tmp_path / "run") == f"starbucks-{pair}"


def test_stores_of_one_layer_each_need_no_flag(searched, expected):
    close(searched(queries="q/L1-D32", passages="p/L4-D32"), expected("1:32", "4:32"))
    close(searched("--query_size", "0:32", passages="p/L4-D32"), expected("0:32", "4:32"))
    close(searched("--query_size", "0:8", passages="p/L4-D32"), expected("0:8", "4:8"))


@pytest.mark.parametrize("more", [("--engine", "torch"), ("--index", "SQ8", "--rescore", "40")])
def test_every_engine_finds_the_same(searched, made, tmp_path, more):
    pair = ("--query_size", "1:16", "--size", "4:16")
    searched(*pair)
    exact = (tmp_path / "run").read_bytes()
    searched(*pair, *more)
    assert (tmp_path / "run").read_bytes() == exact


@pytest.mark.slow
def test_ray_searches_cut_stores_of_two_layers(searched, expected):
    pytest.importorskip("ray")
    close(searched("--query_size", "0:16", "--size", "4:16", "--engine", "ray"), expected("0:16", "4:16"))


def test_milvus_searches_stores_of_two_layers(searched, expected, tmp_path):
    pytest.importorskip("milvus_lite")
    milvus = ("--engine", "milvus", "--uri", tmp_path / "p.db")
    close(searched("--query_size", "1:32", "--size", "4:32", *milvus), expected("1:32", "4:32"))
    funnel = searched("--query_size", "1:32", "--funnel", "2:16@40,4:32@40", *milvus)
    close(funnel, expected("1:32", "4:32"))


def test_a_funnel_takes_queries_of_one_layer_for_all_steps(searched, expected, tmp_path):
    found = searched("--query_size", "1:32", "--funnel", "2:16@40,4:32@40")
    close(found, expected("1:32", "4:32"))
    assert read_tag(tmp_path / "run") == "starbucks-1:16/2:16@40,1:32/4:32@40"
    whole = (tmp_path / "run").read_bytes()
    searched("--funnel", "1:16/2:16@40,1:32/4:32@40")
    assert (tmp_path / "run").read_bytes() == whole
    close(searched("--funnel", "0:16/2:16@40,4:32@40"), expected("4:32", "4:32"))


def test_a_funnel_is_chosen_for_queries_of_one_layer(made, tmp_path):
    stores = ["--query_reps", made / "q", "--passage_reps", made / "p", "--save_ranking_to", tmp_path / "run"]
    did(search, *stores, "--query_size", "1:32", "--funnel", "auto", "--qrels", made / "data", "--depth", "5")
    assert read_tag(tmp_path / "run").endswith("1:32/4:32@5")


def test_several_sizes_take_their_dims_of_the_queries(made, expected, tmp_path):
    stores = ["--query_reps", made / "q", "--passage_reps", made / "p"]
    did(search, *stores, "--query_size", "1:32", "--sizes", "all", "--save_ranking_to", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["L2-D16.trec", "L4-D32.trec"]
    assert read_tag(tmp_path / "L2-D16.trec") == "starbucks-1:16/2:16"
    did(search, *stores, "--query_size", "1:32", "--size", "4:32", "--save_ranking_to", tmp_path / "x", "--dry_run")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--query_size", "1:16", "--size", "4:32"], "--query_size 1:16 and --size 4:32 differ in dim"),
        (["--query_size", "1:16", "--sizes", "4:32"], "--query_size 1:16 has fewer dims than the passages at 4:32"),
        (["--query_size", "1:16", "--funnel", "2:16@9,4:32"], "--query_size 1:16 has fewer dims than"),
        (["--funnel", "1:16/4:32@9,4:32"], "the step 1:16/4:32@9 compares 16 with 32 dimensions"),
        (["--query_size", "3:32", "--size", "4:32"], "has no size 3:32, nor a wider one of its layer"),
        (["--query_size", "1:16"], "does not say which passages are searched: they are stored at 2:16, 4:32"),
        (["--query_size", "1:64"], "no passages have the 64 dims of --query_size 1:64"),
        (["--size", "2:16"], "passages of any layer can be searched with --query_size 0:32"),
        (["--query_size", "deep", "--size", "4:32"], "cannot read the size 'deep'"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(made, tmp_path, capsys, more, what):
    stores = ["--query_reps", made / "q", "--passage_reps", made / "p", "--save_ranking_to", tmp_path / "run"]
    assert run_command(search, [*map(str, [*stores, *more])]) == 2
    assert what in capsys.readouterr().err.replace("\n  ", " ")
    assert not (tmp_path / "run").exists()


def test_stores_of_another_fit_and_of_no_fit_are_refused(made, tiny_bert, tmp_path, capsys):
    def refused(queries, *more):
        words = ["--query_reps", queries, "--passage_reps", made / "p", "--size", "4:32", *more]
        assert run_command(search, [*map(str, [*words, "--save_ranking_to", tmp_path / "run"])]) == 2
        assert not (tmp_path / "run").exists()
        return capsys.readouterr().err

    other = fit(tiny_bert, tmp_path / "other", layers=[1])
    did(encode, *encode_flags(other, made / "data", tmp_path / "q1", "1:32,4:32", "--encode_is_query"))
    spaces = [open_store(path, Size(4, 32)).spec.shared_space for path in (tmp_path / "q1", made / "p")]
    assert f"not in one space: {spaces[0]} and {spaces[1]}" in refused(tmp_path / "q1", "--query_size", "1:32")
    did(encode, *encode_flags(tiny_bert, made / "data", tmp_path / "q2", "1:32", "--encode_is_query"))
    assert f"not in one space: none and {spaces[1]}" in refused(tmp_path / "q2", "--query_size", "1:32")
    # The map of the last layer is the same in both fits, so stores of that layer belong together.
    words = ["--query_reps", tmp_path / "q1", "--passage_reps", made / "p", "--size", "4:32"]
    did(search, *words, "--save_ranking_to", tmp_path / "run")


def test_a_grid_of_layer_pairs_is_what_search_finds_and_choose_and_report_read_it(made, tmp_path, capsys):
    flags = ["--model_name_or_path", made / "model", "--dataset_path", made / "data", "--asymmetric", "--layers", "0,4"]
    did(grid, *flags, "--dims", "32", "--output", tmp_path / "grid.json", "--label", "m")
    assert "query \\ passage layer" in capsys.readouterr().out
    cells = {
        (str(cell.size), str(cell.passage_size)): cell.value for cell in read_results(tmp_path / "grid.json").cells
    }
    stores = ["--query_reps", made / "q", "--passage_reps", made / "p"]
    did(search, *stores, "--query_size", "0:32", "--size", "4:32", "--save_ranking_to", tmp_path / "run.trec")
    run = ["--run", tmp_path / "run.trec", "--qrels", made / "data", "--measures", "nDCG@10"]
    did(evaluate, *run, "--output", tmp_path / "run.json")
    [found] = read_results(tmp_path / "run.json").cells
    assert cells["0:32", "4:32"] == pytest.approx(found.value, abs=1e-6)
    did(choose, "--input", tmp_path / "grid.json")
    assert "0:32/4:32" in capsys.readouterr().out
    did(report, "--input", tmp_path / "grid.json", "--output_dir", tmp_path / "report", "--no_figures")
    assert f"{cells['0:32', '4:32']:.4f}" in (tmp_path / "report" / "layer_pairs.md").read_text()
    assert "Queries at one layer, passages at another" in (tmp_path / "report" / "index.html").read_text()


def test_a_typed_query_is_encoded_at_its_own_layer(made, expected):
    query = texts(made / "data", "queries.jsonl")[3]
    searcher = Searcher(made / "model", made / "p", size=Size(4, 32), query_size=Size(0, 32))
    assert (searcher.encoder.num_layers, searcher.encoder.config.projected_layers) == (1, (0,))

    def scores():
        hits = searcher.search(query, COUNT)
        return [hit.score for hit in sorted(hits, key=lambda hit: int(hit.docid[1:]))]

    close(scores(), expected("0:32", "4:32")[3])
    searcher.use(funnel="0:16/2:16@40,1:32/4:32@40")
    assert searcher.encoder.num_layers == 1
    close(scores(), expected("1:32", "4:32")[3])
    only = Searcher(made / "model", made / "p" / "L4-D32", query_size=Size(1, 8))
    assert (only.size, only.encoder.num_layers) == (Size(4, 8), 1)


def test_a_folder_of_the_query_layer_alone_searches_deep_passages(made, expected, tmp_path):
    NestedEncoder.from_pretrained(made / "model", layers=0).save_pretrained(tmp_path / "small")
    searcher = Searcher(tmp_path / "small", made / "p" / "L4-D32", query_size=Size(0, 32))
    hits = searcher.search(texts(made / "data", "queries.jsonl")[2], 3)
    close([hit.score for hit in hits], -np.sort(-expected("0:32", "4:32")[2])[:3])


def test_a_typed_query_of_another_space_is_refused(made, tiny_bert, tmp_path, capsys, monkeypatch):
    flags = ["--passage_reps", made / "p", "--size", "4:32", "--query_size", "1:32", "--query", "w1 w2"]
    for model in (fit(tiny_bert, tmp_path / "other", layers=[1]), tiny_bert):
        assert run_command(search, [*map(str, flags), "--model_name_or_path", str(model)]) == 2
        assert "queries at 1:32 and passages at 4:32 are not in one space" in capsys.readouterr().err
    did(search, *flags, "--model_name_or_path", made / "model")
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO("w1 w2\n:size 0:32/4:32\n:size 1:32\n\n"))
    did(search, *flags[:-2], "--interactive", "--model_name_or_path", made / "model")
    said = capsys.readouterr().err
    assert "searching at 0:32/4:32" in said and "no size 1:32" in said
