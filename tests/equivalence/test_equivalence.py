"""Configurations that must agree follow one trajectory, through the real command line.

One process on a batch = two processes on its halves = the same with a gradient cache; and, where no query's loss sees
another's passages, = the halves accumulated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import save_model
from safetensors.torch import load_file
from small_stores import write_store

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.train.__main__ import main

BATCH = 8
COMMON = (
    "--max_steps 3 --learning_rate 0.01 --optim sgd --warmup_steps 0 --logging_steps 1 --save_strategy no --quiet "
    "--overwrite_output_dir --dropout 0 --sizes 1:8,2:16,4:32"
)
GROUPS = "--dataset_path rows.jsonl --train_group_size 3"
MIXTURE = "--dataset_path rows.jsonl@2 nli.jsonl --sampling uniform --train_group_size 2"
TEXTS = "--objective distil --dataset_path texts.txt --sizes 0:8,2:16,4:32"
MANY = TEXTS.replace("texts.txt", "many.txt")  # enough for a fit
NLI = "--task sts --dataset_path nli.jsonl"
DEV = (
    "--task sts --dataset_path nli.jsonl --eval_dataset_path pairs.tsv --eval_dataset_split dev --eval_steps 1 "
    "--save_strategy steps --save_steps 1"
)
# By name: the flags, and the loss and gradient norm of the first and the last step.
CLASSES: dict[str, tuple[str, list[float]]] = {
    "srl": (GROUPS, [3.3506, 2.0067, 3.2378, 1.5143]),
    "srl-sampled": (f"{GROUPS} --variant starbucks-sampled", [20.3777, 16.0948, 19.7051, 10.7076]),
    "srl-sts": (f"{NLI} --variant starbucks-sts-released", [9.9543, 24.0603, 8.5862, 10.8819]),
    "mrl": (f"{GROUPS} --objective mrl", [10.3787, 12.2673, 9.8542, 8.421]),
    "2dmse": (f"{GROUPS} --objective 2dmse", [13.707, 10.3959, 13.1093, 6.3547]),
    "2dmse-v2": (f"{GROUPS} --objective 2dmse-v2", [112.0711, 58.3667, 115.9083, 58.6971]),
    "2dmse-v2-score": (
        f"{GROUPS} --objective 2dmse-v2 --variant retrieval-score --fix_doc",
        [19.9823, 48.3375, 19.2829, 50.923],
    ),
    "angle": (
        f"{NLI} --objective 2dmse-v2 --variant angle --pca exact --objective_options pca_sign=canonical",
        [271.4436, 509.1657, 257.7758, 264.9417],
    ),
    "pairs": ("--task sts --dataset_path pairs.tsv", [4.2246, 16.0319, 4.2257, 13.6058]),
    "distilled": (f"{GROUPS} --distil_weight 1 --in_batch_negatives false", [1.8971, 3.2131, 1.6289, 2.348]),
    "bf16": (f"{GROUPS} --bf16", [3.3524, 2.0091, 3.2385, 1.5142]),
    "separate": (f"{GROUPS} --objective separate --sizes 2:16", [3.4794, 3.1011, 3.1993, 2.2554]),
    "projections": (
        f"{GROUPS} --projections fit --projection_learning_rate 0.02",
        [3.284, 5.1552, 3.2471, 2.6738],
    ),
    "projections-sampled": (f"{GROUPS} --projections random --objective 2dmse", [14.1872, 9.7321, 13.7703, 5.3613]),
    "distil": (
        f"{TEXTS} --projections random --objective_options asymmetric_weight=1",
        [0.7514, 0.3776, 0.7434, 0.3225],
    ),
    "distil-spread": (
        f"{TEXTS} --objective_options spread_weight=1 --projections none --sizes 1:8,2:16,4:32",
        [2.1255, 1.9728, 2.0761, 1.5333],
    ),
    "distil-teacher": (
        f"{TEXTS} --projections random --objective_options asymmetric_weight=1 --teacher_model_name_or_path big",
        [0.7328, 0.3877, 0.8878, 0.3213],
    ),
    "distil-stored": (
        "--objective distil --dataset_path corpus.jsonl --sizes 0:8,2:16,4:32 --projections random "
        "--objective_options spread_weight=1 full_follows=teacher --teacher_embeddings store",
        [2.2502, 0.5512, 2.2022, 0.3981],
    ),
    "mixture": (
        f"{MIXTURE} --same_source_batches true --query_negatives true --passage_negatives true "
        "--false_negative_margin 0.05 --normalize true --temperature 0.1",
        [3.3626, 0.2637, 3.4002, 0.255],
    ),
    "mixture-in-batch": (
        f'{MIXTURE} --dataset_path {{"name":"nli.jsonl","in_batch_negatives":false,"query_prefix":"w1"}}',
        [2.3111, 1.4298, 2.1074, 1.8004],
    ),
    "guided": (
        f"{MIXTURE} --guide_model_name_or_path big --query_negatives true --objective mrl",
        [7.7801, 8.2743, 5.4116, 7.9445],
    ),
    "guided-angle": (
        f"{MIXTURE} --guide_model_name_or_path big --angle_weight 1 --passage_negatives true --normalize true",
        [7.2815, 5.7826, 6.543, 5.5304],
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and small training files in a folder that commands run in."""
    folder = tmp_path_factory.mktemp("equivalence")
    save_model(folder / "bert")
    save_model(folder / "big", seed=1, hidden_size=48)
    rng = np.random.default_rng(0)

    def words(count):
        return " ".join(f"w{i}" for i in rng.integers(0, 95, count))

    def passage(docid):
        return {"docid": docid, "title": "", "text": words(6)}

    positives = [passage(f"p{i}") for i in range(20)]
    with open(folder / "rows.jsonl", "w") as rows, open(folder / "nli.jsonl", "w") as nli:
        for i in range(32):
            row = {
                "query_id": f"q{i}",
                "query": words(4),
                # queries share positives, so that known ones must be left out across processes too
                "positive_passages": [positives[i % 20], positives[(i + 7) % 20]],
                "negative_passages": [passage(f"n{i}-{k}") for k in range(4)],
                "positive_scores": [3.0, 2.0],
                "negative_scores": rng.normal(size=4).round(2).tolist(),
            }
            rows.write(json.dumps(row) + "\n")
            nli.write(json.dumps({"anchor": words(5), "positive": words(5), "negative": words(5)}) + "\n")
    with open(folder / "pairs.tsv", "w") as pairs:
        pairs.write("score\tsentence1\tsentence2\n")  # no column for the split: every split has all
        pairs.writelines(f"{rng.integers(0, 6)}\t{words(5)}\t{words(6)}\n" for _ in range(32))
    (folder / "texts.txt").write_text("".join(f"{words(8)}\n" for _ in range(60)))
    with open(folder / "corpus.jsonl", "w") as corpus:
        corpus.writelines(json.dumps({"_id": f"d{i}", "text": words(8)}) + "\n" for i in range(60))
    write_store(folder / "store", [f"d{i}" for i in range(60)], rng.normal(size=(60, 40)).astype(np.float32))
    (folder / "many.txt").write_text("".join(f"{words(8)}\n" for _ in range(90)))
    return folder


def command(flags: str, output: str, batch: int) -> list[str]:
    fixed = f"--model_name_or_path bert --output_dir {output} --per_device_train_batch_size {batch}"
    return f"{fixed} {COMMON} {flags}".split()


def run(folder: Path, flags: str, output: str, batch: int = BATCH) -> list[tuple[float, float]]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run_command(main, command(flags, output, batch)) == 0
    finally:
        os.chdir(before)
    return trajectory(folder / output)


def trajectory(output: Path) -> list[tuple[float, float]]:
    history = json.loads((output / "training.json").read_text())["history"]
    return [(entry["loss"], entry["grad_norm"]) for entry in history if "grad_norm" in entry]


def torchrun(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*launcher, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def two_processes(folder):
    """Every class trained by the same two processes, one after the other: starting them is what costs time."""
    half = BATCH // 2
    commands = [command(flags, f"two-{name}", half) for name, (flags, _) in CLASSES.items()]
    commands.append(command(f"{GROUPS} --grad_cache --gc_p_chunk_size 5", "two-cached", half))
    commands.append(command(DEV, "two-dev", half))
    commands.append(command(f"{GROUPS} --lora --lora_r 4", "two-lora", half))
    (folder / "commands.json").write_text(json.dumps(commands))
    (folder / "several.py").write_text(SEVERAL)
    torchrun(folder, "several.py")
    return folder


SEVERAL = """
import json, sys
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.train.__main__ import main
from starbucks_retrieval.trainer import distributed

shutdown, distributed.shutdown = distributed.shutdown, lambda: None  # the group is needed again
for command in json.load(open("commands.json")):
    code = run_command(main, command)
    if code:
        sys.exit(code)
shutdown()
"""


@pytest.fixture(scope="module")
def one_process(folder):
    """Each class' trajectory in one process, run when first asked for."""
    found: dict[str, list[tuple[float, float]]] = {}

    def of(name):
        if name not in found:
            found[name] = run(folder, CLASSES[name][0], f"one-{name}")
        return found[name]

    return of


def close(first, second, tolerance):
    np.testing.assert_allclose(np.array(first), np.array(second), rtol=tolerance, atol=1e-6)


def tolerance_of(name):
    return 2e-2 if name == "bf16" else 2e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_two_processes_follow_one(two_processes, one_process, name):
    close(one_process(name), trajectory(two_processes / f"two-{name}"), tolerance_of(name))
    one, two = (load_file(two_processes / f"{count}-{name}" / "model.safetensors") for count in ("one", "two"))
    if (two_processes / f"one-{name}" / "projections.safetensors").is_file():
        for weights, count in ((one, "one"), (two, "two")):
            weights.update(load_file(two_processes / f"{count}-{name}" / "projections.safetensors"))
    assert one.keys() == two.keys()
    for key in one:
        np.testing.assert_allclose(one[key], two[key], atol=1e-3 if name == "bf16" else 2e-5, err_msg=key)


@pytest.mark.slow
def test_two_processes_with_a_cache_follow_one_without(two_processes, one_process):
    close(one_process("srl"), trajectory(two_processes / "two-cached"), 2e-4)


@pytest.mark.slow
def test_two_processes_follow_one_with_lora(two_processes):
    close(run(two_processes, f"{GROUPS} --lora --lora_r 4", "one-lora"), trajectory(two_processes / "two-lora"), 2e-4)


@pytest.mark.slow
def test_two_processes_score_the_dev_set_as_one_and_choose_the_same_checkpoint(two_processes):
    run(two_processes, DEV, "one-dev")
    scores = []
    for name in ("one-dev", "two-dev"):
        history = json.loads((two_processes / name / "training.json").read_text())["history"]
        scores.append([entry["eval_spearman"] for entry in history if "eval_spearman" in entry])
    assert len(scores[0]) == 4
    np.testing.assert_allclose(*scores, atol=2e-2)  # ranks of a random model's cosines
    one, two = (load_file(two_processes / name / "model.safetensors") for name in ("one-dev", "two-dev"))
    assert all(np.allclose(one[key], two[key], atol=2e-5) for key in one)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_a_cache_changes_nothing(folder, one_process, name):
    cached = run(folder, f"{CLASSES[name][0]} --grad_cache --gc_q_chunk_size 3 --gc_p_chunk_size 5", f"cached-{name}")
    close(one_process(name), cached, tolerance_of(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        f"{GROUPS} --in_batch_negatives false",
        f"{GROUPS} --in_batch_negatives false --distil_weight 2 --objective mrl",
        f"{GROUPS} --in_batch_negatives false --projections fit",
        f"{MIXTURE} --same_source_batches true --in_batch_negatives false --false_negative_margin 0.5",
        f"{MANY} --kl_weight 0",
        f"{MANY} --kl_weight 0 --teacher_model_name_or_path big",
    ],
)
def test_accumulated_halves_follow_the_whole_batch(folder, flags):
    whole = run(folder, flags, "whole")
    halves = run(folder, f"{flags} --gradient_accumulation_steps 2", "halves", BATCH // 2)
    close(whole, halves, 2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_the_trajectory_is_the_one_on_record(one_process, name):
    first, *_, last = one_process(name)
    assert [*first, *last] == pytest.approx(CLASSES[name][1], rel=5e-2 if name == "bf16" else 2e-3)
