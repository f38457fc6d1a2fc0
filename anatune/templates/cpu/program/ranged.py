"""CPU programs that take the extent of an axis at run time.

The loops are those of `cpu.range_space.schedule_at` for every extent, with the number of calls as a variable. Each call
computes one of few numbers of elements. There is a microkernel for each of these numbers, and a function that chooses
among them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from anatune.core.schedule import Schedule
from anatune.errors import SpaceError
from anatune.templates.cpu.program.extents import RunTimeExtent
from anatune.templates.cpu.program.kernels import Kernels
from anatune.templates.cpu.program.microkernel import choice_ir, microkernel_ir, module_ir
from anatune.templates.cpu.program.nest import CallGroup
from anatune.templates.cpu.program.prefetch import FEWEST_REPEATS
from anatune.templates.cpu.program.program import CpuProgram, Tile, main_function, packings_of
from anatune.templates.cpu.program.register_tile import Microkernel
from anatune.templates.cpu.range_space import most_elements, sizes_of_calls
from anatune.templates.cpu.rules import cpu_of, words_of

__all__ = ["ranged_program"]


def ranged_program(
    schedule: Schedule,
    axis: str,
    least: int,
    *,
    threads: int = 1,
    name: str = "main",
    prefix: str = "microkernel",
    piece: int | None = None,
) -> CpuProgram:
    """Write a schedule as a program for extents of `axis` from `least` to the extent of the schedule.

    Parameters
    ----------
    schedule : Schedule
        The schedule of the largest extent.
    threads : int
        1 makes the parallel loop serial.
    name : str
        Name of the function. Its tensors have one extent of the range; constants are packed ahead.
    prefix : str
        Prefix of the names of the microkernels, which are global in a library.
    piece : int, optional
        Most elements along the axis for one run of the nest, if calls share the axis; None: all.

    Raises
    ------
    SpaceError
        One program cannot run other extents (see `cpu.range_space`), or options contradict the tiles.
    BuildError
        A tensor is too large for 32-bit indices.
    """
    largest = schedule.workload.extents[axis]
    if not 1 <= least <= largest:
        raise SpaceError(f"range of {axis} is {least} to {largest}, expected 1 or more, ascending")
    most = most_elements(schedule, axis)
    kernels = Kernels(schedule)
    kernels.run_time_axis = axis
    in_calls = all(loop.axis != axis for loop in kernels.nest.cache)
    num_calls = FEWEST_REPEATS if in_calls else 1
    is_whole = piece is None or not in_calls or largest <= piece or _is_packed_along(schedule, axis)
    extents = RunTimeExtent(axis, most, in_calls, largest, None if is_whole else piece)
    # an extent slightly above a piece becomes two halves
    fewest = least if extents.piece is None else min(least, extents.piece // 2)
    sizes = sorted({size for extent in range(fewest, largest + 1) for size in sizes_of_calls(extent, most)})

    tiles: list[Tile] = []
    functions: list[tuple[str, set[str]]] = []
    microkernels: list[Microkernel] = []
    others = [other for other in kernels.nest.calls if other != axis]
    for number, combination in enumerate(itertools.product(*(kernels.parts[other] for other in others))):
        parts = dict(zip(others, combination, strict=True))
        by_size: dict[int, Microkernel] = {}
        for size in sizes:
            part = CallGroup(0, num_calls, size)
            kernels.parts[axis] = (part,)
            by_size[size] = kernels.microkernel(f"{prefix}_{number}_of_{size}", {**parts, axis: part})
        last = by_size[sizes[-1]]
        by_size = {size: _add_chains(_match_streams(kernel, last), schedule) for size, kernel in by_size.items()}
        functions += [microkernel_ir(kernel) for kernel in by_size.values()]
        chosen = by_size[sizes[-1]]
        microkernels += by_size.values()
        if most > 1:
            chosen = replace(chosen, name=f"{prefix}_{number}")
            functions.append((choice_ir(chosen.name, by_size), set()))
        tiles.append(({axis: CallGroup(0, num_calls, sizes[-1]), **parts}, chosen))
    ahead = frozenset(words_of(schedule, "packed_ahead"))
    parallel = bool(schedule.options.get("parallel", False)) and threads > 1
    packing, packed_sizes = packings_of(kernels, ahead, parallel=parallel)
    return CpuProgram(
        main=main_function(kernels, tiles, ahead, parallel=parallel, extents=extents, name=name),
        packing=packing,
        packed_sizes=packed_sizes,
        llvm=module_ir(functions),
        kernels=tuple(microkernels),
        largest=largest,
    )


def _add_chains(kernel: Microkernel, schedule: Schedule) -> Microkernel:
    """Return a microkernel with enough accumulator chains to hide the latency of additions."""
    compute = cpu_of(schedule).compute
    if kernel.dot or kernel.simd_reduction or not kernel.reduces or kernel.body != "multiply_add":
        return kernel
    num_chains = math.ceil(compute.fma_latency_cycles * compute.fma_per_cycle / max(1, len(kernel.tiles)))
    return replace(kernel, chains=max(1, min(num_chains, kernel.num_steps)))


def _is_packed_along(schedule: Schedule, axis: str) -> bool:
    """Return whether a packed form depends on the axis; it then covers the whole extent."""
    return any(schedule.workload.tensor(tensor).uses(axis) for tensor in words_of(schedule, "packed"))


def _match_streams(kernel: Microkernel, largest: Microkernel) -> Microkernel:
    """Return a microkernel with the streams of the largest one, so that all take the same arguments."""
    streams = [operand.stream for operand in largest.operands]
    operands = [replace(operand, stream=stream) for operand, stream in zip(kernel.operands, streams, strict=True)]
    return replace(kernel, operands=tuple(operands))
