"""Exporting a GPU schedule as CUDA C, a cubin, and a small C header that launches it.

Using the files does not need anatune or TVM. Writing them does not need a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from anatune.codegen.arithmetic import KernelArithmetic, find_arithmetic
from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.codegen.cuda.nvrtc import compiler_release, compiler_version
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError
from anatune.export.cuda.header import cuda_header, source_comment
from anatune.export.cuda.portable import make_portable
from anatune.export.cuda.requirements import CudaRequirements, requirements_of
from anatune.templates.gpu.kernel import CudaKernel


class CudaExport(NamedTuple):
    """A written export: file names, the kernel, its arguments in the header's order, arithmetic and requirements."""

    source: str
    cubin: str
    header: str
    kernel: CudaKernel
    facts: CompilerFacts
    arguments: tuple[Buffer, ...]
    arithmetic: KernelArithmetic
    needs: CudaRequirements


def write_cuda(schedule: Schedule, name: str, folder: Path) -> CudaExport:
    """Write ``name.cu``, ``name.cubin`` and ``name.h`` into `folder`, which exists.

    Parameters
    ----------
    schedule : Schedule
        A schedule of a GPU template.
    name : str
        A C identifier: the name of the kernel, and the prefix of the header's functions.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        The errors of `lower.cuda_kernel` and `nvrtc.compile_cuda`; BuildError also if a file cannot be written.
    """
    kernel = make_portable(cuda_kernel(schedule), name)
    title, arithmetic = schedule.workload.describe(), find_arithmetic(schedule)
    device = f"{schedule.hardware.name} ({schedule.hardware.arch})"
    cubin = compile_kernel(kernel)
    arguments = _order_parameters(schedule.workload, kernel)
    needs = requirements_of(kernel.arch, compiler_release())
    header = cuda_header(kernel, arguments, title, device, arithmetic, needs, compiler_version())
    files = {
        f"{name}.cu": (source_comment(kernel, title, device, arithmetic) + kernel.source).encode(),
        f"{name}.cubin": cubin.image,
        f"{name}.h": header.encode(),
    }
    write_files(files, folder)
    source, binary, text = files
    return CudaExport(source, binary, text, kernel, cubin.facts, arguments, arithmetic, needs)


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files, given as contents by name, into a folder.

    Raises
    ------
    BuildError
        A file cannot be written.
    """
    for name, contents in files.items():
        try:
            (folder / name).write_bytes(contents)
        except OSError as error:
            raise BuildError(f"{folder / name} not written: {error.strerror or error}; name another --output") from None


def _order_parameters(workload: Workload, kernel: CudaKernel) -> tuple[Buffer, ...]:
    """Return all parameters in order: operands, operands of the epilogue, result, then a workspace."""
    workspace = () if kernel.workspace is None else (kernel.workspace,)
    return (*(kernel.tensors[a.tensor] for a in workload.tensors), *workspace)
