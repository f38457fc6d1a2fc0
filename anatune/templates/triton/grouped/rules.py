"""What is a schedule of products with scales and of products of experts, and which the template "triton" takes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.scaling import SIDE
from anatune.errors import SpaceError
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.grouped.problem import ScaledProblem, scaled_problem_of
from anatune.templates.triton.instructions import (
    ARCHS,
    SCALED_DEPTH,
    SCALED_ROWS,
    Unit,
    has_descriptors,
    instruction_of,
    scaled_instruction,
)
from anatune.templates.triton.rules import LEAST_TILE, LEVELS, OPTIONS, check_multiplied, check_tiles, is_amd

__all__ = [
    "PROMOTED_DEPTH",
    "check_scaled",
    "check_supported",
    "crosses_blocks",
    "is_scaled_by_tcgen05",
    "least_tile",
    "multiplied",
    "options_of",
    "warps_of",
]

_ALIGNMENT = 16
PROMOTED_DEPTH = 128
"""Products after which sums of 8-bit floats leave a tensor core that keeps few bits of them. Source: [DeepSeek-V3]
Sec. 3.3.2."""


def multiplied(problem: ScaledProblem) -> str:
    """Return the dtype that matrix units multiply; of 4-bit floats that of 8 bits, two of which they count as one."""
    return "float8_e4m3fn" if problem.format.run else problem.format.data


def crosses_blocks(problem: ScaledProblem, block_n: NDArray[np.int64] | int) -> NDArray[np.bool_]:
    """Return whether columns of a tile are of several blocks of the weights that have a scale each."""
    found: NDArray[np.bool_] = problem.activation | (SIDE % np.asarray(block_n) > 0)
    return found


def has_described_operands(problem: ScaledProblem, hardware: GpuSpec) -> bool:
    """Whether operands can come by tensor descriptors: one product, rows of whole 16 bytes."""
    bits = (problem.format.data_bits, problem.format.weight_bits)
    aligned = all(problem.k * size // 8 % _ALIGNMENT == 0 for size in bits)
    return has_descriptors(hardware) and not problem.experts and aligned


def options_of(problem: ScaledProblem, hardware: GpuSpec) -> tuple[str, ...]:
    """Return the options that a schedule has: those with which its code, compiled for a device, differs."""
    split = () if problem.experts else ("split_k",)
    described = ("descriptors",) if has_described_operands(problem, hardware) else ()
    own = ("waves_per_eu",) if is_amd(hardware) else ()
    return ("group_m", *split, "num_warps", "num_stages", *described, *own)


def check_supported(workload: Workload, hardware: GpuSpec) -> ScaledProblem:
    """Return the problem of a workload; raise SpaceError unless the template takes it on a device.

    Raises
    ------
    SpaceError
        No matrix unit multiplies such operands.
    """
    if workload.dtype == "float32" or workload.epilogue:
        raise SpaceError(
            f"{workload.operator}: {workload.formats} has kernels for CPUs only (template scaled), but "
            f"{hardware.name} is a GPU; take bfloat16xint8 or bfloat16xint4, without fused steps"
        )
    problem = scaled_problem_of(workload)
    word = str(workload.attribute["dtype"]).partition(":")[0]
    if problem.format.run and scaled_instruction(hardware.arch, word) is None:
        having = ", ".join(arch for arch in ARCHS if scaled_instruction(arch, word))
        raise SpaceError(
            f"{workload.operator}: {hardware.name} ({hardware.arch}) has no matrix instruction for {word}, expected "
            f"one of {having}; take float8_e4m3fn, int8, weights of 4 bits or another device"
        )
    check_multiplied(workload.operator, multiplied(problem), hardware)
    return problem


def check_scaled(schedule: Schedule) -> None:
    """Raise SpaceError unless these are a schedule of products with scales or of experts."""
    hardware = gpu_of(schedule)
    problem = check_supported(schedule.workload, hardware)
    extents = {"m": problem.rows, "n": problem.columns, "k": problem.k}
    check_tiles(schedule, LEVELS, extents, options_of(problem, hardware), OPTIONS)
    for axis, least in least_tile(problem, hardware).items():
        if (size := schedule.tiles[axis][-1]) < least:
            raise SpaceError(f"tiles[{axis!r}] has a tile of {size}, expected at least {least} for these operands")
    if problem.scales == "blocks" and (depth := schedule.tiles["k"][-1]) > SIDE:
        raise SpaceError(f"tiles['k'] has a tile of {depth}, expected at most {SIDE}: a step has one scale")
    warps = warps_of(problem, hardware)
    if is_scaled_by_tcgen05(problem, hardware) and schedule.options["num_warps"] not in warps:
        raise SpaceError(
            f"option num_warps is {schedule.options['num_warps']}, expected one of {', '.join(map(str, warps))}: "
            "tcgen05 takes operands with scales from whole groups of four warps"
        )
    split = schedule.options.get("split_k", 1)
    if isinstance(split, int) and split > schedule.tiles["k"][0]:
        raise SpaceError(f"option split_k is {split}, expected at most the {schedule.tiles['k'][0]} steps of k")


def is_scaled_by_tcgen05(problem: ScaledProblem, hardware: GpuSpec) -> bool:
    """Whether scales go to tensor memory, from where tcgen05 takes them."""
    return problem.format.run > 0 and instruction_of(hardware, multiplied(problem)).unit == Unit.TCGEN05


def least_tile(problem: ScaledProblem, hardware: GpuSpec) -> dict[str, int]:
    """Return index -> smallest tile: what Triton takes, whole groups of scales, rows that units multiply with them."""
    found = problem.format
    rows = SCALED_ROWS if is_scaled_by_tcgen05(problem, hardware) else LEAST_TILE
    depth = SCALED_DEPTH if found.run else LEAST_TILE if found.weight_bits == 16 else 2 * LEAST_TILE
    return {"m": rows, "n": LEAST_TILE, "k": depth}


def warps_of(problem: ScaledProblem, hardware: GpuSpec) -> tuple[int, ...]:
    """Return the warps that are tried."""
    if is_scaled_by_tcgen05(problem, hardware):
        return 4, 8
    return (1, 2, 4, 8) if is_amd(hardware) else (2, 4, 8)
