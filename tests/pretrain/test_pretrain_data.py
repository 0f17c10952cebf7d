"""Batches that go on after an interruption bit for bit, and documents shared among processes."""

from __future__ import annotations

import json
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from conftest import slow_except
from pretrain.letters import letters, lines_file, random_texts, read

from starbucks_retrieval import UserError
from starbucks_retrieval.data.documents import open_documents, open_text_pairs
from starbucks_retrieval.pretrain.data import PretrainingData
from starbucks_retrieval.pretrain.masks import Masking


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    texts = random_texts(90)
    texts[5] = "  "
    texts[17] = "ab"
    return [lines_file(folder / "a.txt", texts[:40]), lines_file(folder / "b.txt.gz", texts[40:])]


def data(files, **options):
    options = {"max_length": 40, "batch_size": 8, "seed": 3, **options}
    return PretrainingData([open_documents(file) for file in files], letters(), **options)


def same(first, second):
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)


MODES = [
    {},
    {"shuffle": 16},
    {"mode": "blocks"},
    {"mode": "blocks", "pack": True, "shuffle": 7},
    {"mode": "spans", "masking": Masking(0.3, 0.5, "independent", decoder="enhanced")},
    {"rank": 1, "world": 2},
]


@pytest.mark.parametrize("options", slow_except([MODES[0], MODES[3]], MODES), ids=str)
def test_a_resumed_stream_equals_the_uninterrupted_one(files, options):
    whole = list(islice(data(files, **options), 64))
    assert whole[-1]["state"][0] > 90  # the second epoch and more
    for stop in (0, 1, 4, 11, 12, 25, 37, 61):
        again = data(files, state=whole[stop]["state"].tolist(), **options)
        assert all(same(batch, old) for batch, old in zip(islice(again, 2), whole[stop + 1 :]))


def test_the_state_holds_documents_parts_batch_and_lengths(files):
    batches = list(islice(data(files), 15))
    assert batches[0]["state"].tolist() == [9, 0, 1, -1, -1]  # one of the first nine is empty
    assert batches[-1]["state"].tolist()[2:] == [15, 40, 50]


def test_batches_follow_the_seed_and_nothing_else(files):
    first, again = next(iter(data(files))), next(iter(data(files)))
    assert same(first, again)
    assert not same(first, next(iter(data(files, seed=4))))
    looped = data(files)
    assert same(next(iter(looped)), next(iter(looped)))


def test_masks_differ_between_batches_and_processes(files, tmp_path):
    same_text = [lines_file(tmp_path / "one.txt", ["abc defg hij klm nop qrs tuv wxy z"] * 4)]
    batches = list(islice(data(same_text, batch_size=2), 2))
    assert batches[0]["ids"].equal(batches[1]["ids"])
    assert not batches[0]["encoder_labels"].equal(batches[1]["encoder_labels"])
    other = next(iter(data(same_text, batch_size=2, rank=1, world=2)))
    assert not batches[0]["encoder_labels"].equal(other["encoder_labels"])


def first_words(batch):
    return [read(row[row > 4].tolist()).split()[0] for row in batch["ids"]]


@pytest.mark.parametrize("world", [1, 3])
def test_an_epoch_shows_each_document_once_to_one_process(files, world):
    names = []
    for rank in range(world):
        for batch in data(files, rank=rank, world=world, max_length=512, batch_size=1):
            if batch["state"][0] > 90:
                break
            names += first_words(batch)
    assert len(names) == len(set(names)) == 88


def test_spans_of_a_document_are_neighbours(files):
    options = {"mode": "spans", "max_length": 512}
    whole = {
        text.split()[0]: text.replace(".", " .").split()
        for file in files
        for text in open_documents(file)
        if text.strip()
    }
    for batch in islice(data(files, **options), 3):
        for first, second in zip(batch["ids"][::2], batch["ids"][1::2]):
            words = read(first[first > 4].tolist()).split()
            rest = read(second[second > 4].tolist())
            text = " ".join(whole[words[0]])
            joined = " ".join(words) + (rest[2:] if rest.startswith("##") else " " + rest)
            assert joined.replace("##", "") == text
    with pytest.raises(UserError, match="7 spans"):
        data(files, mode="spans", batch_size=7)


def test_both_texts_of_a_pair_are_neighbours(tmp_path):
    pairs = [(first, f"{second} {first}") for first, second in zip("abcdefghijklmnopqrst", "bcdefghijklmnopqrstu")]
    lines = [json.dumps({"anchor": first, "positive": [second], "negative": "z"}) for first, second in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join([*lines, '{"anchor": "z", "positive": " "}']))
    source = open_text_pairs(str(tmp_path / "pairs.jsonl"))
    stream = PretrainingData([source], letters(), max_length=40, batch_size=8, mode="pairs")
    for number, batch in enumerate(islice(stream, 6)):
        texts = [read(row[row > 4].tolist()) for row in batch["ids"]]
        half = len(texts) // 2
        expected = [text for i in range(half) for text in pairs[(number * half + i) % 20]]
        assert texts == expected
    assert stream.cutter.dropped["short"] > 0  # the empty one
    with pytest.raises(UserError, match="7 texts"):
        PretrainingData([source], letters(), max_length=40, batch_size=7, mode="pairs")


def test_empty_and_short_documents_are_counted(files):
    stream = data(files)
    list(islice(stream, 11))
    assert stream.cutter.dropped == {"empty": 1, "short": 1}


def test_a_data_loader_in_another_process_gives_the_same_batches(files):
    loader = torch.utils.data.DataLoader(data(files), batch_size=None, num_workers=1)
    assert all(same(a, b) for a, b in zip(islice(loader, 3), islice(data(files), 3)))


def test_several_processes_of_a_data_loader_are_refused(files, monkeypatch):
    # As in one of the processes: after an error, each of them would keep the collection of garbage waiting for 5 seconds.
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: SimpleNamespace(id=0, num_workers=2))
    with pytest.raises(UserError, match="dataloader_num_workers"):
        next(iter(data(files)))


def test_a_state_of_other_sources_is_refused(files):
    with pytest.raises(UserError, match="where the run began with 1"):
        data(files, state=[0, 0, 0, -1])
