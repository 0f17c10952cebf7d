"""Opening indexes: damage and indexes of other stores are refused."""

import json

import numpy as np
import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.provenance import with_digest
from starbucks_retrieval.search.indexes import build_index, open_index
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import checksums, open_store, output_folder

pytest.importorskip("faiss")

IDS = [f"d{number}" for number in range(1000)]


def vectors(count=1000, dim=16, seed=1):
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


@pytest.fixture
def store(open_written):
    return open_written(IDS, vectors(), shard_size=300)


def flip(content):
    return content[:-1] + bytes([content[-1] ^ 1])


def files(folder):
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()} if folder.exists() else {}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            {"fingerprint": "beef", "model_name": "other"},
            r"of another model: mine \(f00d\), the store has other \(beef\)",
        ),
        ({"size": Size(5, 16)}, "of another size: 6:16, the store has 5:16"),
        ({"kind": "queries"}, "of another kind: passages, the store has queries"),
        ({"pooling": "mean"}, "of another pooling: cls, the store has mean"),
        ({"normalize": True}, "of another normalize: False, the store has True"),
        (
            {"data_digest": "beef"},
            "store has changed since the index in .* was built: data_digest was 'da7a', is 'beef'",
        ),
        ({"prefix": "p: "}, "store has changed .*: prefix was '', is 'p: '"),
        ({"store_dtype": "float16"}, "store has changed .*: store_dtype"),
        ({"data_count": 900}, "store has changed .*: count was 1000, is 900"),
        ({"seed": 2}, "store has changed .*: (largest_norm|vectors) was"),
    ],
)
def test_an_index_of_another_store(tmp_path, open_written, changes, what):
    store = open_written(IDS, vectors(), model_name="mine")
    build_index(store, "Flat", tmp_path / "index")
    options = {"model_name": "mine"} | changes
    other = open_written(
        IDS[: options.get("data_count", 1000)], vectors(seed=options.pop("seed", 1))[: options.get("data_count", 1000)],
        name="other", **options,
    )  # fmt: skip
    with pytest.raises(UserError, match=what) as caught:
        open_index(tmp_path / "index", other)
    assert caught.value.hint


def test_one_vector_changed_at_the_edge_is_noticed(tmp_path, store, open_written):
    build_index(store, "Flat", tmp_path / "index")
    changed = vectors()
    changed[-1, 3] += 1e-3
    with pytest.raises(UserError, match="changed since"):
        open_index(tmp_path / "index", open_written(IDS, changed, name="changed"))


def test_shards_and_parts_do_not_change_the_identity_of_a_store(tmp_path, store, write_store, open_written):
    build_index(store, "Flat", tmp_path / "index")
    open_index(tmp_path / "index", open_written(IDS, vectors(), name="resharded", shard_size=77, model_name="moved"))
    for part in range(3):
        write_store(output_folder(tmp_path / "parts", Size(6, 16), 3, part), IDS, vectors(), parts=3, part=part)
    whole = open_store(tmp_path / "parts")
    rows, _ = open_index(tmp_path / "index", whole).search(vectors(3, seed=5), 4)
    assert [len(line) for line in rows] == [4, 4, 4]
    one = open_store(tmp_path / "parts" / "part-00001-of-00003")
    with pytest.raises(UserError, match="first_row was 0, is 333"):
        open_index(tmp_path / "index", one)


def test_damage_is_refused(tmp_path, store):
    folder = tmp_path / "index"
    build_index(store, "Flat", folder)
    whole = files(folder)

    def after(name, content):
        for other, content_of_other in whole.items():
            (folder / other).write_bytes(content_of_other)
        (folder / name).write_bytes(content)
        with pytest.raises(UserError) as caught:
            open_index(folder, store)
        return caught.value.what

    index, flipped, manifest = whole["index.faiss"], flip(whole["index.faiss"]), json.loads(whole["manifest.json"])
    assert "does not match its checksum" in after("index.faiss", flipped)
    assert f"bytes instead of {len(index)}" in after("index.faiss", index[:-1])
    assert "is damaged" in after("manifest.json", b"{")
    assert "is damaged" in after("manifest.json", json.dumps({**manifest, "store": {}}).encode())
    (folder / "manifest.json").write_bytes(b"{")
    with pytest.raises(UserError, match="is damaged"):
        build_index(store, "Flat", folder)
    assert build_index(store, "Flat", folder, overwrite=True).built and files(folder) == whole
    assert "reads up to 1" in after("manifest.json", json.dumps({**manifest, "version": 2}).encode())
    (folder / "manifest.json").write_bytes(whole["manifest.json"])
    (folder / "index.faiss").write_bytes(flipped)
    open_index(folder, store, checksum=False)
    (folder / "index.faiss").write_bytes(b"?" * len(index))
    with pytest.raises(UserError, match="FAISS cannot read"):
        open_index(folder, store, checksum=False)
    (folder / "index.faiss").unlink()
    with pytest.raises(UserError, match="is missing"):
        open_index(folder, store)
    with pytest.raises(UserError, match="is not an index"):
        open_index(tmp_path / "nowhere", store)


def test_an_index_is_compared_with_its_checksums_once(tmp_path, store, monkeypatch):
    folder, read = tmp_path / "index", []
    build_index(store, "Flat", folder)
    real = checksums.damaged_block
    monkeypatch.setattr(
        checksums, "damaged_block", lambda content, *rest: read.append(len(content)) or real(content, *rest)
    )
    open_index(folder, store)
    seen = [length for length in read if length == (folder / "index.faiss").stat().st_size]
    open_index(folder, store)
    assert len(seen) == 1 and [length for length in read if length == seen[0]] == seen


def test_an_older_manifest_has_the_checksum_of_the_whole_file(tmp_path, store):
    folder = tmp_path / "index"
    build_index(store, "Flat", folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["blocks"], manifest["digest"]
    (folder / "manifest.json").write_text(json.dumps(with_digest(manifest)))
    open_index(folder, store)
    (folder / "index.faiss").write_bytes(flip((folder / "index.faiss").read_bytes()))
    with pytest.raises(UserError, match=r"index\.faiss does not match its checksum\n"):
        open_index(folder, store)
