"""sentence-transformers in an environment of its own, for encode_sizes.py: its OpenVINO and ONNX back ends need transformers 4.

    python -m venv other
    other/bin/pip install torch==2.13.0 'sentence-transformers[openvino,onnx]'
    python bench/encode_sizes.py --other_python other/bin/python

`OtherEnvironment` starts this file there as a program. It loads the models, then encodes the texts whenever a line names a
back end and a size, and answers with the seconds that this took by its own clock.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PACKAGES = ("sentence-transformers", "transformers", "torch", "optimum-intel", "openvino", "onnxruntime")


class OtherEnvironment:
    """sentence-transformers, run by another Python.

    Args:
        python: The Python of the environment.
        models: {size: a folder of sentence-transformers}; they are needed until this returns.
        texts: The texts to encode.
        settings: `backends`, `dtype`, `threads` and `clock`.

    Attributes:
        versions: The versions of its packages.
    """

    def __init__(
        self, python: str, models: Mapping[str, str], texts: Sequence[str], settings: Mapping[str, Any]
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._to = Path(self._folder.name, "embeddings.npy")
        job = Path(self._folder.name, "job.json")
        job.write_text(json.dumps({**settings, "models": models, "texts": texts, "to": str(self._to)}))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [python, __file__, str(job)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.versions: dict[str, str] = self._answer()

    def seconds(self, backend: str, size: str, number: int = 0) -> float:
        """Encode all texts at a size, in a round of this number, and return the seconds that this took."""
        assert self._process.stdin is not None
        print(json.dumps([backend, size]), file=self._process.stdin, flush=True)
        return float(self._answer())

    def embeddings(self, backend: str, size: str) -> Any:
        """Return the embeddings of all texts: [texts, dim]."""
        import numpy as np

        self.seconds(backend, size)
        return np.load(self._to)

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the other environment ended with status {self._process.wait()}; its error is above")
        return json.loads(line)


def main() -> None:
    """Load the models, and encode what the lines of standard input ask for."""
    answers = os.fdopen(os.dup(1), "w")  # what libraries print goes to standard error
    os.dup2(2, 1)
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type] # reports to nobody
    import numpy as np
    import torch
    from sentence_transformers import SentenceTransformer

    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    models = {
        (backend, size): SentenceTransformer(folder, backend=backend, device="cpu", model_kwargs=_options(backend, job))
        for backend in job["backends"]
        for size, folder in job["models"].items()
    }
    clock = {"wall": time.perf_counter, "processor": time.process_time}[job["clock"]]
    print(json.dumps({name: importlib.metadata.version(name) for name in _PACKAGES}), file=answers, flush=True)
    for line in sys.stdin:
        backend, size = json.loads(line)
        began = clock()
        vectors = models[backend, size].encode(job["texts"], show_progress_bar=False)  # batch size and order: its own
        seconds = clock() - began
        np.save(job["to"], vectors)
        print(json.dumps(seconds), file=answers, flush=True)


def _options(backend: str, job: Mapping[str, Any]) -> dict[str, Any]:
    if backend == "openvino":
        precision = {"fp32": "f32", "bf16": "bf16"}[job["dtype"]]  # by default bf16 where the processor has it
        options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": str(job["threads"])}
        return {"ov_config": {**options, "PERFORMANCE_HINT": "LATENCY"}}  # all threads work on one batch
    if backend == "onnx":
        import onnxruntime

        sessions = onnxruntime.SessionOptions()
        sessions.intra_op_num_threads = job["threads"]
        return {"provider": "CPUExecutionProvider", "session_options": sessions}
    return {}


if __name__ == "__main__":
    main()
