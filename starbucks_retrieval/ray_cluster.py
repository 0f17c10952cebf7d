"""Connection to a Ray cluster, and user errors that cross it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from starbucks_retrieval.errors import UserError


def import_ray(purpose: str) -> Any:
    """Return the module ray.

    Args:
        purpose: The flag or function that needs it, for the message.

    Raises:
        UserError: Ray is not installed; the hint is the command that installs it.
    """
    try:
        import ray
    except ImportError:
        raise UserError(f"{purpose} needs Ray", "pip install 'starbucks-retrieval[ray]'") from None
    return ray


@contextlib.contextmanager
def cluster(ray: Any, address: str | None = None, cpus: int = 1) -> Iterator[None]:
    """Connect to a Ray cluster for the duration of a `with` block.

    In this order: the cluster that this process is connected to, the one at `address`, the one in RAY_ADDRESS, or a
    private one on this machine that ends with the block.

    Args:
        ray: The module, from `import_ray`.
        address: The address of a cluster.
        cpus: The least number of CPUs of a private cluster.

    Raises:
        UserError: The cluster cannot be reached.
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
            f"no Ray at {address or 'this machine'}: {error}", "start one (ray start --head), or omit the address"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def user_error(error: BaseException | None) -> UserError | None:
    """Return the UserError that a worker raised from the exception that Ray wraps it in.

    Args:
        error: The exception; the errors that caused it are searched too.

    Returns:
        A new UserError with the same problem and hint, or None if there is none.

    Example:
        >>> error = RuntimeError("a task failed")
        >>> error.__cause__ = UserError("no such file: corpus.tsv", "check the path")
        >>> user_error(error).what
        'no such file: corpus.tsv'
    """
    while error is not None:
        if isinstance(error, UserError):
            return UserError(error.what, error.hint)
        error = getattr(error, "cause", None) or error.__cause__
    return None
