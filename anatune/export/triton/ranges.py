"""Exporting the kernels of a range of extents on a GPU: machine code, and a C header that launches it.

A plan may have kernels in CUDA C and in Triton. Using the files does not need anatune, TVM or Triton. Writing them does
not need a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from anatune.codegen.arithmetic import KernelArithmetic, find_arithmetic
from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.nvrtc import Cubin, compiler_release, compiler_version
from anatune.codegen.triton.compiler import compiler_version as triton_version
from anatune.codegen.triton.ranges import range_kernels
from anatune.emit.buffer import Buffer
from anatune.export.cuda.header import source_comment
from anatune.export.cuda.portable import make_portable
from anatune.export.cuda.requirements import CudaRequirements, requirements_of
from anatune.export.cuda.write import write_files
from anatune.export.triton.header import HeaderChoice, c_header
from anatune.export.triton.write import find_requirements, launches_of
from anatune.model.ranges.plan import RangePlan
from anatune.templates.gpu.kernel import CudaKernel, Launch
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

CompileAll: TypeAlias = Callable[[Sequence[tuple[TritonProgram, TritonKernel]]], Sequence[Cubin]]
"""A function that compiles kernels of Triton programs to machine code, in order."""


class GpuRangeExport(NamedTuple):
    """A written export: file names, launches, arguments of the launch function, and requirements (None for AMD's GPUs).

    The arithmetic is that of the kernel with the largest errors.
    """

    header: str
    table: str
    images: tuple[str, ...]
    sources: tuple[str, ...]
    launches: tuple[Launch, ...]
    arguments: tuple[Buffer, ...]
    needs: CudaRequirements | None
    arithmetic: KernelArithmetic


def write_gpu_range(plan: RangePlan, name: str, folder: Path, compile_all: CompileAll) -> GpuRangeExport:
    """Write ``name.h``, the table ``name_dispatch.json``, sources and machine code of each program into a folder.

    The source of a program is ``name_0.cu``, or ``name_0.py`` for Triton. Each Triton kernel has a separate file:
    ``name_0.cubin``, ``name_0_1.cubin``.

    Parameters
    ----------
    name : str
        A C identifier: the prefix of the header's functions.
    compile_all : callable
        The function that compiles Triton programs: `measure.cuda.apart.compiled_kernels`.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        The errors of `range_kernels`, `nvrtc.compile_cuda` and `compile_all`; BuildError also if a file cannot be
        written.
    """
    kernels = range_kernels(plan)
    hardware = plan.programs[0].schedule.hardware
    assert hardware.kind == "gpu"
    triton_kernels = [(one, kernel) for one in kernels if isinstance(one, TritonProgram) for kernel in one.kernels]
    images = iter(compile_all(triton_kernels) if triton_kernels else ())
    kind = "hsaco" if hardware.vendor == "amd" else "cubin"
    labels = {"title": plan.workload.describe(), "device": hardware.name, "arch": hardware.arch}
    sources: dict[str, bytes] = {}
    code: dict[str, bytes] = {}
    launches: list[tuple[int, Launch]] = []
    for number, (item, program) in enumerate(zip(kernels, plan.programs, strict=True)):
        if isinstance(item, TritonProgram):
            sources[f"{name}_{number}.py"] = item.source.encode()
            cubins = [next(images) for _ in item.kernels]
            started = launches_of(item, cubins, f"{name}_{number}", kind)
        else:
            item = make_portable(item, f"{name}_{number}")
            title, device = program.schedule.workload.describe(), f"{hardware.name} ({hardware.arch})"
            comment = source_comment(item, title, device, find_arithmetic(program.schedule))
            sources[f"{item.name}.cu"] = (comment + item.source).encode()
            cubins = [compile_kernel(item)]
            started = [msgspec.structs.replace(launch, image=f"{item.name}.cubin") for launch in item.launches]
        code |= {launch.image: image.image for launch, image in zip(started, cubins, strict=False)}
        launches += [(number, launch) for launch in started]
    labels["compiler"], needs = _compilers(hardware.arch, kernels)
    programs, all_launches = zip(*launches, strict=True)
    arguments = _arguments(plan, [one.workspace for one in kernels if one.workspace is not None])
    intervals = [(interval.last, interval.program) for interval in plan.intervals]
    choice = HeaderChoice(plan.workload.axis, plan.workload.extents[0], intervals, programs)
    numbers = (find_arithmetic(program.schedule) for program in plan.programs)
    arithmetic = max(numbers, key=lambda one: one.expected_relative_error)
    header = c_header(name, all_launches, arguments, kernels[0].result, labels, arithmetic, needs, choice)
    table = json.dumps(plan.dispatch(), indent=1) + "\n"
    texts = {f"{name}.h": header.encode(), f"{name}_dispatch.json": table.encode()}
    write_files({**sources, **code, **texts}, folder)
    file, dispatch = texts
    return GpuRangeExport(file, dispatch, (*code,), (*sources,), all_launches, arguments, needs, arithmetic)


def _compilers(arch: str, kernels: Sequence[CudaKernel | TritonProgram]) -> tuple[str, CudaRequirements | None]:
    """Return the compilers of programs, and the common requirements of their cubins (None for AMD's GPUs)."""
    kinds = {type(one) for one in kernels}
    versions = [compiler_version()] * (CudaKernel in kinds) + [triton_version()] * (TritonProgram in kinds)
    if arch.startswith("gfx"):
        return ", ".join(versions), None
    needs = [find_requirements(arch)] if TritonProgram in kinds else []
    needs += [requirements_of(arch, compiler_release())] if CudaKernel in kinds else []
    strictest = max(needs, key=lambda one: one.driver_cuda)
    minors = all(one.other_minors for one in needs)
    return ", ".join(versions), msgspec.structs.replace(strictest, other_minors=minors)


def _arguments(plan: RangePlan, workspaces: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Return the tensors at the largest extent in the workload's order, then the largest workspace."""
    tensors = tuple(Buffer.of(access, plan.workload.axis) for access in plan.workload.largest.tensors)
    return (*tensors, *sorted(workspaces, key=lambda space: space.num_bytes)[-1:])
