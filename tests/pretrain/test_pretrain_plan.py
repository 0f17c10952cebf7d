"""pretrain --dry_run: steps, sizes and bytes as the real run has them, and nothing written."""

from __future__ import annotations

import json

import pytest
from conftest import slow_except

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.pretrain.__main__ import main


@pytest.fixture
def job(tiny_bert, tmp_path, monkeypatch):
    """The flags of a job over a text file, in an empty folder."""
    (tmp_path / "text.txt").write_text("w1 w2 w3 w4 w5 w6 w7 w8\n" * 40)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return [
        *(
            "--model_name_or_path",
            str(tiny_bert),
            "--dataset_path",
            str(tmp_path / "text.txt"),
            "--output_dir",
            "model",
        ),
        *("--per_device_train_batch_size", "4", "--use_cpu", "--max_steps", "2", "--save_strategy", "no"),
    ]


@pytest.mark.parametrize("objective", slow_except(["smae"], ["smae", "retromae"]))
def test_steps_and_sizes_are_those_of_the_run(job, tmp_path, capsys, objective):
    more = ["--objective", objective, "--gradient_accumulation_steps", "2", "--quiet", "--json"]
    assert run_command(main, [*job, *more, "--dry_run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert not list((tmp_path / "here").iterdir())
    assert (plan["steps"], plan["rows_per_step"], plan["max_length"], plan["state"]) == (2, 8, 56, "new")
    assert run_command(main, [*job, *more]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["steps"], done["sizes"]) == (plan["steps"], plan["sizes"])
    written = (tmp_path / "here" / "model" / "model.safetensors").stat().st_size
    assert plan["bytes"] == pytest.approx(written, rel=0.3)  # the folder keeps a head beside the backbone


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--sizes", "9:8"], "9:8"),
        (["--dataset_path", "nope.txt"], "nope.txt"),
        (["--encoder_mlm_probability", "2"], "probabilit"),
    ],
)
def test_refusals(job, capsys, more, what):
    assert run_command(main, [*job, *more, "--dry_run"]) == 2
    assert what in capsys.readouterr().err


def test_text_for_a_terminal(job, capsys):
    assert run_command(main, [*job, "--dry_run"]) == 0
    assert "2 of 4 sequences of up to 56 tokens" in capsys.readouterr().out
