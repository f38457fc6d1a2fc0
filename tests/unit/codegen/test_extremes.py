"""Single kernels keep NaN and infinities as NumPy does, on CPUs and, emulated, on GPUs."""

import shutil

import numpy as np
import pytest

import anatune
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.core.accuracy import error_of
from anatune.errors import SpaceError
from anatune.measure.emulate.verify import check_kernel
from anatune.measure.run.correctness import array_dtype, compare, compute_expected, random_inputs
from tests.machine import host

pytest.importorskip("tvm", reason="code generation needs apache-tvm")

from tests.unit.codegen.cpu.test_lower import run

HOST = host()
WORKLOADS = {
    "relu": anatune.elementwise((9, 70), "relu"),
    "maximum": anatune.elementwise((9, 70), "maximum"),
    "largest_of_rows": anatune.reduction((12, 70), axes=(1,), kind="max"),
    "largest_of_columns": anatune.reduction((70, 40), axes=(0,), kind="max"),
    "pool": anatune.max_pool2d(1, 12, 13, 13, 3, 3, stride=2, padding=1),
    "pool_nhwc": anatune.max_pool2d(1, 20, 9, 9, 3, 3, padding=1, layout="NHWC"),
    "pool_float16": anatune.max_pool2d(1, 12, 9, 9, 2, 2, stride=2, dtype="float16"),
    "pool_bfloat16": anatune.max_pool2d(1, 12, 9, 9, 3, 3, padding=1, dtype="bfloat16"),
    **{
        f"matmul_{step}": anatune.matmul(20, 33, 24, epilogue=("bias", step))
        for step in ("relu", "relu6", "silu", "gelu", "gelu_tanh")
    },
    "conv_relu": anatune.conv2d(1, 8, 9, 9, 12, 3, 3, padding=1, epilogue=("bias", "add", "relu")),
    "matmul_float16": anatune.matmul(32, 32, 32, dtype="float16", epilogue=("relu",)),
    "matmul_bfloat16": anatune.matmul(32, 32, 32, dtype="bfloat16", epilogue=("bias", "relu6")),
    "one_row": anatune.matmul(1, 256, 256, dtype="float16", epilogue=("relu",)),
}


def inputs_of(workload):
    """Random operands; of the first one an element is NaN, one infinite, and the first part of a pool's ``-inf``."""
    inputs = random_inputs(workload, 1)
    first = inputs[workload.reads[0].tensor]
    if workload.body == "max":
        first[..., :4, :4] = -np.inf
    flat = first.reshape(-1)
    flat[flat.size // 2], flat[flat.size // 3], flat[-1] = np.nan, np.inf, -np.inf
    return inputs


@pytest.mark.parametrize("name", WORKLOADS)
def test_cpu_kernels(name):
    workload = WORKLOADS[name]
    inputs = inputs_of(workload)
    want = compute_expected(workload, inputs)
    assert np.isnan(want.result).any()
    for schedule in anatune.space(workload, HOST).sample(3, seed=sum(map(ord, name))):
        outcome = compare(workload, run(schedule, inputs), want)
        assert outcome.ok, f"{outcome.message}\n{schedule.describe()}"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: the emulator compiles CUDA C")
@pytest.mark.parametrize("template", ["cuda", "pipelined", "thin"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_gpu_kernels(name, template):
    workload, hardware = WORKLOADS[name], anatune.hardware("a100")
    try:
        (schedule,) = anatune.space(workload, hardware, template=template).sample(1, seed=3)
    except SpaceError as error:
        pytest.skip(str(error))
    inputs = inputs_of(workload)
    want = compute_expected(workload, inputs).allowing(error_of(schedule))
    outcome = check_kernel(workload, cuda_kernel(schedule), inputs, want)
    assert outcome.ok, f"{outcome.message}\n{schedule.describe()}"


def test_winograd_keeps_nan_in_its_rectifier():
    """Its transforms spread NaN over a tile, and make NaN of infinities: nothing is lost, more is NaN."""
    workload = anatune.conv2d(1, 32, 14, 14, 32, 3, 3, padding=1, epilogue=("bias", "relu"))
    schedule = anatune.plan(workload, HOST, top_k=1, template="winograd").best
    inputs = inputs_of(workload)
    got = run(schedule, inputs)
    want = compute_expected(workload, inputs).result
    assert not np.isfinite(got[~np.isfinite(want)]).any()
    assert np.isfinite(got).any()


def test_a_largest_element_of_nothing_but_lowest_ones_is_minus_infinity():
    workload = WORKLOADS["pool"]
    data = np.full(workload.reads[0].shape, -np.inf, array_dtype("float32"))
    (schedule,) = anatune.space(workload, HOST).sample(1, seed=1)
    np.testing.assert_array_equal(run(schedule, {"data": data}), -np.inf)
