import json

import pytest

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreSpec, check_same, part_rows
from starbucks_retrieval.store.spec import job_difference, same_fingerprint


def test_json_round_trip(make_spec):
    spec = make_spec(provenance={"torch": "2.13.0"}, prefix="é: ")
    assert StoreSpec.from_json(json.loads(json.dumps(spec.to_json())), "here") == spec


@pytest.mark.parametrize("damage", [lambda v: v.pop("pooling"), lambda v: v.update(colour="red")])
def test_unknown_or_missing_fields_are_damage(make_spec, damage):
    values = make_spec().to_json()
    damage(values)
    with pytest.raises(UserError, match=r"m\.json is damaged"):
        StoreSpec.from_json(values, "m.json")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"kind": "cats"}, "cats"),
        ({"store_dtype": "int8"}, "int8"),
        ({"shard_size": 0}, "--shard_size 0"),
        ({"data_count": 0}, "no passages"),
        ({"parts": 4, "part": 4}, "--dataset_shard_index 4"),
        ({"parts": 11, "part": 0}, "cannot be split into 11"),
    ],
)
def test_impossible_jobs_are_refused(make_spec, changes, what):
    with pytest.raises(UserError, match=what):
        make_spec(**changes)


@pytest.mark.parametrize(("count", "parts"), [(10, 1), (10, 3), (7, 7), (16385, 4)])
def test_parts_are_consecutive_and_cover_everything(count, parts):
    ranges = [part_rows(count, parts, part) for part in range(parts)]
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(count))
    assert max(stop - start for start, stop in ranges) - min(stop - start for start, stop in ranges) <= 1


def test_shards_cover_a_part(make_spec):
    spec = make_spec(data_count=23, parts=2, part=1, shard_size=5)
    assert (spec.first_row, spec.rows, spec.shards) == (11, 12, 3)
    assert [spec.shard_rows(shard) for shard in range(3)] == [(0, 5), (5, 10), (10, 12)]


def test_paths_and_versions_do_not_make_another_job(make_spec):
    assert (
        job_difference(make_spec(), make_spec(model_name="./model", data_name="x", provenance={"git": "abc"})) is None
    )
    assert job_difference(make_spec(), make_spec(max_length=32)) == "max_length is 196 there, 32 here"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"size": Size(6, 4)}, "differ in size: 6:4 and 6:8"),
        ({"size": Size(4, 8)}, "differ in size: 4:8 and 6:8"),
        ({"pooling": "cls"}, "differ in pooling: 'cls' and 'mean'"),
        ({"normalize": True}, "differ in normalize: True and False"),
        ({"fingerprint": "beef"}, "different weights or settings of model: fingerprints beef and f00d"),
        ({"fingerprint": "beef", "model_name": "other"}, r"different models: other \(beef\) and model \(f00d\)"),
    ],
)
def test_queries_of_another_space_are_refused(make_spec, changes, what):
    with pytest.raises(UserError, match=what):
        check_same(make_spec(kind="queries", **changes), make_spec())


def test_queries_of_the_same_space_pass(make_spec):
    queries = make_spec(kind="queries", prefix="query: ", max_length=32, store_dtype="float16", data_digest="q")
    check_same(queries, make_spec())


def test_a_shared_space_is_written_only_where_there_is_one(make_spec):
    plain, shared = make_spec(), make_spec(shared_space="5ace")
    assert (plain.version, shared.version) == (1, 2)
    assert "shared_space" not in plain.to_json()
    assert StoreSpec.from_json(shared.to_json(), "here") == shared
    assert job_difference(plain, shared) == "shared_space is '' there, '5ace' here"


@pytest.mark.parametrize("layer", [0, 1, 6])
def test_queries_of_any_layer_of_a_shared_space_pass(make_spec, layer):
    queries = make_spec(
        kind="queries", size=Size(layer, 8), fingerprint="f00d" if layer == 6 else "beef", shared_space="5ace"
    )
    check_same(queries, make_spec(shared_space="5ace"))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"shared_space": "other"}, "queries at 1:8 and passages at 6:8 are not in one space: other and 5ace"),
        ({"shared_space": ""}, "queries at 1:8 and passages at 6:8 are not in one space: none and 5ace"),
        ({"size": Size(1, 4)}, "differ in dim: 1:4 and 6:8"),
        ({"size": Size(6, 4)}, "differ in size: 6:4 and 6:8"),
        ({"size": Size(6, 8)}, "fingerprints beef and f00d"),
        ({"pooling": "cls"}, "differ in pooling"),
        ({"normalize": True}, "differ in normalize"),
    ],
)
def test_queries_of_another_layer_need_the_same_space(make_spec, changes, what):
    values = {"kind": "queries", "size": Size(1, 8), "fingerprint": "beef", "shared_space": "5ace"} | changes
    with pytest.raises(UserError, match=what):
        check_same(make_spec(**values), make_spec(shared_space="5ace"))


def test_fingerprints_are_compared_as_far_as_both_tell():
    weights, others = "0123456789abcdef" * 2, "f" * 32
    whole, other_settings = f"{weights}:{'0' * 16}", f"{weights}:{'1' * 16}"
    for left, right, same in [
        (whole, whole, True),
        (whole, weights, True),  # of version 0.1, which knew the weights alone
        (whole, other_settings, False),
        (whole, others, False),
        (weights, others, False),
        ("imported-a", "imported-a", True),
        ("imported-a:b", "imported-a", False),
        (weights, "imported-a", False),
    ]:
        assert same_fingerprint(left, right) == same_fingerprint(right, left) == same
