"""Claim: the memory of encoding does not grow with the corpus.

Peak resident memory of `python -m starbucks_retrieval.encode` on a corpus of 1, 4 and 16 times the length, and of a
rival that keeps every layer's state of every passage until the end, as the published code does.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import common


def main() -> None:
    if sys.argv[1:2] == ["--rival"]:
        _rival(*sys.argv[2:])
        return
    flags = common.parser(__doc__.splitlines()[0], rounds=3)
    flags.add_argument("--texts", type=int, default=320, help="passages of the corpus at 1x")
    flags.add_argument("--layers", type=int, default=24, help="layers of the model")
    flags.add_argument("--width", type=int, default=128, help="width of the model")
    # Long enough that the rival's stack of a batch is beyond what glibc puts on its heap (32 MB): below that the heap
    # frays, and the rival was seen to hold 30 times what it keeps.
    flags.add_argument("--passage_max_len", type=int, default=48, help="tokens of a passage")
    flags.add_argument("--shard_size", type=int, default=160, help="rows of a shard of ours")
    flags.add_argument("--factors", type=int, nargs="+", default=[1, 4, 16], help="corpus lengths for ours")
    flags.add_argument("--rival_factors", type=int, nargs="*", default=[1, 4, 16], help="corpus lengths for the rival")
    settings = flags.parse_args()

    lengths = sorted({*settings.factors, *settings.rival_factors})
    texts, source = common.passages(settings.texts * lengths[-1], settings.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common.save_bert(folder / "model", settings.layers, settings.width, settings.seed, settings.passage_max_len)
        for factor in lengths:
            _write_corpus(folder / f"{factor}x.jsonl", texts[: factor * settings.texts])
        ours: dict[int, list[int]] = {factor: [] for factor in settings.factors}
        rival: dict[int, list[int]] = {factor: [] for factor in settings.rival_factors}
        for number in range(settings.rounds):
            for factor in lengths:
                if factor in ours:
                    ours[factor].append(common.peak_memory(_command(folder, factor, number, settings)))
                    _say("ours", factor, ours[factor][-1])
                if factor in rival:
                    command = [__file__, "--rival", *_paths(folder, factor), str(settings.passage_max_len)]
                    rival[factor].append(common.peak_memory([sys.executable, *command]))
                    _say("rival", factor, rival[factor][-1])

    described = common.describe_texts(texts, source, settings.passage_max_len)
    report = common.Report("encode_memory", settings, texts=described)
    for name, peaks in (("ours", ours), ("published", rival)):
        first = min(peaks, default=1)
        for factor in sorted(peaks):
            if factor == first:
                continue
            grown = statistics.median(peaks[factor]) - statistics.median(peaks[first])
            report.line(
                f"{name} at {factor}x over {first}x",
                f"peak memory of {name} with {factor} times the corpus / with {first} times; lower is better, 1 is flat",
                **common.ratio(peaks[factor], peaks[first]),
                peak_mb={f"{f}x": common.megabytes(statistics.median(peaks[f])) for f in (first, factor)},
                passages={f"{f}x": f * settings.texts for f in (first, factor)},
                grown_mb=common.megabytes(grown),
            )


def _command(folder: Path, factor: int, number: int, settings: Any) -> list[str]:
    model, corpus = _paths(folder, factor)
    output = str(folder / f"store-{factor}x-{number}")
    command = [sys.executable, "-m", "starbucks_retrieval.encode", "--model_name_or_path", model, "--quiet"]
    command += ["--dataset_path", corpus, "--encode_output_path", output, "--sizes", "all", "--dtype", "fp32"]
    return [*command, "--shard_size", str(settings.shard_size)]


def _paths(folder: Path, factor: int) -> tuple[str, str]:
    return str(folder / "model"), str(folder / f"{factor}x.jsonl")


def _write_corpus(path: Path, texts: list[str]) -> None:
    with open(path, "w", encoding="utf-8") as handle:
        for number, text in enumerate(texts):
            handle.write(json.dumps({"docid": str(number), "text": text}) + "\n")


def _say(name: str, factor: int, peak: int) -> None:
    print(f"{name} {factor}x: {common.megabytes(peak)} MB", file=sys.stderr, flush=True)


def _rival(model: str, corpus: str, max_length: str) -> None:
    """Encode a corpus the published way; what it would write is left in memory."""
    import published

    with open(corpus, encoding="utf-8") as handle:
        texts = (json.loads(entry)["text"] for entry in handle)
        published.encode(published.load(model), common.tokenizer(), texts, int(max_length))


if __name__ == "__main__":
    main()
