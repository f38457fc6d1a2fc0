"""The rules of products with scales and of experts in the template "triton"."""

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
    DotUnit,
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
    "dot_type",
    "is_scaled_by_tcgen05",
    "least_tile",
    "options_of",
    "warps_of",
]

_ALIGNMENT = 16
PROMOTED_DEPTH = 128
"""Products after which sums of 8-bit floats leave a tensor core that keeps few bits of them. Source: [DeepSeek-V3]
Sec. 3.3.2."""


def dot_type(problem: ScaledProblem) -> str:
    """Return the dtype that matrix units multiply. Two 4-bit floats count as one 8-bit float."""
    return "float8_e4m3fn" if problem.format.run else problem.format.data


def crosses_blocks(problem: ScaledProblem, block_n: NDArray[np.int64] | int) -> NDArray[np.bool_]:
    """Return whether columns of a tile belong to several blocks of the weights, which have different scales."""
    crosses: NDArray[np.bool_] = problem.activation | (SIDE % np.asarray(block_n) > 0)
    return crosses


def has_described_operands(problem: ScaledProblem, hardware: GpuSpec) -> bool:
    """Return whether tensor descriptors can copy the operands: there are no experts, rows are multiples of 16 bytes."""
    bits = (problem.format.data_bits, problem.format.weight_bits)
    aligned = all(problem.k * size // 8 % _ALIGNMENT == 0 for size in bits)
    return has_descriptors(hardware) and not problem.experts and aligned


def options_of(problem: ScaledProblem, hardware: GpuSpec) -> tuple[str, ...]:
    """Return the options that a schedule has: those that change the code for this problem and device."""
    split = () if problem.experts else ("split_k",)
    described = ("descriptors",) if has_described_operands(problem, hardware) else ()
    amd_options = ("waves_per_eu",) if is_amd(hardware) else ()
    return ("group_m", *split, "num_warps", "num_stages", *described, *amd_options)


def check_supported(workload: Workload, hardware: GpuSpec) -> ScaledProblem:
    """Return the problem of a workload. Raise SpaceError unless the template takes it on a device.

    Raises
    ------
    SpaceError
        No matrix unit multiplies such operands.
    """
    if workload.dtype == "float32" or workload.epilogue:
        raise SpaceError(
            f"{workload.operator}: {workload.formats} has kernels for CPUs only (template scaled), but "
            f"{hardware.name} is a GPU; choose bfloat16xint8 or bfloat16xint4, without an epilogue"
        )
    problem = scaled_problem_of(workload)
    word = str(workload.attribute["dtype"]).partition(":")[0]
    if problem.format.run and scaled_instruction(hardware.arch, word) is None:
        having = ", ".join(arch for arch in ARCHS if scaled_instruction(arch, word))
        raise SpaceError(
            f"{workload.operator}: {hardware.name} ({hardware.arch}) has no matrix instruction for {word}, expected "
            f"one of {having}; choose float8_e4m3fn, int8, 4-bit weights or another device"
        )
    check_multiplied(workload.operator, dot_type(problem), hardware)
    return problem


def check_scaled(schedule: Schedule) -> None:
    """Raise SpaceError unless the schedule is one of products with scales or of experts."""
    hardware = gpu_of(schedule)
    problem = check_supported(schedule.workload, hardware)
    extents = {"m": problem.rows, "n": problem.columns, "k": problem.k}
    check_tiles(schedule, LEVELS, extents, options_of(problem, hardware), OPTIONS)
    for axis, least in least_tile(problem, hardware).items():
        if (size := schedule.tiles[axis][-1]) < least:
            raise SpaceError(f"tiles[{axis!r}] has a tile of {size}, expected at least {least} for these operands")
    if problem.scales == "blocks" and (depth := schedule.tiles["k"][-1]) > SIDE:
        raise SpaceError(f"tiles['k'] has a tile of {depth}, expected at most {SIDE}: each step has one scale")
    warps = warps_of(problem, hardware)
    if is_scaled_by_tcgen05(problem, hardware) and schedule.options["num_warps"] not in warps:
        raise SpaceError(
            f"option num_warps is {schedule.options['num_warps']}, expected one of {', '.join(map(str, warps))}: "
            "tcgen05 multiplies operands with scales in groups of four warps"
        )
    split = schedule.options.get("split_k", 1)
    if isinstance(split, int) and split > schedule.tiles["k"][0]:
        raise SpaceError(f"option split_k is {split}, expected at most {schedule.tiles['k'][0]}, the steps of k")


def is_scaled_by_tcgen05(problem: ScaledProblem, hardware: GpuSpec) -> bool:
    """Return whether tcgen05 reads the scales, from tensor memory."""
    return problem.format.run > 0 and instruction_of(hardware, dot_type(problem)).unit == DotUnit.TCGEN05


def least_tile(problem: ScaledProblem, hardware: GpuSpec) -> dict[str, int]:
    """Return index -> smallest tile: Triton's limit, whole groups of scales, rows that units multiply with scales."""
    formats = problem.format
    rows = SCALED_ROWS if is_scaled_by_tcgen05(problem, hardware) else LEAST_TILE
    depth = SCALED_DEPTH if formats.run else LEAST_TILE if formats.weight_bits == 16 else 2 * LEAST_TILE
    return {"m": rows, "n": LEAST_TILE, "k": depth}


def warps_of(problem: ScaledProblem, hardware: GpuSpec) -> tuple[int, ...]:
    """Return the values of num_warps in the space."""
    if is_scaled_by_tcgen05(problem, hardware):
        return 4, 8
    return (1, 2, 4, 8) if is_amd(hardware) else (2, 4, 8)
