"""search_vectors: exact search over arrays, tensors and stores, in any mixture."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fitted_models import fitted, load, texts

from starbucks_retrieval import Size, Sizes, UserError, evaluate_run, search_vectors
from starbucks_retrieval.store import open_store, size_folder


@pytest.fixture(scope="module")
def made():
    """Ids and vectors of passages, some of them equal, and of queries, float16 numbers in float32."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((300, 16)).astype(np.float16).astype(np.float32)
    vectors[40:60] = vectors[40]
    queries = rng.standard_normal((9, 16)).astype(np.float16).astype(np.float32)
    queries[0] = vectors[40]
    return [f"dok-é{i}" for i in range(300)], vectors, [f"q中{i}" for i in range(9)], queries


def expected(made, brute_force, depth):
    ids, vectors, query_ids, queries = made
    ranked = brute_force(queries, ids, vectors, depth)
    return {query: dict(line) for query, line in zip(query_ids, ranked)}


@pytest.mark.parametrize("depth", [1, 30, 1000])
def test_equals_brute_force(made, brute_force, depth):
    ids, vectors, query_ids, queries = made
    found = search_vectors(queries, vectors, depth, query_ids=query_ids, passage_ids=ids)
    assert found == expected(made, brute_force, depth)
    assert [list(line) for line in found.values()] == [
        list(line) for line in expected(made, brute_force, depth).values()
    ]


@pytest.mark.parametrize(
    "kind",
    [
        lambda array: array.astype(np.float16),
        lambda array: array.astype(np.float64),
        lambda array: array.tolist(),
        list,
        lambda array: np.asfortranarray(array),
        lambda array: torch.tensor(array, requires_grad=True),
        lambda array: torch.tensor(array, dtype=torch.float16),
        lambda array: list(torch.tensor(array)),
    ],
)
def test_any_kind_of_vectors(made, kind):
    _, vectors, _, queries = made
    assert search_vectors(kind(queries), kind(vectors), 7) == search_vectors(queries, vectors, 7)


def test_other_numbers_are_taken_as_they_are():
    half = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)
    assert search_vectors(half, np.array([[3, 4], [5, 6]]), 1) == {0: {1: 17.0}}
    assert search_vectors(half[0], half, np.int64(1)) == {0: {0: 5.0}}


def test_ids_stay_as_they_are_given(made):
    _, vectors, _, queries = made
    by_row = search_vectors(queries, vectors, 25)
    assert list(by_row) == list(range(9))
    assert list(by_row[0])[:20] == list(range(59, 39, -1))  # equal scores: the greater number first
    array = search_vectors(queries, vectors, 25, passage_ids=np.arange(300) + 1000)
    assert {query: {row - 1000: score for row, score in line.items()} for query, line in array.items()} == by_row
    assert {type(docid) for docid in array[0]} == {int}


def test_without_faiss(made, monkeypatch):
    _, vectors, _, queries = made
    before = search_vectors(queries, vectors)
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert search_vectors(queries, vectors) == before


@pytest.fixture
def stores(tmp_path, made, write_store):
    """The same in stores of two sizes."""
    ids, vectors, query_ids, queries = made
    for size in (Size(2, 4), Size(6, 16)):
        name, dim = size_folder(size), size.dim
        write_store(tmp_path / "p" / name, ids, vectors[:, :dim], size=size)
        settings = {"size": size, "kind": "queries", "data_digest": "q"}
        write_store(tmp_path / "q" / name, query_ids, queries[:, :dim], **settings)
    return tmp_path


def test_stores_by_path_and_open(made, stores, brute_force):
    ids, vectors, query_ids, queries = made
    right = expected(made, brute_force, 12)
    paths, size = (stores / "q", str(stores / "p")), Size(6, 16)
    opened = [open_store(path, size) for path in paths]
    assert search_vectors(*paths, 12, size="6:16") == right
    assert search_vectors(*paths, 12, size=size, max_memory=1000) == right
    assert search_vectors(*opened, 12) == right
    assert search_vectors(queries, opened[1], 12, query_ids=query_ids) == right
    assert search_vectors(paths[0], vectors, 12, size="6:16", passage_ids=ids) == right
    narrow = search_vectors(*paths, 12, size="2:4")
    assert narrow == search_vectors(queries[:, :4], vectors[:, :4], 12, query_ids=query_ids, passage_ids=ids)


def test_more_queries_than_are_read_at_once(made, monkeypatch):
    from starbucks_retrieval.search import arrays

    _, vectors, query_ids, queries = made
    before = search_vectors(queries, vectors, query_ids=query_ids)
    monkeypatch.setattr(arrays, "_ROWS", 4)
    assert search_vectors(queries, vectors, query_ids=query_ids) == before


def test_a_pair_of_layers(tiny_bert, tmp_path):
    from starbucks_retrieval.encode import EncodeArguments, encode

    encoder = fitted(load(tiny_bert, sizes=Sizes.parse("2:8,4:8")))[0]
    encoder.save_pretrained(tmp_path / "model")
    (tmp_path / "c.tsv").write_text("".join(f"d{i}\t{text}\n" for i, text in enumerate(texts(20))))
    for name, is_query in (("q", True), ("p", False)):
        encode(
            EncodeArguments(
                str(tmp_path / "model"), str(tmp_path / name), dataset_path=str(tmp_path / "c.tsv"), encode_is_query=is_query,
                store_dtype="float32", dtype="fp32",
            )
        )  # fmt: skip
    found = search_vectors(tmp_path / "q", tmp_path / "p", 5, size="2:8/4:8")
    model = encoder.at("2:8/4:8")
    own = search_vectors(model.encode_query(texts(20)), model.encode_document(texts(20)), 5)
    assert [[docid.removeprefix("d") for docid in line] for line in found.values()] == [
        [str(row) for row in line] for line in own.values()
    ]


def test_a_search_is_a_run(made):
    ids, vectors, query_ids, queries = made
    found = search_vectors(queries, vectors, query_ids=query_ids, passage_ids=ids)
    best = {query: [next(iter(line))] for query, line in found.items()}
    assert evaluate_run(found, best, "RR@10").mean == {"RR@10": 1.0}
    assert evaluate_run(search_vectors(queries, vectors), {0: {59: 2}}, "RR@10").mean == {"RR@10": 1.0}


NAN = np.array([[1.0, 2.0], [np.nan, 0.0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: search_vectors(np.ones((2, 3)), np.ones((4, 2))), "shape .2, 3. do not fit passages of 2 dim"),
        (lambda: search_vectors(NAN, np.ones((4, 2))), r"query 1 \(from 0\) has NaN"),
        (lambda: search_vectors(np.ones(2), NAN), r"passage 1 \(from 0\) has NaN"),
        (lambda: search_vectors(np.ones(2), np.array([["a", "b"]])), "passage vectors are of type <U1"),
        (lambda: search_vectors([[1.0], [1.0, 2.0]], np.ones((4, 2))), "query vectors have different dims"),
        (lambda: search_vectors(np.ones((0, 2)), np.ones((4, 2))), r"query vectors have the shape \(0, 2\)"),
        (lambda: search_vectors(np.ones((1, 2, 2)), np.ones((4, 2))), r"have the shape \(1, 2, 2\)"),
        (lambda: search_vectors(np.ones(2), np.ones((4, 2)), 0), "k is 0"),
        (lambda: search_vectors(np.ones(2), np.ones((4, 2)), 1.5), "k is 1.5"),
        (lambda: search_vectors(np.ones(2), np.ones((2, 2)), passage_ids=["a"]), "1 passage_ids for 2 rows"),
        (lambda: search_vectors(np.ones(2), np.ones((2, 2)), passage_ids=["a", "a"]), "passage_ids has 'a' twice"),
        (lambda: search_vectors(np.ones(2), np.ones((2, 2)), size="2:2"), "arrays have one size"),
        (lambda: search_vectors(Path("no-such-folder"), np.ones((2, 2))), "no-such-folder"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_stores_that_do_not_belong_together(stores, made):
    with pytest.raises(UserError, match="several sizes"):
        search_vectors(stores / "q", made[1])
    with pytest.raises(UserError, match="passages"):
        search_vectors(stores / "p", stores / "p", size="6:16")
    with pytest.raises(UserError, match="query_ids are given for a store"):
        search_vectors(stores / "q", made[1], size="6:16", query_ids=made[2])


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"query_vectors": {"2:2": [[1.0, 0.0]]}}, "are a dictionary of 2:2", "vectors['2:32']"),
        ({"query_vectors": ["what are hens?"]}, "not numbers", "encoder.encode"),
        ({"passage_ids": "ab"}, "passage_ids is one string", "list of ids"),
        ({"size": 5, "passage_vectors": "somewhere"}, "5 is not one size", "6:128"),
    ],
)
def test_what_a_notebook_may_pass_by_mistake(options, message, hint):
    arguments = {"query_vectors": [[1.0, 0.0]], "passage_vectors": [[1.0, 0.0], [0.0, 1.0]]} | options
    with pytest.raises(UserError, match=message) as refused:
        search_vectors(**arguments)
    assert hint in refused.value.hint


def test_memory_may_be_text():
    assert search_vectors([1.0, 0.0], [[1.0, 0.0]], max_memory="1MB") == {0: {0: 1.0}}
