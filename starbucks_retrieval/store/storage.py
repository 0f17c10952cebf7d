"""File access for stores: local folders, and URLs that fsspec supports (s3://, gs://, hf://, memory://).

Local files are written atomically by `files`; a remote object is put in one request, which is atomic by itself. A URL is
a UPath, which has the methods of Path; upath is imported only for text with `://`. Remote arrays are copied into a local
cache, so that they can be memory-mapped.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from starbucks_retrieval import files
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.leftovers import temporaries
from starbucks_retrieval.parsing import MAX_BYTES

if TYPE_CHECKING:
    from upath import UPath

PathLike: TypeAlias = "str | os.PathLike[str] | UPath"

# The package that each kind of URL needs; fsspec's own message serves for all others.
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_SECONDS = 15  # that a server of ftp may take to answer


def as_path(path: PathLike) -> Path:
    """Return a Path for local paths and file:// URLs, and a UPath for any other URL.

    Args:
        path: A local path or a URL, as text or as a path object.

    Raises:
        UserError: The package for that kind of URL is not installed, or the kind is unknown.

    Example:
        >>> as_path("emb/passages").name
        'passages'
    """
    name = path
    if isinstance(path, str) and "://" in path:
        path = _open_url(path)
    if isinstance(path, (str, os.PathLike)):
        return Path(path)
    _file_system(path, name)
    return cast(Path, path)


def is_remote(path: Path) -> bool:
    """Return whether a path is a URL.

    Args:
        path: A path from `as_path`.

    Example:
        >>> is_remote(as_path("emb/passages"))
        False
    """
    return not isinstance(path, Path)


def exists(path: Path) -> bool:
    """Return whether there is a file or folder. Raises UserError if a URL cannot be reached."""
    with _remote_errors(path):
        return path.exists()


def is_folder(path: Path) -> bool:
    """Return whether there is a folder. Raises UserError if a URL cannot be reached."""
    with _remote_errors(path):
        return path.is_dir()


def matching(pattern: Path) -> list[Path]:
    """Return the files and folders that match a glob pattern, sorted by name. Raises as `exists` does."""
    if not is_remote(pattern):
        return [Path(match) for match in sorted(glob.glob(str(pattern)))]
    found = cast(Any, pattern)
    with _remote_errors(pattern):
        names = sorted(found.fs.glob(found.path))
        return [cast(Path, type(found)(found.fs.unstrip_protocol(name), **found.storage_options)) for name in names]


def entries(folder: Path) -> dict[str, int | None]:
    """List a folder: the names in it, and the lengths of its files.

    Args:
        folder: A path from `as_path`.

    Returns:
        name → length in bytes, or None for a folder. Empty if the folder does not exist.

    Raises:
        UserError: A URL cannot be reached.
    """
    if is_remote(folder):
        return _objects(folder)
    try:
        with os.scandir(folder) as listing:
            return {entry.name: _length(entry) for entry in listing}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _length(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat().st_size if entry.is_file() else None
    except FileNotFoundError:  # removed since it was listed
        return None


def _objects(folder: Any) -> dict[str, int | None]:
    with _remote_errors(folder):
        try:
            listing = folder.fs.ls(folder.path, detail=True)
        except FileNotFoundError:
            return {}
    names = {entry["name"].rstrip("/"): entry for entry in listing}
    names.pop(folder.path.rstrip("/"), None)  # some list the folder itself
    return {
        name.rpartition("/")[2]: entry["size"] if entry["type"] == "file" else None for name, entry in names.items()
    }


def read_text(path: Path) -> str:
    """Return the text of a small UTF-8 file.

    Args:
        path: A path from `as_path`.

    Raises:
        OSError: A local file cannot be read, or the file is missing.
        UnicodeDecodeError: It is not UTF-8.
        UserError: It has more than 64 MB, or a URL cannot be reached.
    """
    with _remote_errors(path), path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UserError(f"{path} has more than {MAX_BYTES >> 20} MB, which no such file needs", "write it again")
    return content.decode("utf-8")


def digest(path: Path) -> str:
    """Return the blake2b checksum of a local or remote file, 32 hex digits."""
    if not is_remote(path):
        return files.file_digest(path)
    with _remote_errors(path), path.open("rb") as handle:
        return files.stream_digest(cast(Any, handle))


def local_file(path: Path, length: int, checksum: str) -> Path:
    """Return a local path for a file: `path` itself if it is local, else a copy in the cache.

    Args:
        path: A local path, or a URL.
        length: The length of the file in bytes.
        checksum: Its blake2b checksum, 32 hex digits, which also names the copy.

    Raises:
        UserError: The remote file is missing or does not match its checksum, or the cache is full.
    """
    if not is_remote(path):
        return path
    copy = files.cache_folder() / checksum[:2] / f"{checksum}{path.suffix}"
    source = cast(Any, path)
    try:
        if copy.is_file() and copy.stat().st_size == length:
            return copy
        with files.atomic_path(copy) as temporary:
            with _remote_errors(path):
                source.fs.get_file(source.path, str(temporary))
            if files.file_digest(temporary) != checksum:
                raise UserError(f"{path} does not match its checksum", "run the command that wrote it again")
    except FileNotFoundError:
        raise UserError(f"{path} is missing", "run the command that wrote it again") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be copied to {files.cache_folder()}: {error.strerror}",
            "free some space there, or set STARBUCKS_CACHE to another folder",
        ) from None
    return copy


def make_folder(folder: Path) -> None:
    """Create a local folder and its parents; object stores have no folders.

    Raises:
        UserError: The folder or a parent is a file.
        OSError: It cannot be created for another reason, such as missing permission.
    """
    if is_remote(folder):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        raise UserError(f"{folder} cannot be created: {file} is not a folder", "choose another output folder") from None


def write_file(folder: Path, name: str, content: Sequence[bytes | memoryview]) -> None:
    """Write pieces of bytes as one file, atomically.

    Args:
        folder: The folder of the store, which exists if it is local.
        name: The name of the file.
        content: The bytes, in order.

    Raises:
        OSError: A local file cannot be written; the error names it.
        UserError: A URL cannot be reached.
    """
    if is_remote(folder):
        target = cast(Any, folder / name)
        with _remote_errors(folder):
            target.fs.pipe_file(target.path, b"".join(content))
        return
    with files.atomic_writer(folder / name, remove_leftovers=False) as handle:  # StoreWriter does
        for piece in content:
            handle.write(piece)


def write_json(folder: Path, name: str, content: Any) -> None:
    """Write what json.dumps accepts as files.write_json does, to the same bytes; raises what `write_file` does."""
    write_file(folder, name, [files.json_bytes(content)])


def remove(folder: Path, name: str) -> None:
    """Remove a file and its temporary files, if they are there."""
    if not is_remote(folder):
        for path in (folder / name, *temporaries(folder / name)):
            path.unlink(missing_ok=True)
        return
    with _remote_errors(folder), suppress(FileNotFoundError):
        cast(Any, folder).fs.rm_file(cast(Any, folder / name).path)


def remove_temporaries(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Remove those files of a store that are temporary; a killed process leaves them. A URL has none and is not listed."""
    if not is_remote(folder):
        for name in filter(is_ours, entries(folder)):
            if name.endswith(".tmp"):
                (folder / name).unlink(missing_ok=True)


@contextmanager
def _remote_errors(path: Path) -> Iterator[None]:
    """Turn the errors of a remote file system into UserError, except for missing files and errors of the local disk."""
    if not is_remote(path):
        yield
        return
    try:
        _file_system(path).invalidate_cache()  # other processes write there too
        yield
    except (UserError, FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise  # the local disk, during a copy
        raise _unreachable(path, error) from error


def _open_url(text: str) -> Any:
    """Return a URL as a UPath. Raises UserError if a package is missing, or the URL is malformed."""
    try:
        from upath import UPath
    except ImportError:
        raise UserError(f"{text} is a URL, which needs another package", "pip install universal_pathlib") from None
    options: dict[str, Any] = {"timeout": _SECONDS} if text.startswith("ftp://") else {}
    try:
        return UPath(text, **options)
    except ValueError as error:
        raise UserError(f"{text}: {error}", "use a local path, or a URL such as s3://bucket/folder") from None


def _file_system(path: Any, name: Any = None) -> Any:
    """Return the file system of a UPath; `name` is the URL as the user wrote it. Raises UserError if that fails."""
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
        raise _unreachable(name or path, error) from error


def _unreachable(path: Any, error: Exception) -> UserError:
    return UserError(
        f"{path} cannot be reached: {type(error).__name__}: {' '.join(str(error).split())}",
        "check the address, the network and your credentials, then run the same command again",
    )
