"""What an evaluation found, and how it is shown: a table, figures for JSON, a per-query file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starbucks_retrieval.evaluate.preflight import Finding
from starbucks_retrieval.measures import Scores
from starbucks_retrieval.texts.files import atomic_writer


@dataclass(frozen=True)
class RunResult:
    """One run's scores and findings; `removed` counts the results dropped for bearing their query's own id."""

    name: str
    path: str
    digest: str
    scores: Scores
    findings: list[Finding]
    removed: int

    @property
    def serious(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.serious]


@dataclass(frozen=True)
class Evaluation:
    """Several runs under the same judgements: names of the measures, judged queries, one result per run."""

    measures: list[str]
    queries: int
    runs: list[RunResult]
    provenance: dict[str, Any]

    def table(self) -> str:
        """Rows are runs, columns are measures, aligned plain text; `!` marks a run with a serious finding."""
        rows = [["run", *self.measures]]
        for run in self.runs:
            rows.append([run.name, *(f"{run.scores.mean[name]:.4f}" for name in self.measures)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        marks = ["", *("  !" if run.serious else "" for run in self.runs)]
        return "\n".join(_aligned(row, widths) + mark for row, mark in zip(rows, marks))

    def summary(self) -> str:
        """One line: how much was scored and how many findings there are."""
        findings = sum(len(run.findings) for run in self.runs)
        serious = sum(len(run.serious) for run in self.runs)
        marked = f" ({serious} serious, marked ! in the table)" if serious else ""
        runs = "run" if len(self.runs) == 1 else "runs"
        return f"{len(self.runs)} {runs}, {self.queries} judged queries, preflight findings: {findings}{marked}"

    def figures(self) -> dict[str, Any]:
        """Everything but the per-query values, ready for JSON."""
        runs = [
            {
                "name": run.name,
                "path": run.path,
                "blake2b": run.digest,
                "measures": run.scores.mean,
                "findings": [dataclasses.asdict(finding) for finding in run.findings],
                "removed_identical_ids": run.removed,
            }
            for run in self.runs
        ]
        return {"measures": self.measures, "queries": self.queries, "runs": runs, "provenance": self.provenance}

    def per_query(self) -> Iterator[tuple[str, str, str, float]]:
        """(run, query_id, measure, value) of every judged query, queries in the order of the qrels."""
        for run in self.runs:
            for measure in self.measures:
                for query_id, value in run.scores.per_query[measure].items():
                    yield run.name, query_id, measure, value


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])


def write_per_query(path: str | Path, evaluation: Evaluation) -> None:
    """Write the per-query values as tab-separated text under a header, whole or not at all, with all their digits."""
    with atomic_writer(Path(path)) as out:
        out.write(b"run\tquery_id\tmeasure\tvalue\n")
        for run, query_id, measure, value in evaluation.per_query():
            out.write(f"{run}\t{query_id}\t{measure}\t{value!r}\n".encode())
