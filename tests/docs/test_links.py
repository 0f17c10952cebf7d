"""Links between files of the repository lead somewhere, headings included."""

from __future__ import annotations

import re

import pytest
from docs.pages import ROOT, anchors, links, pages, read


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


def test_a_broken_link_is_found(tmp_path, monkeypatch):
    from docs import pages as reader

    (tmp_path / "a.md").write_text("# One, two\n\n[x](b.md) `[y](z.md)`\n\n```text\n[code](c.md)\n```\n[d](#one-two)\n")
    monkeypatch.setattr(reader, "ROOT", tmp_path)
    assert list(reader.links("a.md")) == [(3, "b.md"), (8, "#one-two")]
    assert reader.anchors("a.md") == {"one-two"}


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith(("README", "CONTRIBUTING", "docs/"))])
def test_every_file_that_a_page_names_is_there(page):
    named = re.findall(r"`((?:starbucks_retrieval|bench|tests|examples|docs)/[\w/.-]+)`", read(page))
    assert not [path for path in named if not (ROOT / path).exists()]
