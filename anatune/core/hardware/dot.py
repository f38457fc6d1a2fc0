"""CPU instructions that sum products of neighbouring elements (VDPBF16PS, VPDPBUSD, ..): operands and features."""

from __future__ import annotations

from typing import NamedTuple

from anatune.core.hardware.spec import CpuSpec

DOT_FEATURES = {
    ("avx512", "vdpbf16ps"): "avx512bf16",
    ("avx512", "vfmaddph"): "avx512fp16",
    ("avx512", "vpdpbusd"): "avx512vnni",
    ("avx512", "vpmaddwd"): "avx512bw",
    ("avx2", "vpdpbusd"): "avxvnni",
    ("avx2", "vpdpbssd"): "avxvnniint8",
    ("avx2", "vpmaddwd"): "avx2",
}
"""(instruction set, instruction) -> LLVM's feature that has it on whole vectors."""

TILE_FEATURES = {"tdpbf16ps": "amx-bf16", "tdpfp16ps": "amx-fp16", "tdpbusd": "amx-int8", "tdpbssd": "amx-int8"}
"""AMX instruction on tiles -> LLVM's feature that has it."""

_GROUPS = {
    ("bfloat16", "bfloat16"): (("vdpbf16ps", 2), ("tdpbf16ps", 2)),
    ("float16", "float16"): (("vfmaddph", 2), ("tdpfp16ps", 2)),
    ("uint8", "int8"): (("vpdpbusd", 4), ("vpmaddwd", 2), ("tdpbusd", 4)),
    ("int8", "int8"): (("vpdpbssd", 4), ("vpdpbusd", 4), ("vpmaddwd", 2), ("tdpbssd", 4)),
    ("int8", "uint8"): (("vpmaddwd", 2),),
}
"""Dtypes of the broadcast operand and of the vectors -> instructions that multiply them, the best first, with the
elements of a group. VPDPBUSD takes a signed operand plus 128 as an unsigned one. VFMADDPH keeps a sum for each element
of
the group, two in each lane of four bytes."""

WIDENED = {"vpmaddwd": "int16"}
"""Instruction -> dtype of its operands in registers. Vectors are converted when they are loaded; the broadcast operand
is converted in a copy, because each of its elements is used with several vectors."""

HALF_SUMS = ("vfmaddph",)
"""Instructions that keep their sums in float16."""

TILES = tuple(TILE_FEATURES)
"""AMX instructions, which work on tiles."""

_EXTENSION = {**dict.fromkeys(HALF_SUMS, "fp16"), **dict.fromkeys(TILES, "amx")}
"""Instruction -> the extension that a schedule has to name to use it; other instructions are used wherever they fit."""


class DotOperands(NamedTuple):
    """The operands of an instruction: dtypes of the broadcast operand and of the vectors, and elements of a group."""

    broadcast: str
    vectors: str
    size: int


def dot_operands(instruction: str) -> DotOperands:
    """Return the operands of an instruction of `anatune.core.hardware.spec.DOT_INSTRUCTIONS`."""
    return next(
        DotOperands(*dtypes, size) for dtypes, names in _GROUPS.items() for name, size in names if name == instruction
    )


def dot_features(hardware: CpuSpec) -> tuple[str, ...]:
    """Return LLVM's names of the features for those vector instructions of a spec that schedules may use."""
    isa = hardware.compute.isa
    return tuple(feature for (needed, name), feature in DOT_FEATURES.items() if needed == isa and _has(hardware, name))


def tile_features(hardware: CpuSpec) -> tuple[str, ...]:
    """Return LLVM's names of the features for the AMX instructions of a spec."""
    return tuple(dict.fromkeys(TILE_FEATURES[name] for name in hardware.amx or ()))


def dot_instructions(hardware: CpuSpec) -> tuple[str, ...]:
    """Return the vector instructions of a spec that schedules may use."""
    return tuple(name for isa, name in DOT_FEATURES if isa == hardware.compute.isa and _has(hardware, name))


def instruction_of(hardware: CpuSpec, broadcast: str, vectors: str, *, extension: str = "") -> tuple[str, int] | None:
    """Return the instruction for two dtypes and the elements of its group; None if the CPU has none.

    Parameters
    ----------
    extension : {"", "fp16", "amx"}
        "fp16": an instruction of `HALF_SUMS`; "amx": one of `TILES`; "": one that a schedule need not name.
    """
    candidates = (found for found in _GROUPS.get((broadcast, vectors), ()) if _EXTENSION.get(found[0], "") == extension)
    return next((found for found in candidates if _has(hardware, found[0])), None)


def _has(hardware: CpuSpec, instruction: str) -> bool:
    """Return whether a CPU has an instruction on vectors of its full width."""
    if instruction in TILES:
        return instruction in (hardware.amx or ())
    return (hardware.compute.isa, instruction) in DOT_FEATURES and hardware.dot_instruction(instruction) is not None
