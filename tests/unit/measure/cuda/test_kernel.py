"""Kernels of GPU schedules in this process, on a driver that pretends; their CUDA C runs as it is."""

from unittest import mock

import msgspec
import numpy as np
import pytest

pytest.importorskip("tvm")

import anatune
from anatune.errors import DeviceError, MissingDependencyError, RunError
from anatune.measure.cuda import kernel as gpu_kernel
from anatune.measure.cuda.driver import open_device
from anatune.measure.cuda.drivers.cuda_bindings import CudaBindings
from anatune.measure.emulate.emulator import compiler
from anatune.measure.run.correctness import compare_all, compute_expected, random_inputs
from tests.unit.measure.fake_cuda import FakeCuda, build_emulated, build_triton
from tests.wording import refuses

H200 = anatune.hardware("h200")
WORKLOAD = anatune.matmul(16, 24, 8, epilogue=("bias", "relu"))
TILES = {"i": (2, 1, 4, 1, 2), "j": (3, 1, 4, 2, 1), "k": (2, 4, 1)}


@pytest.fixture
def device():
    try:
        compiler()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    with (
        mock.patch.object(gpu_kernel, "build_schedule", build_emulated),
        open_device(backend=CudaBindings(FakeCuda())) as opened,
    ):
        yield opened


def schedule():
    return anatune.space(WORKLOAD, H200).schedule(TILES)


def test_a_kernel_is_called_on_arrays(device):
    kernel = gpu_kernel.build_gpu(schedule(), device)
    inputs = random_inputs(WORKLOAD, 1)
    assert kernel.operands == tuple(inputs)
    want = compute_expected(WORKLOAD, inputs)
    result = kernel(*inputs.values())
    assert np.abs(result - want.result).max() <= want.tolerance * want.scale
    kernel.random_call(2)()
    with refuses(RunError):
        kernel(inputs["A"])
    with refuses(RunError):
        kernel(*(array.astype(np.float64) for array in inputs.values()))
    memory = len(device._backend._driver.memory)
    del kernel
    assert len(device._backend._driver.memory) == memory - 4


@pytest.mark.parametrize("options", [{"split": 2}, {"split": 2, "whole": 4}, {"split": 2, "atomic": 1}])
def test_a_kernel_of_several_launches_with_a_workspace(device, options):
    workload = anatune.matmul(16, 24, 8, epilogue=() if "atomic" in options else ("bias", "relu"))
    plain = anatune.space(workload, H200).schedule(TILES)
    kernel = gpu_kernel.build_gpu(msgspec.structs.replace(plain, options=options), device)
    assert len(kernel.artifact.launches) == 2
    for seed in (1, 2):
        inputs = random_inputs(workload, seed)
        want = compute_expected(workload, inputs)
        assert np.abs(kernel(*inputs.values()) - want.result).max() <= want.tolerance * want.scale
    memory, own = len(device._backend._driver.memory), kernel.artifact.workspace is not None
    assert own != ("atomic" in options)
    del kernel
    assert len(device._backend._driver.memory) == memory - len(inputs) - 1 - own


def test_all_results_are_returned_and_checked(device, tmp_path):
    workload = anatune.quantise_rows(4, 64, "float16:int8")
    best = anatune.plan(workload, H200).best
    kernel = gpu_kernel.GpuKernel(workload, build_triton(best, tmp_path), device)
    inputs = random_inputs(workload, 1)
    values, scales = kernel.results(*inputs.values()).values()
    assert (kernel(*inputs.values()) == values).all()
    assert (values.shape, values.dtype, scales.shape, scales.dtype) == ((4, 64), np.int8, (4,), np.float32)
    want = compute_expected(workload, inputs)
    assert compare_all(workload, {"output": values, "scales": scales}, want).ok
    assert "scales[0] is 0" in compare_all(workload, {"output": values, "scales": 0 * scales}, want).message
    with refuses(RunError):
        kernel.launch(values)


def test_another_gpu(device):
    other = anatune.space(WORKLOAD, anatune.hardware("rtx3090")).schedule(TILES)
    with refuses(DeviceError):
        gpu_kernel.build_gpu(other, device)


def test_no_gpu():
    gone = DeviceError("no GPU can be used here: no driver")
    with mock.patch.object(gpu_kernel, "open_device", side_effect=gone), refuses(DeviceError):
        anatune.build(schedule())
