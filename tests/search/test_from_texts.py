"""A searcher over a list of strings: searchable at once, and from disk after it was saved."""

import json

import numpy as np
import pytest

from starbucks_retrieval import NestedEncoder, Searcher, UserError
from starbucks_retrieval.__main__ import _main as starbucks
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.encode import EncodeArguments, encode
from starbucks_retrieval.models import EncoderConfig
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import open_store

TEXTS = ["w1 w2 w3", "w4 w5", "w6 w7 w8 w9", "w10"]
QUERY = "w4 w7"


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    encoder.config = EncoderConfig(Sizes("2:8,4:32"), "mean", True, passage_prefix="w50 ", query_prefix="w51 ")
    return encoder


@pytest.fixture(scope="module")
def folder(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    encoder.save_pretrained(folder)
    return folder


def test_texts_are_searched_at_once(encoder):
    searcher = Searcher.from_texts(encoder, TEXTS)
    hits = searcher.search(QUERY, k=9)
    scores = encoder.encode(TEXTS, "4:32")["4:32"] @ encoder.encode(QUERY, "4:32", is_query=True)["4:32"]
    order = np.argsort(-scores)
    assert [(hit.docid, hit.text) for hit in hits] == [(str(row), TEXTS[row]) for row in order]
    assert [hit.score for hit in hits] == pytest.approx(scores[order].tolist(), abs=1e-6)
    assert searcher.stored_sizes == [Size(2, 8), Size(4, 32)]
    for change in ({"size": "2:8"}, {"size": "4:16"}, {"funnel": "2:4@3,4:32"}, {"funnel": "4:32/int8@4,4:32"}):
        searcher.use(**change)
        assert len(searcher.search(QUERY, 2)) == 2 and all(hit.text for hit in searcher.search(QUERY, 2))
    assert repr(searcher) == f"Searcher(4 passages through 4:32/int8@4,4:32, model {encoder.name!r})"


def test_a_model_by_name_is_read_as_deep_as_it_is_needed(folder):
    searcher = Searcher.from_texts(folder, TEXTS, ids=[7, 8, 9, 10], titles=["w70", "", "", ""], size="2:8")
    assert searcher.encoder.num_layers == 2
    assert {hit.docid: hit.title for hit in searcher.search(QUERY)} == {"7": "w70", "8": "", "9": "", "10": ""}
    assert str(Searcher.from_texts(str(folder), TEXTS, sizes=["2:8", Size(2, 16)]).size) == "2:16"
    assert Searcher.from_texts(folder, TEXTS, funnel="1:4@2,3:8").encoder.num_layers == 3


def test_saved_passages_are_those_that_encode_writes(folder, tmp_path, capsys):
    ids, titles = ["a", "b", "c", "d"], ["w70", "", "w71", ""]
    searcher = Searcher.from_texts(folder, TEXTS, ids, titles=titles)
    saved = searcher.save(tmp_path / "mine")
    corpus = saved / "corpus.jsonl"
    assert [json.loads(line)["docid"] for line in corpus.read_text().splitlines()] == ids
    assert searcher.save(str(saved)) == saved  # once more changes nothing

    again = Searcher(folder, saved, corpus, size="4:32")
    assert again.search(QUERY) == searcher.search(QUERY)
    flags = ["--passage_reps", saved, "--model_name_or_path", folder, "--corpus_path", corpus, "--size", "2:8"]
    assert run_command(starbucks, ["search", *map(str, flags), "--query", QUERY, "--json"]) == 0
    searcher.use("2:8")
    found = json.loads(capsys.readouterr().out)["hits"]
    assert [(hit["docid"], hit["text"]) for hit in found] == [(hit.docid, hit.text) for hit in searcher.search(QUERY)]

    encode(
        EncodeArguments(
            str(folder), str(tmp_path / "emb"), dataset_path=str(corpus), store_dtype="float32", dtype="fp32"
        )
    )
    for size in ("2:8", "4:32"):
        ours, theirs = open_store(saved, size), open_store(tmp_path / "emb", size)
        for name in (
            "fingerprint",
            "data_digest",
            "data_count",
            "pooling",
            "prefix",
            "separator",
            "max_length",
            "lineage",
        ):
            assert getattr(ours.spec, name) == getattr(theirs.spec, name), name
        rows = np.arange(4)
        assert ours.ids(rows) == theirs.ids(rows)
        np.testing.assert_allclose(ours.vectors(rows), theirs.vectors(rows), atol=1e-6)


def test_another_list_is_not_overwritten_unasked(encoder, tmp_path):
    Searcher.from_texts(encoder, TEXTS).save(tmp_path)
    other = Searcher.from_texts(encoder, TEXTS[:3])
    with pytest.raises(UserError, match=r"corpus.jsonl holds other passages"):
        other.save(tmp_path)
    assert len(open_store(tmp_path, "2:8")) == 4
    other.save(tmp_path, overwrite=True, store_dtype="float16")
    opened = open_store(tmp_path, "2:8")
    assert (len(opened), opened.dtype) == (3, np.float16)
    with pytest.raises(UserError, match="on disk already"):
        Searcher(encoder, tmp_path, size="2:8").save(tmp_path / "x")


@pytest.mark.parametrize(
    ("arguments", "options", "message", "hint"),
    [
        ((TEXTS, ["a", "b"]), {}, "2 ids for 4 texts", "in the order of the texts"),
        ((TEXTS, ["a", "b", "a", "c"]), {}, "the id 'a' occurs 2 times", "its own id"),
        ((TEXTS, "abcd"), {}, "ids is one string", "list of ids"),
        ((TEXTS, ["a", "b", "", "c"]), {}, "passage:3: the id is empty", "an id"),
        (([],), {}, "no texts to search", "at least one"),
        (("w1",), {}, "from_texts takes texts, not one text", "list of strings"),
        ((["w1", None],), {}, "text 1", "leave it out"),
        ((TEXTS,), {"size": "9:8"}, "needs layer 9", "1 to 4"),
        ((TEXTS,), {"size": "2:8@3,4:32"}, "is not one size", "funnel="),
        ((TEXTS,), {"funnel": Size(2, 8)}, "not a string", "funnel="),
        ((TEXTS,), {"size": "2:8", "funnel": "2:8"}, "either a size or a funnel", "give"),
        ((TEXTS,), {"sizes": "2:8", "size": "4:32"}, "the store has no size 4:32", "it has 2:8"),
        ((TEXTS,), {"max_memory": "many"}, "many", ""),
    ],
)
def test_bad_input_is_refused_with_a_remedy(encoder, arguments, options, message, hint):
    with pytest.raises(UserError, match=message) as refused:
        Searcher.from_texts(encoder, *arguments, **options)
    assert hint in refused.value.hint


def test_what_is_no_model_and_what_is_no_store(encoder):
    with pytest.raises(UserError, match="is an encoder at one size") as refused:
        Searcher.from_texts(encoder.at("2:8"), TEXTS)
    assert 'size="2:8"' in refused.value.hint
    with pytest.raises(UserError, match="not a list"):
        Searcher.from_texts(TEXTS, encoder)
    with pytest.raises(UserError, match="passage_reps is a list") as refused:
        Searcher(encoder, TEXTS)
    assert "from_texts" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "k", "message"),
    [
        (["w1", "w2"], 3, "of type list, not one string"),
        (None, 3, "None"),
        ("w1", "3", "k is '3'"),
        ("w1", 2.5, "k is 2.5"),
    ],
)
def test_bad_queries(encoder, text, k, message):
    searcher = Searcher.from_texts(encoder, TEXTS)
    assert len(searcher.search("w1", np.int64(2))) == 2
    with pytest.raises(UserError, match=message):
        searcher.search(text, k)


def test_hits_are_short_to_read(encoder):
    searcher = Searcher.from_texts(encoder, ["w1 " * 100], ids=["a"])
    [hit] = searcher.search("w1")
    assert repr(hit) == f"Hit('a', {hit.score:.4f}, text={('w1 ' * 20)!r:.61}…')"
    result = searcher.answer("w1")
    assert repr(result).startswith("SearchResult(hits: 1, encode ") and repr(result).endswith(f"the best is {hit!r})")


def test_a_fit_makes_a_searcher_of_the_same_encoder_useless(folder):
    searcher = Searcher.from_texts(folder, TEXTS)
    searcher.encoder.fit([f"w{i} w{i % 7} w{i % 11}" for i in range(95)])
    with pytest.raises(UserError, match="fitted after its passages were encoded"):
        searcher.search(QUERY)
    assert Searcher.from_texts(searcher.encoder, TEXTS, size="0:8").search(QUERY)
