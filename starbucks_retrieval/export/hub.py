"""A finished folder on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from starbucks_retrieval.errors import UserError


def check_name(repository: str) -> None:
    """Raise UserError for what cannot be the name of a repository, before any work is done for it."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise UserError(f"--hub_model_id {repository}: {error}", "write it as me/my-model") from None


def push(folder: Path, repository: str, private: bool, message: str) -> str:
    """Upload a folder, making the repository where there is none; its address. Raises UserError; the folder stays."""
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        # None leaves the choice to the owner's own default, which may be private.
        address = api.create_repo(repository, private=True if private else None, repo_type="model", exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, repo_type="model", commit_message=message)
    except Exception as error:
        # No token, no network, no right to write: the library has a dozen types for what all means the same here.
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"the export is whole in {folder}, but it was not uploaded to {repository} ({line})",
            f"see to the network and to `hf auth login`, then: hf upload {repository} {folder}",
        ) from None
    return str(address)
