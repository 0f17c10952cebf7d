from __future__ import annotations

import torch

from starbucks_retrieval.models import precision


def test_names_and_dtypes_round_trip():
    cpu = torch.device("cpu")
    for name in ("fp32", "bf16", "fp16"):
        assert precision.name_of(precision.choose(name, cpu)) == name


def test_auto_takes_bf16_on_a_cpu_only_with_amx(monkeypatch):
    cpu = torch.device("cpu")
    for has_amx, expected in ((True, torch.bfloat16), (False, None)):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda has_amx=has_amx: has_amx)
        assert precision.choose("auto", cpu) is expected
