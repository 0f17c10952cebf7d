"""One query of the page: a line that opens to what each run found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from starbucks_retrieval.browse.compare import EQUAL, ComparedHit, QueryComparison, RankedList
from starbucks_retrieval.data import Passage

MARKS = 20  # passages that a closed line has marks for
_SHORT = 14  # characters of an id
_SNIPPET = 220  # characters in sight; the rest opens


@dataclass(frozen=True)
class Setting:
    """What is the same for all queries of a page."""

    labels: Sequence[str]
    measure: str | None
    passages: Mapping[str, Passage]
    depth: int
    relevance: int
    highest: int
    max_text: int

    def level(self, hit: ComparedHit) -> int | None:
        """How a passage is marked: `level_of` its grade, or None where it is not judged."""
        return None if hit.grade is None else level_of(hit.grade, self.relevance, self.highest)


def level_of(grade: int, relevance: int, highest: int) -> int:
    """1 to 3 by grade from `relevance` up to `highest`, 0 below."""
    steps = grade - relevance + 1
    return -(-3 * steps // max(1, highest - relevance + 1)) if steps > 0 else 0


def render_query(question: QueryComparison, text: str, place: int, setting: Setting, is_open: bool) -> str:
    """A query as a `details` element; `place` is its position in the query file."""
    values = [answer.value for answer in question.answers]
    changes = [answer.change for answer in question.answers]
    shares = [answer.share for answer in question.answers]
    strips = "".join(_strip(answer, column, setting) for column, answer in enumerate(question.answers))
    answers = "".join(_answer(answer, column, setting) for column, answer in enumerate(question.answers))
    asked = escape(" ".join(text.split())) if text.strip() else "<em>no text</em>"
    return (
        f"<details class='query card' data-i='{place}' data-v='{_numbers(values)}' data-c='{_numbers(changes)}' "
        f"data-s='{_numbers(shares)}'{' open' if is_open else ''}>"
        f"<summary><span class='ask'><b dir='auto'>{asked}</b> <bdi class='id'>{escape(question.query_id)}</bdi></span>"
        f"<span class='strips'>{strips}</span></summary>"
        f"<div class='answers' tabindex='0'>{answers}</div>{_missed(question, setting)}</details>"
    )


def signed(change: float) -> str:
    """`+0.120`, with a minus sign as wide as the plus."""
    return f"{change:+.3f}".replace("-", "−")


def _numbers(values: Sequence[float | None]) -> str:
    return json.dumps([None if value is None else round(value, 5) for value in values], separators=(",", ":"))


def _strip(answer: RankedList, column: int, setting: Setting) -> str:
    """One run in the closed line: a mark a passage, and the measure."""
    levels = [setting.level(hit) for hit in answer.hits[:MARKS]]
    if setting.measure is None:  # what the first run has too is marked instead
        levels = [2 if column and hit.before and hit.before <= setting.depth else None for hit in answer.hits[:MARKS]]
    marks = "".join(f"<i{_kind(level)}></i>" for level in levels)
    marks += "<i class='void'></i>" * (min(setting.depth, MARKS) - len(answer.hits))
    if answer.value is None:
        figure = f"{answer.shared} of {len(answer.hits)}" if column else ""
    else:
        figure = f"{answer.value:.3f}{_change(answer, column)}"
    return (
        f"<span class='strip'><span class='name'>{escape(setting.labels[column])}</span>"
        f"<span class='dots' aria-hidden='true'>{marks}</span><span class='figure'>{figure}</span></span>"
    )


def _kind(level: int | None, *more: str) -> str:
    """A class attribute, if there is a class."""
    names = [*more, *([] if level is None else [f"g{level}"])]
    return f" class='{' '.join(names)}'" if names else ""


def _change(answer: RankedList, column: int) -> str:
    if not column or answer.change is None:
        return ""
    if abs(answer.change) <= EQUAL:
        return " <em class='same'>=</em>"
    return f" <em class='{'up' if answer.change > 0 else 'down'}'>{signed(answer.change)}</em>"


def _answer(answer: RankedList, column: int, setting: Setting) -> str:
    told = []
    if setting.measure:
        told.append(f"{answer.relevant} relevant")
        if column and answer.gained:
            told.append(f"<em class='up'>{answer.gained} gained</em>")
        if column and answer.lost:
            told.append(f"<em class='down'>{len(answer.lost)} lost</em>")
    elif column:
        told.append(f"{answer.shared} of {len(answer.hits)} shared with {escape(setting.labels[0])}")
    hits = "".join(_hit(hit, column, setting) for hit in answer.hits) or "<li class='muted'>nothing found</li>"
    lost = ""
    if column and answer.lost:
        rows = "".join(_hit(hit, column, setting, lost=True) for hit in answer.lost)
        lost = f"<h4 class='down'>Lost: relevant in {escape(setting.labels[0])}’s first {setting.depth}</h4><ol>{rows}</ol>"
    figure = "" if answer.value is None else f" {answer.value:.3f}{_change(answer, column)}"
    return (
        f"<div class='answer'><h3><span class='name'>{escape(setting.labels[column])}</span>{figure}"
        f"<small>{', '.join(told)}</small></h3><ol>{hits}</ol>{lost}</div>"
    )


def _hit(hit: ComparedHit, column: int, setting: Setting, lost: bool = False) -> str:
    level = setting.level(hit)
    badges = []
    if level:
        badges.append(_relevant(hit))
    elif level == 0:
        badges.append(f"<span class='badge'>grade {hit.grade}</span>")
    if lost:
        now = f"now {hit.rank}" if hit.rank else "not found"
        badges.append(f"<span class='move'>was {hit.before}, {now}</span>")
        rank = "–"
    else:
        rank = str(hit.rank)
        if column and level and (hit.before is None or hit.before > setting.depth):
            badges.append("<span class='badge gained'>gained</span>")
        if column:
            badges.append(_move(hit))
    kind = _kind(level, "hit", *(["lost"] if lost else []))
    score = "" if hit.score is None else f" title='score {hit.score:.6g}'"
    return (
        f"<li{kind}><div class='meta'{score}><span class='rank'>{rank}</span>"
        f"{_docid(hit.docid)}{''.join(badges)}</div>{_text(hit.docid, setting)}</li>"
    )


def _docid(docid: str) -> str:
    """Beside the rank if it is short, else on a line of its own."""
    return f"<bdi class='id{' long' if len(docid) > _SHORT else ''}'>{escape(docid)}</bdi>"


def _relevant(hit: ComparedHit) -> str:
    return f"<span class='badge relevant' title='relevant: grade {hit.grade}'>✓ {hit.grade}</span>"


def _move(hit: ComparedHit) -> str:
    if hit.before is None:
        return "<span class='move up'>new</span>"
    if hit.rank is None or hit.before == hit.rank:
        return "<span class='move'>=</span>"
    arrow, kind = ("↑", "up") if hit.before > hit.rank else ("↓", "down")
    return f"<span class='move {kind}'>{arrow} from {hit.before}</span>"


def _text(docid: str, setting: Setting) -> str:
    """Title and start of the text; the rest, up to the most that is asked, opens."""
    passage = setting.passages.get(docid)
    if passage is None:
        return "<p class='muted'>not in the corpus</p>"
    title = " ".join(passage.title.split())
    text = " ".join(passage.text.split())
    start = _cut(text, min(_SNIPPET, setting.max_text))
    rest = text[len(start) :]
    shown = rest[: max(0, setting.max_text - len(start))]
    more = ""
    if rest and shown:
        left = (
            f" <span class='muted'>[{len(rest) - len(shown):,} more characters]</span>"
            if len(shown) < len(rest)
            else ""
        )
        more = f"<details class='more'><summary>more</summary><p dir='auto'>…{escape(shown)}{left}</p></details>"
    heading = f"<p class='title' dir='auto'>{escape(title)}</p>" if title else ""
    body = f"<p dir='auto'>{escape(start)}{'…' if rest else ''}</p>" if text else ""
    return heading + body + more


def _cut(text: str, most: int) -> str:
    """The start of a text, ended at a word where one ends in its last third."""
    if len(text) <= most:
        return text
    end = text.rfind(" ", most * 2 // 3, most)
    return text[: end if end > 0 else most]


def _missed(question: QueryComparison, setting: Setting) -> str:
    if not question.missed:
        return ""
    rows = []
    for row in question.missed:
        ranks = ", ".join(
            f"{escape(label)}: {hit.rank if hit.rank else 'not found'}" for label, hit in zip(setting.labels, row)
        )
        rows.append(
            f"<li{_kind(setting.level(row[0]), 'hit', 'missed')}><div class='meta'>"
            f"{_docid(row[0].docid)}{_relevant(row[0])}<span class='move'>{ranks}</span></div>"
            f"{_text(row[0].docid, setting)}</li>"
        )
    found = {hit.docid for answer in question.answers for hit in answer.hits if setting.level(hit)}
    unseen = question.relevant - len(found)
    first = f", the first {len(rows)} of them by grade" if unseen > len(rows) else ""
    noun = "passage is" if unseen == 1 else "passages are"
    return (
        f"<details class='unseen'><summary>{unseen} relevant {noun} in no run’s first {setting.depth}{first}</summary>"
        f"<ol>{''.join(rows)}</ol></details>"
    )
