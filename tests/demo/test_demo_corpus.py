"""The collection made from docstrings: queries, passages and splits."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from starbucks_retrieval import UserError
from starbucks_retrieval.data import check_qrels, open_corpus, open_queries, read_qrels
from starbucks_retrieval.demo import Settings
from starbucks_retrieval.demo.corpus import (
    SPLITS,
    build_corpus,
    find_modules,
    normalized_words,
    read_entries,
    source_files,
    split_docstring,
)

REST = "It explains itself at some length, with more than enough words to be a passage that somebody might look for."
SMALL = Settings(passages=1000, test_share=0.2, dev_share=0.2)


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_splits_share_no_module_and_their_qrels_are_valid(tmp_path, library):
    figures = build_corpus(tmp_path / "data", library, SMALL)
    modules = [set(figures["modules"][name]) for name in SPLITS]
    assert all(modules)
    assert set.union(*modules) == {path.stem for path in library}
    assert sum(map(len, modules)) == len(library)
    docids = {passage.docid for passage in open_corpus(str(tmp_path / "data"))}
    query_ids = {query.query_id for query in open_queries(str(tmp_path / "data"))}
    assert figures["passages"] == len(docids) == 80
    assert "module0.inner.deep.f4" in docids and "module0.f0" in docids
    assert not docids & query_ids
    for name, expected in zip(SPLITS, modules):
        qrels = read_qrels(str(tmp_path / "data"), split=name)
        check_qrels(qrels, query_ids, docids, name)
        assert {docid.split(".")[0] for grades in qrels.values() for docid in grades} == expected
        assert len(qrels) == figures[f"{name}_queries"] == 8 * len(expected)


def test_a_query_is_not_in_its_passage(tmp_path, library):
    build_corpus(tmp_path, library, SMALL)
    passages = {passage.docid: passage for passage in open_corpus(str(tmp_path))}
    for query in open_queries(str(tmp_path)):
        passage = passages[query.query_id.removeprefix("q:")]
        assert normalized_words(query.text) not in normalized_words(passage.text)
        assert passage.title == ""


def test_the_sample_depends_on_the_sources_and_the_seed_only(tmp_path, library):
    settings = dataclasses.replace(SMALL, passages=50, per_module=6, test_queries=5)
    for name, changed in (("a", settings), ("b", settings), ("c", dataclasses.replace(settings, seed=1))):
        figures = build_corpus(tmp_path / name, library, changed)
        assert figures["passages"] == 50
        assert figures["test_queries"] == 5
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b") != files_of(tmp_path / "c")


def test_repeated_summaries_and_passages_are_dropped(tmp_path, library):
    twice = tmp_path / "twice.py"
    twice.write_text(
        f'def a():\n    """Do the very same thing.\n\n    One. {REST}"""\n'
        f'def b():\n    """Do the very  same thing!\n\n    Two. {REST}"""\n'
        f'def c():\n    """Do the third of things.\n\n    Same. {REST}"""\n'
        f'def d():\n    """Do the fourth of things.\n\n    Same. {REST}"""\n'
        f'def e():\n    """Do the fifth of things.\n\n    Alone. {REST}"""\n'
    )
    build_corpus(tmp_path / "data", [*library, twice], SMALL)
    docids = {passage.docid for passage in open_corpus(str(tmp_path / "data"))}
    assert {docid for docid in docids if docid.startswith("twice.")} == {"twice.e"}


def test_too_few_docstrings_are_a_user_error(tmp_path, library):
    with pytest.raises(UserError, match="only 8 usable docstrings in 1 modules"):
        build_corpus(tmp_path, library[:1], SMALL)


def test_only_public_docstrings_are_read_and_no_code_runs(tmp_path):
    package = tmp_path / "package"
    doc = f'"""Say what {{}} is for.\n\n    {REST}"""'
    (package / "tests").mkdir(parents=True)
    (package / "_private").mkdir()
    for path in ("tests/a.py", "_private/a.py", "test_a.py", "conftest.py"):
        (package / path).write_text(doc.format(path))
    (package / "broken.py").write_text("def (:\n")
    (package / "api.py").write_text(
        f"{doc.format('this module')}\nraise SystemExit\n"
        f"class Thing:\n    {doc.format('the class')}\n    def method(self):\n        {doc.format('the method')}\n"
        f"    def _hidden(self):\n        {doc.format('nothing')}\n"
        f"    def __init__(self):\n        {doc.format('construction')}\n"
        f"if True:\n    async def late():\n        {doc.format('the branch')}\n        def inner():\n            {doc.format('inside')}\n"
    )
    files = source_files(package)
    assert [path.name for path in files] == ["api.py", "broken.py"]
    found = [entry.docid for path in files for entry in read_entries(package, path)]
    assert found == ["package.api", "package.api.Thing", "package.api.Thing.method", "package.api.late"]


@pytest.mark.parametrize(
    ("docstring", "summary"),
    [
        (f"Read a file, e.g. From disk. {REST}", "Read a file, e.g. From disk"),
        (f"Return a\n  :class:`~a.b.Thing` of ``x``:\n\n{REST}", "Return a a.b.Thing of x"),
        (f"Return self.\n\n{REST}", None),
        ("Say something short about it.\n\nToo short a rest.", None),
        (f"frombuffer(data, size) -> image or None\n\n{REST}", None),
        (f"A heading of words\n==================\n\n{REST}", None),
        (f"Say what it does.\n\nThis will say what it does. {REST}", None),
        (f"Hold half a \ud800 character here.\n\n{REST}", None),
        ("", None),
    ],
)
def test_a_docstring_is_split_into_summary_and_passage(docstring, summary):
    pair = split_docstring(docstring)
    assert (pair and pair[0]) == summary
    if pair:
        assert pair[1] == REST


def test_installed_modules_are_found_without_an_import():
    modules = find_modules()
    stems = {path.stem for path in modules}
    assert {"json", "argparse", "torch", "numpy", "antigravity"} <= stems
    assert "antigravity" not in sys.modules  # whose import opens a browser
    assert all(path.exists() for path in modules)
    assert not any(stem.startswith("_") for stem in stems)


def test_files_follow_the_beir_format(tmp_path, library):
    build_corpus(tmp_path, library, SMALL)
    first = json.loads((tmp_path / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert set(first) == {"_id", "title", "text"}
    assert (tmp_path / "qrels" / "test.tsv").read_text().startswith("query-id\tcorpus-id\tscore\n")
