"""Terms of the losses as functions of tensors."""

from __future__ import annotations

import pytest
import torch

from starbucks_retrieval.losses.functional import span_contrast


def test_contrast_is_between_the_two_spans_of_a_document():
    vectors = torch.randn(6, 5, dtype=torch.float64)
    expected = 0.0
    for i in range(6):
        partner = i + 1 if i % 2 == 0 else i - 1
        others = torch.stack([vectors[i] @ vectors[j] / 0.5 for j in range(6) if j != i])
        expected += (others.logsumexp(0) - vectors[i] @ vectors[partner] / 0.5) / 6
    torch.testing.assert_close(span_contrast(vectors, 0.5), expected)
    unit = torch.nn.functional.normalize(vectors, dim=1)
    torch.testing.assert_close(span_contrast(vectors, 0.5, normalize=True), span_contrast(unit, 0.5))
    with pytest.raises(ValueError, match="two of each"):
        span_contrast(vectors[:5])
