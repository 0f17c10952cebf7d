"""Where documents come from, in which order, and whose they are."""

from __future__ import annotations

import logging
from itertools import islice

import pytest
from pretrain.letters import jsonl_file, lines_file

from starbucks_retrieval import UserError
from starbucks_retrieval.data.documents import DocumentStream, open_documents


def stream(tmp_path, *sizes, **options):
    """Sources a, b, … of these sizes, whose documents are called a0, a1, …"""
    files = [
        lines_file(tmp_path / f"{name}.txt", [f"{name}{i}" for i in range(size)]) for name, size in zip("abcd", sizes)
    ]
    return DocumentStream([open_documents(file) for file in files], **options)


def texts(documents, count, position=0):
    return [document.text for document in islice(documents.read(position), count)]


def test_plain_text_is_a_document_a_line(tmp_path):
    lines = ["one\twith a tab", "  ", "three\u2028is one line", "four"]
    for name in ("a.txt", "a.txt.gz"):
        documents = open_documents(lines_file(tmp_path / name, lines))
        assert list(documents) == lines
        assert list(documents.rows(2, 3)) == lines[2:3]


def test_paragraphs_lie_between_blank_lines(tmp_path):
    lines = ["", "one", "still one", "", "two", "  ", "three", "", ""]
    documents = open_documents(lines_file(tmp_path / "a.txt.gz", lines), paragraphs=True)
    assert list(documents) == ["one\nstill one", "two", "three"]
    assert list(documents.rows(1, 2)) == ["two"]
    assert [number for number, _ in documents.numbered()] == [2, 5, 7]


def test_paragraphs_of_anything_else_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"not a \.txt file"):
        open_documents(jsonl_file(tmp_path / "a.jsonl", [{"text": "x"}]), paragraphs=True)


def test_tables_need_a_text_and_no_ids(tmp_path):
    rows = [{"title": "t", "text": "x"}, {"text": "y"}, {"contents": "z", "title": None}]
    file = jsonl_file(tmp_path / "a.jsonl", rows)
    assert list(open_documents(file)) == ["t x", "y", "z"]
    assert list(open_documents(file, separator="|").rows(0, 1)) == ["t|x"]
    assert list(open_documents(jsonl_file(tmp_path / "b.jsonl", [{"body": "x"}]), column="body")) == ["x"]
    assert list(open_documents(file, column="title").rows(0, 1)) == ["t"]
    with pytest.raises(UserError, match=r"a\.jsonl:1: no column body"):
        list(open_documents(file, column="body"))


def test_folders_parquet_and_arrow(tmp_path):
    import datasets

    folder = tmp_path / "beir"
    folder.mkdir()
    jsonl_file(folder / "corpus.jsonl", [{"_id": "1", "title": "t", "text": "x"}])
    assert list(open_documents(str(folder))) == ["t x"]
    rows = datasets.Dataset.from_list([{"text": f"x{i}"} for i in range(5)])
    rows.to_parquet(tmp_path / "a.parquet")
    rows.save_to_disk(tmp_path / "arrow")
    for name in ("a.parquet", "arrow"):
        assert list(open_documents(str(tmp_path / name)).rows(3)) == ["x3", "x4"]


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        open_documents(str(tmp_path / "none.txt"))
    with pytest.raises(UserError, match="at least one"):
        DocumentStream([])


def test_sources_follow_one_another_and_wrap_around(tmp_path, caplog):
    documents = stream(tmp_path, 2, 3)
    with caplog.at_level(logging.INFO, "starbucks_retrieval"):
        found = list(islice(documents.read(), 11))
    assert [document.text for document in found[:6]] == ["a0", "a1", "b0", "b1", "b2", "a0"]
    assert [document.position for document in found] == list(range(11))
    assert [(document.epoch, document.number) for document in found[4:6]] == [(0, 4), (1, 0)]
    assert found[10].epoch == 2
    assert [record.message for record in caplog.records] == [
        "all 5 documents were read; epoch 2 begins",
        "all 5 documents were read; epoch 3 begins",
    ]


@pytest.mark.parametrize("shuffle", [0, 3, 4, 100])
@pytest.mark.parametrize("known", [False, True])
def test_every_position_can_be_the_start(tmp_path, shuffle, known):
    whole = list(islice(stream(tmp_path, 4, 1, 6, shuffle=shuffle).read(), 40))
    for position in range(30):
        options = {"lengths": [4, 1, 6]} if known else {}
        again = stream(tmp_path, 4, 1, 6, shuffle=shuffle, **options)
        assert list(islice(again.read(position), 10)) == whole[position : position + 10]


def test_what_lies_beyond_a_position_is_not_read(tmp_path):
    documents = stream(tmp_path, 4, 3)
    next(documents.read(5))
    assert documents.lengths == [4, None]
    list(islice(documents.read(5), 3))
    assert documents.lengths == [4, 3]
    assert documents.count() == 7


def test_shuffling_permutes_within_blocks_differently_each_epoch(tmp_path):
    found = texts(stream(tmp_path, 6, 6, shuffle=8, seed=1), 24)
    named = [f"a{i}" for i in range(6)] + [f"b{i}" for i in range(6)]
    for first in (0, 12):
        assert sorted(found[first : first + 8]) == named[:8]
        assert sorted(found[first + 8 : first + 12]) == named[8:]
    assert found[:8] != named[:8]
    assert found[:12] != found[12:]
    assert found != texts(stream(tmp_path, 6, 6, shuffle=8, seed=2), 24)


@pytest.mark.parametrize("shuffle", [0, 5])
def test_processes_share_each_epoch_without_overlap(tmp_path, shuffle):
    shares = []
    for rank in range(3):
        read = stream(tmp_path, 7, 4, shuffle=shuffle, rank=rank, world=3).read()
        shares.append([document for document in islice(read, 12) if document.epoch < 2])
    for epoch in (0, 1):
        numbers = sorted(d.number for share in shares for d in share if d.epoch == epoch)
        assert numbers == list(range(11))
    assert [d.number for d in shares[1] if d.epoch == 0] == [1, 4, 7, 10]
    together = sorted(d.text for share in shares for d in share if d.epoch == 0)
    assert together == sorted([f"a{i}" for i in range(7)] + [f"b{i}" for i in range(4)])


def test_fewer_documents_than_processes_are_refused(tmp_path):
    assert texts(stream(tmp_path, 2, rank=1, world=3), 2) == ["a1", "a1"]
    with pytest.raises(UserError, match="3 processes share 2 documents"):
        next(stream(tmp_path, 2, rank=2, world=3).read())
    with pytest.raises(UserError, match="no documents"):
        next(stream(tmp_path, 0, 0).read())


def test_a_source_that_changes_is_noticed(tmp_path):
    documents = stream(tmp_path, 3)
    read = documents.read()
    list(islice(read, 4))
    lines_file(tmp_path / "a.txt", ["a0", "a1"])
    with pytest.raises(UserError, match=r"holds 2 documents, and held 3"):
        list(islice(documents.read(), 3))
    with pytest.raises(UserError, match="1 sources of documents, where the run began with 2"):
        DocumentStream(documents.sources, lengths=[3, 4])
