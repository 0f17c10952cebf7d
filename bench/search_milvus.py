"""Claim: Milvus Lite behind the same calls finds what exact search finds, and is loaded as fast as pymilvus alone can.

Rows a second of our load over plain inserts by pymilvus of the same vectors, a fresh file each round; queries a second
at each size and through a funnel over our own search of the store; and whether both find the same. Needs pymilvus and
milvus-lite, and ends with a line where they are not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import common
import numpy as np
import search_common

from starbucks_retrieval.search.engines.exact import exact_search
from starbucks_retrieval.search.engines.milvus import MilvusCollection, load_stores, milvus_funnel, milvus_search
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.search.funnel_search import funnel_search
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import EmbeddingStore

_TOLERANCE = 1e-5  # between scores of equal rank; those of Milvus are sums in single precision
_INSERTED = 1000  # rows of a plain insert
Stores = Mapping[Size, EmbeddingStore]


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--passages", type=int, default=20_000, help="passages of the corpus")
    flags.add_argument("--queries", type=int, default=256, help="queries a round")
    flags.add_argument(
        "--sizes", default="2:32,12:768", help="some of the six default sizes, 2:32 to 12:768, all in a collection"
    )
    flags.add_argument("--keep", type=int, default=500, help="K of the funnel from the first size to the last")
    flags.add_argument("--depth", type=int, default=100, help="passages per query")
    settings = flags.parse_args()
    missing = [name for name in ("pymilvus", "milvus_lite") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{' and '.join(missing)} not installed: nothing measured", file=sys.stderr)
        return

    corpus = search_common.Corpus(settings.passages, settings.seed)
    sizes = Sizes.parse(settings.sizes, corpus.model_sizes)
    queries = corpus.queries(settings.queries, sizes)
    report = common.Report("search_milvus", settings, vectors=corpus.describe())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stores = corpus.write(folder / "passages", sizes)
        importlib.import_module("pymilvus")  # seconds that are no part of loading
        _loading(stores, folder, settings, report)
        _searching(stores, queries, str(folder / "ours-0.db"), settings, report)


def _loading(stores: Stores, folder: Path, settings: Any, report: common.Report) -> None:
    contenders: dict[str, Callable[[int], object]] = {
        "plain": lambda number: _plain_load(stores, str(folder / f"plain-{number}.db")),
        "ours": lambda number: load_stores(stores, str(folder / f"ours-{number}.db"), "bench"),
    }
    seconds = common.interleaved(contenders, settings.rounds)
    report.line(
        "load over plain pymilvus",
        "rows/s of our load into Milvus Lite / of plain inserts, index and all; higher is better",
        **common.ratio(seconds["plain"], seconds["ours"]),
        ours={"rows_per_second": common.per_second(settings.passages, seconds["ours"])},
        rival={"rows_per_second": common.per_second(settings.passages, seconds["plain"])},
        seconds={name: round(statistics.median(laps), 2) for name, laps in seconds.items()},
    )


def _plain_load(stores: Stores, uri: str) -> None:
    """What pymilvus' own documentation does: one collection, inserts of dictionaries, an index a field, loaded."""
    from pymilvus import DataType, MilvusClient

    client = MilvusClient(uri)
    schema = MilvusClient.create_schema(auto_id=False)
    schema.add_field("row", DataType.INT64, is_primary=True)
    schema.add_field("docid", DataType.VARCHAR, max_length=64)
    described = MilvusClient.prepare_index_params()
    names = {size: f"vector_{size.layer}_{size.dim}" for size in stores}
    for size, field in names.items():
        schema.add_field(field, DataType.FLOAT_VECTOR, dim=size.dim)
        described.add_index(field, index_type="FLAT", metric_type="IP")
    client.create_collection("bench", schema=schema)
    count = next(iter(stores.values())).count
    for start in range(0, count, _INSERTED):
        stop = min(start + _INSERTED, count)
        read = {names[size]: store.consecutive(start, stop) for size, store in stores.items()}
        ids = next(iter(read.values()))[0]
        vectors = {field: found.astype(np.float32) for field, (_, found) in read.items()}
        rows = [
            {"row": start + i, "docid": docid} | {field: own[i] for field, own in vectors.items()}
            for i, docid in enumerate(ids)
        ]
        client.insert("bench", rows)
    client.flush("bench")
    client.create_index("bench", described)
    client.load_collection("bench")
    client.close()


def _searching(stores: Stores, queries: search_common.Vectors, uri: str, settings: Any, report: common.Report) -> None:
    collection = MilvusCollection(uri, "bench")
    depth = min(settings.depth, collection.count)
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for size, store in stores.items():
        pairs[str(size)] = (
            partial(milvus_search, queries[size], collection, size, depth),
            partial(exact_search, queries[size], store, depth),
        )
    if len(stores) > 1:
        first, *_, last = sorted(stores)
        funnel = Funnel.parse(f"{first}@{max(depth, settings.keep)},{last}").at_depth(depth)
        pairs[f"funnel {funnel}"] = (
            partial(milvus_funnel, queries, collection, funnel),
            partial(funnel_search, queries, stores, funnel),
        )
    found: dict[str, search_common.Results] = {}

    def timed(name: str, run: Callable[[], Any], number: int = 0) -> None:
        found[name] = search_common.together(run())

    contenders: dict[str, Callable[[int], object]] = {}
    for name, (theirs, ours) in pairs.items():
        contenders |= {f"milvus {name}": partial(timed, f"milvus {name}", theirs)}
        contenders |= {f"ours {name}": partial(timed, f"ours {name}", ours)}
    for run in contenders.values():
        run(0)
    seconds = common.interleaved(contenders, settings.rounds)
    collection.close()
    for name in pairs:
        (rows, scores), (own_rows, own_scores) = found[f"milvus {name}"], found[f"ours {name}"]
        difference = search_common.largest_difference(own_scores, scores)
        if difference > _TOLERANCE:
            sys.exit(f"scores of {name} differ by {difference}: Milvus and exact search do not find the same")
        report.line(
            f"{name} in Milvus Lite over ours",
            f"queries/s of Milvus Lite (FLAT) / of our own search of the store, depth {depth}. Parity: the share of "
            "our passages that Milvus finds, and of queries whose lists are the same in the same order",
            **common.ratio(seconds[f"ours {name}"], seconds[f"milvus {name}"]),
            milvus={"queries_per_second": common.per_second(settings.queries, seconds[f"milvus {name}"])},
            ours={"queries_per_second": common.per_second(settings.queries, seconds[f"ours {name}"])},
            parity={
                "passages": search_common.overlap(own_rows, rows, depth),
                "same_lists": round(float((rows == own_rows).all(axis=1).mean()), 4),
            },
            largest_difference={"of_scores": difference, "tolerance": _TOLERANCE},
        )


if __name__ == "__main__":
    main()
