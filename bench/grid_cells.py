"""Claim: a grid of 6 x 8 cells from one encoding pass costs a twentieth of encoding, searching and evaluating each cell.

Seconds of `grid` over the sum of 48 runs of `encode` (passages, then queries), `search` and `evaluate`, all as functions in
one process: starting 192 programs would only flatter us. Both read the model anew for every encoding, as the commands
do; with few passages that is a part of the sum that falls away with many, so the share of it is told. Each round
checks that all 48 figures are equal.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import common

from starbucks_retrieval import NestedEncoder
from starbucks_retrieval.encode import EncodeArguments, encode
from starbucks_retrieval.evaluate import EvaluateArguments, evaluate
from starbucks_retrieval.grid import EncodingArguments, GridArguments, grid
from starbucks_retrieval.metrics.results import read_results
from starbucks_retrieval.search import SearchArguments, search
from starbucks_retrieval.sentences import grid_dims, grid_layers
from starbucks_retrieval.sizes import Size

_MEASURE = "nDCG@10"
_TOLERANCE = 1e-6
_QUERY_WORDS = 8


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--passages", type=int, default=128, help="passages of the collection")
    flags.add_argument("--queries", type=int, default=32, help="queries: the first words of so many passages")
    flags.add_argument("--layers", type=int, default=6, help="layers of the model; 12 is BERT-base")
    flags.add_argument("--width", type=int, default=768, help="width of the model")
    flags.add_argument("--depth", type=int, default=100, help="passages per query")
    flags.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="arithmetic of both")
    settings = flags.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        common.save_bert(root / "model", settings.layers, settings.width, settings.seed)
        source = _write_collection(root / "data", settings)
        began = time.perf_counter()
        NestedEncoder.from_pretrained(root / "model", device="cpu").fingerprint(settings.layers)
        loading = time.perf_counter() - began
        sizes = [Size(n, d) for n in grid_layers(settings.layers) for d in grid_dims(settings.width)]
        report = common.Report("grid_cells", settings, texts={"source": source, "count": settings.passages})
        found: dict[str, dict[Size, float]] = {}

        def by_grid(number: int) -> None:
            found["grid"] = _grid(root, settings, f"grid{number}")

        def one_by_one(number: int) -> None:
            found["separate"] = {size: _separate(root, settings, size, f"separate{number}") for size in sizes}
            _check(found)

        seconds = common.interleaved({"grid": by_grid, "separate": one_by_one}, settings.rounds)
    separate = statistics.median(seconds["separate"])
    report.line(
        f"grid of {len(sizes)} cells over {len(sizes)} separate runs",
        "seconds of grid / seconds of encode, search and evaluate for each cell; lower is better, aim below 0.05",
        **common.ratio(seconds["grid"], seconds["separate"]),
        grid={"seconds": round(statistics.median(seconds["grid"]), 3)},
        separate={
            "seconds": round(separate, 2),
            "share_of_reading_models": round(2 * len(sizes) * loading / separate, 3),
        },
        largest_difference={"of_cells": _difference(found), "tolerance": _TOLERANCE},
    )


def _write_collection(folder: Path, settings: Any) -> str:
    texts, source = common.passages(settings.passages, settings.seed)
    (folder / "qrels").mkdir(parents=True)
    asked = [" ".join(text.split()[:_QUERY_WORDS]) for text in texts[: settings.queries]]
    for name, rows in (("corpus", texts), ("queries", asked)):
        lines = [json.dumps({"_id": f"{name[0]}{i}", "text": text}) for i, text in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    judged = "".join(f"q{i}\tc{i}\t1\n" for i in range(len(asked)))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged, encoding="utf-8")
    return source


def _grid(root: Path, settings: Any, name: str) -> dict[Size, float]:
    asked = GridArguments(
        model_name_or_path=str(root / "model"),
        dataset_path=[str(root / "data")],
        measures=[_MEASURE],
        depth=settings.depth,
        output=str(root / f"{name}.json"),
    )
    results = grid(asked, EncodingArguments(dtype=settings.dtype, device="cpu")).results
    return {cell.size: cell.value for cell in results.cells if cell.size is not None}


def _separate(root: Path, settings: Any, size: Size, name: str) -> float:
    folder = root / name / str(size).replace(":", "-")
    for kind in ("passages", "queries"):
        encode(
            EncodeArguments(
                model_name_or_path=str(root / "model"),
                dataset_path=str(root / "data"),
                encode_output_path=str(folder / kind),
                encode_is_query=kind == "queries",
                sizes=str(size),
                dtype=settings.dtype,
                store_dtype="float32",
                device="cpu",
            )
        )
    search(
        SearchArguments(
            query_reps=str(folder / "queries"),
            passage_reps=str(folder / "passages"),
            size=str(size),
            depth=settings.depth,
            save_ranking_to=str(folder / "run.trec"),
        )
    )
    run, judged, scores = str(folder / "run.trec"), str(root / "data"), str(folder / "scores.json")
    evaluate(EvaluateArguments([run], [judged], measures=[_MEASURE], output=scores))
    return read_results(folder / "scores.json").cells[0].value


def _difference(found: dict[str, dict[Size, float]]) -> float:
    return max(abs(found["grid"][size] - value) for size, value in found["separate"].items())


def _check(found: dict[str, dict[Size, float]]) -> None:
    if found["grid"].keys() != found["separate"].keys() or _difference(found) > _TOLERANCE:
        sys.exit(f"cells differ by {_difference(found)}: grid and separate runs do not measure the same")


if __name__ == "__main__":
    main()
