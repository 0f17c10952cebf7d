"""What a user should know about a chosen size: whether the model was made for it, and how cheap a narrower full depth is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starbucks_retrieval.choose.candidates import BYTES, SizeCandidate
from starbucks_retrieval.metrics.results import Results
from starbucks_retrieval.sizes import Sizes

_KEPT = 0.9  # of the quality of the full size, to be worth a recommendation
_CHEAP = 0.5  # of its bytes, at most


def advise(
    best: SizeCandidate,
    candidates: Sequence[SizeCandidate],
    fitting: Sequence[SizeCandidate],
    files: Mapping[str, Results],
    measure: str,
) -> list[str]:
    """Return sentences about the choice, none of which may apply.

    Args:
        best: The chosen size.
        candidates: All measured sizes.
        fitting: Those within the budgets.
        files: The result files by name; `grid` and `sts` record the sizes that the model was made for.
        measure: The measure of quality.
    """
    return [*_untrained(best, files), *_width_cut(candidates, fitting, measure)]


def _untrained(best: SizeCandidate, files: Mapping[str, Results]) -> list[str]:
    more = next((results.more for results in files.values() if results.more.get("model_sizes")), None)
    if more is None:
        return []
    made_for, layers = Sizes.parse(str(more["model_sizes"])), more.get("fitted_layers", [])
    chosen = dict.fromkeys((best.size, best.passage_size or best.size))
    other = [str(size) for size in chosen if size not in made_for.members and size.layer not in layers]
    if not other:
        return []
    names = " and ".join(other)
    return [
        f"{names} {'was' if len(other) == 1 else 'were'} neither trained nor fitted (the model has {made_for}): "
        "try fit, or train --sizes"
    ]


def _width_cut(candidates: Sequence[SizeCandidate], fitting: Sequence[SizeCandidate], measure: str) -> list[str]:
    """Recommend the narrowest size of all layers, if it keeps the quality and fewer layers of its width do not."""
    alone = [one for one in candidates if one.passage_size is None]
    if not alone:
        return []
    full = max(alone, key=lambda one: one.size)
    if any(one.size.dim > full.size.dim for one in alone):
        return []
    cuts = [
        one
        for one in fitting
        if one.passage_size is None and one.size.layer == full.size.layer
        if one.quality >= _KEPT * full.quality > 0 and one.costs[BYTES] <= _CHEAP * full.costs[BYTES]
    ]
    if not cuts:
        return []
    cut = min(cuts, key=lambda one: one.size)
    shallow = [one for one in alone if one.size.layer < cut.size.layer and one.size.dim <= cut.size.dim]
    if not shallow:
        return []
    rival = max(shallow, key=lambda one: one.quality)
    if rival.quality >= _KEPT * full.quality:
        return []
    kept, bytes_, less = (
        f"{value:.0%}"
        for value in (cut.quality / full.quality, cut.costs[BYTES] / full.costs[BYTES], rival.quality / full.quality)
    )
    return [
        f"cheap: {cut.name}, all layers and a cut width, keeps {kept} of the {measure} of {full.name} in {bytes_} of "
        f"its bytes; {rival.name} keeps {less}"
    ]
