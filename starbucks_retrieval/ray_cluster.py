"""Ray where a stage asks for it: found or started, and its errors turned back into ours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from starbucks_retrieval.errors import UserError


def import_ray(purpose: str) -> Any:
    """The module ray, or a UserError that says how to get it; `purpose` is what needs it."""
    try:
        import ray
    except ImportError:
        raise UserError(f"{purpose} needs Ray", "pip install 'starbucks-retrieval[ray]'") from None
    return ray


@contextlib.contextmanager
def cluster(ray: Any, address: str | None = None, cpus: int = 1) -> Iterator[None]:
    """The cluster of this program, of `address`, of the environment's RAY_ADDRESS, or one that nobody else sees.

    The last one lives on this machine as long as the block, with `cpus` CPUs at least. Raises UserError for a cluster
    that cannot be reached.
    """
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            count = max(cpus, os.cpu_count() or 1)
            ray.init(address="local", _node_ip_address="127.0.0.1", include_dashboard=False, num_cpus=count, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray at {address or 'this machine'}: {error}", "start one (ray start --head), or leave the address out"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def user_error(error: BaseException | None) -> UserError | None:
    """The UserError of a worker behind what Ray made of it, or None."""
    while error is not None:
        if isinstance(error, UserError):
            return UserError(error.what, error.hint)
        error = getattr(error, "cause", None) or error.__cause__
    return None
