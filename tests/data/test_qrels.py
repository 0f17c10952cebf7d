"""Judgements: TREC and BEIR layouts, and malformed lines."""

import gzip

import pytest

from starbucks_retrieval.data import check_qrels, read_qrels
from starbucks_retrieval.errors import UserError

LAYOUTS = {
    "TREC": "1 0 a 2\n1 0 b -1\n2 Q0 a 0\n",
    "TREC, runs of blanks": "1  0   a 2\n1 0 b  -1 \n2 \t 0 a 0\n",
    "TREC by tabs": "1\t0\ta\t2\n1\t0\tb\t-1\n2\t0\ta\t0\n",
    "BEIR": "query-id\tcorpus-id\tscore\n1\ta\t2\n1\tb\t-1\n2\ta\t0\n",
    "BEIR, CRLF": "query-id\tcorpus-id\tscore\r\n1\ta\t2\r\n1\tb\t-1\r\n2\ta\t0\r\n",
    "BEIR, columns in another order": "score\tquery_id\tdocid\n2\t1\ta\n-1\t1\tb\n0\t2\ta\n",
    "BEIR without header": "1\ta\t2\n1\tb\t-1\n2\ta\t+0\n",
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("zipped", [False, True])
def test_layouts(tmp_path, layout, zipped):
    path = tmp_path / ("qrels.any.gz" if zipped else "qrels.any.txt")
    content = LAYOUTS[layout].encode()
    path.write_bytes(gzip.compress(content) if zipped else content)
    assert read_qrels(str(path)) == {"1": {"a": 2, "b": -1}, "2": {"a": 0}}


def test_ids_with_spaces_and_unicode_between_tabs(tmp_path):
    (tmp_path / "q.tsv").write_text("query-id\tcorpus-id\tscore\nq 1\tGlobal warming:170\t1\n☕\tكتاب\t1\n", "utf-8")
    assert read_qrels(str(tmp_path / "q.tsv")) == {"q 1": {"Global warming:170": 1}, "☕": {"كتاب": 1}}


def test_beir_folder(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t1\n")
    (tmp_path / "qrels" / "dev.tsv.gz").write_bytes(gzip.compress(b"query-id\tcorpus-id\tscore\n2\ta\t1\n"))
    assert read_qrels(str(tmp_path)) == {"1": {"a": 1}}
    assert read_qrels(str(tmp_path), split="dev") == {"2": {"a": 1}}
    with pytest.raises(UserError, match=r"holds no qrels/train\.tsv") as raised:
        read_qrels(str(tmp_path), split="train")
    assert raised.value.hint == "it has the splits dev, test"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 0 a 1\n1 0 b\n", ":2: 3 columns, wanted 4"),
        ("1 0 a 1\n1 0 b 1 extra\n", ":2: 5 columns, wanted 4"),
        ("1 0 a 1\n1 0 b high\n", ":2: the grade 'high' is not an integer"),
        ("1 0 a 1\n1 0 b 0.5\n", ":2: the grade '0.5' is not an integer"),
        ("1 0 a 1_0\n", ":1: the grade '1_0' is not an integer"),
        ("1 0 a 1\n1 0 b 99999999999999999999\n", ":2: the grade '99999999999999999999' is not an integer of 32 bits"),
        ("1 0 a 1\n1 0 b " + "9" * 5000 + "\n", f":2: the grade '{'9' * 59}… is not an integer"),
        ("1 0 a 1\n1 0 b -2147483649\n", ":2: the grade '-2147483649' is not an integer of 32 bits"),
        ("1 0 a 1\n\n1 0 a 2\n", ":3: query 1 and document a get grade 2, and 1 above"),
        ("1\ta\t1\n1\tb\n", ":2: 2 columns, wanted 3"),
        ("topic\tcorpus-id\tscore\n1\ta\t1\n", ":1: neither a judgement nor a header"),
        ("query-id\tcorpus-id\tscore\n1\ta\t\n", ":2: the grade '' is not an integer"),
        ("1\n", ":1: 1 columns, wanted 4"),
        ("", " holds no judgements"),
        ("query-id\tcorpus-id\tscore\n", " holds no judgements"),
    ],
)
def test_bad_lines(tmp_path, content, message):
    path = tmp_path / "qrels.txt"
    path.write_text(content)
    with pytest.raises(UserError) as raised:
        read_qrels(str(path))
    assert raised.value.what.startswith(f"{path}{message}")
    assert raised.value.hint


def test_not_utf8(tmp_path):
    (tmp_path / "qrels.txt").write_bytes(b"1 0 a 1\n1 0 caf\xe9 1\n")
    with pytest.raises(UserError, match=r"qrels\.txt:2: not UTF-8"):
        read_qrels(str(tmp_path / "qrels.txt"))


def test_the_same_judgement_twice_is_harmless(tmp_path):
    (tmp_path / "qrels.txt").write_text("1 0 a 1\n1 0 a 1\n")
    assert read_qrels(str(tmp_path / "qrels.txt")) == {"1": {"a": 1}}


def test_missing_file():
    with pytest.raises(UserError, match=r"no such file: \./nowhere\.txt"):
        read_qrels("./nowhere.txt")


def test_check_qrels_names_the_first_unknown_id_and_the_count():
    qrels = {"1": {"a": 1, "x": 0}, "2": {"x": 1, "y": 1}}
    check_qrels(qrels, {"1", "2", "3"}, {"a", "x", "y", "z"}, "qrels.txt")
    check_qrels(qrels, None, None, "qrels.txt")
    with pytest.raises(UserError, match=r"qrels\.txt judges 2 documents not in the corpus, the first is 'x'"):
        check_qrels(qrels, None, {"a"}, "qrels.txt")
    with pytest.raises(UserError, match=r"qrels\.txt judges 1 query not among the queries, the first is '2'"):
        check_qrels(qrels, {"1"}, None, "qrels.txt")
