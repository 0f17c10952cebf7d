"""sts through its door, on pairs and a model that the tests make."""

import json

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from starbucks_retrieval import NestedEncoder, Size, UserError
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.metrics.results import read_results
from starbucks_retrieval.sentences import grid_dims, grid_layers
from starbucks_retrieval.sts import StsArguments, sts
from starbucks_retrieval.sts.__main__ import main

PAIRS = 30


@pytest.fixture
def sets(tmp_path, monkeypatch):
    """Two sets that share sentences; more words in common, higher scores, roughly."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    written = {}
    for name in ("one", "two"):
        pairs = []
        for _ in range(PAIRS):
            words = rng.integers(0, 12, 4)
            others = np.where(rng.random(4) < 0.5, words, rng.integers(0, 12, 4))
            sentences = [" ".join(f"w{i}" for i in side) for side in (words, others)]
            pairs.append((int((words == others).sum()), *sentences))
        pairs[0] = (4, "w1 w2", "w1 w2")  # a sentence of both sets
        (tmp_path / f"{name}.tsv").write_text("".join("\t".join(map(str, pair)) + "\n" for pair in pairs))
        written[name] = pairs
    return written


def run(tiny_bert, *flags):
    return run_command(main, ["--model_name_or_path", str(tiny_bert), "--data", "one.tsv", "two.tsv", *flags])


@pytest.mark.parametrize(
    ("measure", "theirs"), [("spearman", spearmanr), pytest.param("pearson", pearsonr, marks=pytest.mark.slow)]
)
def test_equals_encoding_every_size_by_itself(tiny_bert, sets, measure, theirs):
    arguments = StsArguments(
        str(tiny_bert), layers="4,1", dims="5,32", pooling="mean", measure=measure, data=["one.tsv", "two.tsv"]
    )
    cells = {(cell.dataset, cell.size): cell for cell in sts(arguments).cells}
    assert set(cells) == {(name, Size(n, d)) for name in ("one", "two") for n in (1, 4) for d in (5, 32)}
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    encoder.config = encoder.config.__class__(pooling="mean")
    for (name, size), cell in cells.items():
        gold, first, second = zip(*sets[name])
        a, b = (encoder.encode(list(side), size)[size].astype(float) for side in (first, second))
        cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        cosines[np.array(first) == np.array(second)] = 1  # else rounding ranks the pairs of equal sentences
        assert cell.value == pytest.approx(theirs(cosines, gold).statistic, abs=1e-5)
        assert (cell.measure, cell.count) == (measure, PAIRS)


def test_one_pass_over_distinct_sentences(tiny_bert, sets, monkeypatch):
    passes = []
    embed = NestedEncoder.embed

    def counted(self, rows, sizes, **options):
        passes.append((len(rows), str(sizes)))
        return embed(self, rows, sizes, **options)

    monkeypatch.setattr(NestedEncoder, "embed", counted)
    assert run(tiny_bert, "--grid", "--quiet") == 0
    sentences = {text for pairs in sets.values() for _, *both in pairs for text in both}
    assert passes == [(len(sentences), "1:32,2:32,3:32,4:32")]
    assert len(sentences) < 4 * PAIRS


def test_table_and_result_file(tiny_bert, sets, tmp_path, capsys):
    assert run(tiny_bert, "--sizes", "2:8,4:32", "--output", "out/sts.json", "--keep_pairs", "--label", "tiny") == 0
    out, err = capsys.readouterr()
    results = read_results("out/sts.json")
    assert (results.kind, results.label) == ("sts", "tiny")
    values = {(str(cell.size), cell.dataset): cell.value for cell in results.cells}
    head, *rows = [line.split() for line in out.splitlines()]
    assert head == ["size", "one", "two", "Average"]
    for row, size in zip(rows, ("2:8", "4:32"), strict=True):
        one, two = values[size, "one"], values[size, "two"]
        assert row == [size, *(f"{value:.4f}" for value in (one, two, (one + two) / 2))]
    assert err.splitlines()[-1] == f"tiny: spearman x pairs: one {PAIRS}, two {PAIRS}; in out/sts.json"
    for cell in results.cells:
        gold = results.more["gold"][cell.dataset]
        assert set(gold) == {str(number) for number in range(1, PAIRS + 1)} and gold["1"] == 4
        assert spearmanr([cell.values[key] for key in gold], list(gold.values())).statistic == pytest.approx(cell.value)
    assert results.more["data"]["one"]["pairs"] == PAIRS
    assert (results.more["pooling"], results.more["runtime"]) == ("cls", "fp32")
    first = (tmp_path / "out" / "sts.json").read_bytes()
    assert run(tiny_bert, "--sizes", "2:8,4:32", "--output", "out/sts.json", "--keep_pairs", "--label", "tiny") == 0
    assert (tmp_path / "out" / "sts.json").read_bytes() == first


def test_figures_as_json_without_the_pairs(tiny_bert, sets, capsys):
    assert run(tiny_bert, "--layers", "4", "--dims", "16", "--keep_pairs", "--json") == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert [cell["size"] for cell in figures["cells"]] == ["4:16", "4:16"]
    assert "gold" not in figures and "values" not in figures["cells"][0]
    assert "Average" in err


def test_prefix_and_length_of_the_model(tiny_bert, sets, tmp_path):
    from starbucks_retrieval import Sizes
    from starbucks_retrieval.models import EncoderConfig

    encoder = NestedEncoder.from_pretrained(tiny_bert)
    encoder.config = EncoderConfig(
        sizes=Sizes.parse("2:8,4:32"), pooling="mean", query_prefix="w90 w91 ", query_max_len=4, passage_max_len=9
    )
    encoder.save_pretrained(tmp_path / "own")

    def values(**flags):
        return [cell.value for cell in sts(StsArguments(str(tmp_path / "own"), data=["one.tsv"], **flags)).cells]

    plain = values()
    assert len(plain) == 2  # the model's own ladder
    assert values(encode_is_query=True) != plain  # all four tokens are prefix and special ones, and nothing is left
    assert values(max_length=3) != plain
    with pytest.raises(UserError, match="--pooling cls contradicts the model's own 'mean'"):
        values(pooling="cls")
    assert values(pooling="cls", override=True) != plain


def test_a_size_without_correlation_is_missing_not_zero(tiny_bert, sets, tmp_path, capsys):
    rows = "".join(f"{i}\tw{i} w1\tw{i} w1\n" for i in range(4))
    (tmp_path / "same.tsv").write_text(rows)  # each sentence with itself: all cosines are 1
    argv = ["--model_name_or_path", str(tiny_bert), "--data", "one.tsv", "same.tsv", "--output", "s.json"]
    assert run_command(main, argv) == 0
    out, err = capsys.readouterr()
    row = out.splitlines()[1].split()
    assert row[0] == "4:32" and row[2:] == ["–", "–"]
    assert "same at 4:32: all cosines are equal" in err
    assert json.loads((tmp_path / "s.json").read_text())["cells"][1]["value"] is None
    assert np.isnan(read_results("s.json").cells[1].value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sizes", "2:64"], "error: size 2:64 needs 64 dimensions, but the model is 32 wide"),
        (["--sizes", "9:8"], "error: no layer 9 in a model of 4 layers"),
        (["--layers", "1,9"], "error: no layer 9 in a model of 4 layers"),
        (["--dims", "8,64"], "error: size 1:64 needs 64 dimensions"),
        (["--grid", "--sizes", "2:8"], "error: --sizes and a grid"),
        (["--layers", "1,x"], "error: cannot read --layers 1,x"),
        (["--layers", "0"], "error: no layer 0 in a model of 4 layers"),
        (["--dims", "0"], "error: cannot read --dims 0"),
        (["--dims", ""], "error: cannot read --dims"),
        (["--max_length", "0"], "error: --max_length 0 is below 1"),
        (["--max_length", "9999"], "error: a length of 9999 tokens is beyond this model's 60"),
        (["--output", "."], "error: . is a folder"),
        (["--measure", "kendall"], "error: argument --measure: invalid choice"),
    ],
)
def test_refusals(tiny_bert, sets, capsys, flags, message):
    assert run(tiny_bert, *flags) == 2
    err = capsys.readouterr().err
    assert message in err and "try: " in err and "Traceback" not in err


def test_a_grid_may_begin_at_layer_0_of_a_fitted_model(tiny_bert, sets, tmp_path):
    import dataclasses

    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    encoder.config = dataclasses.replace(encoder.config, pooling="mean", normalize=True)
    rng = np.random.default_rng(0)
    encoder.fit([" ".join(f"w{i}" for i in rng.integers(0, 95, 12)) for _ in range(60)])
    encoder.save_pretrained(tmp_path / "fitted")
    assert run(tmp_path / "fitted", "--layers", "0,2", "--dims", "8,16", "--output", "s.json") == 0
    sizes = {str(cell.size) for cell in read_results("s.json").cells}
    assert sizes == {"0:8", "0:16", "2:8", "2:16"}


def test_nan_in_the_weights(tiny_bert, sets, tmp_path, capsys):
    import torch

    encoder = NestedEncoder.from_pretrained(tiny_bert)
    with torch.no_grad():
        encoder.backbone.embeddings.word_embeddings.weight[11] = torch.nan  # w6
    encoder.save_pretrained(tmp_path / "nan")
    assert run(tmp_path / "nan", "--output", "s.json") == 2
    assert "is not finite" in capsys.readouterr().err and not (tmp_path / "s.json").exists()


def test_the_published_grids():
    assert grid_layers(12) == [2, 4, 6, 8, 10, 12] and grid_dims(768) == [8, 16, 32, 64, 128, 256, 512, 768]
    assert grid_layers(6) == [1, 2, 3, 4, 5, 6] and grid_dims(384)[-2:] == [256, 384]
    assert grid_layers(4) == [1, 2, 3, 4] and grid_layers(1) == [1] and grid_dims(8) == [8] and grid_dims(6) == [6]
