"""Terms of the losses as functions of tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from starbucks_retrieval.losses.functional import round_to_bits, span_contrast
from starbucks_retrieval.store.dtypes import Quantiser


@pytest.mark.parametrize("count", [1, 6, 7])
def test_rounded_vectors_are_those_of_a_binary_store_and_their_gradient_is_that_of_the_vectors(count):
    vectors = torch.randn(count, 5, requires_grad=True)
    rounded = round_to_bits(vectors)
    stored = vectors.detach().numpy()
    quantiser = Quantiser.calibrate("binary", stored)
    np.testing.assert_allclose(rounded.detach(), quantiser.decode(quantiser.encode(stored)), rtol=1e-5, atol=1e-6)
    weights = torch.randn(count, 5)
    (rounded * weights).sum().backward()
    assert torch.equal(vectors.grad, weights)


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
