"""The rules of products in the template "triton": workloads and devices that it takes, and legal schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.access import FLOAT8_DTYPES
from anatune.core.workload.implicit_gemm import ImplicitGemm, implicit_gemm
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.errors import SpaceError
from anatune.templates.base.values import check_count, check_cover, check_names
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.instructions import (
    DotUnit,
    has_descriptors,
    instruction_of,
    instructions_of,
    known_operands,
    operand_type,
)

__all__ = [
    "DTYPES",
    "LEAST_TILE",
    "LEVELS",
    "OPTIONS",
    "OPTION_MEANINGS",
    "check_multiplied",
    "check_options",
    "check_supported",
    "check_tiles",
    "check_triton",
    "is_amd",
    "loses_sums",
    "loses_sums_of",
    "multiplied_dtype",
    "options_of",
]

LEVELS: dict[str, tuple[str, ...]] = {"m": ("block", "tile"), "n": ("block", "tile"), "k": ("step", "tile")}
"""Levels of each fused index in ``Schedule.tiles``: blocks of the grid (or steps of the loop), and block_m, block_n,
block_k."""
DTYPES = ("float32", "float16", "bfloat16", "int8", *FLOAT8_DTYPES)
"""Dtypes of operands. float32 is rounded to tf32, which needs the accuracy "relaxed"."""
OPTIONS: dict[str, tuple[int, int]] = {
    "group_m": (1, 2**20),
    "split_k": (1, 4096),
    "num_warps": (1, 32),
    "num_stages": (1, 8),
    "descriptors": (0, 1),
    "persistent": (0, 1),
    "promote": (0, 2**20),
    "warp_specialize": (0, 1),
    "waves_per_eu": (0, 10),
    "matrix_instr_nonkdim": (0, 32),
}
"""Option of a schedule -> least and largest value; `OPTION_MEANINGS` explains each option."""
OPTION_MEANINGS = {
    "group_m": "tiles of rows that are computed one after another, so that they share columns in the L2 cache",
    "split_k": "programs that share the reduction of a tile",
    "split_kv": "programs that share the keys of a tile",
    "num_warps": "warps of a program",
    "num_stages": "stages of the software pipeline",
    "descriptors": "1 if operands are loaded through tensor descriptors (TMA)",
    "persistent": "1 if one program a multiprocessor computes several tiles in turn",
    "promote": "steps of k after which sums of 8-bit floats move from the tensor core to registers, 0 for never",
    "warp_specialize": "1 if some warps load operands and start products while the others store the previous tile",
    "waves_per_eu": "waves of an execution unit that the compiler aims at",
    "matrix_instr_nonkdim": "rows and columns of the matrix instruction",
}
LEAST_TILE = 16
_MFMA_ROWS = (0, 16, 32)
"""Values of "matrix_instr_nonkdim": rows and columns of the results of AMD's instructions."""


def is_amd(hardware: GpuSpec) -> bool:
    """Return whether AMD is the vendor of a device."""
    return hardware.vendor == "amd"


def options_of(workload: Workload, hardware: GpuSpec) -> tuple[str, ...]:
    """Return the options that a schedule has: those that change the code for this workload and device."""
    amd_options = ("waves_per_eu", "matrix_instr_nonkdim") if is_amd(hardware) else ()
    tma = ("descriptors", "persistent") if has_descriptors(hardware) and _is_described(workload) else ()
    promote = ("promote",) if loses_sums(workload, hardware) else ()
    special = ("warp_specialize",) if tma and _has_tensor_memory(workload, hardware) else ()
    return ("group_m", "split_k", "num_warps", "num_stages", *tma, *promote, *special, *amd_options)


def _has_tensor_memory(workload: Workload, hardware: GpuSpec) -> bool:
    """Return whether tcgen05 multiplies operands without conversion. On sm_90 the option changes no code."""
    instructions = instructions_of(hardware.arch, operand_type(multiplied_dtype(workload)))
    return instructions is not None and instructions[0].unit == DotUnit.TCGEN05 and _need_no_conversion(workload)


@lru_cache(maxsize=64)
def _need_no_conversion(workload: Workload) -> bool:
    """Return whether warps need not convert operands, or transpose 32-bit ones, between copy and product."""
    gemm = implicit_gemm(workload)
    sizes = {DTYPE_BYTES[operand.access.dtype] for operand in gemm.operands}
    return len(sizes) == 1 and (sizes != {4} or all(operand.along_k for operand in gemm.operands))


@lru_cache(maxsize=64)  # a list of schedules is checked one by one
def _is_described(workload: Workload) -> bool:
    from anatune.templates.triton.program.descriptors import can_describe  # late: most callers write no programs

    return can_describe(workload, implicit_gemm(workload))


def loses_sums(workload: Workload, hardware: GpuSpec) -> bool:
    """Return whether matrix units keep few bits of sums: wgmma with 8-bit floats. Source: [DeepSeek-V3] Sec. 3.3.2."""
    return loses_sums_of(multiplied_dtype(workload), hardware)


def loses_sums_of(dtype: str, hardware: GpuSpec) -> bool:
    """Return whether matrix units keep few bits of sums of operands of a dtype."""
    return dtype.startswith("float8") and hardware.arch == "sm_90"


def check_options(workload: Workload, hardware: GpuSpec, options: Iterable[str]) -> None:
    """Raise SpaceError for options that a schedule of this workload does not have on this device."""
    allowed = options_of(workload, hardware)
    for name in ("descriptors", "persistent"):
        if name in options and name not in allowed:
            raise SpaceError(
                f"option {name}: {hardware.name} ({hardware.arch}) has no tensor descriptors for this "
                f"{workload.operator}, expected sm_90 or later, and unpadded matrices whose rows are multiples of 16 "
                "bytes; leave the option out"
            )
    if "warp_specialize" in options and "warp_specialize" not in allowed:
        raise SpaceError(
            f"option warp_specialize: {hardware.name} ({hardware.arch}) has no specialised warps for this "
            f"{workload.operator}, expected tcgen05 (sm_100, sm_103) and operands with tensor descriptors that need no "
            "conversion; leave the option out"
        )
    check_names("options", options, allowed, "option")


def multiplied_dtype(workload: Workload) -> str:
    """Return the dtype that matrix units multiply: that of the wider operand, to which the other is converted."""
    return max((read.dtype for read in workload.reads), key=lambda dtype: DTYPE_BYTES[dtype])


def _check_operands(workload: Workload, hardware: GpuSpec) -> None:
    """Raise SpaceError unless the device's matrix units multiply a workload's operands, as far as its spec says."""
    dtypes = [read.dtype for read in workload.reads]
    if not set(dtypes) <= {*DTYPES} or "requantize" in workload.epilogue or any(t.zero_point for t in workload.tensors):
        raise SpaceError(
            f"{workload.operator}: the template triton does not take {workload.formats} with the epilogue "
            f"({', '.join(workload.epilogue)}), expected operands of {', '.join(DTYPES)} without zero points and "
            "requantize; leave out the template"
        )
    check_multiplied(workload.operator, multiplied_dtype(workload), hardware)


def check_multiplied(operator: str, dtype: str, hardware: GpuSpec) -> None:
    """Raise SpaceError unless a device's matrix units multiply operands of a dtype, as far as its spec says."""
    if hardware.tensor_cores is None and known_operands(hardware.arch):
        raise SpaceError(
            f"{hardware.name}: the spec has no rates of its matrix units; add a [tensor_cores] group, as "
            "`anatune hw show a100` has one, or choose another template"
        )
    instruction_of(hardware, operand_type(dtype))
    if hardware.tensor_flop_per_s(dtype) is None:
        raise SpaceError(
            f"{operator}: {hardware.name} ({hardware.arch}) has no matrix instruction for {dtype} operands; choose "
            "another dtype, device or template"
        )


def check_supported(workload: Workload, hardware: GpuSpec) -> ImplicitGemm:
    """Return the matrix product that a workload computes. Raise SpaceError unless the template takes it.

    Raises
    ------
    SpaceError
        The device has no matrix units that Triton uses or no instruction for the dtypes, or the workload is not a
        matrix product.
    """
    _check_operands(workload, hardware)
    return implicit_gemm(workload)


def check_tiles(
    schedule: Schedule,
    levels: Mapping[str, tuple[str, ...]],
    extents: Mapping[str, int],
    allowed: Sequence[str],
    limits: Mapping[str, tuple[int, int]],
) -> None:
    """Raise SpaceError unless tiles are powers of two for each index and the options are `allowed`, in range.

    Parameters
    ----------
    levels : mapping of str to tuple of str
        Index -> names of its two levels.
    extents : mapping of str to int
        Index -> iterations.
    limits : mapping of str to (int, int)
        Option -> least and largest value.
    """
    options = schedule.options
    check_names("options", options, allowed, "option")
    for name in allowed:
        check_count(f"option {name}", options.get(name), *limits[name])
    check_count("unroll", schedule.unroll, 0, 0)
    check_names("vector", schedule.vector, (), "tensor")
    check_names("tiles", schedule.tiles, levels, "index")
    for axis, names in levels.items():
        check_cover(axis, schedule.tiles.get(axis), names, extents[axis])
        tile = schedule.tiles[axis][-1]
        if tile < LEAST_TILE or tile & (tile - 1):
            raise SpaceError(f"tiles[{axis!r}] has a tile of {tile}, expected a power of two >= {LEAST_TILE}")
    warps = options["num_warps"]
    if isinstance(warps, int) and warps & (warps - 1):
        raise SpaceError(f"option num_warps is {warps}, expected a power of two")


def check_triton(schedule: Schedule) -> None:
    """Raise SpaceError unless the schedule is a product of the template "triton"."""
    workload, hardware, options = schedule.workload, gpu_of(schedule), schedule.options
    gemm = check_supported(workload, hardware)
    allowed = options_of(workload, hardware)
    check_options(workload, hardware, options)
    check_tiles(schedule, LEVELS, gemm.extents, allowed, OPTIONS)
    steps, split = schedule.tiles["k"][0], options["split_k"]
    if isinstance(split, int) and split > steps:
        raise SpaceError(f"option split_k is {split}, expected at most {steps}, the number of steps along k")
    if (rows := options.get("matrix_instr_nonkdim", 0)) not in _MFMA_ROWS:
        known_rows = ", ".join(map(str, _MFMA_ROWS))
        raise SpaceError(
            f"option matrix_instr_nonkdim is {rows}, expected one of {known_rows} (0: the compiler chooses)"
        )
    if options.get("persistent") and options["split_k"] != 1:
        raise SpaceError("options persistent and split_k are both set, expected at most one; set split_k to 1")
    if options.get("warp_specialize") and not (options["persistent"] and options["descriptors"]):
        raise SpaceError("option warp_specialize is set, expected persistent and descriptors to be set, too")
