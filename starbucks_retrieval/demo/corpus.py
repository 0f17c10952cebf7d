"""A retrieval collection from docstrings: a BEIR folder whose splits share no module."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli import progress
from starbucks_retrieval.demo.docstrings import Entry, normal, read_entries, source_files
from starbucks_retrieval.demo.settings import Settings
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.texts.files import atomic_writer

log = logging.getLogger(__name__)
SPLITS = ("train", "dev", "test")


def build_corpus(folder: Path, modules: Sequence[Path], settings: Settings) -> dict[str, Any]:
    """Write corpus.jsonl, queries.jsonl and qrels/{train,dev,test}.tsv into `folder`; returns their counts.

    A query is the summary line of a docstring, its one relevant passage the rest. The same sources and settings give
    the same files. Raises UserError when too little documentation is found to fill the three splits.
    """
    shutil.rmtree(folder, ignore_errors=True)
    found: list[Entry] = []
    for module in progress(modules, len(modules), "modules", "reading docstrings"):
        found += _of_module(module, settings)
    entries = _sample(_unambiguous(found), settings)
    splits = split_modules(entries, settings)
    queries = {name: _queries(name, entries, splits[name], settings) for name in SPLITS}
    if not all(queries.values()):
        raise UserError(
            f"only {len(entries)} usable docstrings in {len({e.module for e in entries})} modules of this Python",
            "run the demo with a Python whose standard library is there as source files",
        )
    # No title: the dotted name holds the summary's own words, and finding it would be no retrieval.
    _write_lines(folder / "corpus.jsonl", ({"_id": e.docid, "title": "", "text": e.passage} for e in entries))
    # A query's id differs from its passage's: some collections drop results that bear the query's own id.
    asked = (entry for name in SPLITS for entry in queries[name])
    _write_lines(folder / "queries.jsonl", ({"_id": f"q:{e.docid}", "text": e.summary} for e in asked))
    for name in SPLITS:
        with atomic_writer(folder / "qrels" / f"{name}.tsv") as out:
            out.write(b"query-id\tcorpus-id\tscore\n")
            for entry in queries[name]:
                out.write(f"q:{entry.docid}\t{entry.docid}\t1\n".encode())
    counts = {f"{name}_queries": len(queries[name]) for name in SPLITS}
    log.info("%d passages from %d modules; %s", len(entries), len({e.module for e in entries}), _listed(counts))
    return {"passages": len(entries), "modules": {name: sorted(splits[name]) for name in SPLITS}, **counts}


def _of_module(module: Path, settings: Settings) -> list[Entry]:
    """Up to `per_module` docstrings of a module, from its files in random order: the largest have thousands of files."""
    entries: list[Entry] = []
    for path in _shuffled(source_files(module), lambda path: path.relative_to(module.parent).as_posix(), settings):
        entries += read_entries(module, path)
        if len(entries) >= settings.per_module:
            break
    return entries[: settings.per_module]


def _unambiguous(entries: Iterable[Entry]) -> list[Entry]:
    """Entries whose summary and passage occur once: a text used twice cannot tell which of the two is meant."""
    entries = list({entry.docid: entry for entry in entries}.values())
    summaries = Counter(normal(entry.summary) for entry in entries)
    passages = Counter(normal(entry.passage) for entry in entries)
    return [e for e in entries if summaries[normal(e.summary)] == passages[normal(e.passage)] == 1]


def _sample(entries: list[Entry], settings: Settings) -> list[Entry]:
    chosen = _shuffled(entries, lambda entry: entry.docid, settings)[: settings.passages]
    return sorted(chosen, key=lambda entry: entry.docid)


def split_modules(entries: Sequence[Entry], settings: Settings) -> dict[str, set[str]]:
    """Top-level modules by split: in random order, the first fill test, the next dev, and train gets the rest."""
    sizes = Counter(entry.module for entry in entries)
    splits: dict[str, set[str]] = {name: set() for name in SPLITS}
    shares = [("test", settings.test_share), ("dev", settings.dev_share), ("train", 1.0)]
    filled, goal = 0, 0.0
    order = iter(_shuffled(sorted(sizes), str, settings))
    for name, share in shares:
        goal += share * len(entries)
        while filled < goal and (module := next(order, None)) is not None:
            splits[name].add(module)
            filled += sizes[module]
    return splits


def _queries(name: str, entries: Sequence[Entry], modules: set[str], settings: Settings) -> list[Entry]:
    own = [entry for entry in entries if entry.module in modules]
    limit = {"dev": settings.dev_queries, "test": settings.test_queries}.get(name, len(own))
    chosen = _shuffled(own, lambda entry: entry.docid, settings)[:limit]
    return sorted(chosen, key=lambda entry: entry.docid)


def _shuffled(items: Sequence[Any], name: Any, settings: Settings) -> list[Any]:
    """Items in an order that depends on their names and the seed alone, not on what else there is."""
    return sorted(items, key=lambda item: hashlib.blake2b(f"{settings.seed} {name(item)}".encode()).digest())


def _write_lines(path: Path, rows: Iterable[dict[str, str]]) -> None:
    with atomic_writer(path) as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
