"""A damaged Arrow file is refused or read; it does not end the process. The long version is in tests/attack."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "arrow_flips.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_flipped_bits_end_no_process(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "1", "80", str(tmp_path)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert set(found) == {"same", "other", "refused"}
    assert found["refused"] > 10
