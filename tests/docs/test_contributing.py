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
        "method",
        "format",
        pytest.param("backend", marks=pytest.mark.slow),  # torch.export takes its time
        "consumer",
        "engine",
    ],
)
def test_the_example_applies_and_works(name, samples, tmp_path):  # noqa: F811
    number = [check.title for check in CHECKS].index(f"check: {name}")
    change, check = DIFFS[number], CHECKS[number]
    assert len(change.text.splitlines()) < 60
    package = tmp_path / "starbucks_retrieval"
    shutil.copytree(ROOT / "starbucks_retrieval", package)
    (tmp_path / "change.diff").write_text(change.text)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    applied = subprocess.run(
        ["git", "apply", "change.diff"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert applied.returncode == 0, f"{change}: {applied.stderr}"
    if "my-model" in check.text:
        samples.copy_to("my-model", tmp_path)
    (tmp_path / "check.py").write_text(check.text)
    if name == "method":
        trains_to_the_end("chain", samples, tmp_path, environment)
    elif name == "backend":
        encodes_to_the_end("exported", tmp_path, environment)
    elif name == "format":
        encodes("hens.sgml", 2, samples, tmp_path, environment)
    else:
        check_and_run([], tmp_path, environment)


@pytest.mark.slow
@pytest.mark.parametrize("check", [pytest.param(check, id=check.title) for check in CHECKS])
def test_a_check_fails_without_its_change(check, samples, tmp_path):  # noqa: F811
    if "my-model" in check.text:
        samples.copy_to("my-model", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", check.text], cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode != 0, "the check passes without the change"


def check_and_run(words, folder, environment):
    """Run the check, and a command after it in the same process, which has imported what both need."""
    program = (
        "import runpy, sys; runpy.run_path('check.py', run_name='__main__')\n"
        "from starbucks_retrieval.__main__ import _main\n"
        "if sys.argv[1:]: _main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def trains_to_the_end(objective, samples, folder, environment):  # noqa: F811
    """Train two steps by a method that was added, and find it in the card and the record."""
    samples.copy_to("my-backbone", folder)
    samples.copy_to("my-set", folder)
    words = f"train --objective {objective} --model_name_or_path my-backbone --dataset_path my-set --output_dir trained"
    fixed = "--train_group_size 1 --max_steps 2 --per_device_train_batch_size 2 --sizes 2:32,6:384 --logging_steps 1 --use_cpu"
    done = check_and_run([*words.split(), *fixed.split()], folder, environment)
    assert "was not written" not in done.stderr, done.stderr
    card = (folder / "trained" / "README.md").read_text()
    assert "A text encoder trained with a chain of alignments" in card and f"- objective: {objective}\n" in card
    history = json.loads((folder / "trained" / "training.json").read_text())["history"]
    assert {"ce/2:32", "kl/2:32", "ce/6:384"} <= set(history[0])


def encodes_to_the_end(backend, folder, environment):
    """Encode with a back end that was added, through the command line, and compare the store with that of torch."""
    (folder / "corpus.jsonl").write_text('{"_id": "1", "text": "hens lay eggs"}\n{"_id": "2", "text": "moths fly"}\n')
    for name in ("torch", backend):
        words = f"encode --backend {name} --dtype fp32 --model_name_or_path my-model --dataset_path corpus.jsonl"
        more = ["--sizes", "2:32", "--device", "cpu", "--encode_output_path", f"by-{name}"]
        check_and_run([*words.split(), *more], folder, environment)
    ours, exact = (open_store(output_folder(folder / f"by-{name}", Size(2, 32))) for name in (backend, "torch"))
    assert ours.spec.compute_dtype == f"{backend}-fp32" and exact.spec.compute_dtype == "fp32"
    np.testing.assert_allclose(ours.vectors(np.arange(2)), exact.vectors(np.arange(2)), atol=1e-3)


def encodes(corpus, count, samples, folder, environment):  # noqa: F811
    """Encode a corpus of the new format through the command line, and read the store."""
    samples.copy_to("my-model", folder)
    words = f"encode --model_name_or_path my-model --dataset_path {corpus} --encode_output_path store --sizes 2:32 --device cpu"
    check_and_run(words.split(), folder, environment)
    assert json.loads(next(folder.glob("store/**/manifest.json")).read_text())["rows"] == count
