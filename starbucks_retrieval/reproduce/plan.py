"""The jobs behind a table: its rows as stages that depend on each other, shared by all rows and tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.grid import EncodingArguments
from starbucks_retrieval.metrics.measures import parse_measures
from starbucks_retrieval.reproduce.jobs import (
    LIBRARY,
    Files,
    Job,
    find_backbone,
    find_data,
    find_sets,
    local_paths,
    state_of,
)
from starbucks_retrieval.reproduce.precision import choose_precision
from starbucks_retrieval.reproduce.scaling import SIZED, axis, flag_at_scale, sizes_of
from starbucks_retrieval.reproduce.schema import DataSet, Flags, Row, Scale, Table, Task
from starbucks_retrieval.reproduce.sentence_transformers import SentenceTransformersArguments
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.store import output_folder

_TASK_SETTINGS = ("pooling", "normalize")
_ENCODING = {field.name for field in dataclasses.fields(EncodingArguments)}
_LIBRARY_FLAGS = {"seed", *(field.name for field in dataclasses.fields(SentenceTransformersArguments))}
_DEPTH = 1000  # results of a query for measures without a cutoff


@dataclass(frozen=True)
class Measured:
    """The jobs that measure a row on a set: one for each seed, and for each model where every size has its own.

    Attributes:
        row, set: Whose scores they are.
        seeds: The jobs of each seed.
    """

    row: str
    set: str
    seeds: list[list[Job]] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """Everything behind a table.

    Attributes:
        table, scale: What is made, at which scale.
        measured: The jobs of every row and set that can be run.
        not_run: The reason for the rows, or rows and sets, that cannot: {(row, set or ""): reason}.
        precision: What `auto` stands for in their flags; empty if none says so.
    """

    table: Table
    scale: Scale
    measured: list[Measured]
    not_run: dict[tuple[str, str], str]
    precision: str = ""

    def jobs(self, rows: Sequence[str] = ()) -> list[Job]:
        """Return all jobs, or those of some rows, each once and after those that it needs."""
        found: dict[str, Job] = {}

        def add(job: Job) -> None:
            for needed in job.needs:
                add(needed)
            found.setdefault(job.id, job)

        chosen = [one for one in self.measured if not rows or one.row in rows]
        seeds = max((len(one.seeds) for one in chosen), default=0)
        for seed in range(seeds):  # every row once, before any a second time
            for job in (job for one in chosen for jobs in one.seeds[seed : seed + 1] for job in jobs):
                add(job)
        return [*found.values()]

    @property
    def sizes(self) -> Sizes:
        """The sizes of the table, in terms of the scale's backbone. Raises UserError if none fits it."""
        return sizes_of(self.table, self.scale)

    @property
    def about(self) -> str:
        """What tables say about the scale."""
        return self.scale.about + (f"; computed in {self.precision}" if self.precision else "")


def make_plan(table: Table, scale: Scale, seeds: int, data_dir: Path, root: Path) -> Plan:
    """Return the jobs behind a table.

    Args:
        table, scale: What `read_table` and `read_scale` return.
        seeds: Runs of each trained row.
        data_dir: The folder in which the scale's relative paths are looked up.
        root: The output folder, which may know the precision that `auto` stands for.

    Raises:
        UserError: A backbone or a set is missing, rows see different negatives, or no size fits the scale's backbone.
    """
    sizes_of(table, scale)  # a mistake is told before anything runs
    planner = _Planner(table, scale, data_dir, root)
    measured, not_run = [], dict[tuple[str, str], str]()
    columns = list(dict.fromkeys(column.set for column in table.columns))
    for row in table.rows:
        if row.blocked or row.start not in scale.backbones:
            not_run[row.name, ""] = row.blocked or f"the scale has no backbone {row.start}"
            continue
        lacking = [flags["corpus"] for flags in row.pretrain if flags.get("corpus", "") not in ("", *scale.texts)]
        if lacking:
            not_run[row.name, ""] = f"the scale has no texts called {lacking[0]}"
            continue
        for name in columns:
            if name not in scale.sets:
                not_run[row.name, name] = "the scale does not have this set"
                continue
            data = scale.sets[name]
            if data.blocked:
                not_run[row.name, name] = data.blocked
                continue
            task = data.model or data.task
            if row.train and task not in row.train:
                not_run[row.name, name] = f"the row has no recipe for {task}"
                continue
            try:
                planner.find_answers(data)
            except UserError as error:  # no hub name stands for them
                not_run[row.name, name] = error.what
                continue
            runs = range(seeds if row.train else 1)
            measured.append(Measured(row.name, name, [list(planner.measure(row, data, task, i)) for i in runs]))
    planner.check_negatives()
    return Plan(table, scale, measured, not_run, planner.precision)


class _Planner:
    def __init__(self, table: Table, scale: Scale, data_dir: Path, root: Path) -> None:
        self.table, self.scale, self.data_dir, self.root = table, scale, data_dir, root
        self.precision = ""
        self.settings: dict[str, dict[str, Any]] = {}

    def measure(self, row: Row, data: DataSet, task: Task, seed: int) -> Iterator[Job]:
        """Yield the jobs that measure a row on a set, in one run."""
        layers, dims = axis(self.scale, "layers"), axis(self.scale, "dims")
        if row.each == "size":
            for size in self._sizes():
                yield self._measure(row, data, self._model(row, task, seed, data, size), [size.layer], [size.dim])
        elif row.each == "layer":
            for layer in dict.fromkeys(size.layer for size in self._sizes()) if data.answers else layers:
                size = Size(layer, self.scale.full.dim)
                yield self._measure(row, data, self._model(row, task, seed, data, size), [layer], dims)
        else:
            yield self._measure(row, data, self._model(row, task, seed, data), layers, dims)

    def _sizes(self) -> Sizes:
        """Return the sizes that each have a model: those of the table, but of a whole grid the paper's six."""
        if self.table.sizes == "grid":
            full = self.scale.full
            return Sizes.default(full.layer, full.dim)
        return sizes_of(self.table, self.scale)

    def _model(self, row: Row, task: Task, seed: int, data: DataSet, size: Size | None = None) -> Job | str:
        """Return the model of a row: a job, or the backbone of a row without any."""
        model: Job | str = find_backbone(self.scale.backbones[row.start], self.data_dir)
        for flags in row.pretrain:
            texts = self.scale.texts.get(flags.get("corpus", ""), {})
            own = {name: value for name, value in flags.items() if name != "corpus"}
            model = self._job("pretrain", own | self.scale.pretrain | texts, model)
        if row.fit is not None:
            model = self._job("fit", {**self.scale.fit, **row.fit}, model)
        if task in row.train:
            flags = row.train[task] | self.scale.train.get(task, {}) | data.train
            if size is not None:
                flags |= {"sizes": str(size)}
            flags |= {"seed": 42 + seed}
            if "loss" in flags:
                return self._library_job(row, task, seed, data, flags, model)
            self._note_negatives(row, task, flags, data)
            model = self._job("train", flags, model, size is None)
        return model

    def _library_job(self, row: Row, task: Task, seed: int, data: DataSet, flags: Flags, model: Job | str) -> Job:
        """Return a training by sentence-transformers: with the flags of another row that it knows, for as much time."""
        other = next(one for one in self.table.rows if one.name == flags["like"])
        flags = _recipe(other.train[task]) | flags
        self._note_negatives(row, task, flags, data)  # the library keeps known positives, as published
        if "minutes" not in flags:
            flags["as_long_as"] = self._model(other, task, seed, data)
        return self._job(LIBRARY, {name: value for name, value in flags.items() if name in _LIBRARY_FLAGS}, model)

    def _measure(self, row: Row, data: DataSet, model: Job | str, layers: Sequence[int], dims: Sequence[int]) -> Job:
        axes = {"layers": ",".join(map(str, layers)), "dims": ",".join(map(str, dims))}
        flags = {**self.scale.measure.get(data.task, {}), **data.flags, **axes, **row.measure}
        if isinstance(model, str):  # a trained model stores these
            trained = self.scale.train.get(data.task, {})
            flags |= {key: trained[key] for key in _TASK_SETTINGS if key in trained}
        if data.answers:
            return self._measure_answers(data, model, flags)
        if data.task == "sts":
            flags |= {"data": [self._find(data.path)]}
            if "measure_cost" in flags:
                return self._job("grid", {"task": "sts", **flags}, model)
            return self._job("sts", {"grid": True, "keep_pairs": True, **flags}, model)
        paths = find_sets(data.path, self.data_dir, self.scale.child)
        flags |= {"dataset_path": paths, "split": data.split, "measures": data.measures}
        return self._job("grid", flags, model)

    def find_answers(self, data: DataSet) -> str:
        """Return the file of answers of a set, "" if it has none. Raises UserError if the file is missing."""
        return self._find(data.answers) if data.answers else ""

    def _measure_answers(self, data: DataSet, model: Job | str, flags: Flags) -> Job:
        """Return the last of the jobs that encode, search and evaluate, at the sizes of the table that `flags` name."""
        layers, dims = ([int(number) for number in flags[axis].split(",")] for axis in ("layers", "dims"))
        sizes = [size for size in self._sizes() if size.layer in layers and size.dim in dims]
        stored = Sizes(max(size for size in sizes if size.layer == layer) for layer in {one.layer for one in sizes})
        encoding = {"dtype": "fp32", "store_dtype": "float32", "sizes": str(stored)}  # as grid; search cuts the dims
        encoding |= {name: value for name, value in flags.items() if name in _ENCODING}
        corpus, answers = self._find(data.path), self.find_answers(data)
        cutoffs = [measure.params.get("cutoff", _DEPTH) for measure in parse_measures(" ".join(data.measures))]
        found = {
            "passage_reps": self._job("encode", encoding | {"dataset_path": corpus}, model, False),
            "query_reps": self._job(
                "encode", encoding | {"dataset_path": answers, "encode_is_query": True}, model, False
            ),
            "sizes": str(Sizes(sizes)),
            "depth": max(cutoffs),
        }
        names = tuple(f"{output_folder('', size).name}.trec" for size in sizes)
        run = Files(self._job("search", found, scaled=False), names)
        return self._job("evaluate", {"run": run, "answers": answers, "corpus": corpus, "measures": data.measures})

    def _job(self, stage: str, flags: Flags, model: Job | str | None = None, scaled: bool = True) -> Job:
        flags = {"model_name_or_path": model, **self._explicit(self._located(flags))}
        if scaled:
            for name in SIZED:
                if (value := _recipe(flags).get(name)) is None:
                    continue
                at_scale = flag_at_scale(name, str(value), self.table, self.scale)
                if name in flags or at_scale != value:  # presets too name sizes of the paper's backbone
                    flags[name] = at_scale
        local = [one for value in flags.values() for one in local_paths(value)]
        return Job(
            stage, {k: v for k, v in flags.items() if v is not None}, tuple((path, state_of(path)) for path in local)
        )

    def _located(self, flags: Flags) -> Flags:
        """Return flags with the paths of `dataset_path` looked up in the folder of the data."""
        paths = flags.get("dataset_path")
        return flags | {"dataset_path": [self._find(path) for path in paths]} if isinstance(paths, list) else flags

    def _explicit(self, flags: Flags) -> Flags:
        """Return flags with the precision of this folder in place of `auto`."""
        asked = [name for name in ("bf16", "dtype") if flags.get(name) == "auto"]
        if asked and not self.precision:
            self.precision = choose_precision(self.root)
        return flags | {name: self.precision == "bf16" if name == "bf16" else self.precision for name in asked}

    def _find(self, path: str) -> str:
        return find_data(path, self.data_dir, self.scale.child)

    def _note_negatives(self, row: Row, task: Task, flags: Mapping[str, Any], data: DataSet) -> None:
        recipe = _recipe(flags)
        names = ("false_negatives", "train_group_size", "dataset_path", "dataset_name", "query_negatives")
        self.settings[f"{row.name}|{task}{f' for {data.path}' if data.train else ''}"] = {
            name: recipe.get(name) for name in names
        }

    def check_negatives(self) -> None:
        """Raise UserError if a row of a task sees other negatives than the first one."""
        first: dict[str, tuple[str, dict[str, Any]]] = {}
        for key, found in self.settings.items():
            row, _, task = key.rpartition("|")
            other, expected = first.setdefault(task, (row, found))
            for name, value in found.items():
                if value != expected[name]:
                    raise UserError(
                        f"row {row!r} sees other negatives than {other!r} on {task}: {name} is {value}, not "
                        f"{expected[name]}",
                        "give both rows the same, or put them into different tables",
                    )


def _recipe(flags: Mapping[str, Any]) -> Flags:
    """Return the flags of a training with those of its preset."""
    from starbucks_retrieval.train.presets import PRESETS

    return PRESETS.get(flags.get("preset", ""), {}) | dict(flags)
