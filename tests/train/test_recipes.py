"""Names of presets: what they stand for, and what they answer where a name has changed."""

from __future__ import annotations

import pytest

from starbucks_retrieval.cli import run_command
from starbucks_retrieval.errors import UserError
from starbucks_retrieval.losses import LOSSES, srl
from starbucks_retrieval.pretrain.__main__ import PRESETS as PRETRAIN
from starbucks_retrieval.train.__main__ import main
from starbucks_retrieval.train.arguments import TrainArguments
from starbucks_retrieval.train.options import build_options
from starbucks_retrieval.train.presets import CHANGED, PRESETS, RENAMED


def options(name, **more):
    """The loss of a preset, over a backbone that says nothing itself."""
    from starbucks_retrieval.models import EncoderConfig

    fields = TrainArguments.__dataclass_fields__
    ours = {key: value for key, value in PRESETS[name].items() if key in fields}
    return build_options(TrainArguments("m", dataset_path=["d"], **ours, **more), EncoderConfig(), 12, False)


def test_all_published_presets_keep_known_positives():
    assert {recipe["false_negatives"] for name, recipe in PRESETS.items() if name != "distil"} == {"keep"}


@pytest.mark.parametrize("task", ["msmarco", "sts"])
def test_a_plain_preset_follows_the_paper_and_released_the_code(task):
    plain, released = options(f"starbucks-{task}"), options(f"starbucks-{task}-released")
    assert (plain.reduction, plain.kl_space, plain.detach_teacher, plain.kl_multiplier) == ("mean", "scores", True, 1.0)
    assert plain.kl_temperature == (0.3 if task == "sts" else None)
    assert released == srl.VARIANTS["starbucks-released" if task == "msmarco" else "starbucks-sts-released"]
    v2 = LOSSES["2dmse-v2"].variants
    assert options(f"2dmse-v2-{task}").align == v2["eq12"].align == "pca" and not options(f"2dmse-v2-{task}").average
    assert options(f"2dmse-v2-{task}-released") == v2["retrieval" if task == "msmarco" else "angle"]


def test_a_separate_model_trains_at_its_dim_unless_its_name_says_otherwise():
    assert options("separate-sts").train_dim and options("separate-msmarco").train_dim
    assert not options("separate-sts-full-width").train_dim


def test_single_models_have_the_settings_of_the_nested_ones_beside_them():
    """BERT and BERT-S of both versions on NLI: the recipe of their 2DMSE, with a loss at one size."""
    for single, nested in (
        *((f"{name}-sts-reproduced", "2dmse-sts-reproduced") for name in ("full", "separate")),
        *((f"{name}-v2-sts", "2dmse-v2-sts") for name in ("full", "separate")),
        ("full-sts", "2dmse-sts"),
        *((f"{name}-msmarco", "mrl-msmarco") for name in ("full", "separate")),
    ):
        of_loss = {"objective", "variant", "train_dims", "bf16", "save_steps"}
        single, nested = ({k: v for k, v in PRESETS[name].items() if k not in of_loss} for name in (single, nested))
        assert single == nested
    assert options("full-v2-sts").contrastive_weight == 30 and options("separate-v2-sts").angle_weight == 1
    assert not options("separate-v2-sts-full-width").train_dim and options("separate-sts-reproduced").train_dim


def test_2dmse_with_angles_recipe_has_its_losses():
    paper, code = options("2dmse-sts-angle"), options("2dmse-sts-angle-released")
    assert (paper.contrastive_weight, paper.angle_weight) == (code.contrastive_weight, code.angle_weight) == (30, 1)
    assert (paper.kl_dims, code.kl_dims) == ("both", "full")


def test_ablations_differ_from_their_method_in_one_thing():
    for task in ("msmarco", "sts"):
        assert {**PRESETS[f"starbucks-{task}"], "kl_weight": 0.0} | {"kl_temperature": None} == {
            **PRESETS[f"starbucks-{task}-without-kl"],
            "kl_temperature": None,
        }
    for name, objective in (("starbucks-without-mae", "mlm-sizes"), ("starbucks-without-sizes", "mlm")):
        assert PRETRAIN[name] == PRETRAIN["starbucks"] | {"objective": objective}


@pytest.mark.parametrize("name", RENAMED)
def test_a_renamed_preset_is_refused_with_its_new_name(name):
    with pytest.raises(UserError, match=f"no preset {name}") as caught:
        TrainArguments("m", preset=name)
    assert RENAMED[name] in caught.value.hint and RENAMED[name] in PRESETS


@pytest.mark.parametrize("name", CHANGED)
def test_a_preset_whose_meaning_changed_prints_a_notice(name, capsys):
    needed = ["--model_name_or_path", "m", "--dataset_path", "d", "--output_dir", "o"]
    assert run_command(main, ["--preset", name, "--bf16", "false", "--fp16", "false", *needed, "--print_config"]) == 0
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("preset ")]
    assert line == f"preset {name} {CHANGED[name]}"
    named = CHANGED[name].rpartition(" ")[2]
    assert named in PRESETS or named == "mask"
