"""First choices of the template triton, compiled for devices that are not there: which matrix unit they really use.

    python -m bench.gpu.triton_compile [--hw h100 b200 ...] [--only PATTERN ...] [--count 1] [--json FILE]

Every workload that the template takes on a device is planned with it, and its first choices are compiled (through the
user's cache; ``XDG_CACHE_HOME=$(mktemp -d)`` compiles all of them). The table shows the instructions on matrix units in
the assembler's text, and what the model says beside what the compiler does: registers of a thread, shared bytes of a
block, spilled bytes; wall seconds, those of a cached kernel are below 0.1. Last: how many shared bytes are exact, how
far registers are off, kernels that spill, that fail, that have no instruction of a matrix unit.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

import anatune
from anatune.core.compiler_facts import CompilerFacts
from anatune.core.hardware.spec import GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError, WorkloadError
from anatune.measure.cuda.compiler import compile_schedules
from anatune.measure.run.build_processes import Limits
from anatune.templates import TRITON
from bench.results import environment, progress_bar, wide_console, write_json

__all__ = ["DEVICES", "UNITS", "Kernel", "first_choices", "unit_of", "workloads"]

DEVICES = ("a100", "rtx3090", "l40s", "h100", "b200", "rtx5090", "mi210", "mi300x", "mi350x")
DTYPES = ("float16", "bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e4m3fnuz")
SHAPES = ("matmul 4096x4096x4096", "matmul 16x4096x4096", "batch_matmul 12x512x512x64", "matmul 1000x520x264")
SCALED = (
    "scaled_matmul 512x4096x7168",
    "scaled_matmul 4096x4096x4096 --scales rows",
    "scaled_matmul 4096x4096x4096 --scales blocks",
    "scaled_matmul 32x4096x7168 --scales blocks",
    "scaled_matmul 4096x4096x4096 --dtype float8_e4m3fnuz --scales blocks",
    "scaled_matmul 16x4096x4096 --dtype int8 --scales rows",
    "scaled_matmul 4096x4096x4096 --dtype int8 --scales blocks",
    "scaled_matmul 4096x4096x4096 --dtype bfloat16xint8",
    "scaled_matmul 16x4096x4096 --dtype bfloat16xint8 --group 128",
    "scaled_matmul 4096x4096x4096 --dtype bfloat16xint4 --group 128",
    "scaled_matmul 16x4096x4096 --dtype bfloat16xint4 --group 32 --zero-points",
    "scaled_matmul 4096x4096x4096 --dtype float16xint4",
    "scaled_matmul 4096x4096x4096 --dtype mxfp8",
    "scaled_matmul 32x4096x4096 --dtype mxfp8",
    "scaled_matmul 4096x4096x4096 --dtype mxfp4",
    "scaled_matmul 4096x4096x4096 --dtype nvfp4",
    "scaled_matmul 32x4096x4096 --dtype nvfp4",
    "grouped_matmul 512x256x8x2048x7168 --activation",
    "grouped_matmul 512x256x8x7168x2048 --expanded",
    "grouped_matmul 512x256x8x2048x7168 --dtype float8_e4m3fn --scales blocks --activation",
    "grouped_matmul 8192x64x8x1408x2048 --dtype float8_e4m3fn --scales blocks --activation",
    "grouped_matmul 512x8x2x14336x4096 --dtype bfloat16xint4 --group 128 --activation",
    "grouped_matmul 512x128x4x2880x2880 --dtype int8 --scales rows --activation",
    "grouped_matmul 512x128x4x2880x2880 --dtype mxfp4 --activation",
    "grouped_matmul 512x128x4x2880x2880 --dtype nvfp4 --expanded",
)
"""Products with scales and of experts."""
UNITS = ("wgmma.mma_async", "tcgen05.mma", "mma.sync", "v_mfma", "v_smfma")
"""How instructions of matrix units begin."""
WIDTH = 180
COPIES = "cp.async.bulk.tensor"
LIMITS = Limits(build_s=120.0)


class Kernel(NamedTuple):
    """A first choice, what the model says of it, and what the compiler does or why it fails."""

    name: str
    schedule: Schedule
    before: Prediction
    facts: CompilerFacts | None = None
    message: str = ""
    seconds: float = 0.0

    @property
    def units(self) -> int:
        """Instructions of matrix units."""
        return 0 if self.facts is None else sum(unit_of(self.facts).values())


def unit_of(facts: CompilerFacts) -> dict[str, int]:
    """Return the instructions of matrix units: how they begin -> how many there are."""
    counts = {unit: sum(n for name, n in facts.instructions.items() if name.startswith(unit)) for unit in UNITS}
    return {unit: count for unit, count in counts.items() if count}


def workloads() -> Iterator[tuple[str, Workload]]:
    """Yield all workloads with their names: each shape with each type of operands that it can have."""
    for shape in SHAPES:
        for dtype in DTYPES:
            name = f"{shape} {dtype}"
            try:
                yield name, anatune.parse_workload(shape.split(), dtype=dtype)
            except WorkloadError:
                continue
    yield from ((words, anatune.parse_workload(words)) for words in SCALED)


def first_choices(name: str, workload: Workload, hardware: GpuSpec, count: int) -> list[Kernel]:
    """Return the first choices of a workload on a device, not compiled; none where the template does not apply."""
    if not TRITON.takes(workload, hardware):
        return []
    try:
        answer = anatune.plan(workload, hardware, count, template="triton", accuracy="relaxed", correction="none")
    except SpaceError:
        return []
    return [Kernel(name, *pair) for pair in zip(answer.schedules, answer.predictions, strict=True)]


def compiled(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the same with what the compiler says."""
    found = list(kernels)
    with progress_bar() as progress:
        task = progress.add_task("compiling", total=len(kernels))
        for at, result in compile_schedules([kernel.schedule for kernel in kernels], limits=LIMITS):
            found[at] = kernels[at]._replace(facts=result.facts, message=result.message, seconds=result.seconds)
            progress.advance(task)
    return found


def table_of(kernels: Sequence[Kernel]) -> Table:
    """Return a row for each kernel."""
    table = Table(box=SIMPLE_HEAD)
    for heading in ("device", "workload", "tile", "instructions", "TMA", "registers", "shared bytes", "spills", "s"):
        table.add_column(heading, no_wrap=heading != "instructions")
    for kernel in kernels:
        own, facts, tiles = kernel.before.resources, kernel.facts, kernel.schedule.tiles
        tile = "x".join(str(tiles[axis][-1]) for axis in "mnk") + f" w{kernel.schedule.options['num_warps']}"
        where = (kernel.schedule.hardware.name, kernel.name, tile)
        if facts is None:
            table.add_row(*where, kernel.message)
            continue
        copies = sum(count for name, count in facts.instructions.items() if name.startswith(COPIES))
        table.add_row(
            *where,
            ", ".join(f"{unit} {count}" for unit, count in unit_of(facts).items()) or "none",
            str(copies or ""),
            f"{own['registers_per_thread']:.0f} {facts.registers}",
            f"{own['shared_bytes_per_block']:.0f} {facts.shared_bytes}",
            str(facts.spill_bytes or ""),
            f"{kernel.seconds:.1f}",
        )
    return table


def summary(kernels: Sequence[Kernel]) -> str:
    """Say in a line how the model and the compiler agree."""
    good = [(kernel, kernel.facts) for kernel in kernels if kernel.facts is not None]
    if not good:
        return "nothing was compiled"
    exact = np.mean([kernel.before.resources["shared_bytes_per_block"] == facts.shared_bytes for kernel, facts in good])
    off = [abs(kernel.before.resources["registers_per_thread"] - facts.registers) for kernel, facts in good]
    return (
        f"{len(good)} of {len(kernels)} compiled in {sum(kernel.seconds for kernel in kernels):.0f} s of processes; "
        f"shared bytes exact {100 * exact:.0f} %, registers off by {np.median(off):.0f} in the median and "
        f"{max(off):.0f} at most; {sum(facts.spill_bytes > 0 for _, facts in good)} spill, "
        f"{sum(not kernel.units for kernel, _ in good)} without a matrix unit"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Print the table and the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hw", nargs="+", default=DEVICES, metavar="NAME")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="of names of workloads")
    parser.add_argument("--count", type=int, default=1, help="first choices of each")
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args(words)
    kernels: list[Kernel] = []
    for device in asked.hw:
        hardware = anatune.hardware(device)
        assert isinstance(hardware, GpuSpec)
        for name, workload in workloads():
            if any(fnmatch.fnmatch(name, pattern) for pattern in asked.only):
                kernels += first_choices(name, workload, hardware, asked.count)
    found = compiled(kernels)
    console = wide_console(WIDTH)
    console.print(table_of(found))
    console.print(summary(found))
    if asked.json is not None:
        rows = [
            {
                "device": kernel.schedule.hardware.name,
                "workload": kernel.name,
                "schedule": kernel.schedule.describe(),
                "predicted": dict(kernel.before.resources),
                "compiler": {} if kernel.facts is None else kernel.facts.numbers(),
                "message": kernel.message,
                "seconds": kernel.seconds,
            }
            for kernel in found
        ]
        write_json(asked.json, environment(hw=asked.hw, only=asked.only, count=asked.count) | {"kernels": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
