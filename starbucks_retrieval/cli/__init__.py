"""The command line: flags from dataclasses, configuration files, logging, progress, dry runs and exit codes."""

from starbucks_retrieval.cli.checks import check_least
from starbucks_retrieval.cli.command import (
    exit_command,
    finish,
    format_number,
    log,
    parse_command,
    progress,
    quiet_unless_first,
    readable,
    run_command,
    setup_logging,
)
from starbucks_retrieval.cli.flags import CommonArguments, as_flag_values, flag, parse_flags
from starbucks_retrieval.lazy import public_names

__all__ = [
    "CommonArguments",
    "as_flag_values",
    "check_least",
    "exit_command",
    "finish",
    "flag",
    "format_number",
    "log",
    "parse_command",
    "parse_flags",
    "progress",
    "quiet_unless_first",
    "readable",
    "run_command",
    "setup_logging",
]
__dir__ = public_names(__name__)
