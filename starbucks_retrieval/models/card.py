"""The front matter of a model card: what the hub and its tools read about a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starbucks_retrieval.data.sources import find_ir
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.models.config import model_file
from starbucks_retrieval.parsing import read_text
from starbucks_retrieval.sizes import Size
from starbucks_retrieval.yaml_text import parse_yaml

SENTENCE_TRANSFORMERS = "sentence-transformers"

# The folders in which huggingface_hub keeps downloads.
_HUB_CACHE = re.compile(r"models--([^/\\]+)[/\\]snapshots[/\\][^/\\]+$")
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\r?\n---\s*$", re.DOTALL | re.MULTILINE)
_TAGS = ("dense-retrieval", "matryoshka", "starbucks")


@dataclass(frozen=True)
class CardScore:
    """A score of a model on a data set.

    Attributes:
        task: "information-retrieval" or "semantic-similarity".
        dataset: The data set: a hub name, or a path of which only the last part is shown.
        split: Its split.
        measure: The measure, such as nDCG@10.
        size: The size, such as 2:32.
        value: The score.
    """

    task: str
    dataset: str
    split: str
    measure: str
    size: str
    value: float


def front_matter(
    name: str,
    base: str,
    library: str,
    task: str | None,
    tags: Iterable[str],
    datasets: Sequence[str] = (),
    scores: Iterable[CardScore] = (),
) -> str:
    """Return the front matter of a card, without the lines of hyphens around it.

    Licence and languages are those that the card of the base model states; none where it states none.

    Args:
        name: The name of the model.
        base: The model that it was made from: a folder, or a name on the hub.
        library: The library that loads it.
        task: The task, in the hub's words; None states none.
        tags: Tags on the hub.
        datasets: The training data; only names on the hub are listed.
        scores: Scores of the model.
    """
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type=score.task,
            dataset_type=score.dataset if is_hub_name(score.dataset) else "unknown",
            dataset_name=Path(score.dataset).name,
            dataset_split=score.split,
            metric_type=score.measure.lower(),
            metric_value=round(score.value, 4),
            metric_name=f"{score.measure} at size {score.size}",
        )
        for score in scores
    ]
    entries: dict[str, Any] = {
        key: value for key in ("license", "language") if _is_text(value := _entries(base).get(key))
    }
    entries |= {"library_name": library, "pipeline_tag": task, **base_model(base), "tags": list(tags)}
    entries["datasets"] = [found for found in datasets if is_hub_name(found)] or None
    if results:
        entries |= {"model_name": name, "eval_results": results}
    return ModelCardData(**entries).to_yaml().strip()


def embedding_model(modules: bool) -> dict[str, Any]:
    """Return library, task and tags of a model card of an encoder.

    Args:
        modules: The folder is one of sentence-transformers. Otherwise no entry leads to tools that would read the
            backbone alone and pool it in another way.

    Example:
        >>> embedding_model(False)["tags"]
        ['dense-retrieval', 'matryoshka', 'starbucks']
    """
    if not modules:
        return {"library": "starbucks_retrieval", "task": None, "tags": list(_TAGS)}
    tags = [SENTENCE_TRANSFORMERS, "sentence-similarity", "feature-extraction", *_TAGS]
    return {"library": SENTENCE_TRANSFORMERS, "task": "sentence-similarity", "tags": tags}


def usage(name: str, size: Size, modules: bool, layers: int) -> list[str]:
    """Return Markdown that shows the use of an encoder at a size, and with sentence-transformers where that reads it.

    Args:
        name: The name of the model.
        size: The size of the example.
        modules: The folder is one of sentence-transformers.
        layers: The layers of the model; the example loads no more than it needs.

    Example:
        >>> usage("my-model", Size(2, 32), modules=False, layers=6)[3]
        'encoder = NestedEncoder.from_pretrained("my-model", layers=2)'
    """
    needed = f", layers={size.layer}" if size.layer < layers else ""
    ours = [
        "```python",
        "from starbucks_retrieval import NestedEncoder",
        "",
        f'encoder = NestedEncoder.from_pretrained("{name}"{needed})',
        f'vectors = encoder.encode(["some text"], sizes="{size}")',
        "```",
    ]
    if not modules:
        return ours
    theirs = [
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("{name}")',
        'queries = model.encode_query(["a question"])',
        'passages = model.encode_document(["a passage", "another passage"])',
        "scores = model.similarity(queries, passages)",
        "```",
    ]
    return [*theirs, "", "At a smaller size:", "", *ours]


def is_hub_name(name: str) -> bool:
    """Return whether a data set can be one of the hub: its name has at most one slash, and nothing else has it.

    Example:
        >>> is_hub_name("mteb/scifact"), is_hub_name("/data/scifact"), is_hub_name("./train.jsonl")
        (True, False, False)
    """
    return bool(_HUB_NAME.fullmatch(name)) and find_ir(name, None) is None and not Path(name).exists()


def base_model(name_or_path: str) -> dict[str, str | list[str]]:
    """Return the entry `base_model` of a model card, {} where no public name is known.

    The name is a hub name or that of a folder in the hub's cache. For any other folder it is the base that its own card
    records: the folder's name means nothing to others, or is the name of another model.

    Example:
        >>> base_model("google-bert/bert-base-uncased")
        {'base_model': 'google-bert/bert-base-uncased'}
    """
    folder = Path(name_or_path)
    if not folder.is_dir():
        return {"base_model": name_or_path}
    if cached := _HUB_CACHE.search(str(folder.absolute())):
        return {"base_model": cached[1].replace("--", "/")}
    found = _entries(name_or_path).get("base_model")
    names = found if isinstance(found, list) else [found]
    if not found or not all(isinstance(name, str) and _HUB_NAME.fullmatch(name) for name in names):
        return {}
    return {"base_model": found}


def base_model_text(name_or_path: str) -> str:
    """Return the base model in Markdown, for a sentence of a model card; a local folder is named too.

    Args:
        name_or_path: A model folder, or the name of a model on the hub.

    Example:
        >>> base_model_text("google-bert/bert-base-uncased")
        '`google-bert/bert-base-uncased`'
    """
    folder = Path(name_or_path)
    known = base_model(name_or_path).get("base_model")
    if not folder.is_dir() or _HUB_CACHE.search(str(folder.absolute())):
        return f"`{known}`"
    base = known if isinstance(known, str) else ", ".join(known or ())
    return f"a local folder, `{folder.resolve().name}`" + (f", which was made from `{base}`" if base else "")


def _entries(name_or_path: str) -> dict[str, Any]:
    """Return the front matter of the card of a model; {} where there is none that can be read."""
    card = model_file(name_or_path, "README.md")
    if card is None:
        return {}
    try:
        front = _FRONT_MATTER.match(read_text(card))
        content = parse_yaml(front[1], card) if front else None
    except (OSError, UserError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_text(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(isinstance(found, str) for found in values)
