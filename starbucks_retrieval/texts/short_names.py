"""Short names of well-known collections: name → split → ir_datasets id. `test` is what a name is evaluated on."""

from __future__ import annotations

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


def resolve(name: str, split: str | None) -> str | None:
    """The ir_datasets id behind a short name and a split (default: its first), or None if `name` is not one."""
    splits = SHORT_NAMES.get(name)
    if splits is None:
        return None
    chosen = split or next(iter(splits))
    if chosen not in splits:
        raise UserError(f"{name} has no split {chosen!r}", f"it has {', '.join(splits)}")
    return splits[chosen]
