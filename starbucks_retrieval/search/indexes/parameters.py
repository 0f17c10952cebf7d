"""Parameters of an index, by name: which ones it takes, and how they are passed to FAISS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.faiss import import_faiss


def parse_parameters(text: str | None) -> dict[str, float]:
    """Read `nprobe=16,efSearch=64`; whole numbers become ints. Raises UserError for anything else.

    Example:
        >>> parse_parameters("nprobe=16, k_factor=1.5")
        {'nprobe': 16, 'k_factor': 1.5}
    """
    values: dict[str, float] = {}
    for part in (text or "").split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not part.strip():
            continue
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not (name and equals and abs(value) < 2**31) or name in values:
            raise UserError(f"cannot read {part.strip()!r} as a parameter of an index", "write nprobe=16,efSearch=64")
        values[name] = int(value) if value == int(value) else value
    return values


def layers(index: Any) -> Iterator[Any]:
    """Iterate over a FAISS index and the indexes inside it, each downcast to its class. The outermost must outlive them."""
    index = import_faiss().downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index", "quantizer", "storage"):
        inner = getattr(index, name, None)
        if inner is not None:
            yield from layers(inner)


def construction_parameters(index: Any) -> dict[str, float]:
    """Return the parameters of building that an index takes, with their present values."""
    fitting: dict[str, float] = {}
    for layer in layers(index):
        if hasattr(layer, "hnsw"):
            fitting["efConstruction"] = layer.hnsw.efConstruction
        if hasattr(layer, "nlist"):
            fitting["niter"] = layer.cp.niter
    return fitting


def set_construction(index: Any, values: Mapping[str, float], factory: str) -> dict[str, float]:
    """Set parameters of building and return all of them. Raises UserError for one that the index does not take."""
    checked = check_parameters(values, construction_parameters(index), factory, "building")
    for layer in layers(index):
        if hasattr(layer, "hnsw"):
            layer.hnsw.efConstruction = checked["efConstruction"]
        if hasattr(layer, "nlist"):
            layer.cp.niter = checked["niter"]
    return checked


def search_parameters(index: Any) -> dict[str, float]:
    """Return the parameters of search that an index takes, with the defaults of FAISS."""
    fitting: dict[str, float] = {}
    quantizer = False
    for layer in layers(index):
        if hasattr(layer, "k_factor"):
            fitting["k_factor"] = layer.k_factor
        if hasattr(layer, "nprobe"):
            fitting |= {"nprobe": layer.nprobe, "max_codes": layer.max_codes}
            quantizer = True
        elif hasattr(layer, "hnsw"):
            fitting["quantizer_efSearch" if quantizer else "efSearch"] = layer.hnsw.efSearch
    return fitting


def search_object(index: Any, values: Mapping[str, float]) -> Any:
    """Return FAISS's search parameters for `values`, nested as the index is; None for an index that takes none.

    They are passed with each search, not set in the index, so that concurrent searches do not affect each other.
    """
    faiss = import_faiss()
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        inner = search_object(index.index, values)
        return None if inner is None else faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexRefine):
        inner = search_object(index.base_index, values)
        return faiss.IndexRefineSearchParameters(k_factor=values["k_factor"], base_index_params=inner)
    if hasattr(index, "nprobe"):
        options = {"nprobe": int(values["nprobe"]), "max_codes": int(values["max_codes"])}
        if "quantizer_efSearch" in values:
            options["quantizer_params"] = faiss.SearchParametersHNSW(efSearch=int(values["quantizer_efSearch"]))
        return faiss.SearchParametersIVF(**options)
    if hasattr(index, "hnsw"):
        return faiss.SearchParametersHNSW(efSearch=int(values["efSearch"]))
    return None


def check_parameters(
    values: Mapping[str, float] | None, fitting: Mapping[str, float], factory: str, what: str
) -> dict[str, float]:
    """Return `fitting` updated by `values`.

    Args:
        values: What the user gives, by name; None: nothing.
        fitting: The parameters that the index takes, with their defaults. Where the default is an int, only whole
            numbers are accepted.
        factory: The factory string, for the message.
        what: What they are for, for the message: `building` or `search`.

    Returns:
        A new dict with the names of `fitting`.

    Raises:
        UserError: A name is not in `fitting`, or a number is below 1 (`max_codes`: below 0), at least 2^31, or not
            whole where it must be.

    Example:
        >>> check_parameters({"nprobe": 16}, {"nprobe": 1, "max_codes": 0}, "IVF4096,Flat", "search")
        {'nprobe': 16, 'max_codes': 0}
    """
    for name, value in (values or {}).items():
        if name not in fitting:
            listed = ", ".join(f"{known} ({now:g})" for known, now in fitting.items())
            raise UserError(
                f"{factory} takes no parameter {name} for {what}",
                f"it takes {listed}" if listed else "it takes none: omit them",
            )
        least = 0 if name == "max_codes" else 1  # 0 there: no limit
        whole = isinstance(fitting[name], int)
        if not least <= value < 2**31 or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            raise UserError(f"{name}={value:g} is out of range", f"give {kind} of {least} or more")
    return {**fitting, **(values or {})}
