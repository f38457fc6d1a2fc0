"""Drivers of GPUs that are not there, NVIDIA's and AMD's: kernels are functions of Python's, graphs lists of them."""

import ctypes
import enum
import types
from typing import NamedTuple

import numpy as np

from anatune.measure.cuda.driver import GpuDevice
from anatune.measure.cuda.drivers.cuda_bindings import CudaBindings
from anatune.measure.cuda.drivers.hip_python import HipPython
from tests.unit.measure.fake_cuda import H200, OK, CUresult, FakeCuda


class Kernel(NamedTuple):
    """Of an image: its one function; `run` gets bytes of memory, as many of each parameter as `sizes` says."""

    name: str
    grid: int
    block: int
    sizes: tuple
    run: object
    shared_bytes: int = 0
    scratch_bytes: int = 0


class FalseCuda(FakeCuda):
    """``cuda.bindings.driver``: `kernels` by their images; `refuses`: calls that fail; `room`: of one allocation.

    `launched`: names of what ran, in order; `alive`: streams and graphs that nobody has destroyed.
    """

    def __init__(self, kernels, *, refuses=(), room=1 << 34, **more):
        super().__init__(**more)
        self.kernels, self.refuses, self.room = kernels, refuses, room
        self.launched, self.alive, self.captured = [], [], None
        self.CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")

    def __getattribute__(self, name):
        if name.startswith("cu") and name[2:] in object.__getattribute__(self, "refuses"):
            return self.refuse
        return super().__getattribute__(name)

    def refuse(self, *arguments):
        self.captured = None  # a capture that fails is none
        return CUresult.CUDA_ERROR_INVALID_VALUE, None

    def cuMemAlloc(self, size):
        if size > self.room:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        status, address = super().cuMemAlloc(size)
        self.memory[address][:] = 0xFF
        return status, address

    def cuModuleLoadData(self, image):
        kernel = self.kernels.get(image)
        return (OK, kernel) if kernel else (CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, None)

    def cuModuleUnload(self, module):
        return (OK,)

    def cuModuleGetFunction(self, module, name):
        return (OK, module) if name == module.name.encode() else (CUresult.CUDA_ERROR_NOT_FOUND, None)

    def cuFuncGetAttribute(self, name, function):
        return OK, {"MAX_THREADS_PER_BLOCK": function.block}.get(name, 0)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        assert (gx, gy, gz, bx, by, bz) == (function.grid, 1, 1, function.block, 1, 1)
        assert (shared, extra) == (function.shared_bytes, 0)
        pointers = (ctypes.c_void_p * (len(function.sizes) + 2)).from_address(parameters)
        *values, scratch, profile = (ctypes.c_uint64.from_address(pointer).value for pointer in pointers)
        assert profile == 0
        if function.scratch_bytes:
            self.view(scratch, function.grid * function.scratch_bytes)
        assert (stream == 0) == (self.captured is None), "what is launched beside a capture is lost"
        if self.captured is None:
            self.ran(function, values)
        else:
            self.captured.append((function, values))
        return (OK,)

    def ran(self, function, values):
        self.launched.append(function.name)
        self.now += 1e-6
        function.run([self.view(address, size) for address, size in zip(values, function.sizes, strict=True)])

    # ---- streams and graphs

    def made(self, what):
        self.alive.append(what)
        return OK, what

    def gone(self, what):
        self.alive = [one for one in self.alive if one is not what]
        return (OK,)

    def cuStreamCreate(self, flags):
        assert flags == 1, "a stream that waits for the legacy one cannot be captured"
        return self.made(["stream"])

    def cuStreamDestroy(self, stream):
        return self.gone(stream)

    def cuStreamBeginCapture(self, stream, mode):
        assert (stream, mode) == (["stream"], "relaxed")
        self.captured = []
        return (OK,)

    def cuStreamEndCapture(self, stream):
        captured, self.captured = self.captured, None
        return self.made(captured)

    def cuGraphInstantiate(self, graph, flags):
        assert flags == 0
        return self.made(list(graph))

    def cuGraphDestroy(self, graph):
        return self.gone(graph)

    def cuGraphExecDestroy(self, graph):
        return self.gone(graph)

    def cuGraphLaunch(self, graph, stream):
        assert stream == 0
        assert any(one is graph for one in self.alive)
        for function, values in graph:
            self.ran(function, values)
        return (OK,)


class hipError_t(enum.IntEnum):
    hipSuccess = 0
    hipErrorInvalidValue = 1
    hipErrorOutOfMemory = 2
    hipErrorNoDevice = 100
    hipErrorInvalidDevice = 101
    hipErrorNoBinaryForGpu = 209
    hipErrorNotFound = 500
    hipErrorIllegalAddress = 700
    hipErrorLaunchFailure = 719


SAME = (
    *("Init", "DriverGetVersion", "DeviceGet", "DeviceGetName", "MemcpyDtoH", "MemcpyHtoD", "MemsetD8Async"),
    *("ModuleLoadData", "ModuleUnload", "ModuleGetFunction", "EventRecord", "EventSynchronize", "EventElapsedTime"),
    *("StreamBeginCapture", "StreamEndCapture", "StreamDestroy"),
    *("GraphDestroy", "GraphExecDestroy", "GraphLaunch"),
)
HIP = {f"hip{name}": f"cu{name}" for name in SAME} | {
    "hipDeviceSynchronize": "cuCtxSynchronize",
    "hipEventCreateWithFlags": "cuEventCreate",
    "hipFree": "cuMemFree",
    "hipGetDeviceCount": "cuDeviceGetCount",
    "hipGraphInstantiateWithFlags": "cuGraphInstantiate",
    "hipMalloc": "cuMemAlloc",
    "hipModuleLaunchKernel": "cuLaunchKernel",
    "hipStreamCreateWithFlags": "cuStreamCreate",
}
"""AMD's call -> NVIDIA's that takes and returns the same."""
MI300X = {
    "hipDeviceAttributeComputeCapabilityMajor": 9,
    "hipDeviceAttributeComputeCapabilityMinor": 4,
    "hipDeviceAttributeMultiprocessorCount": 304,
    "hipDeviceAttributeWarpSize": 64,
    "hipDeviceAttributeMaxThreadsPerBlock": 1024,
    "hipDeviceAttributeMaxThreadsPerMultiProcessor": 2048,
    "hipDeviceAttributeMaxSharedMemoryPerBlock": 65536,
    "hipDeviceAttributeL2CacheSize": 4 << 20,
    "hipDeviceAttributeMemoryBusWidth": 8192,
    "hipDeviceAttributeMaxGridDimX": 2**31 - 1,
}


class FalseHip:
    """``hip.hip``, on top of the false of NVIDIA's module; `returns`: properties are returned, as newer ones do."""

    def __init__(self, kernels=(), *, arch="gfx942", attributes=MI300X, returns=False, **more):
        self.cuda = FalseCuda(dict(kernels), **{"name": "AMD Instinct MI300X", **more})
        self.arch, self.attributes, self.returns = f"{arch}:sramecc+:xnack-", attributes, returns
        self.cuda.context = "of the process"
        self.hipDeviceAttribute_t = enum.Enum("hipDeviceAttribute_t", [*MI300X])
        attributes = ("NUM_REGS", "LOCAL_SIZE_BYTES", "SHARED_SIZE_BYTES", "MAX_THREADS_PER_BLOCK")
        self.hipFunction_attribute = types.SimpleNamespace(
            **{f"HIP_FUNC_ATTRIBUTE_{name}": name for name in attributes}
        )
        self.hipStreamCaptureMode = types.SimpleNamespace(hipStreamCaptureModeRelaxed="relaxed")
        self.hipDeviceProp_t = types.SimpleNamespace

    def __getattr__(self, name):
        call = getattr(self.cuda, HIP[name])  # a KeyError: HIP has no such call

        def told(*arguments):
            status, *values = call(*arguments)
            return hipError_t(int(status)), *values

        return told

    def hipGetErrorString(self, status):
        return hipError_t.hipSuccess, memoryview(f"words for {int(status)}".encode())

    def hipSetDevice(self, index):
        return (hipError_t.hipSuccess if index < self.cuda.devices else hipError_t.hipErrorInvalidDevice,)

    def hipDeviceGetAttribute(self, attribute, index):
        assert isinstance(attribute, self.hipDeviceAttribute_t)
        return hipError_t.hipSuccess, self.attributes[attribute.name]

    def hipGetDeviceProperties(self, *arguments):
        if self.returns:
            (_,) = arguments if len(arguments) == 1 else self.refused()
            return hipError_t.hipSuccess, types.SimpleNamespace(gcnArchName=self.arch)
        properties, _ = arguments
        properties.gcnArchName = self.arch.encode()
        return (hipError_t.hipSuccess,)

    def refused(self):
        raise TypeError("hipGetDeviceProperties() takes exactly one argument (2 given)")

    def hipFuncGetAttribute(self, attribute, function):
        return hipError_t.hipSuccess, self.cuda.cuFuncGetAttribute(attribute, function)[1]


def false_device(kernels, arch="sm_90", **more):
    """Return an open device of an architecture, and NVIDIA's driver that it stands on."""
    if arch.startswith("gfx"):
        hip = FalseHip(kernels, arch=arch, **more)
        return GpuDevice(HipPython(hip)), hip.cuda
    capability = {"COMPUTE_CAPABILITY_MAJOR": int(arch[3:-1]), "COMPUTE_CAPABILITY_MINOR": int(arch[-1])}
    driver = FalseCuda(kernels, attributes=H200 | capability, **more)
    return GpuDevice(CudaBindings(driver)), driver


def floats(sizes, run):
    """Return a function on bytes of one on arrays of float32."""
    return tuple(4 * size for size in sizes), lambda views: run(*(view.view(np.float32) for view in views))
