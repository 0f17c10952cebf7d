"""Measure every size of a model on retrieval data or on scored pairs, from one encoding pass over each."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from starbucks_retrieval.data import Passage, open_corpus, open_queries
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.grid import EncodingArguments, GridArguments
from starbucks_retrieval.grid.costs import bytes_of, costs_of, search_costs
from starbucks_retrieval.grid.layers import LayerStores, encode_arguments, encode_layers, remove_layers
from starbucks_retrieval.grid.plan import GridPlan, plan_grid, sts_arguments
from starbucks_retrieval.locks import OutputLock
from starbucks_retrieval.metrics.measures import Qrels
from starbucks_retrieval.metrics.results import Cell, Results, write_results
from starbucks_retrieval.models.info import model_info
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.search import parse_bytes
from starbucks_retrieval.sentences.tasks import open_pair_sets
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore
from starbucks_retrieval.sts import sts

log = logging.getLogger(__name__)

_SAMPLED = 10_000  # first passages of a corpus, from which those that are timed are drawn
_IDS = 2**16  # ids compared at once
# Flags that do not affect the results.
_FOLDERS = ("output", "work_dir", "keep_work_dir", "overwrite")
_NOT_RECORDED = ("task", "data", *_FOLDERS, "max_memory", "device", "num_processes")


@dataclasses.dataclass(frozen=True)
class GridMeasurement:
    """A measured grid.

    Attributes:
        results: The content of the result file.
        seconds: Seconds of each part of the work: `encode`, `score`, `time`.
    """

    results: Results
    seconds: dict[str, float]


def grid(arguments: GridArguments, encoding: EncodingArguments | None = None, seed: int = 42) -> GridMeasurement:
    """Measure every (layer, dim) of the grid on each data set, and write the result file.

    Queries and passages are encoded once, at each layer and the widest dim, into stores in the work folder; an
    interrupted run resumes from them. Then each layer's passages are read once for all dims. A cell equals the result
    of encoding, searching and evaluating at that size alone with embeddings stored in float32.

    Args:
        arguments: The flags of the command.
        encoding: Flags of the encoding.
        seed: Draws the texts by which costs are measured.

    Raises:
        UserError: A flag, the data or a size is wrong, or another process uses the same embeddings; raised before
            anything is encoded.

    Example:
        >>> measured = grid(GridArguments("model", dataset_path=["scifact"], output="grid.json"))  # doctest: +SKIP
    """
    encoding = encoding or EncodingArguments()
    plan = plan_grid(arguments, encoding)
    with contextlib.ExitStack() as locks:
        for name in plan.names.values():  # a second run would read embeddings that the first one deletes
            locks.enter_context(OutputLock(arguments.work_folder / name))
        measured = _grid(plan, seed)
    if not arguments.keeps_work:
        with contextlib.suppress(OSError):  # it holds something else
            arguments.work_folder.rmdir()
    return measured


def _grid(plan: GridPlan, seed: int) -> GridMeasurement:
    arguments, layers, dims, depth = plan.arguments, plan.layers, plan.scoring.dims, plan.scoring.depth
    log.info("%d layers x %d dims, %d passages a query, from one pass a data set", len(layers), len(dims), depth)
    seconds = {"encode": 0.0, "score": 0.0}
    cells: list[Cell] = []
    findings: dict[str, dict[str, list[str]]] = {}
    stores: list[LayerStores] = []
    for dataset, name in plan.names.items():
        lap = time.perf_counter()
        pooled_layers = encode_layers(*plan.jobs(dataset))
        stores += pooled_layers.values()
        seconds["encode"] += -lap + (lap := time.perf_counter())
        rows = _judged_rows(pooled_layers[layers[0]], plan.qrels[dataset], name)
        for size_cells, serious in plan.scoring.cells(name, pooled_layers, plan.qrels[dataset], rows):
            cells += size_cells
            if serious:
                findings.setdefault(name, {})[_size_text(size_cells[0])] = serious
        seconds["score"] += time.perf_counter() - lap
    _warn_of_findings(findings, len(cells) // len(plan.scoring.measures) // len(plan.names))
    more = _description(plan, stores) | ({"findings": findings} if findings else {})
    lap = time.perf_counter()
    more |= _costs(plan, stores[0], [Size(layer, dim) for layer in layers for dim in dims], seed)
    seconds["time"] = time.perf_counter() - lap
    results = Results("grid", arguments.label or Path(arguments.model_name_or_path).name, cells, more, "grid")
    if not arguments.keep_values:
        results = results.without_values()
    write_results(arguments.target, results)
    if not arguments.keeps_work:
        remove_layers(stores, arguments.work_folder)
    return GridMeasurement(results, {part: round(value, 3) for part, value in seconds.items()})


def grid_of_pairs(arguments: GridArguments, encoding: EncodingArguments | None = None, seed: int = 42) -> Results:
    """Measure every (layer, dim) on sets of scored pairs, and write the result file.

    With `measure_cost`, sentences drawn by `seed` are timed alone (query_ms) and in batches (passage_ms).

    Args:
        arguments: The flags of `starbucks grid --task sts`.
        encoding: Flags of the encoding; None for the defaults.
        seed: Draws the sentences by which costs are measured.

    Returns:
        The content of the result file.

    Raises:
        UserError: A flag belongs to retrieval, or as `sts`.
    """
    encoding = encoding or EncodingArguments()
    pair_arguments = sts_arguments(arguments, encoding)
    results = sts(pair_arguments)
    if arguments.measure_cost:
        sets = open_pair_sets(pair_arguments.data, pair_arguments.split)
        texts = dict.fromkeys(text for one in sets for side in one.sentences for text in side)
        passages = [Passage(str(i), "", text) for i, text in enumerate(texts)]
        sizes = sorted({cell.size for cell in results.cells if cell.size is not None})
        costs = costs_of(encode_arguments(arguments, encoding), sizes, passages, passages, seed)
        results = dataclasses.replace(results, more=results.more | costs)
        write_results(arguments.target, results)
    return results


def _judged_rows(stores: LayerStores, qrels: Qrels, name: str) -> np.ndarray:
    """Rows of the judged queries. Raises UserError if no judged query or document is in the data; warns of missing ones."""
    queries = np.array(list(_rows_of(stores.queries, set(qrels)).values()), np.int64)
    documents = {docid for grades in qrels.values() for docid in grades}
    there = _rows_of(stores.passages, documents)
    for kind, found, known in (("queries", len(queries), len(qrels)), ("documents", len(there), len(documents))):
        if not found:
            raise UserError(
                f"{name}: none of the {known} judged {kind} is in the data", "use the data's own judgements"
            )
        if found < known:
            log.warning("%s: %d of %d judged %s are not in the data", name, known - found, known, kind)
    return np.sort(queries)


def _rows_of(store: EmbeddingStore, wanted: set[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for start in range(0, store.count, _IDS):
        ids = store.ids(np.arange(start, min(start + _IDS, store.count)))
        found |= {one: start + i for i, one in enumerate(ids) if one in wanted}
    return found


def _size_text(cell: Cell) -> str:
    return str(cell.size) if cell.passage_size is None else f"{cell.size}/{cell.passage_size}"


def _warn_of_findings(findings: Mapping[str, Mapping[str, Sequence[str]]], cells: int) -> None:
    for name, sizes in findings.items():
        for kind, count in Counter(itertools.chain.from_iterable(sizes.values())).items():
            first = next(size for size, kinds in sizes.items() if kind in kinds)
            log.warning(
                "serious: %s in %d of %d cells of %s, %s first\n  try: encode, search and evaluate there to see it",
                *(kind, count, cells, name, first),
            )


def _description(plan: GridPlan, stores: Sequence[LayerStores]) -> dict[str, Any]:
    """The settings that the result file records."""
    arguments, spec = plan.arguments, stores[0].passages.spec
    settings = dataclasses.asdict(arguments) | dataclasses.asdict(plan.encoding)
    return {
        "model": arguments.model_name_or_path,
        "fingerprint": stores[-1].passages.spec.fingerprint,
        **model_info(arguments.model_name_or_path).made_for(),
        "layers": list(plan.layers),
        "dims": list(plan.scoring.dims),
        "depth": plan.scoring.depth,
        **({"shared_space": spec.shared_space} if spec.shared_space else {}),
        "compute_dtype": spec.compute_dtype,
        "store_dtype": spec.store_dtype,
        "provenance": describe({name: value for name, value in settings.items() if name not in _NOT_RECORDED}),
    }


def _costs(plan: GridPlan, stores: LayerStores, sizes: Sequence[Size], seed: int) -> dict[str, Any]:
    """Return the `costs` of each size, and how milliseconds were measured, if they were. `stores`: of the first set."""
    arguments = plan.arguments
    if not arguments.measure_cost:
        return {"costs": bytes_of(sizes)}
    dataset = arguments.dataset_path[0]
    queries = list(open_queries(arguments.queries or dataset, split=arguments.query_split))
    base = encode_arguments(arguments, plan.encoding)
    more = costs_of(base, sizes, queries, list(itertools.islice(open_corpus(dataset), _SAMPLED)), seed)
    if find_spec("faiss") is None:
        log.warning("search is not timed, FAISS is not installed\n  try: pip install 'starbucks-retrieval[cpu]'")
        return more
    memory = parse_bytes(arguments.max_memory)
    costs, how = search_costs(*stores, sizes, plan.scoring.depth, max_memory=memory, seed=seed)
    merged = {size: cost | costs[size] for size, cost in more["costs"].items()}
    return more | {"costs": merged, "costs_measured": more["costs_measured"] | {"search": how}}
