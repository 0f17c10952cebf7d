"""Every reader of files that people and other programs write succeeds or refuses in two lines, whatever it is given."""

from __future__ import annotations

import logging
import os

import pytest
from attack.further_targets import TARGETS
from attack.fuzzing import PASSED, Prepared, run_and_record, seeds_of
from attack.targets import LOADED

CASES = int(os.environ.get("ATTACK_CASES", "2000"))  # of each target; a tenth where a case loads a model
SEED = int(os.environ.get("ATTACK_SEED", "1"))
_FAST = [i for i, target in enumerate(TARGETS) if target.area not in LOADED]


@pytest.fixture(autouse=True)
def no_log():
    """Warnings of libraries about damaged files are of no interest, and there are thousands."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def fast(reason: str = "") -> list:
    return [pytest.param(i, id=f"{i}-{TARGETS[i].name.replace(' ', '')}-{TARGETS[i].read.__name__}") for i in _FAST]


@pytest.mark.parametrize("position", fast())
def test_damaged_files_are_read_or_refused(tmp_path, position):
    prepared = Prepared(TARGETS[position], tmp_path)
    assert prepared.outcome() == ("read", "")
    found = [(seed, *prepared.attempt(seed)) for seed in seeds_of(TARGETS[position], position, 6, seed=0)]
    assert [case for case in found if case[1] not in PASSED] == []


@pytest.mark.attack
@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("position", range(len(TARGETS)))
def test_many_damaged_files_are_read_or_refused(tmp_path, position):
    target = TARGETS[position]
    prepared = Prepared(target, tmp_path)
    assert prepared.outcome() == ("read", "")
    cases = CASES if target.area not in LOADED else CASES // 10 if target.area != "checkpoints" else CASES // 100
    assert run_and_record(prepared, position, max(1, cases), SEED) == []
