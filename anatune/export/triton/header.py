"""The C header of exported machine code: functions that load and launch it with CUDA's driver or HIP.

The machine code is a Triton kernel of one schedule, or the kernels of a range of extents, from Triton or CUDA C.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent
from typing import NamedTuple

from anatune.codegen.arithmetic import KernelArithmetic, format_comment
from anatune.emit.buffer import Buffer
from anatune.export.cuda.header import ALIGNMENT_BYTES, addresses, supported_function, tensor_lines
from anatune.export.cuda.requirements import CudaRequirements
from anatune.templates.gpu.kernel import SCRATCH_ALIGNMENT, STATIC_SHARED_BYTES, Launch

_CUDA = {
    "include": "cuda.h", "library": "-lcuda", "status": "CUresult", "success": "CUDA_SUCCESS",
    "invalid": "CUDA_ERROR_INVALID_VALUE", "module": "CUmodule", "function": "CUfunction", "stream": "CUstream",
    "pointer": "CUdeviceptr", "device": "CUdevice", "load": "cuModuleLoad", "get": "cuModuleGetFunction",
    "launch": "cuLaunchKernel",
}  # fmt: skip
_HIP = {
    "include": "hip/hip_runtime_api.h", "library": "-lamdhip64", "status": "hipError_t", "success": "hipSuccess",
    "invalid": "hipErrorInvalidValue", "module": "hipModule_t", "function": "hipFunction_t", "stream": "hipStream_t",
    "pointer": "hipDeviceptr_t", "device": "hipDevice_t", "load": "hipModuleLoad", "get": "hipModuleGetFunction",
    "launch": "hipModuleLaunchKernel",
}  # fmt: skip

_HEADER = """\
/* {title}
 * for {target}; made by anatune, compiled by {compiler}.
 {arithmetic}
 *
{served} * Tensors are row-major and contiguous in device memory, aligned to {alignment} bytes; {result} is written
 * and must not overlap any other{largest}:
{tensors}
 {memory}
 *
 *   {name}_t kernels;
 *   if ({name}_supported(device) && !{name}_load(&kernels, "folder of these files"))
 *     {name}_launch(&kernels, stream, {arguments});
 *
 {needs}
 * Link with {library}.
 */
#ifndef {guard}_H
#define {guard}_H
#include <{include}>
#include <stdio.h>
#include <string.h>

#define {guard}_KERNELS {count}
{defines}
typedef struct {{
  {module} modules[{modules}];
  {function} kernels[{guard}_KERNELS];
}} {name}_t;

{supported}{choice}
/* Loads the machine code from a folder into the current context. */
static inline {status} {name}_load({name}_t *self, const char *folder) {{
  static const char *const files[{modules}] = {{{files}}};
  static const char *const names[{guard}_KERNELS] = {{{names}}};
  static const int owners[{guard}_KERNELS] = {{{owners}}};
{shareds}  {status} status = {success};
  char path[4096];
  int at;
  for (at = 0; at < {modules} && status == {success}; ++at) {{
    int length = snprintf(path, sizeof path, "%s/%s", folder, files[at]);
    if (length < 0 || length >= (int)sizeof path) return {invalid};
    status = {load}(&self->modules[at], path);
  }}
  for (at = 0; at < {guard}_KERNELS && status == {success}; ++at) {{
    status = {get}(&self->kernels[at], self->modules[owners[at]], names[at]);
{allowed}  }}
  return status;
}}

/* Returns at once ({invalid}: {refused}). */
static inline {status} {name}_launch(const {name}_t *self, {stream} stream, {parameters}) {{
  {status} status = {success};
{null}  if (({bits}) % {alignment}) return {invalid};
{launched}
  return status;
}}

#endif
"""
_SHARED = "  static const int shared[{count}] = {{{shared}}};\n"
_ALLOWED = """\
    if (status == CUDA_SUCCESS && shared[at])
      status = cuFuncSetAttribute(self->kernels[at], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared[at]);
"""
_LAUNCHED = """\
  void *arguments{at}[] = {{{addresses}}};
  if (status == {success})
    status = {launch}(self->kernels[{at}], {grid}, 1, 1, {block}, 1, 1, {shared}, stream, arguments{at}, 0);"""
_SERVED = """\
 * {programs} programs serve {axis} = {least} to {most}; {name}_program says which one serves an extent.
"""
_CHOICE = """
/* The number of the program that serves an extent; -1 outside the range. */
static inline int {name}_program(int extent) {{
  static const int last[{intervals}] = {{{lasts}}};
  static const unsigned char program[{intervals}] = {{{numbers}}};
  int low = 0, high = {intervals} - 1;
  if (extent < {guard}_LEAST || extent > {guard}_MOST) return -1;
  while (low < high) {{
    int middle = (low + high) / 2;
    if (extent <= last[middle]) high = middle;
    else low = middle + 1;
  }}
  return program[low];
}}
"""
_SUPPORTED_AMD = """\
/* Whether the device can load the machine code: 1 or 0. */
static inline int {name}_supported(hipDevice_t device) {{
  hipDeviceProp_t properties;
  return hipGetDeviceProperties(&properties, device) == hipSuccess &&
         !strncmp(properties.gcnArchName, "{arch}", {length});
}}
"""


class HeaderChoice(NamedTuple):
    """The assignment of launches to the extents of a range.

    Attributes
    ----------
    axis : str
        The varying axis.
    least : int
        The smallest extent.
    intervals : sequence of (int, int)
        The largest extent of each interval, ascending, and the number of its program.
    programs : sequence of int
        The number of the program to which each launch belongs.
    """

    axis: str
    least: int
    intervals: Sequence[tuple[int, int]]
    programs: Sequence[int]


def prototypes(
    name: str, launches: Sequence[Launch], arguments: Sequence[Buffer], amd: bool, *, ranged: bool = False
) -> dict[str, str]:
    """Return the C declarations of the header's functions by purpose."""
    words = _HIP if amd else _CUDA
    parameters = _parameters(arguments, launches, words, ranged)
    return {
        "launches the kernels": (
            f"{words['status']} {name}_launch(const {name}_t *self, {words['stream']} stream, {parameters});"
        ),
        "loads the machine code from a folder": f"{words['status']} {name}_load({name}_t *self, const char *folder);",
        "whether a device can load it": f"int {name}_supported({words['device']} device);",
    }


def c_header(
    name: str,
    launches: Sequence[Launch],
    arguments: Sequence[Buffer],
    result: str,
    texts: dict[str, str],
    arithmetic: KernelArithmetic,
    needs: CudaRequirements | None,
    choice: HeaderChoice | None = None,
) -> str:
    """Return the header of exported machine code.

    Parameters
    ----------
    launches : sequence of Launch
        The launches in order; `Launch.image` is the file.
    arguments : sequence of Buffer
        The tensors in the order of the launch function's parameters, then a workspace.
    texts : dict of str to str
        The texts "title", "device", "arch" and "compiler".
    needs : CudaRequirements or None
        The requirements; None for AMD's devices.
    choice : HeaderChoice, optional
        The assignment of launches to extents, if they are for a range.
    """
    words, guard = (_HIP if needs is None else _CUDA), name.upper()
    scratch, files = _scratch_bytes(launches), list(dict.fromkeys(launch.image for launch in launches))
    workspace = [one for one in arguments if one.tensor not in _tensors(arguments, result)]
    sizes = {"WORKSPACE": sum(one.num_bytes for one in workspace), "SCRATCH": scratch}
    defines = {f"{what}_BYTES": f"{size}ULL" for what, size in sizes.items() if size}
    most = max(launch.dynamic_shared_bytes for launch in launches)
    if needs is None:
        supported = _SUPPORTED_AMD.format(name=name, arch=texts["arch"], length=len(texts["arch"]))
        requirements, shareds = f"Runs on {texts['arch']} only.", ""
    else:
        supported = supported_function(name, "the machine code", needs, str(most))
        requirements = f"Runs on {needs.capabilities()}, with a driver of {needs.drivers()}."
        shared = (one.dynamic_shared_bytes for one in launches)
        shareds = _SHARED.format(
            count=len(launches), shared=", ".join(str(size if size > STATIC_SHARED_BYTES else 0) for size in shared)
        )
    calls = [_call(at, launch, words, choice) for at, launch in enumerate(launches)]
    launched, served, choice_function, scalars = "\n".join(calls), "", "", []
    if choice is not None:
        launched, scalars = _cases(name, choice, calls, words), ["extent"]
        defines |= {"LEAST": str(choice.least), "MOST": str(choice.intervals[-1][0])}
        served, choice_function = _describe_choice(name, choice)
    return _HEADER.format(
        name=name,
        guard=guard,
        **words,
        **{key: texts[key] for key in ("title", "compiler")},
        target=f"{texts['device']} ({texts['arch']})",
        arithmetic=format_comment(arithmetic.sentences(), "* ", " * "),
        served=served,
        largest=f"; at the largest {choice.axis}" if choice else "",
        choice=choice_function,
        refused="an extent out of range, a tensor that is not aligned" if choice else "a tensor is not aligned",
        alignment=ALIGNMENT_BYTES,
        result=result,
        tensors=tensor_lines(one for one in arguments if one not in workspace),
        memory=format_comment(_memory(guard, workspace, scratch), "* ", " * "),
        arguments=", ".join([*scalars, *(one.tensor for one in arguments), *(["scratch"] if scratch else [])]),
        needs=format_comment(requirements, "* ", " * "),
        count=len(launches),
        modules=len(files),
        defines="".join(f"#define {guard}_{what} {value}\n" for what, value in defines.items()),
        supported=supported,
        files=", ".join(f'"{file}"' for file in files),
        names=", ".join(f'"{launch.name}"' for launch in launches),
        owners=", ".join(str(files.index(launch.image)) for launch in launches),
        shareds=shareds,
        allowed=_ALLOWED if shareds else "",
        parameters=_parameters(arguments, launches, words, choice is not None),
        null="" if all(one.scratch_bytes is None for one in launches) else f"  {words['pointer']} null = 0;\n",
        bits=" | ".join(f"(unsigned long long){one.tensor}" for one in arguments),
        launched=launched,
    )


def _call(index: int, launch: Launch, words: dict[str, str], choice: HeaderChoice | None) -> str:
    """Return the C code that launches one kernel; in a range, the grid may depend on the extent."""
    grid, growth = str(launch.grid), launch.growth
    if growth is not None:
        grid = growth.expression("extent" if growth.each == 1 else "(long long)extent", "/")
    taken, shared = addresses(launch, *(["extent"] if choice else [])), launch.dynamic_shared_bytes
    return _LAUNCHED.format(at=index, addresses=taken, grid=grid, block=launch.block, shared=shared, **words)


def _describe_choice(name: str, choice: HeaderChoice) -> tuple[str, str]:
    """Return the header's text about a range, and the C function that returns the program for an extent."""
    of_range = {"name": name, "guard": name.upper(), "axis": choice.axis, "least": choice.least}
    served = _SERVED.format(**of_range, programs=max(choice.programs) + 1, most=choice.intervals[-1][0])
    lasts, numbers = (", ".join(map(str, values)) for values in zip(*choice.intervals, strict=True))
    return served, _CHOICE.format(**of_range, intervals=len(choice.intervals), lasts=lasts, numbers=numbers)


def _cases(name: str, choice: HeaderChoice, calls: Sequence[str], words: dict[str, str]) -> str:
    """Return the C statement that launches the program for an extent."""
    lines = [f"  switch ({name}_program(extent)) {{"]
    for number in sorted(set(choice.programs)):
        calls_of_program = [call for call, program in zip(calls, choice.programs, strict=True) if program == number]
        lines += [f"  case {number}: {{", indent("\n".join(calls_of_program), "  "), "    break;", "  }"]
    return "\n".join([*lines, "  default:", f"    return {words['invalid']};", "  }"])


def _tensors(arguments: Sequence[Buffer], result: str) -> list[str]:
    """Return the names of the arguments up to the result; those after it are workspaces."""
    names = [one.tensor for one in arguments]
    return names[: names.index(result) + 1]


def _scratch_bytes(launches: Sequence[Launch]) -> int:
    return max(launch.grid * (launch.scratch_bytes or 0) for launch in launches)


def _parameters(arguments: Sequence[Buffer], launches: Sequence[Launch], words: dict[str, str], ranged: bool) -> str:
    names = [one.tensor for one in arguments] + (["scratch"] if _scratch_bytes(launches) else [])
    return ("int extent, " if ranged else "") + ", ".join(f"{words['pointer']} {name}" for name in names)


def _memory(guard: str, workspace: Sequence[Buffer], scratch: int) -> str:
    """Return the text about the memory that a launch needs besides its tensors."""
    needed = []
    if workspace:
        needed.append(f"{workspace[0].tensor} of {guard}_WORKSPACE_BYTES")
    if scratch:
        needed.append(f"scratch of {guard}_SCRATCH_BYTES bytes, aligned to {SCRATCH_ALIGNMENT}")
    if not needed:
        return "There is no workspace. Launches may come from several threads."
    return (
        f"Device memory of any contents is needed beside them: {' and '.join(needed)}; launches that may run at once "
        "need their own."
    )
