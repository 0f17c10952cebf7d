"""MtebModel: prompts of tasks, several sizes from one pass, metadata from which mteb loads a size."""

from importlib.util import find_spec

import numpy as np
import pytest
from fitted_models import fitted, load
from made_tasks import made_collection, made_pairs, retrieval_task, sts_task

from starbucks_retrieval import NestedEncoder, Size, Sizes, UserError
from starbucks_retrieval.integrations import MtebModel

# Every test process collects every file: the import would cost each of them seconds.
pytestmark = pytest.mark.skipif(find_spec("mteb") is None, reason="needs the package mteb 2")
QUIET = {"cache": None, "show_progress_bar": False}


@pytest.fixture(scope="module")
def folder(tiny_bert, tmp_path_factory):
    """A fitted model with prefixes."""
    encoder = fitted(load(tiny_bert, query_prefix="w90 ", passage_prefix="w91 "))[0]
    path = tmp_path_factory.mktemp("model")
    encoder.config = encoder.config.__class__(**{**vars(encoder.config), "sizes": Sizes.parse("1:8,2:8,4:32")})
    encoder.save_pretrained(path)
    return path


def scores(results):
    return {size: result.task_results[0].get_score() for size, result in results.items()}


@pytest.fixture
def encoded(monkeypatch):
    """How many texts were encoded, and at which sizes."""
    calls = []
    embed = NestedEncoder.embed

    def counting(self, rows, sizes, **options):
        calls.append((len(rows), str(sizes)))
        return embed(self, rows, sizes, **options)

    monkeypatch.setattr(NestedEncoder, "embed", counting)
    return calls


def test_several_sizes_from_one_pass(folder, encoded):
    import mteb

    tasks = [retrieval_task(made_collection()), sts_task(made_pairs())]
    model = MtebModel(folder)
    results = model.evaluate(tasks, ["2:8", "4:32", "1:8/4:8"], **QUIET)
    assert {sizes for _, sizes in encoded} == {"1:8,2:8,4:32", "2:8,4:8,4:32"}  # of queries and of passages
    assert sorted(count for count, _ in encoded) == [12, 40, 40, 40]  # queries, corpus, first and second sentences
    assert list(results) == ["2:8", "4:32", "1:8/4:8"]
    for size, result in results.items():
        for task, shared in zip(tasks, result.task_results, strict=True):
            alone = mteb.evaluate(MtebModel(folder, size), task, **QUIET).task_results[0]
            assert shared.get_score() == alone.get_score()
    encoded.clear()
    assert scores(model.evaluate(tasks[0], "2:8", **QUIET)) == {"2:8": scores(results)["2:8"]}
    assert len(encoded) == 2  # nothing is left of the first evaluation


def test_the_sizes_of_the_model_are_the_default(folder):
    results = MtebModel(folder).evaluate(sts_task(made_pairs()), **QUIET)
    assert list(results) == ["1:8", "2:8", "4:32"] and len(set(scores(results).values())) == 3


def texts_of(model, monkeypatch, **options):
    import mteb

    """The prefixes with which a model embeds queries, passages and sentences of a task."""
    seen = []
    embed_sizes = MtebModel._embed_sizes

    def recording(self, texts, prefix, is_query, *arguments):
        seen.append(prefix)
        return embed_sizes(self, texts, prefix, is_query, *arguments)

    monkeypatch.setattr(MtebModel, "_embed_sizes", recording)
    mteb.evaluate(model, retrieval_task(made_collection(), **options), **QUIET)
    retrieval = sorted(set(seen))
    seen.clear()
    mteb.evaluate(model, sts_task(made_pairs(), **options), **QUIET)
    return retrieval, sorted(set(seen))


def test_prompts_by_task_type_and_side(folder, monkeypatch):
    prompts = {"Retrieval-query": "w1 ", "document": "w2 ", "LocalSTS": "w3 "}
    assert texts_of(MtebModel(folder, "2:8", prompts=prompts), monkeypatch) == (["w1 ", "w2 "], ["w3 "])
    prompts = {"LocalRetrieval": "w4 "}
    assert texts_of(MtebModel(folder, "2:8", prompts=prompts), monkeypatch) == (["w4 "], ["w91 "])
    assert texts_of(MtebModel(folder, "2:8"), monkeypatch) == (["w90 ", "w91 "], ["w91 "])


def test_instructions_of_tasks(folder, monkeypatch):
    template = "w5 {instruction} w6: "
    model = MtebModel(folder, "2:8", instruction_template=template)
    found = texts_of(model, monkeypatch, name="Instructed", prompt={"query": "w7 w8"})
    assert found == (["w5 w7 w8 w6: ", "w91 "], ["w5 w7 w8 w6: "])
    assert texts_of(model, monkeypatch, name="Told", prompt="w9")[1] == ["w5 w9 w6: "]
    # Without an instruction of its own, a task has that of its type.
    assert texts_of(model, monkeypatch)[1] == ["w5 Retrieve semantically similar text. w6: "]
    both = MtebModel(folder, "2:8", instruction_template=template, instruct_passages=True, prompts={"Retrieval": "w2"})
    assert texts_of(both, monkeypatch)[0] == ["w5 w2 w6: "]
    assert both.at("1:8").instruction_template == template
    assert both.mteb_model_meta.use_instructions
    with pytest.raises(UserError, match="no place for the instruction"):
        MtebModel(folder, instruction_template="Instruct: ")


def test_mteb_loads_a_size_from_metadata(folder):
    import mteb

    meta = MtebModel(folder, prompts={"query": "w1 "}).sizes_meta()
    assert meta.embed_dim == [8, 32]
    assert meta.revision == NestedEncoder.from_pretrained(folder).fingerprint(4)
    loaded = meta.load_model(device="cpu")
    assert (loaded.size, loaded.task_prompts) == (Size(4, 32), {"query": "w1 "})
    small = meta.load_model(embed_dim=8)
    assert small.size == Size(2, 8)  # the deeper of two with this dim
    assert small.mteb_model_meta.embed_dim == 8 and small.mteb_model_meta != loaded.mteb_model_meta
    assert meta.load_model(size="1:8").size == Size(1, 8)
    task = sts_task(made_pairs())
    expected = mteb.evaluate(MtebModel(folder, prompts={"query": "w1 "}), task, **QUIET).task_results[0].get_score()
    assert mteb.evaluate(meta, task, **QUIET).task_results[0].get_score() == expected
    with pytest.raises(ValueError, match="16"):  # mteb's own check
        meta.load_model(embed_dim=16)


def test_metadata_of_one_size_loads_it(folder):
    model = MtebModel(folder, "1:8/4:8")
    loaded = model.mteb_model_meta.load_model()
    assert (loaded.size, loaded.passage_size) == (Size(1, 8), Size(4, 8))
    np.testing.assert_array_equal(loaded.embed_passages(["w1 w2"]), model.embed_passages(["w1 w2"]))
    assert loaded.mteb_model_meta == model.mteb_model_meta
    in_memory = MtebModel(load(folder), "2:8")
    in_memory.encoder.name = ""
    assert in_memory.mteb_model_meta.loader is None


def test_metadata_of_other_weights_are_refused(folder, tiny_bert):
    meta = MtebModel(folder).mteb_model_meta
    other = meta.model_copy(update={"revision": "blake2b:0"})
    with pytest.raises(UserError, match="other weights than the metadata"):
        other.load_model()


def test_sizes_that_the_model_lacks_are_refused(folder):
    with pytest.raises(UserError, match="layer 9"):
        MtebModel(folder).evaluate(sts_task(made_pairs()), ["2:8", "9:8"], **QUIET)
    with pytest.raises(UserError, match="no sizes"):
        MtebModel(folder).evaluate(sts_task(made_pairs()), [], **QUIET)
