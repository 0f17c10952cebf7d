"""Arguments made in Python take paths and sizes as objects."""

from pathlib import Path

import pytest

from starbucks_retrieval.encode import EncodeArguments
from starbucks_retrieval.export import ExportArguments
from starbucks_retrieval.fit import FitArguments
from starbucks_retrieval.mine import MineArguments
from starbucks_retrieval.search import FunnelArguments, SearchArguments
from starbucks_retrieval.search.funnel import Funnel
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.train import TrainArguments


@pytest.mark.parametrize(
    "sizes", [Sizes("2:32,6:128"), ["2:32", Size(6, 128)], (Size(2, 32), Size(6, 128)), "2:32,6:128"]
)
def test_sizes_become_text(sizes):
    arguments = EncodeArguments(Path("model"), Path("emb"), dataset_path=Path("corpus.jsonl"), sizes=sizes)
    assert arguments == EncodeArguments("model", "emb", dataset_path="corpus.jsonl", sizes="2:32,6:128")
    assert FitArguments("m", "o", ["c"], sizes=sizes).sizes == TrainArguments(sizes=sizes).sizes == "2:32,6:128"


def test_one_size_and_paths_become_text():
    found = SearchArguments(Path("p"), Path("q"), size=Size(2, 32), save_ranking_to=Path("run.trec"))
    assert found == SearchArguments("p", "q", size="2:32", save_ranking_to="run.trec")
    assert ExportArguments(to="onnx", size=Size(2, 32)).size == "2:32"
    mined = MineArguments("g.jsonl", model_name_or_path=Path("m"), output_path=Path("o.jsonl"), size=Size(2, 32))
    assert (mined.size, mined.output_path) == ("2:32", "o.jsonl")
    assert FunnelArguments(Funnel.parse("2:32@9,6:128")) == FunnelArguments("2:32@9,6:128")
