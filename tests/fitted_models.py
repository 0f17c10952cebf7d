"""Tiny models with fitted projections, made in a second."""

from __future__ import annotations

import dataclasses

import numpy as np

from starbucks_retrieval.models import NestedEncoder
from starbucks_retrieval.models.fitter import Fitter


def texts(count=200, seed=0):
    """Random texts of 3 to 29 words."""
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{i}" for i in rng.integers(0, 95, rng.integers(3, 30))) for _ in range(count)]


def token_rows(count=200, seed=0):
    """The token ids of random texts of 3 to 29 words."""
    rng = np.random.default_rng(seed)
    return [[2, *rng.integers(5, 100, rng.integers(3, 30)).tolist(), 3] for _ in range(count)]


def load(folder, **config):
    """A model folder as an encoder, with mean pooling and cosines unless the settings say otherwise."""
    encoder = NestedEncoder.from_pretrained(folder, device="cpu")
    encoder.config = dataclasses.replace(encoder.config, **({"pooling": "mean", "normalize": True} | config))
    return encoder


def fitted(encoder, **options):
    """The encoder with projections fitted on random token rows, and the report of the fit."""
    fitter = Fitter(encoder, **options)
    fitter.add(token_rows())
    encoder.projections, report = fitter.finish()
    encoder.config = dataclasses.replace(encoder.config, projected_layers=encoder.projections.layers)
    return encoder, report
