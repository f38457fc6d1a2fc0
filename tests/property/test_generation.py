"""What the model calls legal, code generation makes a program of: random workloads, dtypes, devices and templates."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anatune
from anatune.codegen.cpu import lower
from anatune.codegen.gpu import cuda_kernel
from anatune.core.hardware import GpuSpec
from anatune.core.workload import Workload
from anatune.errors import SpaceError
from anatune.model.templates import make_model
from tests.property.test_workload_properties import workloads

GPUS = ["k80", "gtx1080ti", "v100_sxm2", "t4", "a100_sxm", "rtx3090", "h100_sxm"]
CPUS = ["i7_3770", "xeon_8124m", "graviton3", "cortex_a72"]
TEMPLATES = {"cuda": GPUS, "pipelined": GPUS, "tensorcore": GPUS, "cpu": CPUS}


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
