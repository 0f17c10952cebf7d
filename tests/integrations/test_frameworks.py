"""Frameworks that take a folder of sentence-transformers take ours: the lines of the documentation run where they are installed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import save_model
from docs.pages import blocks
from fitted_models import fitted, load

from starbucks_retrieval import NestedEncoder, Size
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.encode.__main__ import main as encode

PREFIXES = {"query_prefix": "query: ", "passage_prefix": "passage: ", "query_max_len": 20, "passage_max_len": 20}
TEXTS = {"query": ["a question"], "passages": ["a passage", "another passage"]}
FRAMEWORKS = (
    "langchain_huggingface",
    "llama_index.embeddings.huggingface",
    "haystack_integrations.components.embedders.sentence_transformers",
)


def block_with(page: str, text: str) -> str:
    """The python block of a page that holds a text."""
    [found] = [block.text for block in blocks(page) if block.language == "python" and text in block.text]
    return found


@pytest.mark.parametrize("module", FRAMEWORKS)
def test_the_documented_lines_give_our_vectors(module, tmp_path, monkeypatch):
    pytest.importorskip(module)
    folder = save_model(tmp_path / "my-model")
    words = json.loads((folder / "tokenizer.json").read_text())
    words["model"]["vocab"] |= {"question": 95, "passage": 96, "another": 97, "query": 98, ":": 99}
    for word in ("w90", "w91", "w92", "w93", "w94"):
        del words["model"]["vocab"][word]
    (folder / "tokenizer.json").write_text(json.dumps(words))
    encoder, _ = fitted(load(folder, **PREFIXES))
    encoder.save_pretrained(folder)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(block_with("docs/howto/frameworks.md", f"from {module} import"), names)  # noqa: S102
    size = Size(4, 32)
    passages = encoder.encode(TEXTS["passages"], [size])[size]
    queries = encoder.encode(TEXTS["query"], [size], is_query=True)[size]
    assert np.abs(queries - encoder.encode(TEXTS["query"], [size])[size]).max() > 1e-3  # the prefixes matter
    np.testing.assert_allclose(np.array(names["passages"]), passages, atol=1e-6)
    np.testing.assert_allclose(np.array([names["query"]]), queries, atol=1e-6)


def test_the_documented_server_answers(tmp_path, monkeypatch):
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    pytest.importorskip("faiss")
    from fastapi.testclient import TestClient

    encoder = NestedEncoder.from_pretrained(save_model(tmp_path / "my-model"), device="cpu")
    encoder.config = load(tmp_path / "my-model").config
    encoder.save_pretrained(tmp_path / "my-model")
    (tmp_path / "my-set").mkdir()
    rows = [{"_id": str(i), "title": "", "text": f"w{i} w{i + 1}"} for i in range(20)]
    (tmp_path / "my-set" / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    flags = "--model_name_or_path my-model --dataset_path my-set --encode_output_path emb/passages --sizes 2:16,4:32"
    assert run_command(encode, [*flags.split(), "--quiet"]) == 0
    names: dict = {}
    lines = block_with("docs/howto/serve.md", "FastAPI").replace("2:32@100,6:384", "2:16@10,4:32")
    exec(lines, names)  # noqa: S102
    answer = TestClient(names["app"]).get("/search", params={"q": "w5 w6", "k": 3})
    assert answer.status_code == 200
    assert answer.json()[0] | {"score": 0} == {"docid": "5", "score": 0, "text": "w5 w6"} and len(answer.json()) == 3
    assert (
        TestClient(names["app"]).get("/search", params={"q": "w5", "k": 0}).status_code == 422
    )  # a bad request is refused
