"""The registry of file formats: endings, messages derived from it, and formats of other packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from starbucks_retrieval.data import FORMATS, Passage, open_corpus, read_qrels
from starbucks_retrieval.data.formats import file_endings, find_reader
from starbucks_retrieval.errors import UserError


def upper_case_rows(path, start, stop, layouts):
    """A format of another package: one passage per line, whose name is its number."""
    lines = path.read_text().splitlines()
    yield from list(enumerate(({"docid": line, "text": line.upper()} for line in lines), 1))[start:stop]


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(FORMATS, "_entries", dict(FORMATS._entries))
    FORMATS.register(".upper.lines", upper_case_rows)


def test_a_format_of_another_package(registered, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no such file: c\.upper\.lines"):  # the ending tells a path from a hub name
        open_corpus("c.upper.lines")
    Path("corpus.upper.lines").write_text("a\nb\n")
    for collection in ("corpus.upper.lines", "."):
        assert list(open_corpus(collection)) == [Passage("a", "", "A"), Passage("b", "", "B")]
    assert list(open_corpus(".").numbered(1)) == [(2, Passage("b", "", "B"))]
    Path("corpus.upper.lines").rename("c.xml")
    with pytest.raises(UserError) as raised:
        open_corpus("c.xml")
    assert ".upper.lines" in raised.value.hint and ".parquet" in raised.value.hint
    with pytest.raises(UserError) as raised:
        open_corpus(".")
    assert "corpus" in raised.value.hint and ".upper.lines" in raised.value.hint


def test_the_longest_ending_decides(registered):
    FORMATS.register(".lines", "no.such.module:rows")
    assert find_reader(Path("a.upper.lines")) is upper_case_rows


def test_jsonl_comes_first_in_a_folder(tmp_path):
    assert file_endings()[:4] == [".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz"]
    (tmp_path / "corpus.tsv").write_text("tsv\ttext\n")
    (tmp_path / "corpus.json").write_text('{"docid": "json", "text": "text"}\n')
    assert [passage.docid for passage in open_corpus(str(tmp_path))] == ["tsv"]
    (tmp_path / "corpus.jsonl").write_text('{"docid": "jsonl", "text": "text"}\n')
    assert [passage.docid for passage in open_corpus(str(tmp_path))] == ["jsonl"]


def test_a_single_arrow_file(tmp_path):
    import pyarrow

    table = pyarrow.table({"docid": ["a", "b", "c"], "text": ["x", "y", "z"]})
    with pyarrow.ipc.new_stream(str(tmp_path / "c.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    corpus = open_corpus(str(tmp_path / "c.arrow"))
    assert [passage.text for passage in corpus] == ["x", "y", "z"]
    assert [(number, passage.text) for number, passage in corpus.numbered(1, 3)] == [(2, "y"), (3, "z")]
    (tmp_path / "c.arrow").write_bytes(b"no stream")
    with pytest.raises(UserError, match=r"c\.arrow: not an Arrow stream"):
        list(corpus)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_judgements_in_every_format(tmp_path, ending):
    rows = [{"query-id": "q", "corpus-id": "a", "score": 2}, {"query-id": "q", "corpus-id": "b", "score": 0}]
    (tmp_path / "qrels").mkdir()
    path = tmp_path / "qrels" / f"test.{ending}"
    if ending == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_qrels(str(path)) == read_qrels(str(tmp_path)) == {"q": {"a": 2, "b": 0}}
    (path.parent / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tc\t1\n")
    assert read_qrels(str(tmp_path)) == {"q": {"c": 1}}  # BEIR's own layout comes first


def _beyond_python(name: str):
    import pyarrow as pa

    return pa.table({"docid": ["d1"], "text": ["Hens"], name: pa.array([2**31 - 1], pa.int32()).cast(pa.date32())})


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_dates_beyond_the_range_of_python(tmp_path, suffix):
    import pyarrow as pa
    import pyarrow.parquet

    from starbucks_retrieval.data import open_corpus
    from starbucks_retrieval.errors import UserError

    def write(table):
        path = tmp_path / f"corpus.{suffix}"
        if suffix == "parquet":
            pyarrow.parquet.write_table(table, path)
        else:
            with pa.ipc.new_stream(str(path), table.schema) as writer:
                writer.write_table(table)
        return open_corpus(str(path))

    assert [passage.text for passage in write(_beyond_python("published"))] == ["Hens"]  # no reader asks for it
    with pytest.raises(UserError, match=r"corpus\.\w+:1: a value that cannot be read in this row"):
        list(write(_beyond_python("title")))
