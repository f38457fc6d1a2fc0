"""The C header of an exported GPU kernel: description, requirements, and inline functions that launch it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anatune.codegen.arithmetic import KernelArithmetic, format_comment
from anatune.emit.buffer import Buffer
from anatune.export.cuda.requirements import CudaRequirements
from anatune.templates.gpu.kernel import CudaKernel, Launch

ALIGNMENT_BYTES = 16
"""The alignment of tensors in device memory: the widest load."""

_HEADER = """\
/* {title}
 * for {device}; made by anatune.
 {arithmetic}
 *
 * Tensors are row-major and contiguous in device memory, aligned to {alignment} bytes; the last one is written and must
 * not overlap any other:
{tensors}
 {memory}
 *
 *   CUmodule module;  CUfunction {declared};
 *   if ({name}_supported(device) && !cuModuleLoad(&module, "{name}.cubin") && !{name}_get({taken}, module))
 *     {name}_launch({handed}, stream, {arguments});
 *
 {needs}
 * {name}.cu makes others:
 *   nvcc -arch={arch} -cubin -o {name}.cubin {name}.cu
 * Link with -lcuda.
 */
#ifndef {guard}_H
#define {guard}_H
#include <cuda.h>

#define {guard}_GRID {grid}
#define {guard}_BLOCK {block}
#define {guard}_DYNAMIC_SHARED_BYTES {shared}
{defines}
{supported}
{functions}
#endif
"""

_SUPPORTED = """\
/* Whether the device and the driver can load {what}: 1 or 0; after cuInit. */
static inline int {name}_supported(CUdevice device) {{
  int driver = 0, major = 0, minor = 0, shared = 0;
  return cuDriverGetVersion(&driver) == CUDA_SUCCESS && driver >= {driver} &&
         cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) == CUDA_SUCCESS &&
         cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) == CUDA_SUCCESS &&
         cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device) == CUDA_SUCCESS &&
         major == {major} && minor {compared} {minor} && shared >= {shared};
}}
"""

_ONE = """\
static inline CUresult {name}_get(CUfunction *kernel, CUmodule module) {{
  CUresult status = cuModuleGetFunction(kernel, module, "{name}");
#if {guard}_DYNAMIC_SHARED_BYTES > 0
  if (status == CUDA_SUCCESS)
    status = cuFuncSetAttribute(*kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, {guard}_DYNAMIC_SHARED_BYTES);
#endif
  return status;
}}

static inline CUresult {name}_launch(CUfunction kernel, CUstream stream, {parameters}) {{
  void *arguments[] = {{{addresses}}};
  if (({bits}) % {alignment}) return CUDA_ERROR_INVALID_VALUE;
  return cuLaunchKernel(kernel, {guard}_GRID, 1, 1, {guard}_BLOCK, 1, 1, {guard}_DYNAMIC_SHARED_BYTES, stream,
                        arguments, 0);
}}
"""
_SEVERAL = """\
static inline CUresult {name}_get(CUfunction *kernels, CUmodule module) {{
  CUresult status = CUDA_SUCCESS;
{found}
  return status;
}}

static inline CUresult {name}_launch(const CUfunction *kernels, CUstream stream, {parameters}) {{
  CUresult status = CUDA_SUCCESS;
{arrays}
  if (({bits}) % {alignment}) return CUDA_ERROR_INVALID_VALUE;
{launched}
  return status;
}}
"""
_FOUND = "  if (!status) status = cuModuleGetFunction(&kernels[{at}], module, {name!r});"
_ALLOWED = """\
  if (!status)
    status = cuFuncSetAttribute(kernels[{at}], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, {shared});"""
_LAUNCHED = """\
  if (!status)
    status = cuLaunchKernel(kernels[{at}], {grid}, 1, 1, {block}, 1, 1, {shared}, stream, arguments{at}, 0);"""
_NO_WORKSPACE = (
    "There is no workspace. Launches return at once (CUDA_ERROR_INVALID_VALUE: a tensor is not aligned), and may come "
    "from several threads."
)
_WORKSPACE = (
    "The workspace is device memory of {guard}_WORKSPACE_BYTES bytes, of any contents, aligned likewise; it may be "
    "used again once a launch has ended. "
)
_LAUNCHES = (
    "A launch is {count} kernels, one behind the other in the stream; it returns at once (CUDA_ERROR_INVALID_VALUE: a "
    "tensor is not aligned), and may come from several threads"
)

_SOURCE = """\
// {title}
// for {device}; made by anatune.
{arithmetic}
{launches}
"""
_CALLED = "{name}<<<{grid}, {block}, {shared}>>> (its C name is {name}); the order of its tensors: {order}."


def prototypes(kernel: CudaKernel, arguments: Sequence[Buffer]) -> dict[str, tuple[str, str]]:
    """Return the purpose and the C declaration of each function in the header."""
    name, several = kernel.name, len(kernel.launches) > 1
    parameters = ", ".join(f"CUdeviceptr {argument.tensor}" for argument in arguments)
    what, taken = ("kernels", "const CUfunction *kernels") if several else ("kernel", "CUfunction kernel")
    return {
        f"{name}_launch": (f"launches the {what}", f"CUresult {name}_launch({taken}, CUstream stream, {parameters});"),
        f"{name}_get": (f"finds the {what} in a module", f"CUresult {name}_get(CUfunction *{what}, CUmodule module);"),
        f"{name}_supported": ("whether a device can load the cubin", f"int {name}_supported(CUdevice device);"),
    }


def source_comment(kernel: CudaKernel, title: str, device: str, arithmetic: KernelArithmetic) -> str:
    """Return the comment at the beginning of the exported CUDA C."""
    return _SOURCE.format(
        title=title,
        device=device,
        arithmetic=format_comment(arithmetic.sentences(), "// "),
        launches="\n".join(
            format_comment(text, "// ")
            for text in (
                f"NVRTC, nvcc and clang take it, C++14 or later. In the namespace anatune_{kernel.name}:",
                *map(_launch_comment, kernel.launches),
            )
        ),
    )


def _launch_comment(launch: Launch) -> str:
    """Return the comment about a kernel's launch."""
    return _CALLED.format(
        name=launch.name,
        grid=launch.grid,
        block=launch.block,
        shared=launch.dynamic_shared_bytes,
        order=", ".join(parameter.tensor for parameter in launch.parameters),
    )


def cuda_header(
    kernel: CudaKernel,
    arguments: Sequence[Buffer],
    title: str,
    device: str,
    arithmetic: KernelArithmetic,
    needs: CudaRequirements,
    compiler: str,
) -> str:
    """Return the header of a kernel whose launch function takes `arguments`: operands, result, then a workspace.

    Parameters
    ----------
    title, device, compiler : str
        The description of the workload, the device, and the compiler of the cubin.
    """
    guard, several = kernel.name.upper(), len(kernel.launches) > 1
    requirements = f"{kernel.name}.cubin ({compiler}) is for {needs.capabilities()}"
    if kernel.dynamic_shared_bytes:
        requirements += f" with {kernel.dynamic_shared_bytes} bytes of shared memory a block"
    requirements += f", with a driver of {needs.drivers()}."
    return _HEADER.format(
        title=title,
        device=device,
        arithmetic=format_comment(arithmetic.sentences(), "* ", " * "),
        alignment=ALIGNMENT_BYTES,
        tensors=tensor_lines(argument for argument in arguments if argument != kernel.workspace),
        name=kernel.name,
        memory=format_comment(_memory(kernel, guard), "* ", " * "),
        declared=f"kernels[{guard}_KERNELS]" if several else "kernel",
        taken="kernels" if several else "&kernel",
        handed="kernels" if several else "kernel",
        defines=_defines(kernel, guard),
        functions=_functions(kernel, arguments, guard),
        arguments=", ".join(argument.tensor for argument in arguments),
        needs=format_comment(requirements, "* ", " * "),
        arch=kernel.arch,
        guard=guard,
        grid=kernel.grid,
        block=kernel.block,
        shared=kernel.dynamic_shared_bytes,
        supported=supported_function(kernel.name, f"{kernel.name}.cubin", needs, f"{guard}_DYNAMIC_SHARED_BYTES"),
    )


def tensor_lines(arguments: Iterable[Buffer]) -> str:
    """Return the lines about tensors in a header's comment."""
    return "\n".join(
        f" *   {argument.tensor}: {argument.dtype} {'x'.join(map(str, argument.shape)) or 'scalar'}"
        for argument in arguments
    )


def supported_function(name: str, what: str, needs: CudaRequirements, shared_bytes: str) -> str:
    """Return the C function that checks whether a device can load `what`, a cubin with these requirements."""
    major, minor = needs.compute_capability.split(".")
    compared = ">=" if needs.other_minors else "=="
    return _SUPPORTED.format(
        name=name, what=what, driver=needs.driver_cuda, major=major, minor=minor, compared=compared, shared=shared_bytes
    )


def _memory(kernel: CudaKernel, guard: str) -> str:
    """Return the text about workspace and launches in the header."""
    if len(kernel.launches) == 1:
        return _NO_WORKSPACE
    workspace_text = "" if kernel.workspace is None else _WORKSPACE.format(guard=guard)
    shared = "." if kernel.workspace is None else ", each with a workspace of its own."
    return workspace_text + _LAUNCHES.format(count=len(kernel.launches)) + shared


def _defines(kernel: CudaKernel, guard: str) -> str:
    if len(kernel.launches) == 1:
        return ""
    define = "" if kernel.workspace is None else f"#define {guard}_WORKSPACE_BYTES {kernel.workspace.num_bytes}\n"
    return f"#define {guard}_KERNELS {len(kernel.launches)}\n{define}"


def _functions(kernel: CudaKernel, arguments: Sequence[Buffer], guard: str) -> str:
    """Return the C functions that find and launch the kernels of the cubin."""
    common = {
        "name": kernel.name,
        "guard": guard,
        "parameters": ", ".join(f"CUdeviceptr {argument.tensor}" for argument in arguments),
        "bits": " | ".join(argument.tensor for argument in arguments),
        "alignment": ALIGNMENT_BYTES,
    }
    if len(kernel.launches) == 1:
        return _ONE.format(addresses=addresses(kernel.principal), **common)
    lookups, arrays, lines = [], [], []
    for index, launch in enumerate(kernel.launches):
        lookups.append(_FOUND.format(at=index, name=launch.name).replace("'", '"'))
        if launch.dynamic_shared_bytes:
            lookups.append(_ALLOWED.format(at=index, shared=launch.dynamic_shared_bytes))
        arrays.append(f"  void *arguments{index}[] = {{{addresses(launch)}}};")
        lines.append(
            _LAUNCHED.format(at=index, grid=launch.grid, block=launch.block, shared=launch.dynamic_shared_bytes)
        )
    return _SEVERAL.format(found="\n".join(lookups), arrays="\n".join(arrays), launched="\n".join(lines), **common)


def addresses(launch: Launch, *scalars: str) -> str:
    """Return the addresses of a launch's arguments: tensors, scalars, and the last two of Triton's functions.

    The last two are scratch memory and the memory of a profiler (null).
    """
    scratch = [] if launch.scratch_bytes is None else ["scratch" if launch.scratch_bytes else "null", "null"]
    names = [*(parameter.tensor for parameter in launch.parameters), *scalars, *scratch]
    return ", ".join(f"&{name}" for name in names)
