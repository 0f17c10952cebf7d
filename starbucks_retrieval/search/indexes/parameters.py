"""Named numbers that tune an index: which ones fit it, and how FAISS is told of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.search.engines.exact import import_faiss


def parse_parameters(text: str | None) -> dict[str, float]:
    """Read `nprobe=16,efSearch=64`; whole numbers are ints. Raises UserError for anything else."""
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
    """A FAISS index and the indexes inside it, each as its own class. The outermost must outlive them."""
    index = import_faiss().downcast_index(index)
    yield index
    for name in ("index", "base_index", "refine_index", "quantizer", "storage"):
        inner = getattr(index, name, None)
        if inner is not None:
            yield from layers(inner)


def construction_parameters(index: Any) -> dict[str, float]:
    """Parameters of building that fit an index, with the values it has."""
    fitting: dict[str, float] = {}
    for layer in layers(index):
        if hasattr(layer, "hnsw"):
            fitting["efConstruction"] = layer.hnsw.efConstruction
        if hasattr(layer, "nlist"):
            fitting["niter"] = layer.cp.niter
    return fitting


def set_construction(index: Any, values: Mapping[str, float], factory: str) -> dict[str, float]:
    """Set parameters of building. Returns all that the index then has; raises UserError for one that does not fit."""
    checked = check(values, construction_parameters(index), factory, "building")
    for layer in layers(index):
        if hasattr(layer, "hnsw"):
            layer.hnsw.efConstruction = checked["efConstruction"]
        if hasattr(layer, "nlist"):
            layer.cp.niter = checked["niter"]
    return checked


def search_parameters(index: Any) -> dict[str, float]:
    """Parameters of search that fit an index, with the values FAISS gives them."""
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
    """FAISS's own object for `values`, nested as the index is; None for an index that takes none.

    Passed with each search instead of set in the index: two searches at once do not get in each other's way.
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
        own = {"nprobe": int(values["nprobe"]), "max_codes": int(values["max_codes"])}
        if "quantizer_efSearch" in values:
            own["quantizer_params"] = faiss.SearchParametersHNSW(efSearch=int(values["quantizer_efSearch"]))
        return faiss.SearchParametersIVF(**own)
    if hasattr(index, "hnsw"):
        return faiss.SearchParametersHNSW(efSearch=int(values["efSearch"]))
    return None


def check(
    values: Mapping[str, float] | None, fitting: Mapping[str, float], factory: str, what: str
) -> dict[str, float]:
    """`fitting` with `values` in their places. Raises UserError for a name that does not fit, or a number below 1."""
    for name, value in (values or {}).items():
        if name not in fitting:
            listed = ", ".join(f"{known} ({now:g})" for known, now in fitting.items())
            raise UserError(
                f"{name} is no parameter of {what} that {factory} takes",
                f"it takes {listed}" if listed else "it takes none: leave them out",
            )
        least = 0 if name == "max_codes" else 1  # 0 there: no limit
        whole = isinstance(fitting[name], int)
        if not least <= value < 2**31 or (whole and value != int(value)):
            kind = "a whole number" if whole else "a number"
            raise UserError(f"{name}={value:g} does not do", f"give {kind} of {least} or more")
    return {**fitting, **(values or {})}
