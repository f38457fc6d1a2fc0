"""Schedules on tensor cores: the template "tensorcore"."""

from __future__ import annotations

from collections.abc import Mapping

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.implicit_gemm import implicit_gemm
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.values import check_count, check_cover, check_names, checked_count
from anatune.templates.gpu.rules import check_formats, gpu_of
from anatune.templates.gpu.split import SPLIT, check_split

__all__ = [
    "INSTRUCTION",
    "LEVELS",
    "STAGES",
    "check_supported",
    "check_tensorcore",
    "checked_width",
    "fetch_widths",
    "levels_of",
]

INSTRUCTION: dict[str, tuple[int, int, int]] = {"float16": (16, 8, 16), "bfloat16": (16, 8, 16), "float32": (16, 8, 8)}
"""Operand dtype -> m, n, k of one ``mma.sync``; float32 operands are rounded to tf32. Source: [PTX-ISA] Sec. 9.7.14."""
LEVELS: dict[str, tuple[str, ...]] = {
    "m": ("block", "warp", "mma", "lanes"),
    "n": ("block", "warp", "mma", "lanes"),
    "k": ("stage", "mma", "lanes"),
}
"""Factors of each fused index in ``Schedule.tiles``, outer to inner; the last is the instruction's own size."""
STAGES = (1, 2, 3, 4)
_LEAST_CAPABILITY = 8.0


def levels_of(workload: Workload) -> dict[str, tuple[str, ...]]:
    """Return fused index -> names of its factors, outer to inner."""
    return dict(LEVELS)


def check_supported(workload: Workload, hardware: GpuSpec) -> None:
    """Raise SpaceError unless the template applies.

    Raises
    ------
    SpaceError
        The device has no ``mma.sync`` with asynchronous copies, the dtype no instruction, the number formats are not
        for GPUs, or the workload is no matrix product.
    """
    capability = hardware.compute_capability
    if capability is None or capability < _LEAST_CAPABILITY:
        raise SpaceError(
            f"{hardware.name} ({hardware.arch}) has no tensor cores that the template tensorcore can use, expected "
            "sm_80 or later; leave out the template"
        )
    if workload.dtype not in INSTRUCTION:
        raise SpaceError(
            f"{workload.operator}: dtype is {workload.dtype}, expected one of {', '.join(INSTRUCTION)} for the "
            "template tensorcore; leave it out"
        )
    check_formats(workload)
    implicit_gemm(workload)


def fetch_widths(workload: Workload) -> dict[str, tuple[int, ...]]:
    """Return operand (left, right) -> elements that can be fetched at once, ascending."""
    operands = implicit_gemm(workload).operands
    return {operand.access.tensor: tuple(2**e for e in range(operand.width.bit_length())) for operand in operands}


def checked_width(tensor: str, width: object, widths: Mapping[str, tuple[int, ...]]) -> int:
    """Return a fetch width; raise SpaceError where there is no such operand, or it is not aligned for that width."""
    check_names("vector", (tensor,), widths, "tensor")
    found = checked_count(f"vector[{tensor!r}]", width, 1)
    if found not in widths[tensor]:
        raise SpaceError(f"vector[{tensor!r}] is {found}, expected one of {widths[tensor]}: wider ones are not aligned")
    return found


def check_tensorcore(schedule: Schedule) -> None:
    """Raise SpaceError unless these are a schedule of the template "tensorcore"."""
    workload, tiles, options, vector = schedule.workload, schedule.tiles, schedule.options, schedule.vector
    check_supported(workload, gpu_of(schedule))
    check_names("options", options, ("stages", "group", *SPLIT))
    check_count("option stages", options.get("stages"), min(STAGES), max(STAGES))
    check_count("option group", options.get("group"), 1)
    check_count("unroll", schedule.unroll, 0, 0)
    gemm, instruction = implicit_gemm(workload), dict(zip(LEVELS, INSTRUCTION[workload.dtype], strict=True))
    for axis, lanes in instruction.items():
        check_cover(axis, tiles.get(axis), LEVELS[axis], gemm.extents[axis], lanes)
    check_names("tiles", tiles, LEVELS, "index")
    widths = fetch_widths(workload)
    check_names("vector", vector, widths, "tensor")
    for tensor in widths:
        checked_width(tensor, check_count(f"vector[{tensor!r}]", vector.get(tensor), 1), widths)
    blocks = {axis: factors[0] for axis, factors in tiles.items() if isinstance(factors, tuple)}
    check_split(workload, options, gemm.extents["batch"] * blocks["m"] * blocks["n"], blocks["k"])
