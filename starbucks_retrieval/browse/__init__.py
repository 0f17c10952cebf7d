"""One HTML page that shows what several runs find for each query, side by side."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from starbucks_retrieval.browse.compare import (
    ComparedHit,
    QueryComparison,
    RankedList,
    RunSummary,
    compare_runs,
    summarize_runs,
)
from starbucks_retrieval.browse.page import BrowsePage, RunColumn, render_browse_page
from starbucks_retrieval.cli import as_flag_values, check_least, flag, progress
from starbucks_retrieval.data import Passage, open_corpus, open_queries
from starbucks_retrieval.data.collection import Qrels, read_qrels
from starbucks_retrieval.data.run_reader import RunFile, open_run
from starbucks_retrieval.data.sources import beir_folder
from starbucks_retrieval.errors import UserError, refuse_folder
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.lazy import public_names
from starbucks_retrieval.metrics.measures import Run, is_mean, parse_measures, remove_identical_ids, score
from starbucks_retrieval.metrics.results import dataset_name
from starbucks_retrieval.metrics.run_labels import RunIdentity, names_of_set, run_labels, run_titles
from starbucks_retrieval.version import __version__

__all__ = [
    "BrowseArguments",
    "Browsed",
    "ComparedHit",
    "QueryComparison",
    "RankedList",
    "RunSummary",
    "browse",
    "compare_runs",
]
__dir__ = public_names(__name__)

log = logging.getLogger(__name__)

_BYTES = 2_000_000  # of a page, if its texts can be that short
_TEXT = (1500, 1200, 1000, 850, 700, 550, 400, 300)  # characters of a passage, if the user does not name a number

Pick = Literal["changed", "first", "random"]


@dataclass
class BrowseArguments:
    """Contents"""

    run: list[str] = flag(
        None,
        "TREC runs; the others are compared with the first (the flag may be left out if they come first)",
        required=True,
    )
    corpus: str = flag(None, "the corpus that was searched: file, BEIR folder, ir: or short name", required=True)
    queries: str | None = flag(None, "the queries that were searched (default: those of a BEIR folder)")
    qrels: str | None = flag(None, "relevance judgements (default: those of a BEIR folder)")
    split: str = flag("test", "split of the judgements of a BEIR folder or short name")
    label: list[str] | None = flag(None, "a name for each run (default: the size in its tag, or its file name)")
    measure: str = flag("nDCG@10", "measure, by the name that ir-measures gives it")
    relevance: int = flag(1, "grade from which a passage is marked as relevant (TREC DL: 2)", rare=True)
    remove_identical_ids: bool = flag(False, "drop results that have the id of their query (ArguAna, Quora)", rare=True)
    depth: int = flag(10, "passages shown of each run")
    max_queries: int = flag(200, "most queries on the page")
    pick: Pick = flag("changed", "queries to show if there are more: those that change most, the first, or random ones")
    max_text: int | None = flag(
        None, "most characters of a passage (default: 1500, or fewer if the page would exceed 2 MB)", rare=True
    )

    def __post_init__(self) -> None:
        as_flag_values(self)


@dataclass(frozen=True)
class Browsed:
    """A finished page.

    Args:
        html: The page.
        output: The file it was written to; None if it was not written.
        figures: Its figures, JSON-ready.
    """

    html: str
    output: Path | None
    figures: dict[str, Any]

    def summary(self) -> str:
        """Return the figures in one line for a terminal."""
        figures = self.figures
        runs = "; ".join(
            f"{run['label']}"
            + (f" {figures['measure']} {run['mean']:.4f}" if run["mean"] is not None else "")
            + (f", +{run['gained']} -{run['lost']} relevant" if number and figures["measure"] else "")
            for number, run in enumerate(figures["runs"])
        )
        return f"{figures['shown']} of {figures['queries']} queries, {figures['bytes'] / 1e6:.1f} MB: {runs}"


def browse(
    arguments: BrowseArguments, output: str | Path | None = None, title: str | None = None, seed: int = 42
) -> Browsed:
    """Write one HTML page that shows the results of several runs side by side, query by query.

    With judgements, the figures are over all judged queries. Without them, the page shows which passages the runs
    share. The corpus is read once, and only the shown passages are kept in memory.

    Args:
        arguments: The flags of `starbucks browse`: runs, corpus, queries, judgements and what is shown of them.
        output: The file to write; None writes nothing.
        title: The heading of the page.
        seed: The seed of random queries.

    Raises:
        UserError: A file cannot be read, the files share no query or no passage, or the measure is unknown.
    """
    check_least(arguments, "depth", "max_queries", "max_text", hint="raise it, or leave it out")
    paths = list(dict.fromkeys(arguments.run))
    if not paths:
        raise UserError("no run is given", "name one or more run files")
    refuse_folder(output)
    measure, corpus = _parse_measure(arguments.measure), arguments.corpus
    texts = {query.query_id: query.text for query in open_queries(_queries_of(corpus, arguments.queries))}
    judged = _read_judgements(corpus, arguments.qrels, arguments.split)
    files = [open_run(path) for path in paths]
    labels = _label_runs(paths, files, corpus, arguments.label)
    found: list[Run] = [file.results for file in files]
    if arguments.remove_identical_ids:
        found = list(map(remove_identical_ids, found))
    query_ids = _query_ids(found, judged, texts)
    values = None
    if judged is not None:
        values = [score(judged, run, [measure]).per_query[str(measure)] for run in found]
    depth, relevance = arguments.depth, arguments.relevance
    compared = compare_runs(found, query_ids, judged, values, depth=depth, relevance=relevance)
    shown = _pick_queries(compared, arguments.max_queries, arguments.pick, seed)
    summaries = summarize_runs(compared, len(found))
    page = BrowsePage(
        title=title or "Runs side by side",
        measure=str(measure) if judged is not None else None,
        columns=[RunColumn(name, path, file.size, s) for name, path, file, s in zip(labels, paths, files, summaries)],
        queries=shown,
        total=len(compared),
        picked=arguments.pick if len(shown) < len(compared) else None,
        texts=texts,
        passages=_read_passages(corpus, {docid for query in shown for docid in query.docids}),
        depth=depth,
        relevance=relevance,
        highest=max((grade for grades in (judged or {}).values() for grade in grades.values()), default=relevance),
        max_text=arguments.max_text or _TEXT[0],
        version=__version__,
    )
    html = render_browse_page(page)
    too_long = len(html.encode("utf-8")) - _BYTES
    if arguments.max_text is None and too_long > 0:
        room = len(page.packed_passages()) - too_long
        tries = (replace(page, max_text=most) for most in _TEXT[1:])
        page = next((one for one in tries if len(one.packed_passages()) <= room), replace(page, max_text=_TEXT[-1]))
        html = render_browse_page(page)
    if output is not None:
        with atomic_writer(Path(output).expanduser()) as out:
            out.write(html.encode("utf-8"))
    return Browsed(html, None if output is None else Path(output), _figures(page, html, output))


def _figures(page: BrowsePage, html: str, output: str | Path | None) -> dict[str, Any]:
    fields = ("mean", "better", "worse", "relevant", "gained", "lost", "shared")
    return {
        "output": None if output is None else str(output),
        "bytes": len(html.encode("utf-8")),
        "queries": page.total,
        "shown": len(page.queries),
        "passages": len(page.passages),
        "max_text": page.max_text,
        "measure": page.measure,
        "runs": [
            {"label": column.label, "path": column.path, "size": column.size and str(column.size)}
            | {field: getattr(column.summary, field) for field in fields}
            for column in page.columns
        ],
    }


def _parse_measure(text: str) -> Any:
    measures = parse_measures(text)
    if len(measures) != 1:
        raise UserError(f"--measure {text!r} names {len(measures)} measures", "name one, such as nDCG@10")
    if not is_mean(measures[0]):
        raise UserError(f"--measure {text!r} is no mean over queries", "name one that is, such as nDCG@10")
    return measures[0]


def _queries_of(corpus: str, queries: str | None) -> str:
    if queries is not None:
        return queries
    if beir_folder(corpus) is None:
        raise UserError("--queries is missing", "name the queries; only a BEIR folder has its own")
    return corpus


def _read_judgements(corpus: str, qrels: str | None, split: str) -> Qrels | None:
    """Return the named judgements, else those of a BEIR folder, else None."""
    if qrels is not None:
        return read_qrels(qrels, split=split)
    folder = beir_folder(corpus)
    if folder is not None and (folder / "qrels").is_dir():
        return read_qrels(corpus, split=split)
    log.info("no judgements: passages are compared, and none is marked as relevant")
    return None


def _read_passages(corpus: str, docids: Iterable[str]) -> dict[str, Passage]:
    """Return the passages with these ids; reading ends with the last of them."""
    wanted = set(docids)
    found: dict[str, Passage] = {}
    if wanted:
        for passage in progress(open_corpus(corpus), None, "passages", "reading the corpus"):
            if passage.docid in wanted:
                found[passage.docid] = passage
                if len(found) == len(wanted):
                    break
    missing = wanted - found.keys()
    if missing and not found:
        raise UserError(
            f"{corpus} holds none of the passages that were found (for example {min(missing)!r})",
            "name the corpus that was searched",
        )
    if missing:
        text = "%s lacks %d of %d passages (for example %r); they are shown without text"
        log.warning(text, corpus, len(missing), len(wanted), min(missing))
    return found


def _query_ids(runs: Sequence[Run], qrels: Qrels | None, texts: Mapping[str, str]) -> list[str]:
    """Return the judged queries, or without judgements those that were searched, in the order of the query file."""
    searched = {query_id for run in runs for query_id in run}
    wanted = searched if qrels is None else qrels.keys()
    if qrels is not None and not searched & wanted:
        raise UserError(
            f"runs and qrels share no query (for example {min(searched)!r} and {next(iter(qrels))!r})",
            "use the qrels of the queries that were searched; --split names another split of them",
        )
    known = [query_id for query_id in texts if query_id in wanted]
    if not known:
        raise UserError(
            f"--queries holds none of the queries that were searched (for example {min(searched)!r})",
            "name the queries that were searched",
        )
    unknown = sorted(wanted - texts.keys())
    if unknown:
        log.warning("%d queries have no text in --queries, for example %r", len(unknown), unknown[0])
    return known + unknown


def _pick_queries(queries: Sequence[QueryComparison], most: int, pick: Pick, seed: int) -> list[QueryComparison]:
    if pick == "changed":  # those that change most come first even where all are shown
        return sorted(queries, key=lambda query: [-change for change in query.max_change])[:most]
    if pick == "random" and len(queries) > most:
        chosen = np.random.default_rng(seed).choice(len(queries), most, replace=False)
        return [queries[position] for position in sorted(chosen.tolist())]
    return list(queries[:most])


def _label_runs(paths: Sequence[str], files: Sequence[RunFile], corpus: str, given: Sequence[str] | None) -> list[str]:
    """Return the titles of the runs, which are those that `evaluate` gives them."""
    if given and len(given) != len(paths):
        raise UserError(f"{len(given)} labels for {len(paths)} runs", "give one --label for each run")
    folder = beir_folder(corpus)
    sets = tuple(names_of_set(corpus if folder is None else dataset_name(folder)))
    runs = [
        RunIdentity(
            path, file.tag, file.size, sets, frozenset({path if given else f"at {file.size}"}), file.passage_size
        )
        for path, file in zip(paths, files)
    ]
    return run_titles(run_labels(runs, given), [file.size for file in files])
