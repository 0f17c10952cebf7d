"""Cells of a grid are what separate runs give."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import slow_except

from starbucks_retrieval.data import read_qrels
from starbucks_retrieval.data.run_writer import write_run
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.evaluate import EvaluateArguments, evaluate
from starbucks_retrieval.grid import EncodingArguments, GridArguments, costs, grid, search_all_dims
from starbucks_retrieval.grid.all_dims import truncated_views
from starbucks_retrieval.locks import OutputLock
from starbucks_retrieval.metrics.measures import parse_measures, score
from starbucks_retrieval.metrics.results import Results, read_results
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.sentences import grid_dims, grid_layers
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import StoreWriter, open_store

from .conftest import separately

MEASURES = "nDCG@10 RR@10 R@20"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def asked(model, beir, **changes) -> GridArguments:
    values = {"layers": "1,2,4", "dims": "4,8,32", "measures": [MEASURES], "depth": 20}
    return GridArguments(model_name_or_path=str(model), **({"dataset_path": [str(beir)]} | values | changes))


def encoding(**changes) -> EncodingArguments:
    return EncodingArguments(**({"dtype": "fp32", "shard_size": 40} | changes))


@pytest.fixture(scope="module")
def whole(tiny_bert, beir, tmp_path_factory) -> Results:
    """A grid that nothing interrupted."""
    output = tmp_path_factory.mktemp("whole") / "whole.json"
    return grid(asked(tiny_bert, beir, output=str(output)), encoding()).results


def test_two_grids_do_not_share_embeddings_that_one_of_them_deletes(tiny_bert, beir):
    with (
        OutputLock(Path("grid.work/small")),
        pytest.raises(UserError, match=r"another process is writing grid\.work/small"),
    ):
        grid(asked(tiny_bert, beir), encoding())


@pytest.mark.parametrize(
    ("normalize", "sizes"),
    [
        (True, "1:4,2:8,4:32"),
        *(pytest.param(normalize, "1:4,1:32,2:8,4:4,4:32", marks=pytest.mark.slow) for normalize in (True, False)),
    ],
)
def test_every_cell_is_what_three_separate_doors_give(tiny_bert, beir, tmp_path, normalize, sizes):
    options = {"dtype": "fp32", "shard_size": 40, "normalize": normalize}
    measured = grid(asked(tiny_bert, beir, keep_work_dir=True), encoding(normalize=normalize)).results
    cells = {(cell.size, cell.measure): cell for cell in measured.cells}
    assert len(cells) == len(measured.cells) == 3 * 3 * 3
    for size in Sizes.parse(sizes):
        run, scores = separately(
            tiny_bert, beir, tmp_path / str(size.layer * 100 + size.dim), size, MEASURES, **options
        )
        assert scores.keys() == set(MEASURES.split())
        for measure, other in scores.items():
            cell = cells[size, measure]
            assert cell.value == pytest.approx(other.value, abs=1e-9) and cell.count == other.count == 11
            assert cell.values == other.values and cell.dataset == other.dataset
        del run["q11"]  # nobody judged it
        # The deepest layer is computed for the first token alone, so a size differs by rounding from one beside deeper ones.
        ranked = ranking_of(Path("grid.work/small"), size, normalize)
        assert {query_id: list(own) for query_id, own in run.items()} == {
            query_id: [docid for docid, _ in own] for query_id, own in ranked.items()
        }
        for query_id, own in ranked.items():
            assert dict(own) == pytest.approx(run[query_id], rel=1e-5)
    assert len({round(cell.value, 6) for cell in measured.cells}) > 9  # or the comparison would say little


def ranking_of(work: Path, size: Size, normalize: bool) -> dict[str, list[tuple[str, np.float32]]]:
    wide = Size(size.layer, 32)
    queries, passages = open_store(work / "queries-test", wide), open_store(work / "passages", wide)
    every = np.arange(queries.count)
    found = search_all_dims(queries.vectors(every), passages, [4, 8, 32], 20, normalize=normalize)
    [own] = [one for one in found if one.dim == size.dim]
    ids = queries.ids(every)
    return {
        query_id: list(zip(passages.ids(rows), scores)) for query_id, rows, scores in zip(ids, own.rows, own.scores)
    }


@pytest.mark.parametrize("normalize", slow_except([True], [True, False]))
def test_queries_of_every_layer_against_passages_of_every_layer(tiny_bert, beir, normalize):
    flags = encoding(normalize=normalize, max_tokens_per_batch=300)
    measured = grid(
        asked(tiny_bert, beir, asymmetric=True, dims="8,32", max_memory="60KB", keep_work_dir=True), flags
    ).results
    cells = {(cell.size, cell.passage_size, cell.measure): cell.value for cell in measured.cells}
    assert len(cells) == 3 * 3 * 2 * 3
    qrels, measures = read_qrels(str(beir)), parse_measures(MEASURES)
    ids, pooled_layers = {}, {}
    for kind in ("queries-test", "passages"):
        for layer in (1, 2, 4):
            store = open_store(f"grid.work/small/{kind}", Size(layer, 32))
            every = np.arange(store.count)
            ids[kind], pooled_layers[kind, layer] = store.ids(every), store.vectors(every)
    for layer, other, dim in [(1, 4, 32), (4, 1, 8), (2, 2, 8), (4, 4, 32)]:
        sides = pooled_layers["queries-test", layer], pooled_layers["passages", other]
        left, right = (truncated_views(side, dim, normalize).astype(float) for side in sides)
        scores = (left @ right.T).astype(np.float32).astype(float)  # passages of one text tie
        run = {query_id: dict(zip(ids["passages"], line)) for query_id, line in zip(ids["queries-test"], scores)}
        expected = score(qrels, run, [m for m in measures if m.params["cutoff"] == 10]).mean
        for name, value in expected.items():
            assert cells[Size(layer, dim), Size(other, dim), name] == pytest.approx(value, abs=1e-9)
    plain = grid(asked(tiny_bert, beir, dims="8,32"), flags).results
    for cell in plain.cells:
        assert cells[cell.size, cell.size, cell.measure] == cell.value


def test_a_killed_grid_goes_on_where_it_stopped(tiny_bert, beir, whole, monkeypatch):
    write, written = StoreWriter.write_shard, []

    def dying(self, shard, ids, vectors):
        if len(written) == 5:
            raise KeyboardInterrupt
        write(self, shard, ids, vectors)
        written.append((self.folder, shard))

    monkeypatch.setattr(StoreWriter, "write_shard", dying)
    with pytest.raises(KeyboardInterrupt):
        grid(asked(tiny_bert, beir), encoding())
    assert not Path("grid.json").exists()
    before = list(written)
    written.clear()
    monkeypatch.setattr(StoreWriter, "write_shard", lambda *a: (write(*a), written.append((a[0].folder, a[1])))[0])
    assert grid(asked(tiny_bert, beir), encoding()).results.cells == whole.cells
    assert written and not set(written) & set(before)


def test_work_folder_goes_unless_it_is_named(tiny_bert, beir, tmp_path):
    grid(asked(tiny_bert, beir, output="out/a.json", layers="4"), encoding())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.json"]
    grid(asked(tiny_bert, beir, work_dir="kept", layers="4"), encoding())
    assert (tmp_path / "kept/small/passages/L4-D32/manifest.json").is_file()
    (tmp_path / "kept/small/note.txt").write_text("mine")
    grid(asked(tiny_bert, beir, work_dir="kept", layers="4", keep_work_dir=False), encoding())
    assert sorted(path.name for path in (tmp_path / "kept").rglob("*")) == ["note.txt", "small"]


def test_judged_queries_that_are_not_there_count_zero(tiny_bert, beir, tmp_path):
    (tmp_path / "q.txt").write_text((beir / "qrels/test.tsv").read_text() + "gone\td1\t1\n")
    cells = grid(asked(tiny_bert, beir, qrels="q.txt", dims="32", layers="4"), encoding()).results.cells
    _, scores = separately(tiny_bert, beir, tmp_path, Size(4, 32), MEASURES, dtype="fp32")
    assert [cell.count for cell in cells] == [12, 12, 12]
    for cell in cells:
        assert cell.value == pytest.approx(scores[cell.measure].value * 11 / 12)


def test_identical_ids_are_dropped_as_evaluate_drops_them(tiny_bert, beir, tmp_path):
    folder = tmp_path / "own"
    (folder / "qrels").mkdir(parents=True)
    rows = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    (folder / "corpus.jsonl").write_text((beir / "corpus.jsonl").read_text())
    own = [{"_id": row["_id"], "text": row["text"]} for row in rows[:10]]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    lines = [f"{rows[i]['_id']}\t{rows[i + 7]['_id']}\t1" for i in range(10)]
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")
    measured = grid(asked(tiny_bert, folder, remove_identical_ids=True, layers="2", dims="8"), encoding()).results
    run, _ = separately(tiny_bert, folder, tmp_path, Size(2, 8), MEASURES, dtype="fp32")
    assert any(query_id in ranking for query_id, ranking in run.items())
    write_run("again.trec", ((query_id, ranking.items()) for query_id, ranking in run.items()), "again")
    evaluate(
        EvaluateArguments("again.trec", str(folder), measures=MEASURES, remove_identical_ids=True, output="again.json")
    )
    expected = {cell.measure: cell.value for cell in read_results("again.json").cells}
    assert {cell.measure: cell.value for cell in measured.cells} == pytest.approx(expected, abs=1e-9)
    assert "findings" not in measured.more or "identical_ids" not in str(measured.more["findings"])


def test_the_file_tells_costs_and_what_made_it(tiny_bert, beir, ticking, monkeypatch):
    pytest.importorskip("faiss")
    rates = SimpleNamespace(rates={1: SimpleNamespace(scan=lambda dim: dim * 1e-9)})  # seconds a passage
    monkeypatch.setattr(costs, "measure_machine", lambda *_, **__: rates)
    measured = grid(asked(tiny_bert, beir, layers="1,2", dims="4,8", measure_cost=True), encoding())
    results = read_results("grid.json")
    assert results == measured.results and results.kind == "grid" and results.label == tiny_bert.name
    encoding_costs = {"bytes_per_passage", "query_ms", "passage_ms"}
    assert results.more["costs"]["2:8"].keys() == encoding_costs | {"search_ms", "search_ms_per_million"}
    assert [results.more["costs"][size]["search_ms"] for size in ("1:4", "2:8")] == [1000] * 2
    assert [results.more["costs"][size]["search_ms_per_million"] for size in ("1:4", "2:8")] == [4, 8]
    assert results.more["costs_measured"]["search"].keys() == {"passages", "depth", "queries"}
    assert results.more["costs"]["2:8"]["bytes_per_passage"] == 16  # as encode stores, not as a grid measures
    assert results.more["costs"]["1:4"]["query_ms"] == 1000  # a second between two readings of the clock
    assert results.more["costs_measured"]["queries"] == 11
    assert (results.more["depth"], results.more["compute_dtype"]) == (20, "fp32")
    assert "work_dir" not in results.more["provenance"]["configuration"]


def test_figures_of_queries_can_be_left_out(tiny_bert, beir):
    cells = grid(asked(tiny_bert, beir, layers="4", dims="8", keep_values=False), encoding()).results.cells
    assert [cell.values for cell in cells] == [None] * 3 and '"values"' not in Path("grid.json").read_text()


def test_float16_stores_are_near(tiny_bert, beir, whole):
    half = grid(asked(tiny_bert, beir), encoding(store_dtype="float16")).results
    assert max(abs(a.value - b.value) for a, b in zip(whole.cells, half.cells)) < 0.05


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"dims": "8,64"}, "64 dimensions"),
        ({"layers": "0,2"}, "needs a token table, which this model lacks"),
        ({"dims": "0,8"}, "'0' is not a number from 1"),
        ({"layers": "5"}, "the model has 4 layers"),
        ({"dims": "8,x"}, "'x' is not a number"),
        ({"measures": ["nDCG@10 nCDG@5"]}, "unknown measure 'nCDG@5'"),
        ({"measures": ["R@1000"]}, "R@1000 looks beyond --depth 20"),
        ({"depth": 0}, "--depth 0 is below 1"),
        ({"max_memory": "much"}, "amount of memory"),
        ({"split": "dev"}, "no qrels/dev.tsv"),
        ({"dataset_path": []}, "--dataset_path is missing"),
        ({"model_name_or_path": ""}, "--model_name_or_path is missing"),
        ({"model_name_or_path": "./nowhere"}, "no such model folder"),
        ({"output": "."}, "is a folder"),
    ],
)
def test_bad_input_costs_no_encoding(tiny_bert, beir, tmp_path, changes, what):
    arguments = asked(tiny_bert, beir)
    for name, value in changes.items():
        setattr(arguments, name, value)
    with pytest.raises(UserError, match=what):
        grid(arguments, encoding())
    assert not list(tmp_path.iterdir())


def test_two_data_sets_of_one_name(tiny_bert, beir):
    with pytest.raises(UserError, match="same name"):
        grid(asked(tiny_bert, beir, dataset_path=[str(beir), str(beir / ".." / "small")]))


def test_judgements_of_another_collection(tiny_bert, beir):
    Path("strange.txt").write_text("a 0 b 1\n")
    with pytest.raises(UserError, match="none of the 1 judged queries"):
        grid(asked(tiny_bert, beir, qrels="strange.txt"), encoding())


def test_flags_that_contradict_the_model(tiny_bert, beir, tmp_path):
    model = tmp_path / "model"
    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    encoder.save_pretrained(model)
    with pytest.raises(UserError, match="--normalize True contradicts"):
        grid(asked(model, beir), encoding(normalize=True))


def test_defaults():
    assert (grid_layers(12), grid_layers(6), grid_layers(4)) == (
        [2, 4, 6, 8, 10, 12],
        [*range(1, 7)],
        [1, 2, 3, 4],
    )
    assert grid_dims(768) == [8, 16, 32, 64, 128, 256, 512, 768]
    assert grid_dims(384)[-2:] == [256, 384] and grid_dims(64) == [8, 16, 32, 64]
    assert GridArguments(measures=["nDCG@10"]).kept() == 100
    assert GridArguments(measures=["nDCG@10", "R@500"]).kept() == 500
    assert GridArguments(measures=["AP"]).kept() == 1000


def test_several_data_sets_in_one_command(tiny_bert, beir, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl", "qrels"):
        (other / name).symlink_to(beir / name)
    arguments = asked(tiny_bert, beir, layers="4", dims="32", measures=["RR@10"])
    arguments.dataset_path.append(str(other))
    cells = grid(arguments, encoding()).results.cells
    assert [cell.dataset for cell in cells] == ["small", "other"]
    assert cells[0].value == cells[1].value and math.isfinite(cells[0].value)
