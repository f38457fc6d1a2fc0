"""A range of extents on a GPU for other programs: a cubin for each program, and one C header that picks and launches.

Nothing of anatune or TVM is needed to use them; no GPU is needed to write them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from anatune.codegen.arithmetic import arithmetic_of, comment_lines
from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.export.header import ALIGNMENT_BYTES, source_comment, supported_function, tensor_lines
from anatune.codegen.cuda.export.portable import portable
from anatune.codegen.cuda.export.requirements import CudaRequirements, requirements_of
from anatune.codegen.cuda.export.write import write_files
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.codegen.cuda.nvrtc import compiler_release, compiler_version
from anatune.emit.buffer import Buffer
from anatune.errors import SpaceError
from anatune.model.ranges.plan import RangePlan
from anatune.templates.gpu.kernel import CudaKernel, Launch
from anatune.templates.gpu.ranged import Ranged

__all__ = ["CudaRangeExport", "range_kernels", "write_cuda_range"]

_HEADER = """\
/* {title}
 * for {device}; made by anatune.
 {arithmetic}
 *
 * {count} kernels serve {axis} = {least} to {most}; {name}_program says which one serves an extent. Tensors are
 * row-major and contiguous in device memory, aligned to {alignment} bytes; the last one is written and must not overlap
 * any other. At the largest extent:
{tensors}
{memory}
 * Launches return at once (CUDA_ERROR_INVALID_VALUE: an extent out of range, a tensor that is not aligned), and may
 * come from several threads.
 *
 *   {name}_t kernels;
 *   if ({name}_supported(device) && !{name}_load(&kernels, "folder of the cubins"))
 *     {name}_launch(&kernels, stream, extent, {arguments});
 *
 {needs}
 * Link with -lcuda.
 */
#ifndef {guard}_H
#define {guard}_H
#include <cuda.h>
#include <stdio.h>

#define {guard}_PROGRAMS {count}
#define {guard}_LEAST {least}
#define {guard}_MOST {most}
#define {guard}_WORKSPACE_BYTES {workspace}ULL

typedef struct {{
  CUmodule modules[{guard}_PROGRAMS];
  CUfunction kernels[{functions}];
}} {name}_t;

{supported}
/* The number of the program that serves an extent; -1 outside the range. */
static inline int {name}_program(int extent) {{
  static const int last[{intervals}] = {{{lasts}}};
  static const unsigned char program[{intervals}] = {{{programs}}};
  int low = 0, high = {intervals} - 1;
  if (extent < {guard}_LEAST || extent > {guard}_MOST) return -1;
  while (low < high) {{
    int middle = (low + high) / 2;
    if (extent <= last[middle]) high = middle;
    else low = middle + 1;
  }}
  return program[low];
}}

/* Loads {name}_0.cubin and the others from a folder into the current context. */
static inline CUresult {name}_load({name}_t *self, const char *folder) {{
  static const char *const names[{functions}] = {{{names}}};
  static const int owners[{functions}] = {{{owners}}};
  static const int shared[{functions}] = {{{shareds}}};
  char path[4096];
  CUresult status = CUDA_SUCCESS;
  int at;
  for (at = 0; at < {guard}_PROGRAMS && status == CUDA_SUCCESS; ++at) {{
    int length = snprintf(path, sizeof path, "%s/{name}_%d.cubin", folder, at);
    if (length < 0 || length >= (int)sizeof path) return CUDA_ERROR_INVALID_VALUE;
    status = cuModuleLoad(&self->modules[at], path);
  }}
  for (at = 0; at < {functions} && status == CUDA_SUCCESS; ++at) {{
    status = cuModuleGetFunction(&self->kernels[at], self->modules[owners[at]], names[at]);
    if (status == CUDA_SUCCESS && shared[at] > 0)
      status = cuFuncSetAttribute(self->kernels[at], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared[at]);
  }}
  return status;
}}

static inline CUresult {name}_launch(const {name}_t *self, CUstream stream, int extent, {parameters}) {{
  CUresult status = CUDA_SUCCESS;
  if (({bits}) % {alignment}) return CUDA_ERROR_INVALID_VALUE;
  switch ({name}_program(extent)) {{
{cases}
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }}
  return status;
}}

#endif
"""

_CASE = """\
  case {number}: {{
{launches}
    break;
  }}"""
_LAUNCH = """\
    void *arguments{at}[] = {{{addresses}}};
    if (!status)
      status = cuLaunchKernel(self->kernels[{at}], {grid}, 1, 1, {block}, 1, 1, {shared}, stream, arguments{at}, 0);\
"""


class CudaRangeExport(NamedTuple):
    """What was written: file names, the kernels, the arguments of the header's launch behind the extent."""

    header: str
    cubins: tuple[str, ...]
    sources: tuple[str, ...]
    table: str
    kernels: tuple[CudaKernel, ...]
    arguments: tuple[Buffer, ...]
    needs: CudaRequirements


def range_kernels(plan: RangePlan) -> list[CudaKernel]:
    """Return the kernel of each program, which takes the extent when it is launched.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As `lower.cuda_kernel`; SpaceError also for a plan of no NVIDIA GPU.
    """
    if plan.hardware.kind != "gpu":
        raise SpaceError(f"range: {plan.hardware.name} is no GPU; its programs are one library for CPUs")
    return [
        cuda_kernel(program.schedule, Ranged(plan.workload.axis, plan.least(number), program.last))
        for number, program in enumerate(plan.programs)
    ]


def write_cuda_range(plan: RangePlan, name: str, folder: Path) -> CudaRangeExport:
    """Write ``name.h``, the table ``name_dispatch.json``, and ``name_0.cu``, ``name_0.cubin`` ... into a folder.

    Parameters
    ----------
    name : str
        A C identifier: prefix of the header's functions.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As `range_kernels` and `nvrtc.compile_cuda`; BuildError also if a file cannot be written.
    """
    kernels = [portable(kernel, f"{name}_{at}") for at, kernel in enumerate(range_kernels(plan))]
    device = f"{plan.hardware.name} ({plan.hardware.arch})"  # type: ignore[union-attr]
    files: dict[str, bytes] = {}
    for kernel, program in zip(kernels, plan.programs, strict=True):
        title, arithmetic = program.schedule.workload.describe(), arithmetic_of(program.schedule)
        files[f"{kernel.name}.cu"] = (source_comment(kernel, title, device, arithmetic) + kernel.source).encode()
        files[f"{kernel.name}.cubin"] = compile_kernel(kernel).image
    needs = requirements_of(kernels[0].arch, compiler_release())
    arguments = _arguments(plan, kernels)
    files[f"{name}.h"] = _header(plan, name, kernels, arguments, device, needs).encode()
    files[f"{name}_dispatch.json"] = (json.dumps(plan.dispatch(), indent=1) + "\n").encode()
    write_files(files, folder)
    return CudaRangeExport(
        header=f"{name}.h",
        cubins=tuple(f"{kernel.name}.cubin" for kernel in kernels),
        sources=tuple(f"{kernel.name}.cu" for kernel in kernels),
        table=f"{name}_dispatch.json",
        kernels=tuple(kernels),
        arguments=arguments,
        needs=needs,
    )


def _arguments(plan: RangePlan, kernels: Sequence[CudaKernel]) -> tuple[Buffer, ...]:
    """Return the tensors at the largest extent in the workload's order, then the largest workspace."""
    axis = plan.workload.axis
    tensors = tuple(Buffer.of(access, axis) for access in plan.workload.largest.tensors)
    spaces = [kernel.workspace for kernel in kernels if kernel.workspace is not None]
    return (*tensors, *sorted(spaces, key=lambda space: space.num_bytes)[-1:])


def _header(
    plan: RangePlan,
    name: str,
    kernels: Sequence[CudaKernel],
    arguments: Sequence[Buffer],
    device: str,
    needs: CudaRequirements,
) -> str:
    workload, guard = plan.workload, name.upper()
    launches = [(number, launch) for number, kernel in enumerate(kernels) for launch in kernel.launches]
    workspace = [space.num_bytes for kernel in kernels if (space := kernel.workspace) is not None]
    memory = (
        f" * The workspace is device memory of {guard}_WORKSPACE_BYTES bytes, of any contents; launches that may run at"
        "\n * once need one each."
        if workspace
        else " * There is no workspace."
    )
    shared_bytes = max(launch.dynamic_shared_bytes for _, launch in launches)
    said = f"The cubins ({compiler_version()}) are for {needs.capabilities()}, with a driver of {needs.drivers()}."
    cases = []
    for number in range(len(kernels)):
        own = [_launch(at, launch) for at, (owner, launch) in enumerate(launches) if owner == number]
        cases.append(_CASE.format(number=number, launches="\n".join(own)))
    return _HEADER.format(
        title=workload.describe(),
        device=device,
        arithmetic=comment_lines(arithmetic_of(plan.programs[0].schedule).sentences(), "* ", " * "),
        count=len(kernels),
        axis=workload.axis,
        least=workload.extents[0],
        most=workload.extents[-1],
        name=name,
        guard=guard,
        alignment=ALIGNMENT_BYTES,
        tensors=tensor_lines(arguments),
        memory=memory,
        arguments=", ".join(argument.tensor for argument in arguments),
        needs=comment_lines(said, "* ", " * "),
        workspace=max(workspace, default=0),
        functions=len(launches),
        supported=supported_function(name, "the cubins", needs, str(shared_bytes)),
        intervals=len(plan.intervals),
        lasts=", ".join(str(interval.last) for interval in plan.intervals),
        programs=", ".join(str(interval.program) for interval in plan.intervals),
        names=", ".join(f'"{launch.name}"' for _, launch in launches),
        owners=", ".join(str(owner) for owner, _ in launches),
        shareds=", ".join(str(launch.dynamic_shared_bytes) for _, launch in launches),
        parameters=", ".join(f"CUdeviceptr {argument.tensor}" for argument in arguments),
        bits=" | ".join(argument.tensor for argument in arguments),
        cases="\n".join(cases),
    )


def _launch(at: int, launch: Launch) -> str:
    """Return the launch of one function: its grid follows from the extent, which is its last argument."""
    grid = str(launch.grid)
    if launch.growth is not None:
        blocks, iterations = launch.growth.blocks, launch.growth.iterations
        grid = f"{blocks} * ((extent + {iterations - 1}) / {iterations})"
    addresses = ", ".join([*(f"&{parameter.tensor}" for parameter in launch.parameters), "&extent"])
    return _LAUNCH.format(at=at, addresses=addresses, grid=grid, block=launch.block, shared=launch.dynamic_shared_bytes)
