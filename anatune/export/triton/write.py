"""Writing the files of an exported schedule of the template `triton`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import NamedTuple

from anatune.codegen.arithmetic import find_arithmetic
from anatune.codegen.cuda.nvrtc import Cubin
from anatune.codegen.triton.artifact import make_launch
from anatune.codegen.triton.compiler import compiler_version
from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError
from anatune.export.cuda.requirements import CudaRequirements, requirements_of
from anatune.export.cuda.write import write_files
from anatune.export.triton.header import c_header
from anatune.export.triton.launcher import launcher_text, run_signature
from anatune.templates.gpu.kernel import Launch
from anatune.templates.triton import TRITON
from anatune.templates.triton.program.kernel import TritonProgram


class TritonExport(NamedTuple):
    """A written export: file names, launches in order, arguments of the launch function, requirements (NVIDIA only)."""

    images: tuple[str, ...]
    header: str
    launches: tuple[Launch, ...]
    arguments: tuple[Buffer, ...]
    needs: CudaRequirements | None


def write_launcher(schedule: Schedule, name: str, folder: Path) -> tuple[str, str]:
    """Write ``name.py``, Triton's source with the function ``run``; this does not need Triton.

    Returns
    -------
    (str, str)
        The name of the file, and the signature of its function.

    Raises
    ------
    SpaceError, BuildError
        The schedule contradicts itself, or the file cannot be written.
    """
    program = TRITON.program(schedule)
    arguments = _arguments(schedule, program)
    text = launcher_text(schedule.workload, program, arguments, find_arithmetic(schedule))
    write_files({f"{name}.py": text.encode()}, folder)
    return f"{name}.py", f"run({run_signature(program, arguments)})"


def write_triton(schedule: Schedule, images: Sequence[Cubin], name: str, folder: Path) -> TritonExport:
    """Write the machine code of a schedule's kernels, and ``name.h``, into the existing folder `folder`.

    Parameters
    ----------
    images : sequence of Cubin
        The machine code of the program's kernels, in order (`artifact.compile_images`).
    name : str
        A C identifier: the prefix of files and functions.

    Raises
    ------
    SpaceError, BuildError
        The schedule contradicts itself, or a file cannot be written.
    """
    program, hardware = TRITON.program(schedule), schedule.hardware
    kind = "hsaco" if hardware.vendor == "amd" else "cubin"
    launches = launches_of(program, images, name, kind)
    arguments = _arguments(schedule, program)
    needs = None if kind == "hsaco" else find_requirements(hardware.arch)
    texts = {
        "title": schedule.workload.describe(),
        "device": hardware.name,
        "arch": hardware.arch,
        "compiler": compiler_version(),
    }
    header = c_header(name, launches, arguments, program.result, texts, find_arithmetic(schedule), needs)
    contents = {launch.image: image.image for launch, image in zip(launches, images, strict=True)}
    write_files({**contents, f"{name}.h": header.encode()}, folder)
    return TritonExport(tuple(contents), f"{name}.h", tuple(launches), arguments, needs)


def launches_of(program: TritonProgram, images: Sequence[Cubin], name: str, kind: str) -> list[Launch]:
    """Return the launches of compiled kernels, each with its file: "name.cubin", then "name_1.cubin"."""
    return [
        make_launch(kernel, image, f"{name}{f'_{at}' if at else ''}.{kind}")
        for at, (kernel, image) in enumerate(zip(program.kernels, images, strict=True))
    ]


def _arguments(schedule: Schedule, program: TritonProgram) -> tuple[Buffer, ...]:
    """Return all parameters in order: operands, operands of the epilogue, results, then a workspace.

    The main result is the last tensor; a workspace after it keeps nothing between launches.
    """
    workspace, workload = () if program.workspace is None else (program.workspace,), schedule.workload
    tensors = (*workload.operands, *workload.further, workload.write)
    return (*(program.tensors[access.tensor] for access in tensors), *workspace)


def find_requirements(arch: str) -> CudaRequirements:
    """Return the requirements of Triton's cubins for `arch`; from sm_90 on they are for one architecture only.

    Source: Triton 3.9, ``sm_arch_from_capability`` and ``get_ptxas`` of ``backends/nvidia/compiler.py``.

    Raises
    ------
    BuildError
        Triton's assembler does not report its version.
    """
    number = int(re.sub(r"\D", "", arch))
    spec = util.find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).parent / "backends/nvidia/bin" / ("ptxas-blackwell" if number >= 100 else "ptxas")
    try:
        version_text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise BuildError(f"{program} cannot be run: {error.strerror or error}; reinstall Triton") from None
    release = re.search(r"release (\d+)\.(\d+)", version_text)
    if release is None:
        raise BuildError(f"{program} --version prints {version_text[:100]!r}, expected a release; reinstall Triton")
    return requirements_of(f"sm_{number}{'a' if number >= 90 else ''}", (int(release[1]), int(release[2])))
