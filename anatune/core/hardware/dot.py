"""Instructions of CPUs that sum products of neighbours (VDPBF16PS, VPDPBUSD, ..): what they multiply, who has them."""

from __future__ import annotations

from typing import NamedTuple

from anatune.core.hardware.spec import CpuSpec

__all__ = ["HALF_SUMS", "DotOperands", "dot_features", "dot_instructions", "dot_operands", "instruction_of"]

_FEATURES = {
    ("avx512", "vdpbf16ps"): "avx512bf16",
    ("avx512", "vfmaddph"): "avx512fp16",
    ("avx512", "vpdpbusd"): "avx512vnni",
    ("avx2", "vpdpbusd"): "avxvnni",
    ("avx2", "vpdpbssd"): "avxvnniint8",
}
"""Instruction set and instruction -> LLVM's feature for it on whole vectors."""

_GROUPS = {
    ("bfloat16", "bfloat16"): (("vdpbf16ps", 2),),
    ("float16", "float16"): (("vfmaddph", 2),),
    ("uint8", "int8"): (("vpdpbusd", 4),),
    ("int8", "int8"): (("vpdpbssd", 4), ("vpdpbusd", 4)),
}
"""Dtypes of the broadcast operand and of the vectors -> instructions that multiply them, the best first; elements of a
group. VPDPBUSD takes a signed operand plus 128 as an unsigned one. VFMADDPH keeps a sum for each element of the group,
two in each lane of four bytes."""

HALF_SUMS = ("vfmaddph",)
"""Instructions that keep their sums in half precision: only schedules that say so use them (template "halfsums")."""


class DotOperands(NamedTuple):
    """What an instruction multiplies: dtypes of the broadcast operand and of the vectors, elements of a group."""

    broadcast: str
    vectors: str
    size: int


def dot_operands(instruction: str) -> DotOperands:
    """Return what an instruction of `anatune.core.hardware.spec.DOT_INSTRUCTIONS` multiplies."""
    return next(
        DotOperands(*dtypes, size) for dtypes, names in _GROUPS.items() for name, size in names if name == instruction
    )


def dot_features(hardware: CpuSpec) -> tuple[str, ...]:
    """Return LLVM's names of the features that the instructions of a spec need, those that schedules may use."""
    isa = hardware.compute.isa
    return tuple(feature for (needed, name), feature in _FEATURES.items() if needed == isa and _has(hardware, name))


def dot_instructions(hardware: CpuSpec) -> tuple[str, ...]:
    """Return the instructions of a spec that schedules may use."""
    return tuple(name for isa, name in _FEATURES if isa == hardware.compute.isa and _has(hardware, name))


def instruction_of(
    hardware: CpuSpec, broadcast: str, vectors: str, *, half_sums: bool = False
) -> tuple[str, int] | None:
    """Return the instruction for two dtypes and the elements of a group; None: the CPU has none.

    Parameters
    ----------
    half_sums : bool
        One of `HALF_SUMS`, instead of one of the others.
    """
    known = (found for found in _GROUPS.get((broadcast, vectors), ()) if (found[0] in HALF_SUMS) == half_sums)
    return next((found for found in known if _has(hardware, found[0])), None)


def _has(hardware: CpuSpec, instruction: str) -> bool:
    """Whether a CPU has an instruction on vectors of its whole width."""
    return (hardware.compute.isa, instruction) in _FEATURES and hardware.dot_instruction(instruction) is not None
