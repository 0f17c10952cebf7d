"""How tables, pages and findings call a run: one rule for `evaluate`, `report` and `browse`.

A run's label is, in this order:

1. what `--label` says;
2. its file's name without endings (`.gz .trec .run .txt`), without the run's size and without the name of its set:
   `ours.scifact.L6-D128.trec` is `ours`;
3. where that leaves nothing (`scifact.trec`, `L6-D128.trec`), the tag in the file without the size, if it is more;
4. else the name of the folder that it lies in.

Two runs that would fill one cell of a table get `folder/label`, and where that is the same too, their paths. Where one
label stands for several sizes, the size is shown after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size, pair_name

ENDINGS = (".gz", ".trec", ".run", ".txt")
JOINTS = "._ -"  # as a class of characters in an expression, so the dash stands last


@dataclass(frozen=True)
class RunIdentity:
    """What a run's label is made of: path, the tag in the file, its size where known, and the names of its sets.

    `cells` are the cells of a table that the run fills, each in words (`at 6:128 on scifact`).
    """

    path: str
    tag: str = ""
    size: Size | None = None
    sets: tuple[str, ...] = ()
    cells: frozenset[str] = frozenset()
    passage_size: Size | None = None


def run_labels(runs: Sequence[RunIdentity], given: str | Sequence[str] | None = None) -> list[str]:
    """The label of each run, by the rule of this module.

    Raises UserError for another number of `given` labels than one or one for each, and where they put two runs into
    one cell.
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
    """What is shown of each label at each size: the label, and the size where the label has several."""
    cells = set(zip(labels, sizes))
    several = {label for label in labels if sum(label == other for other, _ in cells) > 1}
    return [
        f"{label} {size or ''}".rstrip() if label in several else label
        for label, size in zip(labels, sizes, strict=True)
    ]


def strip_endings(name: str, endings: Sequence[str] = ENDINGS) -> str:
    """A file's name without endings; one that is nothing else stays as it is."""
    while name.endswith(tuple(endings)) and Path(name).suffix:
        name = Path(name).stem
    return name


def _label_of_file(run: RunIdentity) -> str:
    whole = label = strip_endings(Path(run.path).name)
    size = run.size
    sizes = [] if size is None else [f"L{size.layer}-D{size.dim}", f"{size.layer}-{size.dim}", str(size)]
    for part in (*sizes, *run.sets):
        # A part is a word of the name, not a piece of one.
        label = re.sub(rf"(^|(?<=[{JOINTS}])){re.escape(part)}(?=[{JOINTS}]|$)", "", label)
    label = re.sub(rf"([{JOINTS}])[{JOINTS}]+", r"\1", label).strip(JOINTS)
    if label or not whole:
        return label or whole
    if size is not None:
        label = run.tag.removesuffix(pair_name(size, run.passage_size)).strip(JOINTS)
    return label or Path(run.path).absolute().parent.name or whole


def _make_distinct(labels: Sequence[str], runs: Sequence[RunIdentity]) -> list[str]:
    """Labels made different where two runs of one label would stand in one cell."""
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
    """The words by which a file's name may tell its set: `beir/scifact` and `scifact`."""
    return dict.fromkeys((name, name.rpartition("/")[2]))
