"""Where tensors are computed: a device by its name, or a refusal before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str | torch.device | None) -> torch.device:
    """The device called `name` (cpu, cuda, cuda:1, mps …); for None a GPU where there is one, else the CPU.

    Raises UserError for a name that torch does not know and for a device that is not there or cannot be used.
    """
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(name)
        torch.zeros(1, device=place).cpu()  # meta, say, is a device that holds no numbers
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:  # torch raises each of them for some name
        # What this torch was built without is told with a list of all that it was built with.
        unknown = isinstance(error, NotImplementedError)
        why = "this torch does not compute there" if unknown else str(error).splitlines()[0]
        raise UserError(f"no device {name}: {why}", "say --device cpu") from None
    return place
