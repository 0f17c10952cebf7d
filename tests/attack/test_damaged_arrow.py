"""Thousands of flipped bits in Arrow folders end no process. Texts have no checksum there: others may be read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attack.faults import record

pytestmark = [pytest.mark.attack, pytest.mark.timeout(3600)]
SCRIPT = Path(__file__).parents[1] / "arrow_flips.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_end_no_process(tmp_path, seed):
    words = [sys.executable, str(SCRIPT), str(seed), "600", str(tmp_path)]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    survived = {"same", "other", "refused"}
    lost = [name for name, count in found.items() if name not in survived for _ in range(count)]
    record("arrow", "a folder of save_to_disk", seed, sum(found.values()), lost, **found)
    assert set(found) <= survived
