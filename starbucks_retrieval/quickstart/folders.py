"""Documents that are files of text: plain text, markdown and HTML."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starbucks_retrieval.data import Passage
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.quickstart.columns import ENDINGS as TABLES
from starbucks_retrieval.quickstart.columns import not_in_encoding

PLAIN = (".txt", ".text", ".rst")
MARKDOWN = (".md", ".markdown")
HTML = (".html", ".htm", ".xhtml")
ENDINGS = (*PLAIN, *MARKDOWN, *HTML)

_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_YAML_TITLE = re.compile(r"^title:\s*(.+)$", re.MULTILINE)
_HEADING = re.compile(r"^#\s+(.+?)\s*#*$", re.MULTILINE)


@dataclass(frozen=True)
class TextFiles:
    """The files of a folder, or one file.

    Attributes:
        folder: The folder; for one file, its folder.
        paths: The files that can be read, sorted.
        skipped: The number of other files by ending.
    """

    folder: Path
    paths: Sequence[Path]
    skipped: Counter[str]

    def told(self) -> str:
        """Describe the files in one line."""
        kinds = Counter(path.suffix.lower() for path in self.paths)
        found = f"{len(self.paths)} files ({_listed(kinds)})"
        return f"{found}; not read: {_listed(self.skipped)}" if self.skipped else found


def find_texts(folder: Path) -> TextFiles:
    """Find the texts under a folder, in the order of their paths. Hidden files and folders are left out.

    Args:
        folder: The folder, or one file.

    Raises:
        UserError: There is none, or there are HTML files and the package that reads them is not installed.
    """
    every = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    base = folder.parent if folder.is_file() else folder
    seen = [path for path in every if not any(part.startswith(".") for part in path.relative_to(base).parts)]
    paths = [path for path in seen if path.suffix.lower() in ENDINGS]
    skipped = Counter(path.suffix.lower() or "no ending" for path in seen if path.suffix.lower() not in ENDINGS)
    if not paths:
        tables = [path for path in seen if path.name.endswith(TABLES)]
        if tables:
            raise UserError(f"{folder} holds no texts, but tables", f"name one of them, such as {tables[0]}")
        if not seen:
            raise UserError(f"{folder} holds no files", "name a folder of .txt, .md or .html files")
        raise UserError(
            f"{folder} holds no .txt, .md or .html files, but {_listed(skipped)}",
            "convert them to text first, for example pdftotext for .pdf and pandoc for .docx",
        )
    if any(path.suffix.lower() in HTML for path in paths):
        _trafilatura()  # says how to install it before anything is read
    return TextFiles(base, paths, skipped)


def read_text_file(path: Path, folder: Path, encoding: str = "utf-8") -> Passage:
    """Read one file as a document. Its id is the path under the folder.

    The title of a markdown file is that of its front matter or its first heading, the title of an HTML file that of the
    page; otherwise it is the name of the file.

    Args:
        path: The file.
        folder: The folder that the id is relative to.
        encoding: Of plain text and markdown; HTML files name theirs.

    Raises:
        UserError: The file is binary, or in another encoding.
    """
    raw = path.read_bytes()
    docid = re.sub(r"\s", lambda space: quote(space[0]), path.relative_to(folder).as_posix())
    stem = re.sub(r"[_-]+", " ", path.stem).strip()
    if path.suffix.lower() in HTML:
        title, text = _html(raw)
        return Passage(docid, title or stem, _without_title(text, title))
    if b"\0" in raw:
        raise UserError(f"{path}: binary data, not text", "take it out of the folder, or convert it to text")
    try:
        text = raw.decode(encoding).removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise not_in_encoding(str(path), encoding, error.start, "of the file") from None
    if path.suffix.lower() not in MARKDOWN:
        return Passage(docid, stem, text.strip())
    front = _FRONT_MATTER.match(text)
    text = text[front.end() :] if front else text
    named = (_YAML_TITLE.search(front[1]) if front else None) or _HEADING.search(text)
    title = named[1].strip("\"' ") if named else stem
    return Passage(docid, title, _without_title(text, title))


def _without_title(text: str, title: str) -> str:
    """Return a text without a first line that repeats the title, which is given to the model anyway."""
    first, _, rest = text.strip().partition("\n")
    return rest.strip() if title and first.strip("# ") == title else text.strip()


def _html(raw: bytes) -> tuple[str, str]:
    """Return the title and the main text of a page; its whole text if no main text is found."""
    trafilatura = _trafilatura()
    page = trafilatura.bare_extraction(raw, favor_recall=True, with_metadata=True, include_comments=False)
    title, text = (page.title or "", page.text or "") if page is not None else ("", "")
    return title, text or (trafilatura.html2txt(raw) if raw.strip() else "")


def _trafilatura() -> Any:
    try:
        import trafilatura
    except ImportError:
        raise UserError(
            "HTML files are read with trafilatura, which is not installed",
            'pip install "starbucks_retrieval[html]", or take them out of the folder',
        ) from None
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # a page without text is counted, not an error
    return trafilatura


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {ending}" for ending, count in counts.most_common(5))
