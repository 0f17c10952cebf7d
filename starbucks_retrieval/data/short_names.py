"""Short names of well-known collections: name → split → ir_datasets id. `test` is what a name is evaluated on."""

from __future__ import annotations

import fnmatch

from starbucks_retrieval.errors import UserError

_FORUMS = (
    "android",
    "english",
    "gaming",
    "gis",
    "mathematica",
    "physics",
    "programmers",
    "stats",
    "tex",
    "unix",
    "webmasters",
    "wordpress",
)

SHORT_NAMES: dict[str, dict[str, str]] = {
    "msmarco-train": {"train": "msmarco-passage/train/judged"},
    "msmarco-dev": {"test": "msmarco-passage/dev/small", "dev": "msmarco-passage/dev/small"},
    "dl19": {"test": "msmarco-passage/trec-dl-2019/judged"},
    "dl20": {"test": "msmarco-passage/trec-dl-2020/judged"},
    "dl-hard": {"test": "msmarco-passage/trec-dl-hard"},
    "beir/arguana": {"test": "beir/arguana"},
    "beir/climate-fever": {"test": "beir/climate-fever"},
    **{f"beir/cqadupstack/{forum}": {"test": f"beir/cqadupstack/{forum}"} for forum in _FORUMS},
    "beir/dbpedia-entity": {"test": "beir/dbpedia-entity/test", "dev": "beir/dbpedia-entity/dev"},
    "beir/fever": {"test": "beir/fever/test", "train": "beir/fever/train", "dev": "beir/fever/dev"},
    "beir/fiqa": {"test": "beir/fiqa/test", "train": "beir/fiqa/train", "dev": "beir/fiqa/dev"},
    "beir/hotpotqa": {"test": "beir/hotpotqa/test", "train": "beir/hotpotqa/train", "dev": "beir/hotpotqa/dev"},
    # BEIR's own figures for MS MARCO are on dev; its `test` is DL19.
    "beir/msmarco": {"test": "beir/msmarco/dev", "train": "beir/msmarco/train", "dev": "beir/msmarco/dev"},
    "beir/nfcorpus": {"test": "beir/nfcorpus/test", "train": "beir/nfcorpus/train", "dev": "beir/nfcorpus/dev"},
    "beir/nq": {"test": "beir/nq"},
    "beir/quora": {"test": "beir/quora/test", "dev": "beir/quora/dev"},
    "beir/scidocs": {"test": "beir/scidocs"},
    "beir/scifact": {"test": "beir/scifact/test", "train": "beir/scifact/train"},
    "beir/trec-covid": {"test": "beir/trec-covid"},
    "beir/webis-touche2020": {"test": "beir/webis-touche2020/v2"},
}

_PYSERINI = {
    "msmarco-passage/dev/small": "msmarco-passage-dev-subset",
    "msmarco-passage/trec-dl-2019/judged": "dl19-passage",
    "msmarco-passage/trec-dl-2020/judged": "dl20-passage",
    # BEIR's archive holds the second version of these topics.
    "beir/webis-touche2020/v2": "beir-v1.0.0-webis-touche2020-test",
}


def expand(source: str) -> list[str]:
    """The short names that a pattern such as `beir/cqadupstack/*` stands for; anything else stands for itself."""
    return fnmatch.filter(SHORT_NAMES, source) or [source]


def pyserini_name(dataset_id: str) -> str | None:
    """What pyserini calls the topics and judgements of an ir_datasets id, or None if it is not known to have them."""
    if dataset_id in _PYSERINI:
        return _PYSERINI[dataset_id]
    if not any(dataset_id == splits["test"] for name, splits in SHORT_NAMES.items() if name.startswith("beir/")):
        return None
    if dataset_id.startswith("beir/msmarco"):
        return None
    return f"beir-v1.0.0-{dataset_id.removeprefix('beir/').removesuffix('/test').replace('/', '-')}-test"


def resolve(name: str, split: str | None) -> str | None:
    """The ir_datasets id behind a short name and a split (default: its first), or None if `name` is not one."""
    splits = SHORT_NAMES.get(name)
    if splits is None:
        return None
    chosen = split or next(iter(splits))
    if chosen not in splits:
        raise UserError(f"{name} has no split {chosen!r}", f"it has {', '.join(splits)}")
    return splits[chosen]
