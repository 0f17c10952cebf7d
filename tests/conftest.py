"""Small models and texts that the tests make themselves."""

from __future__ import annotations

import atexit
import gc
import itertools
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from starbucks_retrieval import clock

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# What gRPC does at a fork can end the child: Ray's servers then never start beside a connection to Milvus.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # one test process a core is faster than threads that fight
# Threads that read weights cost more than reading such small models.
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
# As the package does, but before any test imports OpenVINO: its telemetry forks a process for each event and waits for it.
sys.modules.setdefault("openvino_telemetry", None)

_THREADS = int(os.environ["OMP_NUM_THREADS"])
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(95))]

_SMALL = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100, "pad_token_id": 0}
_FFN = {"intermediate_size": 48, "max_position_embeddings": 64}
_DECODER = {**_SMALL, **_FFN, "num_key_value_heads": 2}

FAMILIES: dict[str, tuple[str, dict]] = {
    "bert": ("BertConfig", {**_SMALL, **_FFN}),
    "roberta": ("RobertaConfig", {**_SMALL, **_FFN}),
    "xlm-roberta": ("XLMRobertaConfig", {**_SMALL, **_FFN}),
    "camembert": ("CamembertConfig", {**_SMALL, **_FFN}),
    "distilbert": (
        "DistilBertConfig",
        {"dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 48, "vocab_size": 100, "max_position_embeddings": 64},
    ),
    "electra": ("ElectraConfig", {**_SMALL, **_FFN, "embedding_size": 16}),
    "mpnet": ("MPNetConfig", {**_SMALL, **_FFN}),
    "modernbert": (
        "ModernBertConfig",
        {
            **_SMALL,
            **_FFN,
            "cls_token_id": 2,
            "sep_token_id": 3,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "local_attention": 8,
        },
    ),
    "llama": ("LlamaConfig", _DECODER),
    "mistral": ("MistralConfig", {**_DECODER, "sliding_window": 8}),
    "qwen2": ("Qwen2Config", {**_DECODER, "use_sliding_window": True, "max_window_layers": 2, "sliding_window": 8}),
    "qwen3": ("Qwen3Config", {**_DECODER, "head_dim": 8}),
    "eurobert": ("EuroBertConfig", {**_DECODER, "bos_token_id": 2, "eos_token_id": 3, "mask_token_id": 4}),
    "gemma3_text": (
        "Gemma3TextConfig",
        {
            **_DECODER,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "use_bidirectional_attention": True,  # as EmbeddingGemma
            "sliding_window": 8,
            "sliding_window_pattern": 2,
        },
    ),
    "nomic_bert": ("NomicBertConfig", {**_SMALL, **_FFN}),
}
DECODERS = ("llama", "mistral", "qwen2", "qwen3")
# A bidirectional encoder, one with rotary positions and windows, a decoder: enough where others differ in shape alone.
TYPICAL = ("bert", "modernbert", "qwen3")


def slow_except(quick: Collection, values: Iterable) -> list:
    """The values of a test's parameter, all but the quick ones marked slow: for cases that run the same code.

    A tuple holds the values of several parameters.
    """
    return [
        value
        if value in quick
        else pytest.param(*(value if type(value) is tuple else (value,)), marks=pytest.mark.slow)
        for value in values
    ]


def save_tokenizer(folder: Path) -> None:
    """A word-level tokenizer with BERT's special tokens: w0 … w94 are its words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=60,
    ).save_pretrained(folder)


def save_model(folder: Path, family: str = "bert", seed: int = 0, **changes) -> Path:
    """A random model of a family, saved as a plain Hugging Face folder."""
    import torch
    import transformers

    name, settings = FAMILIES[family]
    torch.manual_seed(seed)
    config = getattr(transformers, name)(**{**settings, **changes})
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():  # fresh norms are identities and fresh biases zero, which would hide mistakes
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    """A random 4-layer BERT of width 32."""
    return save_model(tmp_path_factory.mktemp("tiny-bert"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data sets that lies beside some checkouts."""
    folder = Path(os.environ.get("STARBUCKS_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip("needs the shared folder of real data sets (STARBUCKS_SHARED)")
    return folder


@pytest.fixture
def ticking(monkeypatch) -> None:
    """The package's clock goes on by a second at each reading, so that what is measured does not depend on the machine."""
    readings = itertools.count(1.0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(readings)))


def hub_builder(splits: dict, files: dict | None = None) -> SimpleNamespace:
    """What datasets.load_dataset_builder returns, as far as the reader uses it: files of splits, or rows without files."""
    return SimpleNamespace(config=SimpleNamespace(data_files=files), as_streaming_dataset=lambda: splits)


gc.disable()  # while test files are imported, which makes millions of objects and no garbage


def pytest_collection_finish() -> None:
    """Collect garbage from now on."""
    gc.enable()


@pytest.fixture(autouse=True)
def frozen_imports() -> None:
    """Exempt what was imported from the collection of garbage, which takes a quarter of a second with it; transformers
    collects at the start of each training."""
    global _modules
    if len(sys.modules) > _modules + 50:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)


_modules = 0


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Flushing protects against the loss of power, which no test causes. The tests that kill processes flush in these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def short_measurements() -> Iterator[None]:
    """Commands time this machine for a second or two before they begin; here each part runs once, on small tables."""
    from starbucks_retrieval.search import dry_run, machine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "LAYER_SECONDS", 0.0)
        patch.setattr(dry_run, "_MEASURE_SECONDS", 0.0)
        patch.setitem(machine.measure_machine.__kwdefaults__, "table_bytes", 4 << 20)
        yield


@pytest.fixture(autouse=True, scope="session")
def no_compiled_loops() -> Iterator[None]:
    """A worker that has read enough numbers would compile loops: tests that are about them ask for it."""
    from starbucks_retrieval.search import loops

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loops, "_WORTH_COMPILING", 2**62)
        yield


# Nothing is written to the user's cache.
os.environ["STARBUCKS_CACHE"] = tempfile.mkdtemp(prefix="starbucks-cache-")
atexit.register(shutil.rmtree, os.environ["STARBUCKS_CACHE"], ignore_errors=True)
_LOG = logging.getLogger("starbucks_retrieval")
_LOG_AT_START = _LOG.handlers[:], _LOG.propagate, _LOG.level


@pytest.fixture(autouse=True)
def package_logging() -> None:
    """Commands set up the package's log, in fixtures of a module too: each test begins with the log as it was at first."""
    _LOG.handlers[:], _LOG.propagate = _LOG_AT_START[:2]
    if _LOG.level != _LOG_AT_START[2]:  # to set a level empties the caches of all loggers
        _LOG.setLevel(_LOG_AT_START[2])


@pytest.fixture(autouse=True)
def threads_as_they_were() -> Iterator[None]:
    """FAISS and torch share OpenMP: a search with two threads would leave them to all tests that come after, and two
    threads sum in another order than one."""
    yield
    for module, count in (("torch", "get_num_threads"), ("faiss", "omp_get_max_threads")):
        loaded = sys.modules.get(module)
        if loaded is not None and getattr(loaded, count)() != _THREADS:
            getattr(loaded, "set_num_threads" if module == "torch" else "omp_set_num_threads")(_THREADS)
