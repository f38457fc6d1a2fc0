"""A range of extents on a GPU for other programs: cubins of each program, and a C header that launches.

A plan has programs of CUDA C and of Triton beside each other. Nothing of anatune, TVM or Triton is needed to use what
is written; no GPU is needed to write it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from anatune.codegen.arithmetic import Arithmetic, arithmetic_of
from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.nvrtc import Cubin, compiler_release, compiler_version
from anatune.codegen.triton.compiler import compiler_version as triton_version
from anatune.codegen.triton.ranges import range_kernels
from anatune.emit.buffer import Buffer
from anatune.export.cuda.header import source_comment
from anatune.export.cuda.portable import portable
from anatune.export.cuda.requirements import CudaRequirements, requirements_of
from anatune.export.cuda.write import write_files
from anatune.export.triton.header import Choice, c_header
from anatune.export.triton.write import find_requirements, launches_of
from anatune.model.ranges.plan import RangePlan
from anatune.templates.gpu.kernel import CudaKernel, Launch
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

CompileAll: TypeAlias = Callable[[Sequence[tuple[TritonProgram, TritonKernel]]], Sequence[Cubin]]
"""Kernels of Triton programs -> their machine code, in order."""


class GpuRangeExport(NamedTuple):
    """What was written: file names, launches, arguments of the header's launch, what it needs (None: the GPU is AMD's).

    The arithmetic is that of the program with the largest errors.
    """

    header: str
    table: str
    images: tuple[str, ...]
    sources: tuple[str, ...]
    launches: tuple[Launch, ...]
    arguments: tuple[Buffer, ...]
    needs: CudaRequirements | None
    arithmetic: Arithmetic


def write_gpu_range(plan: RangePlan, name: str, folder: Path, compile_all: CompileAll) -> GpuRangeExport:
    """Write ``name.h``, the table ``name_dispatch.json``, sources and machine code of each program into a folder.

    The source of a program is ``name_0.cu``, or ``name_0.py`` where Triton compiles it. Each of Triton's kernels has a
    file of its own, ``name_0.cubin`` and ``name_0_1.cubin``.

    Parameters
    ----------
    name : str
        A C identifier: prefix of the header's functions.
    compile_all : callable
        What compiles Triton programs: `measure.cuda.apart.compiled_kernels`.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As `range_kernels`, `nvrtc.compile_cuda` and `compile_all`; BuildError also if a file cannot be written.
    """
    made = range_kernels(plan)
    hardware = plan.programs[0].schedule.hardware
    assert hardware.kind == "gpu"
    wanted = [(one, kernel) for one in made if isinstance(one, TritonProgram) for kernel in one.kernels]
    images = iter(compile_all(wanted) if wanted else ())
    kind = "hsaco" if hardware.vendor == "amd" else "cubin"
    told = {"title": plan.workload.describe(), "device": hardware.name, "arch": hardware.arch}
    sources: dict[str, bytes] = {}
    code: dict[str, bytes] = {}
    launches: list[tuple[int, Launch]] = []
    for at, (one, program) in enumerate(zip(made, plan.programs, strict=True)):
        if isinstance(one, TritonProgram):
            sources[f"{name}_{at}.py"] = one.source.encode()
            own = [next(images) for _ in one.kernels]
            some = launches_of(one, own, f"{name}_{at}", kind)
        else:
            one = portable(one, f"{name}_{at}")
            title, device = program.schedule.workload.describe(), f"{hardware.name} ({hardware.arch})"
            comment = source_comment(one, title, device, arithmetic_of(program.schedule))
            sources[f"{one.name}.cu"] = (comment + one.source).encode()
            own = [compile_kernel(one)]
            some = [msgspec.structs.replace(launch, image=f"{one.name}.cubin") for launch in one.launches]
        code |= {launch.image: image.image for launch, image in zip(some, own, strict=False)}
        launches += [(at, launch) for launch in some]
    told["compiler"], needs = _compilers(hardware.arch, made)
    programs, all_launches = zip(*launches, strict=True)
    arguments = _arguments(plan, [one.workspace for one in made if one.workspace is not None])
    intervals = [(interval.last, interval.program) for interval in plan.intervals]
    choice = Choice(plan.workload.axis, plan.workload.extents[0], intervals, programs)
    numbers = (arithmetic_of(program.schedule) for program in plan.programs)
    arithmetic = max(numbers, key=lambda one: one.expected_relative_error)
    header = c_header(name, all_launches, arguments, made[0].result, told, arithmetic, needs, choice)
    table = json.dumps(plan.dispatch(), indent=1) + "\n"
    texts = {f"{name}.h": header.encode(), f"{name}_dispatch.json": table.encode()}
    write_files({**sources, **code, **texts}, folder)
    file, dispatch = texts
    return GpuRangeExport(file, dispatch, (*code,), (*sources,), all_launches, arguments, needs, arithmetic)


def _compilers(arch: str, made: Sequence[CudaKernel | TritonProgram]) -> tuple[str, CudaRequirements | None]:
    """Return what compiles programs, and what all of their cubins need; None for AMD's GPUs."""
    kinds = {type(one) for one in made}
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
