"""Which passages a group gives in which epoch, and what is refused."""

from __future__ import annotations

import json
import struct

import pytest
import torch

from starbucks_retrieval import NestedEncoder, UserError
from starbucks_retrieval.data import open_corpus, open_groups, open_pairs
from starbucks_retrieval.train.arrow_shard import ArrowShard
from starbucks_retrieval.train.data import TrainingSet
from starbucks_retrieval.train.examples import Collator
from starbucks_retrieval.train.module import excluded_passages


def rows_file(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def inline_row(query, positives, negatives):
    def passage(docid):
        return {"docid": docid, "title": "", "text": f"text of {docid}"}

    return {
        "query_id": query,
        "query": f"query {query}",
        "positive_passages": [passage(i) for i in positives],
        "negative_passages": [passage(i) for i in negatives],
    }


def training_set(tmp_path, rows, group_size, seed=1):
    data = TrainingSet(group_size, seed)
    data.add("rows", open_groups(rows_file(tmp_path / "rows.jsonl", rows)), None, tmp_path / "cache")
    return data


def ids(example):
    return [docid.split(" ", 1)[1] for docid in example.docids]


def test_epochs_cycle_through_positives_and_move_a_window_over_negatives(tmp_path):
    data = training_set(tmp_path, [inline_row("a", ["p1", "p2", "p3"], [f"n{i}" for i in range(6)])], 4)
    epochs = [ids(data[(epoch, 0)]) for epoch in range(6)]
    assert {first for first, *_ in epochs[:3]} == {"p1", "p2", "p3"}
    assert [first for first, *_ in epochs[3:]] == [first for first, *_ in epochs[:3]]
    windows = [set(rest) for _, *rest in epochs]
    assert windows[0] | windows[1] == {f"n{i}" for i in range(6)}
    assert windows[0] == windows[2]
    assert data[(2, 0)] == data[(2, 0)]
    assert data[(0, 0)].passages == [f"text of {docid}" for docid in epochs[0]]


def test_another_run_into_the_same_cache_leaves_mapped_rows_as_they_are(tmp_path):
    first = training_set(tmp_path, [inline_row("a", ["p1"], ["n1"])], 2)
    training_set(tmp_path, [inline_row("b", ["p2"], ["n2"])], 2)
    assert ids(first[(0, 0)]) == ["p1", "n1"]


def test_damaged_rows_are_refused_when_they_are_opened(tmp_path):
    training_set(tmp_path, [inline_row("q1", ["d1"], ["d2"])], 2)
    path = tmp_path / "cache" / "passages-0.arrow"
    whole = path.read_bytes()
    ArrowShard.open(0, tmp_path / "cache")
    text = whole.index(b"text of d1")
    offsets = 4 + whole.index(struct.pack("<iii", 0, len("text of d1"), 2 * len("text of d1")))
    for damaged in (
        whole[:text] + b"\xff" + whole[text + 1 :],
        whole[: offsets + 2] + b"\x7f" + whole[offsets + 3 :],
        whole[:-9],
    ):
        path.unlink()  # the first is mapped
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"passages-0\.arrow is damaged"):
            ArrowShard.open(0, tmp_path / "cache")


def test_the_order_depends_on_the_seed(tmp_path):
    rows = [inline_row("a", ["p"], [f"n{i}" for i in range(20)])]
    first = training_set(tmp_path / "x", rows, 8, seed=1) if (tmp_path / "x").mkdir() is None else None
    second = training_set(tmp_path / "y", rows, 8, seed=2) if (tmp_path / "y").mkdir() is None else None
    assert ids(first[(0, 0)]) != ids(second[(0, 0)])


def test_too_few_negatives_are_drawn_with_replacement(tmp_path):
    example = training_set(tmp_path, [inline_row("a", ["p"], ["n1", "n2"])], 8)[(0, 0)]
    assert len(example.passages) == 8
    assert set(ids(example)[1:]) <= {"n1", "n2"}


def test_no_negatives_at_all_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(UserError, match=r"7 hard negatives per query, but rows has none") as caught:
        training_set(tmp_path, [inline_row("a", ["p"], [])], 8)
    assert "--train_group_size 1" in caught.value.hint
    assert len(training_set(tmp_path, [inline_row("a", ["p"], [])], 1)[(0, 0)].passages) == 1


def test_a_query_without_negatives_among_others_gets_random_passages(tmp_path):
    rows = [inline_row("a", ["p1"], []), inline_row("b", ["p2"], ["n1", "n2", "n3"])]
    data = training_set(tmp_path, rows, 3)
    drawn = {docid for epoch in range(30) for docid in ids(data[(epoch, 0)])[1:]}
    assert drawn <= {"p2", "n1", "n2", "n3"} and len(drawn) > 1


def beir_folder(tmp_path, judged="q1\td2\t1\nq1\td3\t2\nq2\td1\t1\n"):
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    rows_file(folder / "corpus.jsonl", [{"_id": f"d{i}", "title": f"T{i}", "text": f"body {i}"} for i in range(5)])
    rows_file(folder / "queries.jsonl", [{"_id": f"q{i}", "text": f"question {i}"} for i in range(4)])
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


def test_a_beir_folder_is_its_own_corpus(tmp_path):
    folder = str(beir_folder(tmp_path))
    data = TrainingSet(1, 0, separator=" | ", query_prefix="q: ", passage_prefix="p: ")
    data.add(folder, open_groups(folder), open_corpus(folder), tmp_path / "cache")
    examples = {example.query: example for example in (data[(0, row)] for row in range(len(data)))}
    assert examples["q: question 2"].passages == ["p: T1 | body 1"]
    assert examples["q: question 1"].positives == {"0 d2", "0 d3"}


def test_an_unknown_document_is_named(tmp_path):
    folder = str(beir_folder(tmp_path, "q1\td99\t1\n"))
    with pytest.raises(UserError, match="d99"):
        TrainingSet(1, 0).add(folder, open_groups(folder), open_corpus(folder), tmp_path / "cache")


def test_rows_with_ids_among_rows_with_texts_are_refused(tmp_path):
    rows = [
        inline_row("a", ["p"], []),
        {"query_id": "b", "query_text": "b", "positive_document_ids": ["d1"], "negative_document_ids": []},
    ]
    with pytest.raises(UserError, match="query b holds ids"):
        training_set(tmp_path, rows, 1)


def test_ids_without_a_corpus_are_refused(tmp_path):
    rows = [{"query_id": "1", "query_text": "a", "positive_document_ids": ["d1"], "negative_document_ids": []}]
    groups = open_groups(rows_file(tmp_path / "ids.jsonl", rows))
    with pytest.raises(UserError, match="ids without texts") as caught:
        TrainingSet(1, 0).add("ids", groups, None, tmp_path / "cache")
    assert "--corpus_path" in caught.value.hint


def excluded(examples, tiny_bert):
    batch = Collator(NestedEncoder.from_pretrained(tiny_bert))(examples)
    targets = torch.arange(len(examples)) * (len(batch["docids"]) // len(examples))
    return excluded_passages(batch["docids"], batch["known"], targets).tolist()


def test_known_positives_of_a_query_are_no_negatives_of_it(tmp_path, tiny_bert):
    rows = [inline_row("a", ["x", "y"], ["n"]), inline_row("b", ["y"], ["m"]), inline_row("c", ["z"], ["x"])]
    data = training_set(tmp_path, rows, 2)
    examples = [
        next(e for e in (data[(epoch, 0)] for epoch in range(9)) if ids(e)[0] == "x"),
        data[(0, 1)],
        data[(0, 2)],
    ]
    # columns: x n | y m | z x
    assert excluded(examples, tiny_bert) == [
        [False, False, True, False, False, True],
        [False, False, False, False, False, False],
        [False, False, False, False, False, False],
    ]


def test_a_collection_given_twice_has_the_same_documents_both_times(tmp_path):
    data = TrainingSet(1, 0)
    path = rows_file(tmp_path / "rows.jsonl", [inline_row("a", ["x", "y"], [])])
    for copy in ("1", "2"):
        data.add("rows", open_groups(path), None, tmp_path / copy)
    assert data[(0, 0)].positives == data[(0, 1)].positives == {"0 x", "0 y"}


def test_equal_docids_of_two_collections_are_two_documents(tmp_path, tiny_bert):
    data = TrainingSet(1, 0)
    for name, text in (("one", "first"), ("two", "second")):
        row = inline_row(name, ["1"], [])
        row["positive_passages"][0]["text"] = text
        data.add(name, open_groups(rows_file(tmp_path / f"{name}.jsonl", [row])), None, tmp_path / name)
    examples = [data[(0, 0)], data[(0, 1)]]
    assert [example.passages for example in examples] == [["first"], ["second"]]
    assert not any(map(any, excluded(examples, tiny_bert)))


def test_every_passage_a_positive_leaves_no_negative(tmp_path):
    folder = beir_folder(tmp_path, "".join(f"q1\td{i}\t1\n" for i in range(5)) + "q2\td1\t1\nq2\td2\t0\n")
    data = TrainingSet(2, 0)
    data.add("beir", open_groups(str(folder)), open_corpus(str(folder)), tmp_path / "cache")
    with pytest.raises(UserError, match="every passage is a positive"):
        [data[(0, row)] for row in range(2)]


def scored(tmp_path, negatives, name="scored.jsonl"):
    row = inline_row("a", ["p1", "p2"], negatives)
    row |= {"positive_scores": [9.0, 8.0], "negative_scores": [float(-i) for i in range(len(negatives))]}
    return rows_file(tmp_path / name, [row])


def test_teacher_scores_follow_their_passages(tmp_path):
    data = TrainingSet(3, 0, with_scores=True)
    data.add("rows", open_groups(scored(tmp_path, ["n0", "n1", "n2", "n3"])), None, tmp_path / "cache")
    expected = {"p1": 9.0, "p2": 8.0, "n0": 0.0, "n1": -1.0, "n2": -2.0, "n3": -3.0}
    for epoch in range(4):
        example = data[(epoch, 0)]
        assert example.scores == [expected[docid] for docid in ids(example)]
    plain = TrainingSet(3, 0)
    plain.add("rows", open_groups(scored(tmp_path, ["n0", "n1"])), None, tmp_path / "plain")
    assert plain[(0, 0)].scores is None


@pytest.mark.parametrize("negatives", [None, []])
def test_distillation_without_scores_is_refused(tmp_path, negatives):
    rows = [inline_row("b", ["p"], ["n1", "n2"])]
    path = rows_file(tmp_path / "plain.jsonl", rows) if negatives is None else scored(tmp_path, negatives)
    if negatives == []:
        with open(path, "a") as file:
            file.write(json.dumps(rows[0] | {"positive_scores": [1.0], "negative_scores": [0.0, 0.5]}) + "\n")
    with pytest.raises(UserError, match="teacher's scores, and 1 queries"):
        TrainingSet(2, 0, with_scores=True).add("rows", open_groups(path), None, tmp_path / "cache")


def pairs_file(tmp_path):
    (tmp_path / "pairs.tsv").write_text("score\tsentence1\tsentence2\n4.5\ta b\tb a\n0.5\tc\td\n")
    return str(tmp_path / "pairs.tsv")


def test_scored_pairs(tmp_path):
    data = TrainingSet(1, 0)
    data.add("pairs", open_pairs(pairs_file(tmp_path)), None, tmp_path / "cache", scored_pairs=True)
    example = data[(3, 0)]
    assert (example.query, example.passages, example.label, len(data)) == ("a b", ["b a"], 4.5, 2)
    with pytest.raises(UserError, match="one kind of data"):
        data.add("rows", open_groups(rows_file(tmp_path / "r.jsonl", [inline_row("a", ["p"], [])])), None, tmp_path)


def test_another_process_uses_what_the_first_one_read(tmp_path):
    path = rows_file(tmp_path / "rows.jsonl", [inline_row("a", ["p1"], ["n1", "n2"])])
    first, second = TrainingSet(2, 0), TrainingSet(2, 0)
    first.add("rows", open_groups(path), None, tmp_path / "cache")
    second.add("rows", open_groups(path), None, tmp_path / "cache", read=False)
    assert first[(1, 0)] == second[(1, 0)]
