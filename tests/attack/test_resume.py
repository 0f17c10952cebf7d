"""Runs that are resumed although they had ended."""

from __future__ import annotations

import dataclasses

import pytest
from conftest import slow_except

from . import commands


@pytest.mark.parametrize(
    ("name", "steps"),  # an epoch has four
    slow_except([("train", 3), ("pretrain", 4)], [(name, steps) for name in ("train", "pretrain") for steps in (3, 4)]),
)
def test_a_run_that_ended_does_not_train_on(runs, name, steps, tmp_path):
    run = dataclasses.replace(runs[name], words=runs[name].words.replace("--max_steps 4", f"--max_steps {steps}"))
    assert run(tmp_path) == 0
    ended = commands.digests(tmp_path)
    assert run(tmp_path, rerun=True) == 0
    again = commands.digests(tmp_path)
    assert again.pop("model/training.json") and ended.pop("model/training.json")  # it tells the durations
    assert again == ended
