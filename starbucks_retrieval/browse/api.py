"""browse(): run files, judgements and texts in, one page out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from starbucks_retrieval.browse.compare import QueryComparison, RunSummary, compare, run_summaries
from starbucks_retrieval.browse.page import BrowsePage, ChartColumn, render_page
from starbucks_retrieval.browse.texts import read_passages, read_queries
from starbucks_retrieval.data.qrels import Qrels, read_qrels
from starbucks_retrieval.data.run_reader import RunFile, open_run
from starbucks_retrieval.data.sources import beir_folder
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.metrics.measures import Run, is_mean, parse_measures, remove_identical_ids, score
from starbucks_retrieval.metrics.results import local_name
from starbucks_retrieval.metrics.run_labels import RunIdentity, names_of_set, run_labels, titles
from starbucks_retrieval.version import __version__

log = logging.getLogger(__name__)

Pick = Literal["changed", "first", "random"]


@dataclass(frozen=True)
class Browsed:
    """A finished page as text, where it was written (None: nowhere), and its figures, JSON-ready."""

    html: str
    output: Path | None
    figures: dict[str, Any]

    def summary(self) -> str:
        """One line for a terminal."""
        figures = self.figures
        runs = "; ".join(
            f"{run['label']}"
            + (f" {figures['measure']} {run['mean']:.4f}" if run["mean"] is not None else "")
            + (f", +{run['gained']} -{run['lost']} relevant" if place and figures["measure"] else "")
            for place, run in enumerate(figures["runs"])
        )
        return f"{figures['shown']} of {figures['queries']} queries, {figures['bytes'] / 1e6:.1f} MB: {runs}"


def browse(
    runs: str | Path | Sequence[str | Path],
    corpus: str,
    queries: str | None = None,
    qrels: str | None = None,
    *,
    split: str = "test",
    output: str | Path | None = None,
    measure: str = "nDCG@10",
    label: Sequence[str] | None = None,
    depth: int = 10,
    max_queries: int = 200,
    pick: Pick = "changed",
    relevance: int = 1,
    remove_identical: bool = False,
    max_text: int = 1500,
    title: str | None = None,
    seed: int = 42,
) -> Browsed:
    """Lay runs side by side, query by query, on one HTML page; write it to `output` if that is given.

    The first run is what the others are compared with. `queries` and `qrels` may be left out where `corpus` is a BEIR
    folder. With judgements, figures are over all judged queries and a passage is relevant from grade `relevance` on;
    without them, the page shows which passages runs share. Of more than `max_queries` queries, `pick` takes those that
    change most between the runs, the first, or random ones by `seed`. `depth` passages of each run are shown, of each
    text `max_text` characters. The corpus is read once, and only shown passages are kept.

    Raises UserError for files that cannot be read, that share no query or no passage, and for an unknown measure.
    """
    for name, value in (("depth", depth), ("max_queries", max_queries), ("max_text", max_text)):
        if value < 1:
            raise UserError(f"--{name} {value} is below 1", "raise it, or leave it out")
    paths = list(dict.fromkeys(map(str, [runs] if isinstance(runs, str | Path) else runs)))
    if not paths:
        raise UserError("no run is given", "name one or more run files")
    if output is not None and Path(output).is_dir():
        raise UserError(f"{output} is a folder, a file is needed", "name the file inside it")
    parsed = _one(parse_measures(measure), measure)
    texts = read_queries(_queries_of(corpus, queries))
    judged = _judgements(corpus, qrels, split)
    files = [open_run(path) for path in paths]
    labels = _labels(paths, files, corpus, label)
    found: list[Run] = [remove_identical_ids(file.results) if remove_identical else file.results for file in files]
    query_ids = _query_ids(found, judged, texts)
    values = None
    if judged is not None:
        values = [score(judged, run, [parsed]).per_query[str(parsed)] for run in found]
    questions = compare(found, query_ids, judged, values, depth=depth, relevance=relevance)
    shown = _picked(questions, max_queries, pick, seed)
    passages = read_passages(corpus, {docid for question in shown for docid in question.docids})
    summary = run_summaries(questions, len(found))
    columns = [ChartColumn(name, path, file.size, one) for name, path, file, one in zip(labels, paths, files, summary)]
    page = BrowsePage(
        title=title or "Runs side by side",
        measure=str(parsed) if judged is not None else None,
        columns=columns,
        questions=shown,
        total=len(questions),
        picked=pick if len(shown) < len(questions) else None,
        texts=texts,
        passages=passages,
        depth=depth,
        relevance=relevance,
        highest=max((grade for grades in (judged or {}).values() for grade in grades.values()), default=relevance),
        max_text=max_text,
        version=__version__,
    )
    html = render_page(page)
    if output is not None:
        with atomic_writer(Path(output).expanduser()) as out:
            out.write(html.encode("utf-8"))
    figures = {
        "output": None if output is None else str(output),
        "bytes": len(html.encode("utf-8")),
        "queries": len(questions),
        "shown": len(shown),
        "passages": len(passages),
        "measure": page.measure,
        "runs": [_figures(column) for column in columns],
    }
    return Browsed(html, None if output is None else Path(output), figures)


def _figures(column: ChartColumn) -> dict[str, Any]:
    one: RunSummary = column.summary
    return {
        "label": column.label,
        "path": column.path,
        "size": column.size and str(column.size),
        "mean": one.mean,
        "better": one.better,
        "worse": one.worse,
        "relevant": one.relevant,
        "gained": one.gained,
        "lost": one.lost,
        "shared": one.shared,
    }


def _one(measures: list[Any], text: str) -> Any:
    if len(measures) != 1:
        raise UserError(f"--measure {text!r} names {len(measures)} measures", "name one, such as nDCG@10")
    if not is_mean(measures[0]):
        raise UserError(f"--measure {text!r} is no mean over queries", "name one that is, such as nDCG@10")
    return measures[0]


def _queries_of(corpus: str, queries: str | None) -> str:
    if queries is not None:
        return queries
    if beir_folder(corpus) is None:
        raise UserError("--queries is missing", "name the queries; only a BEIR folder brings its own")
    return corpus


def _judgements(corpus: str, qrels: str | None, split: str) -> Qrels | None:
    """The judgements named, else those of a BEIR folder, else none."""
    if qrels is not None:
        return read_qrels(qrels, split=split)
    folder = beir_folder(corpus)
    if folder is not None and (folder / "qrels").is_dir():
        return read_qrels(corpus, split=split)
    log.info("no judgements: passages are compared, and nothing is marked as relevant")
    return None


def _query_ids(runs: Sequence[Run], qrels: Qrels | None, texts: Mapping[str, str]) -> list[str]:
    """The judged queries, or without judgements all that were searched, in the order of the query file."""
    searched = {query_id for run in runs for query_id in run}
    wanted = searched if qrels is None else qrels.keys()
    if qrels is not None and not searched & wanted:
        raise UserError(
            f"runs and qrels share no query (say {min(searched)!r} and {next(iter(qrels))!r})",
            "use the qrels of the queries that were searched; --split names another part of them",
        )
    known = [query_id for query_id in texts if query_id in wanted]
    if not known:
        raise UserError(
            f"--queries holds none of the queries that were searched (say {min(searched)!r})",
            "name the queries that were searched",
        )
    unknown = sorted(wanted - texts.keys())
    if unknown:
        log.warning("%d queries have no text in --queries, say %r", len(unknown), unknown[0])
    return known + unknown


def _picked(questions: Sequence[QueryComparison], most: int, pick: Pick, seed: int) -> list[QueryComparison]:
    if pick == "changed":  # what changes most comes first even where all are shown
        ordered = sorted(range(len(questions)), key=lambda place: [-part for part in questions[place].max_change])
        return [questions[place] for place in ordered[:most]]
    if pick == "random" and len(questions) > most:
        chosen = np.random.default_rng(seed).choice(len(questions), most, replace=False)
        return [questions[place] for place in sorted(chosen.tolist())]
    return list(questions[:most])


def _labels(paths: Sequence[str], files: Sequence[RunFile], corpus: str, given: Sequence[str] | None) -> list[str]:
    """How columns are called: as `evaluate` calls these runs."""
    if given and len(given) != len(paths):
        raise UserError(f"{len(given)} labels for {len(paths)} runs", "give one --label for each run")
    folder = beir_folder(corpus)
    sets = tuple(names_of_set(corpus if folder is None else local_name(folder)))
    runs = [
        RunIdentity(
            path, file.tag, file.size, sets, frozenset({path if given else f"at {file.size}"}), file.passage_size
        )
        for path, file in zip(paths, files)
    ]
    return titles(run_labels(runs, given), [file.size for file in files])
