"""What a GPU build leaves behind: a cubin on the disk, how to launch it, what the compiler said."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from anatune.codegen.compat import import_tvm
from anatune.codegen.cuda.build_cache import compile_kernel
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.codegen.cuda.nvrtc import FLAGS, Cubin, check_arch, compiler_version
from anatune.codegen.cuda.probes import multiply_add
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.generation import vendor_limit
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError, RunError, SpaceError
from anatune.files import read_file, reason
from anatune.named import check_all
from anatune.templates.gpu.kernel import CudaKernel, Launch, Launches
from anatune.templates.gpu.ranged import Growth, Ranged
from anatune.templates.gpu.rules import gpu_of

__all__ = [
    "APART",
    "FLAGS",
    "GpuArtifact",
    "build_reference",
    "build_schedule",
    "check_resources",
    "check_target",
    "compile_entry",
    "compile_facts",
    "compiler_version",
    "read_image",
    "set_up",
    "write_artifact",
    "write_image",
]

APART = False
"""TVM and NVRTC raise errors and write nothing: they may run in the user's process."""

_REFERENCE_CHAINS, _REFERENCE_WARPS, _REFERENCE_BLOCKS_PER_SM = 8, 8, 2


class GpuArtifact(Launches, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A compiled GPU kernel. Immutable; JSON both ways: also an entry of a manifest.

    Attributes
    ----------
    schedule_key : str
        Key of the schedule it was built from ("" for probes).
    image : str
        Path of the cubin; in a manifest relative to its folder.
    image_sha256 : str
        Hash of its bytes, hexadecimal.
    name, arch : str
        The principal function; what it was compiled for ("sm_90").
    parameters : tuple of Buffer
        Pointers in the order in which the function takes them.
    result : str
        Tensor that the kernel writes.
    grid, block : int
        Blocks of the grid, threads of a block; both along x.
    shared_bytes, dynamic_shared_bytes : int
        Shared memory of a block; the part of it that the launch asks for.
    facts : CompilerFacts
        What the compiler said about the principal function.
    before, after : tuple of Launch
        Other functions of the cubin that are launched, in this order, before and after the principal one.
    workspace : Buffer or None
        Memory that the principal one writes and those after it read.
    ranged : Ranged or None
        The axis whose extent every function takes as its last argument; `at` returns what is launched for an extent.
    growth : Growth or None
        How `grid` follows from the extent.
    extent : int or None
        What `at` was asked for.
    scratch_bytes : int or None
        Of the principal function, see `Launch`.
    error : float
        Largest error, over the result's scale, that its arithmetic explains where that is no plain sum's.
    """

    schedule_key: str
    image: str
    image_sha256: str
    name: str
    arch: str
    parameters: tuple[Buffer, ...]
    result: str
    grid: int
    block: int
    shared_bytes: int
    dynamic_shared_bytes: int
    facts: CompilerFacts
    before: tuple[Launch, ...] = ()
    after: tuple[Launch, ...] = ()
    workspace: Buffer | None = None
    ranged: Ranged | None = None
    growth: Growth | None = None
    extent: int | None = None
    scratch_bytes: int | None = None
    error: float = 0.0

    def with_files(self, place: Callable[[str], str]) -> GpuArtifact:
        """Return the same with the files of its machine code at other places: path -> path."""
        own = {
            kind: tuple(
                msgspec.structs.replace(launch, image=place(launch.image)) if launch.image else launch
                for launch in launches
            )
            for kind, launches in (("before", self.before), ("after", self.after))
        }
        return msgspec.structs.replace(self, image=place(self.image), **own)


def write_artifact(kernel: CudaKernel, cubin: Cubin, folder: Path) -> GpuArtifact:
    """Write a cubin into `folder`, under a name that its contents give, and return its artifact.

    Raises
    ------
    BuildError
        It cannot be written.
    """
    path, digest = write_image(cubin, folder)
    common = msgspec.structs.asdict(kernel)
    del common["source"]
    common |= {"arch": cubin.arch, "shared_bytes": cubin.facts.shared_bytes + kernel.dynamic_shared_bytes}
    return GpuArtifact(image=path, image_sha256=digest, facts=cubin.facts, **common)


def write_image(cubin: Cubin, folder: Path) -> tuple[str, str]:
    """Write machine code into `folder`, under a name that its contents give; return its path and its hash.

    Raises
    ------
    BuildError
        It cannot be written.
    """
    digest = hashlib.sha256(cubin.image).hexdigest()
    path = folder / f"{digest[:16]}.{'hsaco' if cubin.arch.startswith('gfx') else 'cubin'}"
    try:
        path.write_bytes(cubin.image)
    except OSError as error:
        raise BuildError(f"{path}: {error.strerror or error}; free some space or choose another folder") from None
    return str(path), digest


def check_target(hardware: GpuSpec) -> None:
    """Raise an error if nothing can be compiled for a device.

    Raises
    ------
    BuildError
        It is no NVIDIA GPU, or NVRTC does not know its architecture.
    MissingDependencyError
        TVM or NVRTC is not installed.
    """
    if limit := vendor_limit(hardware):
        raise BuildError(limit)
    check_all(partial(check_arch, hardware.arch), import_tvm)


def set_up() -> None:
    """Load what every build needs, once a process."""
    import_tvm()
    compiler_version()


def build_schedule(schedule: Schedule, folder: Path, *, threads: int = 1) -> GpuArtifact:
    """Generate and compile a schedule of a GPU template into `folder`.

    Parameters
    ----------
    threads : int
        Not used: it belongs to every builder.

    Raises
    ------
    SpaceError
        The schedule contradicts itself, or the compiled kernel needs more of the device than there is.
    BuildError, MissingDependencyError
        It cannot be generated or compiled; TVM or NVRTC is not installed.
    """
    kernel = cuda_kernel(schedule)
    artifact = write_artifact(kernel, compile_kernel(kernel), folder)
    check_resources(artifact, gpu_of(schedule))
    return artifact


def compile_facts(schedule: Schedule) -> CompilerFacts:
    """Generate and compile `schedule`, through the user's cache of cubins, and return what the compiler says.

    Raises
    ------
    BuildError, SpaceError, MissingDependencyError
        It cannot be generated or compiled, or a package is missing.
    """
    kernel = cuda_kernel(schedule)
    return compile_kernel(kernel).facts.with_dynamic(kernel.dynamic_shared_bytes)


def compile_entry(schedule: Schedule, folder: Path, *, threads: int = 1) -> CompilerFacts:
    """`compile_facts` as builder processes call it (`anatune.measure.run.build_processes`)."""
    return compile_facts(schedule)


def build_reference(hardware: GpuSpec, folder: Path) -> GpuArtifact:
    """Build the kernel that is timed beside all candidates: multiply-adds on every multiprocessor, no memory.

    Raises
    ------
    BuildError, MissingDependencyError
        As `build_schedule`.
    """
    blocks = _REFERENCE_BLOCKS_PER_SM * hardware.compute.num_sms
    kernel = multiply_add(hardware.arch, "float32", _REFERENCE_CHAINS, _REFERENCE_WARPS, blocks).kernel
    return write_artifact(kernel, compile_kernel(kernel), folder)


class Compiled(Protocol):
    """What is asked of a compiled kernel."""

    @property
    def block(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def facts(self) -> CompilerFacts: ...


def check_resources(artifact: Compiled, hardware: GpuSpec) -> None:
    """Raise SpaceError for a kernel that no launch on the device would accept, by what the compiler said.

    Registers are given to warps, in units of the device's own.
    """
    compute, registers = hardware.compute, hardware.registers
    if artifact.block > compute.max_threads_per_block:
        raise SpaceError(
            f"the kernel has {artifact.block} threads a block, {hardware.name} takes at most "
            f"{compute.max_threads_per_block}; choose smaller tiles"
        )
    most_bytes = hardware.shared_memory.per_block_bytes
    if artifact.shared_bytes > most_bytes:
        raise SpaceError(
            f"the compiled kernel needs {artifact.shared_bytes} bytes of shared memory a block, {hardware.name} has at "
            f"most {most_bytes} (opt-in); choose smaller tiles"
        )
    warps = -(-artifact.block // compute.warp_size)
    unit = registers.allocation_unit
    needed = warps * (-(-artifact.facts.registers * compute.warp_size // unit) * unit)
    if needed > registers.per_block:
        raise SpaceError(
            f"the compiled kernel needs {needed} registers a block ({artifact.facts.registers} a thread), "
            f"{hardware.name} has {registers.per_block}; choose smaller tiles"
        )


def read_image(artifact: GpuArtifact | Launch) -> bytes:
    """Return the machine code of a kernel, or that of one of its functions which has a file of its own.

    Raises
    ------
    RunError
        The file cannot be read, or is not what was written.
    """
    try:
        image = read_file(artifact.image)
    except OSError as error:
        raise RunError(f"{artifact.image}: {reason(error)}") from None
    if hashlib.sha256(image).hexdigest() != artifact.image_sha256:
        raise RunError(f"{artifact.image} is damaged: its contents are not what was built; build it again")
    return image
