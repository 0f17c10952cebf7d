import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_first_steps import code_shortlister
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.search.stores import open_sizes
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import open_store
from starbucks_retrieval.store.convert import quantise_stores


@pytest.mark.parametrize(("code", "keep"), [("int8", 10), ("int4", 20), ("int2", 80), ("int1", 200), ("binary", 250)])
def test_codes_find_what_exact_search_finds(open_written, code, keep):
    """Long enough a shortlist has the exact ten best, with exact scores."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((300, 8)).astype(np.float32)
    store = open_written([f"d{i}" for i in range(300)], vectors, size=Size(6, 8))
    queries = {Size(6, 8): rng.standard_normal((5, 8)).astype(np.float32)}
    funnel = Funnel.parse(f"6:8/{code}@{keep},6:8@5")
    first = code_shortlister(funnel.steps[0], store)
    [(rows, scores)] = funnel_search(queries, {Size(6, 8): store}, funnel, first=first)
    [(exact, exact_scores)] = funnel_search(queries, {Size(6, 8): store}, Funnel.parse("6:8@5"))
    assert rows.tolist() == exact.tolist()
    assert scores.tobytes() == exact_scores.tobytes()


def test_codes_need_passages_to_learn_from(open_written):
    store = open_written(["a", "b"], np.eye(2, 8, dtype=np.float32), size=Size(6, 8))
    with pytest.raises(UserError, match="6:8/int4@1 learns from at least 16 passages; the store has 2"):
        code_shortlister(Funnel.parse("6:8/int4@1,6:8").steps[0], store)


@pytest.mark.parametrize(("code", "keep"), [("int8", 10), ("binary", 280)])
@pytest.mark.parametrize("dim", [12, 64, 128])
def test_codes_that_are_stored_beside_the_vectors_are_scanned(open_written, code, keep, dim, monkeypatch):
    rng = np.random.default_rng(0)
    spread = np.linspace(1, 2, dim)
    vectors = (rng.standard_normal((300, dim)) * spread + 0.5).astype(np.float32)
    store = open_written([f"d{i}" for i in range(300)], vectors, f"passages/L6-D{dim}", size=Size(6, dim))
    quantise_stores(store.folders, code)
    monkeypatch.setattr(
        "starbucks_retrieval.search.funnel_first_steps.make_index", lambda *_: pytest.fail("codes were made anew")
    )
    queries = {Size(6, dim): rng.standard_normal((5, dim)).astype(np.float32)}
    funnel = Funnel.parse(f"6:{dim}/{code}@{keep},6:{dim}@5")
    first = code_shortlister(funnel.steps[0], store)
    [(rows, scores)] = funnel_search(queries, {Size(6, dim): store}, funnel, first=first)
    [(exact, exact_scores)] = funnel_search(queries, {Size(6, dim): store}, Funnel.parse(f"6:{dim}@5"))
    assert rows.tolist() == exact.tolist()
    assert scores.tobytes() == exact_scores.tobytes()


def test_stored_codes_of_other_vectors_are_refused(open_written):
    vectors = np.eye(4, 8, dtype=np.float32)
    old = open_written(list("abcd"), vectors, "passages/L6-D8", size=Size(6, 8))
    quantise_stores(old.folders, "int8")
    new = open_written(list("abcd"), vectors, "other/L6-D8", size=Size(6, 8), data_digest="changed")
    quantise_stores(new.folders, "int8", old.folders[0].parent / "int8", overwrite=True)
    with pytest.raises(UserError, match=r"does not hold codes of .*: data_digest is") as caught:
        code_shortlister(Funnel.parse("6:8/int8@1,6:8").steps[0], old)
    assert "--to int8 --overwrite" in caught.value.hint


def test_a_quantised_store_is_searched_by_itself(open_written):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((300, 8)).astype(np.float32)
    store = open_written([f"d{i}" for i in range(300)], vectors, "passages/L6-D8", size=Size(6, 8))
    quantise_stores(store.folders, "int8")
    coded = open_store(store.folders[0].parent / "int8")
    queries = rng.standard_normal((5, 8)).astype(np.float32)
    [(rows, scores)] = exact_search(queries, coded, 5)
    decoded = coded.vectors(np.arange(300)).astype(np.float64)
    assert scores == pytest.approx(np.sort(queries @ decoded.T)[:, :-6:-1], rel=1e-6)
    narrow = open_sizes(store.folders[0].parent / "int8", [Size(6, 4)])[Size(6, 4)]  # a view of the codes
    assert np.array_equal(narrow.vectors(rows[0]), decoded[rows[0], :4].astype(np.float32))
