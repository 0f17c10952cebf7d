"""The repository's markdown files: their fenced blocks, links and headings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ELSEWHERE = ("build", "dist", "site", "shared", "demo-out", "demo-short-out")

_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,}) *(?P<language>[\w-]*)(?P<rest>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"")
_COMMENT = re.compile(r"^<!-- ([\w ]+): (.+) -->$")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it begins, its language, the file it is titled with, and the comment just above it."""

    page: str
    line: int
    language: str
    title: str | None
    text: str
    comment: tuple[str, str] | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Every markdown file of the repository, relative to its root."""
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    hidden = (path for path in found if not any(part.startswith(".") for part in path.parts))
    return sorted(str(path) for path in hidden if path.parts[0] not in _ELSEWHERE)


def read(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = iter(enumerate(read(page).splitlines(), 1))
    comment: tuple[str, str] | None = None
    for number, line in lines:
        fence = _FENCE.match(line)
        if fence is None:
            said = _COMMENT.match(line.strip())
            if said or line.strip():
                comment = (said[1], said[2]) if said else None
            continue
        inside = []
        for _, text in lines:
            if text.strip() == fence["marks"]:
                break
            inside.append(text.removeprefix(fence["indent"]))
        title = _TITLE.search(fence["rest"])
        yield Block(page, number, fence["language"], title[1] if title else None, "\n".join(inside) + "\n", comment)
        comment = None


def prose(page: str) -> str:
    """A page without its fenced and inline code, line for line."""
    return prose_of(read(page))


def prose_of(text: str) -> str:
    """A text without its fenced and inline code, line for line."""
    kept, fenced = [], False
    for line in text.splitlines():
        is_fence = _FENCE.match(line) is not None
        kept.append("" if fenced or is_fence else re.sub(r"`[^`]*`", lambda code: "x" * len(code[0]), line))
        fenced = fenced != is_fence
    return "\n".join(kept)


def links(page: str) -> Iterator[tuple[int, str]]:
    """Line number and target of every link and picture of a page."""
    return links_of(read(page))


def links_of(text: str) -> Iterator[tuple[int, str]]:
    """As `links`, of a text."""
    for number, line in enumerate(prose_of(text).splitlines(), 1):
        for match in _LINK.finditer(line):
            yield number, match[1] or match[2]


def anchors(page: str) -> set[str]:
    """The names of a page's headings, as GitHub makes them, and of its explicit anchors."""
    return anchors_of(read(page))


def github_slug(words: str) -> str:
    """A heading's name on GitHub: every space is a dash."""
    return re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")


def mkdocs_slug(words: str) -> str:
    """A heading's name on the site: ASCII alone, and dashes never stand side by side."""
    plain = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip())


def anchors_of(text: str, slug: Callable[[str], str] = github_slug) -> set[str]:
    """As `anchors`, of a text, with names as `slug` makes them."""
    found = set(re.findall(r'id="([^"]+)"', text)) | set(re.findall(r"\{ ?#([\w-]+) ?\}", text))
    fenced = False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        heading = re.match(r"#{1,6} +(.+?)(?: *\{.*\})?$", line)
        if heading and not fenced:
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "").replace("*", "").lower()
            found.add(slug(words))
    return found
