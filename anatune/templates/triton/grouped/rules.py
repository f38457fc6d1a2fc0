"""What is a schedule of products with scales and of products of experts, and which the template "triton" takes."""

from __future__ import annotations

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.scaling import SIDE
from anatune.errors import SpaceError
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.grouped.problem import ScaledProblem, scaled_problem_of
from anatune.templates.triton.instructions import has_descriptors
from anatune.templates.triton.rules import LEAST_TILE, LEVELS, OPTIONS, check_multiplied, check_tiles, is_amd

__all__ = ["PROMOTED_DEPTH", "check_scaled", "check_supported", "least_depth", "multiplied", "options_of"]

_SCALED_UNITS: dict[str, tuple[str, ...]] = {
    "mxfp8": ("sm_100", "sm_103", "sm_120", "gfx950"),
    "mxfp4": ("sm_100", "sm_103", "sm_120", "gfx950"),
    "nvfp4": ("sm_100", "sm_103", "sm_120"),
}
"""Format -> architectures whose matrix units take it as it is. Read off kernels of Triton 3.9; elsewhere it converts
operands through local memory, or fails."""
_ALIGNMENT = 16
PROMOTED_DEPTH = 128
"""Products after which sums of 8-bit floats leave a tensor core that keeps few bits of them. Source: [DeepSeek-V3]
Sec. 3.3.2."""


def multiplied(problem: ScaledProblem) -> str:
    """Return the dtype that matrix units multiply; of 4-bit floats that of 8 bits, two of which they count as one."""
    return "float8_e4m3fn" if problem.format.run else problem.format.data


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
    problem = scaled_problem_of(workload)
    word = str(workload.attribute["dtype"]).partition(":")[0]
    if word in _SCALED_UNITS and hardware.arch not in _SCALED_UNITS[word]:
        raise SpaceError(
            f"{workload.operator}: {hardware.name} ({hardware.arch}) has no matrix instruction for {word}, expected "
            f"one of {', '.join(_SCALED_UNITS[word])}; take float8_e4m3fn or another device"
        )
    check_multiplied(workload.operator, multiplied(problem), hardware)
    return problem


def check_scaled(schedule: Schedule) -> None:
    """Raise SpaceError unless these are a schedule of products with scales or of experts."""
    hardware = gpu_of(schedule)
    problem = check_supported(schedule.workload, hardware)
    extents = {"m": problem.rows, "n": problem.columns, "k": problem.k}
    check_tiles(schedule, LEVELS, extents, options_of(problem, hardware), OPTIONS)
    block_k = schedule.tiles["k"][-1]
    if problem.scales == "blocks" and block_k > SIDE:
        raise SpaceError(f"tiles['k'] has a tile of {block_k}, expected at most {SIDE}: a step has one scale")
    if (least := least_depth(problem)) > block_k:
        raise SpaceError(f"tiles['k'] has a tile of {block_k}, expected at least {least} for this format")
    split = schedule.options.get("split_k", 1)
    if isinstance(split, int) and split > schedule.tiles["k"][0]:
        raise SpaceError(f"option split_k is {split}, expected at most the {schedule.tiles['k'][0]} steps of k")


def least_depth(problem: ScaledProblem) -> int:
    """Return the smallest block_k: what Triton takes, and whole groups of scales of both operands."""
    found = problem.format
    return 128 if found.run else LEAST_TILE if found.weight_bits == 16 else 2 * LEAST_TILE
