"""One writer per folder: the holder is named, and the lock ends with its process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.locks import LOCK, FolderLock, OutputLock, left_by_killed_run, lock_of

_HOLDER = """
import os, signal, sys
from pathlib import Path
from starbucks_retrieval.locks import FolderLock
lock = FolderLock(Path(sys.argv[1]))
if not os.fork():
    print(os.getpid(), flush=True)  # by the child, which has let go of the lock by then
    signal.pause()
    os._exit(0)
signal.pause()
"""

_OUTPUT = """
import os, signal, sys
from pathlib import Path
from starbucks_retrieval import locks
from starbucks_retrieval.files import atomic_writer
if sys.argv[2] == "command":
    locks.hold_until_exit()
output = Path(sys.argv[1])
with locks.OutputLock(output) as lock, atomic_writer(output, before_rename=lock.announce) as file:
    file.write(b"done")
if sys.argv[3] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""

# What Windows has in the place of fcntl, as far as one process can tell.
_WINDOWS = """
import sys, types
from pathlib import Path
locked = []
def locking(descriptor, mode, count):
    if locked:
        raise PermissionError(13, "held")
    locked.append(descriptor)
sys.modules["fcntl"] = None
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=2)
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.locks import FolderLock
lock = FolderLock(Path(sys.argv[1]))
try:
    FolderLock(Path(sys.argv[1]))
except UserError as error:
    print(error.what)
lock.release()
"""


def test_a_held_folder_names_its_holder_until_it_is_released(tmp_path):
    lock = FolderLock(tmp_path)
    with pytest.raises(UserError) as refused:
        FolderLock(tmp_path)
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    assert refused.value.what == f"another process is writing {tmp_path}: {holder}"
    assert "wait" in refused.value.hint
    lock.release()
    lock.release()
    assert not (tmp_path / LOCK).exists()
    FolderLock(tmp_path).release()


def test_the_lock_of_a_killed_process_is_free_though_a_process_that_it_forked_lives_on(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(UserError, match=f"process {holder.pid} on "):
            FolderLock(tmp_path)
        holder.kill()
        holder.wait()
        FolderLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_a_forked_process_cannot_release_the_lock_of_its_parent(tmp_path):
    lock = FolderLock(tmp_path)
    child = os.fork()
    if not child:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(UserError, match="another process is writing"):
        FolderLock(tmp_path)
    lock.release()


def test_locks_without_fcntl(tmp_path):
    done = subprocess.run([sys.executable, "-c", _WINDOWS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"another process is writing {tmp_path}: process ")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_lock_of_an_output_is_beside_it_and_creates_no_folder_for_nothing(tmp_path):
    output = tmp_path / "new" / "deeper" / "run.trec"
    with OutputLock(output) as lock:
        assert names(output.parent) == [".run.trec.lock"] == [lock.path.name]
        with pytest.raises(UserError, match=f"another process is writing {output}: process {os.getpid()} on"):
            OutputLock(output)
    assert names(tmp_path) == []
    with OutputLock(output):
        output.write_text("x")
    assert names(output.parent) == ["run.trec"]


@pytest.mark.parametrize("ending", ["killed", "ended"])
@pytest.mark.parametrize("kind", ["command", "function"])
def test_an_output_is_known_as_that_of_a_killed_command_until_the_process_ends(tmp_path, kind, ending):
    output = tmp_path / "x"
    done = subprocess.run([sys.executable, "-c", _OUTPUT, str(output), kind, ending])
    assert done.returncode == (-signal.SIGKILL if ending == "killed" else 0) and output.read_text() == "done"
    left = kind == "command" and ending == "killed"
    assert left_by_killed_run(output, lock_of(output)) == left
    assert names(tmp_path) == [".x.lock", "x"][not left :]
    if left:
        with OutputLock(output):  # the next run may be killed before it writes anything
            assert left_by_killed_run(output, lock_of(output))
        subprocess.run([sys.executable, "-c", _OUTPUT, str(output), kind, ending])
        output.rename(tmp_path / "kept")
        output.write_text("put there by hand")
        assert not left_by_killed_run(output, lock_of(output))


_COMMAND = """
import os, signal, sys, threading, time
from pathlib import Path
from starbucks_retrieval.cli import exit_command
from starbucks_retrieval.locks import OutputLock
class AtTheEnd:
    def __del__(self, kill=os.kill, process=os.getpid()):
        kill(process, signal.SIGKILL)  # while Python ends
at_the_end = AtTheEnd()
def main(argv):
    output = Path(argv[0])
    with OutputLock(output) as lock:
        output.write_text("done")
        if argv[1] == "announced":
            lock.announce(output)
    print("summary")
exit_command(main)
"""


def test_a_command_with_an_output_ends_with_the_release_of_its_lock(tmp_path):
    """Nothing of Python's ending, which can be killed, follows."""
    for kind, status in (("announced", 0), ("other", -signal.SIGKILL)):
        words = [sys.executable, "-c", _COMMAND, str(tmp_path / "x"), kind]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == status and names(tmp_path) == ["x"]
        assert kind == "other" or done.stdout == "summary\n"
