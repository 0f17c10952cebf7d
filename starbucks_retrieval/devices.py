"""Torch devices by name, checked before a model or vectors are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    import torch


# The types whose tensors hold data; torch knows more.
_TYPES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "xla", "mtia", "privateuseone")
_HINT = "say --device cpu"


def check_device(name: str, flag: str = "device") -> None:
    """Raise UserError for a name that no device can have, without importing torch.

    Args:
        name: `cpu`, `cuda`, `cuda:1`, `mps` ….
        flag: The flag that names it.

    Example:
        >>> check_device("cuda:1")
        >>> check_device("gpu")
        Traceback (most recent call last):
        starbucks_retrieval.errors.UserError: no device gpu: the types are cpu, cuda, mps, xpu, hpu, npu, xla, mtia, privateuseone
          say --device cpu
    """
    kind, colon, number = name.partition(":")
    if kind not in _TYPES or (colon and not (number.isascii() and number.isdigit())):
        raise UserError(f"no device {name}: the types are {', '.join(_TYPES)}", _HINT)


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
        raise UserError(f"no device {name}: {why}", _HINT) from None
    return device
