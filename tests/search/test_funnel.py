import numpy as np
import pytest
from conftest import slow_except

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import exact_search
from starbucks_retrieval.search.funnel import Funnel, FunnelStep
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

SIZES = (Size(2, 4), Size(4, 8), Size(6, 24))


def nested(count, seed, noise=0.5):
    """Vectors at three sizes that resemble each other: {size: [count, dim]}; ties included."""
    rng = np.random.default_rng(seed)
    full = rng.standard_normal((count, 24)).astype(np.float32)
    full[count // 2 : count // 2 + 40] = full[: min(40, count - count // 2)]
    made = {}
    for size in SIZES:
        blur = noise * rng.standard_normal((count, size.dim)).astype(np.float32)
        made[size] = full[:, : size.dim] + (blur if size.layer < 6 else 0)
    made[SIZES[0]] = np.round(made[SIZES[0]] * 2) / 2  # many equal scores in the shortlist
    return made


@pytest.fixture
def corpus(open_written):
    ids = [f"d{number}" for number in np.random.default_rng(9).permutation(600)]
    vectors = nested(600, 1)
    stores = {
        size: open_written(ids, vectors[size], name=f"L{size.layer}", size=size, fingerprint=f"f{size.layer}")
        for size in SIZES
    }
    return ids, vectors, stores


@pytest.fixture
def queries():
    return nested(25, 2)


def joined(found):
    rows, scores = zip(*found)
    return np.concatenate(rows), np.concatenate(scores)


def same(left, right):
    (left_rows, left_scores), (right_rows, right_scores) = joined(left), joined(right)
    assert left_rows.tolist() == right_rows.tolist()
    assert left_scores.tobytes() == right_scores.tobytes()


def reference(queries, ids, vectors, steps):
    """The funnel as its definition says: sort everything that is left, cut, go on."""
    results = []
    for line in range(len(queries[SIZES[0]])):
        left = list(range(len(ids)))
        for size, keep in steps:
            scores = vectors[size].astype(np.float64) @ queries[size][line].astype(np.float64)
            single = scores.astype(np.float32)
            left = sorted(left, key=lambda row: (single[row], ids[row].encode()), reverse=True)[:keep]
        results.append([(row, single[row]) for row in left])
    return results


@pytest.mark.parametrize(
    "keeps",
    [
        *((100, 30, 10), (9000, 1000, 600), (1, 1, 1)),
        *(pytest.param(keeps, marks=pytest.mark.slow) for keeps in ((7, 7, 7), (600, 50, 20))),
    ],
)
def test_three_steps_are_what_their_definition_says(corpus, queries, keeps):
    ids, vectors, stores = corpus
    funnel = Funnel(tuple(map(FunnelStep, SIZES, keeps)))
    rows, scores = joined(funnel_search(queries, stores, funnel))
    found = [list(zip(*line)) for line in zip(rows.tolist(), scores)]
    assert found == reference(queries, ids, vectors, list(zip(SIZES, keeps)))


@pytest.mark.parametrize("store_dtype", slow_except(["float16"], ["float32", "float16"]))
def test_a_first_step_that_keeps_everything_is_exact_search_at_the_last_size(open_written, queries, store_dtype):
    ids, vectors = [f"d{i}" for i in range(500)], nested(500, 3)
    vectors[SIZES[2]][100:130] = vectors[SIZES[2]][99]
    stores = {
        size: open_written(ids, vectors[size], str(size.layer), size=size, store_dtype=store_dtype) for size in SIZES
    }
    for text, depth in [("2:4@500,6:24", 20), ("2:4@501,4:8@500,6:24", 500), ("6:24", 33)]:
        funnel = Funnel.parse(text).at_depth(depth)
        same(
            funnel_search(queries, stores, funnel, max_memory=100_000),
            exact_search(queries[SIZES[2]], stores[SIZES[2]], depth),
        )


def test_results_do_not_depend_on_batch_size_and_memory(corpus, queries):
    _, _, stores = corpus
    funnel = Funnel.parse("2:4@90,4:8@40,6:24@15")
    whole = list(funnel_search(queries, stores, funnel))
    for options in ({"batch_size": 1}, {"batch_size": -1, "max_memory": 1}, {"batch_size": 7, "threads": 1}):
        same(whole, funnel_search(queries, stores, funnel, **options))


class Counting(EmbeddingStore):
    """A store that counts what is read of it."""

    def __init__(self, store):
        vars(self).update(vars(store))
        self.asked, self.scanned = [], 0

    def vectors(self, rows):
        self.asked += np.asarray(rows).tolist()
        return super().vectors(rows)

    def blocks(self, max_rows, dtype=None):
        for start, block in super().blocks(max_rows, dtype):
            self.scanned += len(block)
            yield start, block


def test_only_shortlisted_rows_are_read(corpus, queries):
    _, _, stores = corpus
    counted = {size: Counting(store) for size, store in stores.items()}
    one = {size: vectors[:1] for size, vectors in queries.items()}
    [(rows, _)] = funnel_search(one, counted, Funnel.parse("2:4@50,4:8@20,6:24@5"))
    assert [counted[size].scanned for size in SIZES] == [600, 0, 0]
    assert [len(counted[size].asked) for size in SIZES[1:]] == [50, 20]
    assert set(rows[0].tolist()) < set(counted[SIZES[2]].asked) < set(counted[SIZES[1]].asked)


class Index:
    """A shortlister that finds the given rows."""

    def __init__(self, rows):
        self.rows = rows

    def __call__(self, queries, depth):
        assert depth == self.rows.shape[1]
        return self.rows[: len(queries)], np.zeros(self.rows[: len(queries)].shape, np.float32)


def test_an_index_may_take_the_first_step(corpus, queries):
    ids, vectors, stores = corpus
    rows = np.stack([np.random.default_rng(i).permutation(600)[:40] for i in range(25)])
    found = joined(funnel_search(queries, stores, Funnel.parse("2:4@40,6:24@6"), first=Index(rows)))
    alone = joined(funnel_search(queries, stores, Funnel.parse("6:24@40"), first=Index(rows)))
    for line in range(25):
        exact = (vectors[SIZES[2]].astype("f8") @ queries[SIZES[2]][line].astype("f8")).astype("f4")
        order = sorted(rows[line].tolist(), key=lambda row: (exact[row], ids[row].encode()), reverse=True)
        assert found[0][line].tolist() == order[:6] == alone[0][line, :6].tolist()
        assert found[1][line].tolist() == exact[order[:6]].tolist()


@pytest.mark.parametrize("padded", [True, False])
def test_short_lists_of_an_index_are_completed(corpus, queries, padded):
    _, _, stores = corpus
    rows = np.full((25, 40), -1)
    rows[:, :2] = [[3, 500]]
    index = Index(rows) if padded else lambda queries, depth: ([line[:2] for line in rows], [line[:2] for line in rows])
    [(found, scores)] = funnel_search(queries, stores, Funnel.parse("2:4@40,6:24@40"), first=index)
    assert {tuple(sorted(line)) for line in found.tolist()} == {(*range(39), 500)}
    assert np.isfinite(scores).all()


def test_reading_and_writing_a_funnel():
    funnel = Funnel.parse(" 2:32@1000, 6:128@100 ,12:768")
    assert funnel == Funnel((FunnelStep(Size(2, 32), 1000), FunnelStep(Size(6, 128), 100), FunnelStep(Size(12, 768))))
    assert str(funnel) == "2:32@1000,6:128@100,12:768"
    assert [str(size) for size in funnel.sizes] == ["2:32", "6:128", "12:768"]
    assert (funnel.depth, funnel.last) == (None, Size(12, 768))
    assert str(Funnel.parse("12:64@9,12:768@9")) == "12:64@9,12:768@9"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "cannot read the size '', in the funnel ''"),
        ("2:32@1000,", "cannot read the size ''"),
        ("2:32@many,12:768", "cannot read the step '2:32@many'"),
        ("2:32@,12:768", "cannot read the step '2:32@'"),
        ("2:32@1e3,12:768", "cannot read the step"),
        ("demi@100,trenta", "cannot read the size 'demi'"),
        ("-1:32@10,12:768", "-1:32 is not a size"),
        ("2:32,12:768", "does not say how many passages 2:32 keeps"),
        ("2:32@0,12:768", "keeps 0 passages at 2:32"),
        ("2:32@10,12:768@-3", "keeps -3 passages at 12:768"),
        ("2:32@100,12:768@101", "keeps 101 passages at 12:768, of 100 before"),
        ("2:32@100,6:64@200,12:768", "keeps 200 passages at 6:64, of 100 before"),
        ("2:32@100,2:32@50,12:768", "scores at 2:32 twice"),
        ("2:32@100,6:64@50,2:32", "scores at 2:32 twice"),
        ("6:32@100,2:64", "shrinks from 6:32 to 2:64: a funnel grows in cost"),
        ("2:64@100,6:32", "shrinks from 2:64 to 6:32"),
        ("6:64/int4@100", "has approximate scores only"),
        ("2:32@100,6:64/int4@50,6:64", "6:64/int4@50 is not the first step"),
        ("6:64/int4@100,2:64", "shrinks from 6:64 to 2:64"),
        ("6:64/int3@100,6:64", "'int3' is no code for 6:64"),
        ("6:62/int1@100,6:64", "6:62/int1@100: a code is for 4 numbers"),
        ("6:64/@100,6:64", "'' is no code for 6:64"),
        ("1:64/2:64/6:64@100,6:64", "cannot read the step '1:64/2:64/6:64'"),
    ],
)
def test_invalid_funnels_are_refused(text, what):
    with pytest.raises(UserError) as caught:
        Funnel.parse(text)
    assert what in caught.value.what
    assert caught.value.hint


def test_a_funnel_without_steps():
    with pytest.raises(UserError, match="no steps"):
        Funnel(())


def test_depth(caplog):
    open_end, closed = Funnel.parse("2:4@50,6:24"), Funnel.parse("2:4@50,6:24@20")
    assert open_end.at_depth(30).depth == 30
    assert closed.at_depth().depth == closed.at_depth(20).depth == 20
    assert Funnel.parse("6:24").at_depth().depth == 1000
    assert Funnel.parse("6:24").at_depth(None, default=10).depth == 10
    assert not caplog.records
    assert open_end.at_depth(51).depth == 50
    assert "the funnel 2:4@50,6:24 passes on 50 passages: each query gets these, not 51" in caplog.text
    for funnel, depth, what in [(closed, 30, "--depth 30 contradicts"), (open_end, 0, "--depth 0 is below 1")]:
        with pytest.raises(UserError, match=what):
            funnel.at_depth(depth)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"data_digest": "other"}, "data_digest is 'da7a' and 'other'"),
        ({"kind": "queries"}, "kind is 'passages' and 'queries'"),
        ({"model_name": "b/model-2"}, "model_name is '' and 'model-2'"),
        ({"normalize": True}, "normalize is False and True"),
        ({"pooling": "mean"}, "pooling is 'cls' and 'mean'"),
        ({"size": Size(2, 24), "fingerprint": "other"}, "fingerprint is 'f2' and 'other'"),
        ({"parts": 2, "part": 1}, "parts is 1 and 2"),
    ],
)
def test_stores_that_do_not_belong_together(corpus, open_written, queries, changes, what):
    ids, vectors, stores = corpus
    last = changes.get("size", Size(6, 24))
    stranger = open_written(ids, vectors[SIZES[2]], "stranger", **({"size": last} | changes))
    with pytest.raises(UserError) as caught:
        funnel_search(queries, stores | {last: stranger}, Funnel.parse(f"2:4@10,{last}"))
    assert what in caught.value.what


def test_a_corpus_of_another_length(corpus, open_written, queries):
    ids, vectors, stores = corpus
    shorter = open_written(ids[:-1], vectors[SIZES[2]][:-1], "shorter")
    with pytest.raises(UserError, match="data_count is 600 and 599"):
        funnel_search(queries, stores | {SIZES[2]: shorter}, Funnel.parse("2:4@10,6:24"))


def test_weights_of_one_layer_that_differ_in_later_steps(corpus, open_written, queries):
    ids, vectors, stores = corpus
    other = open_written(ids, vectors[SIZES[2]][:, :12], "other", size=Size(6, 12), fingerprint="other")
    asked = queries | {Size(6, 12): queries[SIZES[2]][:, :12]}
    with pytest.raises(UserError, match="6:12 and 6:24 do not belong together: fingerprint is 'other' and 'f6'"):
        funnel_search(asked, stores | {Size(6, 12): other}, Funnel.parse("2:4@30,6:12@20,6:24@10"))


def test_one_model_spelled_in_two_ways(corpus, open_written, queries):
    ids, vectors, _ = corpus
    stores = {
        size: open_written(ids, vectors[size], str(size.layer), size=size, model_name=name)
        for size, name in zip(SIZES, ("out/model", "/home/me/out/model", "out/model/"))
    }
    assert list(funnel_search(queries, stores, Funnel.parse("2:4@10,4:8@10,6:24@3")))


def test_refusals(corpus, queries):
    _, _, stores = corpus
    funnel = Funnel.parse("2:4@10,6:24")
    bad = {**queries, SIZES[2]: queries[SIZES[2]].copy()}
    bad[SIZES[2]][4, 3] = np.nan
    for asked, there, options, what in [
        (queries, {SIZES[0]: stores[SIZES[0]]}, {}, "no store of size 6:24"),
        ({SIZES[0]: queries[SIZES[0]]}, stores, {}, "no queries of size 6:24"),
        (bad, stores, {}, "query 4 .from 0. has NaN"),
        ({**queries, SIZES[2]: queries[SIZES[1]]}, stores, {}, "do not fit passages of 24"),
        ({**queries, SIZES[2]: queries[SIZES[2]] * 1e38}, stores, {}, "do not fit single precision"),
        ({**queries, SIZES[2]: queries[SIZES[2]][:-1]}, stores, {}, "25 at 2:4, 24 at 6:24"),
        (queries, stores, {"batch_size": 0}, "--batch_size 0"),
    ]:
        with pytest.raises(UserError, match=what):
            funnel_search(asked, there, funnel, **options)


def test_an_empty_batch_of_queries(corpus, queries):
    _, _, stores = corpus
    none = {size: vectors[:0] for size, vectors in queries.items()}
    assert list(funnel_search(none, stores, Funnel.parse("2:4@10,6:24"))) == []


def test_a_quantised_first_step_can_be_of_the_last_size():
    funnel = Funnel.parse("6:64/int4@100, 6:64@10")
    assert str(funnel) == "6:64/int4@100,6:64@10" and list(funnel.sizes) == [Size(6, 64)]
    assert funnel.steps[0].factory == "PQ64x4fs"
    assert str(funnel.with_queries_at(Size(1, 64))) == "1:64/6:64/int4@100,1:64/6:64@10"
    assert Funnel.parse("1:64/6:64/int4@100,1:64/6:64@10").steps[0].query_size == Size(1, 64)
