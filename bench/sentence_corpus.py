"""Writes a corpus of a million real texts for `search_auto.py` and `search_ways.py`.

The documents of one set, which have judgements, come first and whole. The sentences of the other sets follow, then clauses
of these sentences in random order, each text once, until there are enough: real words, of many subjects, and no answers
to the judged queries except by chance.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+|\t")
_CLAUSE = re.compile(r"[,:;()\"]\s*")
_LEAST = 4  # words


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--data_dir", required=True, help="folder of sets as corpus.jsonl, and of text/*.gz")
    flags.add_argument("--judged", default="medquad", help="the set whose documents stay whole")
    flags.add_argument("--passages", type=int, default=1_000_000, help="texts to write")
    flags.add_argument("--output", required=True, help="corpus.jsonl")
    flags.add_argument("--seed", type=int, default=42, help="of the order of clauses")
    settings = flags.parse_args()
    data = Path(settings.data_dir)
    judged = data / settings.judged / "corpus.jsonl"
    sentences = dict.fromkeys(part for text in _texts(data, judged) for part in _parts(_SENTENCE, text))
    clauses = list(dict.fromkeys(part for text in sentences for part in _parts(_CLAUSE, text) if part not in sentences))
    random.Random(settings.seed).shuffle(clauses)
    count = 0
    with judged.open(encoding="utf-8") as lines, open(settings.output, "w", encoding="utf-8") as out:
        for line in lines:
            out.write(line)
            count += 1
        for number, text in enumerate([*sentences, *clauses][: max(0, settings.passages - count)]):
            out.write(json.dumps({"_id": f"sentence-{number}", "text": text}) + "\n")
            count += 1
    print(f"{count} texts, of which {min(len(sentences), count)} are sentences; {len(clauses)} clauses were there")


def _texts(data: Path, judged: Path) -> Iterator[str]:
    for corpus in sorted(set(data.glob("*/corpus.jsonl")) - {judged}):
        with corpus.open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                yield f"{row.get('title', '')}\n{row['text']}"
    for packed in sorted((data / "text").glob("*.gz")):
        with gzip.open(packed, "rt", encoding="utf-8", errors="replace") as lines:
            yield from lines


def _parts(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    return (part for piece in pattern.split(text) if len((part := piece.strip()).split()) >= _LEAST)


if __name__ == "__main__":
    main()
