"""Schedules of the GPU templates to TVM programs and CUDA C. No GPU, driver or NVIDIA compiler is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from anatune.codegen.artifact import Buffer
from anatune.codegen.compat import cuda_source_of, gpu_target_of, import_tvm, parse_program, schedule_of_module
from anatune.codegen.cuda_kernel import STATIC_SHARED_BYTES, CudaKernel
from anatune.codegen.cuda_preamble import preamble
from anatune.codegen.gpu_nest import GpuNest
from anatune.codegen.gpu_program import ROLLED, GpuProgram
from anatune.codegen.tensorcore_program import tensorcore_program
from anatune.core.hardware import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.space_tensorcore import TEMPLATE as TENSOR_CORES
from anatune.errors import BuildError

__all__ = ["LoweredGpu", "cuda_kernel", "lower_gpu"]

_KERNEL = "main_kernel"
_PROTOTYPE = re.compile(r"\b" + _KERNEL + r"\(([^)]*)\)")
_PARAMETER = re.compile(r"(\w+)_ptr$")


@dataclass(frozen=True)
class LoweredGpu:
    """A TVM module with the function ``main``, ready for ``tvm.compile``, and how its kernel is launched."""

    schedule: Schedule
    module: Any
    target: Any
    grid: int
    block: int
    shared_bytes: int
    dynamic_shared_bytes: int

    def tvm_schedule(self) -> Any:
        """Return the module as a ``tvm.s_tir.Schedule``."""
        return schedule_of_module(self.module)


def lower_gpu(schedule: Schedule) -> LoweredGpu:
    """Turn a schedule of a GPU template into a TVM module.

    ``main`` takes the operands, the epilogue's operands and the result, in the workload's own layouts.

    Raises
    ------
    SpaceError
        The schedule contradicts itself.
    BuildError
        The device is no NVIDIA GPU, or lacks what the schedule needs (shared memory, threads of a block).
    MissingDependencyError
        TVM is not installed.
    """
    hardware = schedule.hardware
    if not isinstance(hardware, GpuSpec):
        raise BuildError(f"schedule is for {hardware.name}, expected a GPU; anatune.codegen.cpu builds for CPUs")
    if schedule.template == TENSOR_CORES:
        cores = tensorcore_program(schedule)
        text, blocks, threads, shared_bytes = cores.main, cores.num_blocks, cores.num_threads, cores.shared_bytes
        is_dynamic = shared_bytes > STATIC_SHARED_BYTES
        _check_limits(hardware, threads, shared_bytes)
    else:
        nest = GpuNest(schedule)
        blocks, threads, shared_bytes = nest.num_blocks, nest.num_threads, nest.shared_bytes
        _check_limits(hardware, threads, shared_bytes)
        program = GpuProgram(nest)
        text, is_dynamic = program.script(), program.is_dynamic
    tvm = import_tvm()
    module = tvm.IRModule({"main": parse_program(text, "")})
    dynamic = shared_bytes if is_dynamic else 0
    return LoweredGpu(schedule, module, gpu_target_of(hardware), blocks, threads, shared_bytes, dynamic)


def _check_limits(hardware: GpuSpec, threads: int, shared_bytes: int) -> None:
    """Raise BuildError for what no compiler and no launch would accept."""
    most_threads = hardware.compute.max_threads_per_block
    if threads > most_threads:
        raise BuildError(
            f"schedule has {threads} threads a block, but {hardware.name} has at most {most_threads}; "
            "choose smaller thread tiles"
        )
    most_bytes = hardware.shared_memory.per_block_bytes
    if shared_bytes > most_bytes:
        raise BuildError(
            f"schedule needs {shared_bytes} bytes of shared memory a block, but {hardware.name} has at most "
            f"{most_bytes} (opt-in); choose smaller tiles or fewer stages"
        )


def cuda_kernel(schedule: Schedule) -> CudaKernel:
    """Return the CUDA C of a schedule; errors as `lower_gpu`."""
    lowered = lower_gpu(schedule)
    text = cuda_source_of(lowered.module, lowered.target)
    start = text.rindex('extern "C" __global__')
    helpers = _functions(text)
    body = re.sub(rf"^( *)(for \(int {ROLLED})", r"\1#pragma unroll 1\n\1\2", text[start:], flags=re.MULTILINE)
    workload = schedule.workload
    tensors = {a.tensor: a for a in (*workload.reads, *workload.epilogue_reads, workload.write)}
    prototype = _PROTOTYPE.search(body)
    if prototype is None:
        raise BuildError(f"TVM generated a kernel of another name than {_KERNEL}; this is a defect of anatune")
    parameters = []
    for parameter in prototype.group(1).split(","):
        match = _PARAMETER.search(parameter.strip())
        if match is None or match.group(1) not in tensors:
            raise BuildError(f"TVM generated the unknown parameter {parameter.strip()!r}; this is a defect of anatune")
        access = tensors[match.group(1)]
        parameters.append(Buffer(access.tensor, access.dtype, access.shape))
    return CudaKernel(
        schedule_key=schedule.key,
        name=_KERNEL,
        source=preamble({access.dtype for access in tensors.values()}) + helpers + body,
        arch=schedule.hardware.arch,
        parameters=tuple(parameters),
        result=workload.write.tensor,
        grid=lowered.grid,
        block=lowered.block,
        shared_bytes=lowered.shared_bytes,
        dynamic_shared_bytes=lowered.dynamic_shared_bytes,
    )


def _functions(text: str) -> str:
    """Return the device functions that TVM wrote before the kernel: one for each PTX instruction, and our own."""
    stop = text.index('extern "C" __global__')
    start = text.rfind("#endif", 0, stop)  # of TVM's preamble
    return text[start + len("#endif") : stop].strip() + "\n" if start >= 0 else ""
