"""Seeded damage: to bytes, to the values of JSON, YAML and tables, and to the headers of safetensors and npy files."""

from __future__ import annotations

import copy
import gzip
import io
import json
import random
import struct
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

_DEEP = 100_000
# Written into the text of JSON in place of a marker: Python's own writer refuses them, or cannot nest so deep.
_TEXTS = {
    "@digits@": "9" * 5000,
    "@deep@": "[" * _DEEP + "]" * _DEEP,
    "@deep map@": '{"a":' * 3000 + "1" + "}" * 3000,
    "@nested@": "[" * 300 + "]" * 300,
    "@huge float@": "1e999",
}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 2**31, 2**32, 2**63, 10**9, 10**20, int("9" * 400)),
    *(0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        " ",
        "x",
        "x" * 300,
        "../../../etc/passwd",
        "/",
        "a\0b",
        "\ud800",
        "true",
        "12",
        "2:32",
        "ftp://127.0.0.1:9/x",
    ),
    *([], {}, [[]], [None], ["a", 1], {"a": 1}, {"": None}, [1, 2, 3], *_TEXTS),
]


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Flip bits, cut, repeat, blank or insert bytes."""
    kind = rng.randrange(8)
    if not content or kind == 0:
        return rng.choice([b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"{", b"[", b"null", b"\x80\x04", b"PK\x03\x04"])
    place = rng.randrange(min(len(content), rng.choice([128, 1 << 30])))
    if kind <= 3:
        found = bytearray(content)
        for _ in range(rng.choice([1, 1, 1, 4])):
            found[min(place + rng.randrange(4), len(found) - 1)] ^= 1 << rng.randrange(8)
        return bytes(found)
    if kind == 4:
        return content[:place]
    if kind == 5:
        return content[:place] + content[place + rng.choice([1, 8, 64]) :]
    if kind == 6:
        return content[:place] + bytes(rng.choice([1, 8, 64])) + content[place + rng.choice([0, 1, 8]) :]
    return content[:place] + rng.randbytes(rng.choice([1, 8, 100])) + content[place:]


def damage_value(content: Any, rng: random.Random) -> Any:
    """Replace, remove or add one value somewhere in a JSON-like content."""
    content = copy.deepcopy(content)
    owners = _owners(content)
    if not owners or rng.random() < 0.02:
        return rng.choice(VALUES)
    owner, key = rng.choice(owners)
    kind = rng.random()
    if kind < 0.1 and isinstance(owner, dict):
        del owner[key]
    elif kind < 0.15 and isinstance(owner, dict):
        owner[rng.choice(["new", "", "x" * 300, "a\0b"])] = rng.choice(VALUES)
    elif kind < 0.2 and isinstance(owner, list):
        owner.extend(owner[:1] * rng.choice([1, 1000]))
    else:
        owner[key] = rng.choice(VALUES)
    return content


def damage_json(content: bytes, rng: random.Random) -> bytes:
    """Damage the values of a JSON file, or one time in four its bytes."""
    if rng.random() < 0.25:
        return damage_bytes(content, rng)
    return _json(damage_value(json.loads(content), rng))


def damage_jsonl(content: bytes, rng: random.Random) -> bytes:
    """Damage a line of a file of JSON lines."""
    lines = content.splitlines()
    place = rng.randrange(len(lines))
    lines[place] = damage_json(lines[place], rng)
    return b"\n".join(lines) + b"\n"


YAML = [
    *("2001-01-01", "2001-13-45", "2001-01-01 25:61:61", ".inf", "-.inf", ".nan", "1e999", "1_0", "12:30:45", "0x" + "f" * 5000),
    *("9" * 5000, "9" * 400, "!!python/object:os.system x", "!!python/name:os.system", "!!int abc", "!!float abc"),
    *("!!timestamp x", "!!binary '*'", "!!set {a, b}", "!!omap [a: 1]", "!!pairs [a: 1]", "!x y", "&a [*a]", "*missing"),
    *("[" * 5000, "[" * 500 + "]" * 500, "{a: " * 3000, "- " * 5000, "? [a, b]\n: c", "<<: 3", "!!map x", "!!seq {a: 1}"),
    *("~", "=", "- -", "\t", "'", '"\\ud800"', '"\\x00"', "@", "%", "| ", "{[a]: 1}", "{{a: 1}: 2}", "[a, [b, {c: d}]]"),
    *("2:32", "true", "no", "''", "x" * 300, "{name: 3}", "{name: a.jsonl, weight: .inf}", "{name: a.jsonl, weight: 1e400}"),
    *("{name: a.jsonl, train_group_size: 99999999999999999999}", "[1, 2, 3]", "[[1], {a: 2001-01-01}]", "{a: 2001-01-01}"),
    *("!!str 3", "!!bool 3", "!!null x", "!!int ''", "!!int '0b'", "!!float ''", "0b", "0o8", "!!int 1:99999999999999999999"),
]  # fmt: skip


def damage_yaml(content: bytes, rng: random.Random) -> bytes:
    """Replace the value of a line, add a key or a tag, or one time in four damage bytes."""
    if rng.random() < 0.25:
        return damage_bytes(content, rng)
    lines = content.decode().splitlines()
    place, hostile = rng.randrange(len(lines)), rng.choice(YAML)
    key = lines[place].partition(":")[0]
    lines[place] = rng.choice(
        [f"{key}: {hostile}", f"{key}: {hostile}", hostile, f"{hostile}: 3", f"{key}:\n  - {hostile}"]
    )
    return "\n".join(lines).encode("utf-8", "surrogatepass")


CELLS = [
    *("", " ", "-", "9" * 20, "9" * 5000, "-" + "9" * 30, "1e5", "1.5", "nan", "inf", "1_0", "０", "\0", "a\tb", "\r", '"'),
    *("x" * 300, "x" * 70_000, "\ud800", "\x85", "{", "[1]", "null", "0x10", "1" * 400, "1e400", "-0", "+1", '"a""b', "\\"),
]  # fmt: skip


def damage_cells(content: bytes, rng: random.Random) -> bytes:
    """Replace, remove or add a cell of a line, or one time in three damage bytes."""
    if rng.random() < 0.33:
        return damage_bytes(content, rng)
    lines = content.decode().split("\n")
    place = rng.randrange(max(1, len(lines) - 1))
    separator = next((one for one in "\t, " if one in lines[place]), "\t")
    cells = lines[place].split(separator)
    at, kind = rng.randrange(len(cells)), rng.random()
    if kind < 0.1:
        del cells[at]
    elif kind < 0.2:
        cells.insert(at, rng.choice(CELLS))
    else:
        cells[at] = rng.choice(CELLS)
    lines[place] = separator.join(cells)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def damage_gzip(content: bytes, rng: random.Random) -> bytes:
    """Damage a gzip file, or what is in it."""
    if rng.random() < 0.5:
        return damage_bytes(content, rng)
    return gzip.compress(damage_jsonl(gzip.decompress(content), rng))


def damage_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Damage a value of the header of a safetensors file, its length, or bytes of the file."""
    kind = rng.random()
    if kind < 0.3:
        return damage_bytes(content, rng)
    if kind < 0.4:
        return struct.pack("<Q", rng.choice([0, 1, 7, 2**31, 2**40, 2**63, 2**64 - 1])) + content[8:]
    if kind < 0.5:
        return content[: rng.randrange(len(content))]
    stop = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:stop])
    if "__metadata__" in header and rng.random() < 0.5:
        name, text = rng.choice(sorted(header["__metadata__"].items()))
        try:
            text = _json(damage_value(json.loads(text), rng)).decode("utf-8", "replace")
        except ValueError:
            text = str(rng.choice(VALUES))
        header["__metadata__"][name] = text
    else:
        header = damage_value(header, rng)
    packed = _json(header)
    return struct.pack("<Q", len(packed)) + packed + content[stop:]


def damage_npy(content: bytes, rng: random.Random) -> bytes:
    """Damage a value of the header of an npy file, or bytes of the file."""
    if rng.random() < 0.5:
        return damage_bytes(content, rng)
    length = int.from_bytes(content[8:10], "little")
    shapes = [
        "()",
        "(0,)",
        "(-1, 3)",
        "(10**9, 10**9)",
        f"({2**63}, 1)",
        "(1.5,)",
        "'a'",
        "None",
        "(1, 2, 3)",
        "[3, 4]",
    ]
    kinds = [
        "'<f4'",
        "'<f8'",
        "'|O'",
        "'V99999999999'",
        "'x'",
        "3",
        "[('a', '<f4')]",
        "'<U999999999'",
        "'|S0'",
        "'>i2'",
        "'<M8'",
    ]
    header = f"{{'descr': {rng.choice(kinds)}, 'fortran_order': {rng.choice(['False', 'True', '7'])}, 'shape': {rng.choice(shapes)}, }}"
    header = rng.choice(
        [header, header, "{", "(" * 5000, "9" * 5000, "__import__('os')", header * 2, "{'descr': '<f4'}"]
    )
    packed = header.encode().ljust(length)
    return content[:8] + struct.pack("<H", min(len(packed), 65535)) + packed[:65535] + content[10 + length :]


def damage_table(content: bytes, rng: random.Random) -> bytes:
    """Replace a column of a Parquet file or an Arrow stream by one of another type, or damage bytes."""
    import pyarrow as pa
    import pyarrow.parquet

    if rng.random() < 0.5:
        return damage_bytes(content, rng)
    is_parquet = content.startswith(b"PAR1")
    table = pyarrow.parquet.read_table(io.BytesIO(content)) if is_parquet else pa.ipc.open_stream(content).read_all()
    place, rows = rng.randrange(table.num_columns), table.num_rows
    column = rng.choice(_columns(rows))
    table = table.set_column(place, table.column_names[place], column)
    out = io.BytesIO()
    try:
        if is_parquet:
            pyarrow.parquet.write_table(table, out)
        else:
            with pa.ipc.new_stream(out, table.schema) as writer:
                writer.write_table(table)
    except pa.ArrowException:  # the format lacks the type
        return content[: len(content) // 2]
    return out.getvalue()


def _columns(rows: int) -> list[Any]:
    import pyarrow as pa

    far = pa.array([2**31 - 1] * rows, pa.int32()).cast(pa.date32())
    moments = [pa.array([2**62] * rows, pa.int64()).cast(pa.timestamp(unit)) for unit in ("s", "ms", "us")]
    nanoseconds = pa.array([2**62 + 1] * rows, pa.int64()).cast(pa.timestamp("ns"))
    zoned = pa.array([0] * rows, pa.int64()).cast(pa.timestamp("us", tz="Nowhere/City"))
    durations = pa.array([2**62] * rows, pa.int64()).cast(pa.duration("s"))
    nested = pa.array([[["a", None]]] * rows)
    deep: Any = "a"
    for _ in range(60):
        deep = [deep]
    return [
        *(far, *moments, nanoseconds, zoned, durations, nested, pa.array([deep] * rows), pa.nulls(rows)),
        *(pa.array([b"\xff\xfe"] * rows), pa.array([2**64 - 1] * rows, pa.uint64()), pa.array([float("nan")] * rows)),
        *(pa.array([{"a": 1}] * rows), pa.array([True] * rows), pa.array([timedelta(days=1)] * rows)),
        pa.array([b"\xff\xfe"] * rows).cast(pa.binary()).view(pa.string()),
        pa.array(["a"] * rows).dictionary_encode(),
        pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        pa.array([10**30] * rows, pa.decimal128(38, 0)),
    ]


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bytes": damage_bytes,
    "json": damage_json,
    "jsonl": damage_jsonl,
    "yaml": damage_yaml,
    "cells": damage_cells,
    "gzip": damage_gzip,
    "safetensors": damage_safetensors,
    "npy": damage_npy,
    "table": damage_table,
}


def damage(path: Path, kind: str, rng: random.Random) -> None:
    """Overwrite a file with a damaged version of itself."""
    path.write_bytes(DAMAGE[kind](path.read_bytes(), rng))


def _json(content: Any) -> bytes:
    text = json.dumps(content, ensure_ascii=True)
    for marker, replacement in _TEXTS.items():
        text = text.replace(f'"{marker}"', replacement, 1)
    return text.encode()


def _owners(content: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    todo = [content]
    while todo:
        one = todo.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in keys:
            found.append((one, key))
            todo.append(one[key])
    return found
