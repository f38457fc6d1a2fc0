"""The amount of memory from which constant operands are read, so that every run reads them from one level of memory."""

from __future__ import annotations

from anatune.arguments import check_choice
from anatune.core.hardware.spec import CpuSpec

COLD_LEVELS = ("l3", "dram")
_OVER = 1.5
"""Size of that memory over the cache that must not hold it, because caches keep some of the data."""


def check_cold(level: str | None, hardware: CpuSpec) -> str | None:
    """Return `level` if the CPU has that level of memory and it is not the nearest cache.

    Raises
    ------
    SpaceError
        The CPU does not have it.
    """
    if level is None:
        return None
    levels = COLD_LEVELS if hardware.l3 is not None else COLD_LEVELS[1:]
    return check_choice("cold", level, levels, otherwise=f"for {hardware.name}")


def cold_bytes(hardware: CpuSpec, level: str | None) -> int:
    """Return the bytes of memory from which constants are read in turn; 0 for None."""
    level = check_cold(level, hardware)
    if level is None:
        return 0
    missed = hardware.l2 if level == "l3" or hardware.l3 is None else hardware.l3
    return int(_OVER * missed.size_bytes) // 4096 * 4096


def level_of(num_bytes: float, hardware: CpuSpec) -> str | None:
    """Return the level of memory that holds constants of `num_bytes` in all; None if the L2 cache does."""
    if num_bytes <= hardware.l2.size_bytes:
        return None
    return "l3" if hardware.l3 is not None and num_bytes <= hardware.l3.size_bytes else "dram"
