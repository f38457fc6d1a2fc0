"""The result of a GPU build: a cubin on disk, its launches, and the compiler's facts."""

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
from anatune.codegen.cuda.probes import make_multiply_add
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
"""False: builds need no separate processes, because TVM and NVRTC raise errors and do not print."""

_REFERENCE_CHAINS, _REFERENCE_WARPS, _REFERENCE_BLOCKS_PER_SM = 8, 8, 2


class GpuArtifact(Launches, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A compiled GPU kernel. Immutable; JSON both ways; also an entry of a manifest.

    Attributes
    ----------
    schedule_key : str
        Key of its schedule; "" for probes.
    image : str
        Path of the cubin; in a manifest relative to the manifest's folder.
    image_sha256 : str
        SHA-256 of the cubin, hexadecimal.
    name, arch : str
        Name of the principal function, and the architecture that it was compiled for ("sm_90").
    parameters : tuple of Buffer
        Pointers in the order of the function's parameters.
    result : str
        Name of the tensor that the kernel writes.
    grid, block : int
        Number of blocks of the grid, and of threads of a block, both along x.
    shared_bytes, dynamic_shared_bytes : int
        Shared memory of a block, and the part of it that the launch requests, bytes.
    facts : CompilerFacts
        The compiler's facts about the principal function.
    before, after : tuple of Launch
        Further functions of the cubin that are launched before and after the principal one, in this order.
    workspace : Buffer or None
        Memory that the principal function writes and those after it read.
    ranged : Ranged or None
        The axis whose extent every function takes as its last argument; `at` returns the launches for an extent.
    growth : Growth or None
        How `grid` depends on the extent.
    extent : int or None
        The extent that `at` was called with.
    scratch_bytes : int or None
        Scratch memory of the principal function, see `Launch`.
    error : float
        Largest error that its arithmetic explains, relative to the result's scale, if it is not a plain sum.
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

    def with_files(self, map_path: Callable[[str], str]) -> GpuArtifact:
        """Return the artifact with other paths of its machine code; `map_path` maps old paths to new ones."""
        launches_by_kind = {
            kind: tuple(
                msgspec.structs.replace(launch, image=map_path(launch.image)) if launch.image else launch
                for launch in launches
            )
            for kind, launches in (("before", self.before), ("after", self.after))
        }
        return msgspec.structs.replace(self, image=map_path(self.image), **launches_by_kind)


def write_artifact(kernel: CudaKernel, cubin: Cubin, folder: Path) -> GpuArtifact:
    """Write a cubin into `folder`, under a name derived from its contents, and return its artifact.

    Raises
    ------
    BuildError
        The file cannot be written.
    """
    path, digest = write_image(cubin, folder)
    common = msgspec.structs.asdict(kernel)
    del common["source"]
    common |= {"arch": cubin.arch, "shared_bytes": cubin.facts.shared_bytes + kernel.dynamic_shared_bytes}
    return GpuArtifact(image=path, image_sha256=digest, facts=cubin.facts, **common)


def write_image(cubin: Cubin, folder: Path) -> tuple[str, str]:
    """Write machine code into `folder`, under a name derived from its contents; return its path and its hash.

    Raises
    ------
    BuildError
        The file cannot be written.
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
        The device is not an NVIDIA GPU, or NVRTC does not know its architecture.
    MissingDependencyError
        TVM or NVRTC is not installed.
    """
    if limit := vendor_limit(hardware):
        raise BuildError(limit)
    check_all(partial(check_arch, hardware.arch), import_tvm)


def set_up() -> None:
    """Load what every build needs, once in a process."""
    import_tvm()
    compiler_version()


def build_schedule(schedule: Schedule, folder: Path, *, threads: int = 1) -> GpuArtifact:
    """Generate and compile a schedule of a GPU template into `folder`.

    Parameters
    ----------
    threads : int
        Ignored; all builders have this parameter.

    Raises
    ------
    SpaceError
        The schedule contradicts itself, or the compiled kernel needs more than the device has.
    BuildError, MissingDependencyError
        The schedule cannot be generated or compiled, or TVM or NVRTC is not installed.
    """
    kernel = cuda_kernel(schedule)
    artifact = write_artifact(kernel, compile_kernel(kernel), folder)
    check_resources(artifact, gpu_of(schedule))
    return artifact


def compile_facts(schedule: Schedule) -> CompilerFacts:
    """Generate and compile `schedule`, using the user's cache of cubins, and return the compiler's facts.

    Raises
    ------
    BuildError, SpaceError, MissingDependencyError
        The schedule cannot be generated or compiled, or a package is missing.
    """
    kernel = cuda_kernel(schedule)
    return compile_kernel(kernel).facts.with_dynamic(kernel.dynamic_shared_bytes)


def compile_entry(schedule: Schedule, folder: Path, *, threads: int = 1) -> CompilerFacts:
    """Call `compile_facts` with the signature of builder processes (`anatune.measure.run.build_processes`)."""
    return compile_facts(schedule)


def build_reference(hardware: GpuSpec, folder: Path) -> GpuArtifact:
    """Build the reference kernel, which is timed beside all candidates: multiply-adds on every SM, without memory.

    Raises
    ------
    BuildError, MissingDependencyError
        As in `build_schedule`.
    """
    blocks = _REFERENCE_BLOCKS_PER_SM * hardware.compute.num_sms
    kernel = make_multiply_add(hardware.arch, "float32", _REFERENCE_CHAINS, _REFERENCE_WARPS, blocks).kernel
    return write_artifact(kernel, compile_kernel(kernel), folder)


class CompiledKernel(Protocol):
    """The attributes of a compiled kernel that `check_resources` needs."""

    @property
    def block(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def facts(self) -> CompilerFacts: ...


def check_resources(artifact: CompiledKernel, hardware: GpuSpec) -> None:
    """Raise SpaceError for a compiled kernel that the device cannot launch.

    Registers are allocated to warps, in the device's own units.
    """
    compute, registers = hardware.compute, hardware.registers
    if artifact.block > compute.max_threads_per_block:
        raise SpaceError(
            f"the kernel has {artifact.block} threads a block, {hardware.name} allows at most "
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
    """Return the machine code of a kernel, or of one of its functions that has its own file.

    Raises
    ------
    RunError
        The file cannot be read, or was changed.
    """
    try:
        image = read_file(artifact.image)
    except OSError as error:
        raise RunError(f"{artifact.image}: {reason(error)}") from None
    if hashlib.sha256(image).hexdigest() != artifact.image_sha256:
        raise RunError(f"{artifact.image} is damaged: its contents have changed since it was built; build it again")
    return image
