"""The example scripts: every flag in them exists, and the studies run to their tables, also after a kill."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from starbucks_retrieval import Size, UserError
from starbucks_retrieval.metrics.results import Cell, Results, read_results, write_results

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SOURCED = {"common.sh", "settings.sh"}
SCRIPTS = sorted(EXAMPLES.rglob("*.sh"))
STAGES = ("pretrain", "mine", "train", "encode", "search", "evaluate", "sts", "report")
# Whose flags an array holds where its name is not a stage's.
ARRAYS = {"passages": ["encode"], "queries": ["encode"], "texts": ["encode"], "ray": ["encode", "search"]}
NOT_OURS = {"cut", "data"}  # of cut_set.py and make_pairs.py


def load(path: str):
    """A Python file of the examples as a module."""
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def commands(text: str) -> list[tuple[str, str]]:
    """(stage, words) of every command and every array of flags in a script."""
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")).replace("\\\n", " ")
    found = re.findall(r"\b(?:stage|launch|train_stage) (\w+) ([^\n;]*)", text)
    for name, words in re.findall(r"\b(\w+?)_flags(?:_here)?\+?=\((.*?)\)(?=\n|;|$| ;)", text):
        if name not in NOT_OURS:
            found += [(stage, words) for stage in ARRAYS.get(name, [name])]
    return found


@pytest.fixture(scope="module")
def known_flags():
    """Stage → its flags, from --help, with those that transformers takes."""
    import contextlib
    import dataclasses
    import io

    from transformers import TrainingArguments

    flags = {}
    for stage in STAGES:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            importlib.import_module(f"starbucks_retrieval.{stage}.__main__").main(["--help"])
        flags[stage] = set(re.findall(r"--(\w+)", out.getvalue()))
    trained = {field.name for field in dataclasses.fields(TrainingArguments)}
    return flags | {stage: flags[stage] | trained for stage in ("train", "pretrain")}


def test_every_flag_in_the_scripts_is_one_of_its_stage(known_flags):
    seen = 0
    for script in SCRIPTS:
        for stage, words in commands(script.read_text(encoding="utf-8")):
            for flag in re.findall(r"(?<![\w\"-])--(\w+)", words):
                assert flag in known_flags[stage], f"{script.relative_to(EXAMPLES)}: starbucks {stage} has no --{flag}"
                seen += 1
    assert seen > 120  # the pattern still finds them


def test_every_preset_in_the_scripts_is_one():
    from starbucks_retrieval.pretrain.__main__ import PRESETS as PRETRAINING
    from starbucks_retrieval.train.presets import PRESETS

    texts = [script.read_text("utf-8") for script in SCRIPTS]
    named = [word for text in texts for word in re.findall(r"(?:--preset|_preset=) ?\"?([\w-]+)", text)]
    named += [f"{word}-released" for text in texts for word in re.findall(r"--preset \"([\w-]+)\$released", text)]
    assert len(named) > 15 and set(named) <= PRESETS.keys() | PRETRAINING.keys()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_a_script_can_be_read_by_bash_and_by_people(script):
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    text = script.read_text(encoding="utf-8")
    assert (text.startswith("#!/usr/bin/env bash\n# ") and "set -euo pipefail" in text) or script.name in SOURCED
    header = text[: text.index("\nset -")] if script.name not in SOURCED else text
    if script.name not in SOURCED:
        assert os.access(script, os.X_OK)
        for word in ("Inputs", "Outputs", "Time"):
            assert re.search(rf"^# {word}", header, re.M), f"the header does not tell {word}"
        assert re.search(r"^# (Time, d|D)isk", header, re.M)
    assert not re.search(r"\b(TIME|DISK)_[A-Z]+", header)


def words(rng: random.Random, count: int) -> str:
    return " ".join(f"w{rng.randrange(95)}" for _ in range(count))


def write_set(path: Path, splits: dict[str, range]) -> Path:
    """A BEIR folder of 120 documents; query i is the beginning of document i."""
    (path / "qrels").mkdir(parents=True)
    rng = random.Random(5)
    texts = [words(rng, rng.randint(8, 20)) for _ in range(120)]
    lines = [json.dumps({"_id": f"d{i}", "title": "", "text": text}) for i, text in enumerate(texts)]
    (path / "corpus.jsonl").write_text("\n".join(lines))
    asked = [json.dumps({"_id": f"q{i}", "text": " ".join(texts[i].split()[:4])}) for i in range(70)]
    (path / "queries.jsonl").write_text("\n".join(asked))
    for name, numbers in splits.items():
        judged = "".join(f"q{i}\td{i}\t1\nq{i}\td{i + 1}\t0\n" for i in numbers)
        (path / "qrels" / f"{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixty dev queries, ten test queries, and these under a second name."""
    splits = {"dev": range(60), "test": range(60, 70), "dl19": range(60, 70)}
    return write_set(tmp_path_factory.mktemp("source") / "made", splits)


@pytest.fixture
def run(tiny_bert, tmp_path):
    """Run a script in a folder of its own, with our interpreter and the tiny model."""

    def start(script: str, *arguments, **settings) -> subprocess.Popen:
        env = {"PYTHON": sys.executable, "BACKBONE": str(tiny_bert), "WORK": str(tmp_path / "work"), **settings}
        return subprocess.Popen(
            [EXAMPLES / script, *map(str, arguments)],
            env={name: value for name, value in os.environ.items() if name != "STARBUCKS"} | env,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def finish(script: str, *arguments, status: int = 0, **settings) -> str:
        out, _ = (process := start(script, *arguments, **settings)).communicate()
        assert process.returncode == status, out
        return out

    finish.start = start
    return finish


@pytest.mark.slow
def test_the_retrieval_study_goes_on_after_a_kill(run, tmp_path):
    work = tmp_path / "work"
    tiny = {
        "DATA": str(write_set(tmp_path / "made", {"dev": range(60)})),
        "SIZES": "2:16,4:32",
        "METHODS": "srl",
        "PASSAGES": "80",
        "QUERIES": "8",
        "TRAIN_QUERIES": "40",
        "STEPS": "60",
        "MINE_FLAGS": "--range 1:50",
        "TRAIN_FLAGS": "--passage_max_len 48",
    }
    process = run.start("msmarco/run.sh", **tiny)
    wait_until((work / "models/srl/checkpoint-30/trainer_state.json").exists, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (work / "models" / "srl" / "training.json").exists()

    out = run("msmarco/run.sh", **tiny)
    assert "--resume_from_checkpoint true" in out and re.search(r"kept +data", out)
    assert re.search(r"kept +negatives/bm25", out)
    results = read_results(work / "results" / "srl" / "dev.json")
    cells = [cell for cell in results.cells if cell.measure == "RR@10"]
    assert [cell.size for cell in cells] == [Size(2, 16), Size(4, 32)] and results.label == "BERT-SRL"
    assert all(cell.dataset == "dev-tiny" and cell.count == 8 for cell in cells)
    assert "BERT-SRL" in out and (work / "report" / "index.html").is_file()
    assert "are kept among its negatives (--false\\_negatives keep) in every method" in out

    assert "other settings" in run("msmarco/run.sh", **(tiny | {"STEPS": "61"}), status=2)
    (work / "runs" / "srl" / "dev" / "L4-D32.trec").unlink()
    part = run("msmarco/run.sh", **tiny)
    # What is missing is made again, and what follows from it; all the rest is kept.
    assert re.findall(r"^\$ starbucks (\w+)", part, re.M) == ["search", "evaluate", "report"]
    assert "--sizes 4:32" in part


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mlm-sizes", "mlm"])
def test_the_ablations_of_pre_training(run, folder, tmp_path, objective):
    tiny = {"DATA": str(folder), "PASSAGES": "80", "QUERIES": "8", "SIZES": "2:16,4:32", "PRETRAIN_STEPS": "2"}
    tiny |= {"PRETRAIN_FLAGS": f"--max_length 32 --objective {objective}"}
    run("msmarco/data.sh", **tiny)
    run("msmarco/pretrain.sh", **tiny)
    record = json.loads((tmp_path / "work" / "pretrained" / "training.json").read_text())
    assert record["configuration"]["pretrain"]["objective"] == objective
    assert record["figures"]["sizes"] == ("4:32" if objective == "mlm" else "2:16,4:32")


@pytest.mark.slow
def test_a_second_run_waits_for_what_a_killed_one_left_behind(run, folder, tmp_path):
    (tmp_path / "work").mkdir()
    holder = ["flock", tmp_path / "work" / ".lock", "sh", "-c", "echo held; cat"]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as left:
        assert left.stdout.readline() == "held\n"
        second = run.start("msmarco/data.sh", DATA=str(folder), PASSAGES="80", QUERIES="8", SIZES="4:32")
        said = next((line for line in second.stdout if "waiting for another run" in line), None)
        assert said is not None and second.poll() is None
        assert not (tmp_path / "work" / "data").exists()
    out, _ = second.communicate()
    assert second.returncode == 0, out
    assert (tmp_path / "work" / "data" / "corpus.jsonl").is_file()


@pytest.mark.slow
def test_the_zero_shot_study(run, folder, tiny_bert, tmp_path):
    settings = {"MODELS": f"tiny={tiny_bert}", "SETS": str(folder), "SIZES": "2:16,4:32", "PASSAGES": "60"}
    settings |= {"IDENTICAL": "made", "WITHOUT": "", "QUERIES": "6", "PASSAGE_MAX_LEN": "48"}
    out = run("beir/run.sh", **settings)
    assert "| tiny | 2:16 | 4:32 |" in out and "--remove_identical_ids true" in out
    results = read_results(tmp_path / "work" / "results" / "tiny" / "made.json")
    assert {cell.count for cell in results.cells} == {6} and results.more["identical_ids"] == "removed"


@pytest.mark.slow
def test_the_similarity_study_on_made_up_sentences(run, tmp_path):
    settings = {"DATA": "", "SIZES": "2:16,4:32", "TRIPLES": "64", "PAIRS": "24", "STEPS": "2"}
    out = run("sts/run.sh", **settings)
    assert "BERT-SRL" in out and "in every method. Presets: those of the papers' text." in out
    [results] = [read_results(path) for path in (tmp_path / "work" / "results").iterdir()]
    assert [(cell.dataset, cell.size, cell.count) for cell in results.cells] == [
        ("made-up", Size(2, 16), 24),
        ("made-up", Size(4, 32), 24),
    ]


@pytest.mark.slow
def test_the_parts_that_a_slurm_array_encodes_are_one_store(run, folder, tiny_bert, tmp_path):
    flags = ("--model_name_or_path", tiny_bert, "--dataset_path", folder, "--sizes", "4:32", "--dtype", "fp32")
    for task in range(2):
        task_of = {"SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_ID": str(task)}
        run("cluster/slurm_encode.sh", *flags, "--encode_output_path", tmp_path / "passages", **task_of)
    from starbucks_retrieval.store import open_store

    assert open_store(str(tmp_path / "passages" / "part-*"), Size(4, 32)).count == 120


@pytest.mark.slow
def test_the_slurm_job_that_trains(run, folder, tiny_bert, tmp_path):
    (tmp_path / "bin").mkdir()
    for name, script in (("srun", 'exec "$@"'), ("scontrol", "echo 127.0.0.1")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    slurm = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}
    slurm |= {"SLURM_JOB_NODELIST": "here", "SLURM_GPUS_ON_NODE": "1", "PORT": "29617"}
    flags = ("--model_name_or_path", tiny_bert, "--dataset_path", folder, "--dataset_split", "dev", "--sizes", "4:32")
    flags += ("--train_group_size", 1, "--max_steps", 1, "--output_dir", tmp_path / "model")
    run("cluster/slurm_train.sh", *flags, **slurm)
    assert (tmp_path / "model" / "training.json").is_file()
    assert "is finished" in run("cluster/slurm_train.sh", *flags, **slurm)


def reported(out: str) -> list[str]:
    """The flags that a script gave to `report`."""
    (line,) = [line for line in out.splitlines() if line.startswith("$ starbucks report")]
    return shlex.split(line)


@pytest.mark.parametrize(
    ("methods", "baseline"),
    [("starbucks srl", "SMAE-SRL (Starbucks)"), ("srl", None), ("BASELINE srl 2dmse", "BERT-SRL")],
)
def test_the_retrieval_study_is_tested_against_the_papers_baseline(run, tmp_path, methods, baseline):
    env = {"STARBUCKS": "true", "DATA": "", "SIZES": "2:16", "METHODS": methods.removeprefix("BASELINE ")}
    env |= {"BASELINE": "srl"} if methods.startswith("BASELINE") else {}
    for method in env["METHODS"].split():
        (tmp_path / "work" / "results" / method).mkdir(parents=True)
        (tmp_path / "work" / "results" / method / "dev.json").touch()
    (tmp_path / "work" / "report").mkdir()
    for table in ("by_size.md", "averages.md"):
        (tmp_path / "work" / "report" / table).touch()
    out = run("msmarco/report.sh", **env)
    words = reported(out)
    assert ("--baseline" in words) == (baseline is not None)
    if baseline:
        assert words[words.index("--baseline") + 1] == baseline and words[words.index("--correction") + 1] == "none"
    else:
        assert "nothing is tested for significance: the baseline starbucks is not among: srl" in out


def test_the_similarity_study_is_tested_against_the_papers_baseline(run, tmp_path):
    for method in ("starbucks", "srl"):
        (tmp_path / "work" / "models" / method).mkdir(parents=True)
        (tmp_path / "work" / "models" / method / "training.json").touch()
    for name in ("data/sts", "results", "report", "smae"):
        (tmp_path / "work" / name).mkdir(parents=True)
    (tmp_path / "work" / "smae" / "training.json").touch()
    (tmp_path / "work" / "models" / "starbucks" / "training.json").touch()
    for name in ("results/starbucks.json", "results/srl.json", "report/by_size.md", "report/averages.md"):
        (tmp_path / "work" / name).touch()
    env = {"STARBUCKS": "true", "DATA": "", "SIZES": "2:16", "METHODS": "srl starbucks"}
    words = reported(run("sts/run.sh", SMAE=str(tmp_path / "work" / "smae"), **env))
    assert words[words.index("--baseline") + 1] == "SMAE-SRL (Starbucks)"


def test_the_zero_shot_study_tests_and_reads_arguments_whole(run, folder, tmp_path):
    (tmp_path / "work" / "sets" / "arguana").mkdir(parents=True)
    for name in ("arguana", "model"):
        (tmp_path / name).mkdir()
    models = f"Starbucks={tmp_path / 'model'} Other={tmp_path / 'model'}"
    env = {"STARBUCKS": "true", "SIZES": "2:16", "PASSAGE_MAX_LEN": "96", "MODELS": models}
    out = run("beir/run.sh", SETS=str(tmp_path / "arguana"), status=2, **env)  # nothing was made to average over
    queries = [line for line in out.splitlines() if "--encode_is_query" in line]
    assert len(queries) == 2 and all("--query_max_len 96 --override" in line for line in queries)
    words = reported(out)
    assert words[words.index("--baseline") + 1] == "Starbucks"


def test_the_forums_of_cqadupstack_have_one_name_in_the_zero_shot_study(run, tmp_path):
    (tmp_path / "work").mkdir()
    settings = {"STARBUCKS": "true", "SCALE": "full", "MODELS": f"Starbucks={tmp_path}", "SETS": "beir/cqadupstack/*"}
    out = run("beir/run.sh", status=2, **settings)
    assert re.findall(r"^== Starbucks on (\S+)", out, re.M)[::11] == ["cqadupstack-android", "cqadupstack-wordpress"]


@pytest.mark.parametrize(
    ("name", "measures"), [("dev", "RR@10 R@9"), ("dl19", "nDCG@10 RR@10 RR(rel=2)@10 R@9 R(rel=2)@9")]
)
def test_the_retrieval_study_measures_trecs_sets_as_trec_does(run, tmp_path, name, measures):
    for file in (f"data/qrels/{name}.tsv", f"runs/srl/{name}/L2-D16.trec"):
        (tmp_path / "work" / file).parent.mkdir(parents=True)
        (tmp_path / "work" / file).touch()
    out = run("msmarco/evaluate.sh", "srl", STARBUCKS="true", DATA="", SIZES="2:16", DEPTH="9")
    (line,) = [line for line in out.splitlines() if line.startswith("$ starbucks evaluate")]
    assert " ".join(shlex.split(line)).split("--measures ")[1].split(" --label")[0] == measures


def test_a_cut_set_is_part_of_the_whole_and_always_the_same(folder, tmp_path):
    cut_set = load("cut_set.py")
    flags = ["--source", str(folder), "--passages", "40", "--queries", "5", "--train", "30"]
    for name in ("one", "two"):
        cut_set.main([str(tmp_path / name), *flags])
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert [str(path) for path in files] == [
        *("corpus.jsonl", "qrels/dev.tsv", "qrels/dl19.tsv", "qrels/train.tsv", "queries.jsonl"),
    ]
    assert all((tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes() for path in files)
    whole = set((folder / "corpus.jsonl").read_text().splitlines())
    passages = (tmp_path / "one" / "corpus.jsonl").read_text().splitlines()
    assert len(passages) == 40 and set(passages) <= whole
    names = {json.loads(line)["_id"] for line in passages}
    judged = {path.stem: path.read_text().splitlines()[1:] for path in (tmp_path / "one" / "qrels").iterdir()}
    assert all(line.split("\t")[1] in names for lines in judged.values() for line in lines)
    asked = {name: {line.split("\t")[0] for line in lines} for name, lines in judged.items()}
    assert len(asked["dev"]) == 5 and len(asked["dl19"]) == 5 and len(asked["train"]) == 30
    assert asked["train"].isdisjoint(asked["dev"])
    # The best of what is judged is in the set, whatever is left out.
    assert all(any(line.endswith("\t1") for line in lines if line.startswith(f"{q}\t")) for q in asked["dev"] for lines in [judged["dev"]])  # fmt: skip
    with pytest.raises(UserError, match="exists"):
        cut_set.main([str(tmp_path / "one"), *flags])


def test_averages_leave_out_what_is_in_doubt(tmp_path):
    averages = load("beir/averages.py")
    sets = {"quora": 0.1, "scifact": 0.6, "cqadupstack-gis": 0.2, "cqadupstack-tex": 0.4}
    for name, value in sets.items():
        cells = [Cell(name, "nDCG@10", Size(2, 32), value, 10)]
        more = {"sets": [{"name": name, "flagged": name == "quora"}]}
        write_results(tmp_path / f"{name}.json", Results("evaluate", "ours", cells, more))
    files = [str(tmp_path / f"{name}.json") for name in sets]
    averages.main([*files, "--without", "scifact", "--output", str(tmp_path / "averages.md")])
    lines = (tmp_path / "averages.md").read_text().splitlines()[2:]
    assert lines == [
        "| ours | 2:32 |",
        "| --- | --- |",
        "| quora ! | 0.1000 |",
        "| scifact | 0.6000 |",
        "| cqadupstack | 0.3000 |",
        "| **Average** | 0.3333 |",
        "| **w/o quora (!)** | 0.4500 |",
        "| **w/o scifact** | 0.2000 |",
    ]


def test_made_up_pairs_score_what_they_share(tmp_path):
    make_pairs = load("sts/make_pairs.py")
    make_pairs.main([str(tmp_path / "data"), "--triples", "50", "--pairs", "60"])
    rows = [json.loads(line) for line in (tmp_path / "data" / "nli.jsonl").read_text().splitlines()]
    assert len(rows) == 50 and all(row["anchor"] != row["negative"] for row in rows)
    pairs = [line.split("\t") for line in (tmp_path / "data" / "sts" / "made-up.tsv").read_text().splitlines()[1:]]
    assert len(pairs) == 60 and {float(score) for score, _, _ in pairs} == {0, 1.25, 2.5, 3.75, 5}
    meaning = {wording: (slot, index) for slot, choices in enumerate(make_pairs._SLOTS) for index, two in enumerate(choices) for wording in two}  # fmt: skip
    for score, *texts in pairs:
        said = [{spot for wording, spot in meaning.items() if wording in text.lower()} for text in texts]
        assert float(score) == 5 * len(said[0] & said[1]) / 4


def policy_of(tmp_path, **policies):
    """What common.sh says of models that were trained with these values of --false_negatives."""
    words = []
    for label, policy in policies.items():
        (tmp_path / label).mkdir()
        record = {"configuration": {"train": {"false_negatives": policy}}}
        (tmp_path / label / "training.json").write_text(json.dumps(record))
        words.append(f"{label}={tmp_path / label}")
    command = ["bash", "-c", f". {EXAMPLES}/common.sh; policy_of {shlex.join(words)}"]
    done = subprocess.run(command, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tables_say_what_was_done_with_known_positives(tmp_path):
    assert policy_of(tmp_path, A="mask", B="mask") == (
        "In training a query's other known positives inside its batch are left out (--false_negatives mask) in every method.\n"
    )
    told = policy_of(tmp_path, C="keep", D="mask")
    assert "keep) in C; they are left out" in told and told.endswith("mask) in D.\n")


def test_commands_are_found():
    text = 'mine_flags=(--bm25)\nstage mine \\\n  "${mine_flags[@]}" --output_path x\n# stage train --nothing\n'
    assert sorted((stage, shlex.split(found)[-1]) for stage, found in commands(text)) == [
        ("mine", "--bm25"),
        ("mine", "x"),
    ]
