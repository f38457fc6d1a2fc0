"""Which CPU schedules sum products of neighbours with one instruction (VDPBF16PS, VPDPBUSD, ..), and what that asks.

Such an instruction multiplies groups of neighbours along one reduction axis, 2 of bfloat16 or 4 of 8 bits, and adds
each group's sum to a lane of an accumulator four bytes wide. One operand is a vector of groups, one for each lane: it
is packed, groups innermost. Of the other one group is loaded, as 32 bits, for all lanes: its groups lie together in
memory (channels last, a matrix along its rows), or it is packed too. A step of the microkernel is one group; where the
unroll factor of the axis is no multiple of the group, the last group of a step is filled up with zeros.

VPMADDWD multiplies pairs of 16 bits and has no accumulator: its sums are added by another instruction. Elements of 8
bits are converted for it, the vectors' when they are loaded; the broadcast operand's in a copy that the run makes, less
their zero point, so that accumulators start from zero. VPMADDUBSW, which takes 8 bits, saturates: it is never used.

VFMADDPH sums in half precision: each lane holds two such sums, those of the first and of the second elements of its
groups. A call of the microkernel ends with their sum as float32, so that it is the call that bounds what they err.

Everything here follows from access maps, dtypes and the spec, never from the operator's name.
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
    "copied_as",
    "copied_in_run",
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
"""What a signed 8-bit number with its highest bit flipped is more, as an unsigned one."""
_MOST_TERMS = 128
"""Products that a call sums in half precision, at most: 64 for each of a lane's two sums. Their error grows with its
square root, what the end of a call costs falls with it."""
_LEAST_TERMS = 32
"""Products of a call below which converting what it has summed takes as long as summing it."""


class DotGroup(NamedTuple):
    """How the products of a workload are grouped.

    Attributes
    ----------
    instruction : str
    axis : str
        Reduction axis whose neighbours form groups.
    size : int
        Elements of a group.
    vectors, broadcast : str
        The operand that is loaded in vectors, and the one of which a group is loaded for all lanes.
    packed : tuple of str
        Operands that must be packed.
    flips : bool
        The broadcast operand is signed, the instruction takes it unsigned: it is read plus 128.
    shift : int
        What its elements, as they are read, are above what they stand for. Accumulators start from the sums of the
        vectors' operand along the reduction, times minus this; zeros of padding count like other elements then.
    unroll : int
        Elements along the axis that a pass of a schedule's unrolled steps covers; the last group may be partly used.
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
        """Elements of the last group of a pass."""
        return (self.unroll - 1) % self.size + 1


TILE_ROWS = 16
"""Rows of a tile of AMX's."""
TILE_STEPS = 16
"""Groups of a row of a tile: 64 bytes."""
TILE_REGISTERS = 8
"""Tiles that AMX has."""


@lru_cache(maxsize=256)
def dot_group(workload: Workload, hardware: CpuSpec, simd: str, *, extension: str = "") -> DotGroup | None:
    """Return how schedules that vectorise the axis `simd` group products; None: by no instruction that the CPU has.

    Parameters
    ----------
    extension : {"", "fp16", "amx"}
        The option "extension" of schedules: only by an instruction that sums in half precision, or one on tiles.
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
    if instruction is None or not axes or _slides(vector) or vector.zero_point:
        return None
    axis = min(axes, key=lambda name: (vector_stride(broadcast, name) != 1, -workload.extents[name]))
    packed = [vector.tensor] if vector_stride(broadcast, axis) == 1 else [read.tensor for read in reads]
    name, size = instruction
    if name in TILES and len(packed) > 1:  # a row of a tile is groups that lie one after another
        return None
    flips = name == "vpdpbusd" and broadcast.dtype == "int8"
    shift = 0 if name in WIDENED else broadcast.zero_point + (_FLIPPED if flips else 0)
    return DotGroup(name, axis, size, vector.tensor, broadcast.tensor, tuple(packed), flips, shift)


def has_instruction(workload: Workload, hardware: CpuSpec) -> bool:
    """Whether the CPU sums products of a workload by an instruction whose sums are float32 or int32."""
    simd = simd_axis(workload, simd_lanes(workload, hardware.compute.simd_bits), constant_tensors(workload))
    return any(dot_group(workload, hardware, simd, extension=extension) for extension in ("", "amx"))


def copied_as(workload: Workload, simd: str, dot: DotGroup | None, ahead: Collection[str] = ()) -> dict[str, str]:
    """Return operands that are read from a copy made in the run, and the dtype that it holds.

    Of a product's operand that is loaded element by element for all lanes each element would be converted, or a group
    that is not full put together, for every vector that it meets: in the copy that is done once.

    Parameters
    ----------
    ahead : collection of str
        Tensors that are packed before the run, as they are.
    """
    if workload.body != "multiply_add" or len(workload.reads) != 2:
        return {}
    found = {}
    for read in workload.reads:
        dtype = ACCUMULATOR_DTYPE[workload.dtype] if dot is None else WIDENED.get(dot.instruction, read.dtype)
        is_whole = dot is None or workload.extents[dot.axis] % dot.size == 0
        if not read.uses(simd) and read.tensor not in ahead and not (dtype == read.dtype and is_whole):
            found[read.tensor] = dtype
    return found


def copied_in_run(dot: DotGroup | None) -> tuple[str, ...]:
    """Return the operands that cannot be packed before the run, since copies of them hold another dtype."""
    return (dot.broadcast,) if dot is not None and dot.instruction in WIDENED else ()


def half_sums_apply(workload: Workload, hardware: CpuSpec) -> bool:
    """Whether the template "fp16_accumulation" applies: the CPU has the instruction, and calls may be long enough."""
    known = constant_tensors(workload)
    simd = simd_axis(workload, simd_lanes(workload, hardware.compute.simd_bits), known)
    dot = dot_group(workload, hardware, simd, extension="fp16")
    if dot is None:
        return False
    extent, most = workload.extents[dot.axis], most_half_terms(workload, dot)
    longest = max((terms for terms in range(dot.size, most + 1) if extent % terms == 0), default=0)
    return longest * workload.num_reduced // extent >= _LEAST_TERMS


def tiles_apply(workload: Workload, hardware: CpuSpec) -> bool:
    """Whether the template "amx" applies: the CPU multiplies the operands on tiles."""
    known = constant_tensors(workload)
    simd = simd_axis(workload, simd_lanes(workload, hardware.compute.simd_bits), known)
    return dot_group(workload, hardware, simd, extension="amx") is not None


def most_half_terms(workload: Workload, dot: DotGroup) -> int:
    """Return how far along the group's axis a call may sum in half precision, if it covers all other reductions."""
    return _MOST_TERMS * workload.extents[dot.axis] // workload.num_reduced


def half_additions(workload: Workload, dot: DotGroup, inner: Mapping[str, Sequence[int]]) -> int:
    """Return the additions in each half-precision sum of a call.

    Parameters
    ----------
    inner : mapping of str to sequence of int
        Reduction axis -> its factors "l1" and "unroll".
    """
    return math.prod(
        calls * (-(-size // dot.size) if axis == dot.axis else size) for axis, (calls, size) in inner.items()
    )


def tile_depths(steps: int) -> tuple[int, ...]:
    """Return the groups of each product on tiles that sum `steps` unrolled steps, equally many where that divides."""
    count = -(-steps // TILE_STEPS)
    if steps % count == 0:
        return (steps // count,) * count
    return (*(TILE_STEPS,) * (count - 1), steps % TILE_STEPS)


def check_tile_registers(rows: int, vectors: int, steps: int) -> None:
    """Raise SpaceError unless the tiles of a microkernel fit AMX's registers: its sums, both operands' of a product.

    A register has one shape from the call's beginning to its end, so that operands of products of another depth take
    registers of their own. LLVM ends the process where it finds none.
    """
    blocks, depths = -(-rows // TILE_ROWS), set(tile_depths(steps))
    if (needed := blocks * vectors + (blocks + vectors) * len(depths)) > TILE_REGISTERS:
        own = "" if len(depths) == 1 else f", products of {' and '.join(map(str, sorted(depths)))} steps"
        raise SpaceError(
            f"a register tile of {rows} rows and {vectors} vectors{own} takes {needed} tiles of AMX's, expected at "
            f"most {TILE_REGISTERS}: 32 rows and 2 vectors"
        )


def dot_note(workload: Workload, hardware: CpuSpec, simd: str, *, extension: str = "") -> str:
    """Say which instruction sums the products of a workload in narrow dtypes, or that none does; "": nothing to say."""
    names = DOT_INSTRUCTIONS.get(workload.dtype, ())
    if workload.body != "multiply_add" or len(workload.reads) != 2 or not names:
        return ""
    dot = dot_group(workload, hardware, simd, extension=extension)
    if dot is not None:
        where = ", in half precision" if dot.instruction in HALF_SUMS else ""
        return f"{dot.instruction} sums {dot.size} products of neighbours along {dot.axis} at a time{where}"
    own = set(names) & set(dot_instructions(hardware))
    why = "no instruction fits the layout of these operands" if own else "the CPU has no instruction for them"
    if own and own <= set(HALF_SUMS):
        why = f"{', '.join(sorted(own))} sums in half precision: template fp16_accumulation, at --accuracy relaxed"
    return f"slow: {workload.dtype} elements are converted one by one and multiplied at float32's rate ({why})"


def _candidates(workload: Workload, reads: Sequence[Access]) -> list[str]:
    """Return the reduction axes that are an index by themselves in both operands."""
    windows = window_axes(workload)
    return [
        axis.name
        for axis in workload.reduction_axes
        if axis.extent > 1 and axis.name not in windows and all(_is_alone(access, axis.name) for access in reads)
    ]


def _is_alone(access: Access, axis: str) -> bool:
    """Whether an axis moves one dimension, one by one, and nothing else moves that."""
    moved = [terms for terms in access.indices if any(term.axis == axis for term in terms)]
    return len(moved) == 1 and len(moved[0]) == 1 and moved[0][0].coefficient == 1


def _slides(access: Access) -> bool:
    """Whether a dimension is moved by several axes: then the tensor has no packed form in groups."""
    return any(len(terms) > 1 for terms in access.indices)


def packable_in_groups(workload: Workload, simd: str, dot: DotGroup | None) -> tuple[str, ...]:
    """Return the tensors that a schedule may pack, those that it must pack among them."""
    packable = packable_tensors(workload, simd)
    if dot is None:
        return packable
    if dot.instruction in TILES:
        return dot.packed
    return tuple(read.tensor for read in workload.reads if read.tensor in (*packable, *dot.packed))


def pairable_axes(workload: Workload, simd: str, dot: DotGroup | None) -> tuple[str, ...]:
    """Return the axes that a pair of microkernels may cover: the spatial ones and the SIMD axis.

    Without those of the vectors' operand beside the SIMD axis, where it is packed in groups: tiles of one size along
    one axis at most have a packed form.
    """
    spatial = {axis.name for axis in workload.spatial_axes}
    own = workload.tensor(dot.vectors) if dot is not None else None
    return tuple(
        axis.name
        for axis in workload.axes
        if axis.name == simd or (axis.name in spatial and not (own is not None and own.uses(axis.name)))
    )
