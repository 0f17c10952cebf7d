"""Thousands of flipped bits in Arrow folders end no process. Texts have no checksum there: others may be read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.attack, pytest.mark.timeout(3600)]
SCRIPT = Path(__file__).parents[1] / "arrow_flips.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_end_no_process(tmp_path, seed):
    words = [sys.executable, str(SCRIPT), str(seed), "600", str(tmp_path)]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    print(found)
    assert set(found) <= {"same", "other", "refused"}
