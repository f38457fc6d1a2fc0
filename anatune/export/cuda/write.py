"""A GPU schedule for other programs: CUDA C, a cubin, and a small C header that launches it.

Nothing of anatune or TVM is needed to use them; no GPU is needed to write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from anatune.codegen.arithmetic import Arithmetic, arithmetic_of
from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.codegen.cuda.nvrtc import compiler_release, compiler_version
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError
from anatune.export.cuda.header import cuda_header, source_comment
from anatune.export.cuda.portable import portable
from anatune.export.cuda.requirements import CudaRequirements, requirements_of
from anatune.templates.gpu.kernel import CudaKernel


class CudaExport(NamedTuple):
    """What was written: file names, the kernel, its arguments in the header's order, what it does and needs."""

    source: str
    cubin: str
    header: str
    kernel: CudaKernel
    facts: CompilerFacts
    arguments: tuple[Buffer, ...]
    arithmetic: Arithmetic
    needs: CudaRequirements


def write_cuda(schedule: Schedule, name: str, folder: Path) -> CudaExport:
    """Write ``name.cu``, ``name.cubin`` and ``name.h`` into `folder`, which exists.

    Parameters
    ----------
    schedule : Schedule
        Of a GPU template.
    name : str
        A C identifier: the kernel's function, prefix of the header's.

    Raises
    ------
    SpaceError, BuildError, MissingDependencyError
        As `lower.cuda_kernel` and `nvrtc.compile_cuda`; BuildError also if a file cannot be written.
    """
    kernel = portable(cuda_kernel(schedule), name)
    title, arithmetic = schedule.workload.describe(), arithmetic_of(schedule)
    device = f"{schedule.hardware.name} ({schedule.hardware.arch})"
    cubin = compile_kernel(kernel)
    arguments = _in_order(schedule.workload, kernel)
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
    """Write files, given by their names, into a folder.

    Raises
    ------
    BuildError
        One cannot be written.
    """
    for name, contents in files.items():
        try:
            (folder / name).write_bytes(contents)
        except OSError as error:
            raise BuildError(f"{folder / name}: {error.strerror or error}; choose another --output") from None


def _in_order(workload: Workload, kernel: CudaKernel) -> tuple[Buffer, ...]:
    """Return all parameters in the workload's order: operands, epilogue's operands, result; then a workspace."""
    own = () if kernel.workspace is None else (kernel.workspace,)
    return (*(kernel.tensors[a.tensor] for a in workload.tensors), *own)
