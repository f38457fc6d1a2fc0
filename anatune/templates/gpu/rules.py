"""Rules that the GPU templates share."""

from __future__ import annotations

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.number_formats import PLAIN_DTYPES
from anatune.errors import SpaceError
from anatune.templates.base.model import Rule

__all__ = ["GRID_RULE", "MAX_GRID", "SPLIT_RULE", "block_rules", "check_formats", "gpu_of", "has_cuda_code"]

MAX_GRID = 2147483647.0
"""The most blocks of a grid along x. Source: [CUDA-guide] technical specifications."""
GRID_RULE = Rule("grid_blocks", "blocks of the grid", MAX_GRID)
SPLIT_RULE = Rule("split_parts", "parts of a reduction without a step, or split leftover tiles if none are left", 0.0)


def gpu_of(schedule: Schedule) -> GpuSpec:
    """Return the device of a schedule of a template for GPUs."""
    hardware = schedule.hardware
    assert isinstance(hardware, GpuSpec)  # of the template's kind: `core.schedule`
    return hardware


def has_cuda_code(workload: Workload) -> bool:
    """Return whether the templates in CUDA C have code for the operator and number formats of a workload."""
    return not workload.is_quantised and not workload.is_kernel and workload.formats in PLAIN_DTYPES


def check_formats(workload: Workload) -> None:
    """Raise SpaceError for a workload whose number formats have no kernel in CUDA C.

    Such formats are 8-bit floats, scales, zero points and results that are wider than the operands. Kernels for CPUs or
    for newer matrix units may take them.
    """
    if has_cuda_code(workload):
        return
    if workload.is_kernel:
        raise SpaceError(
            f"{workload.operator} has no kernel in CUDA C, expected --template triton and a device that Triton "
            "compiles for (sm_80 and later, gfx90a, gfx942, gfx950)"
        )
    steps = f" with the epilogue ({', '.join(workload.epilogue)})" if workload.epilogue else ""
    zeros = " and a zero point" if any(access.zero_point for access in workload.tensors) else ""
    elsewhere = "a CPU as --hw"
    if workload.needs_matrix_units:
        elsewhere = "a GPU as --hw whose matrix units multiply it (8-bit floats: sm_89 and later, gfx942, gfx950)"
    raise SpaceError(
        f"{workload.operator}: {workload.formats}{steps}{zeros} has no kernel in CUDA C, expected one dtype for "
        f"operands and result ({', '.join(PLAIN_DTYPES)}: summed in int32) without scales; change the dtype, "
        f"choose {elsewhere}, or leave out --template if one is named"
    )


def block_rules(hardware: GpuSpec, shared: str, registers: str = "") -> tuple[Rule, ...]:
    """Return the rules about threads, shared memory and registers (if their text is not empty) of a block."""
    rules = (
        Rule("threads_per_block", "threads of a block", float(hardware.compute.max_threads_per_block)),
        Rule("shared_bytes_per_block", shared, float(hardware.shared_memory.per_block_bytes)),
    )
    if not registers:
        return rules
    most = min(hardware.registers.per_thread, hardware.compiler.registers_per_thread)
    return (*rules, Rule("registers_per_thread", registers, float(most)))
