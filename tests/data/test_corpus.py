"""Corpora in every local format: what is read, in slices and again, and what each kind of damage is answered with."""

import gzip
import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starbucks_retrieval.data import Passage, join_text, open_corpus
from starbucks_retrieval.data.formats import arrow
from starbucks_retrieval.errors import UserError

PASSAGES = [
    Passage("1", "Espresso", "short and strong"),
    Passage("two words", "", "no title"),
    Passage("☕🏳️‍🌈", "قهوة", "كتاب 書 \u2028 one passage \x0b still one \x85 still"),
    Passage("4", "", ""),
    Passage("5", "title only", ""),
]


def as_rows(passages):
    return [{"docid": p.docid, "title": p.title, "text": p.text} for p in passages]


def write_jsonl(path, rows, **options):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8", newline="") as handle:
        handle.writelines(json.dumps(row, **options) + "\n" for row in rows)
    return str(path)


def write_parquet(path, rows, **options):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return str(path)


def write_arrow(folder, rows, files=2):
    """The layout of datasets.save_to_disk, by hand: quicker than importing datasets."""
    import pyarrow

    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{files:05d}.arrow" for i in range(files)]
    table = pyarrow.Table.from_pylist(rows)
    step = -(-len(rows) // files)
    for i, name in enumerate(names):
        with pyarrow.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table.slice(i * step, step), max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return str(folder)


WRITERS = {
    "jsonl": lambda folder, rows: write_jsonl(folder / "c.jsonl", rows, ensure_ascii=False),
    "escaped jsonl": lambda folder, rows: write_jsonl(folder / "c.json", rows, ensure_ascii=True),
    "jsonl.gz": lambda folder, rows: write_jsonl(folder / "c.jsonl.gz", rows, ensure_ascii=False),
    "parquet": lambda folder, rows: write_parquet(folder / "c.parquet", rows, row_group_size=2),
    "arrow": lambda folder, rows: write_arrow(folder / "c", rows),
    "BEIR folder": lambda folder, rows: write_jsonl(folder / "corpus.jsonl", rows) and str(folder),
    "BEIR folder, gz": lambda folder, rows: write_jsonl(folder / "corpus.jsonl.gz", rows) and str(folder),
}


@pytest.mark.parametrize("form", WRITERS)
def test_every_format_gives_the_passages_again_and_again(form, tmp_path):
    corpus = open_corpus(WRITERS[form](tmp_path, as_rows(PASSAGES)))
    assert list(corpus) == PASSAGES
    assert list(corpus) == PASSAGES


@pytest.mark.parametrize("form", WRITERS)
def test_every_format_gives_the_same_slices_and_line_numbers(form, tmp_path):
    corpus = open_corpus(WRITERS[form](tmp_path, as_rows(PASSAGES)))
    for start in range(7):
        for stop in (None, 0, 1, 2, 3, 4, 5, 6):
            assert list(corpus.rows(start, stop)) == PASSAGES[start:stop], (start, stop)
    assert [number for number, _ in corpus.numbered(1, 4)] == [2, 3, 4]


@pytest.mark.parametrize("ending", ["tsv", "tsv.gz", "txt"])
@pytest.mark.parametrize("columns", [2, 3])
def test_tsv(tmp_path, ending, columns):
    path = tmp_path / f"c.{ending}"
    passages = [p if columns == 3 else Passage(p.docid, "", p.text) for p in PASSAGES]
    lines = [(p.docid, p.title, p.text) if columns == 3 else (p.docid, p.text) for p in passages]
    content = "".join("\t".join(line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    assert list(open_corpus(str(path))) == passages
    assert list(open_corpus(str(path)).rows(2, 4)) == passages[2:4]


def test_tsv_quotes_are_text(tmp_path):
    (tmp_path / "c.tsv").write_text('1\t"one\n2\ttwo" "\n')
    assert [p.text for p in open_corpus(str(tmp_path / "c.tsv"))] == ['"one', 'two" "']


def test_tsv_header_says_the_order_of_columns(tmp_path):
    (tmp_path / "psgs.tsv").write_text("id\ttext\ttitle\n7\tthe text\tthe title\n")
    corpus = open_corpus(str(tmp_path / "psgs.tsv"))
    assert list(corpus) == [Passage("7", "the title", "the text")]
    assert next(corpus.numbered(0, 1))[0] == 2


@pytest.mark.parametrize("docid", ["docid", "_id", "doc_id", "id"])
@pytest.mark.parametrize("text", ["text", "contents"])
def test_spellings(tmp_path, docid, text):
    path = write_jsonl(tmp_path / "c.jsonl", [{docid: "a", text: "b", "url": "ignored"}])
    assert list(open_corpus(path)) == [Passage("a", "", "b")]


def test_integer_ids_and_null_texts(tmp_path):
    path = write_jsonl(tmp_path / "c.jsonl", [{"id": 12, "title": None, "text": None}])
    assert list(open_corpus(path)) == [Passage("12", "", "")]
    path = write_parquet(tmp_path / "c.parquet", [{"id": 12, "title": None, "text": "x"}])
    assert list(open_corpus(path)) == [Passage("12", "", "x")]


def test_bom_crlf_blank_lines_and_no_last_line_end(tmp_path):
    (tmp_path / "c.jsonl").write_bytes(b'\xef\xbb\xbf{"id": 1, "text": "a"}\r\n\r\n\n{"id": 2, "text": "b"}')
    numbered = list(open_corpus(str(tmp_path / "c.jsonl")).numbered())
    assert numbered == [(1, Passage("1", "", "a")), (4, Passage("2", "", "b"))]
    (tmp_path / "c.tsv").write_bytes(b"\xef\xbb\xbf1\ta\r\n2\tb")
    assert list(open_corpus(str(tmp_path / "c.tsv"))) == [Passage("1", "", "a"), Passage("2", "", "b")]


def test_vectors_beside_the_text_are_not_read(tmp_path):
    path = tmp_path / "c.parquet"
    write_parquet(path, [{"id": "1", "text": "a", "emb": [0.5, 0.25], "tags": ["x"]}])
    assert list(arrow.parquet_rows(path)) == [(1, {"id": "1", "text": "a", "tags": ["x"]})]


GOOD = b'{"docid": "1", "text": "fine"}\n'
BAD_JSONL = {
    "malformed": (b'{"docid": "2", "text": }', "malformed JSON"),
    "cut off": (b'{"docid": "2", "te', "malformed JSON"),
    "deep": (b'{"docid": ' + b"[" * 100_000, "malformed JSON"),
    "array": (b'["2", "text"]', "not a JSON object"),
    "no id": (b'{"pid": "2", "text": "x"}', "no column docid, _id, doc_id or id: the row has pid, text"),
    "no text": (b'{"docid": "2", "body": "x"}', "no column text or contents: the row has docid, body"),
    "null id": (b'{"docid": null, "text": "x"}', "is null, not a string or an integer"),
    "float id": (b'{"docid": 1.5, "text": "x"}', "is a number, not a string"),
    "boolean id": (b'{"docid": true, "text": "x"}', "is a boolean, not a string"),
    "list text": (b'{"docid": "2", "text": ["x"]}', "is a list, not a string"),
    "number title": (b'{"docid": "2", "text": "x", "title": 7}', "title is a number, not a string"),
    "latin 1": ('{"docid": "2", "text": "café"}'.encode("latin1"), "not UTF-8 (byte 28 of the line)"),
    "half a pair": (b'{"docid": "2", "text": "\\ud83d"}', "half of a surrogate pair"),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("case", BAD_JSONL)
def test_bad_jsonl_names_file_and_line(tmp_path, case, zipped):
    line, message = BAD_JSONL[case]
    path = tmp_path / ("c.jsonl.gz" if zipped else "c.jsonl")
    content = GOOD + b"\n" + line + b"\n" + GOOD
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(UserError) as raised:
        list(open_corpus(str(path)))
    assert raised.value.what.startswith(f"{path}:3: ")
    assert message in raised.value.what
    assert raised.value.hint and "\n" not in raised.value.what


def test_a_whole_pair_of_surrogates_is_a_character(tmp_path):
    (tmp_path / "c.jsonl").write_bytes(b'{"docid": "\\ud83d\\ude00", "text": "\\uD83D\\uDE00"}')
    assert list(open_corpus(str(tmp_path / "c.jsonl"))) == [Passage("😀", "", "😀")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1\ta\nno tab\n", "c.tsv:2: 1 column, wanted docid<tab>text"),
        (b"1\ta\n2\tb\tc\n", "c.tsv:2: 3 columns, wanted docid<tab>text"),
        (b"1\tt\ta\n2\tb\n", "c.tsv:2: 2 columns, wanted docid<tab>title<tab>text"),
        (b"a b\n", "c.tsv:1: 1 column, wanted docid<tab>text or docid<tab>title<tab>text"),
        (b"1\ta\n2\tcaf\xe9\n", "c.tsv:2: not UTF-8 (byte 6 of the line)"),
        ("1\ta\n".encode("utf-16"), "c.tsv:1: not UTF-8 (byte 1 of the line)"),
    ],
)
def test_bad_tsv(tmp_path, content, message):
    (tmp_path / "c.tsv").write_bytes(content)
    with pytest.raises(UserError) as raised:
        list(open_corpus(str(tmp_path / "c.tsv")))
    assert raised.value.what.endswith(message)


def test_bad_parquet_row_and_column(tmp_path):
    path = write_parquet(tmp_path / "c.parquet", [{"docid": "1", "text": "a"}, {"docid": None, "text": "b"}])
    with pytest.raises(UserError, match=r"c\.parquet:2: docid, _id, doc_id or id is null"):
        list(open_corpus(path))
    path = write_parquet(tmp_path / "d.parquet", [{"docid": "1", "body": "a"}])
    with pytest.raises(UserError, match=r"d\.parquet:1: no column text or contents: the row has docid, body"):
        list(open_corpus(path))


def test_text_that_is_not_utf8_inside_a_table(tmp_path):
    import pyarrow
    import pyarrow.parquet

    binary = pyarrow.array([b"fine", b"caf\xe9"])
    text = pyarrow.Array.from_buffers(pyarrow.string(), 2, binary.buffers())
    table = pyarrow.table({"docid": ["1", "2"], "text": text})
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet", store_schema=False)
    with pytest.raises(UserError, match=r"c\.parquet:1: not UTF-8"):
        list(open_corpus(str(tmp_path / "c.parquet")))


@pytest.mark.parametrize("content", [b"", b"PAR1 but no more", b"{}\n"])
def test_what_is_no_parquet(tmp_path, content):
    (tmp_path / "c.parquet").write_bytes(content)
    with pytest.raises(UserError, match="not a readable Parquet file"):
        list(open_corpus(str(tmp_path / "c.parquet")))


def test_damaged_gzip(tmp_path):
    path = tmp_path / "c.jsonl.gz"
    whole = gzip.compress(b"".join(b'{"docid": "%d", "text": "%s"}\n' % (i, b"x" * (i % 97)) for i in range(5000)))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"c\.jsonl\.gz:\d+: damaged gzip"):
        list(open_corpus(str(path)))
    path.write_bytes(GOOD)
    with pytest.raises(UserError, match=r"c\.jsonl\.gz:1: damaged gzip"):
        list(open_corpus(str(path)))


def test_damaged_arrow_folder(tmp_path):
    folder = tmp_path / "c"
    write_arrow(folder, as_rows(PASSAGES))
    (folder / "data-00001-of-00002.arrow").write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match=r"data-00001-of-00002\.arrow: not an Arrow stream"):
        list(open_corpus(str(folder)))
    (folder / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(UserError, match=r"no such file: .*data-00001-of-00002\.arrow"):
        list(open_corpus(str(folder)))
    (folder / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"state\.json does not list its data_files"):
        list(open_corpus(str(folder)))


def test_arrow_folder_of_several_splits(tmp_path):
    for name in ("train", "test"):
        write_arrow(tmp_path / "c" / name, [{"docid": name, "text": "x"}], files=1)
    (tmp_path / "c" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert [p.docid for p in open_corpus(str(tmp_path / "c"))] == ["train"]
    assert [p.docid for p in open_corpus(str(tmp_path / "c"), split="test")] == ["test"]
    with pytest.raises(UserError, match="has no split 'dev'") as raised:
        open_corpus(str(tmp_path / "c"), split="dev")
    assert "train, test" in raised.value.hint


def test_reading_takes_constant_memory(tmp_path):
    peaks = []
    for count in (1_000, 10_000):
        path = write_jsonl(tmp_path / f"{count}.jsonl", ({"docid": str(i), "text": "x" * 200} for i in range(count)))
        tracemalloc.start()
        assert sum(1 for _ in open_corpus(path)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] + 10_000


def test_join_text():
    assert join_text(Passage("1", "Title", "text")) == "Title text"
    assert join_text(Passage("1", "Title", "text"), separator=" [SEP] ", prefix="passage: ") == (
        "passage: Title [SEP] text"
    )
    assert join_text(Passage("1", "", " text\n"), separator=" [SEP] ", prefix="passage: ") == "passage:  text"
    assert join_text(Passage("1", "Title", "")) == "Title"
    assert join_text(Passage("1", "", "")) == ""


texts = st.text(st.characters(exclude_categories=("Cs",)))


@settings(max_examples=30, deadline=None)
@given(passages=st.lists(st.builds(Passage, docid=texts, title=texts, text=texts)), ascii_only=st.booleans())
def test_jsonl_round_trip_of_any_unicode(passages, ascii_only, tmp_path_factory):
    path = tmp_path_factory.mktemp("jsonl") / "c.jsonl"
    write_jsonl(path, as_rows(passages), ensure_ascii=ascii_only)
    assert list(open_corpus(str(path))) == passages


cells = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\t\n\r\ufeff"))


@settings(max_examples=30, deadline=None)
@given(passages=st.lists(st.builds(Passage, docid=cells, title=st.just(""), text=cells)))
def test_tsv_round_trip_of_any_unicode(passages, tmp_path_factory):
    path = tmp_path_factory.mktemp("tsv") / "c.tsv"
    path.write_bytes("".join(f"{p.docid}\t{p.text}\n" for p in passages).encode())
    assert list(open_corpus(str(path))) == passages
