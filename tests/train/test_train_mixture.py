"""train on several data sets: weights, settings of one set, batches of one set, guides, and what is refused."""

import json

import numpy as np
import pytest
import torch
import yaml
from conftest import save_model
from safetensors.torch import load_file

from starbucks_retrieval import UserError
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.data import open_groups
from starbucks_retrieval.train.__main__ import main
from starbucks_retrieval.train.data import TrainingSet
from starbucks_retrieval.train.examples import Collator, Example
from starbucks_retrieval.train.mixture import DataSet, MixtureArguments

STEPS = "--max_steps 2 --save_strategy no"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A guide, and training rows: 24 with four negatives, 8 with one, and 3."""
    folder = tmp_path_factory.mktemp("mixture")
    save_model(folder / "big", seed=1, hidden_size=48)
    config = {"format": 1, "pooling": "mean", "normalize": True, "query_prefix": "w1 w2 "}
    (folder / "big" / "starbucks.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)

    def words(count):
        return " ".join(f"w{i}" for i in rng.integers(0, 95, count))

    for name, count, negatives in (("a", 24, 4), ("b", 8, 1), ("tiny", 3, 1)):
        rows = (
            {"query": words(4), "positive": words(6), "negative": [words(6) for _ in range(negatives)]}
            for _ in range(count)
        )
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def run(folder, tiny_bert):
    """Trains the tiny model in a folder of its own, and returns the folder."""
    common = (
        "--train_group_size 2 --warmup_steps 0 --per_device_train_batch_size 4 --learning_rate 1e-3 --logging_steps 1 "
        "--use_cpu --overwrite_output_dir --dropout 0 --pooling mean --normalize true --temperature 0.1 --sizes 2:16,4:32"
    )

    def train(name, flags, code=0, data="FOLDER/a.jsonl FOLDER/b.jsonl", config=None):
        words = f"--dataset_path {data} {flags}" if data else flags
        argv = f"--model_name_or_path {tiny_bert} --output_dir {folder / name} {common} {words}"
        argv = argv.replace("FOLDER", str(folder)).split()
        assert run_command(main, [*([str(config)] if config else []), *argv]) == code
        return folder / name

    return train


def losses(output):
    history = json.loads((output / "training.json").read_text())["history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def test_weights_and_sampling_change_the_shares(run, capfd):
    run("uniform", f"{STEPS} --sampling uniform --quiet --json --dry_run", data="FOLDER/a.jsonl FOLDER/b.jsonl@3")
    assert json.loads(capfd.readouterr().out)["shares"] == [0.25, 0.75]
    output = run("weighted", STEPS, data="FOLDER/a.jsonl FOLDER/b.jsonl@3")
    assert "a.jsonl 50.0%" in (output / "README.md").read_text()
    assert "`b.jsonl`" in (output / "README.md").read_text()


def test_a_file_lists_data_sets_with_settings(run, folder):
    listed = {
        "dataset_path": [
            {"name": str(folder / "a.jsonl"), "weight": 2, "query_prefix": "w5 ", "train_group_size": 4},
            {"name": str(folder / "b.jsonl"), "in_batch_negatives": False},
            str(folder / "b.jsonl"),
        ],
        "same_source_batches": True,
    }
    (folder / "mixture.yaml").write_text(yaml.safe_dump(listed))
    output = run("listed", "--max_steps 8 --save_strategy no", data="", config=folder / "mixture.yaml")
    assert len(losses(output)) == 8
    assert json.loads((output / "starbucks.json").read_text())["query_prefix"] == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        "--same_source_batches true --query_negatives true --false_negative_margin 0.1",
        "--sampling temperature --passage_negatives true --guide_model_name_or_path FOLDER/big",
    ],
)
def test_a_resumed_run_ends_with_the_same_bits(run, flags):
    flags = f"--max_steps 12 --save_steps 9 {flags}"  # the second epoch has begun
    data = "FOLDER/a.jsonl FOLDER/b.jsonl@2"
    whole, cut = run("whole", flags, data=data), run("cut", flags, data=data)
    (cut / "checkpoint-12" / "trainer_state.json").unlink()
    run("cut", f"{flags} --resume_from_checkpoint true", data=data)
    first, second = (load_file(output / "model.safetensors") for output in (whole, cut))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def guided(run):
    return run("guided", f"{STEPS} --guide_model_name_or_path FOLDER/big")


def test_a_guide_leaves_out_negatives(run, guided):
    plain = run("plain", STEPS)
    assert losses(guided)[0] < losses(plain)[0]
    wide = run("wide", f"{STEPS} --guide_model_name_or_path FOLDER/big --false_negative_margin 3")
    assert losses(wide) == pytest.approx(losses(plain), rel=1e-6)


@pytest.mark.slow
def test_a_guide_and_the_gradient_cache(run, guided):
    cached = run("cached", f"{STEPS} --guide_model_name_or_path FOLDER/big --grad_cache")
    assert losses(cached) == pytest.approx(losses(guided), rel=1e-4)


class Guided:
    """Remembers the texts that a guide would get."""

    def __call__(self, texts):
        self.texts = texts
        return {}


def test_the_guide_gets_texts_without_the_prefixes_of_the_model(folder, tmp_path, tiny_bert):
    from starbucks_retrieval import NestedEncoder

    data = TrainingSet(2, 0, query_prefix="w7 ", passage_prefix="w8 ", with_plain=True)
    data.add("b", open_groups(str(folder / "b.jsonl")), None, tmp_path)
    examples, guided = [data[0, 0], data[0, 1]], Guided()
    Collator(NestedEncoder.from_pretrained(tiny_bert, device="cpu"), True, guided)(examples)
    assert [text.is_query for text in guided.texts] == [True, True, False, False, False, False]
    assert examples[0].query == f"w7 {guided.texts[0].text}" and examples[1].passages[1] == f"w8 {guided.texts[5].text}"


def test_a_data_set_has_its_own_prefixes_and_group_size(folder, tmp_path):
    data = TrainingSet(2, 0, query_prefix="w7 ", in_batch=True)
    options = {"query_prefix": "", "passage_prefix": "w9 ", "train_group_size": 4, "in_batch_negatives": False}
    for name, chosen in (("a", DataSet("a", **options)), ("b", DataSet("b"))):
        data.add(name, open_groups(str(folder / f"{name}.jsonl")), None, tmp_path, options=chosen)
    own, other = data[0, 0], data[0, 24]
    assert not own.query.startswith("w7 ") and own.passages[0].startswith("w9 ")
    assert (len(own.passages), own.in_batch, len(other.passages), other.in_batch) == (4, False, 2, True)
    assert other.query.startswith("w7 ") and not other.passages[0].startswith("w9 ")
    texts = list(data.sample_texts(400))
    assert sum(text.startswith("w7 ") for text, is_query in texts if is_query) == 8


def test_negatives_of_one_data_set_can_be_its_own_group_alone(tiny_bert):
    from starbucks_retrieval import NestedEncoder, Size, Sizes
    from starbucks_retrieval.losses.separate import SingleSize, SingleSizeOptions
    from starbucks_retrieval.train.module import TrainingModule

    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    objective = SingleSize(Sizes.parse("4:32"), Size(4, 32), SingleSizeOptions())
    texts = [[f"w{i} w{i + 1}" for i in range(start, start + 6)] for start in (0, 20)]

    def loss(flags):
        examples = [
            Example(one[0], [f"{i} {k}" for k in range(2)], one[1:3], frozenset([f"{i} 0"]), in_batch=flag)
            for i, (one, flag) in enumerate(zip(texts, flags))
        ]
        batch = Collator(encoder)(examples)
        batch.pop("query_ids")
        with torch.no_grad():
            return TrainingModule(encoder, objective)(**batch)["loss"].item()

    assert loss([True, True]) == pytest.approx(loss([None, None]))
    first, second = loss([False, True]), loss([True, False])
    assert loss([False, False]) + loss([True, True]) == pytest.approx(first + second, rel=1e-5)
    assert len({round(value, 6) for value in (first, second, loss([True, True]))}) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.jsonl@-1", "the weight '-1' is not a number above 0"),
        ("a.jsonl@0", "is not a number above 0"),
        ("a.jsonl@two", "is not a number above 0"),
        ("a.jsonl@nan", "is not a number above 0"),
        ("a.jsonl@inf", "is not a number above 0"),
        ('{"name": "a", "weight": -2}', "the weight -2 is not above 0"),
        ('{"name": "a", "weight": 1' + 400 * "0" + "}", "the weight is too large"),
        ('{"name": "a", "weight": "2"}', "weight of a data set is '2'"),
        ('{"name": "a", "query_prompt": "x"}', "no option query_prompt"),
        ('{"name": "a", "train_group_size": 0}', "leaves no positive"),
        ('{"name": "a", "in_batch_negatives": 1}', "in_batch_negatives of a data set is 1"),
        ('{"weight": 2}', "has no name"),
        ('{"name": ', "malformed JSON"),
    ],
)
def test_bad_data_sets_are_refused(text, message):
    with pytest.raises(UserError, match=message):
        DataSet.parse(text)


def test_an_existing_file_may_have_an_at_sign(tmp_path):
    path = tmp_path / "rows@2"
    path.write_text("")
    assert DataSet.parse(str(path)) == DataSet(str(path))
    assert DataSet.parse(f"{path}@3").weight == 3


@pytest.mark.parametrize(
    ("flags", "data", "message"),
    [
        ("", "FOLDER/a.jsonl FOLDER/b.jsonl@none", "the weight 'none' is not a number above 0"),
        ("--same_source_batches true", "FOLDER/a.jsonl FOLDER/tiny.jsonl", "3 rows, fewer than the 4 of a batch"),
        ("--same_source_batches true --dry_run", "FOLDER/a.jsonl FOLDER/tiny.jsonl", "3 rows, fewer than the 4"),
        ("", '{"name":"FOLDER/a.jsonl","train_group_size":3}', "queries of one batch need equally many passages"),
        ("--sampling_temperature 2", "FOLDER/a.jsonl", "belongs to --sampling temperature"),
        ("--sampling temperature --sampling_temperature 0", "FOLDER/a.jsonl", "is not positive"),
        ("--objective distil", "FOLDER/a.jsonl@2", "belong to training with labels"),
        ("--objective distil --same_source_batches true", "FOLDER/a.jsonl", "belong to training with labels"),
        (
            "--objective distil --guide_model_name_or_path FOLDER/big",
            "FOLDER/a.jsonl",
            "belongs to training with labels",
        ),
        ("--query_negatives true --in_batch_negatives false", "FOLDER/a.jsonl", "are in-batch negatives"),
        ("--guide_model_name_or_path FOLDER/none", "FOLDER/a.jsonl", "no such model folder"),
    ],
)
def test_bad_flags_are_refused(run, capfd, flags, data, message):
    run("bad", f"{STEPS} {flags}", code=2, data=data)
    assert message in capfd.readouterr().err


def test_prefixes_of_a_model_that_leaves_prompts_out_cannot_differ(run, folder, tmp_path, capfd):
    model = save_model(tmp_path / "model")
    (model / "starbucks.json").write_text(json.dumps({"format": 1, "pooling": "mean", "include_prompt": False}))
    one = f'{{"name":"{folder}/a.jsonl","query_prefix":"w5"}}'
    run("prompts", f"{STEPS} --model_name_or_path {model} --normalize true", code=2, data=one)
    assert "leaves its own prompts out of the mean only" in capfd.readouterr().err


def test_the_exponent_of_sampling():
    chosen = [MixtureArguments(sampling=name).sampling_exponent for name in ("proportional", "uniform", "temperature")]
    assert chosen == [1.0, 0.0, 0.5]
    assert MixtureArguments(sampling="temperature", sampling_temperature=4.0).sampling_exponent == 0.25
