"""grid(): every size of a model on retrieval data sets, from one encoding pass over each."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from starbucks_retrieval.data import open_corpus, open_queries, read_qrels
from starbucks_retrieval.devices import resolve_device
from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.grid.arguments import EncodingArguments, GridArguments
from starbucks_retrieval.grid.costs import PASSAGES, QUERIES, bytes_of, costs_of
from starbucks_retrieval.grid.encoding import Stores, encode_arguments, encode_layers, grid_shape, remove_layers
from starbucks_retrieval.grid.scoring import Scoring
from starbucks_retrieval.metrics.measures import Qrels, parse_measures
from starbucks_retrieval.metrics.results import Cell, Results, dataset_name, write_results
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.search.memory import parse_bytes
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import EmbeddingStore

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_SAMPLED = 10_000  # passages from the front of a corpus, among which those that are timed are drawn
_IDS = 2**16  # ids that are looked at together
# Flags that say where the work is done, not what is measured.
_PLACES = ("task", "data", "output", "work_dir", "keep_work_dir", "overwrite", "max_memory", "device", "num_processes")


@dataclasses.dataclass(frozen=True)
class Measured:
    """A grid, and the seconds that each part of the work took."""

    results: Results
    seconds: dict[str, float]


def grid(asked: GridArguments, encoding: EncodingArguments | None = None, seed: int = 42) -> Measured:
    """Measure every (layer, dim) of the grid on each data set, and write the result file.

    Queries and passages are encoded once, at each layer and the widest dim, into stores of the work folder; a run that
    was stopped goes on there. Then each layer's passages are streamed once for all dims. A cell is what encoding,
    searching and evaluating at that size alone would give with embeddings stored in float32. `seed` draws the texts
    by which costs are measured. Raises UserError for bad flags, data and sizes before anything is encoded.
    """
    encoding = encoding or EncodingArguments()
    plan = prepare(asked, encoding)
    base, names, judged, measures, depth = plan.base, plan.names, plan.judged, plan.measures, plan.depth
    layers, dims = plan.layers, plan.dims
    log.info("%d layers x %d dims, %d passages a query, from one pass a data set", len(layers), len(dims), depth)
    scoring = Scoring(
        dims,
        measures,
        depth,
        plan.normalize,
        asked.asymmetric,
        asked.remove_identical_ids,
        asked.max_memory,
        scoring_place(plan.device),
    )
    seconds = {"encode": 0.0, "score": 0.0}
    cells: list[Cell] = []
    findings: dict[str, dict[str, list[str]]] = {}
    made: list[Stores] = []
    for dataset, name in names.items():
        lap = time.perf_counter()
        pooled_layers = encode_layers(base, asked, dataset, asked.work_folder / name, layers, dims[-1])
        made += pooled_layers.values()
        seconds["encode"] += -lap + (lap := time.perf_counter())
        rows = _judged_rows(pooled_layers[layers[0]], judged[dataset], name)
        for own, serious in scoring.cells(name, pooled_layers, judged[dataset], rows):
            cells += own if asked.keep_values else [dataclasses.replace(cell, values=None) for cell in own]
            if serious:
                findings.setdefault(name, {})[_place(own[0])] = serious
        seconds["score"] += time.perf_counter() - lap
    _tell(findings, len(cells) // len(measures) // len(names))
    more = _about(asked, encoding, made, layers, dims, depth) | ({"findings": findings} if findings else {})
    lap = time.perf_counter()
    more |= _costs(base, asked, [Size(layer, dim) for layer in layers for dim in dims], seed)
    seconds["time"] = time.perf_counter() - lap
    results = Results("grid", asked.label or Path(asked.model_name_or_path).name, cells, more, "grid")
    write_results(asked.target, results)
    if not asked.keeps_work:
        remove_layers(made, asked.work_folder)
    return Measured(results, {part: round(value, 3) for part, value in seconds.items()})


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be measured, known before anything is encoded. `names`: {data set: what cells call it}."""

    base: EncodeArguments
    names: dict[str, str]
    judged: Mapping[str, Qrels]
    measures: list[Any]
    depth: int
    layers: list[int]
    dims: list[int]
    normalize: bool
    device: torch.device


def prepare(asked: GridArguments, encoding: EncodingArguments) -> Plan:
    """Look at flags, model and judgements. Raises UserError for bad ones."""
    if asked.data:
        raise UserError("--data names sets of scored pairs", "add --task sts, or name the data with --dataset_path")
    device = resolve_device(encoding.device)
    base = encode_arguments(asked, encoding)
    names = _names(asked)
    measures, depth = parse_measures(asked.measure_text), asked.kept()
    parse_bytes(asked.max_memory)
    if asked.target.is_dir():
        raise UserError(f"{asked.target} is a folder, a file is to be written", "name a file in it")
    shape = grid_shape(base)
    layers, dims = asked.wanted(shape.num_layers, shape.hidden_size)
    judged = {dataset: read_qrels(asked.qrels or dataset, split=asked.split) for dataset in names}
    return Plan(base, names, judged, measures, depth, layers, dims, shape.config.normalize, device)


def scoring_place(model: torch.device) -> str:
    """Where passages are scored: on the model's device if the pass over them knows it, else on the CPU."""
    return str(model) if model.type in ("cpu", "cuda") else "cpu"


def _names(asked: GridArguments) -> dict[str, str]:
    """{data set: what cells call it}. Raises UserError where that would be one name for two."""
    if not asked.model_name_or_path:
        raise UserError("--model_name_or_path is missing", "name the model to measure")
    if not asked.dataset_path:
        raise UserError("--dataset_path is missing", "name a BEIR folder, or a short name such as beir/scifact")
    if len(asked.dataset_path) > 1 and (asked.queries or asked.qrels):
        raise UserError("--queries and --qrels belong to one data set", "measure one data set at a time")
    names = {}
    for dataset in asked.dataset_path:  # as evaluate calls them
        path = Path(dataset).expanduser()
        names[dataset] = dataset_name(path) if path.is_dir() else dataset.removeprefix("ir:")
    if len(set(names.values())) < len(asked.dataset_path):
        raise UserError(f"two data sets of one name: {' '.join(asked.dataset_path)}", "measure them one by one")
    return names


def _judged_rows(stores: Stores, qrels: Qrels, name: str) -> np.ndarray:
    """Rows of the judged queries. Raises UserError where judgements and data are strangers; tells of a part of them."""
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


def _place(cell: Cell) -> str:
    return str(cell.size) if cell.passage_size is None else f"{cell.size}/{cell.passage_size}"


def _tell(findings: Mapping[str, Mapping[str, Sequence[str]]], cells: int) -> None:
    for name, places in findings.items():
        for kind, count in Counter(itertools.chain.from_iterable(places.values())).items():
            first = next(place for place, kinds in places.items() if kind in kinds)
            log.warning(
                "serious: %s in %d of %d cells of %s, %s first\n  try: encode, search and evaluate there to see it",
                *(kind, count, cells, name, first),
            )


def _about(
    asked: GridArguments,
    encoding: EncodingArguments,
    made: Sequence[Stores],
    layers: Sequence[int],
    dims: Sequence[int],
    depth: int,
) -> dict[str, Any]:
    """What else the result file says."""
    spec = made[0].passages.spec
    settings = dataclasses.asdict(asked) | dataclasses.asdict(encoding)
    return {
        "model": asked.model_name_or_path,
        "fingerprint": made[-1].passages.spec.fingerprint,
        "layers": list(layers),
        "dims": list(dims),
        "depth": depth,
        "compute_dtype": spec.compute_dtype,
        "store_dtype": spec.store_dtype,
        "provenance": describe({name: value for name, value in settings.items() if name not in _PLACES}),
    }


def _costs(base: EncodeArguments, asked: GridArguments, sizes: Sequence[Size], seed: int) -> dict[str, Any]:
    """`costs` of each size, and how those in milliseconds were measured, if they were."""
    if not asked.measure_cost:
        return {"costs": bytes_of(sizes)}
    rng, dataset = np.random.default_rng(seed), asked.dataset_path[0]
    queries = list(open_queries(asked.queries or dataset, split=asked.query_split))
    passages = list(itertools.islice(open_corpus(dataset), _SAMPLED))
    some = [queries[i] for i in rng.permutation(len(queries))[:QUERIES]]
    others = [passages[i] for i in rng.permutation(len(passages))[:PASSAGES]]
    return costs_of(base, sizes, some, others)
