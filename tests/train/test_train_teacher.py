"""train --objective distil with another teacher: an encoder, or its stored embeddings."""

import json

import numpy as np
import pytest
import torch
from conftest import save_model
from small_stores import write_store
from train.resuming import assert_resumes_to_the_same_bits

from starbucks_retrieval import NestedEncoder, Size
from starbucks_retrieval.cli import run_command
from starbucks_retrieval.models import unpadded
from starbucks_retrieval.train.__main__ import main
from starbucks_retrieval.train.distil import TeacherMap, fit_map
from starbucks_retrieval.train.examples import Text
from starbucks_retrieval.train.teacher import Teacher, TeacherSource

STEPS = "--max_steps 2 --save_strategy no --sizes 0:8,2:16,4:32"
FULL = Size(4, 48)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A wider model that brings a prefix, texts with ids, and the embeddings of these by that model."""
    folder = tmp_path_factory.mktemp("teacher")
    save_model(folder / "big", seed=1, hidden_size=48)
    config = {"format": 1, "pooling": "mean", "normalize": True, "temperature": 0.02, "query_prefix": "w1 w2 "}
    (folder / "big" / "starbucks.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)

    def words(count):
        return " ".join(f"w{i}" for i in rng.integers(0, 95, count))

    encoder = NestedEncoder.from_pretrained(folder / "big", device="cpu")
    for name, key, length, count in (("corpus", "d", 12, 60), ("queries", "q", 4, 20)):
        texts = [words(length) for _ in range(count)]
        rows = [{"_id": f"{key}{i}", "text": text} for i, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        is_query = name == "queries"
        vectors = encoder.encode(texts, FULL, is_query=is_query)[FULL]
        described = {"kind": name if is_query else "passages", "size": FULL, "normalize": True, "pooling": "mean"}
        turned = rng.permutation(count)  # rows are found by id, not by position
        ids = [f"{key}{i}" for i in turned]
        write_store(folder / f"{name}-store", ids, vectors[turned], fingerprint="0" * 32, **described)
        write_store(folder / f"{name}-part", ids[:30], vectors[turned][:30], **described)
    (folder / "texts.txt").write_text("w1 w2\n" * 60)
    (folder / "few.jsonl").write_text("".join(json.dumps({"_id": f"d{i}", "text": words(5)}) + "\n" for i in range(40)))
    return folder


@pytest.fixture(scope="module")
def run(folder, tiny_bert):
    """Distils the tiny model in a folder of its own, and returns the folder."""
    common = (
        "--objective distil --use_cpu --per_device_train_batch_size 8 --learning_rate 1e-3 --warmup_steps 0 --quiet "
        "--logging_steps 1 --overwrite_output_dir --dropout 0 --pooling mean --normalize true --temperature 0.05"
    )
    data = f"--dataset_path {folder}/corpus.jsonl --query_path {folder}/queries.jsonl"

    def train(name, flags, code=0, data=data):
        flags = flags.replace("FOLDER", str(folder))
        argv = f"--model_name_or_path {tiny_bert} --output_dir {folder / name} {common} {data} {flags}".split()
        assert run_command(main, argv) == code
        return folder / name

    return train


MODEL = "--teacher_model_name_or_path FOLDER/big"
STORES = "--teacher_embeddings FOLDER/corpus-store FOLDER/queries-store"


@pytest.fixture(scope="module")
def taught(run):
    return run("taught", f"{STEPS} {MODEL}")


def history(output):
    return [entry for entry in json.loads((output / "training.json").read_text())["history"] if "loss" in entry]


def test_the_small_sizes_follow_the_teacher_and_the_full_one_stays(taught, run, folder):
    alone = run("alone", STEPS)
    first, own = history(taught)[0], history(alone)[0]
    assert first["cosine/4:32"] == pytest.approx(0, abs=1e-5)
    assert all(first[name] != own[name] for name in first if name.startswith("kl/"))
    record = json.loads((taught / "training.json").read_text())
    fingerprint = NestedEncoder.from_pretrained(folder / "big", device="cpu").fingerprint(4)
    assert (record["teacher"]["fingerprint"], record["teacher"]["width"]) == (fingerprint, 48)
    assert (record["teacher"]["name"], record["teacher"]["texts"]) == (str(folder / "big"), 72)
    assert record["fit"]["ridges"].keys() == {"0", "2"} and record["fit"]["texts"] == 72
    assert "teacher" not in json.loads((alone / "training.json").read_text())
    assert f"- teacher: {folder / 'big'}" in (taught / "README.md").read_text()


@pytest.mark.slow
def test_the_full_size_follows_the_teacher_if_asked(run):
    losses = history(run("follows", f"--max_steps 20 {MODEL} --sizes 4:32 --objective_options full_follows=teacher"))
    assert {name for name in losses[0] if "/" in name} == {"cosine/4:32", "kl/4:32"}
    assert losses[0]["kl/4:32"] > 0.01
    assert np.mean([entry["loss"] for entry in losses[-5:]]) < np.mean([entry["loss"] for entry in losses[:5]])


def test_stored_embeddings_teach_as_the_model_does(taught, run):
    for one, two in zip(history(taught), history(run("stored", f"{STEPS} {STORES}"))):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["--grad_cache", "--gradient_checkpointing true"])
def test_cache_and_checkpointing_change_nothing(taught, run, flags, monkeypatch):
    if "checkpointing" in flags:  # computes padding; compared with a padded run, since Adam enlarges rounding
        monkeypatch.setattr(unpadded, "is_supported", lambda backbone: False)
        taught = run("padded", f"{STEPS} {MODEL}")
    for one, two in zip(history(taught), history(run("other", f"{STEPS} {MODEL} {flags}"))):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("teacher", [MODEL, STORES])
def test_a_resumed_run_ends_with_the_same_bits(run, teacher):
    assert_resumes_to_the_same_bits(run, f"--sizes 0:8,2:16 {teacher}")


@pytest.mark.slow
def test_another_teacher_of_the_same_name_is_refused_by_a_resumed_run(run, folder, capfd):
    save_model(folder / "changing", seed=2)
    flags = "--max_steps 1 --save_steps 1 --sizes 0:8,4:32 --teacher_model_name_or_path FOLDER/changing"
    run("changed", flags)
    save_model(folder / "changing", seed=3)
    run("changed", f"{flags} --resume_from_checkpoint true", code=2)
    assert "another configuration: teacher " in capfd.readouterr().err


@pytest.mark.slow
def test_the_model_itself_as_its_teacher_changes_nothing(run, taught, tiny_bert, folder):
    own = save_model(folder / "own")
    (own / "starbucks.json").write_text(json.dumps({"format": 1, "pooling": "mean", "normalize": True}))
    record = json.loads((run("itself", f"{STEPS} --teacher_model_name_or_path {own}") / "training.json").read_text())
    assert record["teacher"]["score_scale"] == pytest.approx(1, abs=1e-5)
    assert record["teacher"]["held_out_cosine"] > 0.999


class Fixed(Teacher):
    """A teacher whose embeddings are given."""

    def __init__(self, vectors):
        super().__init__(TeacherSource("fixed", vectors.shape[1], None, {}), None, (8, 8))
        self.vectors_by_text = vectors

    def embed(self, texts):
        return self.vectors_by_text[[text.number for text in texts]]


def numbered(count, seed=0):
    rng = np.random.default_rng(seed)
    return [Text(i, " ".join(f"w{k}" for k in rng.integers(0, 95, 6)), False) for i in range(count)]


def test_the_map_finds_a_linear_teacher(tiny_bert, tmp_path):
    encoder, texts = NestedEncoder.from_pretrained(tiny_bert, device="cpu"), numbered(400)
    own = encoder.encode([text.text for text in texts], Size(4, 32))[Size(4, 32)]
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(40, 40)))[0][:32]
    teacher = Fixed((3 * own @ turn).astype(np.float32))
    found = fit_map(teacher, encoder, texts, (60, 60))
    np.testing.assert_allclose(found.targets(torch.from_numpy(teacher.embed(texts))), own, atol=0.02)
    assert found.scale == pytest.approx(1 / 9, rel=1e-3)  # inner products of the teacher are nine times as large
    found.save(tmp_path / "map.safetensors")
    again = TeacherMap.load(tmp_path / "map.safetensors")
    assert torch.equal(found.weight, again.weight) and (again.scale, again.fitted) == (found.scale, found.fitted)


@pytest.mark.parametrize("fitted", ["[" * 10**5, "[]", '{"score_scale": "x"}', '{"score_scale": 1e999}', "{}"])
def test_a_damaged_map_is_refused(tmp_path, fitted):
    from safetensors.torch import save_file

    from starbucks_retrieval import UserError

    path = tmp_path / "map.safetensors"
    save_file({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, path, {"fitted": fitted})
    with pytest.raises(UserError, match=r"map\.safetensors"):
        TeacherMap.load(path)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [(np.ones((60, 40)), "the same embedding"), (np.full((60, 40), np.nan), "not finite")],
)
def test_useless_embeddings_are_refused(tiny_bert, vectors, message):
    from starbucks_retrieval import UserError

    encoder = NestedEncoder.from_pretrained(tiny_bert, device="cpu")
    with pytest.raises(UserError, match=message):
        fit_map(Fixed(vectors.astype(np.float32)), encoder, numbered(60), (60, 60))


PASSAGES = "--dataset_path FOLDER/corpus.jsonl"


@pytest.mark.parametrize(
    ("data", "flags", "message"),
    [
        (PASSAGES, "--teacher_embeddings FOLDER/corpus-part", "has no embedding of the document d"),
        (PASSAGES, "--teacher_embeddings FOLDER/queries-store", "holds no passages, which --dataset_path names"),
        (PASSAGES, STORES, "holds queries, and --query_path names none"),
        (PASSAGES, "--teacher_embeddings FOLDER/corpus-store FOLDER/corpus-part", "hold passages twice"),
        ("--dataset_path FOLDER/texts.txt", "--teacher_embeddings FOLDER/corpus-store", "which has no document ids"),
        (PASSAGES, f"{MODEL} {STORES}", "contradict each other"),
        (PASSAGES, f"{MODEL} --objective srl", "--teacher_model_name_or_path belongs to training without labels"),
        (PASSAGES, f"{STORES} --objective srl", "--teacher_embeddings belongs to training without labels"),
        (PASSAGES, "--objective_options full_follows=teacher", "needs another teacher"),
        ("--dataset_path FOLDER/few.jsonl", MODEL, "40 texts cannot fit the map of a teacher of 48 numbers"),
        ("--dataset_path FOLDER/few.jsonl", f"{MODEL} --dry_run", "40 texts cannot fit the map of a teacher"),
    ],
)
def test_bad_teachers_are_refused(run, folder, capfd, data, flags, message):
    run("bad", f"--max_steps 1 --sizes 0:8,4:32 {flags}", code=2, data=data.replace("FOLDER", str(folder)))
    assert message in capfd.readouterr().err


def test_a_dry_run_names_the_teacher(run, capfd):
    run("dry", f"{STEPS} {MODEL} --dry_run")
    assert "4 layers, 48 numbers" in capfd.readouterr().out
