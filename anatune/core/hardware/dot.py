"""Instructions of CPUs that sum products of neighbours (VDPBF16PS, VPDPBUSD, ..): what they multiply, who has them."""

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
"""Instruction set and instruction -> LLVM's feature for it on whole vectors."""

TILE_FEATURES = {"tdpbf16ps": "amx-bf16", "tdpfp16ps": "amx-fp16", "tdpbusd": "amx-int8", "tdpbssd": "amx-int8"}
"""Instruction on AMX's tiles -> LLVM's feature for it."""

_GROUPS = {
    ("bfloat16", "bfloat16"): (("vdpbf16ps", 2), ("tdpbf16ps", 2)),
    ("float16", "float16"): (("vfmaddph", 2), ("tdpfp16ps", 2)),
    ("uint8", "int8"): (("vpdpbusd", 4), ("vpmaddwd", 2), ("tdpbusd", 4)),
    ("int8", "int8"): (("vpdpbssd", 4), ("vpdpbusd", 4), ("vpmaddwd", 2), ("tdpbssd", 4)),
    ("int8", "uint8"): (("vpmaddwd", 2),),
}
"""Dtypes of the broadcast operand and of the vectors -> instructions that multiply them, the best first; elements of a
group. VPDPBUSD takes a signed operand plus 128 as an unsigned one. VFMADDPH keeps a sum for each element of the group,
two in each lane of four bytes."""

WIDENED = {"vpmaddwd": "int16"}
"""Instruction -> dtype that its operands have in registers: vectors are converted when they are loaded, the broadcast
operand in a copy, since an element would be converted for each vector that it meets."""

HALF_SUMS = ("vfmaddph",)
"""Instructions that keep their sums in half precision."""

TILES = tuple(TILE_FEATURES)
"""Instructions on AMX's tiles."""

_EXTENSION = {**dict.fromkeys(HALF_SUMS, "fp16"), **dict.fromkeys(TILES, "amx")}
"""Instruction -> the extension that a schedule has to name to use it; others are used wherever they fit."""


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
    return tuple(feature for (needed, name), feature in DOT_FEATURES.items() if needed == isa and _has(hardware, name))


def tile_features(hardware: CpuSpec) -> tuple[str, ...]:
    """Return LLVM's names of the features that AMX's instructions of a spec need."""
    return tuple(dict.fromkeys(TILE_FEATURES[name] for name in hardware.amx or ()))


def dot_instructions(hardware: CpuSpec) -> tuple[str, ...]:
    """Return the instructions of a spec that schedules may use."""
    return tuple(name for isa, name in DOT_FEATURES if isa == hardware.compute.isa and _has(hardware, name))


def instruction_of(hardware: CpuSpec, broadcast: str, vectors: str, *, extension: str = "") -> tuple[str, int] | None:
    """Return the instruction for two dtypes and the elements of a group; None: the CPU has none.

    Parameters
    ----------
    extension : {"", "fp16", "amx"}
        One of `HALF_SUMS` or of `TILES`, instead of one that needs not be asked for.
    """
    known = (found for found in _GROUPS.get((broadcast, vectors), ()) if _EXTENSION.get(found[0], "") == extension)
    return next((found for found in known if _has(hardware, found[0])), None)


def _has(hardware: CpuSpec, instruction: str) -> bool:
    """Whether a CPU has an instruction on vectors of its whole width."""
    if instruction in TILES:
        return instruction in (hardware.amx or ())
    return (hardware.compute.isa, instruction) in DOT_FEATURES and hardware.dot_instruction(instruction) is not None
