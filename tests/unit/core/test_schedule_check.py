"""Schedules that contradict their workload, hardware or template: one line that names the field, at every way in."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.schedule import Schedule, checked_schedule
from anatune.errors import SpaceError

MATMUL = anatune.matmul(34, 32, 16)
HALF = anatune.matmul(48, 32, 40, dtype="float16")


def first(template: str, device: str, workload: Any = MATMUL) -> Schedule:
    return anatune.space(workload, device, template=template).sample(1, seed=3)[0]


CUDA = first("cuda", "rtx3090")
PIPELINED = first("pipelined", "a100_sxm")
CPU = anatune.space(MATMUL, "xeon_8124m").schedule(
    {"i": (1, 2, 1, 1, 17), "j": (1, 1, 1, 1, 32), "k": (1, 1, 8, 2)}, calls={"i": 2}
)
RULES: list[tuple[Schedule, dict[str, Any], str]] = [
    (CUDA, {"template": "cpu"}, "template is 'cpu', expected one of cuda, pipelined, .*, triton for rtx3090"),
    (
        CPU,
        {"template": "cuda"},
        "template is 'cuda', expected one of cpu, winograd, scaled, fp16_accumulation, amx for xeon_8124m",
    ),
    (CUDA, {"tiles.i": None}, r"tiles\['i'\] is None, expected a tuple of 5 factors >= 1: block, vthread"),
    (CUDA, {"tiles.z": (1,) * 5}, "tiles: unknown axis 'z', expected some of i, j, k"),
    (CUDA, {"tiles.i": (2, 1, 1, 1, 16)}, "multiply to 32, expected the extent 34"),
    (CUDA, {"tiles.i": (-2, -17, 1, 1, 1)}, "tuple of 5 factors >= 1"),
    (CUDA, {"tiles.i": (2**63, 1, 1, 1, 1)}, "tuple of 5 factors >= 1"),
    (CUDA, {"tiles.i": (True, 2, 17, 1, 1)}, "tuple of 5 factors >= 1|got `bool` - at `.*tiles"),
    (CUDA, {"tiles.k": (1, 1, 1, 16)}, "has 4 factors .1, 1, 1, 16., expected 3: k0, k1, k2"),
    (CUDA, {"unroll": -1}, "unroll is -1, expected an integer >= 0"),
    (CUDA, {"unroll": True}, "unroll is True, expected an integer >= 0|got `bool` - at `.*unroll"),
    (CUDA, {"unroll": 2**31}, "unroll is 2147483648, expected an integer >= 0 and at most 2147483647"),
    (CUDA, {"vector.C": 4}, "vector: unknown tensor 'C', expected some of A, B"),
    (CUDA, {"vector.A": 0}, r"vector\['A'\] is 0, expected an integer >= 1"),
    (CUDA, {"options.stages": 2}, "options: unknown option 'stages', expected some of split, whole, atomic"),
    (PIPELINED, {"options.stages": 4}, "stages is 4, expected one of 1, 2, 3"),
    (PIPELINED, {"options.pad": True}, "pad is True, expected one of 0, 4"),
    (PIPELINED, {"options.group": 1}, "options: unknown option 'group', expected some of stages, pad, split"),
    (CPU, {"options": {}}, "option simd_axis is None, expected one of i, j, k"),
    (CPU, {"options.simd_axis": 3}, "option simd_axis is 3"),
    (CPU, {"options.simd_lanes": (16,)}, "option simd_lanes is .16,., expected an integer >= 16"),
    (CPU, {"options.order.outer": ("j", "j")}, "option order.outer is .* expected each of i, j at most once"),
    (CPU, {"options.packed": ("C",)}, "option packed is"),
    (CPU, {"options.packed": (), "options.packed_ahead": ("B",)}, "packed_ahead is .* expected each of none at most"),
    (CPU, {"options.parallel": 1}, "option parallel is 1, expected true or false"),
    (CPU, {"options.pair.i": (1, 9, 1, 8)}, r"option pair.i is .* such as \[\(1, 8, 1, 9\)"),
    (CPU, {"options.pair.k": (1, 1, 1, 1)}, "unknown name 'pair.k'"),
    (CPU, {"options.fault": "x"}, "options: unknown name 'fault'"),
    (CPU, {"vector.A": 4}, "vector is .'A': 4., expected none"),
    (CPU, {"unroll": 7}, "unroll is 7, but the unroll factors of tiles multiply to 2"),
]


def changed(schedule: Schedule, changes: dict[str, Any]) -> Schedule:
    """Return the schedule with fields, or entries of its mappings ("tiles.i"), replaced; None leaves an entry out."""
    fields: dict[str, Any] = {}
    for name, value in changes.items():
        field, _, key = name.partition(".")
        if not key:
            fields[field] = value
            continue
        entries = dict(fields.get(field, getattr(schedule, field)))
        entries[key] = value
        fields[field] = {key: entry for key, entry in entries.items() if entry is not None}
    return msgspec.structs.replace(schedule, **fields)


@pytest.mark.parametrize(("schedule", "changes", "message"), RULES)
def test_one_line_names_the_field(schedule: Schedule, changes: dict[str, Any], message: str) -> None:
    wrong = changed(schedule, changes)
    for enter in (
        lambda: Schedule.from_json(wrong.to_json()),
        lambda: anatune.predict(schedule.workload, schedule.hardware, [wrong]),
        lambda: anatune.prune(schedule.workload, schedule.hardware, 1, candidates=[wrong]),
        wrong.apply,
        lambda: anatune.inspect(wrong),
        lambda: anatune.build(wrong),
        lambda: anatune.verify(wrong),
    ):
        with pytest.raises(SpaceError, match=message) as caught:
            enter()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("tiles", "vector", "options") for value in (None, 3, [1], {1: 2})),
        ("workload", "matmul"),
        ("hardware", None),
        ("template", []),
        ("unroll", np.int64(1)),
        ("tiles", {"i": (np.int64(34), 1, 1, 1, 1), "j": (32, 1, 1, 1, 1), "k": (16, 1, 1)}),
    ],
)
def test_objects_made_by_hand(field: str, value: Any) -> None:
    try:
        wrong = msgspec.structs.replace(CUDA, **{field: value})
    except SpaceError:  # a mapping that cannot be kept
        return
    with pytest.raises(SpaceError, match=field):
        wrong.check()
    with pytest.raises(SpaceError, match=field):
        anatune.predict(MATMUL, "rtx3090", [wrong])


def test_workloads_and_hardware_inside_schedules_keep_to_their_own_rules() -> None:
    tree = json.loads(CUDA.to_json())
    tree["workload"]["reads"][1]["tensor"] = "A"
    with pytest.raises(SpaceError, match=r"tensors .*repeat.*workload"):
        Schedule.from_json(json.dumps(tree))
    tree = json.loads(CUDA.to_json())
    tree["hardware"]["compute"]["num_sms"] = 2**40
    with pytest.raises(SpaceError, match="num_sms: got 1099511627776"):
        Schedule.from_json(json.dumps(tree))


def test_checked_schedules_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    again = Schedule.from_json(CPU.to_json())
    monkeypatch.setattr("anatune.core.schedule._check", None)
    assert again.check() is again
    assert checked_schedule("schedule", again) is again
    with pytest.raises(SpaceError, match="predict: got 5, expected a Schedule"):
        checked_schedule("predict", 5)
