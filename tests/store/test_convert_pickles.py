"""Pickles of Tevatron and ielab, and pickles that mean harm."""

import json
import pickle
import struct
import types
from typing import ClassVar

import numpy as np
import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.store import check_same, open_store
from starbucks_retrieval.store.__main__ import main
from starbucks_retrieval.store.pickles import ImportArguments, import_pickles
from starbucks_retrieval.store.safe_pickle import load_arrays

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)


def imported(files, output, layer=1, name="x", **settings):
    return import_pickles(ImportArguments(files, output, layer, name=name, **settings))


class _OldNumpy(pickle._Pickler):
    """Writes what numpy 1 wrote, whose modules were called numpy.core."""

    def save_global(self, obj, name=None):
        module = getattr(obj, "__module__", None) or ""
        if not module.startswith("numpy._core"):
            super().save_global(obj, name)
            return
        module = module.replace("numpy._core", "numpy.core")
        if self.proto >= 4:
            self.save(module)
            self.save(obj.__name__)
            self.write(pickle.STACK_GLOBAL)
        else:
            self.write(pickle.GLOBAL + f"{module}\n{obj.__name__}\n".encode())
        self.memoize(obj)

    # The table of pickle is changed by dill, which the datasets library imports: types are written as pickle writes them.
    dispatch: ClassVar = pickle._Pickler.dispatch | {
        types.FunctionType: save_global,
        type: pickle._Pickler.save_type,
        dict: pickle._Pickler.save_dict,
    }


@pytest.fixture
def dump(tmp_path):
    def write(name, content, protocol=4, old_numpy=False):
        with open(tmp_path / name, "wb") as handle:
            (_OldNumpy if old_numpy else pickle.Pickler)(handle, protocol).dump(content)
        data = (tmp_path / name).read_bytes()
        assert (b"numpy.core." in data, b"numpy._core." in data) == (old_numpy, not old_numpy) or b"numpy" not in data
        return tmp_path / name

    return write


def vectors_of(rows, dim=8, dtype=np.float32, seed=3):
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype(dtype)


ARRAYS = {
    "plain": lambda: vectors_of(5),
    "half": lambda: vectors_of(5, dtype=np.float16),
    "big-endian": lambda: vectors_of(5).astype(">f4"),
    "Fortran": lambda: np.asfortranarray(vectors_of(5)),
    "strided": lambda: vectors_of(10)[::2],
    "turned": lambda: vectors_of(8, 5).T,
    "none": lambda: vectors_of(0),
    "text": lambda: np.array(["a", "é中"]),
    "whole numbers": lambda: np.arange(7),
    "three axes": lambda: vectors_of(6).reshape(2, 3, 8).transpose(2, 0, 1),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("old_numpy", [False, True])
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_come_out_as_pickle_would_give_them(dump, kind, protocol, old_numpy):
    array = ARRAYS[kind]()
    ids = ["a", "é", 7, np.int64(3), np.str_("ü"), b"x"]
    path = dump("x.pkl", (array, ids), protocol, old_numpy)
    found, found_ids = load_arrays(path)
    assert np.array_equal(found, array) and found.shape == array.shape and found.dtype == array.dtype
    assert found_ids == ids


class _Touch:
    """When unpickled by pickle itself, makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


class _Shell(_Touch):
    def __reduce__(self):
        import os

        return os.system, (f"touch {self.path}",)


class _Evil:
    def __init__(self, *state):
        self.state = state

    def __reduce__(self):
        return self.state


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("harm", [_Touch, _Shell])
def test_nothing_is_executed(tmp_path, dump, harm, protocol):
    mark = tmp_path / "executed"
    path = dump("evil.pkl", (vectors_of(1), ["a", harm(mark)]), protocol)
    with pytest.raises(UserError, match=r"names (io|_io|posix|nt|builtins|__builtin__)\.\w+") as caught:
        load_arrays(path)
    assert "nothing was executed" in caught.value.what and str(path) in caught.value.what
    assert not mark.exists()
    pickle.loads(path.read_bytes())  # noqa: S301 - our own; the test is worth nothing if it could do no harm
    assert mark.exists()


def stack_global(module, name):
    return b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)) + b"\x93"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("numpy", "ndarray.tofile"),
        ("numpy", "load"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy._core.multiarray", "_reconstruct.__globals__"),
        ("torch._utils", "_rebuild_tensor_v2"),
        ("numpy", "matrix"),
        ("copyreg", "_reconstructor"),
    ],
)
def test_other_names_are_refused_by_name(tmp_path, module, name):
    (tmp_path / "x.pkl").write_bytes(b"\x80\x04" + stack_global(module, name) + b".")
    with pytest.raises(UserError, match=f"names {module}.{name}"):
        load_arrays(tmp_path / "x.pkl")


CALL = stack_global("numpy._core.multiarray", "_reconstruct")
ARRAY, DTYPE = stack_global("numpy", "ndarray"), stack_global("numpy", "dtype")


@pytest.mark.parametrize(
    "code",
    [
        b"",
        b"not a pickle",
        b"\x80\x04",
        b"\x80\x04" + ARRAY + b")\x81.",  # an array without a state
        b"\x80\x04" + ARRAY + b"}b.",  # a state for the class
        b"\x80\x04" + CALL + b"}\x8c\x01xK\x01sb.",  # attributes for what is called
        b"\x80\x04" + CALL + b"N}\x8c\x09_functionK\x01s\x86b.",  # the same through slots
        b"\x80\x04" + CALL + DTYPE + b"K\x00\x85\x8c\x01b\x87R.",  # an array of a class of its own
        b"\x80\x04" + DTYPE + b"\x8c\x02O8\x85R.",  # objects, which are pointers
        b"\x80\x04" + DTYPE + b"\x8c\x10f4,f4,f4,f4,f4,f\x85R.",
        b"\x80\x04" + stack_global("_codecs", "encode") + b"\x8c\x01x\x8c\x03zip\x86R.",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b".",  # a text longer than memory
        b"\x80\x04P0\n.",  # a persistent id
        b"\x80\x04\x82\x01.",  # a registered extension
    ],
)
def test_damaged_and_crafted_pickles_are_user_errors(tmp_path, code):
    (tmp_path / "x.pkl").write_bytes(code)
    with pytest.raises(UserError, match=r"x\.pkl"):
        content = load_arrays(tmp_path / "x.pkl")
        imported([tmp_path / "x.pkl"], tmp_path / "out")
        pytest.fail(f"read {content!r}")


def test_an_array_cannot_claim_more_than_its_bytes(dump, tmp_path):
    state = (1, (1 << 40, 8), np.dtype("f4"), False, b"\0" * 64)
    reconstruct = np.zeros(1).__reduce__()[0]
    crafted = _Evil(reconstruct, (np.ndarray, (0,), b"b"), state)
    with pytest.raises(UserError, match="has 64 bytes"):
        load_arrays(dump("x.pkl", (crafted, ["a"])))
    objects = (np.array([object], dtype=object), ["a"])
    with pytest.raises(UserError):
        load_arrays(dump("y.pkl", objects))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_files_are_concatenated_in_the_order_given(tmp_path, dump, protocol):
    first, second = vectors_of(7), vectors_of(4, seed=4)
    files = [
        dump("b.pkl", (first, [f"d{row}" for row in range(7)]), protocol),
        dump("a.pkl", [second, tuple(range(4))], protocol),
    ]
    figures = imported(files, tmp_path / "out", 12, "x", shard_size=5)
    assert figures["rows"] == 11 and figures["size"] == "12:8"
    store = open_store(tmp_path / "out", Size(12, 8))
    assert store.ids(np.arange(11)) == [f"d{row}" for row in range(7)] + list("0123")
    assert np.array_equal(store.vectors(np.arange(11)), np.concatenate([first, second]))
    assert imported(files, tmp_path / "out", 12, "x", shard_size=5)["shards_written"] == 0


def test_the_type_on_disk_is_that_of_the_files(tmp_path, dump):
    for dtype, expected in [(np.float16, "float16"), (np.float32, "float32"), (np.float64, "float32")]:
        file = dump("x.pkl", (vectors_of(3, dtype=dtype), list("abc")))
        imported([file], tmp_path / f"{dtype.__name__}")
        assert open_store(tmp_path / f"{dtype.__name__}").spec.store_dtype == expected


def test_the_import_door(tmp_path, dump, capsys):
    passages = dump("corpus.pkl", (vectors_of(6), [f"d{row}" for row in range(6)]))
    queries = dump("queries.pkl", (vectors_of(2, seed=5), ["q1", "q2"]))
    argv = ["import", str(passages), str(tmp_path / "p"), "--layer", "12"]
    for more, what in [
        ([], "--name is missing"),
        (["--name", "x", "--fingerprint", "y"], "contradict each other"),
        (["--name", "x", "--dim", "16"], "has 8 dimensions, --dim says 16"),
        (["--name", "x", "--normalize"], "not normalised"),
    ]:
        assert run_command(main, [*argv, *more]) == 2
        assert what in capsys.readouterr().err
    assert not (tmp_path / "p").exists()
    assert run_command(main, [*argv, "--name", "bert", "--dim", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == "imported-bert"
    argv = ["import", str(queries), str(tmp_path / "q"), "--layer", "12", "--encode_is_query"]
    assert run_command(main, [*argv, "--name", "bert"]) == 0
    passages, queries = open_store(tmp_path / "p"), open_store(tmp_path / "q")
    assert (passages.spec.kind, queries.spec.kind) == ("passages", "queries")
    check_same(queries.spec, passages.spec)
    assert run_command(main, [*argv, "--fingerprint", "abc", "--overwrite"]) == 0
    with pytest.raises(UserError, match="different"):
        check_same(open_store(tmp_path / "q").spec, passages.spec)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (vectors_of(2), "does not hold"),
        ((vectors_of(2), ["a"]), "2 vectors and 1 ids"),
        ((vectors_of(2)[0], ["a"]), "shape"),
        ((np.zeros((2, 8), np.int64), ["a", "b"]), "int64"),
        ((vectors_of(2), ["a", None]), "the id None"),
        ((vectors_of(2), ["a", ""]), "the id ''"),
        ((vectors_of(2), "ab"), "ids as str"),
        ((vectors_of(2), ["a", "a"]), "'a' occurs twice"),
        ((vectors_of(0), []), "no passages"),
    ],
)
def test_other_contents_are_refused(tmp_path, dump, content, what):
    with pytest.raises(UserError, match=what):
        imported([dump("x.pkl", content)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_that_do_not_fit_together(tmp_path, dump):
    one = dump("one.pkl", (vectors_of(2), ["a", "b"]))
    other = dump("other.pkl", (vectors_of(2, 4), ["c", "d"]))
    with pytest.raises(UserError, match=r"other\.pkl has 4 dimensions, .*one\.pkl says 8"):
        imported([one, other], tmp_path / "out")
    with pytest.raises(UserError, match="'a' occurs twice"):
        imported([one, one], tmp_path / "out")
    with pytest.raises(UserError, match="no such file"):
        imported([one, tmp_path / "no.pkl"], tmp_path / "out")
