"""The run of a command: logging, progress, the summary at its end, and exit codes."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import errno
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from starbucks_retrieval.cli.flags import CommonArguments, parse_flags
from starbucks_retrieval.errors import NO_SPACE, UserError, as_os_error
from starbucks_retrieval.locks import has_kept, hold_until_exit, release_kept

T = TypeVar("T")
_LONGEST = 1000  # characters of a line of an error
log = logging.getLogger("starbucks_retrieval")

_PATHS = (
    *(errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EMFILE),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENXIO),
)


def run_command(main: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Run a command's main function and return its exit code.

    Args:
        main: Called with the words of the command line.
        argv: The words; those of this process if None.

    Returns:
        0 when done or when the reader of a pipe left, 2 for a user error or a full or unreadable disk, 130 when
        interrupted. Any other exception is a bug and is raised.
    """
    try:
        main(sys.argv[1:] if argv is None else argv)
        return 0
    except UserError as error:
        return _print_error(error.what, error.hint)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        # Users can correct the state of a disk and its permissions; all other errors are bugs.
        if (found := as_os_error(error)) is None or (lines := _disk_problem(found)) is None:
            raise
        return _print_error(*lines)


def _disk_problem(error: OSError) -> tuple[str, str] | None:
    """Return the two lines for an error that is not a bug."""
    name = error.filename
    if error.errno in NO_SPACE:
        what = f"{name or 'a file of the output'} would exceed the limit on the size of files"
        if error.errno != errno.EFBIG:
            what = f"no space left on the disk for {name or 'the output'}"
        return what, "free space or raise the limit, and run the same command again; finished parts are kept"
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return (
            f"{name or 'a file or folder'} may not be written or read",
            "check its permissions, or choose another folder",
        )
    if error.errno in (errno.EIO, errno.ESTALE) or (name and error.errno in _PATHS):
        return f"{name or 'the output'}: {error.strerror}", "check the path and the file system it lies on"
    return None


def exit_command(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Run a command for the command line of this process, and end the process with its exit code.

    A process that is killed while Python ends has done its work but has not told its caller, who runs the same command
    again. So the locks by which the next run knows the output are released last, and Python's own ending, which takes a
    tenth of a second with large libraries, is left out after them.

    Args:
        main: Called with the words of the command line, as for `run_command`.
    """
    hold_until_exit()
    status = run_command(main)
    if not has_kept():
        release_kept()
        sys.exit(status)
    atexit.unregister(release_kept)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader left, or it is closed
            stream.flush()
    release_kept()
    os._exit(status)


def _print_error(problem: str, hint: str) -> int:
    print(f"error: {_one_line(problem)}", file=sys.stderr)
    if hint:
        print(f"  try: {_one_line(hint)}", file=sys.stderr)
    return 2


def _one_line(text: str) -> str:
    """Return a text without line breaks and other control characters, and without the middle of a long one.

    Messages quote files, which can hold anything.
    """
    line = "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))
    half = _LONGEST // 2
    return line if len(line) <= _LONGEST else f"{line[:half]} … {line[-half:]}"


def parse_command(
    classes: Sequence[type], argv: Sequence[str], prog: str, description: str, examples: Sequence[str] = ()
) -> list[Any]:
    """Parse the words of a command, and send the log to standard error as its flags say.

    Args:
        classes: The dataclasses of its flags; those of `CommonArguments` follow them.
        argv: The words of the command line.
        prog: The command, as `starbucks search`.
        description: One sentence for `--help`.
        examples: Command lines for `--help`.

    Returns:
        An instance of each class, and of `CommonArguments`.

    Raises:
        UserError: As `parse_flags`.
    """
    parsed, _ = parse_flags([*classes, CommonArguments], argv, prog, description, examples)
    setup_logging(parsed[-1])
    return parsed


def setup_logging(common: CommonArguments) -> None:
    """Send this package's log to standard error, one plain line per record.

    Handlers that the log had before are replaced.

    Args:
        common: The flags of the command. `quiet` keeps errors only; otherwise `log_level` is the lowest level shown.
    """
    handler = _Handler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.ERROR if common.quiet else common.log_level.upper())


class _Handler(logging.StreamHandler):
    """Prints records on lines of their own while progress bars are drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm = sys.modules.get("tqdm")  # without it, there is no bar
        with tqdm.tqdm.external_write_mode(file=self.stream) if tqdm else contextlib.nullcontext():
            super().emit(record)


def quiet_unless_first(common: CommonArguments) -> CommonArguments:
    """Make `common` silent in every process of a launcher (torchrun, deepspeed) but the first.

    Args:
        common: The flags of the command.

    Returns:
        `common` itself where the variable RANK is 0 or unset; elsewhere a copy with `quiet` on and `json` off.
    """
    if os.environ.get("RANK", "0") == "0":
        return common
    return dataclasses.replace(common, quiet=True, json=False)


def finish(common: CommonArguments, summary: str, figures: dict[str, Any]) -> None:
    """End a command: print the summary on standard error and, with `--json`, the figures on standard output.

    Args:
        common: `quiet` suppresses the summary, `json` prints the figures.
        summary: One line for people.
        figures: A JSON-ready mapping, printed as one line.
    """
    if not common.quiet:
        print(summary, file=sys.stderr)
    if common.json:
        print(json.dumps(figures, ensure_ascii=False), flush=True)


def progress(items: Iterable[T], total: int | None, units: str, label: str, every: float = 30.0) -> Iterator[T]:
    """Yield the items, with a progress bar on a terminal and in notebooks, and with log lines elsewhere.

    Args:
        items: The items.
        total: Their number, None if unknown.
        units: The plural of the items' name, as `passages`.
        label: The name of the work.
        every: Seconds between two log lines.
    """
    if log.level > logging.INFO:
        yield from items
        return
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        from tqdm import tqdm

        yield from tqdm(items, total=total, unit=f" {units}", desc=label, dynamic_ncols=True)
        return
    start = last = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - last >= every:
            last = now
            left = f", {(now - start) / done * (total - done):.0f} s left" if total else ""
            of = f" of {total}" if total else ""
            log.info("%s: %d%s %s, %.1f/s%s", label, done, of, units, done / (now - start), left)


def readable(count: int) -> str:
    """Format a number of bytes.

    Example:
        >>> readable(1_234_567_890)
        '1.2 GB'
    """
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def format_number(value: float, digits: int = 6) -> str:
    """Return a number rounded to `digits` significant digits, without an exponent for large numbers.

    Example:
        >>> format_number(240.3, 2), format_number(1e-05)
        ('240', '1e-05')
    """
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text else text
