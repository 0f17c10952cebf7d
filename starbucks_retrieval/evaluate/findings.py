"""What the preflight found, as messages."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from starbucks_retrieval.evaluate.preflight import Finding

log = logging.getLogger("starbucks_retrieval.evaluate")


def log_findings(name: str, findings: Sequence[Finding]) -> None:
    """Log findings: serious ones as errors, others as warnings.

    Args:
        name: The run or the judgements that they are about.
        findings: What the preflight found.
    """
    for finding in findings:
        word = "serious" if finding.serious else "note"
        level = logging.ERROR if finding.serious else logging.WARNING
        log.log(level, "%s: %s: %s\n  try: %s", word, name, finding.what, finding.remedy)
