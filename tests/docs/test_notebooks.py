"""The notebooks run, offline, on a small model that stands in for the one they name."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from docs.pages import ROOT
from docs.samples import backbone

from starbucks_retrieval import UserError
from starbucks_retrieval.__main__ import _main as starbucks
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.models import EncoderConfig

NOTEBOOK = ROOT / "docs" / "notebooks" / "first-hour.ipynb"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with a model of the same shape and of random weights under the name in the notebook."""
    backbone(tmp_path / MODEL)
    EncoderConfig(pooling="mean", normalize=True, passage_max_len=8).save(
        tmp_path / MODEL
    )  # short: seconds instead of minutes
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell. Returns the value of its last expression, None without one."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace) if last is not None else None  # noqa: S307


@pytest.mark.slow
def test_the_first_hour(folder, capsys):
    namespace: dict[str, Any] = {}
    shown = {}
    for cell in CELLS:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            value = run_cell(source, namespace)
            shown[source.splitlines()[-1]] = value
            assert (value is None) == (not cell["outputs"]), source  # the notebook shows what it returns
    assert shown["vectors"] is namespace["vectors"] and repr(shown["vectors"]).startswith("Embeddings(2 texts at 2:64")
    assert len(namespace["texts"]) > 1000 and len(set(namespace["ids"])) == len(namespace["texts"])
    assert set(namespace["ANSWERS"].values()) <= set(namespace["ids"])
    assert str(namespace["again"].size) == "4:128"

    with pytest.raises(UserError, match="the encoder was fitted after"):
        namespace["searcher"].search("an old searcher")

    [command] = [
        line.strip()
        for cell in CELLS
        for line in "".join(cell["source"]).replace("\\\n", "").splitlines()
        if line.startswith("starbucks search")
    ]
    words = shlex.split(command.replace("--interactive", "--query eggs --hits 2"))
    capsys.readouterr()
    assert run_command(starbucks, words[1:]) == 0
    assert [line[:4] for line in capsys.readouterr().out.splitlines() if line[:1] == " " and line[3:4] == "."]


def test_outputs_are_those_of_a_clean_run():
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        for output in cell["outputs"]:
            assert output["output_type"] == "execute_result", "".join(cell["source"])
            assert not re.search(r"'/\w+/|0x[0-9a-f]{6}", str(output))  # paths of a machine, addresses in memory


def test_the_page_of_the_site_has_cells_and_outputs():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "_hooks" / "site.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = hooks.notebook_page(NOTEBOOK)
    assert page.startswith('# The first hour\n\n<a href="first-hour.ipynb"')
    assert "```text\nEmbeddings(2 texts at 2:64, 6:384; float32)\n```" in page
    assert page.count("```python") == sum(cell["cell_type"] == "code" for cell in CELLS)
    assert hooks.relink("[x](notebooks/first-hour.ipynb)", "search.md") == "[x](notebooks/first-hour.md)"
    for cell in CELLS:  # links of the notebook itself are relative to its folder
        for target in hooks._LINK.findall("".join(cell["source"])):
            assert (NOTEBOOK.parent / target[1]).exists(), target[1]
