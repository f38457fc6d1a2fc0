"""Random legal schedules on AMX's tiles, compiled: whether one ends the compiler, or spills tiles.

    python -m bench.cpu.tile_schedules [--count 300] [--seed 0] [--arch sapphirerapids,graniterapids] [--jobs 2]

Needs TVM, no AMX: nothing is run. Products of 16 bits and of 8 bits in all signs, convolutions, edges of every kind,
partial sums and fused steps; schedules are drawn until `Schedule.check` takes one. Each is compiled in a process that
may die, and its code is looked at: no LDTILECFG in a loop of products, no tiles that come from the stack (spills).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import BuildError, SpaceError
from anatune.templates.cpu.dot import tiles_apply

__all__ = ["compiled_wrongly", "drawn"]

_BATCH = 10
_KINDS = (
    ("bfloat16", {}),
    ("float16", {}),
    ("int8", {}),
    ("uint8xint8", {}),
    ("uint8xint8", {"input_zero_point": 131}),
)
_EPILOGUES: dict[str, tuple[tuple[str, ...], ...]] = {
    "bfloat16": ((), ("bias", "relu")),
    "float16": ((), ("bias", "relu")),
    "int8": ((), ("requantize",), ("bias", "scale")),
    "uint8xint8": ((), ("bias", "requantize"), ("scale",)),
}


def _workload(rng: random.Random) -> Workload:
    dtype, more = rng.choice(_KINDS)
    own: dict[str, Any] = {"dtype": dtype, "epilogue": rng.choice(_EPILOGUES[dtype]), **more}
    small = [1, 2, 3, 5, 7, 12, 15, 16, 17, 20, 21, 24, 31, 32, 33, 40, 48, 49, 63, 64, 80]
    if rng.random() < 0.7:
        return anatune.matmul(rng.choice(small), rng.choice(small), 4 * rng.choice([*small, 96, 128]), **own)
    kernel = rng.choice((1, 1, 3))
    size = rng.randint(kernel, 18)
    channels, filters = rng.choice((4, 8, 16, 36, 64)), rng.choice(small)
    padding = rng.choice((0, kernel // 2))
    return anatune.conv2d(
        1,
        channels,
        size,
        size,
        filters,
        kernel,
        kernel,
        padding=padding,
        stride=rng.choice((1, 2)),
        layout="NHWC",
        **own,
    )


def _factors(rng: random.Random, extent: int, count: int, most: int) -> tuple[int, ...]:
    """Return factors of `extent`, the last at most `most`."""
    last = rng.choice([d for d in range(1, min(extent, most) + 1) if extent % d == 0])
    factors, left = [last], extent // last
    for _ in range(count - 2):
        factor = rng.choice([d for d in range(1, left + 1) if left % d == 0])
        factors.append(factor)
        left //= factor
    return (left, *reversed(factors))


def drawn(rng: random.Random, hardware: anatune.CpuSpec) -> Schedule:
    """Return a random schedule on tiles that is legal."""
    while True:
        workload = _workload(rng)
        if not tiles_apply(workload, hardware):
            continue
        space = anatune.space(workload, hardware)
        levels = {axis: len(names) for axis, names in space.levels.items()}
        reductions = {axis.name for axis in workload.reduction_axes}
        most = {axis: 128 if axis in reductions else 48 for axis in levels}
        for _ in range(20):
            tiles = {
                axis: _factors(rng, workload.extents[axis], count, most[axis] if rng.random() < 0.8 else 1)
                for axis, count in levels.items()
            }
            packed = tuple(t for t in space.packable if t in space.must_pack or rng.random() < 0.5)
            try:
                calls = {axis: rng.randint(2, 4) for axis in space.pairable if rng.random() < 0.3}
                for axis in calls:
                    tiles[axis] = (*tiles[axis][:-2], 1, tiles[axis][-2] * tiles[axis][-1])
                schedule = space.schedule(tiles, packed=packed, calls=calls)
                return msgspec.structs.replace(schedule, options={**schedule.options, "extension": "amx"}).check()
            except SpaceError:
                continue


def compiled_wrongly(schedule: Schedule) -> str:
    """Return what is wrong with the code of a schedule on tiles; "": nothing.

    Raises
    ------
    BuildError
        It cannot be built, although it is legal.
    """
    from anatune.codegen import compat
    from anatune.codegen.cpu.lower import lower

    lowered = lower(schedule)
    text = compat.compile_module(lowered.module, lowered.target).mod.inspect_source("asm")
    if not re.search(r"^\s+tdp", text, re.M) or not re.search(r"^\s+ldtilecfg\b", text, re.M):
        return "no products of tiles"
    if reloads := re.findall(r"^\s+tileloadd\b.*\(%rsp", text, re.M):
        return f"{len(reloads)} tiles come from the stack"
    inner = [body for body in _loops(text) if "\ttdp" in body and body.count("\n.LBB") == 0]
    if any("ldtilecfg" in body for body in inner):
        return "ldtilecfg in the loop of products"
    return ""


def _loops(body: str) -> Iterator[str]:
    """Yield the text between each label and the last jump back to it."""
    for found in re.finditer(r"^(\.LBB\w+):", body, re.M):
        end = [jump.end() for jump in re.finditer(rf"\bj\w+\s+{re.escape(found[1])}\b", body)]
        if end and end[-1] > found.start():
            yield body[found.start() : end[-1]]


def _run(seed: int, first: int, count: int, arch: str) -> None:
    """Compile schedules and say what came of each, a line of JSON each, the number first."""
    hardware = anatune.hardware("xeon_8480")
    amx = (*hardware.amx, *(["tdpfp16ps"] if arch == "graniterapids" else []))
    hardware = msgspec.structs.replace(hardware, arch=arch, amx=amx)
    for number in range(first, first + count):
        schedule = drawn(random.Random(f"{seed} {number}"), hardware)
        print(json.dumps([number, "begun", str(schedule)]), flush=True)
        try:
            wrong = compiled_wrongly(schedule)
            print(json.dumps([number, wrong or "right", str(schedule)]), flush=True)
        except BuildError as error:
            print(json.dumps([number, f"not built: {str(error)[:100]}", str(schedule)]), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 where a schedule ended the compiler, was not built, or its code is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch", default="sapphirerapids,graniterapids", help="LLVM's names of processors, in turn")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--one", type=int, nargs=2, metavar=("FIRST", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    arches = options.arch.split(",")
    if options.one:
        _run(options.seed, *options.one, arches[0])
        return 0
    outcomes: dict[int, list[str]] = {}
    left = list(range(math.ceil(options.count / _BATCH)))
    running: list[subprocess.Popen[str]] = []
    while left or running:
        while left and len(running) < options.jobs:
            batch = left.pop(0)
            words = [sys.executable, "-m", "bench.cpu.tile_schedules", "--seed", str(options.seed)]
            words += ["--arch", arches[batch % len(arches)], "--one", str(batch * _BATCH), str(_BATCH)]
            running.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        process = running.pop(0)
        said, _ = process.communicate()
        for line in said.splitlines():
            number, outcome, schedule = json.loads(line)
            outcomes[number] = [outcome, schedule]
        print(f"{len(outcomes)} of {options.count}", file=sys.stderr)
    words = {
        number: "ended the compiler (exit of its process)" if own[0] == "begun" else own[0]
        for number, own in outcomes.items()
    }
    for number, outcome in words.items():
        if outcome != "right":
            print(f"{number}: {outcome}\n  {outcomes[number][1]}")
    counts = Counter(outcome.partition(":")[0] if outcome.startswith("not") else outcome for outcome in words.values())
    print(f"{len(words)} schedules: {dict(counts)}")
    return int(set(words.values()) != {"right"})


if __name__ == "__main__":
    sys.exit(main())
