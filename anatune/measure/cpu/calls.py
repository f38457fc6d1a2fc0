"""The library calls on one CPU schedule: built into this process, verified against float64, what the compiler says."""

from __future__ import annotations

import shutil

from anatune.codegen.cpu.lower import build_schedule, inspect_schedule
from anatune.core.accuracy import error_of
from anatune.core.hardware.dot import tile_features
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.errors import BuildError, RunError
from anatune.files import scratch_folder
from anatune.measure.cpu.detect import detect_cpu
from anatune.measure.cpu.kernel import Kernel
from anatune.measure.cpu.tiles import allow_tiles
from anatune.measure.run.correctness import Verification, expected, random_inputs

__all__ = ["allow_runs", "build", "check_instructions", "inspect", "verify"]

_X86 = ("sse", "avx", "avx2", "avx512")


def check_instructions(hardware: CpuSpec) -> None:
    """Raise RunError if a CPU's instruction set is not one that the present machine has."""
    wanted, here = hardware.compute.isa, detect_cpu().compute.isa
    runs = wanted == here or {wanted, here} == {"neon", "sve"}
    if wanted in _X86 and here in _X86:
        runs = _X86.index(wanted) <= _X86.index(here)
    if not runs:
        raise RunError(
            f"schedule is for {hardware.name} with {wanted}, but this machine has {here}; "
            "anatune.inspect() works without running, a plan for --hw host runs here"
        )


def allow_runs(schedule: Schedule) -> None:
    """Ask the system for AMX's registers where a schedule needs them; raise RunError where it has or gives none."""
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
    want = expected(schedule.workload, inputs).allowing(error_of(schedule))
    try:
        answer = kernel.prepare(inputs, guarded=True).check(schedule.workload, want)
    except (RunError, RuntimeError, ValueError, TypeError) as error:  # TVM raises what its checks find
        lines = str(error).splitlines() or [type(error).__name__]
        return Verification(False, message=lines[-1].strip(), tolerance=want.tolerance)
    return Verification(answer.ok, answer.max_rel_error, answer.message, want.tolerance)


def inspect(schedule: Schedule, threads: int) -> dict[str, int]:
    """Return what the compiler's output says about a schedule; see `anatune.inspect`."""
    return {**inspect_schedule(schedule, threads=threads), "shared_bytes": 0}
