"""Where stores lie: local folders, or URLs that fsspec knows (s3://, gs://, hf://, memory://).

What differs between the two is here and in `cache`: a local file is written under a temporary name, flushed and renamed;
an object elsewhere is put in one piece and is there whole or not at all. A URL is a UPath, which answers to the methods
of Path; upath is imported for text with `://` only.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from starbucks_retrieval import files
from starbucks_retrieval.errors import UserError

if TYPE_CHECKING:
    from upath import UPath

PathLike: TypeAlias = "str | os.PathLike[str] | UPath"

# What each kind of URL needs installed; fsspec's own message serves for all others.
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


def as_path(where: PathLike) -> Path:
    """A Path for local text, paths and file:// URLs; for any other URL its UPath, which does as a Path.

    Raises UserError when the package for that kind of URL is not installed, or no such kind is known.
    """
    if isinstance(where, str) and "://" in where:
        where = _url(where)
    if isinstance(where, (str, os.PathLike)):
        return Path(where)
    _file_system(where)
    return cast(Path, where)


def is_remote(path: Path) -> bool:
    """Whether a place is anything but a local path."""
    return not isinstance(path, Path)


def exists(path: Path) -> bool:
    """Whether there is a file or folder."""
    with _reaching(path):
        return path.exists()


def is_folder(path: Path) -> bool:
    """Whether there is a folder."""
    with _reaching(path):
        return path.is_dir()


def matching(pattern: Path) -> list[Path]:
    """What a pattern matches, sorted by name."""
    if not is_remote(pattern):
        return [Path(match) for match in sorted(glob.glob(str(pattern)))]
    found = cast(Any, pattern)
    with _reaching(pattern):
        names = sorted(found.fs.glob(found.path))
        return [cast(Path, type(found)(found.fs.unstrip_protocol(name), **found.storage_options)) for name in names]


def same_path(one: Path, other: Path) -> bool:
    """Whether two places are one."""
    if is_remote(one) or is_remote(other):
        return str(one).rstrip("/") == str(other).rstrip("/")
    return one.resolve() == other.resolve()


def refuse_source(target: Path, sources: Iterable[Path]) -> None:
    """Raise UserError when a folder to be written is one that is read."""
    if any(same_path(target, source) for source in sources):
        raise UserError(f"{target} would be read and written at once", "name another output folder")


def entries(folder: Path) -> dict[str, int | None]:
    """Name and length in bytes of all that is in a folder, None for what is no file; nothing for an absent folder."""
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
    with _reaching(folder):
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
    """The text of a small UTF-8 file. Raises OSError or UnicodeDecodeError as Path.read_text does."""
    with _reaching(path):
        content = path.read_bytes()
    return content.decode("utf-8")


def digest(path: Path) -> str:
    """blake2b of a file where it lies, 32 hex digits."""
    if not is_remote(path):
        return files.file_digest(path)
    with _reaching(path), path.open("rb") as handle:
        return files.stream_digest(cast(Any, handle))


def download(path: Path, target: Path) -> None:
    """Copy a remote file to a local one. A failure to write here is an OSError that names `target`."""
    source = cast(Any, path)
    with _reaching(path):
        source.fs.get_file(source.path, str(target))


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where folders are things of their own."""
    if is_remote(folder):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        raise UserError(f"{folder} cannot be made: {file} is no folder", "choose another output folder") from None


def write_file(folder: Path, name: str, parts: Sequence[bytes | memoryview]) -> None:
    """Write a file atomically. A local failure is an OSError that names the file."""
    if is_remote(folder):
        target = cast(Any, folder / name)
        with _reaching(folder):
            target.fs.pipe_file(target.path, b"".join(parts))
        return
    with files.atomic_writer(folder / name) as handle:
        for part in parts:
            handle.write(part)


def write_json(folder: Path, name: str, content: Any) -> None:
    """Write JSON as files.write_json does, to the same bytes."""
    write_file(folder, name, [files.json_bytes(content)])


def remove(folder: Path, name: str) -> None:
    """Remove a file and its temporary files, if they are there."""
    if not is_remote(folder):
        for path in (folder / name, *files.temporaries(folder / name)):
            path.unlink(missing_ok=True)
        return
    target = cast(Any, folder / name)
    with _reaching(folder):
        try:
            target.fs.rm_file(target.path)
        except FileNotFoundError:
            return


def remove_temporaries(folder: Path, names: Iterable[str]) -> None:
    """Remove those of the named files that killed processes left under temporary names; a URL has none."""
    if not is_remote(folder):
        for name in names:
            if name.endswith(".tmp"):
                (folder / name).unlink(missing_ok=True)


def _url(text: str) -> Any:
    try:
        from upath import UPath
    except ImportError:
        raise UserError(f"{text} is a URL, which needs a package", "pip install universal_pathlib") from None
    try:
        return UPath(text)
    except ValueError as error:
        raise UserError(f"{text}: {error}", "take a local path, or a URL such as s3://bucket/folder") from None


def _file_system(where: Any) -> Any:
    try:
        return where.fs
    except ImportError as error:
        package = _PACKAGES.get(where.protocol)
        hint = f"pip install {package}" if package else f"install what is missing: {error}"
        raise UserError(f"{where} cannot be reached without another package", hint) from None
    except ValueError as error:
        raise UserError(f"{where}: {error}", "take a local path, or a URL such as s3://bucket/folder") from None


@contextmanager
def _reaching(path: Path) -> Iterator[None]:
    """Turn whatever a remote file system raises, but for plain OSErrors of absence and the disk, into a UserError."""
    if not is_remote(path):
        yield
        return
    try:
        _file_system(path).invalidate_cache()  # others write there, too
        yield
    except (UserError, FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise  # the local end of a copy
        raise UserError(
            f"{path} cannot be reached: {type(error).__name__}: {' '.join(str(error).split())}",
            "check the address, the network and your credentials, then run the same command again",
        ) from error
