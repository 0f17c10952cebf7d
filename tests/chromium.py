"""Chromium without a window: what a page says after its scripts have run."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
NEEDED = "needs Chromium on the path (apt-get install chromium)"
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--allow-file-access-from-files",
]


def seen(page: Path, profile: Path, budget: int = 4000) -> tuple[str, list[str]]:
    """Return the text of <pre id="seen"> of a page, and the lines of its console.

    Args:
        page: A file of HTML.
        profile: An empty folder for the browser.
        budget: Milliseconds that the page's clock runs, as fast as its scripts do.
    """
    command = [str(BROWSER), *_FLAGS, f"--user-data-dir={profile}", "--window-size=1400,1000"]
    done = subprocess.run(
        [*command, f"--virtual-time-budget={budget}", "--dump-dom", page.as_uri()], capture_output=True, text=True
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr[-2000:]
    return html.unescape(found[1]), [line for line in done.stderr.splitlines() if "CONSOLE" in line]
