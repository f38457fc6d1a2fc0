"""The C header of an exported GPU kernel: what it computes, what it needs, and inline functions that launch it."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.codegen.arithmetic import Arithmetic, comment_lines
from anatune.codegen.buffer import Buffer
from anatune.codegen.cuda.export.requirements import CudaRequirements
from anatune.codegen.cuda.kernel import CudaKernel

__all__ = ["ALIGNMENT_BYTES", "cuda_header", "prototypes", "source_comment"]

ALIGNMENT_BYTES = 16
"""Of tensors in device memory: the widest load."""

_HEADER = """\
/* {title}
 * for {device}; made by anatune.
 {arithmetic}
 *
 * Tensors are row-major and contiguous in device memory, aligned to {alignment} bytes; the last one is written and must
 * not overlap any other:
{tensors}
 * There is no workspace. Launches return at once (CUDA_ERROR_INVALID_VALUE: a tensor is not aligned), and may come from
 * several threads.
 *
 *   CUmodule module;  CUfunction kernel;
 *   if ({name}_supported(device) && !cuModuleLoad(&module, "{name}.cubin") && !{name}_get(&kernel, module))
 *     {name}_launch(kernel, stream, {arguments});
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

/* Whether the device and the driver can load {name}.cubin: 1 or 0; after cuInit. */
static inline int {name}_supported(CUdevice device) {{
  int driver = 0, major = 0, minor = 0, shared = 0;
  return cuDriverGetVersion(&driver) == CUDA_SUCCESS && driver >= {driver_cuda} &&
         cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) == CUDA_SUCCESS &&
         cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) == CUDA_SUCCESS &&
         cuDeviceGetAttribute(&shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device) == CUDA_SUCCESS &&
         major == {major} && minor {compared} {minor} && shared >= {guard}_DYNAMIC_SHARED_BYTES;
}}

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

#endif
"""

_SOURCE = """\
// {title}
// for {device}; made by anatune.
{arithmetic}
// NVRTC, nvcc and clang take it, C++14 or later. {name}<<<{grid}, {block}, {shared}>>>, in the namespace anatune_{name}
// (its C name is {name}); the order of its tensors: {order}.
"""


def prototypes(name: str, arguments: Sequence[Buffer]) -> dict[str, tuple[str, str]]:
    """Return the header's functions: name -> what it does, and its C declaration."""
    parameters = ", ".join(f"CUdeviceptr {one.tensor}" for one in arguments)
    return {
        f"{name}_launch": (
            "launches the kernel",
            f"CUresult {name}_launch(CUfunction kernel, CUstream stream, {parameters});",
        ),
        f"{name}_get": ("finds the kernel in a module", f"CUresult {name}_get(CUfunction *kernel, CUmodule module);"),
        f"{name}_supported": ("whether a device can load the cubin", f"int {name}_supported(CUdevice device);"),
    }


def source_comment(kernel: CudaKernel, title: str, device: str, arithmetic: Arithmetic) -> str:
    """Return the comment that the exported CUDA C begins with."""
    return _SOURCE.format(
        title=title,
        device=device,
        arithmetic=comment_lines(arithmetic.sentences(), "// "),
        name=kernel.name,
        grid=kernel.grid,
        block=kernel.block,
        shared=kernel.dynamic_shared_bytes,
        order=", ".join(one.tensor for one in kernel.parameters),
    )


def cuda_header(
    kernel: CudaKernel,
    arguments: Sequence[Buffer],
    title: str,
    device: str,
    arithmetic: Arithmetic,
    needs: CudaRequirements,
    compiler: str,
) -> str:
    """Return the header of a kernel whose launch function takes `arguments`, the written one last.

    Parameters
    ----------
    title, device, compiler : str
        What it computes, what it is for, what made the cubin.
    """
    rows = [f" *   {one.tensor}: {one.dtype} {'x'.join(map(str, one.shape)) or 'scalar'}" for one in arguments]
    said = f"{kernel.name}.cubin ({compiler}) is for {needs.capabilities()}"
    if kernel.dynamic_shared_bytes:
        said += f" with {kernel.dynamic_shared_bytes} bytes of shared memory a block"
    said += f", with a driver of {needs.drivers()}."
    major, minor = needs.compute_capability.split(".")
    return _HEADER.format(
        title=title,
        device=device,
        arithmetic=comment_lines(arithmetic.sentences(), "* ", " * "),
        alignment=ALIGNMENT_BYTES,
        tensors="\n".join(rows),
        name=kernel.name,
        arguments=", ".join(one.tensor for one in arguments),
        needs=comment_lines(said, "* ", " * "),
        arch=kernel.arch,
        guard=kernel.name.upper(),
        grid=kernel.grid,
        block=kernel.block,
        shared=kernel.dynamic_shared_bytes,
        driver_cuda=needs.driver_cuda,
        major=major,
        minor=minor,
        compared=">=" if needs.other_minors else "==",
        parameters=", ".join(f"CUdeviceptr {one.tensor}" for one in arguments),
        addresses=", ".join(f"&{one.tensor}" for one in kernel.parameters),
        bits=" | ".join(one.tensor for one in arguments),
    )
