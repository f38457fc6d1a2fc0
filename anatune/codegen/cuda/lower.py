"""Schedules of the GPU templates to TVM programs and CUDA C. No GPU, driver or NVIDIA compiler is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from anatune.codegen.buffer import Buffer
from anatune.codegen.compat import cuda_source_of, gpu_target_of, import_tvm, parse_program, schedule_of_module
from anatune.codegen.cuda.kernel import STATIC_SHARED_BYTES, CudaKernel
from anatune.codegen.cuda.nest import GpuNest
from anatune.codegen.cuda.preamble import preamble
from anatune.codegen.cuda.program import ROLLED, GpuProgram
from anatune.codegen.tensorcore.program import tensorcore_program
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.templates import template_named
from anatune.errors import BuildError

__all__ = ["LoweredGpu", "cuda_kernel", "lower_gpu"]

_KERNEL = "main_kernel"
_PROTOTYPE = re.compile(r"\b" + _KERNEL + r"\(([^)]*)\)")
_PARAMETER = re.compile(r"(\w+)_ptr$")
_CONSTANT = re.compile(r" \+ (\d+)$")
"""At the end of an index."""
_FACTOR = re.compile(r"\* (\d+)\)*$")
"""At the end of a term."""
_ELEMENT_BYTES = {"float": 4, "int": 4, "half": 2, "nv_bfloat16": 2}
_OTHER_REGISTERS = 32
"""Of a thread, beside its accumulators and fragments: addresses, conditions, elements on their way."""


@dataclass(frozen=True)
class LoweredGpu:
    """A TVM module with the function ``main``, ready for ``tvm.compile``, and how its kernel is launched.

    `resident_blocks` is what the compiler is told about blocks of an SM; 0: nothing.
    """

    schedule: Schedule
    module: Any
    target: Any
    grid: int
    block: int
    shared_bytes: int
    dynamic_shared_bytes: int
    resident_blocks: int = 0

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
    hardware = schedule.check().hardware
    if not isinstance(hardware, GpuSpec):
        raise BuildError(f"schedule is for {hardware.name}, expected a GPU; anatune.codegen.cpu.lower builds for CPUs")
    if template_named(schedule.template).tensor_cores:
        cores = tensorcore_program(schedule)
        text, blocks, threads, shared_bytes = cores.main, cores.num_blocks, cores.num_threads, cores.shared_bytes
        is_dynamic, resident_blocks = shared_bytes > STATIC_SHARED_BYTES, 0
        _check_limits(hardware, threads, shared_bytes)
    else:
        nest = GpuNest(schedule)
        blocks, threads, shared_bytes = nest.num_blocks, nest.num_threads, nest.shared_bytes
        _check_limits(hardware, threads, shared_bytes)
        program = GpuProgram(nest)
        text, is_dynamic = program.script(), program.is_dynamic
        resident_blocks = _resident_blocks(nest) if is_dynamic else 0
    tvm = import_tvm()
    module = tvm.IRModule({"main": parse_program(text, "")})
    dynamic = shared_bytes if is_dynamic else 0
    target = gpu_target_of(hardware)
    return LoweredGpu(schedule, module, target, blocks, threads, shared_bytes, dynamic, resident_blocks)


def tvm_schedule(schedule: Schedule) -> Any:
    """Return a schedule as a ``tvm.s_tir.Schedule``; errors as `lower_gpu`."""
    return lower_gpu(schedule).tvm_schedule()


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
    if lowered.resident_blocks:
        bounds = f"__launch_bounds__({lowered.block}"
        body = body.replace(f"{bounds})", f"{bounds}, {lowered.resident_blocks})")
    if not template_named(schedule.template).tensor_cores:
        body = _with_byte_offsets(body)
    workload = schedule.workload
    tensors = {a.tensor: a for a in workload.tensors}
    prototype = _PROTOTYPE.search(body)
    if prototype is None:
        raise BuildError(f"TVM generated a kernel of another name than {_KERNEL}; this is a defect of anatune")
    parameters = []
    for parameter in prototype.group(1).split(","):
        match = _PARAMETER.search(parameter.strip())
        if match is None or match.group(1) not in tensors:
            raise BuildError(f"TVM generated the unknown parameter {parameter.strip()!r}; this is a defect of anatune")
        access = tensors[match.group(1)]
        parameters.append(Buffer.of(access))
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


def _resident_blocks(nest: GpuNest) -> int:
    """Return how many blocks of a kernel with dynamic shared memory an SM will hold.

    The compiler does not see what a launch asks for. It takes dynamic shared memory for none, and spills registers for
    the sake of blocks that will never be there. What it is told does not make it spill either: no more blocks than have
    room for their accumulators, fragments and some addresses.
    """
    hardware = nest.hardware
    shared, registers, compute = hardware.shared_memory, hardware.registers, hardware.compute
    warps = -(-nest.num_threads // compute.warp_size)
    fragments = sum(nest.register_extent(tile.access) for tile in nest.tiles)
    needed = min(nest.num_accumulators + fragments + _OTHER_REGISTERS, registers.per_thread)
    blocks = min(
        shared.per_sm_bytes // (nest.shared_bytes + shared.reserved_per_block_bytes),
        compute.max_warps_per_sm // warps,
        registers.per_sm // (warps * compute.warp_size * needed),
    )
    return max(1, blocks)


def _with_byte_offsets(body: str) -> str:
    """Take constants out of indices of shared memory: ``smem[x + 8]`` becomes bytes behind the array's beginning.

    The compiler puts the constant part of an unrolled loop's index into a load's offset. With a second constant behind
    it, it often adds them up in a register for every load (bench/gpu/machine_code.py counts). Offsets in bytes and of
    32 bits it takes apart most reliably, but then it no longer sees which loads are neighbours and may be one: vectors,
    and indices that move by 1 along a loop and begin at aligned places, stay as they are.
    """
    declared = re.search(r"(\w+) smem_ptr\[", body)
    if declared is None or declared[1] not in _ELEMENT_BYTES:
        return body
    kind, size = declared[1], _ELEMENT_BYTES[declared[1]]
    pieces, start = [], 0
    for use in re.finditer(r"smem_ptr\[\(", body):
        stop = _closing(body, use.end() - 1)
        constant = _CONSTANT.search(body, use.end(), stop)
        index = body[use.end() : constant.start()] if constant else ""
        if constant is None or _has_neighbours(index):
            continue
        address = f"(char*)smem_ptr + {int(constant[1]) * size} + ({index}) * {size}"
        pieces += [body[start : use.start()], f"(*({kind}*)({address}))"]
        start = stop + len(")]")
    return "".join([*pieces, body[start:]])


def _has_neighbours(index: str) -> bool:
    """Whether an index moves by 1 along one loop and by even numbers along everything else: pairs may be one load."""
    factors = [(int(found[1]) if (found := _FACTOR.search(term)) else 1, term) for term in index.split(" + ")]
    ones = [term for factor, term in factors if factor == 1]
    return len(ones) == 1 and "threadIdx" not in ones[0] and sum(f % 2 for f, _ in factors) == 1


def _closing(text: str, start: int) -> int:
    """Return where the parenthesis that opens at `start` closes."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise AssertionError("TVM's parentheses are balanced")


def _functions(text: str) -> str:
    """Return the device functions that TVM wrote before the kernel: one for each PTX instruction, and our own."""
    stop = text.index('extern "C" __global__')
    start = text.rfind("#endif", 0, stop)  # of TVM's preamble
    return text[start + len("#endif") : stop].strip() + "\n" if start >= 0 else ""
