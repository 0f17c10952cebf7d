"""What a command imports: nothing large before its flags and paths are checked, and little for one typed query.

Importing torch and transformers takes seconds. Tests read sys.modules instead of a clock.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from starbucks_retrieval.__main__ import STAGES
from starbucks_retrieval.cli.checks import check_collection, check_model, check_sizes, training_flags
from starbucks_retrieval.encode import EncodeArguments, encode
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.metrics.results import Cell, Results, write_results
from starbucks_retrieval.sizes import Size

LARGE = ("torch", "transformers", "datasets", "faiss", "scipy", "sklearn", "pandas", "matplotlib")
MODEL, DATA, OUT = ("--model_name_or_path", "./missing"), ("--dataset_path", "missing.jsonl"), ("--output_dir", "out")
NEVER = (
    *("scipy", "sklearn", "pandas", "datasets", "pyarrow", "accelerate", "sympy", "matplotlib"),
    *("sentence_transformers", "mteb"),
    *("torch._dynamo", "transformers.modeling_utils", "transformers.generation.utils"),
)

# Stage, wrong words, and a word of the error; {model} is a model folder, {data} a corpus.
WRONG = [
    ("pretrain", [*MODEL, "--dataset_path", "{data}", *OUT], "./missing"),
    ("pretrain", ["--model_name_or_path", "{model}", *DATA, *OUT], "missing.jsonl"),
    (
        "pretrain",
        ["--model_name_or_path", "{model}", "--dataset_path", "{data}", *OUT, "--max_step", "5"],
        "--max_step",
    ),
    ("pretrain", ["--model_name_or_path", "{model}", "--dataset_path", "{data}", *OUT], "no end"),
    ("mine", [*DATA, "--bm25", "--output_path", "o.jsonl"], "missing.jsonl"),
    ("mine", ["--dataset_path", "{data}", *MODEL, "--output_path", "o.jsonl"], "./missing"),
    ("fit", [*MODEL, "--dataset_path", "{data}", *OUT], "./missing"),
    ("fit", ["--model_name_or_path", "{model}", *DATA, *OUT], "missing.jsonl"),
    ("train", [*MODEL, "--dataset_path", "{data}", *OUT], "./missing"),
    (
        "train",
        ["--model_name_or_path", "{model}", "--dataset_path", "{data}", "missing.jsonl@2", *OUT],
        "missing.jsonl",
    ),
    ("train", ["--model_name_or_path", "{model}", "--dataset_path", "{data}"], "--output_dir is missing"),
    ("train", ["--model_name_or_path", "{model}", "--dataset_path", "{data}", *OUT, "--sizes", "2-32"], "'2-32'"),
    ("train", ["--model_name_or_path", "{model}", "--dataset_path", "{data}", *OUT, "--bff16", "true"], "--bff16"),
    *(
        (
            "train",
            ["--model_name_or_path", "{model}", "--dataset_path", "{data}", *OUT, f"--{name}", "./none"],
            "./none",
        )
        for name in ("teacher_model_name_or_path", "guide_model_name_or_path")
    ),
    ("encode", [*MODEL, "--dataset_path", "{data}", "--encode_output_path", "o"], "./missing"),
    ("encode", ["--model_name_or_path", "{model}", *DATA, "--encode_output_path", "o"], "missing.jsonl"),
    ("encode", ["--model_name_or_path", "{model}", "--encode_output_path", "o", "--sizes", "6"], "'6'"),
    (
        "encode",
        ["--model_name_or_path", "{model}", "--dataset_path", "{data}", "--encode_output_path", "o", "--sizes", "9:8"],
        "needs layer 9, but the model has 4 layers",
    ),
    (
        "encode",
        ["--model_name_or_path", "{model}", "--dataset_path", "{data}", "--encode_output_path", "o", "--device", "gpu"],
        "no device gpu",
    ),
    ("search", ["--query_reps", "missing", "--passage_reps", "missing", "--save_ranking_to", "r"], "missing"),
    ("search", [*MODEL, "--passage_reps", "{reps}", "--query", "w1"], "./missing"),
    ("search", ["--model_name_or_path", "{model}", "--passage_reps", "missing", "--query", "w1"], "missing"),
    (
        "search",
        ["--model_name_or_path", "{model}", "--passage_reps", "{reps}", "--query", "w1", "--hits", "0"],
        "--hits",
    ),
    (
        "search",
        ["--model_name_or_path", "{model}", "--passage_reps", "{reps}", "--query", "w1", "--size", "3:7"],
        "3:7",
    ),
    (
        "search",
        ["--model_name_or_path", "{model}", "--passage_reps", "{reps}", "--query", "w1", "--corpus_path", "none.tsv"],
        "none.tsv",
    ),
    ("store", ["verify", "missing"], "missing"),
    (
        "export",
        ["--model_name_or_path", "{model}", "--size", "9:8", *OUT, "--to", "transformers"],
        "needs layer 9, but the model has 4 layers",
    ),
    ("export", [*MODEL, "--size", "2:32", *OUT, "--to", "transformers"], "./missing"),
    ("convert", [*MODEL, *OUT], "./missing"),
    ("sts", MODEL, "./missing"),
    ("transfer", MODEL, "./missing"),
    ("grid", [*MODEL, "--dataset_path", "{data}"], "./missing"),
    ("grid", ["--model_name_or_path", "{model}", *DATA], "missing.jsonl"),
    ("choose", ["--input", "missing.json"], "missing.json"),
    ("report", ["--input", "missing.json", *OUT], "missing.json"),
    ("report", ["--input", "{results}", *OUT, "--baseline", "other"], "other"),
]

# Read before NumPy is imported; the rest of the package's names, and help, only before what is larger.
LIGHTEST = ["import starbucks_retrieval.data", "import starbucks_retrieval.mine.__main__"]
LIGHT = [
    "from starbucks_retrieval.losses import LOSSES; list(LOSSES)",
    "from starbucks_retrieval.models.backends import BACKENDS; list(BACKENDS)",
    "from starbucks_retrieval.integrations import CONSUMERS; list(CONSUMERS)",
    "from starbucks_retrieval.completion import completion_script; completion_script('bash')",
]

RUN = """
import contextlib, io, json, sys
from starbucks_retrieval.__main__ import _main
from starbucks_retrieval.cli import run_command

large, commands = json.load(sys.stdin)
for words in commands:
    status, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        if isinstance(words, str):
            exec(words)
        else:
            status = run_command(_main, words)
    print(json.dumps([status, out.getvalue(), err.getvalue(), sorted(set(large) & set(sys.modules))]))
"""


@pytest.fixture(scope="module")
def files(tiny_bert, tmp_path_factory) -> dict[str, str]:
    """A model, a corpus, a store of its passages, and a result file."""
    folder = tmp_path_factory.mktemp("startup")
    data = folder / "corpus.jsonl"
    data.write_text("".join(json.dumps({"docid": f"d{i}", "text": f"w{i} w{i + 1}"}) + "\n" for i in range(5)))
    arguments = EncodeArguments(str(tiny_bert), str(folder / "p"), dataset_path=str(data), sizes="2:16", device="cpu")
    encode(arguments)
    results = folder / "results.json"
    write_results(results, Results("sts", "ours", [Cell("STS-B", "spearman", Size(2, 32), 0.5, 9)]))
    return {"model": str(tiny_bert), "data": str(data), "reps": str(folder / "p"), "results": str(results)}


def run(folder, large, *commands):
    """Run commands and statements in one new process; exit code, output, errors and large modules after each."""
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps([large, commands]), capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_help_and_names_need_no_large_imports(tmp_path):
    large = (*LARGE, "pyarrow", "ir_measures", "bm25s", "ir_datasets", "upath", "fsspec")
    for commands, names in (
        (LIGHTEST, ("numpy", *large)),
        ([*LIGHT, ["--help"], ["store", "import", "--help"], *([stage, "--help"] for stage in STAGES)], large),
    ):
        for command, (status, out, err, loaded) in zip(commands, run(tmp_path, names, *commands), strict=True):
            assert (status, err, loaded) == (0, "", []), command
            assert isinstance(command, str) or "usage" in out, command


def test_wrong_flags_and_paths_are_found_before_large_imports(files, tmp_path):
    commands = [[stage, *(word.format(**files) for word in words)] for stage, words, _ in WRONG]
    results = run(tmp_path, LARGE, *commands)
    assert len(results) == len(WRONG)
    for (_, _, expected), command, (status, _, err, loaded) in zip(WRONG, commands, results):
        assert status == 2 and expected in err.splitlines()[0] and len(err.splitlines()) == 2, (command, err)
        assert not loaded, (command, loaded)
    assert not list(tmp_path.iterdir())


def test_scoring_a_run_imports_no_large_module(tmp_path):
    (tmp_path / "a.trec").write_text("q1 Q0 d1 1 2.5 x\nq1 Q0 d2 2 1 x\n")
    (tmp_path / "a.qrels").write_text("q1 0 d1 1\n")
    [(status, out, _, loaded)] = run(tmp_path, LARGE, ["evaluate", "--run", "a.trec", "--qrels", "a.qrels"])
    assert status == 0 and "1.0000" in out and not loaded


@pytest.mark.slow
def test_one_typed_query_imports_what_it_needs(files, tmp_path):
    words = ["search", "--model_name_or_path", files["model"], "--passage_reps", files["reps"], "--device", "cpu"]
    [(status, _, err, loaded)] = run(
        tmp_path, NEVER, [*words, "--corpus_path", files["data"], "--query", "w1", "--json"]
    )
    assert status == 0 and "5 passages" in err and not loaded


def test_names_of_hubs_short_names_and_existing_paths_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "model").mkdir(parents=True)
    (tmp_path / "a@2.jsonl").touch()
    for name in ("bert-base-uncased", "sentence-transformers/all-MiniLM-L6-v2", "out/model", "./out/model"):
        check_model(name)
    for name in ("out/other", "a/b/c", "/nowhere", "~/nowhere"):
        with pytest.raises(UserError, match="no such model folder"):
            check_model(name, "teacher_name_or_path")
    for name in (
        "scifact",
        "ir:beir/fiqa/dev",
        "me/data",
        "a@2.jsonl",
        "a@2.jsonl@0.5",
        '{"name": "x.jsonl"}',
        "me/data@2",
    ):
        check_collection(name)
    for name in ("b.jsonl", "out/b", "b.jsonl@2"):
        with pytest.raises(UserError, match="no such file"):
            check_collection(name)
    for text in ("2:32,6:128", "demi, Trenta", "all", ""):
        check_sizes(text)


def test_flags_of_transformers_are_read_from_its_source():
    import dataclasses

    from transformers import TrainingArguments

    assert set(training_flags()) == {
        field.name for field in dataclasses.fields(TrainingArguments) if field.name[0] != "_"
    }
