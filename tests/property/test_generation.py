"""What the model calls legal, code generation makes a program of: random workloads, dtypes, devices and templates."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anatune
from anatune.codegen.compat import parse_program
from anatune.codegen.cpu.lower import lower
from anatune.codegen.cuda.lower import cuda_kernel, lower_gpu
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.access import check_name
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError, WorkloadError
from anatune.templates import make_model
from bench.gpu.awkward import covering_schedule
from tests.property.test_workload_properties import workloads

GPUS = ["k80", "gtx1080ti", "v100_sxm2", "t4", "a100_sxm", "rtx3090", "h100_sxm"]
CPUS = ["i7_3770", "xeon_8124m", "xeon_8480", "graviton3", "cortex_a72"]
TEMPLATES = {"cuda": GPUS, "pipelined": GPUS, "thin": GPUS, "cpu": CPUS}


@given(workloads, st.sampled_from(list(TEMPLATES)), st.data())
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_legal_points_are_generated(workload: Workload, template: str, data: st.DataObject) -> None:
    hardware = anatune.hardware(data.draw(st.sampled_from(TEMPLATES[template])))
    try:
        model = make_model(workload, hardware, template)
    except SpaceError:
        return  # the template does not apply
    points = model.space.sample_points(data.draw(st.integers(1, 3)), data.draw(st.integers(0, 99)))
    legal = model.rank(1).num_legal
    assert legal or not len(points)
    for point in np.unique(points, axis=0):
        schedule = model.space.schedule_of(point)
        if isinstance(hardware, GpuSpec):
            assert cuda_kernel(schedule).source
        else:
            assert lower(schedule, threads=data.draw(st.integers(1, 2)), prepacked=data.draw(st.booleans())).module


@given(workloads, st.sampled_from(GPUS), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_tiles_that_do_not_divide_compute_the_same(workload: Workload, device: str, draw: random.Random) -> None:
    hardware = anatune.hardware(device)
    if (hardware.needed_capability(workload.dtypes) or 0.0) > hardware.compute_capability:
        return  # the device lacks its arithmetic
    answer = anatune.verify(covering_schedule(workload, hardware, draw))
    assert answer.ok, answer.message


def may_be_called(word: str) -> bool:
    try:
        check_name("tensor", word, is_tensor=True)
    except WorkloadError:
        return False
    return True


def test_tensors_cannot_be_called_what_programs_call_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def heard(text: str, llvm: str) -> Any:
        texts.append(text)
        return parse_program(text, llvm)

    monkeypatch.setattr("anatune.codegen.cuda.lower.parse_program", heard)
    monkeypatch.setattr("anatune.codegen.cpu.lower.parse_program", heard)
    for workload in (
        anatune.matmul(30, 35, 42, epilogue=("bias", "add", "relu")),
        anatune.matmul(64, 64, 64, dtype="bfloat16"),
        anatune.conv2d(1, 16, 14, 14, 24, 3, 3, padding=1, groups=2, stride=2),
        anatune.max_pool2d(1, 4, 9, 9, 3, 3, padding=1),
    ):
        own = {access.tensor for access in (*workload.reads, *workload.epilogue_reads, workload.write)}
        for template, device in (("cuda", "rtx3090"), ("pipelined", "a100"), ("thin", "a100"), ("cpu", "a72")):
            try:
                drawn = anatune.space(workload, anatune.hardware(device), template=template).sample(2, seed=1)
            except SpaceError:
                continue  # the template does not apply
            for schedule in drawn:
                lower_gpu(schedule) if template != "cpu" else lower(schedule, threads=2, prepacked=False)
        for text in texts:
            words = set(re.findall(r"(?<![\w.\"])[A-Za-z]\w*", text)) - own - {"LL", "True"}  # a suffix, a constant
            free = {word for word in words if may_be_called(word)}
            assert free == set()
        texts.clear()
