"""A damaged Arrow file is refused or read; it does not end the process. The long version is in tests/attack."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from conftest import slow_except

from starbucks_retrieval.data.formats import find_reader
from starbucks_retrieval.errors import UserError

SCRIPT = Path(__file__).parents[2] / "arrow_flips.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("flips", slow_except([30], [30, 80]))
def test_flipped_bits_end_no_process(tmp_path, flips):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "1", str(flips), str(tmp_path)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert set(found) == {"same", "other", "refused"}
    assert found["refused"] > 10


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_names_of_columns_that_are_not_utf_8_are_refused(tmp_path, name):
    table, path = pa.table({"text": ["w1"], "naïve": ["w2"]}), tmp_path / name
    if name == "a.parquet":
        pyarrow.parquet.write_table(table, path, store_schema=False)
    else:
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table)
    assert len(list(find_reader(path)(path, 0, None, {}))) == 1
    path.write_bytes(path.read_bytes().replace("naïve".encode(), b"na\xff\xffve"))
    with pytest.raises(UserError, match=f"{name}: not an? "):
        list(find_reader(path)(path, 0, None, {}))
