"""Reads the YAML files of tables, rows and scales, and checks them before anything runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.measures import measure_of
from starbucks_retrieval.parsing import parse_json, read_text
from starbucks_retrieval.report.columns import AVERAGE
from starbucks_retrieval.reproduce.flags import check_row, check_scale
from starbucks_retrieval.reproduce.schema import MEAN, Row, Scale, Score, ScoreFile, Table
from starbucks_retrieval.reproduce.sentence_transformers import LOSSES
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.yaml_text import parse_yaml

FOLDER = Path(__file__).parent
_HINT = "correct the file; docs/howto/reproduce.md describes its fields"


def table_names() -> list[str]:
    """Return `<paper>/<table>` of every table in the package."""
    files = sorted((FOLDER / "tables").glob("*/*.yaml"))
    return [f"{path.parent.name}/{path.stem}" for path in files if path.stem != "rows"]


def find_table(name: str) -> Path:
    """Return the file of a table.

    Args:
        name: The name of a table of this package, or the path of a YAML file.

    Raises:
        UserError: There is no such table.
    """
    if name in table_names():
        return FOLDER / "tables" / f"{name}.yaml"
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return path
    raise UserError(f"no table is called {name}", "starbucks reproduce --list names them; or name a YAML file")


def read_table(path: Path) -> Table:
    """Read a table, with its rows and published scores, and check them.

    Args:
        path: The YAML file; its folder's rows.yaml has the rows that it names.

    Raises:
        UserError: The file cannot be read, a row is unknown, named twice or has an unknown flag or preset, or a published
            score has no source or belongs to no row.
    """
    content = _read_yaml(path)
    listed = _list(path, content, "rows")
    columns = [{"set": one} if isinstance(one, str) else one for one in _list(path, content, "columns")]
    table = _check(content | {"rows": [], "columns": columns, "published": []}, Table, path)
    rows = [_row(path, each, table.full) for each in listed]
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path}: row {name!r} is there twice", "give each row a name of its own")
    table = replace(table, rows=rows, published=_published(path, content.get("published") or []))
    _check_names(path, table)
    _check_library(path, rows)
    return table


def _check_names(path: Path, table: Table) -> None:
    """Raise UserError if the baseline, a claim or a published score names a row, a set or a size that the table lacks."""
    rows, sets = [row.name for row in table.rows], [column.set for column in table.columns]
    wanted: list[tuple[str, str, list[str], list[str]]] = []  # place, row, sets, sizes
    if table.baseline:
        wanted.append(("baseline", table.baseline, [], []))
    if table.sizes not in ("diagonal", "grid"):
        wanted.append(("sizes", rows[0], [], table.sizes.split(",")))
    for claim in table.claims:
        parts = [{"sets": claim.sets, "sizes": claim.sizes}, claim.at, claim.against]
        named, sizes = ([one for part in parts for one in part.get(key, [])] for key in ("sets", "sizes"))  # type: ignore[attr-defined]
        wanted += [(f"claim {claim.id}", row, named, sizes) for row in (claim.row, claim.than)]
    for score in table.published:
        known = score.set in (AVERAGE, *sets) or score.set in names_in_scales("sets")  # files have sets of other tables
        at = [] if score.size == MEAN else [score.size]
        wanted.append(("published", score.row, [] if known else [score.set], at))
    for where, row, named, sizes in wanted:
        if row not in rows:
            raise UserError(f"{path}: {where}: no row is called {row!r}", f"the rows are {', '.join(rows)}")
        for name in named:
            if name not in sets:
                raise UserError(f"{path}: {where}: no column is called {name!r}", f"they are {', '.join(sets)}")
        _check_sizes(f"{path}: {where}", sizes, table.full)


def _check_sizes(where: str, sizes: Iterable[str], full: Size) -> None:
    """Raise UserError if a size cannot be read, or the paper's backbone does not have it."""
    for text in sizes:
        try:
            size = Size.parse(text)
        except UserError as error:
            raise UserError(f"{where}: {error.what}", error.hint) from None
        if size.layer > full.layer or size.dim > full.dim:
            raise UserError(
                f"{where}: no size {size} in the paper's backbone of {full}", "sizes are in terms of `full`"
            )


def _check_library(path: Path, rows: list[Row]) -> None:
    """Raise UserError if a row that sentence-transformers trains names no row whose training it can follow."""
    trained = {
        (row.name, task) for row in rows for task, flags in row.train.items() if not row.each and "loss" not in flags
    }
    for row in rows:
        for task, flags in row.train.items():
            where, found = f"{path}: row {row.name!r}", [name for name, of in trained if of == task]
            if "loss" not in flags:
                continue
            if flags["loss"] not in LOSSES:
                raise UserError(f"{where}: there is no loss {flags['loss']!r}", f"one of {', '.join(LOSSES)}")
            if (flags.get("like"), task) not in trained:
                problem = f"{where}: like is {flags.get('like')!r}, which is no row with one model for {task}"
                raise UserError(problem, f"name one of {', '.join(sorted(found)) or 'its rows'}")
            if flags["loss"] == LOSSES[0] and "train_dims" not in flags:
                raise UserError(f"{where}: {LOSSES[0]} has no dims", "name them: train_dims: '32,64,128'")
            if row.each:
                raise UserError(f"{where}: each and loss exclude each other", "leave one of them out")


def read_scale(name: str, table: Table, path: Path) -> Scale:
    """Read a scale, with the changes of a table, and check that its sets and measures exist.

    Args:
        name: `tiny`, `cpu` or `full`.
        table: The table.
        path: Its file, for messages.

    Raises:
        UserError: The scale cannot be read, a column has a measure that its set does not have, that of a published score is
            unknown, or a stage does not have a flag.
    """
    content = _read_yaml(FOLDER / "scales" / f"{name}.yaml")
    scale = _check(_merge(content, table.scales.get(name, {})), Scale, f"{path}: scale {name}")  # type: ignore[call-overload]
    backbones = scale.backbones.keys() | names_in_scales("backbones")
    for row in table.rows:
        if row.start not in backbones:
            problem = f"{path}: row {row.name!r}: no scale has a backbone {row.start!r}"
            raise UserError(problem, f"they have {', '.join(sorted(backbones))}")
        of_table = {name for changes in table.scales.values() for name in changes.get("texts", {})}
        texts = scale.texts.keys() | names_in_scales("texts") | of_table
        for found in (flags["corpus"] for flags in row.pretrain if flags.get("corpus", "") not in ("", *texts)):
            problem = f"{path}: row {row.name!r}: no scale has texts called {found!r}"
            raise UserError(problem, f"they have {', '.join(sorted(texts))}")
    for measure in dict.fromkeys(score.measure for score in table.published):
        try:
            measure_of(measure)
        except UserError as error:
            raise UserError(f"{path}: published: {error.what}", error.hint) from None
    known = names_in_scales("sets")
    for column in table.columns:
        if column.set not in scale.sets and column.set not in known:
            raise UserError(
                f"{path}: columns: no scale has a set {column.set!r}", f"they have {', '.join(sorted(known))}"
            )
        found = scale.sets.get(column.set)
        if found and not found.blocked and column.measure and column.measure not in found.measures:
            raise UserError(
                f"{path}: columns: {column.set} has no measure {column.measure!r} at the scale {name}",
                f"it has {', '.join(found.measures)}",
            )
    check_scale(str(path), name, scale, table)
    return scale


@cache
def names_in_scales(key: str) -> frozenset[str]:
    """Return the names of the sets, backbones or texts of all scales.

    Args:
        key: `sets`, `backbones` or `texts`.
    """
    return frozenset(name for path in (FOLDER / "scales").glob("*.yaml") for name in _read_yaml(path).get(key, {}))


def _read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a file, which callers leave as it is."""
    return _parsed(read_text(path), path)


@lru_cache(maxsize=32)  # a table reads rows.yaml once for each row that it names
def _parsed(text: str, path: Path) -> dict[str, Any]:
    content = parse_yaml(text, path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: its content is no mapping", _HINT)
    return content


def _check(content: Any, kind: Any, name: Any) -> Any:
    return parse_json(json.dumps(content), kind, name, _HINT, extra="forbid")


def _list(path: Path, content: Mapping[str, Any], key: str) -> list[Any]:
    found = content.get(key)
    if not isinstance(found, list) or (key == "rows" and not found):
        raise UserError(f"{path}: {key} is no list", _HINT)
    return found


def _row(path: Path, content: Any, full: Size) -> Row:
    """Return a row: by its name in rows.yaml, or as it is written in the table."""
    if isinstance(content, str):
        shared = path.parent / "rows.yaml"
        found = [each for each in _list(shared, _read_yaml(shared), "rows") if each.get("name") == content]
        if not found:
            raise UserError(f"{path}: no row is called {content!r}", f"{shared} has the rows that a table can name")
        return _row(shared, found[0], full)
    name = content.get("name") if isinstance(content, dict) else None
    row = _check(content, Row, f"{path}: row {name!r}")
    _check_recipe(f"{path}: row {name!r}", row, full)
    return row


def _check_recipe(where: str, row: Row, full: Size) -> None:
    """Raise UserError if a flag, a preset, an objective or a size of a row that can be run is unknown."""
    if row.blocked:
        return
    check_row(where, row)
    from starbucks_retrieval.losses import LOSSES
    from starbucks_retrieval.pretrain import PRETRAIN_OBJECTIVES
    from starbucks_retrieval.pretrain.__main__ import PRESETS as PRETRAIN_PRESETS
    from starbucks_retrieval.train.presets import PRESETS

    stages = [(flags, list(PRETRAIN_PRESETS), list(PRETRAIN_OBJECTIVES)) for flags in row.pretrain]
    stages += [(flags, list(PRESETS), list(LOSSES)) for flags in row.train.values()]
    for flags, presets, objectives in stages:
        for key, known in (("preset", presets), ("objective", objectives)):
            if key in flags and flags[key] not in known:
                raise UserError(f"{where}: there is no {key} {flags[key]!r}", f"one of {', '.join(known)}")
        _check_sizes(f"{where}: sizes", str(flags["sizes"]).split(",") if "sizes" in flags else (), full)


def _published(path: Path, entries: list[Any]) -> list[Score]:
    scores: list[Score] = []
    for number, entry in enumerate(entries):
        row = entry.get("row") or entry.get("file") if isinstance(entry, dict) else None
        where = f"{path}: published score {number + 1} ({row})"
        if not isinstance(entry, dict) or not str(entry.get("source") or "").strip():
            raise UserError(f"{where} has no source", "add source: the paper and its table")
        if "file" not in entry:
            scores.append(_check(entry, Score, where))
            continue
        listed = _check(entry, ScoreFile, where)
        scores += _score_file(path.parent / listed.file, listed.source)
    return scores


def _score_file(path: Path, source: str) -> list[Score]:
    scores = []
    for number, line in enumerate(csv.DictReader(io.StringIO(read_text(path))), 2):
        try:
            value = float(line["value"])
            scores.append(
                Score(line["row"], line["set"], line["measure"], line["size"], value, source, bool(line["mark"]))
            )
        except (KeyError, TypeError, ValueError):
            problem = f"{path}:{number}: not a published score"
            raise UserError(problem, "write row,set,measure,size,value,mark") from None
    return scores


def _merge(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings with changes; the value null removes a key."""
    merged = dict(content)
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _merge(merged[key], value)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged
