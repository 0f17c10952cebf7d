"""Small test collections, and tasks of mteb made of them."""

from __future__ import annotations

import numpy as np

from starbucks_retrieval import Size
from starbucks_retrieval.metrics.measures import parse_measures, score


def made_collection():
    """corpus {id: title and text}, queries {id: text}, qrels; every third passage has no title."""
    rng = np.random.default_rng(0)
    words = [[f"w{i}" for i in rng.integers(0, 60, 9)] for _ in range(40)]
    corpus = {
        f"d{i}": {"title": "" if i % 3 == 0 else " ".join(w[:2]), "text": " ".join(w[2:])} for i, w in enumerate(words)
    }
    queries = {f"q{i}": " ".join(words[i][1:5]) for i in range(12)}
    qrels = {f"q{i}": {f"d{i}": 2, f"d{i + 12}": 1} for i in range(12)}
    return corpus, queries, qrels


def made_pairs(count=40):
    """Rows of sentence1, sentence2 and a random score from 0 to 5."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        a, b = rng.integers(0, 30, (2, 5))
        sentences = {f"sentence{k}": " ".join(f"w{i}" for i in s) for k, s in ((1, a), (2, b))}
        rows.append({"score": int(rng.integers(0, 6)), **sentences})
    return rows


def ndcg(encoder, size, collection, passage_size=None, separator=" "):
    """nDCG@10 the way the other stages get it: prefix, separator, dot product, trec_eval."""
    corpus, queries, qrels = collection
    titled = [f"{p['title']}{separator}{p['text']}" if p["title"] else p["text"] for p in corpus.values()]
    passages, embedded_queries = (
        encoder.encode(list(texts), at, is_query=is_query)[Size.parse(at)]
        for texts, at, is_query in ((titled, passage_size or size, False), (queries.values(), size, True))
    )
    scores = embedded_queries @ passages.T
    run = {q: dict(zip(corpus, map(float, scores[i]))) for i, q in enumerate(queries)}
    return score(qrels, run, parse_measures("nDCG@10")).mean["nDCG@10"]


def _metadata(name, kind, main_score, prompt=None):
    import mteb

    return mteb.TaskMetadata(
        name=name,
        type=kind,
        main_score=main_score,
        description="A set made by a test",
        reference="https://example.org",
        dataset={"path": "none/none", "revision": "1"},
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        modalities=["text"],
        category="t2t",
        date=("2024-01-01", "2024-01-01"),
        domains=[],
        task_subtypes=[],
        license="cc0-1.0",
        annotations_creators="derived",
        dialect=[],
        sample_creation="created",
        bibtex_citation="",
        prompt=prompt,
    )


def retrieval_task(collection, name="LocalRetrieval", prompt=None):
    """A retrieval task of mteb."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData

    corpus, queries, qrels = collection

    class Local(AbsTaskRetrieval):
        metadata = _metadata(name, "Retrieval", "ndcg_at_10", prompt)

        def load_data(self, num_proc=None, **options):
            split = RetrievalSplitData(
                corpus=Dataset.from_list([{"id": key, **passage} for key, passage in corpus.items()]),
                queries=Dataset.from_list([{"id": key, "text": text} for key, text in queries.items()]),
                relevant_docs=qrels,
                top_ranked=None,
            )
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Local()


def sts_task(rows, name="LocalSTS", prompt=None):
    """A task of mteb with pairs of sentences."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks.sts import AbsTaskSTS

    class Local(AbsTaskSTS):
        metadata = _metadata(name, "STS", "cosine_spearman", prompt)

        def load_data(self, num_proc=None, **options):
            self.dataset = DatasetDict({"test": Dataset.from_list(rows)})
            self.data_loaded = True

    return Local()
