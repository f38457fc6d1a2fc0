"""A built CPU kernel in this process, which is called on NumPy arrays in the workload's layouts.

The module also has the library calls that build, verify and inspect a CPU schedule.
"""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anatune.codegen.compat import import_tvm
from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.codegen.cpu.lower import build_schedule, inspect_schedule
from anatune.codegen.pool import call_parallel, set_threads
from anatune.core.accuracy import error_of
from anatune.core.hardware.dot import tile_features
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.emit.buffer import Buffer
from anatune.errors import BuildError, RunError
from anatune.files import remove_folder_with, scratch_folder
from anatune.measure.cpu.blocks import ALIGNMENT_BYTES, ArgumentBlock, tensor_of
from anatune.measure.cpu.detect import detect_cpu
from anatune.measure.cpu.features import allow_tiles
from anatune.measure.run.correctness import (
    Array,
    Correctness,
    Expected,
    Verification,
    check_operands,
    check_runs,
    compute_expected,
    random_inputs,
    same_bytes,
)
from anatune.untyped import tvm

__all__ = [
    "Constants",
    "Kernel",
    "KernelLibrary",
    "PreparedCall",
    "allow_runs",
    "build",
    "check_instructions",
    "inspect",
    "verify",
]

Constants = dict[str, tuple[Array, Array, ArgumentBlock]]
"""Name of a constant -> the given array, its contents at that time, and the packed copy."""


class KernelLibrary:
    """The functions of a built library: `main` and, by tensor, the packing functions.

    A file of the same path that is loaded already is not read again, as with any shared library, so every build needs
    its own path.

    Raises
    ------
    RunError
        The file cannot be loaded or lacks a function.
    """

    def __init__(self, artifact: CpuArtifact) -> None:
        tvm = import_tvm()
        names = (artifact.function, *(packing.function for packing in artifact.packings))
        try:
            self._module = tvm.runtime.load_module(artifact.library)
            functions = [self._module[name] for name in names]
        except (RuntimeError, AttributeError, ValueError, OSError) as error:
            raise RunError(f"{artifact.library} cannot be loaded: {_one_line(error)}") from None
        self.main: Callable[..., None] = functions[0]
        self._is_parallel = artifact.threads > 1
        self.packers: dict[str, Callable[..., None]] = {
            packing.tensor: function for packing, function in zip(artifact.packings, functions[1:], strict=True)
        }

    @property
    def run(self) -> Callable[..., None]:
        """The function `main` for any thread, also in a child of ``fork``, see `anatune.codegen.pool`."""
        return functools.partial(call_parallel, self.main) if self._is_parallel else self.main


class PreparedCall:
    """A kernel with its arguments in memory; `call()` runs it once.

    Parameters
    ----------
    artifact, library
        The built kernel.
    inputs : mapping of str to ndarray
        Operands by tensor, in the workload's layouts. Constants are packed here, once.
    guarded : bool
        Guard zones around every argument, for `check`.
    constants : collection of str
        Operands that are known before the run, such as weights.
    cold : Block, optional
        Memory that is filled with copies of the constants, aligned; calls take them in turn, so that constants come
        from where that much memory lies.
    """

    def __init__(
        self,
        artifact: CpuArtifact,
        library: KernelLibrary,
        inputs: Mapping[str, Array],
        *,
        guarded: bool = False,
        constants: Collection[str] = (),
        cold: ArgumentBlock | None = None,
    ) -> None:
        self._inputs = inputs
        self._error = artifact.error
        self._packed = {packing.tensor for packing in artifact.packings}
        self._blocks: dict[str, ArgumentBlock] = {}
        for buffer in artifact.arguments:
            block = ArgumentBlock(buffer.dtype, buffer.shape, guarded=guarded)
            self._blocks[buffer.tensor] = block
            if buffer.tensor in library.packers:
                block.bytes[:] = 0
                library.packers[buffer.tensor](tensor_of(inputs[buffer.tensor]), block.tensor)
            elif buffer is not artifact.arguments[-1]:
                _fill(block, inputs[buffer.tensor], buffer.tensor)
        self.result = self._blocks[artifact.arguments[-1].tensor]
        tensors = [self._blocks[buffer.tensor].tensor for buffer in artifact.arguments]
        self.call: Callable[[], None] = functools.partial(library.run, *tensors)
        if cold is not None:
            copies = self._copies({*self._packed, *constants} & {*self._blocks}, cold)
            if copies:
                changing = [{**self._blocks, **own} for own in copies]
                calls = [[own[buffer.tensor].tensor for buffer in artifact.arguments] for own in changing]
                self.call = _in_turn(library.run, [tensors, *calls])

    def _copies(self, names: Collection[str], memory: ArgumentBlock) -> list[dict[str, ArgumentBlock]]:
        """Return copies of some arguments, as many as fit into `memory`."""
        sizes = {name: -(-self._blocks[name].bytes.size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for name in sorted(names)}
        each = sum(sizes.values())
        copies = []
        for start in range(0, memory.bytes.size - each + 1, each) if each else ():
            offset, blocks = start, {}
            for name, size in sizes.items():
                block = self._blocks[name]
                blocks[name] = block.copy_in(memory.bytes[offset : offset + block.bytes.size])
                offset += size
            copies.append(blocks)
        return copies

    def check(self, workload: Workload, want: Expected) -> Correctness:
        """Run on a result filled with NaN and compare; operands, packed constants and guard zones must not change.

        Kernels with integer results run twice with different fills.
        """
        kept = {name: self._blocks[name].bytes.copy() for name in self._packed}

        def run(byte: int) -> dict[str, Array]:
            self.result.bytes[:] = byte
            self.call()
            return {workload.write.tensor: self.result.array}

        return check_runs(workload, want.allowing(self._error), run, lambda: self._find_change(kept))

    def _find_change(self, kept: Mapping[str, NDArray[np.uint8]]) -> str:
        """Return which operand or guard zone the kernel changed; "" if none."""
        for name, block in self._blocks.items():
            if not block.intact:
                return f"the kernel wrote outside of {name}"
            if name in kept:
                changed = not same_bytes(block.bytes, kept[name])
            else:
                changed = block is not self.result and not same_bytes(block.array, np.asarray(self._inputs[name]))
            if changed:
                return f"the kernel changed its operand {name}{' (packed)' if name in kept else ''}"
        return ""


class Kernel:
    """A built schedule: ``kernel(*arrays)`` computes on NumPy arrays in the workload's layouts.

    Constant operands that the schedule packs ahead of the run are packed at the first call and again only when their
    contents change. Read-only arrays (``flags.writeable`` False) are recognised by identity, others are compared with
    what was packed, which costs a pass over them: make constants read-only.

    Several threads may call it at once, and a child of ``fork`` may. A kernel with threads > 1 sets the size of TVM's
    thread pool, which all kernels of the process share, and says so in the variable TVM_NUM_THREADS if that is not set.
    Its calls from other threads than the main one are run by one thread, in turn.

    Parameters
    ----------
    workload, artifact
        The workload; the built kernel.
    folder : Path, optional
        Folder of the library, removed with the kernel.
    constants : dict, optional
        Packed constants that kernels of one library share, by the function that packs them.

    Raises
    ------
    MissingDependencyError
        TVM is not installed.
    RunError
        The library cannot be loaded.
    """

    def __init__(
        self, workload: Workload, artifact: CpuArtifact, folder: Path | None = None, constants: Constants | None = None
    ) -> None:
        self.workload = workload
        self.artifact = artifact
        self._library = KernelLibrary(artifact)
        if folder is not None:  # the loaded library keeps its pages when the file is removed
            remove_folder_with(self, folder)
        if artifact.threads > 1:
            set_threads(artifact.threads)
        self._constants: Constants = {} if constants is None else constants
        self._packed_by = {packing.tensor: packing.function for packing in artifact.packings}

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the arguments of a call, in order."""
        return tuple(buffer.tensor for buffer in self.artifact.arguments[:-1])

    def __call__(self, *arrays: Array) -> Array:
        """Return the result for `arrays`: the workload's reads, then its epilogue's.

        Raises
        ------
        RunError
            Another number of arrays, or one of another shape or dtype.
        """
        checked = check_operands(self.workload, self.operands, arrays)
        tensors = []
        for buffer, array in zip(self.artifact.arguments, arrays, strict=False):
            if buffer.tensor in self._library.packers:
                tensors.append(self._pack(buffer, array, checked[buffer.tensor]).tensor)
            else:
                tensors.append(tensor_of(checked[buffer.tensor]))
        last = self.artifact.arguments[-1]
        result = ArgumentBlock(last.dtype, last.shape)
        self._library.run(*tensors, result.tensor)
        return result.array

    def random_call(self, seed: int = 0) -> Callable[[], None]:
        """Return a function that runs the kernel on random operands (constants packed), for your own timing.

        Every call uses the same operands and result, so that caches are warm.
        """
        return self.prepare(random_inputs(self.workload, seed)).call

    def prepare(self, inputs: Mapping[str, Array], *, guarded: bool = False) -> PreparedCall:
        """Return the kernel with `inputs` (by tensor) in memory."""
        return PreparedCall(self.artifact, self._library, inputs, guarded=guarded)

    def __deepcopy__(self, memo: object) -> Kernel:
        return self  # calls share no state that changes

    def __reduce__(self) -> str:
        raise RunError(
            "a built kernel cannot be pickled, because it is code in this process; pickle its schedule and build it "
            "there"
        )

    def _pack(self, buffer: Buffer, given: Array, checked: Array) -> ArgumentBlock:
        """Return the packed constant; pack it again only if its contents changed."""
        name = self._packed_by[buffer.tensor]
        if name in self._constants:
            packed_array, contents, block = self._constants[name]
            frozen = packed_array is given and not checked.flags.writeable and checked.base is None
            if frozen or same_bytes(contents, checked):
                return block
        block = ArgumentBlock(buffer.dtype, buffer.shape)
        block.bytes[:] = 0
        contents = checked.copy()
        self._library.packers[buffer.tensor](tensor_of(contents), block.tensor)
        self._constants[name] = (given, contents, block)
        return block


def _in_turn(main: Callable[..., None], arguments: Sequence[Sequence[tvm.runtime.Tensor]]) -> Callable[[], None]:
    """Return a function that uses the next arguments at each call."""
    calls = itertools.cycle([functools.partial(main, *own) for own in arguments])
    return lambda: next(calls)()


def _fill(block: ArgumentBlock, array: Array, name: str) -> None:
    if block.array.shape != array.shape:
        raise RunError(f"operand {name} has shape {array.shape}, but the built kernel takes {block.array.shape}")
    block.array[...] = array


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


_X86 = ("sse", "avx", "avx2", "avx512")


def check_instructions(hardware: CpuSpec) -> None:
    """Raise RunError if this machine lacks the instruction set of a CPU spec."""
    wanted, here = hardware.compute.isa, detect_cpu().compute.isa
    runs = wanted == here or {wanted, here} == {"neon", "sve"}
    if wanted in _X86 and here in _X86:
        runs = _X86.index(wanted) <= _X86.index(here)
    if not runs:
        raise RunError(
            f"the schedule is for {hardware.name} with {wanted}, but this machine has {here}; plan for --hw host to "
            "run it here, or use anatune.inspect(), which runs nothing"
        )


def allow_runs(schedule: Schedule) -> None:
    """Ask the system for the AMX registers if a schedule needs them; raise RunError if they cannot be used."""
    if schedule.options.get("extension") == "amx":
        allow_tiles(tile_features(schedule.hardware))  # type: ignore[arg-type]


def build(schedule: Schedule, threads: int) -> Kernel:
    """Compile a schedule and load it into this process; see `anatune.build`."""
    check_instructions(schedule.hardware)  # type: ignore[arg-type]
    allow_runs(schedule)
    folder = scratch_folder(BuildError)
    try:
        artifact = build_schedule(schedule, folder, threads=threads)
        return Kernel(schedule.workload, artifact, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def verify(schedule: Schedule, threads: int, seed: int) -> Verification:
    """Build a schedule, run it in this process on random operands and compare with float64; see `anatune.verify`."""
    try:
        kernel = build(schedule, threads)
    except (BuildError, RunError) as error:
        return Verification(False, message=str(error))
    inputs = random_inputs(schedule.workload, seed)
    want = compute_expected(schedule.workload, inputs).allowing(error_of(schedule))
    try:
        answer = kernel.prepare(inputs, guarded=True).check(schedule.workload, want)
    except (RunError, RuntimeError, ValueError, TypeError) as error:  # TVM raises what its checks find
        lines = str(error).splitlines() or [type(error).__name__]
        return Verification(False, message=lines[-1].strip(), tolerance=want.tolerance)
    return Verification(answer.ok, answer.max_rel_error, answer.message, want.tolerance)


def inspect(schedule: Schedule, threads: int) -> dict[str, int]:
    """Return the compiler's report of a schedule; see `anatune.inspect`."""
    return {**inspect_schedule(schedule, threads=threads), "shared_bytes": 0}
