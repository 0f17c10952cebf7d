"""Every table and figure of the package, run at the tiny scale: no preset, row or set is refused by its stage."""

from __future__ import annotations

import pytest

from starbucks_retrieval.report import drawing
from starbucks_retrieval.reproduce import ReproduceArguments, reproduce
from starbucks_retrieval.reproduce.reading import table_names

NAMES = table_names()


@pytest.mark.slow
@pytest.mark.parametrize("paper", sorted({name.split("/")[0] for name in NAMES}))
def test_every_table_of_a_paper_runs_at_the_tiny_scale(paper, tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "_drawn", lambda *_, **__: dict.fromkeys(("png", "svg"), b"<svg></svg>"))
    for name in (name for name in NAMES if name.startswith(f"{paper}/")):
        figures = reproduce(ReproduceArguments(name, output_dir=str(tmp_path)))
        assert figures["complete"], name
        reasons = {key: reason for key, reason in figures["missing"].items() if "not finished" in reason}
        assert not reasons, (name, reasons)
        assert "nan" not in figures["markdown"], name
