"""Counting records where that is cheap, and saying how sure the number is."""

from __future__ import annotations

import gzip
import json

import pytest

from starbucks_retrieval.data import count, open_corpus, open_queries
from starbucks_retrieval.data.count import RecordCount, count_records
from starbucks_retrieval.errors import UserError


def rows(number):
    return "".join(json.dumps({"_id": f"d{i:06}", "text": "some text"}) + "\n" for i in range(number))


def test_small_files_are_counted_exactly(tmp_path):
    (tmp_path / "corpus.jsonl").write_text(rows(30) + "\n")  # an empty line is no record
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(rows(40).encode()))
    (tmp_path / "queries.tsv").write_text("query_id\tquery\nq1\tx\n")
    assert count_records(open_corpus(str(tmp_path / "corpus.jsonl"))) == RecordCount(30, True)
    assert count_records(open_corpus(str(tmp_path))) == RecordCount(30, True)
    assert count_records(open_corpus(str(tmp_path / "packed.jsonl.gz"))) == RecordCount(40, True)
    assert count_records(open_queries(str(tmp_path / "queries.tsv"))) == RecordCount(1, True)


def test_parquet_knows_its_rows(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table({"docid": ["a", "b"], "text": ["x", "y"]}), tmp_path / "c.parquet")
    assert count_records(open_corpus(str(tmp_path / "c.parquet"))) == RecordCount(2, True)


def test_large_files_are_guessed_or_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(count, "SMALL", 1000)
    monkeypatch.setattr(count, "_SAMPLE", 2000)
    (tmp_path / "corpus.jsonl").write_text(rows(1000))
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(rows(5000).encode()))
    guessed = count_records(open_corpus(str(tmp_path / "corpus.jsonl")))
    assert not guessed.exact and 950 <= guessed.number <= 1050
    assert count_records(open_corpus(str(tmp_path / "corpus.jsonl.gz"))) == RecordCount(None, False)
    assert count_records(open_corpus("some/hub-name")) == RecordCount(None, False)
    assert [str(RecordCount(*one)) for one in ((1234, True), (1234, False), (None, False))] == [
        "1,234",
        "about 1,234",
        "an unknown number of",
    ]


def test_a_malformed_record_is_a_user_error(tmp_path):
    (tmp_path / "corpus.jsonl").write_text(rows(3) + "{\n")
    with pytest.raises(UserError, match=r"corpus\.jsonl:4"):
        count_records(open_corpus(str(tmp_path / "corpus.jsonl")))
