"""The command browse: what is on the page, what is refused, what is served."""

from __future__ import annotations

import base64
import http.client
import json
import re
import subprocess
import sys
import threading
import zlib
from functools import partial

import pytest

from starbucks_retrieval.browse import BrowseArguments, browse
from starbucks_retrieval.browse.__main__ import Server, main
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError


@pytest.fixture
def here(small_set, monkeypatch):
    monkeypatch.chdir(small_set.parent)
    return small_set.parent


def page(here, *argv):
    assert run_command(main, [*argv, "--quiet"]) == 0
    return (here / "browse.html").read_text(encoding="utf-8")


def texts(html):
    """Texts of the passages on a page: title, visible start, the rest, and the number of characters that are left out."""
    packed = re.search(r"<script type='text/plain' id='passages'>([A-Za-z0-9+/=]*)</script>", html)[1]
    return [tuple(text) for text in json.loads(zlib.decompress(base64.b64decode(packed)))]


def queries(html):
    return re.findall(r"<details class='query card'.*?<bdi class='id'>(\w+)</bdi>", html)


def test_runs_first_and_everything_else_by_the_folder(here, capsys):
    assert run_command(main, ["small.trec", "big.trec", "--corpus", "set", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [run["label"] for run in figures["runs"]] == ["small", "big"]
    assert (figures["queries"], figures["shown"], figures["measure"]) == (4, 4, "nDCG@10")
    one = figures["runs"][1]
    assert (one["better"], one["worse"], one["gained"], one["lost"]) == (1, 1, 0, 0)
    html = (here / "browse.html").read_text(encoding="utf-8")
    assert figures["bytes"] == len(html.encode())
    assert queries(html) == ["q2", "q1", "q3", "q4"]  # what changes most comes first
    assert "↑ from 2" in html and "↓ from 1" in html and ">new<" in html
    starts = [start for _, start, _, _ in texts(html)]
    assert "text 7 " + "word " * 6 + "word" in starts and not [start for start in starts if "text 20" in start]
    assert len(starts) == len(set(starts)) == figures["passages"]  # a passage of several lists is on the page once


def test_gained_and_lost_passages_are_marked(here):
    html = page(here, "small.trec", "big.trec", "--corpus", "set", "--depth", "2")
    lost = html.split("Lost: relevant in small’s first 2")[1]
    assert "was 1, now 3" in lost and ">d3<" in lost.split("</li>")[0]
    assert html.count("<span class='badge gained'>gained</span>") == 1 + 1  # d2 of q1, and the legend


def test_everything_is_escaped(here):
    html = page(here, "small.trec", "big.trec", "--corpus", "set", "--title", "<b>&", "--label", "<i>", "big'\"")
    assert "<script>alert" not in html and "<img" not in html
    assert html.count("</details>") == html.count("<details")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html and "<title>&lt;b&gt;&amp;</title>" in html
    assert "big&#39;&#34;" in html


def test_nothing_is_fetched_from_anywhere(here):
    html = page(here, "small.trec", "--corpus", "set")
    assert not re.findall(r"(?:src|href)=[\"'](?!data:,)", html.split("</head>")[0])
    assert "default-src 'none'" in html and "http://" not in html and "https://" not in html


def test_without_judgements_runs_are_compared_by_what_they_share(here):
    html = page(here, "small.trec", "big.trec", "--corpus", "set/corpus.jsonl", "--queries", "set/queries.jsonl")
    assert queries(html) == ["q2", "q1", "q3"]
    assert "3 of 3 shared with small" in html and "nDCG" not in html and "relevant" not in html.split("</style>")[1].split("<script>")[0]  # fmt: skip


def test_limits_on_queries_and_text(here):
    html = page(here, "small.trec", "big.trec", "--corpus", "set", "--max_queries", "1", "--max_text", "12")
    assert queries(html) == ["q2"]
    assert "1 of 4 judged queries, those that change most" in html
    assert ("title 12", "text 12 word", "", 55) in texts(html)
    assert queries(page(here, "small.trec", "--corpus", "set", "--max_queries", "2", "--pick", "first")) == ["q1", "q2"]
    drawn = [
        queries(
            page(here, "big.trec", "--corpus", "set", "--max_queries", "2", "--pick", "random", "--seed", str(seed))
        )
        for seed in (1, 1, 2, 3, 4)
    ]
    assert drawn[0] == drawn[1] and len({tuple(ids) for ids in drawn}) > 1


def test_the_rest_of_a_long_text_opens(here):
    html = page(here, "big.trec", "--corpus", "set", "--max_text", "50", "--qrels", "set", "--relevance", "2")
    assert any(hidden and len(start) + len(rest) == 50 for _, start, rest, hidden in texts(html))
    assert "relevant (grade 2 or more)" in html


def test_a_passage_that_the_corpus_lacks_is_said(here, caplog):
    (here / "odd.trec").write_text("q1 Q0 d1 1 2 x\nq1 Q0 gone 2 1 x\n")
    html = page(here, "odd.trec", "--corpus", "set")
    assert "not in the corpus" in html


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["--corpus", "set"], "--run is missing"),
        (["small.trec"], "--corpus is missing"),
        (["small.trec", "--corpus", "set/corpus.jsonl"], "--queries is missing"),
        (["nope.trec", "--corpus", "set"], "nope.trec"),
        (["small.trec", "--corpus", "set", "--split", "dev"], "dev"),
        (["small.trec", "--corpus", "set", "--measure", "nDCG@10 RR@10"], "names 2 measures"),
        (["small.trec", "--corpus", "set", "--measure", "NumRet"], "is no mean"),
        (["small.trec", "big.trec", "--corpus", "set", "--label", "one"], "1 labels for 2 runs"),
        (["small.trec", "--corpus", "set", "--depth", "0"], "--depth 0"),
        (["foreign.trec", "--corpus", "set"], "share no query"),
        (["foreign.trec", "--corpus", "set/corpus.jsonl", "--queries", "set/queries.jsonl"], "none of the queries"),
        (["wrong.trec", "--corpus", "set", "--qrels", "other.tsv"], "none of the passages"),
        (["small.trec", "--corpus", "set", "--output", "set"], "is a folder"),
        (["small.trec", "--corpus", "set", "--serve", "--port", "99999"], "cannot serve"),
    ],
)
def test_refusals_write_nothing(here, capsys, argv, what):
    (here / "foreign.trec").write_text("x9 Q0 d1 1 2 x\n")
    (here / "wrong.trec").write_text("q1 Q0 other 1 2 x\n")
    (here / "other.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tother\t1\n")
    assert run_command(main, argv) == 2
    assert what in capsys.readouterr().err
    assert not (here / "browse.html").exists()


def test_identical_ids_are_left_out_on_request(here):
    (here / "set" / "corpus.jsonl").write_text(
        '{"_id": "q1", "title": "", "text": "myself"}\n{"_id": "d1", "text": "t"}\n'
    )
    (here / "own.trec").write_text("q1 Q0 q1 1 2 x\nq1 Q0 d1 2 1 x\n")
    kept = browse(BrowseArguments("own.trec", "set", depth=2))
    left = browse(BrowseArguments("own.trec", "set", depth=2, remove_identical_ids=True))
    assert "myself" in str(texts(kept.html)) and "myself" not in str(texts(left.html))


def test_pages_stay_below_two_megabytes_unless_a_length_is_named(here, monkeypatch):
    words = ["".join(chr(97 + (i * j * j) % 26) for j in range(1, 10)) for i in range(2000)]
    rows = [{"_id": f"d{i}", "text": " ".join(words[(i * 37) % 1500 :][:160])} for i in range(30)]
    (here / "set" / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = browse(BrowseArguments("small.trec", "set"))
    assert whole.figures["max_text"] == 1500 and max(map(packed_length, texts(whole.html))) == 1500
    monkeypatch.setattr("starbucks_retrieval.browse._BYTES", whole.figures["bytes"] - 1)
    shorter = browse(BrowseArguments("small.trec", "set"))
    assert shorter.figures["bytes"] < whole.figures["bytes"] and shorter.figures["max_text"] == 1200
    assert max(map(packed_length, texts(shorter.html))) == 1200
    assert browse(BrowseArguments("small.trec", "set", max_text=1500)).html == whole.html


def packed_length(text):
    return len(text[1]) + len(text[2])


def test_serving_on_loopback_alone():
    with Server("<p>ünïcode</p>") as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            answers = [ask(server, "/"), ask(server, "/other"), ask(server, "/", host="evil.example")]
            with pytest.raises(UserError, match="cannot serve"):
                Server("", server.port)
        finally:
            server.stop()
            thread.join()
    assert [status for status, _ in answers] == [200, 404, 403]
    assert answers[0][1].decode() == "<p>ünïcode</p>" and b"code" not in answers[2][1].replace(b"Error code", b"")
    assert server.url.startswith("http://127.0.0.1:")


def ask(server, path, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_command_serves_until_interrupted(here):
    import signal

    command = [sys.executable, "-m", "starbucks_retrieval.browse", "small.trec", "--corpus", "set", "--serve"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs are deaf to it
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    try:
        url = process.stdout.readline().strip()
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/", url)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/")
        assert b"zebra crossing" in connection.getresponse().read()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 0
    assert not (here / "browse.html").exists()
