"""Natural language inference triples as training groups, and the real NLI and STS files of the shared folder."""

import csv
import json

import pytest
from conftest import slow_except

from starbucks_retrieval.data import Group, Passage, open_groups, open_pairs, scan
from starbucks_retrieval.data.groups import text_id

ROWS = [
    {"anchor": 'He said "no".', "positive": '"No," he said.', "negative": 'He said 6" or so.', "source": "snli"},
    {"anchor": 'He said "no".', "positive": '"No," he said.', "negative": 'He said 6" or so.', "source": "snli"},
    {"anchor": 'He said "no".', "positive": "He spoke.", "negative": "He was silent.", "source": "anli"},
]


def group_of(row):
    passages = {text_id(text): Passage(text_id(text), "", text) for text in (row["positive"], row["negative"])}
    positive, negative = passages
    return Group(text_id(row["anchor"]), row["anchor"], (positive,), (negative,), passages, None)


@pytest.mark.parametrize("form", ["jsonl", "header.tsv", "plain.tsv", "parquet"])
def test_triples_in_every_format(tmp_path, form):
    path = tmp_path / f"triples.{form}"
    columns = ("anchor", "positive", "negative")
    if form == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        lines = ["\t".join(columns)] * (form == "header.tsv") + ["\t".join(row[c] for c in columns) for row in ROWS]
        path.write_text("\n".join(lines) + "\n")
    groups = open_groups(str(path))
    assert list(groups) == [group_of(row) for row in ROWS]
    assert scan(groups, "groups").count == 3  # equal anchors, and even equal rows, are no error


@pytest.mark.slow
def test_real_triples(shared, tmp_path):
    path = shared / "data" / "nli" / "triples.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    groups = list(open_groups(str(path)))
    assert len(groups) == 6_574
    assert all(group == group_of(row) for group, row in zip(groups, rows))
    # The same three columns as tsv and as Parquet.
    columns = ("anchor", "positive", "negative")
    lines = ("\t".join(row[column] for column in columns) + "\n" for row in rows)
    (tmp_path / "t.tsv").write_text("".join(lines), encoding="utf-8")
    assert list(open_groups(str(tmp_path / "t.tsv"))) == groups
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    assert list(open_groups(str(tmp_path / "t.parquet"))) == groups


# pairs of each subset: the published sizes
STS = {
    "STS12": {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750, "surprise.SMTnews": 399},
    "STS13": {"FNWN": 189, "headlines": 750, "OnWN": 561},
    "STS14": {
        "deft-forum": 450,
        "deft-news": 300,
        "headlines": 750,
        "images": 750,
        "OnWN": 750,
        "tweet-news": 750,
    },
    "STS15": {
        "answers-forums": 375,
        "answers-students": 750,
        "belief": 375,
        "headlines": 750,
        "images": 750,
    },
    "STSB": {"train": 5_749, "dev": 1_500, "test": 1_379},
}


@pytest.mark.parametrize("name", slow_except(["STS12"], STS))
def test_real_scored_pairs(shared, name):
    path = shared / "data" / "sts" / f"{name}.tsv"
    pairs = list(open_pairs(str(path)))
    sizes = {subset: sum(pair.subset == subset for pair in pairs) for subset in {pair.subset for pair in pairs}}
    assert sizes == STS[name]
    assert all(0 <= pair.score <= 5 and pair.sentence1 and pair.sentence2 for pair in pairs)
    # Nothing was taken for quoting: the cells are those between the tabs.
    with open(path, encoding="utf-8", newline="\n") as handle:
        cells = list(csv.reader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    assert [(pair.sentence1, pair.sentence2) for pair in pairs] == [(first, second) for _, _, first, second in cells]
    assert any('"' in pair.sentence1 for pair in pairs)
    assert scan(open_pairs(str(path)), "pairs").count == len(pairs)
    for split, size in STS[name].items():
        assert sum(1 for _ in open_pairs(str(path), split=split)) == size
