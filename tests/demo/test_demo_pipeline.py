"""The number of training steps of the demonstration."""

from __future__ import annotations

from starbucks_retrieval.demo import LONG
from starbucks_retrieval.demo.pipeline import steps_for


def test_the_number_of_training_steps_follows_the_speed_within_bounds():
    speeds = [{"tokens_per_text": 80.0, "tokens_per_second": {"6:384": rate}} for rate in (1e2, 8e3, 1e9)]
    slow, usual, fast = (steps_for(LONG, speed, "6:384", 15.0) for speed in speeds)
    assert slow == LONG.min_steps
    assert LONG.min_steps < usual < LONG.max_steps
    assert fast == LONG.max_steps
