"""Links between files of the repository lead somewhere, headings included."""

from __future__ import annotations

import importlib.util
import posixpath
import re
import sys

import pytest
from docs.pages import ROOT, anchors, anchors_of, links, links_of, mkdocs_slug, pages, read

_SPEC = importlib.util.spec_from_file_location("docs_site_hook", ROOT / "docs" / "_hooks" / "site.py")
hook = importlib.util.module_from_spec(_SPEC)
_BEFORE = sys.path[:]
_SPEC.loader.exec_module(hook)
sys.path[:] = _BEFORE  # as mkdocs does


@pytest.mark.parametrize("page", pages())
def test_every_link_leads_somewhere(page):
    broken = []
    for number, target in links(page):
        if re.match(r"[a-z]+:", target):
            if not re.match(r"(https?://[\w.-]+\.\w+(/\S*)?|mailto:\S+@\S+)$", target):
                broken.append(f"{page}:{number}: {target} is no address")
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        if not file.exists():
            broken.append(f"{page}:{number}: {target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(str(file.resolve().relative_to(ROOT))):
            broken.append(f"{page}:{number}: {target}: no such heading")
    assert not broken, "\n".join(broken)


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    """The pages of the built site and their markdown, as the hook hands it to mkdocs."""
    found = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    found |= {page: ROOT / source for page, source in hook.OUTSIDE.items()}
    texts = {page: path.read_text(encoding="utf-8") for page, path in found.items()}
    texts |= {page: hook.notebook_page(ROOT / source) for page, source in hook.NOTEBOOKS.items()}
    return {page: hook.relink(text, page) for page, text in texts.items()}


def broken_on_the_site(site: dict[str, str]) -> list[str]:
    """Links whose page or heading mkdocs does not build. Headings that it makes of flags and functions are left out."""
    headings = {page: anchors_of(text, mkdocs_slug) for page, text in site.items()}
    broken = []
    for page, text in site.items():
        for number, target in links_of(text):
            path, _, anchor = target.partition("#")
            goal = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
            if re.match(r"[a-z]+:", target) or goal.startswith("assets/"):
                continue
            if goal not in site:
                broken.append(f"{page}:{number}: {target}: no such page")
            elif anchor and anchor not in headings[goal] and not goal.startswith("reference/"):
                broken.append(f"{page}:{number}: {target}: no such heading")
    return broken


def test_every_link_leads_somewhere_on_the_site_too(site):
    assert len(site) > 30
    assert not broken_on_the_site(site)


def test_a_link_that_only_the_site_breaks_is_found():
    # README.md has the heading, but on the site its place is taken by index.md.
    text = hook.relink("[a](../README.md#install) [b](other.md#a-b) [c](gone.md)", "tutorial.md")
    pages = {"tutorial.md": text, "index.md": "# Home\n", "other.md": "# A & b\n"}
    assert broken_on_the_site(pages) == [
        "tutorial.md:1: index.md#install: no such heading",
        "tutorial.md:1: gone.md: no such page",
    ]
    assert anchors_of("# A & b\n") == {"a--b"}  # as GitHub makes it


def test_every_page_is_in_the_menu(site):
    menu = re.findall(r"([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(menu) == sorted(site)


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    from docs import pages as reader

    (tmp_path / "a.md").write_text("# One, two\n\n[x](b.md) `[y](z.md)`\n\n```text\n[code](c.md)\n```\n[d](#one-two)\n")
    monkeypatch.setattr(reader, "ROOT", tmp_path)
    assert list(reader.links("a.md")) == [(3, "b.md"), (8, "#one-two")]
    assert reader.anchors("a.md") == {"one-two"}


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith(("README", "CONTRIBUTING", "docs/"))])
def test_every_file_that_a_page_names_is_there(page):
    named = re.findall(r"`((?:starbucks_retrieval|bench|tests|examples|docs)/[\w/.-]+)`", read(page))
    # The architecture and the methods are described with paths inside the package.
    inside = re.findall(r"`(\w+/[\w/]+\.py)`", read(page)) if page.startswith(("docs/arch", "docs/expl")) else []
    assert not [path for path in named if not (ROOT / path).exists()]
    assert not [
        path for path in inside if not any((base / path).exists() for base in (ROOT, ROOT / "starbucks_retrieval"))
    ]
