"""What a data set's rankings are worth, taken in batch by batch, so that no run stands in memory whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ir_measures import Measure

from starbucks_retrieval.evaluate import Finding, preflight
from starbucks_retrieval.evaluate.preflight import TOP
from starbucks_retrieval.metrics.measures import Qrels, mean, remove_identical_ids, score, trec_order
from starbucks_retrieval.metrics.results import Cell
from starbucks_retrieval.sizes import Size

# These ask for more than the top of a run, or for what cannot happen here.
_NOT_OURS = ("missing_queries", "truncated_run", "no_judged_documents")


class Scorer:
    """Scores one cell's rankings by every measure, as evaluate does: each judged query counts, searched or not."""

    def __init__(self, qrels: Qrels, measures: Sequence[Measure], remove_identical: bool, documents: int) -> None:
        """`documents`: how many are searched."""
        self.documents = documents
        self.qrels = qrels
        self.measures = measures
        self.remove_identical = remove_identical
        self._values: dict[str, dict[str, float]] = {str(m): dict.fromkeys(qrels, 0.0) for m in measures}
        self._tops: dict[str, dict[str, float]] = {}

    def add(self, run: Mapping[str, Mapping[str, float]]) -> None:
        """Take in the rankings of some judged queries."""
        kept = remove_identical_ids(run) if self.remove_identical else run
        judged = {query_id: self.qrels[query_id] for query_id in kept}
        for measure, values in score(judged, kept, self.measures).per_query.items():
            self._values[measure].update(values)
        for query_id, ranking in kept.items():
            # One more than preflight looks at: a tie across its cut counts.
            self._tops[query_id] = {docid: ranking[docid] for docid in trec_order(ranking)[: TOP + 1]}

    def cells(self, dataset: str, size: Size, passage_size: Size | None = None) -> list[Cell]:
        """One cell a measure, with the value of each query."""
        made = []
        for measure in self.measures:
            values = self._values[str(measure)]
            value = mean(measure, values.values())
            made.append(Cell(dataset, str(measure), size, value, len(values), passage_size, dict(values)))
        return made

    def findings(self) -> list[Finding]:
        """What preflight says of the top of these rankings."""
        found = preflight(self._tops, self.qrels, documents=self.documents)
        return [finding for finding in found if finding.kind not in _NOT_OURS]
