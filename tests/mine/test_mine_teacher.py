"""A teacher's scores in the rows: those of the model asked alone, whatever the batches, and refused where it cannot teach."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing

from starbucks_retrieval import NestedEncoder, Size, UserError
from starbucks_retrieval.data import Passage, join_text, open_groups
from starbucks_retrieval.mine import MineArguments, rows
from starbucks_retrieval.mine.dense import BiEncoder
from starbucks_retrieval.mine.teacher import CrossEncoder, load_teacher
from starbucks_retrieval.train.data import TrainingSet

from ..conftest import DECODERS, FAMILIES, save_tokenizer, slow_except


def save_classifier(folder, family="bert", labels=1):
    """A random sequence classifier whose tokenizer tells query from passage, by types where the family has them."""
    config_name, settings = FAMILIES[family]
    # Decoders are often stored without a padding token, by which they find the last token of a row.
    padding = {"pad_token_id": None} if family in DECODERS else {}
    config = getattr(transformers, config_name)(**{**settings, **padding}, num_labels=labels)
    torch.manual_seed(1)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_input_names": tokenizer.model_input_names}))
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("cross"))


def teacher_of(model, **changes):
    settings = {"dataset_path": "g", "output_path": "o.jsonl", "bm25": True, "dtype": "fp32", **changes}
    return load_teacher(MineArguments(teacher_name_or_path=str(model), **settings))


def pairs_of(count, longest=70):
    """Queries that recur with passages that recur, of every length up to beyond what the models admit."""
    rng = np.random.default_rng(4)

    def text(length):
        return " ".join(f"w{i}" for i in rng.integers(0, 95, length))

    queries = [text(length) for length in rng.integers(1, 9, 5)]
    passages = [Passage(f"d{i}", "w5 w6" if i % 2 else "", text(i * longest // 9)) for i in range(10)]
    return [(queries[i % 5], passages[i % 7 + i % 4]) for i in range(count)]


def by_hand(folder, max_len=60):
    """A function that gives the logit of one pair, as transformers computes it without any of our code."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()

    @torch.no_grad()
    def score(query, passage):
        left = [tokenizer.vocab[word] for word in query.split()]
        right = [tokenizer.vocab[word] for word in passage.split()][: max_len - 3 - len(left)]
        inputs = {"input_ids": torch.tensor([[2, *left, 3, *right, 3]])}
        if model.config.model_type == "bert":
            inputs["token_type_ids"] = torch.tensor([[0] * (len(left) + 2) + [1] * (len(right) + 1)])
        return model(**inputs).logits.item()

    return score


@pytest.mark.parametrize(
    ("family", "budget", "max_len"),
    [
        *(("bert", 150, 20), ("distilbert", 1, None), ("qwen3", 4096, None)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *(("bert", 4096, None), ("bert", 1, None), ("distilbert", 4096, None), ("distilbert", 150, 20)),
                *(("qwen3", 150, 20), ("qwen3", 1, None)),
            )
        ),
    ],
)
def test_a_cross_encoder_scores_pairs_in_batches_as_one_by_one(tmp_path, family, budget, max_len):
    folder = save_classifier(tmp_path, family)
    pairs = pairs_of(24)
    teacher = teacher_of(folder, max_tokens_per_batch=budget, teacher_max_len=max_len)
    assert isinstance(teacher, CrossEncoder)
    found = teacher.score(pairs, "scores")
    alone = by_hand(folder, max_len or 60)
    expected = [alone(query, join_text(passage)) for query, passage in pairs]
    assert found.dtype == np.float32 and found.std() > 1e-2
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(found, teacher.score(pairs, "scores"))


def test_long_queries_give_way_too_and_say_so(classifier, caplog):
    teacher = teacher_of(classifier, teacher_max_len=10)
    passage = Passage("d", "", "w1 w2 w3 w4 w5 w6")
    queries = [" ".join(f"w{i}" for i in range(10, 10 + length)) for length in (6, 7, 8)]
    rows = teacher._tokenize(queries, [join_text(passage)] * 3)["input_ids"]
    assert [len(row) for row in rows] == [10] * 3
    words = 5  # of the ids before w0
    assert rows[0] == [2, *(words + i for i in range(10, 16)), 3, words + 1, 3]
    assert all(row.index(3) < 8 and row[row.index(3) + 1] == words + 1 for row in rows)
    caplog.clear()
    fresh = teacher_of(classifier, teacher_max_len=10)
    fresh.score([(queries[0][: queries[0].rindex(" ")], passage)], "scores")
    fresh.score([(queries[0], passage)], "scores")
    assert not caplog.records
    for _ in range(2):
        fresh.score([(query, passage) for query in queries], "scores")
    assert [record.getMessage() for record in caplog.records] == [
        "some queries fill the teacher's 10 tokens alone; they are truncated too"
    ]


@pytest.mark.parametrize(
    ("size", "used", "normalize"),
    [
        ("2:8", Size(2, 8), True),
        (None, Size(4, 32), False),
        pytest.param("2:8", Size(2, 8), False, marks=pytest.mark.slow),
        pytest.param(None, Size(4, 32), True, marks=pytest.mark.slow),
    ],
)
def test_a_bi_encoder_scores_as_it_was_trained_and_encodes_each_text_once(
    tiny_bert, tmp_path, monkeypatch, size, used, normalize
):
    encoder = NestedEncoder.from_pretrained(tiny_bert)
    encoder.config = dataclasses.replace(
        encoder.config,
        normalize=normalize,
        temperature=0.05,
        query_prefix="w7 ",
        passage_prefix="w8 ",
        passage_field_separator=" w6 ",
    )
    encoder.save_pretrained(tmp_path)
    pairs = pairs_of(60)
    seen = []
    real = NestedEncoder.embed

    def embed(self, rows, *arguments, **options):
        seen.append(len(rows))
        return real(self, rows, *arguments, **options)

    teacher = teacher_of(tmp_path, teacher_size=size, max_tokens_per_batch=100)
    assert isinstance(teacher, BiEncoder) and teacher.encoder.num_layers == used.layer
    with monkeypatch.context() as patch:
        patch.setattr(NestedEncoder, "embed", embed)
        found = teacher.score(pairs, "scores")
    assert seen == [5, 10]
    queries = encoder.encode([query for query, _ in pairs], used, is_query=True)[used].astype(np.float64)
    texts = [join_text(passage, " w6 ") for _, passage in pairs]
    expected = (queries * encoder.encode(texts, used)[used]).sum(1) / 0.05
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    assert found.dtype == np.float32 and (np.abs(found) <= 20.001).all() == normalize


def flags(beir, model, output, teacher, *more):
    return [
        *("--dataset_path", beir, "--model_name_or_path", model, "--size", "2:8", "--depth", "20"),
        *("--num_negatives", "4", "--output_path", output, "--dtype", "fp32", "--teacher_name_or_path", teacher, *more),
    ]


@pytest.mark.parametrize("window", slow_except([11], [8192, 11]))
def test_rows_carry_the_scores_and_training_takes_them(
    tiny_bert, classifier, beir, tmp_path, run_mine, monkeypatch, window
):
    monkeypatch.setattr(rows, "_WINDOW", window)
    plain = flags(beir, tiny_bert, tmp_path / "plain.jsonl", "", "--save_scores")
    assert run_mine(*plain)[0] == 0
    output = tmp_path / "n.jsonl.gz"
    status, figures, _ = run_mine(*flags(beir, tiny_bert, output, classifier))
    assert status == 0 and figures["teacher"] == "cross-encoder" and figures["queries"] == 12
    groups = list(open_groups(str(output)))
    before = list(open_groups(str(tmp_path / "plain.jsonl")))
    alone = by_hand(classifier)
    for group, other in zip(groups, before, strict=True):
        # The same rows but for the scores, and each score beside its own passage.
        assert dataclasses.replace(group, scores=None) == dataclasses.replace(other, scores=None)
        assert set(group.scores) == {*group.positive_ids, *group.negative_ids}
        for docid, score in group.scores.items():
            assert score == pytest.approx(alone(group.query, join_text(group.passages[docid])), abs=1e-5)
    data = TrainingSet(4, seed=1, with_scores=True)
    data.add("mined", open_groups(str(output)), None, tmp_path / "cache")
    example = data[(0, 3)]
    expected = [groups[3].scores[docid[2:]] for docid in example.docids]
    assert np.float32(example.scores).tolist() == np.float32(expected).tolist()


def test_another_teacher_searches_nothing_again_and_repeats_byte_for_byte(
    tiny_bert, classifier, beir, tmp_path, run_mine
):
    written = []
    for teacher in (classifier, tiny_bert, classifier):
        more = ("--overwrite", *(("--teacher_size", "3:16") if teacher == tiny_bert else ()))
        status, figures, log = run_mine(*flags(beir, tiny_bert, tmp_path / "n.jsonl", teacher, *more))
        assert status == 0 and figures["reused_candidates"] is bool(written), log
        written.append((tmp_path / "n.jsonl").read_bytes())
    assert written[0] == written[2] != written[1]
    assert "the teacher is a cross-encoder" in log


def test_an_interrupted_teacher_leaves_no_rows(tiny_bert, classifier, beir, tmp_path, run_mine, monkeypatch):
    monkeypatch.setattr(rows, "_WINDOW", 20)
    real, calls = CrossEncoder.score, []

    def second_stops(self, pairs, label):
        calls.append(len(pairs))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, pairs, label)

    monkeypatch.setattr(CrossEncoder, "score", second_stops)
    assert run_mine(*flags(beir, tiny_bert, tmp_path / "n.jsonl", classifier))[0] == 130
    # Windows end with whole groups, of five or six passages here.
    assert calls == [22, 22] and [path.name for path in tmp_path.iterdir()] == ["n.jsonl.candidates"]
    monkeypatch.setattr(CrossEncoder, "score", lambda self, pairs, label: np.full(len(pairs), np.nan, np.float32))
    status, _, log = run_mine(*flags(beir, tiny_bert, tmp_path / "n.jsonl", classifier))
    assert status == 2 and "hold NaN" in log and not (tmp_path / "n.jsonl").exists()


def damaged(kind, classifier, folder):
    """A copy of the classifier with something wrong, or the name of a folder that is not there."""
    if kind == "nowhere":
        return "./nowhere"
    if kind == "labels":
        return save_classifier(folder, labels=2)
    shutil.copytree(classifier, folder, dirs_exist_ok=True)
    weights = folder / "model.safetensors"
    if kind == "headless":
        tensors = {name: tensor for name, tensor in load_file(weights).items() if "classifier" not in name}
        save_file(tensors, weights, {"format": "pt"})
    elif kind == "misfit":
        tensors = load_file(weights) | {"classifier.weight": torch.zeros(1, 5)}
        save_file(tensors, weights, {"format": "pt"})
    elif kind == "pickled":
        torch.save(load_file(weights), folder / "pytorch_model.bin")
        weights.unlink()
    elif kind == "wordless":
        for path in folder.glob("token*"):
            path.unlink()
    elif kind == "padless":
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token": None}))
    return folder


@pytest.mark.parametrize(
    ("kind", "more", "messages"),
    [
        ("labels", (), ("classifier of 2 labels",)),
        ("nowhere", (), ("no such model folder", "--teacher_name_or_path")),
        ("headless", (), ("lacks 2 weights", "classifier.bias")),
        ("misfit", (), ("lacks 1 weights", "classifier.weight")),
        ("pickled", (), ("no safetensors weights",)),
        ("wordless", (), ("no vocabulary",)),
        ("padless", (), ("no padding token",)),
        ("whole", ("--teacher_max_len", "61"), ("--teacher_max_len 61", "5 to 60")),
        ("whole", ("--teacher_max_len", "4"), ("--teacher_max_len 4", "5 to 60")),
        ("whole", ("--teacher_max_len", "0"), ("below 1",)),
        ("whole", ("--teacher_size", "2:8"), ("no sizes",)),
        ("whole", ("--teacher_size", "two"), ("cannot read the size",)),
        ("whole", ("--teacher_name_or_path", "", "--teacher_size", "2:8"), ("--teacher_size belongs to a teacher",)),
        ("whole", ("--teacher_name_or_path", "", "--teacher_max_len", "9"), ("--teacher_max_len belongs",)),
    ],
)
def test_what_cannot_teach_is_told_before_the_search(
    tiny_bert, classifier, beir, tmp_path, run_mine, monkeypatch, kind, more, messages
):
    monkeypatch.setattr(NestedEncoder, "embed", lambda *_, **__: pytest.fail("encoded for nothing"))
    teacher = damaged(kind, classifier, tmp_path / "teacher")
    status, _, log = run_mine(*flags(beir, tiny_bert, tmp_path / "o" / "n.jsonl", teacher, *more))
    assert status == 2 and all(message in log for message in messages) and "try:" in log, log
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher_max_len": 9}, "stored with it"),
        ({"teacher_size": "5:8"}, "layer 5"),
        ({"teacher_size": "2:64"}, "64"),
    ],
)
def test_a_bi_encoder_takes_a_size_in_reach_and_no_length(tiny_bert, changes, message):
    with pytest.raises(UserError, match=message):
        teacher_of(tiny_bert, **changes)
