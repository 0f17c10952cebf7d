"""Write small data for the similarity study: NLI triples and sets of scored pairs, from real data or a grammar.

    python make_pairs.py OUTPUT [--source FOLDER] [--triples 960] [--pairs 200]

FOLDER has nli/triples.jsonl (anchor, positive, negative) and sts/*.tsv (split, score, sentence1, sentence2). Without
it a small grammar makes sentences: a positive is a paraphrase, a negative changes the subject, object or location, and
a pair's score is the share of parts that two sentences have in common. OUTPUT gets nli.jsonl and sts/NAME.tsv; it is
written atomically, and the same arguments give the same bytes. The suffix of `NAME-tiny` marks scores that differ from NAME's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.data import open_groups
from starbucks_retrieval.data.pairs import open_split_of_pairs
from starbucks_retrieval.errors import UserError

Triple = tuple[str, str, str]
Pair = tuple[float, str, str]

# What a sentence says, slot by slot, each in two wordings.
_WHO = [("a man", "a guy"), ("a woman", "a lady"), ("a child", "a kid"), ("a dog", "a puppy"), ("a nurse", "a carer")]
_DOES = [
    *[("is washing", "cleans"), ("is carrying", "holds"), ("is looking at", "watches"), ("is painting", "colours")],
    *[("is repairing", "fixes"), ("is buying", "purchases")],
]
_WHAT = [("a bicycle", "a bike"), ("a large box", "a big crate"), ("a photo", "a picture"), ("a coat", "a jacket")]
_WHERE = [
    *[("in the street", "on the road"), ("near the sea", "by the ocean"), ("in a shop", "inside a store")],
    *[("at home", "in the house"), ("in the woods", "in a forest")],
]
_SLOTS = (_WHO, _DOES, _WHAT, _WHERE)


def sentence(meaning: Sequence[int], rng: np.random.Generator) -> str:
    """A meaning, an index for each slot, in wordings drawn by `rng`."""
    words = [slot[index][rng.integers(2)] for slot, index in zip(_SLOTS, meaning)]
    return f"{' '.join(words).capitalize()}."


def draw(rng: np.random.Generator) -> list[int]:
    """A meaning."""
    return [int(rng.integers(len(slot))) for slot in _SLOTS]


def changed(meaning: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
    """A meaning that differs in `count` slots."""
    other = list(meaning)
    for place in rng.choice(len(_SLOTS), count, replace=False):
        other[place] = (other[place] + 1 + int(rng.integers(len(_SLOTS[place]) - 1))) % len(_SLOTS[place])
    return other


def made_up_triples(rng: np.random.Generator) -> Iterator[Triple]:
    """Triples without end."""
    while True:
        meaning = draw(rng)
        other = changed(meaning, int(rng.integers(1, 3)), rng)
        yield sentence(meaning, rng), sentence(meaning, rng), sentence(other, rng)


def made_up_pairs(rng: np.random.Generator) -> Iterator[Pair]:
    """Scored pairs without end; 5 is the same meaning, 0 nothing in common."""
    while True:
        meaning, count = draw(rng), int(rng.integers(len(_SLOTS) + 1))
        score = 5 * (1 - count / len(_SLOTS))
        yield score, sentence(meaning, rng), sentence(changed(meaning, count, rng), rng)


def real_triples(path: Path) -> Iterator[Triple]:
    """Triples of a file of groups."""
    for group in open_groups(str(path)):
        if group.passages and group.negative_ids:
            texts = group.passages[group.positive_ids[0]].text, group.passages[group.negative_ids[0]].text
            yield group.query, *texts


def spread(path: Path, count: int) -> list[Pair]:
    """Pairs spread evenly over a set of several parts; the test split where it has splits."""
    pairs = [(pair.score, pair.sentence1, pair.sentence2) for pair in open_split_of_pairs(str(path), None)]
    return pairs[:: max(1, len(pairs) // count)][:count]


def make(arguments: argparse.Namespace, folder: Path) -> None:
    """Write the data into a folder that is there."""
    rng = np.random.default_rng(arguments.seed)
    if arguments.source is None:
        triples = made_up_triples(rng)
        sets = {"made-up": list(islice(made_up_pairs(rng), arguments.pairs))}
    else:
        triples = real_triples(arguments.source / "nli" / "triples.jsonl")
        files = sorted((arguments.source / "sts").glob("*.tsv"))
        if not files:
            raise UserError(f"{arguments.source} holds no sts/*.tsv", "name another folder")
        sets = {f"{path.stem}-tiny": spread(path, arguments.pairs) for path in files}
    with (folder / "nli.jsonl").open("w", encoding="utf-8") as out:
        for anchor, positive, negative in islice(triples, arguments.triples):
            out.write(json.dumps({"anchor": anchor, "positive": positive, "negative": negative}) + "\n")
    (folder / "sts").mkdir()
    for name, pairs in sets.items():
        lines = [f"{score:g}\t{first}\t{second}\n" for score, first, second in pairs]
        (folder / "sts" / f"{name}.tsv").write_text("score\tsentence1\tsentence2\n" + "".join(lines), encoding="utf-8")


def main(argv: Sequence[str]) -> None:
    """Parse, make."""
    parser = argparse.ArgumentParser(description="Small NLI and STS data.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--source", type=Path, help="folder with nli/triples.jsonl and sts/*.tsv (default: made up)")
    parser.add_argument("--triples", type=int, default=960)
    parser.add_argument("--pairs", type=int, default=200, help="of each set")
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args(argv)
    if arguments.output.exists():
        raise UserError(f"{arguments.output} exists", "remove it, or name another folder")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{arguments.output.name}.", dir=arguments.output.parent))
    try:
        make(arguments, partial)
        partial.chmod(0o755)
        partial.rename(arguments.output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


if __name__ == "__main__":
    sys.exit(run_command(main))
