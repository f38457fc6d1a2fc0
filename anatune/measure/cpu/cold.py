"""How much memory constant operands are read from, so that they come from a level of the memory in every run."""

from __future__ import annotations

from anatune.arguments import checked_choice
from anatune.core.hardware.spec import CpuSpec

COLD_LEVELS = ("l3", "dram")
_OVER = 1.5
"""Times the cache that has to be missed: caches keep some of what is read in turn."""


def check_cold(level: str | None, hardware: CpuSpec) -> str | None:
    """Return `level` if the CPU has it and it is no nearest cache.

    Raises
    ------
    SpaceError
        It has not.
    """
    if level is None:
        return None
    levels = COLD_LEVELS if hardware.l3 is not None else COLD_LEVELS[1:]
    return checked_choice("cold", level, levels, otherwise=f"for {hardware.name}")


def cold_bytes(hardware: CpuSpec, level: str | None) -> int:
    """Return the memory that constants are read from in turn; 0 for None."""
    level = check_cold(level, hardware)
    if level is None:
        return 0
    missed = hardware.l2 if level == "l3" or hardware.l3 is None else hardware.l3
    return int(_OVER * missed.size_bytes) // 4096 * 4096


def level_of(num_bytes: float, hardware: CpuSpec) -> str | None:
    """Return where constants come from that take so many bytes with all others; None: the L2 cache holds them."""
    if num_bytes <= hardware.l2.size_bytes:
        return None
    return "l3" if hardware.l3 is not None and num_bytes <= hardware.l3.size_bytes else "dram"
