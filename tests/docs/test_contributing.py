"""Each example change of CONTRIBUTING.md applies to this package and does what its check says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from docs.pages import ROOT, blocks
from docs.runner import samples  # noqa: F401

from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import open_store, output_folder

BLOCKS = list(blocks("CONTRIBUTING.md"))
DIFFS = [block for block in BLOCKS if block.language == "diff"]
CHECKS = [block for block in BLOCKS if (block.title or "").startswith("check: ")]


@pytest.mark.parametrize(
    "name",
    [
        "engine",  # needs no torch
        # The others apply and run in the same way, and take longer.
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("method", "format", "backend", "consumer")),
    ],
)
def test_the_example_applies_and_works(name, check_and_run, samples, tmp_path):  # noqa: F811
    number = [check.title for check in CHECKS].index(f"check: {name}")
    change, check = DIFFS[number], CHECKS[number]
    assert len(change.text.splitlines()) < 60
    package = tmp_path / "starbucks_retrieval"
    shutil.copytree(ROOT / "starbucks_retrieval", package)
    (tmp_path / "change.diff").write_text(change.text)
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    applied = subprocess.run(
        ["git", "apply", "change.diff"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert applied.returncode == 0, f"{change}: {applied.stderr}"
    if "my-model" in check.text:
        samples.copy_to("my-model", tmp_path)
    (tmp_path / "check.py").write_text(check.text)
    if name == "method":
        trains_to_the_end(check_and_run, "chain", samples, tmp_path)
    elif name == "backend":
        encodes_to_the_end(check_and_run, "exported", tmp_path)
    elif name == "format":
        encodes(check_and_run, "hens.sgml", 2, samples, tmp_path)
    else:
        check_and_run([], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("check", [pytest.param(check, id=check.title) for check in CHECKS])
def test_a_check_fails_without_its_change(check, samples, tmp_path):  # noqa: F811
    if "my-model" in check.text:
        samples.copy_to("my-model", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", check.text], cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode != 0, "the check passes without the change"


@pytest.fixture(scope="module")
def check_and_run():
    """A function that runs the check of a folder with its package, and then a command; it returns what they print."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-m", "docs.forks"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forks:

        def check_and_run(words, folder):
            forks.stdin.write(json.dumps([str(folder), words]) + "\n")
            forks.stdin.flush()
            status = forks.stdout.readline()
            printed = (folder / "printed.txt").read_text()
            assert status == "0\n", printed
            return printed

        yield check_and_run
        forks.stdin.close()


def trains_to_the_end(check_and_run, objective, samples, folder):  # noqa: F811
    """Train two steps by a method that was added, and find it in the card and the record."""
    samples.copy_to("my-backbone", folder)
    samples.copy_to("my-set", folder)
    words = f"train --objective {objective} --model_name_or_path my-backbone --dataset_path my-set --output_dir trained"
    fixed = "--train_group_size 1 --max_steps 2 --per_device_train_batch_size 2 --sizes 2:32,6:384 --logging_steps 1 --use_cpu"
    printed = check_and_run([*words.split(), *fixed.split()], folder)
    assert "was not written" not in printed, printed
    card = (folder / "trained" / "README.md").read_text()
    assert "A text encoder trained with a chain of alignments" in card and f"- objective: {objective}\n" in card
    history = json.loads((folder / "trained" / "training.json").read_text())["history"]
    assert {"ce/2:32", "kl/2:32", "ce/6:384"} <= set(history[0])


def encodes_to_the_end(check_and_run, backend, folder):
    """Encode with a back end that was added, through the command line, and compare the store with that of torch."""
    (folder / "corpus.jsonl").write_text('{"_id": "1", "text": "hens lay eggs"}\n{"_id": "2", "text": "moths fly"}\n')
    for name in ("torch", backend):
        words = f"encode --backend {name} --dtype fp32 --model_name_or_path my-model --dataset_path corpus.jsonl"
        more = ["--sizes", "2:32", "--device", "cpu", "--encode_output_path", f"by-{name}"]
        check_and_run([*words.split(), *more], folder)
    ours, exact = (open_store(output_folder(folder / f"by-{name}", Size(2, 32))) for name in (backend, "torch"))
    assert ours.spec.compute_dtype == f"{backend}-fp32" and exact.spec.compute_dtype == "fp32"
    np.testing.assert_allclose(ours.vectors(np.arange(2)), exact.vectors(np.arange(2)), atol=1e-3)


def encodes(check_and_run, corpus, count, samples, folder):  # noqa: F811
    """Encode a corpus of the new format through the command line, and read the store."""
    samples.copy_to("my-model", folder)
    words = f"encode --model_name_or_path my-model --dataset_path {corpus} --encode_output_path store --sizes 2:32 --device cpu"
    check_and_run(words.split(), folder)
    assert json.loads(next(folder.glob("store/**/manifest.json")).read_text())["rows"] == count
