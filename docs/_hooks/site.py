"""Hooks of mkdocs: flags from the parsers, MathML for formulas, pages from outside docs/."""

from __future__ import annotations

import html
import json
import posixpath
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # this checkout's package, and flags.py
from flags import flag_pages, overview  # noqa: E402 - mkdocs resets sys.path after a hook is loaded

# Pages of the site that are elsewhere in the repository.
OUTSIDE = {
    "benchmarks.md": "bench/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
FLAGS = "reference/flags.md"
# Pages that are made from notebooks.
NOTEBOOKS = {"notebooks/first-hour.md": "docs/notebooks/first-hour.ipynb"}
PAGES = {source: page for page, source in (OUTSIDE | NOTEBOOKS).items()} | {"README.md": "index.md"}

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^ *(```|~~~)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: Any) -> Any:
    """Add the address of the repository, if pyproject.toml has one, and the pages of flags to the menu."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    if "Repository" in urls:
        config.repo_url, config.repo_name = urls["Repository"], config.site_name
    config.nav = _with_flag_pages(config.nav)
    return config


def _with_flag_pages(nav: Any) -> Any:
    """Put the pages of the commands below the overview of flags."""
    if isinstance(nav, list):
        return [_with_flag_pages(item) for item in nav]
    if isinstance(nav, dict):
        return {title: _with_flag_pages(item) for title, item in nav.items()}
    return [{"All commands": nav}, *({name: page_of(name)} for name in flag_pages())] if nav == FLAGS else nav


def page_of(command: str) -> str:
    """Return the page of a command's flags."""
    return f"reference/flags/{command}.md"


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages from outside docs/, those of notebooks, and a page of flags for each command."""
    from mkdocs.structure.files import File  # here, so that a test without mkdocs can use the rest

    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for name, (_, text) in flag_pages().items():
        files.append(File.generated(config, page_of(name), content=text))
    for page, source in NOTEBOOKS.items():
        files.append(File.generated(config, page, content=notebook_page(ROOT / source)))
    return files


def notebook_page(path: Path) -> str:
    """Return the markdown page of a notebook: its cells with their text outputs, and a link to the file below the title."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown = "".join(output.get("text") or output["data"]["text/plain"]).rstrip()
            parts.append(f"```text\n{shown}\n```")
    title, rest = parts[0].split("\n", 1)
    download = f'<a href="{path.name}" download>Download the notebook</a> and open it in Jupyter.'
    return "\n\n".join([title, download, rest.strip(), *parts[1:]]) + "\n"


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Insert the flags, and turn links between files of the repository into links between pages."""
    if "<!-- consumers -->" in markdown:
        markdown = markdown.replace("<!-- consumers -->", _consumers())
    if "<!-- flags -->" in markdown:
        markdown = markdown.replace("<!-- flags -->", overview())
    return relink(markdown, page.file.src_uri)


def on_page_content(content: str, *, page: Any, config: Any, files: Files) -> str:
    """Turn the formulas that arithmatex found into MathML, which browsers render without a script."""
    return _FORMULA.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    latex = html.unescape(match[2]).strip()
    block = match[1] == "div"
    drawn = convert(
        re.sub(r"\\sum_", r"\\sum\\limits_", latex) if block else latex, display="block" if block else "inline"
    )
    drawn = drawn.replace("<math ", f'<math alttext="{html.escape(latex)}" ', 1)
    return f'<div class="formula">{drawn}</div>' if block else drawn


def _consumers() -> str:
    """A mkdocstrings block for each embedding consumer."""
    from starbucks_retrieval.integrations import CONSUMERS

    classes = [CONSUMERS[name] for name in CONSUMERS]
    return "\n".join(f"::: {each.__module__}.{each.__qualname__}\n" for each in classes)


def relink(markdown: str, page: str) -> str:
    """Rewrite links between files of the repository for the site; a file that is no page becomes its name."""
    source = OUTSIDE.get(page, f"docs/{page}")

    def replace(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if found in PAGES:
            goal = PAGES[found]
        elif found.startswith("docs/"):
            goal = found.removeprefix("docs/")
        else:
            name = f"`{found}`"
            return name if text.strip("`") in (target, found) else f"{text} ({name})"
        return f"[{text}]({posixpath.relpath(goal, posixpath.dirname(page) or '.')}{anchor})"

    lines, fenced = [], False
    for line in markdown.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        lines.append(line if fenced else _LINK.sub(replace, line))
    return "\n".join(lines)
