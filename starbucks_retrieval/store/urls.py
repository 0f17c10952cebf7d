"""URLs as paths: the file system behind each, and the errors of those that cannot be reached."""

from __future__ import annotations

from typing import Any

from starbucks_retrieval.errors import UserError

# The package that each kind of URL needs; fsspec's own message serves for all others.
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_SECONDS = 15  # that a server of ftp may take to answer


def open_url(text: str) -> Any:
    """Return a URL as a UPath.

    Args:
        text: The URL, such as s3://bucket/folder.

    Raises:
        UserError: universal_pathlib is not installed, or the URL is malformed.
    """
    try:
        from upath import UPath
    except ImportError:
        raise UserError(f"{text} is a URL, which needs another package", "pip install universal_pathlib") from None
    options: dict[str, Any] = {"timeout": _SECONDS} if text.startswith("ftp://") else {}
    try:
        return UPath(text, **options)
    except ValueError as error:
        raise UserError(f"{text}: {error}", "use a local path, or a URL such as s3://bucket/folder") from None


def file_system(path: Any, name: Any = None) -> Any:
    """Return the file system of a UPath.

    Args:
        path: The path.
        name: The URL as the user wrote it, for messages.

    Raises:
        UserError: It needs another package, or cannot be reached.
    """
    try:
        return path.fs
    except AttributeError:
        raise UserError(f"a path is needed, not something of type {type(path).__name__}", "name a folder") from None
    except ImportError as error:
        package = _PACKAGES.get(path.protocol)
        hint = f"pip install {package}" if package else f"install the missing package: {error}"
        raise UserError(f"{path} cannot be opened without another package", hint) from None
    except ValueError as error:
        raise UserError(f"{path}: {error}", "use a local path, or a URL such as s3://bucket/folder") from None
    except Exception as error:  # some file systems connect here, and each library has its own exceptions
        raise unreachable(name or path, error) from error


def unreachable(path: Any, error: Exception) -> UserError:
    """Return the error for a URL that a library raised an exception for."""
    return UserError(
        f"{path} cannot be reached: {type(error).__name__}: {' '.join(str(error).split())}",
        "check the address, the network and your credentials, then run the same command again",
    )
