"""The instruction that Triton's ``tl.dot`` becomes: a table by device and operand type.

Notation
--------
unit : the hardware that multiplies: FMA (vector lanes), MMA (``mma.sync``), WGMMA (``wgmma``, sm_90), TCGEN05
    (``tcgen05``, sm_100), MFMA (``v_mfma``, AMD's matrix cores).
wide tile : a tile of at least 64 rows with a multiple of four warps. WGMMA and TCGEN05 need it; other tiles get MMA.

The table was read off kernels that Triton 3.9 compiled; ``bench.gpu.triton_resources --table`` compiles every entry
again. A right operand with fewer bits than the left one (8-bit weights) is converted by the kernel and has the entry of
the left one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

import msgspec

from anatune.core.hardware.spec import GpuSpec
from anatune.errors import SpaceError
from anatune.templates.triton.problem import DTYPES

__all__ = [
    "ARCHS",
    "SCALED_DEPTH",
    "SCALED_ROWS",
    "TENSOR_COLUMNS",
    "DotUnit",
    "Instruction",
    "has_descriptors",
    "instruction_of",
    "instructions_of",
    "known_operands",
    "operand_type",
    "scaled_instruction",
]

TENSOR_COLUMNS = 512
"""Columns of tensor memory, which has 128 rows of 4 bytes. Persistent blocks keep the sums of two tiles. Source:
[PTX-ISA] tcgen05; Triton 3.9 checks the columns at the launch (``triton/compiler/compiler.py``)."""
SCALED_ROWS = 128
"""Rows of a tile that tcgen05 multiplies with scales, with a multiple of four warps. Otherwise operands become
bfloat16."""
SCALED_DEPTH = 128
"""Elements of k in a tile with scales that all devices take without conversion."""
_DESCRIPTORS_SINCE = 9.0


class DotUnit(IntEnum):
    """The hardware that multiplies."""

    FMA = 0
    MMA = 1
    WGMMA = 2
    TCGEN05 = 3
    MFMA = 4


class Instruction(msgspec.Struct, frozen=True):
    """The computation of a product of operands of one type.

    Attributes
    ----------
    unit : DotUnit
        The hardware that multiplies.
    as_dtype : str
        Type of the operands when they are multiplied.
    depth : int
        Steps of k per instruction. For MFMA: of the instruction for 32 x 32 results; that for 16 x 16 has twice as
        many.
    least_depth : int
        Smallest block_k that Triton takes, or for which it uses the unit.
    emulated : bool
        Whether operands are converted first, because the device has no instruction for their type.
    """

    unit: DotUnit
    as_dtype: str
    depth: int
    least_depth: int
    emulated: bool


class _MatrixUnits(msgspec.Struct, frozen=True):
    """The matrix units of one architecture."""

    unit: DotUnit
    native: Mapping[str, int]
    """Operand type -> steps of k per instruction."""
    small: Mapping[str, int] = MappingProxyType({})
    """The same for MMA, on devices whose `unit` takes wide tiles only."""
    converted: Mapping[str, str] = MappingProxyType({})
    """Operand type without an instruction -> the type to which Triton converts it."""
    scaled: Mapping[str, int] = MappingProxyType({})
    """Format of operands with scales that the unit takes -> steps of k per instruction."""


_OCP = ("float8_e4m3fn", "float8_e5m2")
"""8-bit floats of the Open Compute Project."""
_FNUZ = ("float8_e4m3fnuz", "float8_e5m2fnuz")
"""8-bit floats without negative zero and infinities, which CDNA 3 has."""
_TF32 = {"float16": 16, "bfloat16": 16, "tf32": 8}
_AMPERE = {**_TF32, "int8": 32}
_ADA = {**_AMPERE, **dict.fromkeys(_OCP, 32)}
_AS_HALF = dict.fromkeys(_OCP, "float16")
_BLACKWELL = {"mxfp8": 32, "mxfp4": 64, "nvfp4": 64}

_DEVICES: dict[str, _MatrixUnits] = {
    "sm_80": _MatrixUnits(DotUnit.MMA, _AMPERE, converted={"float8_e5m2": "float16"}),
    "sm_89": _MatrixUnits(DotUnit.MMA, _ADA),
    "sm_90": _MatrixUnits(DotUnit.WGMMA, _ADA, _AMPERE, _AS_HALF),
    "sm_100": _MatrixUnits(DotUnit.TCGEN05, _ADA, _AMPERE, _AS_HALF, _BLACKWELL),
    "sm_103": _MatrixUnits(DotUnit.TCGEN05, {**_TF32, **dict.fromkeys(_OCP, 32)}, _AMPERE, _AS_HALF, _BLACKWELL),
    "sm_120": _MatrixUnits(DotUnit.MMA, _ADA, scaled=_BLACKWELL),
    "gfx90a": _MatrixUnits(
        DotUnit.MFMA,
        {"float16": 8, "bfloat16": 8, "float32": 2, "int8": 8},
        converted={**_AS_HALF, **dict.fromkeys(_FNUZ, "float32")},
    ),
    "gfx942": _MatrixUnits(
        DotUnit.MFMA,
        {"float16": 8, "bfloat16": 8, "float32": 2, "tf32": 4, "int8": 16, **dict.fromkeys(_FNUZ, 16)},
        converted=_AS_HALF,
    ),
    "gfx950": _MatrixUnits(
        DotUnit.MFMA,
        {"float16": 16, "bfloat16": 16, "float32": 2, "int8": 32, **dict.fromkeys(_OCP, 64)},
        converted=dict.fromkeys(_FNUZ, "float16"),
        scaled={"mxfp8": 64, "mxfp4": 64},
    ),
}
ARCHS = tuple(_DEVICES)
"""Architectures in the table. sm_86 and sm_87 are like sm_80, sm_121 is like sm_120, and sm_110 is like
sm_103: Triton 3.9 compiles products of all operands to the same instructions."""
_LANES = Instruction(DotUnit.FMA, "float32", 1, 1, emulated=False)
_ROW_BYTES = 32
"""Least bytes of a row of operands for NVIDIA's instructions; Triton's `min_dot_size` is the same."""
_MFMA_BYTES = 16
"""Least bytes of a row of operands for AMD's instructions. Larger instructions have smaller variants, half as fast."""


def instructions_of(arch: str, dtype: str) -> tuple[Instruction, Instruction] | None:
    """Return the instructions of wide and of small tiles, or None if Triton cannot compile products of these operands.

    Parameters
    ----------
    arch
        Architecture, such as "sm_90" or "gfx942".
    dtype
        Operand type: "float16", "bfloat16", "tf32", "float32" (without rounding), "int8", a type of 8-bit floats
        ("float8_e4m3fn", ...), or "fp8" (the 8-bit floats that the device multiplies, or converts).
    """
    device = _DEVICES.get(_family(arch))
    if device is None:
        return None
    if dtype == "fp8":
        dtype = next((name for name in (*_OCP, *_FNUZ) if name in device.native), "float8_e5m2")
    if dtype == "float32" and dtype not in device.native:
        return _LANES, _LANES
    if not any(dtype in table for table in (device.native, device.small, device.converted)):
        return None
    small = _instruction(DotUnit.MMA, device.small, device, dtype) if device.small else None
    if small is not None and dtype not in device.native:
        return small, small
    wide = _instruction(device.unit, device.native, device, dtype)
    return wide, small or wide


def _instruction(unit: DotUnit, native: Mapping[str, int], device: _MatrixUnits, dtype: str) -> Instruction:
    as_dtype = dtype if dtype in native else device.converted[dtype]
    if as_dtype == "float32" != dtype:  # then Triton uses no matrix instruction
        return Instruction(DotUnit.FMA, as_dtype, 1, 1, emulated=True)
    depth = native[as_dtype]
    least = min(depth, _MFMA_BYTES // DTYPES[as_dtype]) if unit == DotUnit.MFMA else _ROW_BYTES // DTYPES[dtype]
    return Instruction(unit, as_dtype, depth, least, as_dtype != dtype)


def scaled_instruction(arch: str, word: str) -> Instruction | None:
    """Return the instruction of ``tl.dot_scaled``, or None if operands become bfloat16 first or there is no code.

    Parameters
    ----------
    word
        Format of both operands: "mxfp8", "mxfp4" or "nvfp4".
    """
    device = _DEVICES.get(_family(arch))
    if device is None or word not in device.scaled:
        return None
    return Instruction(device.unit, word, device.scaled[word], SCALED_DEPTH, emulated=False)


def instruction_of(spec: GpuSpec, dtype: str, unit: DotUnit | None = None) -> Instruction:
    """Return the instruction that multiplies operands of a type on a device, for wide tiles or for a given unit.

    Raises
    ------
    SpaceError
        The device has no matrix units that Triton uses, or Triton cannot compile products of these operands.
    """
    instructions = instructions_of(spec.arch, dtype)
    if instructions is None:
        operands = known_operands(spec.arch)
        if not operands:
            raise SpaceError(
                f"{spec.name} ({spec.arch}) has no matrix units that Triton uses, expected sm_80 or later or one of "
                f"{', '.join(arch for arch in ARCHS if arch.startswith('gfx'))}; choose another device or template"
            )
        raise SpaceError(
            f"{spec.name} ({spec.arch}) has no matrix instruction for {dtype} operands, and Triton does not convert "
            f"them; expected one of {', '.join(operands)}, or another device"
        )
    wide, small = instructions
    return small if unit == small.unit else wide


def operand_type(dtype: str) -> str:
    """Return the table's operand type for a workload's dtype. Matrix units round float32 to tf32."""
    return "tf32" if dtype == "float32" else dtype


def has_descriptors(spec: GpuSpec) -> bool:
    """Return whether tensor descriptors become bulk copies (TMA). On other devices they are ordinary loads."""
    return (spec.compute_capability or 0.0) >= _DESCRIPTORS_SINCE


def known_operands(arch: str) -> tuple[str, ...]:
    """Return the operand types that an architecture multiplies on matrix units, those that are converted last."""
    device = _DEVICES.get(_family(arch))
    if device is None:
        return ()
    converted = [name for name, kind in device.converted.items() if name not in device.native and kind != "float32"]
    return (*device.native, *(f"{name} (as {device.converted[name]})" for name in converted))


def _family(arch: str) -> str:
    """Return the architecture of the table that is used for `arch`, or `arch` itself if there is none."""
    if not arch.startswith("sm_"):
        return arch
    capability = int(arch[3:])
    if 80 < capability < 89:
        return "sm_80"
    if 103 < capability < 120:
        return "sm_103"
    return "sm_120" if capability > 120 else arch
