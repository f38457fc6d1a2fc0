"""The module ``cuda.bindings.driver`` without a GPU: its memory is NumPy's, its kernels run through the emulator.

An image is JSON: {"kernel": CudaKernel or null, "seconds": of a launch, "registers": ...}. A kernel runs when memory
was written since it ran last; otherwise only the clock moves. Where ``workload`` is set, it is not even emulated:
results are those of float64. Faults are in the image, or in the file ``faults.json`` (number of the candidate's
load -> fault) of the folder FAKE_CUDA_STATE:

"illegal": every later call fails; "lost": so does every call of every process after it; "hangs": waits for ever;
"wrong": the result is not what the kernel computes; "writes outside", "changes an operand"; "refused": the launch.
"""

import ctypes
import enum
import json
import os
import time
import types
from pathlib import Path

import msgspec
import numpy as np

from anatune.codegen.cuda.artifact import build_reference as real_reference
from anatune.codegen.cuda.artifact import check_resources, write_artifact
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.workload.nest import Workload
from anatune.errors import BuildError, SpaceError
from anatune.measure.cuda.drivers.cuda_bindings import CudaBindings
from anatune.measure.cuda.measurer import GPU_ENTRIES
from anatune.measure.emulate.emulator import EmulatedKernel, find_written_tensors
from anatune.measure.run.correctness import array_dtype, compute_expected
from anatune.templates.gpu.kernel import CudaKernel

STATE = "FAKE_CUDA_STATE"
BACKEND = "tests.unit.measure.fake_cuda:backend"
ENTRIES = GPU_ENTRIES._replace(
    builder="tests.unit.measure.fake_cuda:build",
    reference="tests.unit.measure.fake_cuda:build_reference",
    builder_setup="anatune.measure.run.build_processes:set_up",
)
FAILING = ENTRIES._replace(builder="tests.unit.measure.fake_cuda:build_or_not")
EMULATED = ENTRIES._replace(builder="tests.unit.measure.fake_cuda:build_emulated")

H200 = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MULTIPROCESSOR_COUNT": 132,
    "CLOCK_RATE": 1_980_000,
    "MEMORY_CLOCK_RATE": 3_201_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 6144,
    "WARP_SIZE": 32,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "MAX_REGISTERS_PER_BLOCK": 65536,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
    "MAX_SHARED_MEMORY_PER_BLOCK": 49152,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": 1024,
    "L2_CACHE_SIZE": 1 << 20,
    "MAX_GRID_DIM_X": 2**31 - 1,
}


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701


OK = CUresult.CUDA_SUCCESS
_TEXT = {CUresult.CUDA_ERROR_ILLEGAL_ADDRESS: b"an illegal memory access was encountered"}
_REFERENCE_S = 65e-6


class Image(msgspec.Struct, forbid_unknown_fields=True):
    kernel: CudaKernel | None
    num_parameters: int  # of the reference kernel
    seconds: float
    registers: int = 32
    fault: str = ""
    workload: str = ""


class Function:
    """A loaded module, and the one of its functions that was asked for."""

    def __init__(self, image):
        self.image = image
        self.program = None
        self.most_dynamic = 49152
        self.stale = True
        self.number = 0
        self.programs = {}  # by the extent of a kernel for a range

    @property
    def launch(self):
        return self.image.kernel.launches[self.number]

    def take(self, extent):
        """Be the kernel of one extent, which the launch says."""
        self.image.kernel = self.image.kernel.at(extent)
        self.program = self.programs.get(extent)


class FakeCuda:
    """State of one process; `calls` counts the calls by name."""

    def __init__(self, name="NVIDIA H200", attributes=H200, devices=1, state=None):
        self.name, self.devices, self.state = name, devices, None if state is None else Path(state)
        self.attributes = dict(attributes)
        self.memory, self.next_address = {}, 1 << 32
        self.context = None
        self.status = OK
        self.hangs = False
        self.now = 0.0
        self.calls = {}
        self.functions = []
        self.CUresult = CUresult
        self.CUdevice_attribute = types.SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{n}": n for n in attributes})
        names = ("NUM_REGS", "LOCAL_SIZE_BYTES", "SHARED_SIZE_BYTES", "MAX_THREADS_PER_BLOCK")
        names += ("MAX_DYNAMIC_SHARED_SIZE_BYTES",)
        self.CUfunction_attribute = types.SimpleNamespace(**{f"CU_FUNC_ATTRIBUTE_{n}": n for n in names})

    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        if name.startswith("cu") and name not in ("cuGetErrorString",):
            self.calls[name] = self.calls.get(name, 0) + 1
            lost = self.state is not None and (self.state / "lost").exists()
            if lost:
                gone = CUresult.CUDA_ERROR_NO_DEVICE if name == "cuInit" else CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE
                return lambda *_: (gone,)
            if self.status != OK:
                return lambda *_: (self.status, None)
        return value

    # ---- devices and the context

    def cuGetErrorString(self, status):
        return OK, _TEXT.get(status)

    def cuInit(self, flags):
        return (OK,) if self.devices else (CUresult.CUDA_ERROR_NO_DEVICE,)

    def cuDriverGetVersion(self):
        return OK, 13000

    def cuDeviceGetCount(self):
        return OK, self.devices

    def cuDeviceGet(self, index):
        return (OK, index) if 0 <= index < self.devices else (CUresult.CUDA_ERROR_INVALID_DEVICE, None)

    def cuDeviceGetName(self, size, device):
        return OK, self.name.encode().ljust(size, b"\0")

    def cuDeviceGetAttribute(self, attribute, device):
        return OK, self.attributes[attribute]

    def cuDevicePrimaryCtxRetain(self, device):
        return OK, "context"

    def cuDevicePrimaryCtxRelease(self, device):
        self.context = None
        return (OK,)

    def cuCtxSetCurrent(self, context):
        self.context = context
        return (OK,)

    def cuCtxSynchronize(self):
        if self.hangs:
            time.sleep(1000)
        return (OK,)

    # ---- memory

    def cuMemAlloc(self, size):
        assert self.context is not None
        if size > 1 << 34:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        address, self.next_address = self.next_address, self.next_address + -(-size // 256) * 256 + 256
        self.memory[address] = np.empty(size, np.uint8)
        return OK, address

    def cuMemFree(self, address):
        del self.memory[address]
        return (OK,)

    def view(self, address, size):
        base = max(start for start in self.memory if start <= address)
        view = self.memory[base][address - base : address - base + size]
        assert len(view) == size, "outside of the allocation"
        return view

    def cuMemcpyHtoD(self, address, source, size):
        self.view(address, size)[:] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(source))
        self.touched()
        return (OK,)

    def cuMemcpyDtoH(self, target, address, size):
        self.cuCtxSynchronize()
        np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(target))[:] = self.view(address, size)
        return (OK,)

    def cuMemsetD8Async(self, address, byte, size, stream):
        self.view(address, size)[:] = byte
        self.now += size / 3e12
        self.touched()
        return (OK,)

    def touched(self):
        for function in self.functions:
            function.stale = True

    # ---- modules and launches

    def cuModuleLoadData(self, image):
        try:
            decoded = msgspec.json.decode(image, type=Image)
        except msgspec.DecodeError:
            return CUresult.CUDA_ERROR_INVALID_IMAGE, None
        self.functions.append(Function(decoded))
        return OK, self.functions[-1]

    def next_fault(self):
        if self.state is None:
            return ""
        counter = self.state / "loads"
        number = int(counter.read_text()) if counter.exists() else 0
        counter.write_text(str(number + 1))
        faults = self.state / "faults.json"
        return json.loads(faults.read_text()).get(str(number), "") if faults.exists() else ""

    def cuModuleUnload(self, module):
        self.functions.remove(module)
        return (OK,)

    def cuModuleGetFunction(self, module, name):
        if module.image.kernel is not None:
            names = [launch.name.encode() for launch in module.image.kernel.launches]
            if name not in names:
                return CUresult.CUDA_ERROR_NOT_FOUND, None
            module.number = names.index(name)
            if module.launch == module.image.kernel.principal:
                module.image.fault = module.image.fault or self.next_fault()
        return OK, module

    def cuFuncGetAttribute(self, name, function):
        launch = None if function.image.kernel is None else function.launch
        shared = 0 if launch is None else launch.shared_bytes - launch.dynamic_shared_bytes
        values = {"NUM_REGS": function.image.registers, "LOCAL_SIZE_BYTES": 0, "SHARED_SIZE_BYTES": shared}
        return OK, values.get(name, 1024)

    def cuFuncSetAttribute(self, function, name, value):
        assert name == "MAX_DYNAMIC_SHARED_SIZE_BYTES"
        if value > self.attributes["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        function.most_dynamic = value
        return (OK,)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        assert isinstance(parameters, int)
        assert stream == extra == 0
        if shared > function.most_dynamic:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        image = function.image
        count = image.num_parameters if image.kernel is None else len(function.launch.parameters)
        pointers = (ctypes.c_void_p * count).from_address(parameters)
        addresses = [ctypes.c_uint64.from_address(pointer).value for pointer in pointers]
        self.now += image.seconds
        if image.fault == "refused":
            return (CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,)
        if image.fault == "hangs":
            self.hangs = True
        if image.fault == "illegal":
            self.status = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        if image.fault == "lost":
            (self.state / "lost").touch()
        if image.kernel is not None and function.stale:
            function.stale = False
            if image.kernel.ranged is not None:
                pointer = (ctypes.c_void_p * (count + 1)).from_address(parameters)[count]
                function.take(ctypes.c_int32.from_address(pointer).value)
            assert (gx, gy, gz, bx, by, bz) == (function.launch.grid, 1, 1, function.launch.block, 1, 1)
            assert shared == function.launch.dynamic_shared_bytes
            self.emulate(function, addresses)
        return (OK,)

    def emulate(self, function, addresses):
        kernel, fault = function.image.kernel, function.image.fault
        arrays, views = {}, {}
        for buffer, address in zip(function.launch.parameters, addresses, strict=True):
            dtype = array_dtype(buffer.dtype)
            view = self.view(address, int(np.prod(buffer.shape)) * dtype.itemsize)
            views[buffer.tensor] = view
            arrays[buffer.tensor] = view.copy().view(dtype).reshape(buffer.shape)
        if function.image.workload:
            if kernel.result in arrays and function.launch == kernel.principal:
                self.compute(Workload.from_json(function.image.workload), arrays, views)
        else:
            function.program = function.program or EmulatedKernel(kernel)
            function.programs[kernel.extent] = function.program
            function.program.run(arrays, launch=function.number)
        if kernel.result in arrays and fault == "wrong":
            arrays[kernel.result].reshape(-1)[1] = 3
        for tensor in find_written_tensors(kernel, function.number):
            views[tensor][:] = arrays[tensor].reshape(-1).view(np.uint8)
        address = dict(zip((b.tensor for b in function.launch.parameters), addresses, strict=True))
        if fault == "writes outside" and kernel.result in address:
            self.view(address[kernel.result] - 4, 4)[:] = 1
        if fault == "changes an operand":
            name = next(buffer.tensor for buffer in kernel.parameters if buffer.tensor != kernel.result)
            self.view(address[name], 1)[:] ^= 1

    def compute(self, workload, arrays, views):
        operands = {access.tensor: arrays[access.tensor] for access in workload.operands}
        want = compute_expected(workload, operands)
        arrays[workload.write.tensor][...] = want.result
        for tensor, wanted in want.further.items():
            arrays[tensor][...] = wanted.result
            views[tensor][:] = arrays[tensor].reshape(-1).view(np.uint8)

    # ---- events

    def cuEventCreate(self, flags):
        return OK, [None]

    def cuEventRecord(self, event, stream):
        event[0] = self.now
        return (OK,)

    def cuEventSynchronize(self, event):
        return self.cuCtxSynchronize()

    def cuEventElapsedTime(self, start, stop):
        return OK, 1e3 * (stop[0] - start[0])


def backend():
    """What runner processes are told to use."""
    return CudaBindings(FakeCuda(state=os.environ.get(STATE)))


def image_of(kernel, seconds=50e-6, fault="", **more):
    return msgspec.json.encode(Image(kernel, len(kernel.parameters), seconds, fault=fault, **more))


def build(schedule, folder, *, threads=1, emulated=False):
    """As `codegen.cuda.artifact.build_schedule`, without the compiler: the cubin holds the CUDA C."""
    kernel = cuda_kernel(schedule)
    image = image_of(kernel, seconds_of(schedule), workload="" if emulated else schedule.workload.to_json())
    facts = CompilerFacts(32, kernel.shared_bytes - kernel.dynamic_shared_bytes)
    artifact = write_artifact(kernel, Cubin(kernel.name, kernel.arch, image, facts), folder)
    check_resources(artifact, schedule.hardware)
    return artifact


def build_emulated(schedule, folder, *, threads=1):
    """Likewise, and the CUDA C is what runs."""
    return build(schedule, folder, emulated=True)


def build_or_not(schedule, folder, *, threads=1):
    """Likewise; deep unrolling fails."""
    if schedule.unroll == 1024:
        raise BuildError("ptxas says no")
    if schedule.unroll == 512:
        raise SpaceError("no such tile")
    return build(schedule, folder)


def build_triton(schedule, folder, *, threads=1):
    """As `codegen.triton.artifact.build_schedule`, without Triton: results are those of float64."""
    from unittest import mock

    from anatune.codegen.triton.artifact import build_schedule

    def compiled(program, kernel, hardware):
        block, shared = 32 * kernel.num_warps, 65536
        told = CudaKernel(
            schedule_key="", name=kernel.name, source="", arch=hardware.arch, parameters=kernel.parameters,
            result=program.result, grid=kernel.grid, block=block, shared_bytes=shared, dynamic_shared_bytes=shared,
        )  # fmt: skip
        image = image_of(told, seconds_of(schedule), workload=schedule.workload.to_json())
        return Cubin(kernel.name, hardware.arch, image, CompilerFacts(100), "", block, shared, 384)

    with mock.patch("anatune.codegen.triton.artifact.compile_kernel", compiled):
        return build_schedule(schedule, folder)


def build_any(schedule, folder, *, threads=1):
    """As `codegen.toolchains.build_schedule`."""
    return (build_triton if schedule.template == "triton" else build)(schedule, folder)


def seconds_of(schedule):
    """What the clock says."""
    return 20e-6 + 1e-6 * (int(schedule.key, 16) % 64)


def build_reference(hardware, folder):
    """As `codegen.cuda.artifact.build_reference`; it computes nothing."""
    from unittest import mock

    def compiled(kernel):
        image = msgspec.json.encode(Image(None, len(kernel.parameters), _REFERENCE_S))
        return Cubin(kernel.name, kernel.arch, image, CompilerFacts(28))

    with mock.patch("anatune.codegen.cuda.artifact.compile_kernel", compiled):
        return real_reference(hardware, folder)
