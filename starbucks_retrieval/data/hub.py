"""Hugging Face data sets, streamed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from starbucks_retrieval.errors import UserError


def rows(
    name: str, part: str, config: str | None, split: str | None, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row number from 1, column → value) of each row from position `start` up to `stop`.

    Anything that goes wrong between here and the hub is a UserError: the network, the name, access rights.
    """
    try:
        yield from enumerate(
            islice(_choose_split(_load(name, part, config), name, part, split), start, stop), start + 1
        )
    except ImportError:
        raise UserError(f"{name} needs the package datasets", "pip install datasets") from None
    except UserError:
        raise
    except Exception as error:
        # The libraries under this raise dozens of types, and all of them mean that the data did not arrive.
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"cannot read the Hugging Face data set {name!r}: {line}",
            "check name, configuration and network; no file or folder has that name",
        ) from None


def _load(name: str, part: str, config: str | None) -> Any:
    import datasets

    try:
        return datasets.load_dataset(name, config, streaming=True)
    except ValueError as error:
        # BEIR's data sets keep corpus and queries apart as two configurations.
        if config is None and "config name is missing" in str(error).lower() and f"'{part}'" in str(error):
            return datasets.load_dataset(name, part, streaming=True)
        raise
    except RuntimeError as error:
        # Older data sets come with a loading script; the hub keeps a converted copy on a branch of its own.
        if "scripts are no longer supported" in str(error):
            return datasets.load_dataset(name, config, streaming=True, revision="refs/convert/parquet")
        raise


def _choose_split(splits: Any, name: str, part: str, split: str | None) -> Any:
    wanted = [split] if split else list(splits) if len(splits) == 1 else [part, "train"]
    for candidate in wanted:
        if candidate in splits:
            return splits[candidate]
    raise UserError(f"{name} has no split {wanted[-1]!r}", f"name one of {', '.join(map(str, splits))}")
