"""The C header of exported machine code of Triton's: functions that load and launch it, by CUDA's driver or HIP."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.codegen.arithmetic import Arithmetic, comment_lines
from anatune.codegen.cuda.export.header import supported_function, tensor_lines
from anatune.codegen.cuda.export.requirements import CudaRequirements
from anatune.emit.buffer import Buffer
from anatune.templates.gpu.kernel import SCRATCH_ALIGNMENT, STATIC_SHARED_BYTES, Launch

__all__ = ["ALIGNMENT_BYTES", "c_header", "prototypes"]

ALIGNMENT_BYTES = 16
"""Of tensors: what kernels are compiled for."""

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
 * Tensors are row-major and contiguous in device memory, aligned to {alignment} bytes; {result} is written and must not
 * overlap any other:
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
  {module} modules[{guard}_KERNELS];
  {function} kernels[{guard}_KERNELS];
}} {name}_t;

{supported}
/* Loads the machine code from a folder into the current context. */
static inline {status} {name}_load({name}_t *self, const char *folder) {{
  static const char *const files[{guard}_KERNELS] = {{{files}}};
  static const char *const names[{guard}_KERNELS] = {{{names}}};
  {status} status = {success};
  char path[4096];
  int at;
  for (at = 0; at < {guard}_KERNELS && status == {success}; ++at) {{
    int length = snprintf(path, sizeof path, "%s/%s", folder, files[at]);
    if (length < 0 || length >= (int)sizeof path) return {invalid};
    status = {load}(&self->modules[at], path);
    if (status == {success}) status = {get}(&self->kernels[at], self->modules[at], names[at]);
  }}
{allowed}  return status;
}}

/* Returns at once ({invalid}: a tensor is not aligned). */
static inline {status} {name}_launch(const {name}_t *self, {stream} stream, {parameters}) {{
  {status} status = {success};
  void *null = 0;
{arrays}
  if (({bits}) % {alignment}) return {invalid};
{launched}
  return status;
}}

#endif
"""
_ALLOWED = """\
  if (status == {success})
    status = cuFuncSetAttribute(self->kernels[{at}], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, {shared});
"""
_LAUNCHED = """\
  if (status == {success})
    status = {launch}(self->kernels[{at}], {grid}, 1, 1, {block}, 1, 1, {shared}, stream, arguments{at}, 0);"""
_SUPPORTED_AMD = """\
/* Whether the device can load the machine code: 1 or 0. */
static inline int {name}_supported(hipDevice_t device) {{
  hipDeviceProp_t properties;
  return hipGetDeviceProperties(&properties, device) == hipSuccess &&
         !strncmp(properties.gcnArchName, "{arch}", {length});
}}
"""


def prototypes(name: str, launches: Sequence[Launch], arguments: Sequence[Buffer], amd: bool) -> dict[str, str]:
    """Return the header's functions: what each does -> its C declaration."""
    words = _HIP if amd else _CUDA
    parameters = _parameters(arguments, launches, words)
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
    told: dict[str, str],
    arithmetic: Arithmetic,
    needs: CudaRequirements | None,
) -> str:
    """Return the header.

    Parameters
    ----------
    launches : sequence of Launch
        In order; `Launch.image` is the file.
    arguments : sequence of Buffer
        Tensors in the order in which the launch takes them, then a workspace.
    told : dict of str to str
        "title", "device", "arch", "compiler".
    needs : CudaRequirements or None
        None: the device is AMD's.
    """
    words, guard = (_HIP if needs is None else _CUDA), name.upper()
    own = {"name": name, "guard": guard, **words}
    scratch = _scratch_bytes(launches)
    workspace = [one for one in arguments if one.tensor not in _tensors(arguments, result)]
    sizes = {"WORKSPACE": sum(one.num_bytes for one in workspace), "SCRATCH": scratch}
    most = max(launch.dynamic_shared_bytes for launch in launches)
    if needs is None:
        supported = _SUPPORTED_AMD.format(name=name, arch=told["arch"], length=len(told["arch"]))
        said = f"Runs on {told['arch']} only."
    else:
        supported = supported_function(name, "the machine code", needs, str(most))
        said = f"Runs on {needs.capabilities()}, with a driver of {needs.drivers()}."
    return _HEADER.format(
        **own,
        **{key: told[key] for key in ("title", "compiler")},
        target=f"{told['device']} ({told['arch']})",
        arithmetic=comment_lines(arithmetic.sentences(), "* ", " * "),
        alignment=ALIGNMENT_BYTES,
        result=result,
        tensors=tensor_lines(one for one in arguments if one not in workspace),
        memory=comment_lines(_memory(guard, workspace, scratch), "* ", " * "),
        arguments=", ".join([*(one.tensor for one in arguments), *(["scratch"] if scratch else [])]),
        needs=comment_lines(said, "* ", " * "),
        count=len(launches),
        defines="".join(f"#define {guard}_{what}_BYTES {size}ULL\n" for what, size in sizes.items() if size),
        supported=supported,
        files=", ".join(f'"{launch.image}"' for launch in launches),
        names=", ".join(f'"{launch.name}"' for launch in launches),
        allowed="".join(
            _ALLOWED.format(at=at, shared=launch.dynamic_shared_bytes, **words)
            for at, launch in enumerate(launches)
            if needs is not None and launch.dynamic_shared_bytes > STATIC_SHARED_BYTES
        ),
        parameters=_parameters(arguments, launches, words),
        arrays="\n".join(_array(at, launch) for at, launch in enumerate(launches)),
        bits=" | ".join(f"(unsigned long long){one.tensor}" for one in arguments),
        launched="\n".join(
            _LAUNCHED.format(at=at, grid=one.grid, block=one.block, shared=one.dynamic_shared_bytes, **words)
            for at, one in enumerate(launches)
        ),
    )


def _tensors(arguments: Sequence[Buffer], result: str) -> list[str]:
    """Return the names of the arguments up to the result: what is behind it is a workspace."""
    names = [one.tensor for one in arguments]
    return names[: names.index(result) + 1]


def _scratch_bytes(launches: Sequence[Launch]) -> int:
    return max(launch.grid * (launch.scratch_bytes or 0) for launch in launches)


def _parameters(arguments: Sequence[Buffer], launches: Sequence[Launch], words: dict[str, str]) -> str:
    names = [one.tensor for one in arguments] + (["scratch"] if _scratch_bytes(launches) else [])
    return ", ".join(f"{words['pointer']} {name}" for name in names)


def _array(at: int, launch: Launch) -> str:
    """Return the array of a launch's arguments: tensors, scratch memory, and memory of a profiler that is not there."""
    scratch = "&scratch" if launch.scratch_bytes else "&null"
    addresses = ", ".join([*(f"&{parameter.tensor}" for parameter in launch.parameters), scratch, "&null"])
    return f"  void *arguments{at}[] = {{{addresses}}};"


def _memory(guard: str, workspace: Sequence[Buffer], scratch: int) -> str:
    """Say what memory a launch needs beside its tensors."""
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
