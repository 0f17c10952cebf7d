"""`starbucks store verify`, `info`, and what all sub-commands share."""

import json

import pytest

from starbucks_retrieval.cli import readable, run_command
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import StoreWriter, output_folder
from starbucks_retrieval.store.__main__ import COMMANDS, main
from starbucks_retrieval.store.operations import describe_stores, verify_stores


@pytest.fixture
def door(capsys):
    """Run the door: exit status, standard output, standard error."""

    def run(*argv):
        status = run_command(main, list(map(str, argv)))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture
def output(tmp_path, make_spec, write_store):
    for size in (Size(2, 4), Size(6, 8)):
        write_store(output_folder(tmp_path / "out", size), make_spec(size=size))
    return tmp_path / "out"


@pytest.fixture
def half(tmp_path, make_spec, rows_of):
    spec = make_spec()
    ids, vectors = rows_of(spec)
    with StoreWriter.open(tmp_path / "half", spec) as writer:
        writer.write_shard(1, ids[4:8], vectors[4:8])
    return tmp_path / "half"


@pytest.mark.parametrize("argv", [[], ["mend"]])
def test_sub_commands_are_listed(door, argv):
    status, _, err = door(*argv)
    assert status == 2
    assert all(name in err for name in COMMANDS)


def test_paths_by_position_by_flag_and_from_a_file(door, tmp_path, output):
    (tmp_path / "job.json").write_text(json.dumps({"path": [str(output)]}))
    for argv in ([output], ["--path", output], [tmp_path / "job.json"], [output, "--quiet"]):
        status, out, _ = door("info", *argv, "--json")
        assert status == 0 and len(json.loads(out)["stores"]) == 2
    for argv, what in [
        (["info"], "--path is missing"),
        (["slice", output], "--output is missing"),
        (["slice", output, output, output], "unknown argument"),
        (["info", tmp_path / "no"], "no such folder"),
        (["info", tmp_path / "x*"], "no folder matches"),
        (["info", tmp_path], "not an embedding store"),
    ]:
        status, _, err = door(*argv)
        assert status == 2 and what in err


def test_info_tells_everything(door, output, half):
    status, out, err = door("info", output, half)
    assert status == 0 and "3 stores" in err and "1 of them incomplete" in err
    assert "10 passages at 6:8, float32" in out and "INCOMPLETE: 1 of 3 shards" in out
    assert "fingerprint f00d" in out and "mean pooling" in out and "'passage: '" in out
    figures = describe_stores([half])[0]
    assert (figures["complete"], figures["shards_there"], figures["rows_there"], figures["rows"]) == (False, 1, 4, 10)
    assert figures["bytes"] == sum(path.stat().st_size for path in half.iterdir())
    assert json.dumps(figures)


def test_info_tells_parts(tmp_path, make_spec, write_store):
    for part in range(2):
        write_store(output_folder(tmp_path / "o", Size(6, 8), 2, part), make_spec(parts=2, part=part))
    assert [(store["part"], store["rows"]) for store in describe_stores([f"{tmp_path}/o/part-*"])] == [(0, 5), (1, 5)]


def test_verify_of_whole_stores(door, output):
    status, out, err = door("verify", output, "--json")
    assert status == 0 and "no problems" in err
    figures = json.loads(out)
    assert (figures["stores"], figures["shards"], figures["problems"]) == (2, 6, [])
    assert figures["bytes"] == sum(path.stat().st_size for path in output.rglob("*.npy"))


@pytest.mark.parametrize("name", ["00001.vectors.npy", "00001.ids.npy", "00001.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_verify_names_the_damaged_shard(door, output, name, how):
    path = output / "L6-D8" / name
    content = bytearray(path.read_bytes())
    if how == "remove":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[:-2])
    else:
        content[len(content) * 3 // 4] ^= 1
        path.write_bytes(content)
    status, out, err = door("verify", output, "--json")
    assert status == 2
    [problem] = json.loads(out)["problems"]
    assert "shard 1: " in problem and str(output / "L6-D8") in problem and problem in err


def test_verify_counts_an_unfinished_store_as_a_problem(half):
    assert verify_stores([half])["problems"] == [f"{half} is incomplete: 1 of 3 shards are there"]
    (half / "00001.ids.npy").unlink()
    assert len(verify_stores([half])["problems"]) == 2


def test_a_store_of_a_newer_version_names_both_and_the_remedy(door, output):
    manifest = output / "L6-D8" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 4'))
    for command in (["info", output], ["verify", output], ["slice", output / "L6-D8", output, "--dim", "2"]):
        status, _, err = door(*command)
        assert status == 2 and "version 4" in err and "up to 3" in err and "upgrade" in err


def test_an_output_below_a_file_is_a_user_error(door, tmp_path, output):
    (tmp_path / "file").write_text("")
    status, _, err = door("slice", output / "L6-D8", tmp_path / "file" / "x", "--dim", "2")
    assert status == 2 and "file is not a folder" in err


def test_readable():
    assert [readable(count) for count in (0, 999, 1500, 2_000_000, 3_250_000_000)] == [
        "0 bytes",
        "999 bytes",
        "1.5 kB",
        "2.0 MB",
        "3.2 GB",
    ]


def test_many_problems_are_counted(door, output):
    for path in output.rglob("*.npy"):
        path.write_bytes(b"")
    status, _, err = door("verify", output, "--quiet")
    assert status == 2 and err.count("instead of") == 6
