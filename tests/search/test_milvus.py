"""Against Milvus Lite where it is installed, and against the server that STARBUCKS_MILVUS_URI names."""

import json
import os
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search import exact_search
from starbucks_retrieval.search.engines import milvus as milvus_module
from starbucks_retrieval.search.engines.milvus import MilvusCollection, load_stores, milvus_funnel, milvus_search
from starbucks_retrieval.search.engines.milvus import connection as connection_module
from starbucks_retrieval.search.engines.milvus.collections import CollectionMetadata
from starbucks_retrieval.search.engines.milvus.connection import Connection
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.sizes import Size

# Every test process collects every file: the import would cost each of them seconds.
pytestmark = pytest.mark.skipif(find_spec("pymilvus") is None, reason="needs the package pymilvus")

SMALL, LARGE = Size(2, 8), Size(6, 24)
SERVER = os.environ.get("STARBUCKS_MILVUS_URI")


@pytest.fixture(
    params=[
        "lite",
        pytest.param("server", marks=pytest.mark.skipif(not SERVER, reason="STARBUCKS_MILVUS_URI is not set")),
    ]
)
def uri(request, tmp_path):
    if request.param == "lite":
        pytest.importorskip("milvus_lite")
        yield str(tmp_path / "milvus.db")
        return
    yield SERVER
    connection = Connection(SERVER)
    for name in connection.call("list_collections"):
        if name.startswith("starbucks_test"):
            connection.call("drop_collection", name)


@pytest.fixture
def stores(open_written):
    """The same 300 passages, many of them twins, at two sizes; and queries."""
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((300, 24)).astype(np.float32)
    vectors[50:90] = vectors[50]
    ids = [f"dok-é{number}" for number in rng.permutation(300)]
    made = {
        size: open_written(ids, vectors[:, : size.dim], name=str(size.layer), size=size, fingerprint=f"w{size.layer}")
        for size in (SMALL, LARGE)
    }
    queries = rng.standard_normal((7, 24)).astype(np.float32)
    queries[0] = vectors[50]  # twins fill the top, up to a clear gap
    return made, {size: queries[:, : size.dim] for size in made}


def joined(found):
    return [np.concatenate(parts) for parts in zip(*found)]


def test_search_is_exact_search(uri, stores):
    stores, queries = stores
    summary = load_stores(stores, uri, "starbucks_test")
    assert (summary.rows, summary.sizes) == (300, "2:8, 6:24")
    collection = MilvusCollection(uri, "starbucks_test")
    assert (collection.sizes, collection.count) == ([SMALL, LARGE], 300)
    for size, store in stores.items():
        rows, scores = joined(milvus_search(queries[size], collection, size, 300, batch_size=4))
        right_rows, right_scores = joined(exact_search(queries[size], store, 300))
        np.testing.assert_allclose(scores, right_scores, rtol=1e-5, atol=1e-5)
        assert np.array_equal(np.sort(rows), np.sort(right_rows))
        clear = np.abs(np.diff(right_scores, prepend=np.inf)) > 1e-4
        clear &= np.abs(np.diff(right_scores, append=-np.inf)) > 1e-4
        assert clear.mean() > 0.5
        assert np.array_equal(rows[clear], right_rows[clear])
        # Twins have equal scores in Milvus too: docids decide.
        assert np.array_equal(rows[0, :40], right_rows[0, :40])
        assert collection.at(size).ids(rows[0]) == store.ids(rows[0])
    collection.close()


def test_funnel_is_the_funnel_over_stores(uri, stores):
    stores, queries = stores
    load_stores(stores, uri, "starbucks_test")
    collection = MilvusCollection(uri, "starbucks_test")
    for text in ("2:8@300,6:24@300", "2:8@60,6:24@20", "6:24@41"):
        rows, scores = joined(milvus_funnel(queries, collection, Funnel.parse(text), batch_size=3))
        right_rows, right_scores = joined(funnel_search(queries, stores, Funnel.parse(text)))
        assert np.array_equal(rows, right_rows)
        assert scores.tobytes() == right_scores.tobytes()
    collection.close()


def test_a_second_load_sends_nothing(uri, stores):
    stores, _ = stores
    assert load_stores(stores, uri, "starbucks_test").loaded == 300 * (1 if uri != SERVER else load_count(uri))
    assert load_stores(stores, uri, "starbucks_test").loaded == 0


def load_count(uri):
    """How many Milvus collections the test's one is spread over."""
    connection = Connection(uri)
    return sum(name.startswith("starbucks_test") for name in connection.call("list_collections"))


def test_a_load_that_was_killed_goes_on(uri, stores, monkeypatch):
    stores, queries = {LARGE: stores[0][LARGE]}, stores[1]
    real = Connection.call
    sent = []

    def killed(self, method, *args, **options):
        if method == "insert":
            if len(sent) == 5:
                raise KeyboardInterrupt
            sent.append(options["partition_name"])
        return real(self, method, *args, **options)

    monkeypatch.setattr(Connection, "call", killed)
    with pytest.raises(KeyboardInterrupt):
        load_stores(stores, uri, "starbucks_test", batch_rows=40)  # shards of 64: two calls each
    monkeypatch.setattr(Connection, "call", real)
    with pytest.raises(UserError, match="incomplete"):
        MilvusCollection(uri, "starbucks_test")
    assert sent == ["rows_0_64"] * 2 + ["rows_64_128"] * 2 + ["rows_128_192"]
    assert load_stores(stores, uri, "starbucks_test").loaded == 300 - 128
    collection = MilvusCollection(uri, "starbucks_test")
    rows, _ = joined(milvus_search(queries[LARGE], collection, LARGE, 300))
    assert np.array_equal(np.sort(rows), np.tile(np.arange(300), (7, 1)))
    collection.close()


@pytest.mark.slow
def test_calls_that_were_repeated_do_not_duplicate_rows(uri, stores, monkeypatch):
    """A row too many in one partition: what an answer that was lost leaves behind."""
    stores = {LARGE: stores[0][LARGE]}
    real = milvus_module._rows
    extra = []

    def twice(stores, start, stop, batch_rows):
        for rows in real(stores, start, stop, batch_rows):
            if start == 64 and not extra:
                extra.append(1)
                yield [rows[0] | {"row": 10_000}]
            yield rows

    monkeypatch.setattr(milvus_module, "_rows", twice)
    assert load_stores(stores, uri, "starbucks_test").loaded == 300 + 64
    collection = MilvusCollection(uri, "starbucks_test")
    assert collection.at(LARGE).vectors(np.arange(300)).tobytes() == stores[LARGE].vectors(np.arange(300)).tobytes()
    collection.close()


@pytest.mark.slow
def test_another_index(uri, stores):
    stores, queries = {LARGE: stores[0][LARGE]}, stores[1]
    load_stores(stores, uri, "starbucks_test")
    summary = load_stores(stores, uri, "starbucks_test", index="IVF_FLAT", index_params={"nlist": 16})
    assert summary.loaded == 0
    collection = MilvusCollection(uri, "starbucks_test")
    described = collection.connection.call("describe_index", "starbucks_test", "layer6_dim24")
    assert described["index_type"] == "IVF_FLAT"
    right, _ = joined(exact_search(queries[LARGE], stores[LARGE], 10))
    lists = 16 if "://" in uri else 128  # Milvus Lite 3.2 makes 128 whatever nlist says
    rows, _ = joined(milvus_search(queries[LARGE], collection, LARGE, 10, {"nprobe": lists}))
    assert np.array_equal(np.sort(rows), np.sort(right))
    collection.close()
    calls = []
    real = Connection.call

    def counted(self, method, *args, **options):
        calls.append(method)
        return real(self, method, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "call", counted)
        load_stores(stores, uri, "starbucks_test", index="ivf_flat", index_params={"nlist": 16})
    assert "create_index" not in calls


def test_other_passages_do_not_enter_a_collection(uri, stores, open_written):
    stores, _ = stores
    load_stores({SMALL: stores[SMALL]}, uri, "starbucks_test")
    other = open_written(stores[SMALL].ids(np.arange(300)), stores[LARGE].vectors(np.arange(300))[:, 8:16], "other",
                         size=SMALL, fingerprint="else")  # fmt: skip
    with pytest.raises(UserError, match="starbucks_test holds something else: at 2:8 its model"):
        load_stores({SMALL: other}, uri, "starbucks_test")
    with pytest.raises(UserError, match="its sizes are 2:8, not 2:8, 6:24"):
        load_stores(stores, uri, "starbucks_test")
    collection = MilvusCollection(uri, "starbucks_test")
    with pytest.raises(UserError, match="differ in fingerprint: 'w2' and 'else'"):
        collection.check(other.spec)
    with pytest.raises(UserError, match="no size 6:24"):
        collection.check(stores[LARGE].spec)
    collection.check(stores[SMALL].spec)
    with pytest.raises(UserError, match="no size 6:24") as caught:
        collection.at(LARGE)
    assert caught.value.hint == "it has 2:8"
    collection.close()
    with pytest.raises(UserError, match="no collection nothing at"):
        MilvusCollection(uri, "nothing")


def test_a_foreign_collection_is_left_alone(uri, stores):
    connection = Connection(uri)
    schema = connection.schema()
    from pymilvus import DataType

    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=4)
    connection.call("create_collection", "starbucks_test", schema=schema)
    connection.close()
    for action in (
        lambda: load_stores(stores[0], uri, "starbucks_test"),
        lambda: MilvusCollection(uri, "starbucks_test"),
    ):
        with pytest.raises(UserError, match="was not loaded by this version"):
            action()


def test_invalid_queries_are_refused(uri, stores):
    stores, queries = {SMALL: stores[0][SMALL]}, stores[1][SMALL]
    load_stores(stores, uri, "starbucks_test")
    collection = MilvusCollection(uri, "starbucks_test")
    field = collection.at(SMALL)
    field.count = 20_000
    for depth, what in [(0, "--depth 0 is below 1"), (16_385, "at most 16384 passages per query, not 16385")]:
        with pytest.raises(UserError, match=what):
            field.search(queries, depth)
    with pytest.raises(UserError, match="query 2"):
        field.search(np.where(np.arange(7)[:, None] == 2, np.nan, queries), 5)
    with pytest.raises(UserError, match="do not fit passages of 8"):
        field.search(np.ones((1, 9)), 5)
    collection.close()
    with pytest.raises(UserError, match=r"refused create_index: .*(unknown|invalid)"):
        load_stores(stores, uri, "starbucks_test", index="NO_SUCH")


@pytest.mark.parametrize("name", ["9lives", "a-b", "é", "", "a b"])
def test_names_that_milvus_does_not_take(stores, tmp_path, name):
    with pytest.raises(UserError, match="cannot name a Milvus collection"):
        load_stores(stores[0], str(tmp_path / "m.db"), name)


def test_files_that_cannot_be_one(stores, tmp_path):
    (tmp_path / "old.db").write_text("of the former engine")
    for name, what in [
        ("there/milvus.db", "no such folder"),
        ("milvus.sqlite", "neither a server nor a file of Milvus Lite"),
        ("old.db", "no Milvus Lite database of this version"),
    ]:
        with pytest.raises(UserError, match=what):
            load_stores(stores[0], str(tmp_path / name), "c")


def test_a_milvus_that_is_down(stores, monkeypatch):
    waits = []
    monkeypatch.setattr(connection_module, "sleep", waits.append)
    monkeypatch.setattr(connection_module, "monotonic", lambda: sum(waits))  # attempts themselves take no time
    with pytest.raises(UserError, match=r"no answer from Milvus at http://127\.0\.0\.1:9:") as caught:
        load_stores(stores[0], "http://user:secret@127.0.0.1:9", "c", timeout=8)
    assert "secret" not in str(caught.value)
    assert "a load goes on where it stopped" in caught.value.hint
    assert waits == [0.5, 1.0, 2.0, 4.0]


def test_a_connection_that_is_lost_is_made_again(stores, tmp_path, monkeypatch):
    """The second insert finds no server; the third attempt does."""
    pytest.importorskip("milvus_lite")
    from pymilvus import MilvusClient, MilvusException

    waits, failures = [], [2, 2]
    monkeypatch.setattr(connection_module, "sleep", waits.append)
    real = MilvusClient.insert

    def insert(self, *args, **options):
        if options["partition_name"] == "rows_64_128" and failures:
            raise MilvusException(failures.pop(), "Fail connecting to server on there")
        return real(self, *args, **options)

    monkeypatch.setattr(MilvusClient, "insert", insert)
    real_init = Connection.__init__

    def as_if_a_server(self, *args):
        real_init(self, *args)
        self.local = False

    monkeypatch.setattr(Connection, "__init__", as_if_a_server)
    assert load_stores(stores[0], str(tmp_path / "milvus.db"), "c").loaded == 300
    assert waits == [0.5, 1.0]


def test_metadata_reads_back(stores):
    metadata = CollectionMetadata.of(stores[0])
    assert CollectionMetadata.loads({"starbucks": metadata.dumps()}, "") == metadata
    assert metadata.id_bytes == len("dok-é299".encode())
    assert [stop for _, _, stop in metadata.partitions()] == [64, 128, 192, 256, 300]


def test_pymilvus_missing(stores, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(UserError, match="needs pymilvus"):
        load_stores(stores[0], "milvus.db", "c")


@pytest.mark.parametrize(
    "values",
    [
        {"fields": [1]},
        {"fields": {"6:8": {"fingerprint": 3, "largest_norm": 1.0}}},
        {"count": 2**40, "chunk": 1},
        {"chunk": 0},
        {"pooling": None},
        {"new": 1},
    ],
)
def test_damaged_metadata_is_refused(stores, values):
    written = json.loads(CollectionMetadata.of(stores[0]).dumps()) | values
    for properties in ({"starbucks": written}, {"starbucks": json.dumps(written)}, {"starbucks": "[" * 10**5}):
        with pytest.raises(UserError, match="x was not loaded by this version"):
            CollectionMetadata.loads(properties, "x")
