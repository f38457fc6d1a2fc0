"""The driver layer against a driver that is not there: memory, launches, limits, errors, both packages."""

import types
import typing

import numpy as np
import pytest

from anatune.emit.buffer import Buffer
from anatune.errors import DeviceError, MissingDependencyError, RunError
from anatune.measure.cuda.driver import open_device
from anatune.measure.cuda.drivers import backends as gpu_backends
from anatune.measure.cuda.drivers import driver_calls
from anatune.measure.cuda.drivers.backends import make_backend
from anatune.measure.cuda.drivers.cuda_bindings import CudaBindings
from anatune.measure.cuda.drivers.driver_calls import KernelFaultError, LostDeviceError
from anatune.measure.cuda.drivers.pycuda_backend import PyCuda
from anatune.measure.emulate.emulator import compiler
from anatune.templates.gpu.kernel import CudaKernel
from tests.unit.measure.fake_cuda import H200, FakeCuda, image_of
from tests.unit.measure.false_driver import FalseCuda
from tests.wording import refuses

KERNEL = CudaKernel(
    "",
    "twice",
    'extern "C" __global__ void __launch_bounds__(32) twice(const float* __restrict__ x_ptr, '
    "float* __restrict__ y_ptr) { int i = blockIdx.x * 32 + threadIdx.x; y_ptr[i] = 2.0f * x_ptr[i]; }",
    "sm_90",
    (Buffer("x", "float32", (64,)), Buffer("y", "float32", (64,))),
    "y",
    2,
    32,
)


def device(driver=None, **more):
    return open_device(backend=CudaBindings(driver or FakeCuda(**more)))


def test_attributes_and_name():
    with device() as gpu:
        assert (gpu.name, gpu.arch, gpu.backend, gpu.driver_version) == ("NVIDIA H200", "sm_90", "cuda-bindings", 13000)
        assert gpu.attributes["MULTIPROCESSOR_COUNT"] == 132
        assert gpu.shared_bytes_limit == 232448


@pytest.fixture
def cpp():
    """What runs kernels on the fake."""
    try:
        compiler()
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("cpp")
def test_a_kernel_runs_and_is_timed():
    driver = FakeCuda()
    with device(driver) as gpu:
        function = gpu.load(image_of(KERNEL, 20e-6), "twice")
        x, y = gpu.allocate(256), gpu.allocate(256)
        values, result = np.arange(64, dtype=np.float32), np.empty(64, np.float32)
        gpu.upload(x, values)
        gpu.fill(y, 0xFF)
        gpu.download(y, result)
        assert np.isnan(result).all()
        gpu.prepare(function, 2, 32, [x, y])()
        gpu.download(y, result)
        assert (result == 2 * values).all()
        call, flush = gpu.prepare(function, 2, 32, [x, y]), gpu.allocate(1 << 20)
        assert gpu.time_calls(call, samples=3, launches=4) == pytest.approx([20e-6] * 3)
        assert gpu.time_calls(call, samples=2, before=lambda: gpu.fill(flush)) == pytest.approx([20e-6] * 2)
        flush.free()
        flush.free()
        gpu.unload(function)
    assert driver.context is None
    gpu.close()


def test_parts_of_buffers():
    with device() as gpu:
        buffer, words = gpu.allocate(16), np.zeros(4, np.int32)
        gpu.fill(buffer, 0)
        gpu.upload(buffer, np.array([7], np.int32), offset=8)
        gpu.fill(buffer, 0xFF, 12, 4)
        gpu.download(buffer, words)
        assert words.tolist() == [0, 0, 7, -1]
        with refuses(RunError):
            gpu.upload(buffer, np.zeros(1), offset=12)
        with refuses(RunError):
            gpu.download(buffer, np.zeros((2, 4), np.int32)[:, ::2])


def kernel(**changes):
    import msgspec

    return msgspec.structs.replace(KERNEL, **changes)


def test_more_shared_memory_is_asked_for():
    driver = FakeCuda()
    with device(driver) as gpu:
        big = gpu.load(image_of(kernel(shared_bytes=65536, dynamic_shared_bytes=65536)), "twice", 65536)
        assert big.shared_bytes == big.handle.most_dynamic == 65536
        both = gpu.load(image_of(kernel(shared_bytes=60000, dynamic_shared_bytes=20000)), "twice", 20000)
        assert (both.shared_bytes, both.handle.most_dynamic) == (60000, 20000)
        with refuses(RunError):
            gpu.load(image_of(kernel(shared_bytes=240000, dynamic_shared_bytes=240000)), "twice", 240000)


def test_impossible_launches():
    with device() as gpu:
        function = gpu.load(image_of(KERNEL), "twice")
        with refuses(RunError):
            gpu.prepare(function, 2, 2048, [])()
        with refuses(RunError):
            gpu.prepare(function, 0, 32, [])()
        with refuses(RunError):
            gpu.prepare(function, 2, 32, [1])()
        with refuses(RunError):
            gpu.load(b"no image", "twice")
        with refuses(RunError):
            gpu.load(image_of(KERNEL), "thrice")
        with refuses(RunError):
            gpu.allocate(1 << 40)


@pytest.mark.usefixtures("cpp")
def test_faults_are_told_from_losses(tmp_path):
    with device() as gpu:
        x = gpu.allocate(256)
        gpu.fill(x)
        gpu.prepare(gpu.load(image_of(KERNEL, fault="illegal"), "twice"), 2, 32, [x, x])()
        with refuses(KernelFaultError):
            gpu.synchronize()
    gpu = device(state=tmp_path)
    (tmp_path / "lost").touch()
    with refuses(LostDeviceError):
        gpu.allocate(1)
    gpu.close()


def test_no_device():
    with refuses(DeviceError):
        device(devices=0)
    with refuses(DeviceError):
        open_device(3, CudaBindings(FakeCuda(devices=2)))


def test_no_package(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with refuses(DeviceError):
        open_device()
    with refuses(DeviceError):
        open_device(backend="pycuda")
    with refuses(DeviceError):
        open_device(backend="rocm")


def test_the_second_package_is_tried_when_the_first_does_not_work(monkeypatch):
    def missing():
        raise MissingDependencyError("no")

    def broken():
        raise DeviceError("pycuda is too old")

    for first in (missing, broken):
        monkeypatch.setattr(
            gpu_backends, "BACKENDS", {"pycuda": first, "cuda-bindings": lambda: CudaBindings(FakeCuda())}
        )
        assert make_backend().name == "cuda-bindings"
    with refuses(DeviceError):
        make_backend("pycuda")


# ---- pycuda


class PyCudaError(Exception):
    pass


def fake_pycuda(driver):
    """``pycuda.driver`` on top of the fake of NVIDIA's module."""

    def call(name, *arguments):
        status, *values = getattr(driver, name)(*arguments)
        if status:
            words = {700: "an illegal memory access was encountered", 2: "out of memory"}.get(int(status), "no words")
            raise PyCudaError(f"{name} failed: {words}")
        return values[0] if values else None

    class Device:
        def __init__(self, index):
            self.index = call("cuDeviceGet", index)

        @staticmethod
        def count():
            return call("cuDeviceGetCount")

        def name(self):
            return driver.name

        def get_attribute(self, attribute):
            return call("cuDeviceGetAttribute", attribute, self.index)

        def retain_primary_context(self):
            return Context()

    class Context:
        stack: typing.ClassVar = []

        def push(self):
            self.stack.append(self)
            call("cuCtxSetCurrent", "context")

        @classmethod
        def pop(cls):
            cls.stack.pop()

        @classmethod
        def get_current(cls):
            return cls.stack[-1] if cls.stack else None

        def detach(self):
            call("cuDevicePrimaryCtxRelease", 0)

        @staticmethod
        def synchronize():
            call("cuCtxSynchronize")

    class Function:
        def __init__(self, handle):
            self.handle = handle

        def get_attribute(self, name):
            return call("cuFuncGetAttribute", name, self.handle)

        def set_attribute(self, name, value):
            call("cuFuncSetAttribute", self.handle, name, value)

        def __call__(self, *arguments, grid, block, shared):
            assert all(isinstance(argument, np.number) for argument in arguments)
            made = CudaBindings(driver).launcher(self.handle, grid, block, shared, arguments)
            made()

    class Module:
        def __init__(self, image):
            self.handle = call("cuModuleLoadData", image)

        def get_function(self, name):
            return Function(call("cuModuleGetFunction", self.handle, name.encode()))

    class Event:
        def __init__(self):
            self.handle = call("cuEventCreate", 0)

        def record(self):
            call("cuEventRecord", self.handle, 0)

        def synchronize(self):
            call("cuEventSynchronize", self.handle)

        def time_since(self, other):
            return call("cuEventElapsedTime", other.handle, self.handle)

    class Allocation(int):
        def free(self):
            call("cuMemFree", int(self))

    return types.SimpleNamespace(
        Error=PyCudaError,
        init=lambda: call("cuInit", 0),
        get_driver_version=lambda: call("cuDriverGetVersion"),
        device_attribute=types.SimpleNamespace(**{name: name for name in H200}),
        function_attribute=types.SimpleNamespace(
            **{
                name.removeprefix("CU_FUNC_ATTRIBUTE_"): value
                for name, value in vars(driver.CUfunction_attribute).items()
            }
        ),
        Device=Device,
        Context=Context,
        Event=Event,
        module_from_buffer=Module,
        mem_alloc=lambda size: Allocation(call("cuMemAlloc", size)),
        memcpy_htod=lambda address, source: call("cuMemcpyHtoD", address, source.ctypes.data, source.nbytes),
        memcpy_dtoh=lambda target, address: call("cuMemcpyDtoH", target.ctypes.data, address, target.nbytes),
        memset_d8=lambda address, byte, size: call("cuMemsetD8Async", address, byte, size, 0),
    )


@pytest.mark.usefixtures("cpp")
def test_pycuda():
    driver = FakeCuda()
    fake = fake_pycuda(driver)
    with open_device(backend=PyCuda(fake)) as gpu:
        assert (gpu.name, gpu.arch, gpu.backend) == ("NVIDIA H200", "sm_90", "pycuda")
        gpu.activate()
        assert len(fake.Context.stack) == 1
        function = gpu.load(image_of(kernel(shared_bytes=65536, dynamic_shared_bytes=65536)), "twice", 65536)
        x, y = gpu.allocate(256), gpu.allocate(256)
        values, result = np.arange(64, dtype=np.float32), np.empty(64, np.float32)
        gpu.upload(x, values)
        gpu.fill(y, 0xFF)
        gpu.prepare(function, 2, 32, [x, y])()
        gpu.download(y, result)
        assert (result == 2 * values).all()
        assert gpu.time_calls(gpu.prepare(function, 2, 32, [x, y]), samples=2) == pytest.approx([50e-6] * 2)
        x.free()
        with refuses(RunError):
            gpu.allocate(1 << 40)
        gpu.prepare(gpu.load(image_of(KERNEL, fault="illegal"), "twice"), 2, 32, [y, y])()
        with refuses(KernelFaultError):
            gpu.synchronize()
    assert fake.Context.stack == []


def test_the_installed_bindings_have_every_function_that_is_called():
    driver = pytest.importorskip("cuda.bindings.driver")
    fake = {name for name in dir(FalseCuda) if name.startswith("cu")}
    assert [name for name in fake if not hasattr(driver, name)] == []
    for name in H200:
        assert hasattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    for name in vars(FakeCuda().CUfunction_attribute):
        assert hasattr(driver.CUfunction_attribute, name)
    assert driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED == 2
    results = {status.name.removeprefix("CUDA_ERROR_") for status in driver.CUresult}
    assert {*driver_calls._FAULTS, *driver_calls._LOSSES} - results <= {"CONTAINED"}  # newer than some packages


def test_without_a_driver_the_installed_bindings_say_so():
    driver = pytest.importorskip("cuda.bindings.driver")
    try:
        status, *_ = driver.cuInit(0)
    except RuntimeError:
        status = driver.CUresult.CUDA_ERROR_NO_DEVICE
    if status == driver.CUresult.CUDA_SUCCESS:
        pytest.skip("there is a GPU here")
    with refuses(DeviceError):
        open_device(backend="cuda-bindings")
