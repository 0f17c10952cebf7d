from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from starbucks_retrieval import clock
from starbucks_retrieval.models import precision


def test_names_and_dtypes_round_trip():
    cpu = torch.device("cpu")
    for name in ("fp32", "bf16", "fp16"):
        assert precision.dtype_name(precision.autocast_dtype(name, cpu)) == name


@pytest.mark.parametrize(
    ("able", "times", "expected"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, 0.5, torch.bfloat16),  # tiles need no measurement
        ({"amx_bf16": False, "avx512_bf16": True}, 2.0, torch.bfloat16),
        ({"amx_bf16": False, "avx512_bf16": True}, 0.8, None),
        ({"amx_bf16": False, "avx512_bf16": False}, 2.0, None),  # emulated
        ({}, 2.0, None),
    ],
)
def test_auto_takes_bf16_on_a_cpu_that_multiplies_it_fast(monkeypatch, able, times, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    monkeypatch.setattr(precision, "bf16_speedup", lambda: times)
    precision._fast_on_this_cpu.cache_clear()
    try:
        assert precision.autocast_dtype("auto", torch.device("cpu")) is expected
    finally:
        precision._fast_on_this_cpu.cache_clear()


@pytest.mark.parametrize(
    ("able", "speedup", "warned"),
    [({"amx_bf16": True}, 0.1, False), ({"avx512_bf16": True}, 1.5, False), ({}, 0.8, False), ({}, 0.1, True)],
)
def test_slow_bf16_gives_a_warning_with_the_remedy(monkeypatch, caplog, able, speedup, warned):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able)
    monkeypatch.setattr(precision, "bf16_speedup", lambda turns, backward: speedup)
    precision.warn_if_bf16_is_slow.cache_clear()
    cpu, text = torch.device("cpu"), "about 10 times as long as fp32 on this processor\n  try: {}"
    for _ in range(2):  # the second call says nothing
        assert precision.autocast_dtype("bf16", cpu) is torch.bfloat16
        assert precision.autocast_dtype("auto", cpu, torch.bfloat16) is torch.bfloat16
    precision.autocast_dtype("fp32", cpu), precision.autocast_dtype("fp16", cpu)
    expected = [text.format(hint) for hint in ("take --dtype fp32", "leave out --weights_dtype")] if warned else []
    assert [record.getMessage().removeprefix("bf16 takes ") for record in caplog.records] == expected
    precision.warn_if_bf16_is_slow.cache_clear()


def test_the_measurement_gives_a_ratio(ticking):
    assert precision.bf16_speedup(turns=1, backward=True) == 1


def test_a_clock_that_stands_still_gives_a_ratio_too(monkeypatch):
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: 5.0))
    assert precision.bf16_speedup(turns=1) == 1
