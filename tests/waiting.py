"""Waiting for what another process does, however slow the machine: no deadline but that of the test itself."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    """Look until `condition` holds. Fails at once if `process`, which is to bring it about, has ended before."""
    while not condition():
        ended = process.poll() is not None
        if condition():
            return
        assert not ended, f"the process ended with status {process.returncode} before that"
        time.sleep(0.005)
