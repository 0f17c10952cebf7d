"""train --dry_run: steps and sizes as the real run has them, refusals, and nothing written."""

from __future__ import annotations

import json

import pytest

from starbucks_retrieval import NestedEncoder, clock
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.train import dry_run, speed
from starbucks_retrieval.train.__main__ import main


@pytest.fixture
def job(tiny_bert, tmp_path, monkeypatch):
    """The flags of a job over 20 queries of a BEIR folder, in an empty folder."""
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    for name, key in (("corpus", "d"), ("queries", "q")):
        rows = ({"_id": f"{key}{i}", "text": "w1 w2 w3" + " w4 w5" * (key == "d")} for i in range(30))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = "".join(f"q{i}\td{i}\t{int(i < 20)}\n" for i in range(25))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(dry_run, "layer_seconds", lambda *_: 3e-4)
    return [
        *("--model_name_or_path", str(tiny_bert), "--dataset_path", str(folder), "--output_dir", "model"),
        *("--train_group_size", "1", "--per_device_train_batch_size", "6", "--use_cpu"),
    ]


def previewed(capsys, *argv):
    assert run_command(main, [*argv, "--dry_run", "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def test_steps_and_sizes_are_those_of_the_run(job, tmp_path, capsys):
    more = [
        "--num_train_epochs",
        "2",
        "--gradient_accumulation_steps",
        "3",
        "--sizes",
        "1:8,3:32",
        "--save_strategy",
        "no",
    ]
    printed = previewed(capsys, *job, *more)
    assert not list((tmp_path / "here").iterdir())
    assert (printed["rows"], printed["rows_per_step"], printed["layers"], printed["state"]) == (20, 18, 3, "new")
    assert printed["tokens_per_step"] == 18 * (5 + 7)  # with the two special tokens of each text
    assert printed["seconds_per_step"] == pytest.approx(18 * 12 * 3 * 3e-4)
    assert run_command(main, [*job, *more, "--json", "--quiet"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["steps"], done["sizes"]) == (printed["steps"], printed["sizes"])
    written = (tmp_path / "here" / "model" / "model.safetensors").stat().st_size
    pooler = 4 * (32 * 32 + 32)  # of zeros, for other tools: a half per cent of a model of a real width
    assert printed["bytes"] == pytest.approx(written - pooler, rel=0.05)
    assert previewed(capsys, *job, *more)["state"].startswith("not empty: refused")


def test_max_steps_and_checkpoints(job, capsys):
    printed = previewed(capsys, *job, "--max_steps", "7", "--save_steps", "3")
    assert (printed["steps"], printed["checkpoints"]) == (7, 2)  # transformers keeps the last two
    assert printed["bytes"] == printed["parameters"] * 4 * (1 + 2 * 3)


@pytest.mark.parametrize(("words", "passes"), [([], 1), (["--grad_cache"], 2)])
def test_a_step_is_timed_as_it_is_trained(job, capsys, monkeypatch, words, passes):
    timed, forward = [], NestedEncoder.forward_unpadded

    def counted(encoder, rows, layers):
        timed.append(sum(map(len, rows)))
        return forward(encoder, rows, layers)

    monkeypatch.setattr(NestedEncoder, "forward_unpadded", counted)
    monkeypatch.setattr(clock, "fastest", lambda step: step() or 2.0)
    monkeypatch.setattr(dry_run, "layer_seconds", speed.layer_seconds)
    printed = previewed(capsys, *job, *words)
    assert timed == [6 * (5 + 7)] * passes
    assert printed["seconds_per_step"] == pytest.approx(2.0 * 4 / 2)  # two layers of four are timed


def test_a_checkpoint_to_resume_from(job, tmp_path, capsys):
    folder = tmp_path / "here" / "model" / "checkpoint-4"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text('{"global_step": 4}')
    assert previewed(capsys, *job, "--resume_from_checkpoint", "true")["state"] == "resumes from checkpoint-4"
    assert "--resume_from_checkpoint true resumes" in previewed(capsys, *job)["state"]


def test_scored_pairs_and_groups_with_texts(job, tmp_path, capsys):
    (tmp_path / "pairs.tsv").write_text("score\tsentence1\tsentence2\n1\tw1 w2\tw3\n2\tw4 w5\tw6\n")
    (tmp_path / "groups.jsonl").write_text(json.dumps({"query": "w1", "positive": "w2 w3", "negative": ["w4"]}) + "\n")
    job[3] = str(tmp_path / "pairs.tsv")
    printed = previewed(capsys, *job, "--task", "sts")
    assert (printed["rows"], printed["group_size"], printed["mean_query_tokens"], printed["mean_passage_tokens"]) == (
        2,
        1,
        4.0,
        3.0,
    )
    job[3] = str(tmp_path / "groups.jsonl")
    printed = previewed(capsys, *job, "--train_group_size", "2")
    assert (printed["rows"], printed["mean_query_tokens"], printed["mean_passage_tokens"]) == (1, 3.0, 3.5)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--sizes", "9:8"], "9:8"),
        (["--pca", "exact"], "--pca is not an option"),
        (["--passage_max_len", "500"], "beyond this model's 60"),
        (["--dataset_split", "nope"], "nope"),
        (["--learning_rate", "fast"], "learning_rate"),
    ],
)
def test_refusals(job, capsys, more, what):
    assert run_command(main, [*job, *more, "--dry_run"]) == 2
    assert what in capsys.readouterr().err


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def train_qrels(folder, line):
    write(folder / "qrels" / "train.tsv", line)


def rows_without_negatives(folder):
    write(folder / "good.jsonl", '{"query": "w1", "positive": "w2", "negative": "w3"}\n')
    write(folder / "bad.jsonl", '{"query": "w1", "positive": "w2"}\n' * 200)


def rows_of_ids(folder):
    write(folder / "ids.jsonl", '{"query_id": "1", "query": "w1", "positive_document_ids": ["d1"]}\n')


@pytest.mark.parametrize(
    ("more", "spoil", "message"),
    [
        ("--train_group_size 2", lambda folder: train_qrels(folder, "q1\t0\td1\t1\n"), "has none"),
        ("", lambda folder: train_qrels(folder, "q1\t0\tnowhere\t1\n"), "nowhere"),
        ("", lambda folder: (folder / "qrels" / "train.tsv").unlink(), "no qrels/train.tsv"),
        ("--distil_weight 1", lambda folder: None, "a teacher's scores"),
        ("--eval_dataset_path {folder}", lambda folder: None, "no qrels/dev.tsv"),
        ("--dataset_path {folder}/ids.jsonl", rows_of_ids, "ids without texts"),
        (
            "--dataset_path {folder}/good.jsonl {folder}/bad.jsonl --train_group_size 2",
            rows_without_negatives,
            "bad.jsonl has none",
        ),
    ],
)
def test_a_dry_run_refuses_data_as_the_run_does(job, tmp_path, capsys, more, spoil, message):
    spoil(tmp_path / "set")
    words = [*job, *more.format(folder=tmp_path / "set").split(), "--max_steps", "1", "--quiet"]
    if "--dataset_path" in more:  # given twice both would count
        del words[words.index("--dataset_path") : words.index("--output_dir")]
    errors = []
    for last in (["--dry_run"], []):
        assert run_command(main, words + last) == 2
        errors.append(capsys.readouterr().err)
    assert message in errors[0] and errors[0] == errors[1] and "Traceback" not in errors[0]
    assert not list((tmp_path / "here").rglob("*.safetensors"))


def test_a_large_file_without_negatives_in_its_first_rows_is_reported(job, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(dry_run, "SMALL_FILE", 0)
    rows = [{"query": "w1", "positive": "w2"}] * 120 + [{"query": "w1", "positive": "w2", "negative": "w3"}]
    job[3] = write(tmp_path / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert run_command(main, [*job, "--train_group_size", "2", "--max_steps", "1", "--dry_run"]) == 0
    assert "none in the first 100 rows" in capsys.readouterr().out


def test_text_for_a_terminal(job, capsys):
    assert run_command(main, [*job, "--max_steps", "7", "--dry_run"]) == 0
    out, err = capsys.readouterr()
    assert "7 of 6 queries with 1 passages each" in out and "20 rows from" in out and "nothing was written" in err


def test_the_time_of_a_long_step_has_no_exponent(job, capsys, monkeypatch):
    monkeypatch.setattr(dry_run, "layer_seconds", lambda *_: 3.0)
    assert run_command(main, [*job, "--dry_run", "--quiet"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("time")]
    assert line.endswith(" 864 s a step")
