"""mine through its door: rows that training reads, repeatable, reused, refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.data import open_corpus, open_groups
from starbucks_retrieval.mine import MineArguments, mine, rows
from starbucks_retrieval.mine.__main__ import main
from starbucks_retrieval.train.data import TrainingSet

from .conftest import id_row, read_jsonl, write_jsonl


def dense_flags(model, beir, output, *more):
    base = ["--dataset_path", beir, "--model_name_or_path", model, "--output_path", output, "--dtype", "fp32"]
    return [*base, "--size", "2:8", "--depth", "20", "--num_negatives", "4", *more]


def test_rows_hold_what_training_reads(tiny_bert, beir, tmp_path, run_mine):
    output = tmp_path / "new" / "negatives.jsonl.gz"
    status, figures, _ = run_mine(*dense_flags(tiny_bert, beir, output, "--save_scores"))
    assert status == 0
    corpus = {passage.docid: passage for passage in open_corpus(str(beir))}
    before, after = list(open_groups(str(beir))), list(open_groups(str(output)))
    assert [(g.query_id, g.query, g.positive_ids) for g in after] == [
        (g.query_id, g.query, g.positive_ids) for g in before
    ]
    for group in after:
        assert group.passages == {docid: corpus[docid] for docid in (*group.positive_ids, *group.negative_ids)}
        assert len(group.negative_ids) == 4
    assert figures["queries"] == 12 and figures["mean_negatives"] == 4.0 and figures["without_negatives"] == 0
    assert figures["engine"] == "model" and not figures["reused_candidates"]
    data = TrainingSet(4, seed=1)
    data.add("mined", open_groups(str(output)), None, tmp_path / "cache")
    example = data[(0, 0)]
    assert example.docids[0][2:] in after[0].positive_ids
    assert {docid[2:] for docid in example.docids[1:]} < set(after[0].negative_ids)
    assert not [path for path in output.parent.iterdir() if path.name.startswith(".")]


def test_scores_are_aligned_with_the_passages(tiny_bert, beir, tmp_path, run_mine):
    output = tmp_path / "n.jsonl"
    assert run_mine(*dense_flags(tiny_bert, beir, output, "--save_scores"))[0] == 0
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    for row in read_jsonl(output):
        [query] = encoder.encode([row["query"]], "2:8", is_query=True).values()
        for kind in ("positive", "negative"):
            texts = [f"{p['title']} {p['text']}".strip() for p in row[f"{kind}_passages"]]
            [passages] = encoder.encode(texts, "2:8").values()
            np.testing.assert_allclose(row[f"{kind}_scores"], (passages @ query.T)[:, 0], rtol=1e-5)
        assert row["negative_scores"] == sorted(row["negative_scores"], reverse=True)


def test_results_depend_on_seed_and_query_not_on_the_order_of_the_groups(tiny_bert, beir, tmp_path, run_mine):
    groups = [
        {"query_id": g.query_id, "query_text": g.query, "positive_document_ids": g.positive_ids}
        for g in open_groups(str(beir))
    ]
    written = {}
    for name, some, seed in (("a", groups, 1), ("b", groups[::-1][:7], 1), ("c", groups, 1), ("d", groups, 2)):
        path = write_jsonl(tmp_path / f"{name}.in.jsonl", some)
        flags = dense_flags(tiny_bert, path, tmp_path / f"{name}.jsonl", "--corpus_path", beir, "--seed", seed)
        assert run_mine(*flags)[0] == 0
        written[name] = read_jsonl(tmp_path / f"{name}.jsonl")
    assert written["a"] == written["c"] != written["d"]
    assert written["b"] == written["a"][::-1][:7]
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "c.jsonl").read_bytes()


def test_other_filters_do_not_search_again(tiny_bert, beir, tmp_path, run_mine, monkeypatch):
    output = tmp_path / "n.jsonl"
    flags = dense_flags(tiny_bert, beir, output, "--overwrite", "--sampling", "top")
    assert run_mine(*flags)[0] == 0
    first = read_jsonl(output)
    with monkeypatch.context() as patch:
        patch.setattr(NestedEncoder, "embed", lambda *_, **__: pytest.fail("encoded again"))
        status, figures, log = run_mine(*flags, "--range", "2:6", "--seed", "9")
        assert status == 0 and figures["reused_candidates"] and "used again" in log
    for before, after in zip(first, read_jsonl(output)):
        assert before["negative_passages"][1:] == after["negative_passages"][:3]
    for change in (("--size", "2:9"), ("--depth", "21"), ("--dtype", "bf16")):
        status, figures, log = run_mine(*flags, *change)
        assert status == 0 and not figures["reused_candidates"] and "another search" in log


def test_a_changed_corpus_or_group_is_searched_again(tiny_bert, tmp_path, run_mine):
    for word, positive in (("w1", "d0"), ("w2", "d0"), ("w2", "d1")):
        groups = write_jsonl(tmp_path / "g.jsonl", [id_row("1", [positive])])
        corpus = write_jsonl(tmp_path / "c.jsonl", [{"_id": f"d{i}", "text": f"{word} w{i}"} for i in range(9)])
        flags = dense_flags(tiny_bert, groups, tmp_path / "n.jsonl", "--corpus_path", corpus, "--overwrite")
        status, figures, _ = run_mine(*flags)
        assert status == 0 and not figures["reused_candidates"]


def test_an_output_that_cannot_be_written_is_told_before_the_search(tiny_bert, beir, tmp_path, run_mine, monkeypatch):
    monkeypatch.setattr(NestedEncoder, "embed", lambda *_, **__: pytest.fail("encoded for nothing"))
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file").write_text("")
    for name, message in (("folder.jsonl", "is a folder"), ("file/n.jsonl", "not a writable folder")):
        status, _, log = run_mine(*dense_flags(tiny_bert, beir, tmp_path / name, "--overwrite"))
        assert status == 2 and message in log
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    status, _, log = run_mine(*dense_flags(tiny_bert, beir, tmp_path / "new" / "n.jsonl"))
    assert status == 2 and f"{tmp_path} is not a writable folder" in log


def test_an_output_appears_whole_or_not_at_all(tiny_bert, beir, tmp_path, run_mine, monkeypatch):
    output = tmp_path / "n.jsonl"
    real, done = rows._RowMaker.row, []

    def stops_at_the_third(self, group, topic):
        done.append(topic)
        if len(done) == 3:
            raise KeyboardInterrupt
        return real(self, group, topic)

    with monkeypatch.context() as patch:
        patch.setattr(rows._RowMaker, "row", stops_at_the_third)
        assert run_mine(*dense_flags(tiny_bert, beir, output))[0] == 130
    assert [path.name for path in tmp_path.iterdir()] == ["n.jsonl.candidates"]
    status, figures, _ = run_mine(*dense_flags(tiny_bert, beir, output))
    assert status == 0 and figures["reused_candidates"]
    whole = output.read_bytes()
    status, _, log = run_mine(*dense_flags(tiny_bert, beir, output))
    assert status == 2 and "--overwrite" in log and output.read_bytes() == whole


def collection(tmp_path, passages, groups, run):
    """Flags that mine groups in passages by a run of (query, docid, score)."""
    corpus = write_jsonl(tmp_path / "c.jsonl", [{"_id": docid, "text": text} for docid, text in passages.items()])
    (tmp_path / "r.trec").write_text("".join(f"{q} Q0 {d} 0 {s} t\n" for q, d, s in run))
    return [
        *("--dataset_path", write_jsonl(tmp_path / "g.jsonl", groups), "--corpus_path", corpus, "--overwrite"),
        *("--run", tmp_path / "r.trec", "--output_path", tmp_path / "n.jsonl", "--sampling", "top"),
    ]


def negatives(tmp_path):
    return [[p["docid"] for p in row["negative_passages"]] for row in read_jsonl(tmp_path / "n.jsonl")]


TEXTS = {"p": "one two three", "copy": "Three, one TWO!", "x": "four", "y": "five", "z": "six"}
RUN = [("1", "copy", 9), ("1", "x", 8), ("1", "p", 7), ("1", "y", 6), ("1", "z", 5), ("2", "x", 3), ("2", "copy", 2)]


def test_copies_of_a_positive_are_no_negatives_of_its_query(tmp_path, run_mine):
    flags = collection(tmp_path, TEXTS, [id_row("1", ["p"]), id_row("2", ["z"])], RUN)
    status, figures, _ = run_mine(*flags)
    assert status == 0 and negatives(tmp_path) == [["x", "y", "z"], ["x", "copy"]]
    assert figures["dropped"] == {"positives": 1, "range": 0, "margin": 0, "ratio": 0, "duplicates": 1}


def test_limits_by_a_run_apply_where_it_has_the_positive(tmp_path, run_mine):
    flags = collection(tmp_path, TEXTS, [id_row("1", ["p"]), id_row("2", ["z"])], RUN)
    status, figures, log = run_mine(*flags, "--margin", "1.5", "--save_scores")
    assert status == 0 and negatives(tmp_path) == [["z"], ["x", "copy"]]
    assert figures["without_positive_score"] == 1 and "did not apply to 1 queries" in log
    scores = [(row["positive_scores"], row["negative_scores"]) for row in read_jsonl(tmp_path / "n.jsonl")]
    assert scores == [([7.0], [5.0]), ([None], [3.0, 2.0])]
    run_mine(*flags, "--ratio", "0.8")
    assert negatives(tmp_path)[0] == ["z"]
    run_mine(*flags, "--range", "2:3")
    assert negatives(tmp_path) == [["x", "y"], ["copy"]]
    run_mine(*flags, "--num_negatives", "1")
    assert negatives(tmp_path) == [["x"], ["x"]]


def test_a_query_without_negatives_is_written_and_counted(tmp_path, run_mine):
    flags = collection(tmp_path, TEXTS, [id_row("1", ["p"]), id_row("3", ["z"])], RUN)
    status, figures, log = run_mine(*flags)
    assert status == 0 and negatives(tmp_path)[1] == [] and figures["without_negatives"] == 1
    assert "1 queries end without negatives" in log
    assert [group.query_id for group in open_groups(str(tmp_path / "n.jsonl"))] == ["1", "3"]


def test_groups_keep_their_own_texts_and_lose_their_negatives(tmp_path, run_mine):
    stray = {"docid": "s", "title": "T", "text": "five"}
    group = {
        "query_id": "1",
        "query": "q",
        "positive_passages": [{"docid": "p", "title": "", "text": "Six."}, stray],
        "negative_passages": [{"docid": "old", "title": "", "text": "old"}],
    }
    flags = collection(tmp_path, TEXTS, [group], RUN)
    status, figures, log = run_mine(*flags)
    [row] = read_jsonl(tmp_path / "n.jsonl")
    assert status == 0 and row["positive_passages"] == group["positive_passages"]
    assert negatives(tmp_path) == [["x"]]  # y is a copy of the stray, copy of the corpus' p, and z of the group's p
    assert "1 of 1 groups have negatives already" in log and "another text in the corpus" in log
    assert figures["positives_outside_corpus"] == 1


def test_groups_whose_positives_have_no_text_are_left_out(tmp_path, run_mine):
    groups = [id_row("0", ["gone"]), id_row("1", ["gone", "p"])]
    status, figures, log = run_mine(*collection(tmp_path, TEXTS, groups, RUN))
    [row] = read_jsonl(tmp_path / "n.jsonl")
    assert status == 0 and [p["docid"] for p in row["positive_passages"]] == ["p"]
    assert (figures["queries"], figures["left_out"], figures["positives_outside_corpus"]) == (1, 1, 2)
    assert "1 groups are left out" in log


def test_positives_of_the_same_query_elsewhere_are_no_negatives(tmp_path, run_mine):
    groups = [id_row("1", ["p"]), id_row("1", ["y"])]
    assert run_mine(*collection(tmp_path, TEXTS, groups, RUN))[0] == 0
    assert negatives(tmp_path) == [["x", "z"], ["x", "z"]]


def test_bm25_through_the_door(beir, tmp_path, run_mine):
    pytest.importorskip("bm25s")
    flags = ["--dataset_path", beir, "--output_path", tmp_path / "n.jsonl", "--bm25", "--bm25_backend", "bm25s"]
    status, figures, _ = run_mine(*flags, "--range", "2:9")
    assert status == 0 and figures["engine"] == "bm25s" and figures["mean_negatives"] == 8.0
    for row in read_jsonl(tmp_path / "n.jsonl"):
        query = set(row["query"].split())
        assert all(query & {*p["title"].split(), *p["text"].split()} for p in row["negative_passages"])
    status, figures, log = run_mine(*flags, "--overwrite", "--bm25_k1", "1.2")
    assert status == 0 and not figures["reused_candidates"] and "another search (k1)" in log


def test_the_python_api_gives_the_figures_of_the_door(tiny_bert, beir, tmp_path):
    arguments = MineArguments(
        dataset_path=str(beir), output_path=str(tmp_path / "n.jsonl"), model_name_or_path=str(tiny_bert), depth=60
    )
    figures = mine(arguments, seed=3)
    assert figures["queries"] == len(read_jsonl(tmp_path / "n.jsonl")) == 12
    assert json.loads(json.dumps(figures)) == figures


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("--range", "0:5"), "--range 0:5"),
        (("--range", "5"), "first:last"),
        (("--range", "9:5"), "--range 9:5"),
        (("--range", "9:500"), "--depth 500"),
        (("--ratio", "0"), "not above 0"),
        (("--margin", "nan"), "not a finite"),
        (("--depth", "0"), "below 1"),
        (("--num_negatives", "0"), "below 1"),
        (("--max_tokens_per_batch", "0"), "below 1"),
        (("--duplicate_threshold", "1.1"), "between 0 and 1"),
        (("--bm25_b", "2"), "parameters of BM25"),
        (("--seed", "-1"), "--seed -1"),
        (("--output_path", "out.tsv"), ".jsonl"),
        (("--bm25", "true"), "2 sources"),
        (("--dataset_name", "other"), "2 collections"),
        (("--dataset_split", "dev"), "dev"),
        (("--corpus_path", "missing.jsonl"), "no such file"),
        (("--corpus_path", "a.jsonl", "--corpus_name", "b"), "two corpora"),
        (("--size", "6"), "size"),
        (("--size", "9:8"), "layer 9"),
        (("--model_name_or_path", "./nowhere"), "no such model"),
        (("--model_name_or_path", "", "--run", "missing.trec"), "--size belongs"),
        (("--model_name_or_path", "", "--size", "", "--run", "missing.trec"), "no such file"),
        (("--model_name_or_path", "", "--size", ""), "0 sources"),
    ],
)
def test_bad_flags_exit_with_2_and_write_nothing(tiny_bert, beir, tmp_path, run_mine, changes, message):
    status, figures, log = run_mine(*dense_flags(tiny_bert, beir, tmp_path / "o" / "n.jsonl", *changes))
    assert status == 2 and figures is None
    assert message in log and "try:" in log and "Traceback" not in log
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([{"query_id": "1", "query": "a", "positive_passages": []}], "no positives"),
        ([id_row("1", ["nowhere"])], "no positive"),
        ([], "holds no groups"),
    ],
)
def test_bad_groups_exit_with_2(tiny_bert, beir, tmp_path, run_mine, groups, message):
    path = write_jsonl(tmp_path / "g.jsonl", groups)
    status, _, log = run_mine(*dense_flags(tiny_bert, path, tmp_path / "n.jsonl", "--corpus_path", beir))
    assert status == 2 and message in log
    status, _, log = run_mine(*dense_flags(tiny_bert, path, tmp_path / "n.jsonl"))
    assert status == 2 and "--corpus_path" in log


def test_help_names_the_flags(capsys):
    with pytest.raises(SystemExit) as caught:
        run_command(main, ["--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    names = ("bm25_backend", "ratio", "margin", "range", "save_scores", "seed", "teacher_name_or_path")
    assert all(f"--{name}" in printed for name in names)
    assert "implies --save_scores" in " ".join(printed.split())
