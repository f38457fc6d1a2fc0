"""Schedules that contradict their workload, hardware or template: one line that names the field, at every way in."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.schedule import Schedule, check_schedule
from anatune.errors import SpaceError
from tests.wording import refuses

MATMUL = anatune.matmul(34, 32, 16)
HALF = anatune.matmul(48, 32, 40, dtype="float16")


def first(template: str, device: str, workload: Any = MATMUL) -> Schedule:
    return anatune.space(workload, device, template=template).sample(1, seed=3)[0]


CUDA = first("cuda", "rtx3090")
PIPELINED = first("pipelined", "a100_sxm")
CPU = anatune.space(MATMUL, "xeon_8124m").schedule(
    {"i": (1, 2, 1, 1, 17), "j": (1, 1, 1, 1, 32), "k": (1, 1, 8, 2)}, calls={"i": 2}
)
RULES: list[tuple[Schedule, dict[str, Any]]] = [
    (CUDA, {"template": "cpu"}),
    (CPU, {"template": "cuda"}),
    (CUDA, {"tiles.i": None}),
    (CUDA, {"tiles.z": (1,) * 5}),
    (CUDA, {"tiles.i": (2, 1, 1, 1, 16)}),
    (CUDA, {"tiles.i": (-2, -17, 1, 1, 1)}),
    (CUDA, {"tiles.i": (2**63, 1, 1, 1, 1)}),
    (CUDA, {"tiles.i": (True, 2, 17, 1, 1)}),
    (CUDA, {"tiles.k": (1, 1, 1, 16)}),
    (CUDA, {"unroll": -1}),
    (CUDA, {"unroll": True}),
    (CUDA, {"unroll": 2**31}),
    (CUDA, {"vector.C": 4}),
    (CUDA, {"vector.A": 0}),
    (CUDA, {"options.stages": 2}),
    (PIPELINED, {"options.stages": 4}),
    (PIPELINED, {"options.pad": True}),
    (PIPELINED, {"options.group": 1}),
    (CPU, {"options": {}}),
    (CPU, {"options.simd_axis": 3}),
    (CPU, {"options.simd_lanes": (16,)}),
    (CPU, {"options.order.outer": ("j", "j")}),
    (CPU, {"options.packed": ("C",)}),
    (CPU, {"options.packed": (), "options.packed_ahead": ("B",)}),
    (CPU, {"options.parallel": 1}),
    (CPU, {"options.pair.i": (1, 9, 1, 8)}),
    (CPU, {"options.pair.k": (1, 1, 1, 1)}),
    (CPU, {"options.fault": "x"}),
    (CPU, {"vector.A": 4}),
    (CPU, {"unroll": 7}),
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


@pytest.mark.parametrize(("schedule", "changes"), RULES)
def test_one_line_names_the_field(schedule: Schedule, changes: dict[str, Any]) -> None:
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
        with refuses(SpaceError) as caught:
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
    with refuses(SpaceError):
        wrong.check()
    with refuses(SpaceError):
        anatune.predict(MATMUL, "rtx3090", [wrong])


def test_workloads_and_hardware_inside_schedules_keep_to_their_own_rules() -> None:
    tree = json.loads(CUDA.to_json())
    tree["workload"]["reads"][1]["tensor"] = "A"
    with refuses(SpaceError):
        Schedule.from_json(json.dumps(tree))
    tree = json.loads(CUDA.to_json())
    tree["hardware"]["compute"]["num_sms"] = 2**40
    with refuses(SpaceError):
        Schedule.from_json(json.dumps(tree))


def test_checked_schedules_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    again = Schedule.from_json(CPU.to_json())
    monkeypatch.setattr("anatune.core.schedule._check", None)
    assert again.check() is again
    assert check_schedule("schedule", again) is again
    with refuses(SpaceError):
        check_schedule("predict", 5)
