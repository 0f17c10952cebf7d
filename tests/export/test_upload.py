"""push_to_hub with a hub of our own, and without one."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.export import ExportArguments, export


@pytest.fixture
def hub(monkeypatch) -> list:
    """Calls that reached a hub which says yes to everything."""
    calls: list = []

    class FakeApi:
        def create_repo(self, repo_id, *, private, repo_type, exist_ok):
            calls.append(("create", repo_id, private, repo_type, exist_ok))
            return f"https://hub.example/{repo_id}"

        def upload_folder(self, *, repo_id, folder_path, repo_type, commit_message):
            calls.append(("upload", repo_id, sorted(p.name for p in Path(folder_path).iterdir()), commit_message))

    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    return calls


def arguments(model: Path, output: Path, **more) -> ExportArguments:
    return ExportArguments(str(model), str(output), "transformers", "2:8", **more)


@pytest.mark.parametrize(("private", "asked"), [(True, True), (False, None)])
def test_the_finished_folder_is_uploaded(tiny_bert, tmp_path, hub, private, asked):
    figures = export(
        arguments(tiny_bert, tmp_path / "out", push_to_hub=True, hub_model_id="me/small", hub_private=private)
    )
    create, upload = hub
    assert create == ("create", "me/small", asked, "model", True)
    assert upload[:2] == ("upload", "me/small") and upload[3] == "Size 2:8 for transformers"
    assert {"README.md", "export.json", "model.safetensors", "starbucks.json"} <= set(upload[2])
    assert figures["hub"] == "https://hub.example/me/small"
    assert 'AutoModel.from_pretrained("me/small")' in (tmp_path / "out/README.md").read_text()


def test_nothing_is_uploaded_unasked(tiny_bert, tmp_path, hub):
    assert export(arguments(tiny_bert, tmp_path / "out"))["hub"] is None
    assert not hub


def test_without_a_network_the_folder_is_kept(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        UserError, match=r"the export in .*out is complete.* not uploaded to me/small .*[Oo]ffline"
    ) as caught:
        export(arguments(tiny_bert, tmp_path / "out", push_to_hub=True, hub_model_id="me/small"))
    assert f"hf upload me/small {tmp_path / 'out'}" in caught.value.hint
    assert (tmp_path / "out/export.json").is_file()


def test_a_hub_that_refuses_leaves_the_folder_too(tiny_bert, tmp_path, monkeypatch):
    class Refuses:
        def create_repo(self, *arguments, **keywords):
            raise huggingface_hub.errors.LocalTokenNotFoundError("Token is required")

    monkeypatch.setattr(huggingface_hub, "HfApi", Refuses)
    with pytest.raises(UserError, match="Token is required"):
        export(arguments(tiny_bert, tmp_path / "out", push_to_hub=True, hub_model_id="me/small"))
    assert (tmp_path / "out/export.json").is_file()
