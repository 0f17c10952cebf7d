"""The YAML files of tables and scales: those of the package are valid, and mistakes are named with file and row."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path

import pytest
from conftest import slow_except
from docs.pages import blocks

from starbucks_retrieval.errors import UserError
from starbucks_retrieval.reproduce import ReproduceArguments, estimate
from starbucks_retrieval.reproduce.api import plan_reproduction
from starbucks_retrieval.reproduce.flags import known_flags
from starbucks_retrieval.reproduce.jobs import LIBRARY, Files, Job
from starbucks_retrieval.reproduce.layout import make_table
from starbucks_retrieval.reproduce.plan import Plan, make_plan
from starbucks_retrieval.reproduce.reading import find_table, read_scale, read_table, table_names
from starbucks_retrieval.reproduce.scaling import rescale
from starbucks_retrieval.reproduce.schema import Table
from starbucks_retrieval.sizes import Size, Sizes
from starbucks_retrieval.train.presets import PRESETS

SIMILARITY = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
TABLE = """\
title: t
source: s
rows:
  - {name: SRL, train: {retrieval: {preset: starbucks-msmarco, sizes: "2:32,12:768"}}}
  - {name: bare}
columns: [MS MARCO]
baseline: SRL
"""


NAMES = table_names()
# One of each paper and of the study; the others have the same fields, and tests/reproduce/test_every_table.py runs them.
FIRST = {name.split("/")[0]: name for name in reversed(NAMES)}.values()
TABLES = slow_except(FIRST, NAMES)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    return path


@functools.cache
def planned(name: str, scale_name: str) -> tuple[Table, Plan]:
    """Return a table of the package and its plan at a scale."""
    path = find_table(name)
    table = read_table(path)
    # So that the folder of the data is not looked at.
    scale = dataclasses.replace(read_scale(scale_name, table, path), child=False)
    return table, make_plan(table, scale, 1, Path("nowhere"), Path("nowhere"))


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_the_package_can_be_planned_at_every_scale(name):
    for scale_name in ("tiny", "cpu", "full"):
        table, plan = planned(name, scale_name)
        if scale_name == "tiny":
            assert plan.jobs() or all(row.blocked for row in table.rows), name
        ids = [job.id for job in plan.jobs()]
        assert len(ids) == len(set(ids))
        position = {one: number for number, one in enumerate(ids)}
        assert all(position[needed.id] < position[job.id] for job in plan.jobs() for needed in job.needs)
        for job in (job for job in plan.jobs() if job.stage == "train"):
            preset = PRESETS.get(job.flags.get("preset", ""), {})
            dims = (preset | job.flags).get("train_dims", "1")
            assert max(map(int, dims.split(","))) <= plan.scale.full.dim  # also those of a preset
            if scale_name == "full" and "train_dims" in preset:
                assert "train_dims" not in job.flags


def test_the_table_in_the_documentation_can_be_planned(tmp_path):
    [block] = [block for block in blocks("docs/howto/reproduce.md") if block.title == "my-table.yaml"]
    arguments = ReproduceArguments(str(write(tmp_path, block.text)), output_dir=str(tmp_path))
    assert [job.stage for job in plan_reproduction(arguments).jobs()].count("grid") == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("starbucks-msmarco", "starbuck"), ["row 'SRL'", "preset 'starbuck'"]),
        (('"2:32,12:768"', '"2-32"'), ["row 'SRL'", "sizes"]),
        (("name: bare", "name: SRL"), ["row 'SRL' is there twice"]),
        (("MS MARCO", "MS MARKO"), ["no scale has a set 'MS MARKO'"]),
        (("[MS MARCO]", "[{set: MS MARCO, measure: MAP}]"), ["MS MARCO has no measure 'MAP'"]),
        (("baseline: SRL", "baseline: SLR"), ["no row is called 'SLR'"]),
        (("name: bare", "name: bare, training: {}"), ["row 'bare'", "unknown key training"]),
        (("name: bare", "name: bare, pretrain: [{corpus: web}]"), ["row 'bare'", "no scale has texts called 'web'"]),
        (("name: bare", "name: bare, start: bert"), ["row 'bare'", "no scale has a backbone 'bert'"]),
        (("title: t", "titles: t"), ["title"]),
        (("rows:", "rows: 3\nrest:"), ["rows is no list"]),
        (
            ("baseline: SRL", "published: [{row: SRL, set: MS MARCO, measure: RR@10, size: 12:768, value: 0.3}]"),
            ["published score 1 (SRL) has no source"],
        ),
        (
            (
                "baseline: SRL",
                "published: [{row: X, set: MS MARCO, measure: RR@10, size: 12:768, value: 0.3, source: P}]",
            ),
            ["no row is called 'X'"],
        ),
        (('"2:32,12:768"', '"2:32,20:768"'), ["row 'SRL'", "no size 20:768 in the paper's backbone of 12:768"]),
        (("baseline: SRL", "sizes: 24:768"), ["t.yaml: sizes: no size 24:768"]),
        (("baseline: SRL", "sizes: 5-33"), ["t.yaml: sizes: cannot read the size '5-33'"]),
        (("baseline: SRL", "claims: [{id: a, says: b, row: SRL, than: bare, sizes: [3x2]}]"), ["claim a: cannot read the size '3x2'"]),
        (("baseline: SRL", "claims: [{id: a, says: b, row: SRL, than: bare, at: {sets: [DL9]}}]"), ["claim a: no column is called 'DL9'"]),
        (("baseline: SRL", "published: [{row: SRL, set: MARKO, measure: RR@10, size: average, value: 0.3, source: P}]"), ["'MARKO'"]),
        (("baseline: SRL", "published: [{row: SRL, set: MS MARCO, measure: RX@1, size: average, value: 0.3, source: P}]"), ["published", "'RX@1'"]),
        (("name: bare", "name: bare, train: {retrieval: {loss: MatryoshkaLoss, like: SRL}}"), ["'bare'", "no loss 'MatryoshkaLoss'"]),
        (("name: bare", "name: bare, train: {retrieval: {loss: AdaptiveLayerLoss, like: bare}}"), ["'bare'", "like is 'bare'"]),
        (("name: bare", "name: bare, train: {retrieval: {loss: Matryoshka2dLoss, like: SRL}}"), ["'bare'", "has no dims"]),
        (("name: bare", "name: bare, each: size, train: {retrieval: {loss: AdaptiveLayerLoss, like: SRL}}"), ["'bare'", "each and loss"]),
        (("name: bare", "name: bare, train: {retrieval: {preset: separate-msmarco, train_group_size: 4}}"), ["'bare'", "other negatives", "train_group_size"]),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_the_file_or_the_row(tmp_path, change, words):
    path = write(tmp_path, TABLE.replace(*change))
    arguments = ReproduceArguments(str(path), scale="full", output_dir=str(tmp_path))
    with pytest.raises(UserError) as refused:
        plan_reproduction(arguments)
    assert all(word in refused.value.what for word in words), refused.value.what
    assert refused.value.hint


def test_sizes_that_fit_no_backbone_of_the_scale_are_refused_before_any_job(tmp_path):
    path = write(tmp_path, TABLE + "sizes: 5:33\n")
    with pytest.raises(UserError, match="none of the sizes 5:33 fits a backbone of 6:48"):
        plan_reproduction(ReproduceArguments(str(path), scale="tiny", output_dir=str(tmp_path)))


@pytest.mark.parametrize("name", TABLES)
def test_every_flag_of_every_job_is_a_flag_of_its_stage(name):
    for scale_name in ("tiny", "cpu", "full"):
        for job in planned(name, scale_name)[1].jobs():
            assert set(job.flags) <= known_flags(job.stage), (name, scale_name, job.flags)


def test_the_flags_of_transformers_are_read_from_its_source():
    from transformers import TrainingArguments

    of_library = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    assert {name for name in of_library if not name.startswith("_")} <= known_flags("train") & known_flags("pretrain")


@pytest.mark.parametrize(
    ("change", "place", "flag", "near"),
    [
        (("sizes:", "learning_rat: 0.1, sizes:"), "row 'SRL': train", "learning_rat", "learning_rate"),
        (("sizes:", "temperature_: 0.1, sizes:"), "row 'SRL': train", "temperature_", "temperature"),
        (("name: bare", "name: bare, pretrain: [{encoder_mlm_prob: 0.3}]"), "row 'bare': pretrain", "encoder_mlm_prob", "encoder_mlm_probability"),
        (("name: bare", "name: bare, pretrain: [{corpora: web}]"), "row 'bare': pretrain", "corpora", "corpus"),
        (("name: bare", "name: bare, fit: {layers: all, max_text: 3}"), "row 'bare': fit", "max_text", "max_texts"),
        (("name: bare", "name: bare, train: {retrieval: {loss: AdaptiveLayerLoss, like: SRL, minute: 3}}"), f"row 'bare': {LIBRARY}", "minute", "minutes"),
        (("name: bare", "name: bare, measure: {asymmetri_: true}"), "row 'bare': measure: grid", "asymmetri_", "asymmetric"),
        (("baseline: SRL", "scales: {full: {train: {retrieval: {bf_16: true}}}}"), "scale full: train: retrieval: train", "bf_16", "bf16"),
        (("baseline: SRL", "scales: {full: {sets: {MS MARCO: {flags: {dtyp: fp32}}}}}"), "scale full: sets: MS MARCO: grid", "dtyp", "dtype"),
    ],
)  # fmt: skip
def test_a_misspelled_flag_is_refused_before_any_job(tmp_path, change, place, flag, near):
    path = write(tmp_path, TABLE.replace(*change))
    with pytest.raises(UserError) as refused:
        plan_reproduction(ReproduceArguments(str(path), scale="full", output_dir=str(tmp_path)))
    assert refused.value.what == f"{path}: {place} has no flag {flag!r}"
    assert refused.value.hint.startswith(f"write {near}, or see ")
    assert "--help" in refused.value.hint


def test_a_misspelled_flag_of_a_shared_row_is_named_with_its_own_file(tmp_path):
    (tmp_path / "rows.yaml").write_text("rows: [{name: bare, fit: {layers: all, max_text: 3}}]\n")
    path = write(tmp_path, TABLE.replace("{name: bare}", "bare"))
    with pytest.raises(UserError, match=r"rows.yaml: row 'bare': fit has no flag 'max_text'"):
        read_table(path)


def test_flags_of_pairs_are_those_of_sts(tmp_path):
    text = TABLE.replace("MS MARCO", "STS-B").replace("name: bare", "name: bare, measure: {asymmetric: true}")
    arguments = ReproduceArguments(str(write(tmp_path, text)), scale="full", output_dir=str(tmp_path))
    with pytest.raises(UserError, match="row 'bare': measure: sts has no flag 'asymmetric'"):
        plan_reproduction(arguments)
    write(tmp_path, text.replace("asymmetric", "measure_cost"))  # measured by grid
    assert "grid" in [job.stage for job in plan_reproduction(arguments).jobs()]


@pytest.mark.parametrize("name", TABLES)
def test_published_scores_stand_in_the_layout_of_their_table(name):
    table, plan = planned(name, "full")
    made = make_table(plan, "t", {}, plan.not_run)
    rows = [row for block in made.blocks for row in block.rows]
    assert rows and all(len(row.cells) == len(made.headings) for row in rows)
    shown = sum(cell.value is not None for row in rows if row.published for cell in row.cells)
    if table.layout in ("averages", "by_size"):
        assert shown == len([score for score in table.published if "average" in score.size or in_table(score, plan)])
    assert bool(shown) == bool(table.published)
    assert all("not run" in row.name for row in rows if not row.published and table.layout in ("averages", "sizes"))


def in_table(score, plan):
    return Size.parse(score.size) in plan.sizes.members


def test_rows_share_jobs_and_ids_do_not_depend_on_folders(tmp_path):
    text = TABLE.replace("name: bare", "name: bare, pretrain: [{preset: starbucks}]").replace(
        "{name: SRL,", "{name: SRL, pretrain: [{preset: starbucks}],"
    )
    table = read_table(write(tmp_path, text))
    ids = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "text.txt").write_text("same\n")
        scale = dataclasses.replace(
            read_scale("tiny", table, tmp_path / "t.yaml"), pretrain={"dataset_path": ["./text.txt"]}
        )
        jobs = make_plan(table, scale, 2, folder, folder).jobs()
        assert [job.stage for job in jobs].count("pretrain") == 1
        assert [job.stage for job in jobs].count("train") == 2  # seeds
        ids.append([job.id for job in jobs if job.stage == "pretrain"])
    assert ids[0] == ids[1]
    (tmp_path / "b" / "text.txt").write_text("other\n")
    from starbucks_retrieval.reproduce.jobs import state_of

    state_of.cache_clear()
    assert [
        job.id for job in make_plan(table, scale, 2, tmp_path / "b", tmp_path / "b").jobs() if job.stage == "pretrain"
    ] != ids[0]


def test_tables_of_the_study_measure_the_models_of_its_first_one():
    trained = {}
    for name in ("cpu", "sts", "same-time"):
        path = find_table(f"study/{name}")
        table = read_table(path)
        scale = dataclasses.replace(read_scale("cpu", table, path), child=False)
        jobs = make_plan(table, scale, 2, Path("nowhere"), Path("nowhere")).jobs()
        trained[name] = {job.id: job.flags for job in jobs if job.stage in ("fit", "train")}
    assert trained["same-time"].keys() <= trained["cpu"].keys()
    added = [flags["preset"] for job, flags in trained["sts"].items() if job not in trained["cpu"]]
    assert added == ["separate-sts"] * 12  # six sizes, two seeds


def test_hours_follow_the_layers_and_the_time_of_other_jobs(tmp_path, monkeypatch):
    text = TABLE.replace("{name: bare}", "{name: bare, each: size, train: {retrieval: {preset: separate-msmarco}}}")
    text += "scales: {cpu: {train: {retrieval: {bf16: true}}}}\nsizes: 2:32,12:768\n"
    text = text.replace(
        "columns:", "  - {name: AL, train: {retrieval: {loss: AdaptiveLayerLoss, like: SRL}}}\ncolumns:"
    )
    table = read_table(write(tmp_path, text))
    scale = read_scale("cpu", table, tmp_path / "t.yaml")
    jobs = make_plan(table, dataclasses.replace(scale, child=False), 1, tmp_path, tmp_path).jobs()
    monkeypatch.setattr(estimate, "_speed", lambda jobs, scale, half: 4e9 if half else 1e9)
    found = estimate.estimate(jobs, scale, tmp_path)
    hours = {(job.stage, job.flags.get("layers")): one.hours - 8 / 3600 for job, one in zip(jobs, found.jobs)}
    assert hours["grid", "6"] == pytest.approx(6 * hours["grid", "1"])
    assert hours["train", None] == pytest.approx(hours[LIBRARY, None])
    assert "1e+09 operations" in found.basis and "4e+09 (bf16)" in found.basis
    twice = dataclasses.replace(jobs[1], flags=jobs[1].flags | {"split": "dev"})  # on other judgements: encoded once
    assert [one.hours for one in estimate.estimate([jobs[1], twice], scale, tmp_path).jobs][1] == 8 / 3600
    measured = {"files": {}, "processor_seconds": 60.0}
    monkeypatch.setattr(estimate, "figures_of", lambda job, root: measured if job.stage == "train" else None)
    again = estimate.estimate(jobs, scale, tmp_path)
    assert [one.hours for job, one in zip(jobs, again.jobs) if job.stage == LIBRARY] == [pytest.approx(1 / 60)]


def test_the_tokens_of_a_local_set_are_counted(tmp_path, monkeypatch, tiny_bert):
    for name, words in (("short", 4), ("long", 200)):
        lines = (json.dumps({"_id": str(i), "text": "w1 " * words}) for i in range(9))
        (tmp_path / name).mkdir()
        (tmp_path / name / "corpus.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(estimate, "_speed", lambda jobs, scale, half: 1e9)
    table = read_table(write(tmp_path, TABLE))
    scale = dataclasses.replace(read_scale("cpu", table, tmp_path / "t.yaml"), tokens=50)

    def tokens(name, **flags):
        job = Job(
            "grid",
            {"model_name_or_path": str(tiny_bert), "dataset_path": [str(tmp_path / name)], "layers": "1", "dims": "16"}
            | flags,
        )
        (found,) = estimate.estimate([job], scale, tmp_path).jobs
        return (found.hours * 3600 - 8) * 1e9 / (5000 * 2 * 12 * scale.full.dim**2)

    assert tokens("short") == pytest.approx(6)  # with [CLS] and [SEP]
    assert tokens("long") == pytest.approx(60)  # the model's limit
    assert tokens("long", passage_max_len=20) == pytest.approx(20)
    assert tokens("none") == pytest.approx(50)  # a hub name: as the scale says
    assert tokens("short", model_name_or_path=str(tmp_path)) == pytest.approx(50)  # no model there


@pytest.mark.parametrize("flags", [{"stage": "sts"}, {"stage": "grid", "task": "sts"}])
def test_the_tokens_of_sentences_are_counted(tmp_path, monkeypatch, tiny_bert, flags):
    lines = ["sentence1\tsentence2\tscore", *(f"w1 w2 w3\tw1 w2 w3 w4 w5\t{i}" for i in range(9))]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    monkeypatch.setattr(estimate, "_speed", lambda jobs, scale, half: 1e9)
    table = read_table(write(tmp_path, TABLE))
    scale = dataclasses.replace(read_scale("cpu", table, tmp_path / "t.yaml"), tokens=50)

    def tokens(name, **more):
        given = {"model_name_or_path": str(tiny_bert), "data": [str(tmp_path / name)], "layers": "1", "dims": "16"}
        job = Job(flags["stage"], given | flags | more)
        (found,) = estimate.estimate([job], scale, tmp_path).jobs
        return (found.hours * 3600 - 8) * 1e9 / (5000 * 2 * 12 * scale.full.dim**2)

    assert tokens("pairs.tsv") == pytest.approx(6)  # of sentences, with [CLS] and [SEP]
    assert tokens("pairs.tsv", max_length=5) == pytest.approx(5)
    assert tokens("none") == pytest.approx(24)  # a hub name: short texts


def test_a_job_that_computes_no_embeddings_takes_its_start(tmp_path, monkeypatch):
    table = read_table(write(tmp_path, TABLE))
    scale = read_scale("cpu", table, tmp_path / "t.yaml")
    monkeypatch.setattr(estimate, "_speed", lambda jobs, scale, half: 1e9)
    search = Job("search", {"sizes": "6:384", "depth": 10, "passage_reps": Job("encode", {"sizes": "6:384"})})
    evaluate = Job("evaluate", {"run": Files(search, ("a.trec",)), "measures": ["nDCG@10"]})
    found = estimate.estimate([search, evaluate], scale, tmp_path).jobs
    assert [one.hours * 3600 - 8 for one in found] == pytest.approx([2 * 384 * 4000 * 5000 / 1e9, 0])


def test_sets_that_are_judged_by_answers_or_have_parts(tmp_path):
    path = find_table("retromae/table2")
    table = read_table(path)
    scale = read_scale("full", table, path)
    assert set(make_plan(table, scale, 1, tmp_path, tmp_path).not_run.values()) >= {f"no nq-test.jsonl in {tmp_path}"}
    (tmp_path / "nq-test.jsonl").write_text('{"query_id": "1", "query": "who", "answers": ["Ada"]}\n')
    jobs = {job.id: job for job in make_plan(table, scale, 1, tmp_path, tmp_path).jobs()}
    (evaluate, *_) = [job for job in jobs.values() if job.stage == "evaluate"]
    (search,) = evaluate.needs
    trained = {needed.id for job in search.needs for needed in job.needs}
    assert [jobs[one].flags["dataset_name"] for one in trained] == ["Tevatron/wikipedia-nq"]
    assert (search.flags["sizes"], search.flags["depth"]) == ("12:768", 100)

    path = find_table("retromae/table1")
    table = read_table(path)
    scale = read_scale("full", table, path)
    forums = [
        job.flags["dataset_path"]
        for job in make_plan(table, scale, 1, tmp_path, tmp_path).jobs()
        if job.stage == "grid"
    ]
    assert 12 in map(len, forums)


def defaults_of(script: str) -> dict[str, str]:
    """Return NAME → default of the settings of a script of examples/ at full scale."""
    text = (Path(__file__).parents[2] / "examples" / script).read_text()
    full = text.split("\nfull)")[1].split(";;")[0]
    return dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text.replace(full, "") + full))


def test_the_scripts_for_clusters_name_what_the_full_scale_names():
    table = read_table(find_table("starbucks/beir"))
    scale = read_scale("full", table, find_table("starbucks/beir"))
    marco, similarity, beir = (defaults_of(f"{name}.sh") for name in ("msmarco/settings", "sts/run", "beir/run"))
    for found in (marco, similarity):
        assert found["BACKBONE"] == scale.backbones["base"]
        assert found["FALSE_NEGATIVES"] == PRESETS["starbucks-msmarco"]["false_negatives"] == "keep"
    for found in (marco, similarity, beir):
        assert found["SIZES"] == str(Sizes.default(12, 768))
    pretrain = [scale.pretrain[name] for name in ("dataset_name", "dataset_config", "max_steps")]
    assert [marco["TEXT"], marco["TEXT_CONFIG"], int(marco["PRETRAIN_STEPS"])] == pretrain
    assert marco["GROUPS_NAME"] == scale.train["retrieval"]["dataset_name"]
    assert marco["SETS"].split() == [scale.sets[name].path for name in ("MS MARCO", "DL19", "DL20")]
    assert similarity["NLI"] == scale.train["sts"]["dataset_name"]
    assert similarity["PAIR_SETS"].split() == [scale.sets[name].path for name in SIMILARITY]

    text = (Path(__file__).parents[2] / "examples" / "beir" / "run.sh").read_text()
    names = [f"beir/{name}" for part in re.findall(r"names\+?=\((.*)\)", text) for name in part.split()]
    sets = [scale.sets[column.set] for column in table.columns]
    assert names == [one.path for one in sets]
    assert {str(one.flags["passage_max_len"]) for one in sets} == {beir["PASSAGE_MAX_LEN"]}
    for key, flag in (("IDENTICAL", "remove_identical_ids"), ("LONG_QUERIES", "query_max_len")):
        named = {f"beir/{name}" for name in beir[key].split()}
        assert named == {one.path for one in sets if flag in one.flags}


def test_a_size_keeps_its_part_of_the_backbone():
    assert rescale(Size(2, 32), Size(12, 768), Size(6, 384)) == Size(1, 16)
    assert rescale(Size(5, 32), Size(12, 768), Size(6, 384)) is None
