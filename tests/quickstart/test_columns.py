"""The guess of columns, and tables with any header."""

from __future__ import annotations

import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.quickstart.columns import Columns, guess_columns, looks_like_header, query_columns, read_table

LONG = "a text of more than eight words that tells something useful"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"id": "1", "title": "Hens", "text": LONG}, Columns(("text",), "title", "id")),
        ({"Ticket": "1", "Subject": "Hens", "Body": "Short."}, Columns(("Body",), "Subject", "Ticket")),
        ({"sku": "x", "shop text": LONG}, Columns(("shop text",), None, None)),
        ({"title": "Hens"}, Columns(("title",), None, None)),
        ({"question": "Do hens fly?", "answer": "No."}, Columns(("answer",), "question", None)),
        ({"id": "1", "url": f"https://a.b/{LONG}", "body": "Hens"}, Columns(("body",), None, "id")),
        ({"番号": "1", "本文": "鶏は毎日卵を産みますが冬は休みます。"}, Columns(("本文",), None, None)),
        ({"text": LONG, "summary": ""}, Columns(("text",), None, None)),
    ],
)
def test_columns_are_guessed_from_names_and_content(row, expected):
    assert guess_columns([row], "docs.csv") == expected


def test_named_columns_replace_the_guess():
    rows = [{"id": "1", "title": "Hens", "text": LONG, "summary": LONG}]
    found = guess_columns(rows, "docs.csv", ["summary", "text"], "", "title")
    assert found == Columns(("summary", "text"), None, "title")
    with pytest.raises(UserError, match=r"no column 'body' \(--text_column\)") as error:
        guess_columns(rows, "docs.csv", ["body"])
    assert error.value.hint == "it has id, title, text, summary"


def test_two_columns_of_text_ask_for_the_flag():
    with pytest.raises(
        UserError, match=r"docs\.csv: 2 columns could be the text: text \(11 words\) and my notes"
    ) as error:
        guess_columns([{"id": "1", "text": LONG, "my notes": LONG}], "docs.csv")
    assert error.value.hint == "name one: --text_column text, or join them: --text_column text 'my notes'"


def test_no_column_of_text_asks_for_the_flag():
    with pytest.raises(UserError, match="no column of texts") as error:
        guess_columns([{"colour": "red", "shape": "round"}], "docs.csv")
    assert "--text_column, one of colour, shape" in error.value.hint


def test_columns_of_queries():
    assert query_columns([{"qid": "1", "question": "Do hens fly?"}], "q.csv") == Columns(("question",), None, "qid")
    assert query_columns([{"anything": "Do hens fly?"}], "q.csv") == Columns(("anything",), None, None)
    with pytest.raises(UserError, match="no column of queries: it has a, b"):
        query_columns([{"a": "x", "b": "y"}], "q.csv")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["Ticket", "Body text"], True),
        (["", "title", "text"], True),
        (["7", "Hens lay eggs."], False),
        (["Hens lay eggs and more words"], False),
        (["red", "red"], False),
        (["Yes.", "No."], False),
        ([], False),
    ],
)
def test_a_header_is_told_from_values(cells, expected):
    assert looks_like_header(cells) is expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "Nr,Text\n1,Hens\n"),
        ("a.csv", 'Nr;Text\n1;"Hens"\n'),
        ("a.csv", "\ufeffNr,Text\r\n1,Hens\r\n"),
        ("a.tsv", "Nr\tText\n1\tHens\n"),
        ("a.jsonl", '{"Nr": "1", "Text": "Hens"}\n'),
    ],
)
def test_tables_with_any_header(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8", newline="")
    assert [row for _, row in read_table(path)] == [{"Nr": "1", "Text": "Hens"}]


def test_a_tsv_file_without_a_header(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("1\tHens lay eggs.\n2\tDucks swim.\n")
    assert [row["docid"] for _, row in read_table(path)] == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "what", "hint"),
    [
        (
            "a.csv",
            b"1,Hens lay eggs.\n2,Ducks swim.\n",
            "looks like values, not like names",
            "let the first line name the columns",
        ),
        ("a.csv", b"id,text\n1,Hens\n2,Ducks, too\n", "a.csv:3: 3 cells, the header names 2", "double quotes"),
        ("a.tsv", b"id\ttext\n1\tHens\n2\n", "a.tsv:3: 1 column, the first line has 2", "one tab"),
        ("a.tsv", b"1\t2\t3\t4\n", "a.tsv:1: no header, and 4 columns", "let the first line"),
        ("a.csv", b"PK\x03\x04\xff\x00\x01", "a.csv:1: binary data", "save the table as csv"),
        ("a.csv", b"id,text\n1,caf\xe9\n", "a.csv:2: not UTF-8 .byte 6 of the line.", "--encoding latin-1"),
    ],
)
def test_malformed_tables(tmp_path, name, content, what, hint):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=what) as error:
        list(read_table(tmp_path / name))
    assert hint in error.value.hint


def test_other_encodings(tmp_path):
    (tmp_path / "a.csv").write_bytes("id,text\n1,café\n".encode("latin-1"))
    assert [row["text"] for _, row in read_table(tmp_path / "a.csv", "latin-1")] == ["café"]
