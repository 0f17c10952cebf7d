"""Options of pre-training that contradict each other."""

from __future__ import annotations

import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.pretrain import PretrainOptions


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"mae": False, "decoder": "enhanced"}, "mae"),
        ({"mae": False, "decoder_layers": 2}, "mae"),
        ({"mae": False, "decoder_token_fraction": 0.5}, "mae"),
        ({"mae": False, "projection": "identity"}, "identity"),
        ({"decoder": "enhanced", "decoder_layers": 2}, "second layer"),
        ({"decoder_layers": 0}, "0 layers"),
        ({"decoder_token_fraction": 0.0}, "fraction"),
        ({"size_batch": 0}, "size_batch"),
        ({"contrastive_weight": -1.0}, "negative"),
        ({"contrastive_temperature": 0.0}, "positive"),
        ({"projection": "cubic"}, "cubic"),
    ],
    ids=str,
)
def test_contradictions_are_refused(settings, word):
    with pytest.raises(UserError, match=word):
        PretrainOptions(**settings)
