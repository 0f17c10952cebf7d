"""What the YAML files of tables, rows and scales say; `reading` reads and checks them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from starbucks_retrieval.parsing import Finite
from starbucks_retrieval.sizes import Size

Task = Literal["retrieval", "sts"]
Flags = dict[str, Any]
MEAN = "average"  # the size of a published mean over sizes


@dataclass(frozen=True)
class Row:
    """A row: a recipe, as flags of the stages.

    Attributes:
        name: Its name in this project and in the published scores.
        label: Its name in tables (default: `name`).
        start: The backbone of the scale that it starts from.
        pretrain: Flags of each stage of pre-training, in order; `corpus` names its texts in the scale (default: the scale's).
        fit: Flags of `starbucks fit`, None without it.
        train: Flags of training for the sets of a task; a row without them is measured untrained. With `loss`,
            sentence-transformers trains with that loss of its own: with the data and settings of the row that `like` names,
            and for the processor time of its training, or for `minutes`.
        each: Whether every size, or every layer, has a model of its own.
        measure: Further flags of `grid`.
        blocked: Why the row cannot be run; empty if it can.
    """

    name: str
    label: str = ""
    start: str = "base"
    pretrain: list[Flags] = field(default_factory=list)
    fit: Flags | None = None
    train: dict[Task, Flags] = field(default_factory=dict)
    each: Literal["size", "layer"] | None = None
    measure: Flags = field(default_factory=dict)
    blocked: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        set: A set of the scale.
        measure: One of its measures; empty for the first.
    """

    set: str
    measure: str = ""


@dataclass(frozen=True)
class Score:
    """A published score.

    Attributes:
        row, set, measure: Where it is printed; `Average` is a set too.
        size: The size, or `average` for a mean over the sizes of the table.
        value: The score as a fraction.
        mark: Whether the paper marks it as significant.
        source: Paper and table.
    """

    row: str
    set: str
    measure: str
    size: str
    value: Finite
    source: str
    mark: bool = False


@dataclass(frozen=True)
class ScoreFile:
    """A csv file of published scores, with the columns row, set, measure, size, value and mark.

    Attributes:
        file: The path, relative to the file of the table.
        source: Paper and table.
    """

    file: str
    source: str


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and the comparison that decides about it.

    Attributes:
        id: A short name.
        says: The claim.
        row, than: The rows that are compared.
        kind: above: `row` scores higher than `than`. on_par: it scores within `margin`. gain: it scores higher at `at`, by more
            than at `against`.
        sets: The sets that count (default: all of the table).
        sizes: The sizes that count (default: all of the table).
        passage_layer: The layer of the passages, in rows measured with `asymmetric`; None where it is that of the queries.
        margin: The largest difference that counts as none, for `on_par`.
        at, against: Parts of the table, as `sets` and `sizes`, for `gain`.
    """

    id: str
    says: str
    row: str
    than: str
    kind: Literal["above", "on_par", "gain"] = "above"
    sets: list[str] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    passage_layer: int | None = None
    margin: Finite = 0.02
    at: dict[Literal["sets", "sizes"], list[str]] = field(default_factory=dict)
    against: dict[Literal["sets", "sizes"], list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table or figure.

    Attributes:
        title: Its caption.
        source: The paper, and the number of the table.
        rows: Names of rows of the paper's rows.yaml, or rows.
        columns: Sets, or sets with a measure.
        sizes: diagonal: the paper's six sizes; grid: every layer and dim of the scale; or sizes.
        layout: averages: means over the sizes; by_size: a block for each size; sizes, lines: a column for each size, and
            a figure of a line for each row; panels: a block for each layer; heat: every layer and dim of each row;
            differences: the same, less the baseline.
        baseline: The row that the others are tested against.
        published: Published scores.
        claims: Claims that the table decides.
        full: The layers and dims of the paper's backbone, in whose terms all sizes are written.
        scales: Changes to a scale for this table.
    """

    title: str
    source: str
    rows: list[Row]
    columns: list[Column]
    sizes: str = "diagonal"
    layout: Literal["averages", "by_size", "sizes", "lines", "panels", "heat", "differences"] = "by_size"
    baseline: str = ""
    published: list[Score] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    full: Size = field(default_factory=lambda: Size(12, 768))
    scales: dict[Literal["tiny", "cpu", "full"], dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSet:
    """A set of a scale.

    Attributes:
        task: retrieval, or sts for scored pairs.
        path: A BEIR folder, short name or file; relative paths are looked up in `--data_dir`. With `/*` at its end it
            stands for several sets, whose mean is the score (CQADupStack).
        answers: A file of questions with their answers. Passages of `path` that contain an answer are relevant (Natural
            Questions), and the set is measured by `encode`, `search` and `evaluate`, at the sizes of the table.
        split: The judgements of a retrieval set.
        measures: Everything that is measured; a column shows the first one by default.
        model: The task whose trained model is measured (default: `task`).
        train: Flags of the training of the model that is measured, such as other training data than the scale's.
        texts: Passages or sentences, for estimates.
        flags: Further flags of `grid` or `sts`, with `answers` those of encoding.
        blocked: Why it cannot be measured; empty if it can.
    """

    task: Task
    path: str
    answers: str = ""
    split: str = "test"
    measures: list[str] = field(default_factory=lambda: ["nDCG@10"])
    model: Task | None = None
    train: Flags = field(default_factory=dict)
    texts: int = 0
    flags: Flags = field(default_factory=dict)
    blocked: str = ""


@dataclass(frozen=True)
class Scale:
    """The backbone, data and budget of all tables at a scale.

    Attributes:
        about: A sentence for the tables.
        full: Layers and width of the backbones.
        backbones: Model folders or hub names; `package:` names a Python package with a MODEL_DIR.
        sets: The sets by the name of their column.
        pretrain, fit, train: Flags that replace those of a recipe; `train` has them by task.
        texts: Flags of pre-training on other texts, by the name that `corpus` of a stage gives.
        measure: Flags of `grid` (retrieval) and of `sts`, by task.
        layers, dims: The grid, in terms of a backbone of 12:768.
        tokens: Tokens of a text, for estimates.
        steps: Optimiser steps of a recipe that trains for epochs, by stage and task, for estimates.
        testable: Whether claims can be decided.
        child: Whether stages run in processes of their own.
    """

    about: str
    full: Size
    backbones: dict[str, str]
    sets: dict[str, DataSet]
    pretrain: Flags = field(default_factory=dict)
    fit: Flags = field(default_factory=dict)
    train: dict[Task, Flags] = field(default_factory=dict)
    texts: dict[str, Flags] = field(default_factory=dict)
    measure: dict[Task, Flags] = field(default_factory=dict)
    layers: str = "2,4,6,8,10,12"
    dims: str = "32,64,128,256,512,768"
    tokens: int = 128
    steps: dict[str, int] = field(default_factory=dict)
    testable: bool = True
    child: bool = True
