"""Validation in one pass: counts, digest, duplicates, memory; and counting records where that is cheap."""

import gzip
import json
import logging
import sys
import tracemalloc

import pytest

from starbucks_retrieval.data import open_corpus, open_groups, open_queries, scan
from starbucks_retrieval.data.records import RecordCount, count_records
from starbucks_retrieval.errors import UserError


@pytest.fixture
def corpus(tmp_path):
    def write(rows, name="c.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return open_corpus(str(path))

    return write


def test_what_a_scan_counts(corpus, caplog):
    rows = [
        {"id": "a", "text": "x"},
        {"id": "b c", "text": " \n"},
        {"id": "☕☕", "title": "title only", "text": ""},
        {"id": "n\u00a0b", "title": " ", "text": ""},
    ]
    with caplog.at_level(logging.WARNING):
        found = scan(corpus(rows))
    assert (found.count, found.empty, found.longest_id, found.ids_with_whitespace) == (4, 2, 6, 2)
    assert len(found.digest) == 32
    assert "2 of 4 passages have no text; they are kept" in caplog.text


def test_no_warning_without_empty_texts(corpus, caplog):
    assert scan(corpus([{"id": "a", "text": "x"}])).empty == 0
    assert not caplog.records


def test_digest_is_of_the_content_and_not_of_the_format(corpus, tmp_path):
    digest = scan(corpus([{"id": "a", "text": "x"}, {"id": "b", "text": "y"}])).digest
    (tmp_path / "c.tsv").write_text("a\tx\nb\ty\n")
    assert scan(open_corpus(str(tmp_path / "c.tsv"))).digest == digest
    others = [
        [{"id": "b", "text": "y"}, {"id": "a", "text": "x"}],
        [{"id": "a", "text": "x"}],
        [{"id": "a", "text": "x"}, {"id": "b", "title": "y", "text": ""}],
        [{"id": "a", "text": "xb"}, {"id": "b", "text": "y"}],
        [{"id": "ax", "text": ""}, {"id": "b", "text": "y"}],
    ]
    assert digest not in {scan(corpus(rows)).digest for rows in others}


def test_duplicate_id_names_both_lines(corpus):
    rows = [{"id": str(i), "text": "x"} for i in range(50)] + [{"id": "17", "text": "another"}]
    with pytest.raises(UserError) as raised:
        scan(corpus(rows))
    assert raised.value.what.endswith("c.jsonl:51: the id '17' occurs a second time, first at line 18")


def test_integer_and_string_of_one_id_are_duplicates(corpus):
    with pytest.raises(UserError, match=r"c\.jsonl:2: the id '1' occurs a second time, first at line 1"):
        scan(corpus([{"id": 1, "text": "x"}, {"id": "1", "text": "y"}]))


def test_equal_hashes_of_different_ids_are_no_duplicates(corpus, monkeypatch):
    # The package's attribute `scan` is the function; its module is found by name.
    monkeypatch.setattr(sys.modules[scan.__module__], "hash", len, raising=False)
    records = corpus([{"id": name, "text": "x"} for name in ("a", "b", "cc", "dd", "eee")])
    assert scan(records).count == 5
    with pytest.raises(UserError, match=r"c\.jsonl:4: the id 'b' occurs a second time, first at line 2"):
        scan(corpus([{"id": name, "text": "x"} for name in ("a", "b", "cc", "b", "eee")]))


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "the id is empty"), ("a\nb", "holds a line break"), ("a\rb", "holds a line break"), ("a\0b", "or NUL")],
)
def test_ids_that_no_file_can_hold(corpus, name, message):
    with pytest.raises(UserError, match=r"c\.jsonl:2: ") as raised:
        scan(corpus([{"id": "fine", "text": "x"}, {"id": name, "text": "x"}]))
    assert message in raised.value.what


def test_nothing_at_all(corpus, tmp_path):
    with pytest.raises(UserError, match=r"c\.jsonl holds no passages"):
        scan(corpus([]))
    (tmp_path / "q.tsv").write_text("query_id\tquery\n")
    with pytest.raises(UserError, match=r"q\.tsv holds no queries"):
        scan(open_queries(str(tmp_path / "q.tsv")), "queries")


def test_bad_line_stops_the_scan(corpus):
    with pytest.raises(UserError, match=r"c\.jsonl:2: no column"):
        scan(corpus([{"id": "a", "text": "x"}, {"id": "b"}]))


def test_groups(tmp_path, caplog):
    path = tmp_path / "g.jsonl"
    rows = [{"query": "q", "positive": "p"}, {"query": "q", "positive": ""}, {"query": "", "positive": "p"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with caplog.at_level(logging.WARNING):
        found = scan(open_groups(str(path)), "groups")
    assert (found.count, found.empty) == (3, 2)  # and the query that comes twice is no error
    assert "2 of 3 groups lack the text of the query or of a passage; they are kept" in caplog.text
    path.write_text(json.dumps({"query": "q", "positive": "p", "negative": "n"}))
    one = scan(open_groups(str(path)), "groups").digest
    path.write_text(json.dumps({"query": "q", "positive": ["p", "n"]}))
    assert scan(open_groups(str(path)), "groups").digest != one


def test_memory_stays_near_eight_bytes_per_record(tmp_path):
    import numpy  # noqa: F401 - its import must not count

    scan_of = {}
    for count in (1_000, 6_000):
        path = tmp_path / f"{count}.tsv"
        path.write_text("".join(f"document-with-a-long-name-{i:09d}\tsome text\n" for i in range(count)))
        records = open_corpus(str(path))
        tracemalloc.start()
        assert scan(records).count == count
        scan_of[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    per_record = (scan_of[6_000] - scan_of[1_000]) / 5_000
    assert per_record < 24  # a set of these ids would take over 120


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
    monkeypatch.setattr(sys.modules[scan.__module__], "SMALL_FILE", 1000)
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"docid": "long", "text": "w " * 9000}) + "\n" + rows(999))
    assert count_records(open_corpus(str(tmp_path / "corpus.jsonl"))) == RecordCount(1000, False)
    monkeypatch.setattr(sys.modules[scan.__module__], "_COUNTED", 16000)
    monkeypatch.setattr(sys.modules[scan.__module__], "_BLOCK", 500)
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(rows(5000).encode()))
    guessed = count_records(open_corpus(str(tmp_path / "corpus.jsonl")))
    assert not guessed.exact and 700 <= guessed.number <= 1300
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
