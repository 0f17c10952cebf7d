"""Labels of runs in tables, pages and findings: one rule for `evaluate`, `report` and `browse`.

The label of a run is the first of these that is not empty:

1. the value of `--label`;
2. the file name without endings (`.gz .trec .run .txt`), without the size and the name of the set:
   `ours.scifact.L6-D128.trec` gives `ours`;
3. the tag in the file without the size (for names such as `L6-D128.trec`);
4. the name of the folder.

Two runs with one label for the same cell of a table get `folder/label`, and if that is equal, too, their paths. If a label
has several sizes, titles show the size after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, pair_name

ENDINGS = (".gz", ".trec", ".run", ".txt")
JOINTS = "._ -"  # characters between the words of a name; the dash is last for use in a character class


@dataclass(frozen=True)
class RunIdentity:
    """The parts from which the label of a run is made.

    Attributes:
        path: The run file.
        tag: Its tag, column six.
        size: Size of the embeddings, None if unknown.
        sets: Names of the sets that it is scored on.
        cells: The cells of a table that it fills, as words for messages (`at 6:128 on scifact`).
        passage_size: Size of the passages, if it differs from `size`.
    """

    path: str
    tag: str = ""
    size: Size | None = None
    sets: tuple[str, ...] = ()
    cells: frozenset[str] = frozenset()
    passage_size: Size | None = None


def run_labels(runs: Sequence[RunIdentity], given: str | Sequence[str] | None = None) -> list[str]:
    """Return the label of each run, by the rule of this module.

    Args:
        runs: The runs.
        given: A label for all runs, or one for each.

    Raises:
        UserError: The number of labels does not fit, or two runs have the same label in one cell.

    Example:
        >>> run_labels([RunIdentity("runs/ours.scifact.L6-D128.trec", size=Size(6, 128), sets=("scifact",))])
        ['ours']
    """
    if given:
        labels = [given] if isinstance(given, str) else list(given)
        if len(labels) not in (1, len(runs)):
            raise UserError(
                f"{len(labels)} labels for {len(runs)} runs", "give one --label for all runs or one for each"
            )
        labels = labels * len(runs) if len(labels) == 1 else labels
    else:
        labels = _make_distinct([_label_of_file(run) for run in runs], runs)
    taken: dict[tuple[str, str], RunIdentity] = {}
    for run, label in zip(runs, labels):
        for cell in sorted(run.cells):
            other = taken.setdefault((label, cell), run)
            if other.path != run.path:
                raise UserError(
                    f"{other.path} and {run.path} are both {label} {cell}",
                    "give each run its own --label, or score them in two calls",
                )
    return labels


def run_titles(labels: Sequence[str], sizes: Sequence[object]) -> list[str]:
    """Return the label of each run, followed by its size if the label has several sizes.

    Args:
        labels: The label of each run.
        sizes: The size of each run, as many as labels; None where it is unknown.

    Example:
        >>> run_titles(["ours", "ours", "bm25"], ["2:32", "6:128", None])
        ['ours 2:32', 'ours 6:128', 'bm25']
    """
    cells = set(zip(labels, sizes))
    several = {label for label in labels if sum(label == other for other, _ in cells) > 1}
    return [
        f"{label} {size or ''}".rstrip() if label in several else label
        for label, size in zip(labels, sizes, strict=True)
    ]


def strip_endings(name: str, endings: Sequence[str] = ENDINGS) -> str:
    """Return a file name without its endings; a name that consists of endings only stays unchanged.

    Example:
        >>> strip_endings("bm25.trec.gz")
        'bm25'
    """
    while name.endswith(tuple(endings)) and Path(name).suffix:
        name = Path(name).stem
    return name


def _label_of_file(run: RunIdentity) -> str:
    whole = label = strip_endings(Path(run.path).name)
    size = run.size
    sizes = [] if size is None else [f"L{size.layer}-D{size.dim}", f"{size.layer}-{size.dim}", str(size)]
    for part in (*sizes, *run.sets):
        # Remove whole words only.
        label = re.sub(rf"(^|(?<=[{JOINTS}])){re.escape(part)}(?=[{JOINTS}]|$)", "", label)
    label = re.sub(rf"([{JOINTS}])[{JOINTS}]+", r"\1", label).strip(JOINTS)
    if label or not whole:
        return label or whole
    if size is not None:
        label = run.tag.removesuffix(pair_name(size, run.passage_size)).strip(JOINTS)
    return label or Path(run.path).absolute().parent.name or whole


def _make_distinct(labels: Sequence[str], runs: Sequence[RunIdentity]) -> list[str]:
    """Lengthen the labels of runs that share a label and a cell."""
    for longer in (lambda label, path: f"{Path(path).absolute().parent.name}/{label}", lambda label, path: path):
        clashing = {
            labels[i]
            for i in range(len(labels))
            for j in range(i)
            if labels[i] == labels[j] and not runs[i].cells.isdisjoint(runs[j].cells)
        }
        labels = [longer(label, run.path) if label in clashing else label for label, run in zip(labels, runs)]
    return list(labels)


def names_of_set(name: str) -> Iterable[str]:
    """Return the words that name a set in file names: its name, and the last part of it if that is shorter.

    Example:
        >>> list(names_of_set("beir/scifact")), list(names_of_set("scifact"))
        (['beir/scifact', 'scifact'], ['scifact'])
    """
    return dict.fromkeys((name, name.rpartition("/")[2]))
