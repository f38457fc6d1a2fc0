"""Schedules of the GPU templates to TVM programs and CUDA C. No GPU, driver or NVIDIA compiler is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from anatune.codegen.buffer import Buffer
from anatune.codegen.compat import (
    DevicePart,
    cuda_source_of,
    device_part_of,
    gpu_target_of,
    import_tvm,
    parse_program,
)
from anatune.codegen.cuda.kernel import CudaKernel, KernelProgram
from anatune.codegen.cuda.preamble import preamble
from anatune.codegen.cuda.program import ROLLED
from anatune.codegen.lowered import Lowered
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.templates import template_named
from anatune.errors import BuildError

__all__ = ["LoweredGpu", "cuda_kernel", "helpers_of", "lower_gpu", "named_kernel"]

_MAIN = "main"
_PARAMETER = re.compile(r"(\w+)_ptr$")


@dataclass(frozen=True)
class LoweredGpu(Lowered):
    """A TVM module with one kernel, and how it is launched."""

    program: KernelProgram


def lower_gpu(schedule: Schedule, threads: int = 1) -> LoweredGpu:
    """Turn a schedule of a GPU template into a TVM module.

    ``main`` takes the operands, the epilogue's operands and the result, in the workload's own layouts.

    Parameters
    ----------
    threads : int
        Not used: a kernel has threads of its own.

    Raises
    ------
    SpaceError
        The schedule contradicts itself.
    BuildError
        The device is no NVIDIA GPU, or lacks what the schedule needs (shared memory, threads of a block).
    MissingDependencyError
        TVM is not installed.
    """
    hardware = schedule.check().hardware
    if not isinstance(hardware, GpuSpec):
        raise BuildError(f"schedule is for {hardware.name}, expected a GPU; anatune.codegen.cpu.lower builds for CPUs")
    program: KernelProgram = template_named(schedule.template).part("program")(schedule)
    module = import_tvm().IRModule({"main": parse_program(program.script, "")})
    return LoweredGpu(schedule, module, gpu_target_of(hardware), program)


def cuda_kernel(schedule: Schedule) -> CudaKernel:
    """Return the CUDA C of a schedule; errors as `lower_gpu`."""
    return named_kernel(schedule, _MAIN)[0]


def named_kernel(schedule: Schedule, name: str) -> tuple[CudaKernel, DevicePart]:
    """Return the CUDA C of a schedule, whose kernel is called ``<name>_kernel``, and what TVM made it of.

    Errors as `lower_gpu`.
    """
    lowered = lower_gpu(schedule)
    module = lowered.module
    if name != _MAIN:
        module = import_tvm().IRModule({name: module[_MAIN].with_attr("global_symbol", name)})
    part = device_part_of(module, lowered.target)
    text, kernel = cuda_source_of(part), f"{name}_kernel"
    start = text.rindex('extern "C" __global__')
    helpers = helpers_of(text)
    program = lowered.program
    body = re.sub(rf"^( *)(for \(int {ROLLED})", r"\1#pragma unroll 1\n\1\2", text[start:], flags=re.MULTILINE)
    if program.resident_blocks:
        bounds = f"__launch_bounds__({program.num_threads}"
        body = body.replace(f"{bounds})", f"{bounds}, {program.resident_blocks})")
    body = program.finish(body)
    workload = schedule.workload
    tensors = {access.tensor: access for access in workload.tensors}
    prototype = re.search(rf"\b{kernel}\(([^)]*)\)", body)
    if prototype is None:
        raise BuildError(f"TVM generated a kernel of another name than {kernel}; this is a defect of anatune")
    parameters = []
    for parameter in prototype.group(1).split(","):
        match = _PARAMETER.search(parameter.strip())
        if match is None or match.group(1) not in tensors:
            raise BuildError(f"TVM generated the unknown parameter {parameter.strip()!r}; this is a defect of anatune")
        access = tensors[match.group(1)]
        parameters.append(Buffer.of(access))
    made = CudaKernel(
        schedule_key=schedule.key,
        name=kernel,
        source=preamble({access.dtype for access in tensors.values()}) + helpers + body,
        arch=schedule.hardware.arch,
        parameters=tuple(parameters),
        result=workload.write.tensor,
        grid=program.num_blocks,
        block=program.num_threads,
        shared_bytes=program.shared_bytes,
        dynamic_shared_bytes=program.dynamic_shared_bytes,
    )
    return made, part


def helpers_of(text: str) -> str:
    """Return the device functions that TVM wrote before the kernel: one for each PTX instruction, and our own."""
    stop = text.index('extern "C" __global__')
    start = text.rfind("#endif", 0, stop)  # of TVM's preamble
    return text[start + len("#endif") : stop].strip() + "\n" if start >= 0 else ""
