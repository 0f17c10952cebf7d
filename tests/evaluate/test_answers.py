"""Natural Questions: passages are relevant if they contain an answer, by DPR's tokens."""

from __future__ import annotations

import json
import unicodedata

import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.evaluate.__main__ import main
from starbucks_retrieval.evaluate.answers import has_answer, read_answers


def by_characters(text, answers):
    """The same without regular expressions: tokens are runs of letters, digits and marks, or one other character."""

    def tokens(text):
        found, word = [], ""
        for character in [*unicodedata.normalize("NFD", text), " "]:
            kind = unicodedata.category(character)[0]
            if kind in "LNM":
                word += character
                continue
            found += [word.lower()] * bool(word) + [character.lower()] * (kind not in "ZC")
            word = ""
        return found

    words = tokens(text)
    return any(
        answer and any(words[i : i + len(answer)] == answer for i in range(len(words)))
        for answer in map(tokens, answers)
    )


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        ("It was Ada  Lovelace, in 1843.", ["lovelace , in"], True),
        ("It was Ada Lovelace.", ["Ada L"], False),
        ("Café Müller", ["Cafe\u0301 mu\u0308ller"], True),  # composed or not
        ("Cafe Muller", ["café"], False),
        ("U.S. dollars", ["u . s"], True),
        ("in 1,000 years", ["000"], True),
        ("東京 is large", ["東京"], True),
        ("東京都 is large", ["東京"], False),
        ("tab\u00a0space", ["tab space"], True),
        ("nothing", ["", "  "], False),
        ("a", ["a b"], False),
    ],
)
def test_tokens_are_those_of_dpr(text, answers, expected):
    assert has_answer(text, answers) == by_characters(text, answers) == expected


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {"d1": "by Ada Lovelace", "d2": "no one", "d3": "Paris is a city", "d4": "Lyon"}
    rows = [{"_id": docid, "title": "Paris", "text": text} for docid, text in texts.items()]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = [
        {"query_id": "q1", "answers": ["Ada Lovelace", "Lovelace"]},
        {"query_id": "q2", "answers": '["Paris"]'},
        {"query_id": "q3", "answer": "Rome"},
    ]
    (tmp_path / "nq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    (tmp_path / "run.trec").write_text(
        "q1 Q0 d2 1 3 x\nq1 Q0 d1 2 2 x\nq2 Q0 d4 1 3 x\nq2 Q0 d3 2 2 x\n"  # the title of d4 does not count
    )
    return tmp_path


def test_top_k_accuracy(files, capsys):
    argv = ["--run", "run.trec", "--answers", "nq.jsonl", "--corpus", "corpus.jsonl", "--output", "o.json", "--quiet"]
    assert run_command(main, [*argv, "--measures", "Success@1", "Success@2"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["run", "0.0000", "0.6667"]
    assert run_command(main, argv) == 0
    cells = json.loads((files / "o.json").read_text())["cells"]
    assert {cell["measure"] for cell in cells} == {"Success@20", "Success@100"} and cells[0]["dataset"] == "nq"
    assert cells[0]["values"] == {"q1": 1.0, "q2": 1.0, "q3": 0.0} and cells[0]["count"] == 3


def test_answers_can_be_patterns(files):
    rows = [
        {"query_id": "q1", "patterns": ["^BY\\s+Ada\\b"]},  # no case, and not its tokens
        {"query_id": "q2", "patterns": "[a-z]ari$"},  # a text that begins like a list
        {"query_id": "q3", "answers": ["a.a"]},  # a text
    ]
    (files / "trec.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = read_answers(files / "trec.jsonl")
    assert [has_answer("so\nby  Ada", answers[query]) for query in ("q1", "q2", "q3")] == [True, False, False]
    assert has_answer("Safari\nPARI", answers["q2"]) and not has_answer("ari", answers["q2"])
    (files / "trec.tsv").write_text('query_id\tpatterns\nq1\t["Cafe\u0301|tea"]\n', encoding="utf-8")
    in_tsv = read_answers(files / "trec.tsv")
    assert [*in_tsv] == ["q1"] and has_answer("Caf\u00e9s", in_tsv["q1"])  # composed or not
    (files / "nq.tsv").write_text('query_id\tanswers\nq1\t["Paris"]\n')
    assert read_answers(files / "nq.tsv") == {"q1": ["Paris"]}  # the header is no question


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        ("--answers nq.jsonl", "--answers needs the texts"),
        ("--answers nq.jsonl --corpus corpus.jsonl --qrels q.txt", "both judge"),
        ("--qrels q.txt --corpus corpus.jsonl", "belongs to --answers"),
        ("--answers absent.jsonl --corpus corpus.jsonl", "no file absent.jsonl"),
        ("--answers bad.jsonl --corpus corpus.jsonl", "bad.jsonl:1: no answers"),
        ("--answers wrong.jsonl --corpus corpus.jsonl", "wrong.jsonl:1: 'a(' is no regular expression"),
        ("--answers nq.jsonl --corpus small.jsonl", "lacks 3 passages"),
        ("", "--qrels is missing"),
    ],
)
def test_bad_input_is_two_lines(files, capsys, argv, what):
    (files / "q.txt").write_text("q1 0 d1 1\n")
    (files / "bad.jsonl").write_text('{"query_id": "1", "answers": []}\n')
    (files / "wrong.jsonl").write_text('{"query_id": "1", "patterns": ["a("]}\n')
    (files / "small.jsonl").write_text('{"_id": "d1", "text": "x"}\n')
    assert run_command(main, ["--run", "run.trec", *argv.split()]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 2 and what in error[0]
