"""Claim: processes share the work of encoding.

Seconds of `encode --num_processes 1` on all cores over `--num_processes 2` on half of them each, start included. Both
must write the same vectors, to half precision's last digit: sums depend on the number of threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import common
import numpy as np

from starbucks_retrieval.store import open_store


def main() -> None:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--texts", type=int, default=2048, help="passages of a run")
    flags.add_argument("--shard_size", type=int, default=256, help="rows of a shard")
    flags.add_argument("--layers", type=int, default=6, help="layers of the model")
    flags.add_argument("--width", type=int, default=384, help="width of the model")
    settings = flags.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = common.save_bert(folder / "model", settings.layers, settings.width, settings.seed)
        texts, source = common.passages(settings.texts, settings.seed)
        rows = (json.dumps({"docid": str(i), "text": text}) for i, text in enumerate(texts))
        (folder / "corpus.jsonl").write_text("\n".join(rows), encoding="utf-8")

        def encode(processes: int, number: int) -> None:
            command = [sys.executable, "-m", "starbucks_retrieval.encode", "--quiet", "--overwrite"]
            command += ["--model_name_or_path", "model", "--dataset_path", "corpus.jsonl"]
            command += ["--encode_output_path", f"out-{processes}", "--shard_size", str(settings.shard_size)]
            command += ["--num_processes", str(processes)]
            subprocess.run(command, check=True, cwd=folder, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"})

        seconds = common.interleaved(
            {"one": lambda number: encode(1, number), "two": lambda number: encode(2, number)}, settings.rounds
        )
        full = [open_store(folder / f"out-{count}", sizes.full) for count in (1, 2)]
        everything = np.arange(settings.texts)
        one, two = (store.vectors(everything).astype(np.float32) for store in full)
        if not np.allclose(one, two, rtol=2e-3, atol=2e-3):
            sys.exit("the contenders do not write the same vectors")
    report = common.Report("encode_processes", settings, texts=common.describe_texts(texts, source, 196))
    report.line(
        "two processes over one",
        "seconds of one process with all threads / of two with half of them each; above 1 two are faster",
        **common.ratio(seconds["one"], seconds["two"]),
        texts_per_second={name: common.per_second(settings.texts, laps) for name, laps in seconds.items()},
    )


if __name__ == "__main__":
    main()
