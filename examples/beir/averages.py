"""Print nDCG@10 of every set and size in one table per model, with averages over all sets and over those not in doubt.

    python averages.py results/*/*.json [--measure nDCG@10] [--without quora …] [--output averages.md]

A set is in doubt if the preflight of `starbucks evaluate` has a serious finding for any of its runs; `--without`
adds others. The forums of CQADupStack (sets cqadupstack-…) are averaged to one set first, as BEIR does, and as
`evaluate` and `report` do. An average is empty if a size lacks a set.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import atomic_writer
from starbucks_retrieval.metrics.results import Results, read_results, set_of, sets_of_parts
from starbucks_retrieval.sizes import Size

Figures = dict[str, dict[Size, float]]  # by set and size


def table(label: str, figures: Figures, doubted: set[str], without: Sequence[str]) -> str:
    """A markdown table: a row a set, then averages."""
    sizes = sorted({size for by_size in figures.values() for size in by_size})
    rows = [[f"{name} !" if name in doubted else name, *cells(by_size, sizes)] for name, by_size in figures.items()]
    kept = list(figures)
    averages = {"Average": kept}
    averages[f"w/o {', '.join(sorted(doubted & figures.keys()))} (!)"] = [one for one in kept if one not in doubted]
    averages[f"w/o {', '.join(without)}"] = [one for one in kept if one not in without]
    seen: list[list[str]] = []
    for title, sets in averages.items():
        if sets and sets not in seen:
            seen.append(sets)
            rows.append([f"**{title}**", *cells(mean([figures[name] for name in sets]), sizes)])
    head = [label, *map(str, sizes)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def cells(by_size: Mapping[Size, float], sizes: Sequence[Size]) -> list[str]:
    """Figures in four digits."""
    return [f"{by_size[size]:.4f}" if size in by_size else "" for size in sizes]


def mean(figures: Sequence[Mapping[Size, float]]) -> dict[Size, float]:
    """The mean at each size that all of `figures` have."""
    shared = [size for size in figures[0] if all(size in other for other in figures)]
    return {size: sum(one[size] for one in figures) / len(figures) for size in shared}


def gather(results: Sequence[Results], measure: str) -> dict[str, Figures]:
    """Figures by label, set and size."""
    found: dict[str, Figures] = {}
    for one in (part for whole in results for part in whole.by_label()):
        for cell in one.cells:
            if cell.measure == measure and cell.size is not None:
                found.setdefault(one.label, {}).setdefault(cell.dataset, {})[cell.size] = cell.value
    if not found:
        raise UserError(f"no file has {measure} at a size", "name the measure of `evaluate` with --measure")
    return {label: with_one_cqadupstack(figures) for label, figures in found.items()}


def with_one_cqadupstack(figures: Figures) -> Figures:
    """The forums as one set."""
    return {name: mean([figures[part] for part in parts]) for name, parts in sets_of_parts(figures).items()}


def flagged(results: Sequence[Results]) -> set[str]:
    """The sets in which some run has a serious finding; a set of forums with any of them."""
    names = {judged["name"] for one in results for judged in one.more.get("sets", []) if judged.get("flagged")}
    return names | {set_of(name) for name in names}


def main(argv: Sequence[str]) -> None:
    """Parse, read, print or write."""
    parser = argparse.ArgumentParser(description="Averages over sets, with and without those in doubt.")
    parser.add_argument("results", nargs="+", help="result files of starbucks evaluate")
    parser.add_argument("--measure", default="nDCG@10")
    parser.add_argument("--without", nargs="*", default=[], help="sets that a further average leaves out")
    parser.add_argument("--output", type=Path, help="markdown file (default: the screen)")
    arguments = parser.parse_args(argv)
    results = [read_results(path) for path in arguments.results]
    doubted = flagged(results)
    found = gather(results, arguments.measure)
    tables = [table(label, figures, doubted, arguments.without) for label, figures in found.items()]
    text = f"{arguments.measure}\n\n" + "\n\n".join(tables) + "\n"
    if arguments.output is None:
        print(text, end="")
        return
    with atomic_writer(arguments.output) as out:
        out.write(text.encode("utf-8"))


if __name__ == "__main__":
    sys.exit(run_command(main))
