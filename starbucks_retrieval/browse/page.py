"""The values that the template `browse.html` shows."""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from starbucks_retrieval.browse.compare import EQUAL, ComparedHit, QueryComparison, RankedList, RunSummary
from starbucks_retrieval.data import Passage
from starbucks_retrieval.pages import render_template
from starbucks_retrieval.sizes import Size

_MAX_MARKS = 20  # passages that have a mark in the closed line of a query
_EXCERPT = 220  # characters of a passage that are visible before it is opened


@dataclass(frozen=True)
class RunColumn:
    """One run of the page.

    Attributes:
        label: What the page calls the run.
        path: The run file.
        size: The size in the tag of the run; None where the tag has none.
        summary: Its figures over all queries.
    """

    label: str
    path: str
    size: Size | None
    summary: RunSummary


class Excerpt(NamedTuple):
    """A passage in two parts, of which the page hides the second.

    Attributes:
        title: The title in one line; empty if there is none.
        start: The part that is visible.
        rest: The part that is opened.
        hidden: Number of characters after both, which the page lacks.
    """

    title: str
    start: str
    rest: str
    hidden: int


@dataclass(frozen=True)
class BrowsePage:
    """Everything on the page.

    Args:
        title: Its heading.
        measure: The measure of the figures; None without judgements.
        columns: The runs; the others are compared with the first.
        queries: The queries that are shown.
        total: How many queries the figures are over.
        picked: How the shown queries were chosen (`changed`, `first`, `random`); None if all are shown.
        texts: Query texts by id, in the order of the query file.
        passages: The passages that are shown, by id.
        depth: How many passages of each run are shown.
        relevance: The grade from which a passage counts as relevant.
        highest: The highest judged grade.
        max_text: The most characters of a passage.
        version: The version of this package.
    """

    title: str
    measure: str | None
    columns: list[RunColumn]
    queries: list[QueryComparison]
    total: int
    picked: str | None
    texts: Mapping[str, str]
    passages: Mapping[str, Passage]
    depth: int
    relevance: int
    highest: int
    max_text: int
    version: str

    @property
    def mark_count(self) -> int:
        """How many marks the closed line of a query has for each run."""
        return min(self.depth, _MAX_MARKS)

    @property
    def largest_change(self) -> float:
        """The largest change of a query's measure in any run; all charts have its scale."""
        return max((abs(change) for column in self.columns for change in column.summary.changes), default=0.0)

    def direction(self, change: float) -> str:
        """Return `up`, `down`, or `same` for a change that the printed digits do not show."""
        return "up" if change > EQUAL else "down" if change < -EQUAL else "same"

    def level(self, hit: ComparedHit) -> int | None:
        """Return the `relevance_level` of a passage, or None if it is not judged."""
        return None if hit.grade is None else relevance_level(hit.grade, self.relevance, self.highest)

    def levels(self) -> list[int]:
        """Return the levels that relevant grades have."""
        grades = range(self.relevance, self.highest + 1)
        return sorted({relevance_level(grade, self.relevance, self.highest) for grade in grades})

    def marks(self, result: RankedList, column: int) -> list[int | None]:
        """Return the marks of a run for the closed line of a query.

        Args:
            result: The passages of the run for the query.
            column: The position of the run on the page; 0 is the run that the others are compared with.

        Returns:
            One mark for each of the first 20 passages: its level, 0 to 3, or None if it is not judged. Without
            judgements 2 if the first run shows the passage too, and None otherwise, as for all passages of that run.
        """
        hits = result.hits[:_MAX_MARKS]
        if self.measure is not None:
            return [self.level(hit) for hit in hits]
        return [2 if column and hit.before and hit.before <= self.depth else None for hit in hits]

    def query_text(self, query: QueryComparison) -> str:
        """Return the text of a query in one line; empty if it has none."""
        return " ".join(self.texts.get(query.query_id, "").split())

    def position(self, query: QueryComparison) -> int:
        """Return the position of a query in the query file, from 0."""
        return self._positions.get(query.query_id, len(self.texts))

    @functools.cached_property
    def _positions(self) -> dict[str, int]:
        return {query_id: position for position, query_id in enumerate(self.texts)}

    def missed_count(self, query: QueryComparison) -> int:
        """Return how many relevant passages of a query no run shows."""
        return query.relevant - len({hit.docid for result in query.results for hit in result.hits if self.level(hit)})

    def passage_number(self, docid: str) -> int | None:
        """Return the position of a passage in `packed_passages`, or None if the corpus lacks it."""
        return self._passage_numbers.get(docid)

    @functools.cached_property
    def _passage_numbers(self) -> dict[str, int]:
        return {docid: number for number, docid in enumerate(self.passages)}

    def packed_passages(self) -> str:
        """Return the texts of all passages as the script reads them: base64 of compressed JSON, each passage once."""
        texts = json.dumps([self.excerpt(docid) for docid in self.passages], ensure_ascii=False, separators=(",", ":"))
        return base64.b64encode(zlib.compress(texts.encode("utf-8", "replace"), 9)).decode()

    def excerpt(self, docid: str) -> Excerpt:
        """Return the text of a passage as the page shows it."""
        passage = self.passages[docid]
        text = " ".join(passage.text.split())
        start = _cut(text, min(_EXCERPT, self.max_text))
        rest = text[len(start) : self.max_text]
        return Excerpt(" ".join(passage.title.split()), start, rest, len(text) - len(start) - len(rest))


def render_browse_page(page: BrowsePage) -> str:
    """Return the page as HTML.

    Returns:
        A complete HTML document. All values are escaped, and a browser loads nothing but this text. The texts of the
        passages are in it once, compressed; its script writes them as plain text when a query is opened.
    """
    return render_template("browse.html", page=page, chart_path=_chart_path, numbers=_numbers)


def relevance_level(grade: int, relevance: int, highest: int) -> int:
    """Return 0 for a grade below `relevance`, else 1 to 3, evenly from `relevance` up to `highest`.

    Example:
        >>> [relevance_level(grade, 1, 3) for grade in (0, 1, 2, 3)]
        [0, 1, 2, 3]
    """
    steps = grade - relevance + 1
    return -(-3 * steps // max(1, highest - relevance + 1)) if steps > 0 else 0


def _chart_path(changes: Sequence[float], largest: float, sign: int) -> str:
    """Return the SVG path of the changes of one sign, 24 units high at `largest`."""
    bars = [(x, sign * change) for x, change in enumerate(changes) if sign * change > EQUAL]
    return "".join(f"M{x} 24V{24 - sign * 24 * height / largest:.1f}H{x + 1}V24Z" for x, height in bars)


def _numbers(results: Sequence[RankedList], name: str) -> str:
    """Return an attribute of every result as JSON, for the script."""
    values = [getattr(result, name) for result in results]
    return json.dumps([None if value is None else round(value, 5) for value in values], separators=(",", ":"))


def _cut(text: str, most: int) -> str:
    """Return the start of a text, which ends after a word if a word ends in its last third."""
    if len(text) <= most:
        return text
    end = text.rfind(" ", most * 2 // 3, most)
    return text[: end if end > 0 else most]
