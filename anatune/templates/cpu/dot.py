"""Schedules that sum products of neighbours with one dot instruction (VDPBF16PS, VPDPBUSD, ...), and what it requires.

A dot instruction multiplies groups of neighbours along one reduction axis, 2 of bfloat16 or 4 of 8 bits, and adds the
sum of each group to one lane of an accumulator of four bytes. One operand is a vector of groups, one group for each
lane. It is packed with the groups innermost. From the other operand one group is loaded, as 32 bits, and broadcast to
all lanes. Its groups are contiguous in memory (channels last, or a matrix along its rows), or it is packed too. An
unrolled step of the microkernel is one group. If the unroll factor of the axis is no multiple of the group, the last
group is filled with zeros.

VPMADDWD multiplies pairs of 16 bits and does not accumulate: another instruction adds its sums. Elements of 8 bits are
converted for it. Those of the vector operand are converted when they are loaded. Those of the broadcast operand are
converted in a copy that each run makes, and their zero point is subtracted there, so that accumulators start from zero.
VPMADDUBSW takes 8 bits but saturates, so it is never used.

VFMADDPH sums in half precision. Each lane holds two sums: one of the first and one of the second elements of its
groups. A call of the microkernel adds the two and converts the result to float32 at its end. So the length of a call
limits the rounding error.

Everything here follows from access maps, dtypes and the spec, never from the name of the operator.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from anatune.core.hardware.dot import HALF_SUMS, TILES, WIDENED, dot_instructions, instruction_of
from anatune.core.hardware.spec import DOT_INSTRUCTIONS, CpuSpec
from anatune.core.workload.nest import ACCUMULATOR_DTYPE, Access, Workload
from anatune.errors import SpaceError
from anatune.templates.cpu.microkernels import (
    constant_tensors,
    packable_tensors,
    simd_axis,
    simd_lanes,
    vector_stride,
    window_axes,
)

__all__ = [
    "TILE_REGISTERS",
    "TILE_ROWS",
    "TILE_STEPS",
    "DotGroup",
    "check_tile_registers",
    "converted_operands",
    "copied_dtypes",
    "dot_group",
    "dot_note",
    "half_additions",
    "half_sums_apply",
    "has_instruction",
    "most_half_terms",
    "packable_in_groups",
    "pairable_axes",
    "tile_depths",
    "tiles_apply",
]


_FLIPPED = 128
"""The difference between a signed 8-bit number and the same bits, the highest one flipped, read as unsigned."""
_MOST_TERMS = 128
"""Most products that a call sums in half precision: 64 for each of the two sums of a lane.

The error grows with the square root of this number, and the cost of ending calls falls with it.
"""
_LEAST_TERMS = 32
"""Fewest products of a call: below, converting the sums takes as long as computing them."""


class DotGroup(NamedTuple):
    """The groups in which a dot instruction sums the products of a workload.

    Attributes
    ----------
    instruction : str
    axis : str
        Reduction axis whose neighbours form groups.
    size : int
        Elements of a group.
    vectors, broadcast : str
        The operand that is loaded as vectors, and the one of which a group is broadcast to all lanes.
    packed : tuple of str
        Operands that must be packed.
    flips : bool
        True if the broadcast operand is signed and the instruction takes it unsigned: it is read plus 128.
    shift : int
        How much elements of the broadcast operand, as they are read, exceed the numbers they stand for. Accumulators
        start from minus this times the sums of the vector operand along the reduction. Zeros of padding then count like
        other elements.
    unroll : int
        Elements along the axis that the unrolled steps of a schedule cover. The last group can be partly used.
    """

    instruction: str
    axis: str
    size: int
    vectors: str
    broadcast: str
    packed: tuple[str, ...]
    flips: bool = False
    shift: int = 0
    unroll: int = 1

    @property
    def last(self) -> int:
        """Elements of the last group of the unrolled steps."""
        return (self.unroll - 1) % self.size + 1


TILE_ROWS = 16
"""Rows of an AMX tile."""
TILE_STEPS = 16
"""Groups in a row of an AMX tile, which has 64 bytes."""
TILE_REGISTERS = 8
"""Number of AMX tile registers."""


@lru_cache(maxsize=256)
def dot_group(workload: Workload, hardware: CpuSpec, simd: str, *, extension: str = "") -> DotGroup | None:
    """Return the groups of products of schedules that vectorise the axis `simd`; None if no instruction applies.

    Parameters
    ----------
    extension : {"", "fp16", "amx"}
        The option "extension" of schedules: "fp16" requires an instruction that sums in half precision, "amx" for one
        on tiles.
    """
    reads = workload.reads
    spatial = {axis.name for axis in workload.spatial_axes}
    if workload.body != "multiply_add" or len(reads) != 2 or simd not in spatial:
        return None
    vectors = [access for access in reads if access.uses(simd)]
    if len(vectors) != 1:
        return None
    vector = vectors[0]
    broadcast = reads[0] if vector is reads[1] else reads[1]
    instruction = instruction_of(hardware, broadcast.dtype, vector.dtype, extension=extension)
    axes = _candidates(workload, reads)
    if instruction is None or not axes or _has_window(vector) or vector.zero_point:
        return None
    axis = min(axes, key=lambda name: (vector_stride(broadcast, name) != 1, -workload.extents[name]))
    packed = [vector.tensor] if vector_stride(broadcast, axis) == 1 else [read.tensor for read in reads]
    name, size = instruction
    if name in TILES and len(packed) > 1:  # the groups of a tile row have to be contiguous
        return None
    flips = name == "vpdpbusd" and broadcast.dtype == "int8"
    shift = 0 if name in WIDENED else broadcast.zero_point + (_FLIPPED if flips else 0)
    return DotGroup(name, axis, size, vector.tensor, broadcast.tensor, tuple(packed), flips, shift)


def has_instruction(workload: Workload, hardware: CpuSpec) -> bool:
    """Return whether a dot instruction of the CPU sums products of a workload in float32 or int32."""
    simd = simd_axis(workload, simd_lanes(workload, hardware.compute.simd_bits), constant_tensors(workload))
    return any(dot_group(workload, hardware, simd, extension=extension) for extension in ("", "amx"))


def copied_dtypes(workload: Workload, simd: str, dot: DotGroup | None, ahead: Collection[str] = ()) -> dict[str, str]:
    """Return the operands that are read from a copy made in each run -> dtype of the copy.

    These are operands of a product that are loaded element by element for all lanes. Without a copy, each element would
    be converted, or each incomplete group assembled, once for every vector it meets. The copy does that once.

    Parameters
    ----------
    ahead : collection of str
        Tensors that are packed before the run, without a conversion.
    """
    if workload.body != "multiply_add" or len(workload.reads) != 2:
        return {}
    dtypes = {}
    for read in workload.reads:
        dtype = ACCUMULATOR_DTYPE[workload.dtype] if dot is None else WIDENED.get(dot.instruction, read.dtype)
        is_whole = dot is None or workload.extents[dot.axis] % dot.size == 0
        if not read.uses(simd) and read.tensor not in ahead and not (dtype == read.dtype and is_whole):
            dtypes[read.tensor] = dtype
    return dtypes


def converted_operands(dot: DotGroup | None) -> tuple[str, ...]:
    """Return the operands that cannot be packed before the run because their copies have another dtype."""
    return (dot.broadcast,) if dot is not None and dot.instruction in WIDENED else ()


def half_sums_apply(workload: Workload, hardware: CpuSpec) -> bool:
    """Return whether template "fp16_accumulation" applies: the CPU has the instruction, and calls are long enough."""
    constants = constant_tensors(workload)
    simd = simd_axis(workload, simd_lanes(workload, hardware.compute.simd_bits), constants)
    dot = dot_group(workload, hardware, simd, extension="fp16")
    if dot is None:
        return False
    extent, most = workload.extents[dot.axis], most_half_terms(workload, dot)
    longest = max((terms for terms in range(dot.size, most + 1) if extent % terms == 0), default=0)
    return longest * workload.num_reduced // extent >= _LEAST_TERMS


def tiles_apply(workload: Workload, hardware: CpuSpec) -> bool:
    """Return whether template "amx" applies: the CPU multiplies the operands on AMX tiles."""
    constants = constant_tensors(workload)
    simd = simd_axis(workload, simd_lanes(workload, hardware.compute.simd_bits), constants)
    return dot_group(workload, hardware, simd, extension="amx") is not None


def most_half_terms(workload: Workload, dot: DotGroup) -> int:
    """Return the most elements along the axis of the groups for one call, if it covers all other reduction axes."""
    return _MOST_TERMS * workload.extents[dot.axis] // workload.num_reduced


def half_additions(workload: Workload, dot: DotGroup, inner: Mapping[str, Sequence[int]]) -> int:
    """Return the number of additions in each half-precision sum of a call.

    Parameters
    ----------
    inner : mapping of str to sequence of int
        Reduction axis -> its factors "l1" and "unroll".
    """
    return math.prod(
        calls * (-(-size // dot.size) if axis == dot.axis else size) for axis, (calls, size) in inner.items()
    )


def tile_depths(steps: int) -> tuple[int, ...]:
    """Return the number of groups in each of the tile products that sum `steps` unrolled steps; equal if possible."""
    count = -(-steps // TILE_STEPS)
    if steps % count == 0:
        return (steps // count,) * count
    return (*(TILE_STEPS,) * (count - 1), steps % TILE_STEPS)


def check_tile_registers(rows: int, vectors: int, steps: int) -> None:
    """Raise SpaceError unless the sums and operands of a microkernel fit into the AMX tile registers.

    A register keeps one shape during a whole call, so operands of products of another depth need registers of their
    own. LLVM ends the process if it runs out of them.
    """
    blocks, depths = -(-rows // TILE_ROWS), set(tile_depths(steps))
    if (needed := blocks * vectors + (blocks + vectors) * len(depths)) > TILE_REGISTERS:
        depth_note = "" if len(depths) == 1 else f", products of {' and '.join(map(str, sorted(depths)))} steps"
        raise SpaceError(
            f"a register tile of {rows} rows and {vectors} vectors{depth_note} takes {needed} AMX tiles, expected at "
            f"most {TILE_REGISTERS}: 32 rows and 2 vectors"
        )


def dot_note(workload: Workload, hardware: CpuSpec, simd: str, *, extension: str = "") -> str:
    """Return a note that names the instruction for products in narrow dtypes, or says that none applies; else ""."""
    names = DOT_INSTRUCTIONS.get(workload.dtype, ())
    if workload.body != "multiply_add" or len(workload.reads) != 2 or not names:
        return ""
    dot = dot_group(workload, hardware, simd, extension=extension)
    if dot is not None:
        where = ", in half precision" if dot.instruction in HALF_SUMS else ""
        return f"{dot.instruction} sums {dot.size} products of neighbours along {dot.axis} at a time{where}"
    usable = set(names) & set(dot_instructions(hardware))
    why = "no instruction fits the layout of these operands" if usable else "the CPU has no instruction for them"
    if usable and usable <= set(HALF_SUMS):
        why = f"{', '.join(sorted(usable))} sums in half precision: template fp16_accumulation, at --accuracy relaxed"
    return f"slow: {workload.dtype} elements are converted one by one and multiplied at the rate of float32 ({why})"


def _candidates(workload: Workload, reads: Sequence[Access]) -> list[str]:
    """Return the reduction axes that are an index by themselves in both operands."""
    windows = window_axes(workload)
    return [
        axis.name
        for axis in workload.reduction_axes
        if axis.extent > 1 and axis.name not in windows and all(_is_alone(access, axis.name) for access in reads)
    ]


def _is_alone(access: Access, axis: str) -> bool:
    """Return whether an axis alone indexes one dimension, with coefficient 1."""
    moved = [terms for terms in access.indices if any(term.axis == axis for term in terms)]
    return len(moved) == 1 and len(moved[0]) == 1 and moved[0][0].coefficient == 1


def _has_window(access: Access) -> bool:
    """Return whether several axes index one dimension. The tensor then has no packed form in groups."""
    return any(len(terms) > 1 for terms in access.indices)


def packable_in_groups(workload: Workload, simd: str, dot: DotGroup | None) -> tuple[str, ...]:
    """Return the tensors that a schedule may pack, including those that it must pack."""
    packable = packable_tensors(workload, simd)
    if dot is None:
        return packable
    if dot.instruction in TILES:
        return dot.packed
    return tuple(read.tensor for read in workload.reads if read.tensor in (*packable, *dot.packed))


def pairable_axes(workload: Workload, simd: str, dot: DotGroup | None) -> tuple[str, ...]:
    """Return the axes that a pair of microkernels can cover: the spatial ones and the SIMD axis.

    If the vector operand is packed in groups, its axes other than the SIMD axis are left out: a packed form has tiles
    of different sizes along one axis at most.
    """
    spatial = {axis.name for axis in workload.spatial_axes}
    vectors = workload.tensor(dot.vectors) if dot is not None else None
    return tuple(
        axis.name
        for axis in workload.axes
        if axis.name == simd or (axis.name in spatial and not (vectors is not None and vectors.uses(axis.name)))
    )
