"""Full disks and limits on the size of files: two lines, and the same command goes on when there is space."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from attack.faults import record
from conftest import slow_except

from . import commands

if not hasattr(resource, "RLIMIT_FSIZE"):  # pragma: no cover
    pytest.skip("needs limits on the size of files", allow_module_level=True)


# One that writes each kind of file: stores, runs, lists, results, a model, pages.
QUICK = ("encode", "search", "mine", "evaluate", "export", "store-npy", "browse")


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of its own, whose size `mount -o remount` sets."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("only root may mount a small file system")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4096", "none", str(folder)], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def resize(disk: Path, size: int) -> None:
    gc.collect()  # a deleted file that is mapped into memory keeps its space
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def refused(capsys) -> None:
    problem, remedy = capsys.readouterr().err.splitlines()[-2:]
    assert problem.startswith("error: ") and remedy.startswith("  try: ")
    assert "no space left" in problem or "limit on the size of files" in problem


def goes_on(run, folder: Path, clean: Path) -> None:
    assert run(folder, rerun=True) == 0
    expected, found = (
        {n: d for n, d in commands.digests(f).items() if Path(n).name not in commands.RECORDS} for f in (clean, folder)
    )
    assert found == expected


def limited(run, folder: Path, size: int) -> int:
    """Run where no file may be larger than `size` bytes; Python ignores the signal that the system sends."""
    run.prepare(folder)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        return run(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def sizes(folder: Path) -> list[int]:
    return sorted({path.stat().st_size for path in folder.rglob("*") if path.is_file()} - {0})


@pytest.mark.parametrize("name", slow_except(QUICK, [name for name in commands.NAMES if name != "transfer"]))  # minutes
def test_a_file_may_not_grow_any_more(runs, name, clean, tmp_path, capsys):
    largest = sizes(clean)[-1]
    capsys.readouterr()
    assert limited(runs[name], tmp_path / "out", largest - 1) == 2
    refused(capsys)
    goes_on(runs[name], tmp_path / "out", clean)


@pytest.mark.attack
@pytest.mark.parametrize("name", commands.NAMES)
def test_no_file_may_grow_any_more(runs, name, clean, tmp_path, capsys):
    limits = [0, *(size - 1 for size in sizes(clean))]
    for size in limits:
        capsys.readouterr()
        assert limited(runs[name], tmp_path / str(size), size) == 2
        refused(capsys)
        goes_on(runs[name], tmp_path / str(size), clean)
    record("disk", f"{name}, limit on the size of files", 0, len(limits), refused=len(limits))


@pytest.mark.attack
@pytest.mark.parametrize("name", commands.NAMES)
def test_the_disk_is_full(runs, name, clean, small_disk, capsys):
    total = sum(path.stat().st_size for path in clean.rglob("*") if path.is_file())
    found = {"completed": 0, "refused": 0}
    for share in (0, 10, 25, 40, 55, 70, 85, 95):
        resize(small_disk, 1 << 26)
        runs[name].prepare(small_disk / "out")
        older = sum(path.stat().st_size // 4096 + 2 for path in small_disk.rglob("*")) * 4096
        resize(small_disk, older + total * share // 100 // 4096 * 4096 + 4096)
        capsys.readouterr()
        status = runs[name](small_disk / "out")
        assert status in (0, 2)
        found["refused" if status else "completed"] += 1
        if status:
            refused(capsys)
        resize(small_disk, 1 << 26)
        goes_on(runs[name], small_disk / "out", clean)
        shutil.rmtree(small_disk / "out")
    record("disk", f"{name}, full disk", 0, sum(found.values()), **found)
