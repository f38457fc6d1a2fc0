"""Tensors in a GPU's memory, by DLPack; and kernels that are launched on them, on a driver that pretends."""

import ctypes
from unittest import mock

import numpy as np
import pytest

import anatune
from anatune.errors import RunError
from anatune.measure.cuda import kernel as gpu_kernel
from anatune.measure.cuda.dlpack import _Tensor, device_address
from anatune.measure.cuda.driver import open_device
from anatune.measure.cuda.drivers.cuda_bindings import CudaBindings
from tests.unit.measure.fake_cuda import FakeCuda, build_triton
from tests.wording import refuses

WORKLOAD = anatune.matmul(128, 64, 32, dtype="float16")


class OnDevice:
    """A tensor of some library."""

    def __init__(self, address, shape, kind=(2, 16), strides=None, place=(2, 0), offset=0):
        self.place = place
        numbers = ctypes.c_int64 * len(shape)
        self.kept = [numbers(*shape), numbers(*strides) if strides else None]
        shapes, steps = (ctypes.cast(one, ctypes.POINTER(ctypes.c_int64)) for one in self.kept)
        self.told = _Tensor(address, *place, len(shape), *kind, 1, shapes, steps, offset)

    def __dlpack_device__(self):
        return self.place

    def __dlpack__(self, *, stream):
        assert stream == {2: 1, 10: 0}[self.place[0]]
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.told), b"dltensor", None)


def test_where_a_tensor_lies():
    told = "A", "float16", (128, 32)
    assert device_address(*told, OnDevice(4096, (128, 32)), 0) == 4096
    assert device_address(*told, OnDevice(4096, (128, 32), strides=(32, 1), offset=64), 0) == 4160
    assert device_address("A", "float16", (1, 32), OnDevice(4096, (1, 32), strides=(7, 1)), 0) == 4096


@pytest.mark.parametrize(
    "tensor",
    [
        np.zeros((128, 32), np.float16),
        OnDevice(4096, (128, 32), place=(2, 1)),
        OnDevice(4096, (32, 128)),
        OnDevice(4096, (128, 32), kind=(4, 16)),
        OnDevice(4096, (128, 32), strides=(1, 128)),
        OnDevice(4098, (128, 32)),
        [[1.0]],
    ],
)
def test_what_no_kernel_takes(tensor):
    with refuses(RunError):
        device_address("A", "float16", (128, 32), tensor, 0)


def test_a_kernel_is_launched_on_tensors_that_are_there():
    pytest.importorskip("triton", reason="the template's builds name its version")
    schedule = anatune.space(WORKLOAD, "h200", template="triton").schedule({"m": 64, "n": 64, "k": 32})
    driver = FakeCuda()
    with (
        mock.patch.object(gpu_kernel, "build_apart", build_triton),
        open_device(backend=CudaBindings(driver)) as device,
    ):
        kernel = gpu_kernel.build_gpu(schedule, device)
        random = np.random.default_rng(0)
        a = random.standard_normal((128, 32)).astype(np.float16)
        b = random.standard_normal((32, 64)).astype(np.float16)
        places = {"A": device.allocate(a.nbytes), "B": device.allocate(b.nbytes), "C": device.allocate(2 * 128 * 64)}
        device.upload(places["A"], a)
        device.upload(places["B"], b)
        tensors = [OnDevice(places[name].address, WORKLOAD.tensor(name).shape) for name in "ABC"]
        kernel.launch(*tensors)
        found = np.empty((128, 64), np.float16)
        device.download(places["C"], found)
        assert np.allclose(found, a.astype(np.float32) @ b.astype(np.float32), atol=0.05)
        launcher = kernel._outside[1]
        kernel.launch(*tensors)
        assert kernel._outside[1] is launcher
        with refuses(RunError):
            kernel.launch(*tensors[:2])
