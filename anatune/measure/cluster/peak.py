"""What arithmetic a worker's device reaches: whether it is what the others are, and not busy or throttled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.operators import matmul
from anatune.measure.devices import measurer_of
from anatune.measure.run.build_processes import BuildProcesses, Limits
from anatune.measure.run.measurer import Entries
from anatune.measure.run.prebuilt import prebuilt

__all__ = ["build_fma", "peak_flop_per_s"]

_SAMPLES = 300
"""Of a round, of which the best counts: 2 ms each."""
_MOST_ROUNDS = 6
_AGREE = 0.02
"""Rounds end when one comes so near to the best before: who joins while the machine is busy is looked at for longer."""


def build_fma(hardware: CpuSpec, folder: Path) -> CpuArtifact:
    """Build multiply-adds between registers: the reference kernel of CPUs also shows what shares its caches."""
    from anatune.codegen.cpu.probes import compile_probe

    return compile_probe("fma", hardware, folder)


def peak_flop_per_s(
    hardware: CpuSpec | GpuSpec, where: dict[str, Any], entries: Entries, limits: Limits, folder: Path
) -> float:
    """Measure multiply-adds: one core of a CPU, a whole GPU; the best of some seconds.

    Parameters
    ----------
    where
        GPUs: "device", "backend".
    folder : Path
        Exists.

    Raises
    ------
    RunError, DeviceError, MissingDependencyError
        The kernel cannot be built or run.
    """
    is_cpu = isinstance(hardware, CpuSpec)
    entry = f"{__name__}:build_fma" if is_cpu else entries.reference
    builders = BuildProcesses(entries.builder, 1, limits, setup=entries.builder_setup)
    try:
        builders.start()
        builders.begin_reference(entry, hardware, folder / "peak")
        artifact: Any = builders.reference()
    finally:
        builders.kill()
    conditions = {} if is_cpu else {"l2": "warm"}
    make = prebuilt(measurer_of(hardware))
    # What it computes is not measured, the reference kernel is.
    workload = matmul(32, 32, 32)
    with make(workload, hardware, limits=limits, built={}, reference=artifact, **conditions, **where) as measurer:
        seconds = _agreed(measurer.reference_s)
    if isinstance(artifact, CpuArtifact):
        return float(artifact.facts["flop"]) / seconds
    from anatune.measure.cuda.runner import reference_flop

    return float(reference_flop(artifact)) / seconds


def _agreed(sample: Callable[[int], float]) -> float:
    """Return the best of rounds of samples, s: of as many as it takes for two to agree."""
    best = float("inf")
    for _ in range(_MOST_ROUNDS):
        found = sample(_SAMPLES)
        agree = abs(found - best) <= _AGREE * min(found, best)
        best = min(best, found)
        if agree:
            break
    return best
