"""A job: one call of a stage, with a name made of everything that its output depends on."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from starbucks_retrieval.cli.words import command, flag_words
from starbucks_retrieval.data.ir_datasets import expand_pattern
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import file_digest
from starbucks_retrieval.version import __version__

RECORDS = ".starbucks-reproduce"  # folder of the records in that of a job
LIBRARY = "reproduce.sentence_transformers"  # the stage of a training by sentence-transformers
_OUTPUTS = {"encode": "stores", "search": "runs"} | dict.fromkeys(("pretrain", "fit", "train", LIBRARY), "model")
_OUTPUT_FLAGS = {"model": "output_dir", "stores": "encode_output_path", "runs": "save_ranking_to"}
_NO_EFFECT = ("shard_size", "max_memory", "save_steps", "logging_steps")  # flags that change no result
_LARGE = 64 << 20  # bytes of a file whose content is not read for the name of a job


@dataclass(frozen=True)
class Job:
    """One call of a stage.

    Attributes:
        stage: pretrain, fit, train, grid, sts, encode, search, evaluate or LIBRARY: a module of this package.
        flags: Its flags without its output. A Job stands for its output, such as a model, and Files for some of its files.
        inputs: (path, digest) of each local file or folder that the flags name; the path is not part of the name.
    """

    stage: str
    flags: Mapping[str, Any]
    inputs: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        """The stage and a digest of everything that the output depends on: equal jobs of all tables are one."""
        flags = {name: _named(value) for name, value in sorted(self.flags.items()) if name not in _NO_EFFECT}
        text = json.dumps([__version__, self.stage, flags], sort_keys=True)
        for path, digest in self.inputs:
            text = text.replace(path, digest)
        return f"{self.stage}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"

    @property
    def needs(self) -> list[Job]:
        """The jobs whose outputs it reads."""
        found = (value.job if isinstance(value, Files) else value for value in self.flags.values())
        return [value for value in found if isinstance(value, Job)]

    @property
    def output(self) -> str:
        """The name of the output in the job's folder."""
        return _OUTPUTS.get(self.stage, "results.json")

    def folder(self, root: Path) -> Path:
        """Return the job's folder below the output folder of all jobs."""
        return root / "jobs" / self.id

    def typed(self, root: Path) -> dict[str, Any]:
        """Return all flags as they are typed."""
        flags = {name: _typed(value, root) for name, value in self.flags.items()}
        return flags | {_OUTPUT_FLAGS.get(self.output, "output"): str(self.folder(root) / self.output)}

    def command(self, root: Path) -> str:
        """Return the command line."""
        if self.stage == LIBRARY:
            return shlex.join(["python", "-m", f"starbucks_retrieval.{LIBRARY}", *flag_words(self.typed(root))])
        return command(self.stage, self.typed(root))


@dataclass(frozen=True)
class Files:
    """Files in the output of a job, as the value of a flag."""

    job: Job
    names: tuple[str, ...]


def _named(value: Any) -> Any:
    """Return the value of a flag as the name of a job has it."""
    if isinstance(value, Files):
        return [value.job.id, *value.names]
    return value.id if isinstance(value, Job) else value


def _typed(value: Any, root: Path) -> Any:
    """Return the value of a flag as it is typed."""
    if isinstance(value, Files):
        return [f"{_typed(value.job, root)}/{name}" for name in value.names]
    if isinstance(value, Job):
        return str(value.folder(root) / value.output)
    return "false" if value is False else value


def find_backbone(name: str, data_dir: Path) -> str:
    """Return the folder or hub name of a backbone.

    Args:
        name: `package:` and a Python package with a MODEL_DIR; a folder below `data_dir`; or a hub name.
        data_dir: The folder of the data.

    Raises:
        UserError: The package is not installed.
    """
    if name.startswith("package:"):
        package = name.removeprefix("package:")
        if importlib.util.find_spec(package) is None:
            raise UserError(
                f"the package {package}, a model, is not installed", f"pip install {package.replace('_', '-')}"
            )
        return str(importlib.import_module(package).MODEL_DIR)
    return str(data_dir / name) if (data_dir / name).is_dir() else name


def find_sets(path: str, data_dir: Path, must_exist: bool) -> list[str]:
    """Return the data sets that a path stands for: several, if it ends with `/*`.

    Args:
        path: As for `find_data`, or a pattern: all folders of a folder, or all short names that match.
        data_dir: The folder of the data.
        must_exist: Whether a missing file is an error.

    Raises:
        UserError: As `find_data`, or there is no folder in the folder.
    """
    if not path.endswith("/*"):
        return [find_data(path, data_dir, must_exist)]
    if not path.startswith("./"):
        return expand_pattern(path)
    folder = Path(find_data(path.removesuffix("/*"), data_dir, must_exist))
    found = sorted(str(one) for one in folder.glob("*") if one.is_dir())
    if must_exist and not found:
        raise UserError(f"no data sets in {folder}", "each sub-folder is a data set, with corpus, queries and qrels")
    return found


def find_data(path: str, data_dir: Path, must_exist: bool) -> str:
    """Return a path below the folder of the data, or a short or hub name as it is.

    Args:
        path: A path that begins with `./`, relative to `data_dir`, or a name.
        data_dir: The folder of the data.
        must_exist: Whether a missing file is an error.

    Raises:
        UserError: `path` begins with `./`, and the file does not exist but must.
    """
    if not path.startswith("./"):
        return path
    found = data_dir / path[2:]
    if must_exist and not found.exists():
        raise UserError(f"no {path[2:]} in {data_dir}", "name the folder of the data sets with --data_dir")
    return str(found)


@cache
def state_of(path: str) -> str:
    """Return a digest of the names and contents of a file or folder.

    Of files above 64 MiB the size and the time count instead of the content.

    Returns:
        16 hex digits.
    """
    root = Path(path)
    files = [root] if root.is_file() else sorted(one for one in root.rglob("*") if one.is_file())
    parts = []
    for one in files:
        found = one.stat()
        content = f"{found.st_size} {found.st_mtime_ns}" if found.st_size > _LARGE else file_digest(one)
        parts.append(f"{one.relative_to(root).as_posix()} {content}")
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def local_paths(value: Any) -> list[str]:
    """Return the local files and folders that the value of a flag names.

    Args:
        value: A string or a list of them; each may be `NAME=path`. Other values name nothing.

    Returns:
        The paths that contain a slash and exist.
    """
    words = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    tails = [str(word).partition("=")[2] or str(word) for word in words]
    return [one for one in tails if "/" in one and Path(one).exists()]
