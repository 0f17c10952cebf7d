"""Files and folders that appear complete or not at all."""

import errno
import gzip
import os
import signal
import subprocess
import sys

import pytest

from starbucks_retrieval import leftovers
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.files import (
    atomic_folder,
    atomic_path,
    atomic_writer,
    umask_permissions,
    write_json,
)
from starbucks_retrieval.leftovers import temporaries


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield
    os.umask(before)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_has_the_permissions_of_the_umask(tmp_path, umask):
    with atomic_writer(tmp_path / "a" / "x.txt") as file:
        file.write(b"1")
    assert (tmp_path / "a" / "x.txt").stat().st_mode & 0o777 == 0o640
    assert names(tmp_path / "a") == ["x.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("no errno"), UserError("what", "hint")])
def test_an_error_leaves_the_old_file(tmp_path, error):
    (tmp_path / "x").write_text("old")
    with pytest.raises(type(error) if isinstance(error, Exception) else error), atomic_writer(tmp_path / "x") as file:
        file.write(b"new")
        raise error
    assert (tmp_path / "x").read_text() == "old" and names(tmp_path) == ["x"]


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError) as caught:
        write_json(tmp_path / "x.json", {})
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "x.json"))
    assert names(tmp_path) == []


def test_two_writers_of_one_file_do_not_mix(tmp_path):
    with atomic_writer(tmp_path / "x") as one:
        one.write(b"1" * 10)
        with atomic_writer(tmp_path / "x") as two:
            two.write(b"2" * 5)
        assert len(temporaries(tmp_path / "x")) == 1
    assert (tmp_path / "x").read_bytes() == b"1" * 10 and names(tmp_path) == ["x"]


_WRITE_AND_DIE = """
import os, signal, sys
from starbucks_retrieval.files import atomic_writer
with atomic_writer(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
_WRITE_SLOWLY = """
import sys
from starbucks_retrieval.files import atomic_writer
with atomic_writer(sys.argv[1]) as file:
    file.write(b"slow")
    print("started", flush=True)
    sys.stdin.read()
"""


def kill_a_writer(path):
    done = subprocess.run([sys.executable, "-c", _WRITE_AND_DIE, str(path)])
    assert done.returncode == -signal.SIGKILL
    assert [left.read_bytes() for left in temporaries(path)] == [b"half"] and not path.exists()


def test_a_killed_writer_leaves_a_temporary_file_that_can_be_found(tmp_path):
    kill_a_writer(tmp_path / "x[1]")
    (tmp_path / ".x[1].tmp").write_text("left by 0.1")
    assert len(temporaries(tmp_path / "x[1]")) == 2
    assert temporaries(tmp_path / "x") == [] and temporaries(tmp_path / "absent" / "x") == []


def test_the_next_writer_of_a_file_removes_what_a_killed_one_left(tmp_path):
    kill_a_writer(tmp_path / "x.txt")
    write_json(tmp_path / "x", {})
    assert len(temporaries(tmp_path / "x.txt")) == 1  # of another name
    with atomic_writer(tmp_path / "x.txt", remove_leftovers=False) as file:
        file.write(b"1")
    assert len(temporaries(tmp_path / "x.txt")) == 1
    with pytest.raises(KeyboardInterrupt), atomic_writer(tmp_path / "x.txt"):
        raise KeyboardInterrupt
    assert names(tmp_path) == ["x", "x.txt"]


def test_a_writer_leaves_the_temporary_file_of_one_that_runs(tmp_path):
    path = tmp_path / "x"
    slow = subprocess.Popen(
        [sys.executable, "-c", _WRITE_SLOWLY, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert slow.stdout.readline() == b"started\n"
    write_json(path, {})
    assert len(temporaries(path)) == 1 and path.read_text() == "{}\n"
    slow.communicate()
    assert slow.returncode == 0 and path.read_bytes() == b"slow" and names(tmp_path) == ["x"]


@pytest.mark.parametrize("module", [True, False])
def test_without_locks_no_temporary_file_is_removed(tmp_path, monkeypatch, module):
    kill_a_writer(tmp_path / "x")

    def unsupported(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    if module:
        monkeypatch.setattr(leftovers.fcntl, "flock", unsupported)
    else:
        monkeypatch.setattr(leftovers, "fcntl", None)
    write_json(tmp_path / "x", {})
    assert (tmp_path / "x").read_text() == "{}\n" and len(temporaries(tmp_path / "x")) == 1


def test_a_file_that_vanishes_before_it_is_locked_is_created_again(tmp_path, monkeypatch):
    lock = leftovers.fcntl.flock

    def removed_first(descriptor, operation):
        monkeypatch.setattr(leftovers.fcntl, "flock", lock)
        for left in temporaries(tmp_path / "x"):
            left.unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(leftovers.fcntl, "flock", removed_first)
    write_json(tmp_path / "x", {})
    assert (tmp_path / "x").read_text() == "{}\n" and names(tmp_path) == ["x"]


def test_equal_content_gives_equal_gzip_bytes(tmp_path):
    for name in ("a.gz", "b.gz"):
        with atomic_writer(tmp_path / name) as file:
            file.write(b"text")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"text"


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UserError, match="is a folder"), atomic_path(tmp_path):
        pass


def test_a_folder_replaces_another_or_leaves_it(tmp_path):
    for text in ("1", "2"):
        with atomic_folder(tmp_path / "out") as folder:
            (folder / "x").write_text(text)
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "out") as folder:
        (folder / "x").write_text("3")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "x").read_text() == "2"


def test_a_folder_replaces_a_file(tmp_path):
    (tmp_path / "out").write_text("a file")
    with atomic_folder(tmp_path / "out") as folder:
        (folder / "x").write_text("1")
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "x").read_text() == "1"


_REPLACE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from starbucks_retrieval.files import atomic_folder
path, renames = Path(sys.argv[1]), int(sys.argv[2])
def rename(self, target, real=Path.rename):
    global renames
    if not renames:
        os.kill(os.getpid(), signal.SIGKILL)
    renames -= 1
    return real(self, target)
Path.rename = rename
with atomic_folder(path) as folder:
    (folder / "x").write_text("new")
"""


@pytest.mark.parametrize("renames", [0, 1])
def test_a_killed_writer_of_a_folder_leaves_nothing_for_long(tmp_path, renames):
    path = tmp_path / "out"
    with atomic_folder(path) as folder:
        (folder / "x").write_text("old")
    done = subprocess.run([sys.executable, "-c", _REPLACE_AND_DIE, str(path), str(renames)])
    assert done.returncode == -signal.SIGKILL and path.exists() == (not renames)
    with pytest.raises(KeyboardInterrupt), atomic_folder(path) as folder:
        raise KeyboardInterrupt
    assert names(tmp_path) == ["out"] and (path / "x").read_text() == "old"  # moved back, if it was moved aside


def test_a_writer_of_a_folder_leaves_that_of_a_running_one(tmp_path):
    with atomic_folder(tmp_path / "out") as one:
        with atomic_folder(tmp_path / "out") as two:
            (two / "x").write_text("2")
        (one / "x").write_text("1")
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "x").read_text() == "1"


def test_reading_the_umask_leaves_nothing(tmp_path, umask):
    (tmp_path / ".mode.0123456789ab.tmp").write_text("of a killed process")
    with umask_permissions(tmp_path):
        os.close(os.open(tmp_path / "x", os.O_CREAT | os.O_WRONLY, 0o600))
    assert names(tmp_path) == ["x"] and (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_a_folder_that_may_not_be_written_is_named_without_the_temporary_name(tmp_path, monkeypatch):
    def refused(temporary, folder=False):
        raise PermissionError(errno.EACCES, "Permission denied", str(temporary))

    monkeypatch.setattr(leftovers, "create_locked", refused)
    with pytest.raises(OSError) as caught:
        write_json(tmp_path / "x.json", {})
    assert caught.value.filename == str(tmp_path / "x.json")
