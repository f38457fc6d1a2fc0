"""Tables of rules: the text, the first broken rule and what it needs come from one line."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import pytest

import anatune
from anatune.templates import get_template
from anatune.templates.base.model import Rule
from anatune.templates.base.rules import Limit, find_first_broken, sort_rules
from anatune.templates.cpu.times.microkernel import CpuRule
from anatune.templates.cuda.times.tile import CudaRule
from anatune.templates.thin.times.block import ThinRule
from anatune.templates.winograd.times.time import WinogradRule


def test_the_first_broken_line_gives_number_and_need() -> None:
    depth, threads = Rule("depth", "at least", 16.0), Rule("threads", "threads", 128.0)
    shallow = Limit(depth, np.array([8, 32, 8, 32]), np.array([True, False, True, False]))
    rules, code, needed = find_first_broken((shallow, Limit(threads, np.array([256, 256, 64, 128]))))
    assert rules == (depth, threads)
    assert code.tolist() == [1, 2, 1, 0]
    assert needed.tolist() == [8.0, 256.0, 8.0, 0.0]


def test_rules_are_in_the_order_of_their_codes_and_others_follow() -> None:
    codes = IntEnum("codes", "shared grid split")
    grid, shared, other = (Rule(name, name, 1.0) for name in ("grid", "shared", "other"))
    assert sort_rules(codes, grid, other, shared) == (shared, grid, other)


@pytest.mark.parametrize(
    ("template", "words", "device", "codes"),
    [
        ("cuda", "matmul 64x64x64", "rtx3090", CudaRule),
        ("pipelined", "matmul 1000x1000x1000 --dtype bfloat16", "t4", CudaRule),
        ("thin", "matmul 1x4096x4096", "rtx3090", ThinRule),
        ("cpu", "matmul 64x64x64", "amd_epyc_9575f", CpuRule),
        ("winograd", "conv2d 1x8x8x8 8x8x3x3", "amd_epyc_9575f", WinogradRule),
    ],
)
def test_codes_of_compiled_functions_are_places_of_rules(
    template: str, words: str, device: str, codes: type[IntEnum]
) -> None:
    model = get_template(template).model(anatune.parse_workload(words), anatune.hardware(device))
    coded_ids = [rule.id for rule in model.rules if rule.id in codes.__members__]
    assert coded_ids == [code.name for code in codes][: len(coded_ids)]
    assert [rule.id for rule in model.rules][: len(coded_ids)] == coded_ids
    assert len(coded_ids) >= len(codes) - 1  # nothing is split, where a device is full anyway
