"""Torch devices by name, checked before a model or vectors are loaded, and the size of their batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    import torch

# The help of --max_tokens_per_batch; `models.batching.batch_tokens` has the limit of CPUs.
BATCH_TOKENS_HELP = "rows times longest row of a batch (default: 65536 on a GPU, 4096 on a CPU, which takes at most 512 a thread, or 1024)"


def default_batch_tokens(device: str) -> int:
    """Return the default of --max_tokens_per_batch on a device.

    Args:
        device: Its name or type: `cpu`, `cuda`, `cuda:1` ….

    Example:
        >>> default_batch_tokens("cuda:1"), default_batch_tokens("cpu")
        (65536, 4096)
    """
    return 65536 if device.startswith("cuda") else 4096


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
