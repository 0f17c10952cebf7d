"""Torch devices by name, checked before a model or vectors are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str | torch.device | None) -> torch.device:
    """Return the torch device of a name.

    Args:
        name: `cpu`, `cuda`, `cuda:1`, `mps` …; None means a GPU if there is one, else the CPU.

    Raises:
        UserError: Torch does not know the name, or the device is missing or unusable.
    """
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()  # fails on devices without data, such as meta
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:  # each is raised for some name
        # NotImplementedError lists every device that this torch was built with.
        unsupported = isinstance(error, NotImplementedError)
        why = "this build of torch does not support it" if unsupported else str(error).splitlines()[0]
        raise UserError(f"no device {name}: {why}", "say --device cpu") from None
    return device
