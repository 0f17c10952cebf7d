"""Comma-separated files, in every place that reads text."""

from __future__ import annotations

import csv
import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starbucks_retrieval.data import (
    Group,
    Passage,
    Query,
    open_corpus,
    open_groups,
    open_pairs,
    open_queries,
    read_qrels,
)
from starbucks_retrieval.data.formats import csv as csv_format
from starbucks_retrieval.data.pairs import open_labelled
from starbucks_retrieval.data.records import scan
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sentences.tasks import open_pair_sets

CORPUS = (
    'docid,title,text,page\r\nd1,Hens,"Hens lay, but not ""in winter"".",7\r\n\r\nd2,,"one\n\ntwo",8\r\nd3,x,y,9\r\n'
)
PASSAGES = [
    Passage("d1", "Hens", 'Hens lay, but not "in winter".'),
    Passage("d2", "", "one\n\ntwo"),
    Passage("d3", "x", "y"),
]


@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_corpus(tmp_path, ending, mark):
    content = mark + CORPUS.encode()
    path = tmp_path / f"corpus.{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    for collection in (path, tmp_path):
        corpus = open_corpus(str(collection))
        assert list(corpus) == PASSAGES
        assert [number for number, _ in corpus.numbered()] == [2, 4, 7]  # where a row begins
        assert list(corpus.rows(1, 2)) == PASSAGES[1:2]


def test_known_names_in_capitals(tmp_path):
    path = tmp_path / "corpus.csv"
    path.write_text("ID,Title,Text,Page\n1,Hens,lay eggs,7\n")
    assert list(open_corpus(str(path))) == [Passage("1", "Hens", "lay eggs")]
    path.write_text("ID,text,Text\n1,lay eggs,other\n")
    assert list(open_corpus(str(path))) == [Passage("1", "", "lay eggs")]


def test_the_digest_is_that_of_the_same_corpus_as_jsonl(tmp_path):
    (tmp_path / "c.csv").write_bytes(CORPUS.encode())
    rows = [{"docid": p.docid, "title": p.title, "text": p.text} for p in PASSAGES]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert scan(open_corpus(str(tmp_path / "c.csv"))) == scan(open_corpus(str(tmp_path / "c.jsonl")))


def test_everything_else_that_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text):
        (tmp_path / "x.csv").write_text(text)
        return "x.csv"

    assert list(open_queries(write('query_id,query\n1,"a, b"\n'))) == [Query("1", "a, b")]
    (group,) = open_groups(write("anchor,positive,negative,positive_scores,negative_scores\nq,p,n,2,.5\n"))
    assert isinstance(group, Group) and group.query == "q" and sorted(group.scores.values()) == [0.5, 2.0]
    pairs = open_pairs(write("split,score,sentence1,sentence2\ntest,4.5,a,b\ntrain,1,c,d\ntest,2,e,f\ntest,3,g,h\n"))
    assert [pair.score for pair in pairs] == [4.5, 1, 2, 3]
    (one,) = open_pair_sets(["x.csv"])
    assert (one.name, one.scores.tolist()) == ("x", [4.5, 2, 3])
    assert [(row.text, row.label) for row in open_labelled(write("sentence,coarse_label\nhens,3\n"))] == [("hens", "3")]
    assert read_qrels(write("Query-ID,corpus-id,score,who\nq1,d1,2,me\nq1,d2,0,me\n")) == {"q1": {"d1": 2, "d2": 0}}
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.csv.gz").write_bytes(gzip.compress(b"query-id,corpus-id,score\nq1,d1,1\n"))
    assert read_qrels(".") == {"q1": {"d1": 1}}


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        (b"docid,text\nd1,caf\xe9\n", "x.csv:2: not UTF-8 (byte 7 of the line)", "iconv -f latin1"),
        (b"docid,text\nd1,a\nd2,a,b\n", "x.csv:3: 3 cells, the header names 2", "double quotes"),
        (b"docid,text\nd1\n", "x.csv:2: 1 cell, the header names 2", "double quotes"),
        (b"d1,Hens lay\nd2,Moths fly\n", "x.csv:1: no header: 'd1, Hens lay'", "docid,title,text"),
        (b"docid;text\nd1;a\n", "x.csv:1: no header: 'docid;text'", "separated by commas"),
        (b"title,text\na,b\n", "x.csv:2: no column docid, _id, doc_id or id", "rename a column"),
        (b"docid,text,text\nd1,a,b\n", "x.csv:1: two columns are called 'text'", "its own name"),
        (b"docid,text\nd1,a\x00b\n", "x.csv:2: a NUL byte", "utf-16"),
        ("docid,text\nd1,a\n".encode("utf-16-le"), "x.csv:1: a NUL byte", "utf-16"),
        ("docid,text\nd1,a\n".encode("utf-16"), "x.csv:1: not UTF-8", "iconv"),
        (b'docid,text\nd1,"a\nd2,b\nd3,c\n', "x.csv:4: the row that begins at line 2: the file ends inside", "close"),
        (b'docid,text\nd1,"a"b\n', "x.csv:2: malformed csv", "double quotes"),
        (b"docid,text\rd1,a\rd2,b\n", "x.csv:1: a carriage return inside a line", "\\r\\n"),
        (b"docid,text\n", "x.csv holds no passages", ""),
        (b"", "x.csv holds no passages", ""),
    ],
)
def test_what_is_refused_names_line_and_remedy(tmp_path, monkeypatch, content, what, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(UserError) as refused:
        scan(open_corpus("x.csv"))
    assert refused.value.what.startswith(what) and hint in refused.value.hint


def test_long_texts_are_read_and_endless_ones_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text(f"docid,text\nd1,{'word ' * 100_000}\n")
    assert [len(passage.text) for passage in open_corpus("x.csv")] == [500_000]
    before = csv.field_size_limit(1000)
    monkeypatch.setattr(csv_format, "_LONGEST", 1000)
    try:
        with pytest.raises(UserError, match=r"x\.csv:2: a cell of more than 1000 characters") as refused:
            list(open_corpus("x.csv"))
        assert "quote" in refused.value.hint
    finally:
        csv.field_size_limit(before)


def test_a_damaged_archive(tmp_path):
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(CORPUS.encode())[:-12])
    with pytest.raises(UserError, match="damaged gzip"):
        list(open_corpus(str(path)))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("query-id,corpus-id,score\nq,d,1.5\n", "x.csv:2: the grade '1.5' is not an integer"),
        ("query-id,score\nq,1\n", "x.csv:2: no column corpus-id"),
        ("q,d,1\n", "x.csv:1: no header: 'q, d, 1'"),
        ("query-id,corpus-id,score\nq,d,1\nq,d,2\n", "x.csv:3: query q and document d get grade 2, and 1 above"),
    ],
)
def test_judgements_that_are_refused(tmp_path, monkeypatch, content, what):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(UserError) as refused:
        read_qrels("x.csv")
    assert refused.value.what.startswith(what) and refused.value.hint


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
def test_what_python_writes_comes_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "c.csv"
    with open(path, "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, quoting=csv.QUOTE_ALL)
        writer.writerows([("docid", "title", "text"), *((f"d{i}", *row) for i, row in enumerate(rows))])
    assert [(p.title, p.text) for p in open_corpus(str(path))] == rows
