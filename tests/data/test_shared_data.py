"""The real sets of the shared folder, where it is there."""

import os
from pathlib import Path

import pytest
from conftest import slow_except

from starbucks_retrieval.data import check_qrels, open_corpus, open_groups, open_queries, read_qrels, read_run, scan

SHARED = Path(os.environ.get("STARBUCKS_SHARED") or Path(__file__).resolve().parents[2].parent / "shared")
DATA = SHARED / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data sets at {DATA}")

# passages, {split: queries with judgements}: the counts of the folder's own README
SETS = {
    "scifact": (5_183, {"train": 809, "test": 300}),
    "nfcorpus": (3_395, {"train": 2_563, "dev": 324, "test": 323}),
    "msmarco-dl": (31_982, {"dl19": 43, "dev": 620}),
    "medquad": (16_350, {"train": 12_205, "dev": 761, "test": 1_379}),
    "wikiqa": (11_406, {"train": 873, "dev": 126, "test": 243}),
    "cranfield": (1_400, {"test": 225}),
    "cacm": (3_204, {"test": 52}),
    "adi": (82, {"test": 35}),
    "climate-fever-evidence": (5_240, {"test": 1_535}),
}


@pytest.mark.parametrize("name", slow_except(["scifact", "cranfield", "adi", "climate-fever-evidence"], SETS))
def test_counts_and_that_everything_judged_exists(name):
    folder = str(DATA / name)
    passages, splits = SETS[name]
    corpus = open_corpus(folder)
    assert scan(corpus).count == passages
    docids = {passage.docid for passage in corpus}
    query_ids = {query.query_id for query in open_queries(folder)}
    for split, queries in splits.items():
        qrels = read_qrels(folder, split=split)
        assert len(qrels) == queries
        assert scan(open_queries(folder, split=split), "queries").count == queries
        check_qrels(qrels, query_ids, docids, name)


@pytest.mark.parametrize(
    "name", slow_except(["scifact"], [name for name, (_, splits) in SETS.items() if "train" in splits])
)
def test_training_groups(name):
    qrels = read_qrels(str(DATA / name), split="train")
    for group in open_groups(str(DATA / name)):
        assert group.positive_ids == tuple(sorted(d for d, grade in qrels[group.query_id].items() if grade > 0))


def test_runs_hold_results_for_all_judged_queries():
    qrels = read_qrels(str(DATA / "topics-qrels" / "qrels.dl19-passage.txt"))
    paths = sorted((DATA / "runs").glob("*.trec.gz"))
    assert len(paths) == 8
    for path in paths:
        run = read_run(path)
        assert set(run) == set(qrels)
        assert sum(map(len, run.values())) >= 4_300


@pytest.mark.slow
def test_topics_and_qrels_as_users_have_them():
    folder = DATA / "topics-qrels"
    for topics in folder.rglob("topics.*"):
        name = topics.name.replace("topics.", "qrels.", 1).replace(".tsv", ".txt")
        queries = open_queries(str(topics))
        judged = read_qrels(str(topics.with_name(name)))
        check_qrels(judged, {query.query_id for query in queries}, None, name)


def test_nli_triples():
    assert scan(open_groups(str(DATA / "nli" / "triples.jsonl")), "groups").count == 6_574
