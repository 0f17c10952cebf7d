"""Write a small BEIR folder: some queries of a larger one, their judged passages, and other passages.

    python cut_set.py OUTPUT [--source FOLDER] [--passages 1500] [--queries 60] [--train 300] [--splits dev,test]

Without --source the collection is the documentation of this machine's Python, as `starbucks demo` makes it. If a
source has no training judgements, some of its dev queries are used. The same source and numbers give the same files; OUTPUT
is written atomically. Scores on a reduced set are not comparable with those on the complete one.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.data import open_corpus, open_queries, read_qrels
from starbucks_retrieval.errors import UserError

Grades = dict[str, int]


def cut(arguments: argparse.Namespace, source: Path) -> None:
    """Write the small folder. Raises UserError for a source without usable judgements."""
    splits = choose(arguments, source)
    best = {doc for judged in splits.values() for grades in judged.values() for doc in top(grades, arguments.judged)}
    names = [passage.docid for passage in open_corpus(str(source))]
    filler = [name for name in shuffled(names, arguments.seed) if name not in best]
    kept = best | set(filler[: max(0, arguments.passages - len(best))])
    asked = {query_id for judged in splits.values() for query_id in judged}

    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{arguments.output.name}.", dir=arguments.output.parent))
    try:
        passages = (one for one in open_corpus(str(source)) if one.docid in kept)
        rows = ({"_id": one.docid, "title": one.title, "text": one.text} for one in passages)
        counts = {"passages": write(partial / "corpus.jsonl", rows)}
        queries = (one for one in open_queries(str(source)) if one.query_id in asked)
        write(partial / "queries.jsonl", ({"_id": one.query_id, "text": one.text} for one in queries))
        (partial / "qrels").mkdir()
        for name, judged in splits.items():
            lines = [f"{q}\t{d}\t{g}\n" for q, grades in judged.items() for d, g in grades.items() if d in kept]
            text = "".join(["query-id\tcorpus-id\tscore\n", *lines])
            (partial / "qrels" / f"{name}.tsv").write_text(text, encoding="utf-8")
            counts[f"{name} queries"] = len(judged)
        partial.chmod(0o755)
        partial.rename(arguments.output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    print(f"{arguments.output}: {', '.join(f'{n} {name}' for name, n in counts.items())}", file=sys.stderr)


def choose(arguments: argparse.Namespace, source: Path) -> dict[str, dict[str, Grades]]:
    """Some queries of each wanted split with their judgements, and training queries if any are wanted."""
    there = [path.name.split(".")[0] for path in sorted((source / "qrels").glob("*.tsv"))]
    whole = {name: read_qrels(str(source), split=name) for name in there}
    usable = {
        name: {query: grades for query, grades in judged.items() if max(grades.values()) > 0}
        for name, judged in whole.items()
    }
    order = {name: shuffled(judged, arguments.seed) for name, judged in usable.items()}
    chosen: dict[str, list[str]] = {}
    for name in arguments.splits.split(","):
        # Some folders hold one split under two names.
        if name in usable and not any(usable[name] == usable[other] for other in chosen):
            chosen[name] = order[name][: arguments.queries]
    if not chosen:
        raise UserError(f"{source} has none of the splits {arguments.splits}", f"it has {', '.join(there) or 'none'}")
    lender = "train" if "train" in usable else "dev" if "dev" in usable else None
    if arguments.train:
        if lender is None:
            raise UserError(f"{source} has no qrels/train.tsv or qrels/dev.tsv to train on", "name another folder")
        taken = {query for queries in chosen.values() for query in queries}
        chosen["train"] = [query for query in order[lender] if query not in taken][: arguments.train]
        usable["train"] = usable[lender]
    return {name: {query: usable[name][query] for query in queries} for name, queries in chosen.items()}


def top(grades: Grades, most: int) -> list[str]:
    """The docids judged best."""
    return [docid for docid in sorted(grades, key=lambda docid: (-grades[docid], docid)) if grades[docid] > 0][:most]


def shuffled(names: Iterable[str], seed: int) -> list[str]:
    """An order that depends on the names and the seed alone."""
    return sorted(names, key=lambda name: hashlib.blake2b(f"{seed} {name}".encode()).digest())


def write(path: Path, rows: Iterable[dict[str, str]]) -> int:
    """Write json lines; returns how many."""
    count = 0
    with path.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def main(argv: Sequence[str]) -> None:
    """Parse, find or make the source, cut."""
    parser = argparse.ArgumentParser(description="Cut a BEIR folder down to size.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--source", type=Path, help="BEIR folder (default: this machine's Python documentation)")
    parser.add_argument("--passages", type=int, default=1500, help="passages in all, or what is judged if that is more")
    parser.add_argument("--queries", type=int, default=60, help="queries of each split at most")
    parser.add_argument("--train", type=int, default=0, help="training queries at most")
    parser.add_argument("--judged", type=int, default=8, help="relevant passages kept for certain, a query")
    parser.add_argument("--splits", default="dev,dl19,dl20,test", help="splits to keep, where they are there")
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args(argv)
    if arguments.output.exists():
        raise UserError(f"{arguments.output} exists", "remove it, or name another folder")
    if arguments.source is not None:
        cut(arguments, arguments.source)
        return
    from starbucks_retrieval.demo import SHORT
    from starbucks_retrieval.demo.corpus import build_corpus, find_modules

    queries = {"passages": arguments.passages, "test_queries": arguments.queries, "dev_queries": arguments.queries}
    with tempfile.TemporaryDirectory() as folder:
        build_corpus(Path(folder), find_modules(), dataclasses.replace(SHORT, seed=arguments.seed, **queries))
        cut(arguments, Path(folder))


if __name__ == "__main__":
    sys.exit(run_command(main))
