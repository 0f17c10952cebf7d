"""A retrieval collection from this machine's Python documentation: a BEIR folder whose splits share no module.

The sources are parsed, never imported: importing them would run their code.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import logging
import re
import shutil
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from starbucks_retrieval.cli import progress
from starbucks_retrieval.demo import Settings
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer

T = TypeVar("T")
log = logging.getLogger(__name__)
SPLITS = ("train", "dev", "test")

# Requirements of this package and of its demo and dev extras; packages that are not installed are skipped.
_PACKAGES = (
    "PIL accelerate anyio click datasets dateutil dill faiss filelock fontTools fsspec huggingface_hub hypothesis "
    "importlinter ir_measures jinja2 matplotlib mpmath multiprocess networkx numpy packaging pandas pip psutil pyarrow "
    "pygments pytest rich safetensors scipy sentence_transformers setuptools sklearn sympy tokenizers torch tqdm "
    "transformers yaml"
)
_TEST = re.compile(r"(^|_)(tests?|testing|conftest)($|_)")
_MIN_SUMMARY, _MAX_SUMMARY, _MIN_PASSAGE = 4, 40, 20  # words
# The end of a sentence, which "e.g." is not.
_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\bcf)(?<!\betc)[.!?](?=\s+[^a-z\s])")
_SIGNATURE = re.compile(r"[\w.]+\s?\(.*\)|.*->")
_UNDERLINE = re.compile(r"([=\-~*#^_])\1{2}")
_ROLE = re.compile(r":[a-z:]+:`~?([^`<]*?)(?:\s*<[^`]*>)?`")
_LINK = re.compile(r"\[`?~?([\w.]+)`?\]")
_MARKUP = re.compile(r"`+|\*\*|\|")
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Docstring:
    """One docstring.

    Attributes:
        docid: The dotted name of its object, such as `json.decoder.JSONDecoder`.
        module: The top-level module.
        summary: Its first sentence without markup, which becomes a query.
        passage: The rest.
    """

    docid: str
    module: str
    summary: str
    passage: str


def build_corpus(folder: Path, modules: Sequence[Path], settings: Settings) -> dict[str, Any]:
    """Write corpus.jsonl, queries.jsonl and qrels/{train,dev,test}.tsv into `folder`; return their counts.

    A query is the summary line of a docstring, its one relevant passage the rest. The same sources and settings give
    the same files.

    Args:
        folder: Where the files go. It is deleted first if it exists.
        modules: Package folders and .py files, such as `find_modules` returns.
        settings: Numbers of passages and queries, shares of the splits, and the seed.

    Returns:
        `passages`, the number of passages; `modules`, the names of the modules of each split; and `train_queries`,
        `dev_queries` and `test_queries`, the number of queries of each split.

    Raises:
        UserError: The sources contain too few docstrings for three splits.
    """
    shutil.rmtree(folder, ignore_errors=True)
    found: list[Docstring] = []
    for module in progress(modules, len(modules), "modules", "reading docstrings"):
        found += _module_entries(module, settings)
    entries = _sample(_unambiguous(found), settings.passages, settings.seed)
    splits = _split_modules(entries, settings)
    limits = {"train": len(entries), "dev": settings.dev_queries, "test": settings.test_queries}
    queries = {
        name: _sample([e for e in entries if e.module in splits[name]], limits[name], settings.seed) for name in SPLITS
    }
    module_count = len({e.module for e in entries})
    if not all(queries.values()):
        raise UserError(
            f"only {len(entries)} usable docstrings in {module_count} modules of this Python",
            "run the demo with a Python whose standard library is there as source files",
        )
    # No title: the dotted name repeats words of the summary, which would make retrieval too easy.
    _write(folder / "corpus.jsonl", (_json(_id=e.docid, title="", text=e.passage) for e in entries))
    # A query's id differs from its passage's: some collections drop results with the query's own id.
    selected = (e for name in SPLITS for e in queries[name])
    _write(folder / "queries.jsonl", (_json(_id=f"q:{e.docid}", text=e.summary) for e in selected))
    for name in SPLITS:
        judged = (f"q:{e.docid}\t{e.docid}\t1" for e in queries[name])
        _write(folder / "qrels" / f"{name}.tsv", ["query-id\tcorpus-id\tscore", *judged])
    counts = {f"{name}_queries": len(queries[name]) for name in SPLITS}
    listed = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    log.info("%d passages from %d modules; %s", len(entries), module_count, listed)
    return {"passages": len(entries), "modules": {name: sorted(splits[name]) for name in SPLITS}, **counts}


def find_modules() -> list[Path]:
    """Return this machine's top-level Python modules, each a package folder or a .py file, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    names = sorted(name for name in sys.stdlib_module_names if not name.startswith("_"))
    standard = [path for name in names for path in (root / name, root / f"{name}.py") if path.exists()]
    return [*standard, *filter(None, map(_installed, _PACKAGES.split()))]


def _installed(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)  # of a top-level name, this reads folders and runs nothing
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin


def source_files(module: Path) -> list[Path]:
    """Return the public source files of a top-level module, sorted, without tests and private modules.

    Args:
        module: A .py file, which is returned as it is, or the folder of a package.
    """
    if module.is_file():
        return [module]
    return sorted(path for path in module.rglob("*.py") if _is_public(path.relative_to(module)))


def _is_public(path: Path) -> bool:
    parts = [*path.parts[:-1], *([] if path.name == "__init__.py" else [path.stem])]
    return all(part.isidentifier() and not part.startswith("_") and not _TEST.search(part) for part in parts)


def read_entries(module: Path, path: Path) -> Iterator[Docstring]:
    """Yield the usable docstrings of one file; none for a file that does not parse.

    Args:
        module: The top-level module: a package folder or a .py file.
        path: The file, inside `module`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences in other people's code
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return
    below = path.relative_to(module).with_suffix("").parts if module.is_dir() else ()
    dotted = ".".join((module.stem, *(part for part in below if part != "__init__")))
    seen: set[str] = set()
    for name, node in _documented(tree, dotted):
        pair = split_docstring(ast.get_docstring(node) or "")
        if pair and name not in seen:
            seen.add(name)
            yield Docstring(name, module.stem, *pair)


def _documented(node: ast.AST, name: str) -> Iterator[tuple[str, _Documented]]:
    """Yield a module or class and everything public in it, but nothing inside functions."""
    if isinstance(node, _Documented):
        yield name, node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from _documented(child, f"{name}.{child.name}")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield f"{name}.{child.name}", child
        elif isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _documented(child, name)


def split_docstring(text: str) -> tuple[str, str] | None:
    """Split a docstring into its summary and the rest.

    Returns:
        Both texts; None if one of them is missing, too short or not prose, or if the rest repeats the summary.

    Example:
        >>> summary, rest = split_docstring("Return the :class:`Size` of a model. " + "More words. " * 10)
        >>> summary
        'Return the Size of a model'
    """
    first, _, rest = text.strip().partition("\n\n")
    if _UNDERLINE.search(first) or text.encode("utf-8", "ignore").decode() != text:  # a lone surrogate
        return None
    first = " ".join(first.split())
    end = _END.search(first)
    summary, remainder = (first[: end.end()], first[end.end() :]) if end else (first, "")
    summary = _MARKUP.sub("", _LINK.sub(r"\1", _ROLE.sub(r"\1", summary))).strip(" .:")
    passage = f"{remainder.strip()}\n\n{rest.strip()}".strip()
    if not _MIN_SUMMARY <= len(summary.split()) <= _MAX_SUMMARY or len(passage.split()) < _MIN_PASSAGE:
        return None
    if _SIGNATURE.match(summary) or normalized_words(summary) in normalized_words(passage):
        return None
    return summary, passage


def normalized_words(text: str) -> str:
    """Return the words of a text in lower case, to compare two texts."""
    return " ".join(re.findall(r"\w+", text.lower()))


def _module_entries(module: Path, settings: Settings) -> list[Docstring]:
    """Return up to `per_module` docstrings, from files in random order: the largest modules have thousands."""
    entries: list[Docstring] = []
    for path in _shuffled(source_files(module), lambda p: p.relative_to(module.parent).as_posix(), settings.seed):
        entries += read_entries(module, path)
        if len(entries) >= settings.per_module:
            break
    return entries[: settings.per_module]


def _unambiguous(entries: Iterable[Docstring]) -> list[Docstring]:
    """Return the entries whose summary and passage occur once; of a repeated text, the relevant one is unknown."""
    distinct = {entry.docid: entry for entry in entries}.values()
    summaries = Counter(normalized_words(entry.summary) for entry in distinct)
    passages = Counter(normalized_words(entry.passage) for entry in distinct)
    return [e for e in distinct if summaries[normalized_words(e.summary)] == passages[normalized_words(e.passage)] == 1]


def _split_modules(entries: Sequence[Docstring], settings: Settings) -> dict[str, set[str]]:
    """Return top-level modules by split: in random order, the first fill test, the next dev, the rest train."""
    counts = Counter(entry.module for entry in entries)
    splits: dict[str, set[str]] = {name: set() for name in SPLITS}
    filled, goal = 0, 0.0
    order = iter(_shuffled(sorted(counts), str, settings.seed))
    for name, share in (("test", settings.test_share), ("dev", settings.dev_share), ("train", 1.0)):
        goal += share * len(entries)
        while filled < goal and (module := next(order, None)) is not None:
            splits[name].add(module)
            filled += counts[module]
    return splits


def _sample(entries: Sequence[Docstring], count: int, seed: int) -> list[Docstring]:
    chosen = _shuffled(entries, lambda entry: entry.docid, seed)[:count]
    return sorted(chosen, key=lambda entry: entry.docid)


def _shuffled(items: Iterable[T], name: Callable[[T], str], seed: int) -> list[T]:
    """Return the items in an order that depends on their names and the seed alone, not on the other items."""
    return sorted(items, key=lambda item: hashlib.blake2b(f"{seed} {name(item)}".encode()).digest())


def _json(**fields: str) -> str:
    return json.dumps(fields, ensure_ascii=False)


def _write(path: Path, lines: Iterable[str]) -> None:
    with atomic_writer(path) as out:
        out.writelines(line.encode() + b"\n" for line in lines)
