"""Convert the pickles of Tevatron and ielab/Starbucks to stores."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from starbucks_retrieval.cli import as_flag_values, flag, progress
from starbucks_retrieval.data.records import repeated
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import file_digest
from starbucks_retrieval.parsing import shown
from starbucks_retrieval.provenance import describe
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store.locate import output_folder
from starbucks_retrieval.store.safe_pickle import load_embeddings
from starbucks_retrieval.store.spec import StoreSpec
from starbucks_retrieval.store.writer import StoreWriter


@dataclass(frozen=True)
class _File:
    """The shape, type and checksum of a file."""

    path: Path
    rows: int
    dim: int
    dtype: np.dtype
    digest: str


@dataclass
class ImportArguments:
    """Importing."""

    path: list[str] = flag(None, "pickles of (vectors, ids), in the order of the corpus", required=True)
    output: str = flag("", "folder for the store, one sub-folder for each size", required=True)
    layer: int = flag(None, "the layer that the vectors are from: usually the model's last", required=True)
    dim: int | None = flag(None, "their dim, to be checked (default: that of the files)")
    encode_is_query: bool = flag(False, "the vectors are of queries")
    name: str | None = flag(
        None,
        "a name for the model. A pickle does not say which weights made it, so search compares this name: use the same "
        "name for queries and passages of one model, and different names for different models",
    )
    fingerprint: str | None = flag(None, "instead of --name: the fingerprint of the weights, where it is known")
    pooling: Literal["cls", "mean", "last"] = flag("cls", "how the model pooled; search compares it")
    normalize: bool = flag(False, "the vectors have length 1; this is checked")
    store_dtype: Literal["float16", "float32"] | None = flag(
        None, "type of the stored numbers (default: as in the files)"
    )
    shard_size: int = flag(16384, "rows of a shard")
    overwrite: bool = flag(False, "replace another store in the output folder")

    def __post_init__(self) -> None:
        as_flag_values(self)

    def checked_fingerprint(self) -> str:
        """Return the fingerprint that the store records."""
        if bool(self.name) == bool(self.fingerprint):
            raise UserError(
                "--name is missing" if not self.name else "--name and --fingerprint contradict each other",
                "the pickle does not say which model made it: use the same --name for queries and passages of one model",
            )
        return self.fingerprint or f"imported-{self.name}"


def import_pickles(arguments: ImportArguments) -> dict[str, Any]:
    """Write one store from pickles of (vectors [rows, dim], ids), in the order given.

    Nothing in a pickle is executed (see `safe_pickle`). The files are read twice, one in memory at a time.

    Args:
        arguments: The flags of `starbucks store import`.

    Returns:
        Figures: output, size, kind, rows, files, dtype, fingerprint, shards_written.

    Raises:
        UserError: A file is not such a pickle, or an id occurs twice.
    """
    fingerprint = arguments.checked_fingerprint()
    reader = _Reader()
    found = _survey([Path(file) for file in arguments.path], reader, arguments.dim, arguments.normalize)
    size = Size(arguments.layer, found[0].dim)
    file_dtype = "float16" if all(file.dtype == np.float16 for file in found) else "float32"
    spec = StoreSpec(
        kind="queries" if arguments.encode_is_query else "passages",
        size=size,
        pooling=arguments.pooling,
        normalize=arguments.normalize,
        prefix="",
        separator="",
        max_length=0,  # unknown
        fingerprint=fingerprint,
        compute_dtype=f"imported-{found[0].dtype}",
        store_dtype=arguments.store_dtype or file_dtype,
        data_digest=hashlib.blake2b("".join(file.digest for file in found).encode(), digest_size=16).hexdigest(),
        data_count=sum(file.rows for file in found),
        shard_size=arguments.shard_size,
        model_name=arguments.name or "",
        data_name=", ".join(file.path.name for file in found),
        provenance=describe({"imported": [file.digest for file in found]}),
    )
    with StoreWriter.open(output_folder(arguments.output, size), spec, arguments.overwrite) as writer:
        missing = writer.missing_shards()
        for shard in progress(missing, len(missing), "shards", "import"):
            writer.write_shard(shard, *_rows(found, reader, *spec.shard_rows(shard)))
        writer.finish()
    return {
        "output": str(arguments.output),
        "size": str(size),
        "kind": spec.kind,
        "rows": spec.rows,
        "files": len(found),
        "dtype": spec.store_dtype,
        "fingerprint": fingerprint,
        "shards_written": len(missing),
    }


class _Reader:
    """Read pickles, keeping the last one in memory."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._content: tuple[np.ndarray, list[Any]] = (np.empty((0, 0)), [])

    def __call__(self, path: Path) -> tuple[np.ndarray, list[Any]]:
        if path != self._path:
            self._path, self._content = None, (np.empty((0, 0)), [])  # free one before the next is read
            self._content = load_embeddings(path)
            self._path = path
        return self._content


def _survey(paths: list[Path], reader: _Reader, dim: int | None, normalize: bool) -> list[_File]:
    found: list[_File] = []
    hashes = array("q")
    for path in paths:
        vectors, ids = reader(path)
        wanted = dim if dim is not None else found[0].dim if found else vectors.shape[1]
        if vectors.shape[1] != wanted:
            why = "--dim" if dim is not None else str(paths[0])
            raise UserError(f"{path} has {vectors.shape[1]} dimensions, {why} says {wanted}", "import it separately")
        if normalize:
            _check_lengths(path, vectors)
        hashes.extend(hash(_text(docid, path)) for docid in ids)
        found.append(_File(path, len(vectors), vectors.shape[1], vectors.dtype, file_digest(path)))
    _refuse_duplicates(found, reader, repeated(hashes))
    return found


def _check_lengths(path: Path, vectors: np.ndarray) -> None:
    for start in range(0, len(vectors), 4096):
        lengths = np.linalg.norm(vectors[start : start + 4096].astype(np.float32), axis=1)
        if len(bad := np.flatnonzero(np.abs(lengths - 1) > 0.01)):
            raise UserError(
                f"{path} is not normalised: vector {start + bad[0]} has length {lengths[bad[0]]:.3f}",
                "leave out --normalize",
            )


def _text(docid: Any, path: Path) -> str:
    if isinstance(docid, bytes):
        docid = docid.decode("utf-8", "surrogateescape")
    if isinstance(docid, bool) or not isinstance(docid, (str, int)) or docid == "":
        raise UserError(f"{path} has the id {shown(docid)}", "ids are strings or whole numbers")
    return str(docid)


def _refuse_duplicates(found: list[_File], reader: _Reader, suspects: set[int]) -> None:
    """Raise UserError if an id occurs twice. `suspects` are the hashes of several ids, which are read again."""
    first: dict[str, str] = {}
    for file in found if suspects else []:
        for row, docid in enumerate(reader(file.path)[1]):
            text = _text(docid, file.path)
            if hash(text) not in suspects:
                continue
            if text in first:
                raise UserError(
                    f"the id {text!r} occurs twice: {first[text]}, and {file.path} row {row}",
                    "name each file once; files must not overlap",
                )
            first[text] = f"{file.path} row {row}"


def _rows(found: list[_File], reader: _Reader, start: int, stop: int) -> tuple[list[str], np.ndarray]:
    """Return the ids and vectors of the rows [start, stop) of all files, joined."""
    ids: list[str] = []
    vectors: list[np.ndarray] = []
    first = 0
    for file in found:
        low, high = max(start - first, 0), min(stop - first, file.rows)
        if low < high:
            content = reader(file.path)
            ids += [_text(docid, file.path) for docid in content[1][low:high]]
            vectors.append(content[0][low:high].copy())  # a view would keep this file in memory while the next is read
        first += file.rows
    return ids, vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
