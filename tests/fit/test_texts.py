"""The texts of a fit: formats, shares and order; NestedEncoder.fit."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from fit.conftest import make_texts

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models import EncoderConfig, NestedEncoder
from starbucks_retrieval.models.texts import mixed, open_sources, quotas, take_turns
from starbucks_retrieval.sizes import Size

CONFIG = EncoderConfig(query_prefix="query: ", passage_prefix="passage: ", passage_field_separator=" | ")


def read(passages=(), queries=(), shares=None, split=None):
    sources = open_sources([str(p) for p in passages], [str(q) for q in queries], CONFIG, split)
    return list(mixed(sources, shares or [None] * len(sources)))


def test_jsonl_tsv_and_plain_text(tmp_path):
    (tmp_path / "c.jsonl").write_text(json.dumps({"_id": "1", "title": "hens", "text": "lay eggs"}) + "\n")
    (tmp_path / "c.tsv").write_text("7\tmoths\n")
    (tmp_path / "c.txt").write_text("a line\n\nanother\n")
    with gzip.open(tmp_path / "d.txt.gz", "wt") as file:
        file.write("packed\n")
    (tmp_path / "q.tsv").write_text("q1\twhat is it\n")
    names = [tmp_path / name for name in ("c.jsonl", "c.tsv", "c.txt", "d.txt.gz")]
    found = read(names, [tmp_path / "q.tsv"])
    assert found == [
        ("passage: hens | lay eggs", False),
        ("passage: moths", False),
        ("passage: a line", False),
        ("passage: another", False),
        ("passage: packed", False),
        ("query: what is it", True),
    ]


def test_queries_of_a_beir_folder_and_of_one_split(corpus):
    assert len(read([corpus], [corpus])) == 120
    found = read(queries=[corpus], split="train")
    assert len(found) == 20 and all(is_query for _, is_query in found)


def test_empty_texts_are_left_out_and_counted_sources_say_what_they_gave(tmp_path):
    (tmp_path / "c.tsv").write_text("1\tone\n2\t\n3\tthree\n")
    config = EncoderConfig()
    sources = open_sources([str(tmp_path / "c.tsv")], [], config)
    counts = [0]
    assert [text for text, _ in mixed(sources, [3], counts)] == ["one", "three"]
    assert counts == [2]


def test_a_source_without_texts_is_refused(tmp_path):
    (tmp_path / "c.txt").write_text("\n")
    with pytest.raises(UserError, match="holds no texts"):
        read([tmp_path / "c.txt"])


def test_a_share_is_spread_over_a_larger_source(tmp_path):
    (tmp_path / "c.txt").write_text("".join(f"text {i}\n" for i in range(1000)))
    found = [int(text.split()[-1]) for text, _ in read([tmp_path / "c.txt"], shares=[20])]
    assert found == [100 * block + i for block in range(10) for i in range(2)]


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ([100, 100], 50, [25, 25]),
        ([10, 100, None], 100, [10, 45, 45]),
        ([10, 10], 100, [10, 10]),
        ([None], 100, [100]),
        ([5, 7], None, [5, 7]),
    ],
)
def test_quotas(counts, total, expected):
    assert quotas(counts, total) == expected


def test_streams_take_turns():
    assert [item for _, item in take_turns([range(5), range(10, 13)], turn=2)] == [0, 1, 10, 11, 2, 3, 12, 4]


def test_an_encoder_is_fitted_in_place(tiny_bert):
    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    encoder.config = EncoderConfig(pooling="mean", normalize=True, passage_layers=((1, 2),))
    full, texts = Size(4, 32), make_texts(20, seed=3)
    before = encoder.encode(texts, [full])[full]
    report = encoder.fit(iter(make_texts(60)), make_texts(30, seed=1), layers=[0, 2])
    assert report.texts + report.held_out == 90
    assert encoder.config.projected_layers == (0, 2, 4) and not encoder.config.passage_layers
    assert encoder.sizes == report.recommended()
    after = encoder.encode(texts, [full])[full]
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-5)
    assert not encoder.projections.training
    again = encoder.fit(make_texts(60), make_texts(30, seed=1), layers=[0, 2])
    assert again == report


def test_a_fit_that_fails_leaves_the_encoder_as_it_was(tiny_bert):
    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    config = encoder.config
    with pytest.raises(UserError, match="cannot fit maps of 32 numbers"):
        encoder.fit(make_texts(5))
    with pytest.raises(UserError, match="not one text"):
        encoder.fit("w1 w2")
    assert encoder.projections is None and encoder.config == config
