"""Damaged schedules: whatever happens to their JSON, they are read, scored and lowered, or refused in one line."""

from __future__ import annotations

import json
import random

import anatune
from anatune.codegen.cpu.lower import lower
from anatune.codegen.cuda.lower import lower_gpu
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.errors import AnatuneError, SpaceError
from tests.mutations import mutant

WORKLOADS = (
    anatune.matmul(12, 34, 16, epilogue=("bias", "add", "relu")),
    anatune.conv2d(1, 4, 9, 9, 8, 3, 3, stride=2, padding=1, groups=2),
    anatune.max_pool2d(1, 4, 9, 9, 3, 3, padding=1),
    anatune.matmul(32, 48, 40, dtype="float16"),
    anatune.einsum("bij,bjk->ik", {"b": 3, "i": 4, "j": 8, "k": 5}),
    anatune.elementwise((6, 10), "add", "int8"),
)
WAYS = (("cuda", "rtx3090"), ("pipelined", "a100_sxm"), ("triton", "a100_sxm"), ("cpu", "xeon_8124m"))


def originals(count: int = 1) -> list[Schedule]:
    """Schedules of every template and kind of workload."""
    found: list[Schedule] = []
    for workload in WORKLOADS:
        for template, device in WAYS:
            try:
                found += anatune.space(workload, device, template=template).sample(count, seed=5)
            except SpaceError:
                continue  # the template does not apply
    return found


def outcome(text: str, lowered: bool) -> str:
    """Return what became of a schedule's JSON: "" or the message of its refusal. Anything else is a defect."""
    try:
        schedule = Schedule.from_json(text)
        again = Schedule.from_json(schedule.to_json())
        assert (again, hash(again), again.key) == (schedule, hash(schedule), schedule.key)
        assert schedule.describe()
        table = anatune.predict(schedule.workload, schedule.hardware, [schedule], correction="none")
        assert table["time_s"][0] > 0
        if lowered and table["legal"][0]:
            is_gpu = isinstance(schedule.hardware, GpuSpec)
            assert (lower_gpu(schedule) if is_gpu else lower(schedule, threads=2, prepacked=False)).module
    except AnatuneError as error:
        return str(error)
    return ""


def run(count: int, seed: int, lower_every: int) -> dict[str, str]:
    """Return what was refused, by the damaged text."""
    rng = random.Random(seed)
    trees = tuple(json.loads(schedule.to_json()) for schedule in originals())
    refused = {}
    for number in range(count):
        tree = rng.choice(trees)
        text = json.dumps(mutant(tree, rng, trees))
        if rng.random() < 0.02:
            text = text[: rng.randrange(len(text))]
        message = outcome(text, number % lower_every == 0)
        assert "\n" not in message
        assert len(message) < 600
        if message:
            refused[text] = message
    return refused


def test_damaged_schedules_are_used_or_refused_in_one_line() -> None:
    assert len(run(400, 0, 20)) > 200


def test_nothing_legal_is_refused() -> None:
    for schedule in originals(12):
        again = Schedule.from_json(schedule.to_json())
        assert again == schedule
        space = anatune.space(schedule.workload, schedule.hardware, template=schedule.template)
        assert space.schedule_of(space.point_of(again)) == schedule
