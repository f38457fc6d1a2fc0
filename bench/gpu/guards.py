"""What tiles that do not divide cost in registers and instructions, as the compiler makes it. Needs no GPU.

    python -m bench.gpu.guards [--hw rtx3090] [--count 10] [--nvdisasm PROGRAM] [--json FILE]

The tiles of the best schedules of each template for CUDA cores for a matmul that they divide are given to matmuls that
are a little smaller. `twice`: as generated, copies and stores twice, for blocks inside and at edges; `tested`: once,
with tests everywhere; `inside`: what is left of `twice` where nothing lies at an edge. Registers are those of a thread,
instructions those of one staging step (bench.gpu.machine_code; of `twice` both copies count, of which a step runs one).
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import msgspec

import anatune
from anatune import api
from anatune.codegen.cuda.lower import cuda_kernel
from anatune.codegen.cuda.nvrtc import compile_cuda
from anatune.core.schedule import Schedule
from anatune.templates.cuda.program.staging import inside_conditions
from bench.gpu.machine_code import disassembled, step_mix
from bench.results import environment, write_json

__all__ = ["Row", "covering"]

_DIVIDED = (512, 4096, 1024)
_SHAPES = (_DIVIDED, (509, 4096, 1024), (508, 4092, 1020), (509, 4099, 1021))
"""All divided; rows guarded; all guarded, vectors of four elements stay whole; all guarded, no vectors."""
_WITHIN = (
    "anatune.templates.cuda.program.staging.inside_conditions",
    "anatune.templates.cuda.program.program.inside_conditions",
)


class Row(msgspec.Struct):
    """One kernel."""

    template: str
    schedule: str
    shape: tuple[int, ...]
    variant: str
    registers: int
    spill_bytes: int
    instructions: float


def covering(schedule: Schedule, shape: tuple[int, ...]) -> Schedule:
    """Return a matmul's schedule with the same tiles for another shape (rows, columns, k)."""
    workload = anatune.matmul(*shape)
    tiles = {
        axis: (-(-workload.extents[axis] // math.prod(factors[1:])), *factors[1:])
        for axis, factors in schedule.tiles.items()
    }
    return msgspec.structs.replace(schedule, workload=workload, tiles=tiles)


def _variants(schedule: Schedule) -> dict[str, Callable[..., list[str] | None]]:
    """Return variant -> what stands for the function that says when a block and a step lie inside."""
    if all(math.prod(factors) == schedule.workload.extents[axis] for axis, factors in schedule.tiles.items()):
        return {"divided": inside_conditions}
    return {"twice": inside_conditions, "tested": lambda *_: None, "inside": lambda *_: ["0 < 1"]}


def _examine(schedule: Schedule, shape: tuple[int, ...], nvdisasm: str) -> list[Row]:
    rows = []
    made = covering(schedule, shape)
    for variant, inside in _variants(made).items():
        with mock.patch(_WITHIN[0], inside), mock.patch(_WITHIN[1], inside):
            kernel = cuda_kernel(made)
        cubin = compile_cuda(kernel.source, kernel.arch)
        instructions = sum(step_mix(made, disassembled(cubin.image, nvdisasm)).values())
        facts = cubin.facts
        rows.append(
            Row(
                schedule.template, schedule.describe(), shape, variant, facts.registers, facts.spill_bytes, instructions
            )
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hw", default="rtx3090", metavar="NAME")
    parser.add_argument("--count", type=int, default=10, help="schedules of each template")
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm") or "nvdisasm", metavar="PROGRAM")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    hardware = anatune.hardware(options.hw)
    rows: list[Row] = []
    for template in ("cuda", "pipelined"):
        found = api.plan(anatune.matmul(*_DIVIDED), hardware, options.count, template=template).schedules
        for schedule in found:
            for shape in _SHAPES:
                rows += _examine(schedule, shape, options.nvdisasm)
    print(
        f"{'template':<11}{'shape':<16}{'variant':<9}{'kernels':>8}{'registers':>11}{'most more':>11}{'spilt':>7}",
        end="",
    )
    print(f"{'instructions':>14}{'of divided':>12}")
    divided = {(row.template, row.schedule): row for row in rows if row.variant == "divided"}
    for key in dict.fromkeys((row.template, row.shape, row.variant) for row in rows):
        mine = [row for row in rows if (row.template, row.shape, row.variant) == key]
        base = [divided[row.template, row.schedule] for row in mine]
        more = max(row.registers - other.registers for row, other in zip(mine, base, strict=True))
        ratio = statistics.geometric_mean(
            row.instructions / other.instructions for row, other in zip(mine, base, strict=True)
        )
        print(
            f"{key[0]:<11}{'x'.join(map(str, key[1])):<16}{key[2]:<9}{len(mine):>8}"
            f"{statistics.mean(row.registers for row in mine):>11.1f}{more:>11}"
            f"{sum(row.spill_bytes > 0 for row in mine):>7}"
            f"{statistics.mean(row.instructions for row in mine):>14.0f}{ratio:>12.3f}"
        )
    if options.json:
        write_json(options.json, environment() | {"rows": msgspec.to_builtins(rows)})


if __name__ == "__main__":
    main()
