"""Triton's kernels on a GPU that is not there: compiled in a process of its own, launched on a driver that pretends."""

import ctypes
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling needs triton")

import msgspec

import anatune
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.codegen.triton import artifact as triton
from anatune.core.compiler_facts import CompilerFacts
from anatune.errors import BuildError, DeviceError
from anatune.measure.cuda import apart
from anatune.measure.cuda import kernel as gpu_kernel
from anatune.measure.cuda.apart import build_apart
from anatune.measure.cuda.driver import open_device
from anatune.measure.cuda.drivers.cuda_bindings import CudaBindings
from anatune.measure.run.build_processes import Limits
from tests.unit.measure.fake_cuda import OK, FakeCuda, Image
from tests.wording import refuses

WORKLOAD = anatune.matmul(256, 512, 128, dtype="float16")


def schedule(device="h200", **options):
    space = anatune.space(WORKLOAD, device, template="triton")
    return space.schedule({"m": 128, "n": 128, "k": 64}, num_warps=8, **options)


class Recording(FakeCuda):
    """Notes what is launched, and computes nothing."""

    def __init__(self):
        super().__init__()
        self.launched = []

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        count = function.image.num_parameters
        pointers = (ctypes.c_void_p * count).from_address(parameters)
        values = [ctypes.c_uint64.from_address(pointer).value for pointer in pointers]
        self.launched.append(((gx, gy, gz), (bx, by, bz), shared, values))
        return (OK,)


def compiled(program, kernel, hardware):
    """Stands for the compiler: an image that the pretended driver loads."""
    image = msgspec.json.encode(Image(None, len(kernel.parameters) + 2, 50e-6))
    return Cubin(kernel.name, hardware.arch, image, CompilerFacts(100), "", 384, 98304, 384)


def test_a_launch_has_scratch_memory_and_a_null_pointer_behind_its_tensors():
    driver = Recording()
    with (
        mock.patch.object(triton, "compile_kernel", compiled),
        mock.patch.object(gpu_kernel, "build_apart", triton.build_schedule),
        open_device(backend=CudaBindings(driver)) as device,
    ):
        kernel = gpu_kernel.build_gpu(schedule(), device)
        tensors = len(driver.memory)
        assert tensors == 4  # three tensors and the scratch memory
        kernel(*(np.zeros(kernel.workload.tensor(name).shape, np.float16) for name in kernel.operands))
        ((grid, block, shared, values),) = driver.launched
        assert (grid, block, shared) == ((8, 1, 1), (384, 1, 1), 98304)
        *pointers, scratch, profile = values
        assert pointers == [kernel._buffers[parameter.tensor].address for parameter in kernel.artifact.parameters]
        assert len(driver.memory[scratch]) == 8 * 384
        assert scratch % 128 == profile == 0
        del kernel
        assert not driver.memory


def test_what_the_compiler_says_of_a_schedule():
    pytest.importorskip("triton")
    facts = anatune.inspect(schedule())
    wgmma = [count for name, count in facts.items() if name.startswith("wgmma.mma_async")]
    assert sum(wgmma) > 0
    assert facts["spill_bytes"] == 0
    assert facts["flop"] == WORKLOAD.flop
    assert facts["shared_bytes"] >= 2 * 128 * 64 * 2


def test_failures_are_one_line(tmp_path):
    broken = mock.patch.object(apart, "entry_of", lambda template, name: f"tests.unit.measure.compile_stand_ins:{name}")
    with broken, refuses(BuildError):
        build_apart(schedule(group_m=1), tmp_path)
    with broken, mock.patch.object(apart, "LIMITS", Limits(build_s=0.5)), refuses(BuildError):
        build_apart(schedule(group_m=2), tmp_path)
    with broken, refuses(BuildError):
        build_apart(schedule(group_m=4), tmp_path)


def test_devices_that_nothing_is_launched_on():
    with refuses(DeviceError):
        anatune.build(schedule("mi300x"))
