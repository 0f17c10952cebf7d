"""Read an Arrow folder with flipped bits, each in a process of its own: `python tests/arrow_flips.py SEED COUNT FOLDER`.

Prints {outcome: count} as JSON: `same` or `other` rows, `refused`, or how the process ended otherwise.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa

from starbucks_retrieval.data.formats import arrow
from starbucks_retrieval.errors import UserError

_ENDS = {0: "same", 1: "traceback", 2: "refused", 3: "other"}


def main(seed: int, count: int, folder: Path) -> None:
    """Write a folder as save_to_disk does, and read it after each of `count` flips."""
    table = pa.table(
        {
            "docid": [f"d{row}" for row in range(500)],
            "text": [f"passage {row} {'word ' * (row % 13)}é中" for row in range(500)],
            "title": [None if row % 3 else f"title {row}" for row in range(500)],
            "negatives": [[f"n{one}" for one in range(row % 4)] for row in range(500)],
        }
    )
    path = folder / "data.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=200)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": path.name}]}))
    whole, expected, rng = path.read_bytes(), list(arrow.folder_rows(folder)), random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(count):
        content = bytearray(whole)
        content[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                os._exit(0 if list(arrow.folder_rows(folder)) == expected else 3)
            except UserError:
                os._exit(2)
            except BaseException:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        found[f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else _ENDS[os.WEXITSTATUS(status)]] += 1
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
