"""Documents of tables and folders, and queries."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from starbucks_retrieval.data import Passage, Query
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.quickstart import QuickstartArguments
from starbucks_retrieval.quickstart.documents import open_documents, read_queries
from starbucks_retrieval.quickstart.folders import read_text_file

LONG = "a text of more than eight words that tells something useful"


def found(path, **flags):
    return list(open_documents(QuickstartArguments(str(path), **flags)))


def test_documents_of_a_table(tmp_path):
    path = tmp_path / "docs.csv"
    path.write_text(f"Ticket,Subject,Body\nT1,Hens,{LONG}\nT2,,\n")
    documents = open_documents(QuickstartArguments(str(path)))
    assert list(documents) == [Passage("T1", "Hens", LONG), Passage("T2", "", "")]
    assert documents.count == 2
    assert documents.told == (
        "2 rows, texts from column Body (--text_column), titles from Subject (--title_column), ids from Ticket (--id_column)"
    )
    assert found(path, text_column=["Subject", "Body"], id_column="")[0] == Passage("1", "", f"Hens\n{LONG}")


def test_repeated_ids_give_way_to_row_numbers_unless_they_are_named(tmp_path):
    path = tmp_path / "docs.jsonl"
    path.write_text('{"id": 7, "text": "Hens"}\n{"id": 7, "text": "Ducks"}\n')
    documents = open_documents(QuickstartArguments(str(path)))
    assert [document.docid for document in documents] == ["1", "2"]
    assert "column id has empty or repeated ids" in documents.told
    with pytest.raises(UserError, match="column id has empty or repeated ids"):
        found(path, id_column="id")


def test_documents_of_a_folder(tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.txt").write_text("hidden")
    (tmp_path / "a b" / "my-notes.txt").write_text("Hens lay eggs.\r\n")
    (tmp_path / "page.md").write_text("---\ntitle: 'About hens'\n---\n\n# Other\n\nThey swim.\n")
    (tmp_path / "plain.md").write_text("Text first.\n\n# Ducks #\n")
    (tmp_path / "title.md").write_text("# Geese\n\nThey honk.\n")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG\0")
    documents = open_documents(QuickstartArguments(str(tmp_path)))
    assert list(documents) == [
        Passage("a%20b/my-notes.txt", "my notes", "Hens lay eggs."),
        Passage("page.md", "About hens", "# Other\n\nThey swim."),
        Passage("plain.md", "Ducks", "Text first.\n\n# Ducks #"),
        Passage("title.md", "Geese", "They honk."),
    ]
    assert documents.told.startswith("4 files (3 .md, 1 .txt); not read: 1 .png")
    assert [document.title for document in found(tmp_path / "page.md")] == ["About hens"]


def test_a_folder_with_a_corpus_is_read_as_a_table(tmp_path):
    (tmp_path / "corpus.csv").write_text("id,text\n1,Hens\n")
    assert found(tmp_path) == [Passage("1", "", "Hens")]


def test_html_is_read_with_trafilatura(tmp_path, monkeypatch):
    page = tmp_path / "p.html"
    page.write_text("<title>Hens</title><p>They lay eggs.</p>")
    extracted = {page.read_bytes(): SimpleNamespace(title="Hens", text="They lay eggs."), b"<p>x</p>": None}
    stand_in = SimpleNamespace(bare_extraction=lambda raw, **_: extracted[raw], html2txt=lambda raw: "x")
    monkeypatch.setitem(sys.modules, "trafilatura", stand_in)
    assert found(tmp_path) == [Passage("p.html", "Hens", "They lay eggs.")]
    page.write_text("<p>x</p>")
    assert read_text_file(page, tmp_path) == Passage("p.html", "p", "x")
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    with pytest.raises(UserError, match="trafilatura, which is not installed") as error:
        open_documents(QuickstartArguments(str(tmp_path)))
    assert "starbucks_retrieval[html]" in error.value.hint


def test_trafilatura_itself(tmp_path):
    pytest.importorskip("trafilatura")
    text = "".join(f"<p>Refunds of order {i} are paid within fourteen days of the request.</p>" for i in range(9))
    (tmp_path / "p.html").write_text(f"<html><title>Refunds</title><nav>Home</nav><article>{text}</article></html>")
    [page] = found(tmp_path)
    assert page.title == "Refunds" and page.text.count("fourteen days") == 9
    (tmp_path / "p.html").write_text("")
    assert found(tmp_path) == [Passage("p.html", "p", "")]


@pytest.mark.parametrize(
    ("files", "what", "hint"),
    [
        ({}, "holds no files", "name a folder of"),
        ({"a.png": b"\x89PNG", "b.pdf": b"%PDF", "c.pdf": b""}, "but 2 .pdf, 1 .png", "pdftotext"),
        ({"a.csv": b"id,text\n"}, "no texts, but tables", "a.csv"),
        ({"a.txt": b"x\0y"}, "a.txt: binary data", "take it out"),
        ({"a.txt": b"caf\xe9"}, "a.txt: not UTF-8 .byte 4 of the file.", "--encoding latin-1"),
        ({"corpus.csv": b"id,text\n"}, "corpus.csv holds no rows", "check the file"),
    ],
)
def test_folders_that_cannot_be_read(tmp_path, files, what, hint):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=what) as error:
        found(tmp_path)
    assert hint in error.value.hint


@pytest.mark.parametrize(("name", "hint"), [("a.xlsx", "save it as csv"), ("a.xyz", "convert it to one of them")])
def test_other_files_are_refused(tmp_path, name, hint):
    (tmp_path / name).touch()
    with pytest.raises(UserError, match="cannot read") as error:
        found(tmp_path / name)
    assert error.value.hint == hint
    with pytest.raises(UserError, match="no such file or folder"):
        found(tmp_path / "nothing.csv")


def test_a_column_of_a_folder_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match="--text_column names a column"):
        found(tmp_path, text_column=["text"])


def test_queries(tmp_path):
    (tmp_path / "q.txt").write_text("Do hens fly?\n\nDo ducks?\n")
    assert read_queries(tmp_path / "q.txt") == [Query("1", "Do hens fly?"), Query("3", "Do ducks?")]
    (tmp_path / "q.csv").write_text("question\nDo hens fly?\n")
    assert read_queries(tmp_path / "q.csv") == [Query("1", "Do hens fly?")]
    (tmp_path / "q.jsonl").write_text('{"_id": 4, "text": "Do hens fly?"}\n')
    assert read_queries(tmp_path / "q.jsonl") == [Query("4", "Do hens fly?")]
    (tmp_path / "empty.csv").write_text("")
    for name, what in (("empty.csv", "holds no queries"), ("none.csv", "no such file")):
        with pytest.raises(UserError, match=what):
            read_queries(tmp_path / name)
