"""Constants of the model of attention's tiles; what products have, too, is in `templates.triton.constants`."""

from __future__ import annotations

import msgspec

from anatune.templates.triton.constants import CONSTANTS, Constants

__all__ = ["ATTENTION", "AttentionConstants"]


class AttentionConstants(msgspec.Struct, frozen=True):
    """What no device's spec says. Cycles of an SM, instructions, or shares.

    Fitted, where it says so, to the even half of recorded library times (``bench.replay.tensorcores_attention``);
    README of bench says how they do on the odd half.
    """

    common: Constants = CONSTANTS
    """Those that products have, too."""
    exponentials: float = 16.0
    """Exponentials a cycle and SM: 4 lanes of each of 4 special function units. Source: [CUDA-guide] throughput of
    native arithmetic instructions, 16 for all of sm_80 to sm_100; AMD's CDNA: a quarter of 64 lanes."""
    element_instructions: float = 4.5
    """Of a score: subtraction (with the scale), maximum, sum, exponential, half a conversion. Counted in PTX."""
    masked_instructions: float = 3.0
    """More of them where keys are not seen: comparison, selection, addition of the index. Counted in PTX."""
    row_instructions: float = 2.0
    """Of a row and step: shuffles of the two reductions and the running values, of a warp, over rows. Counted."""
    overlap_mma: float = 1.0
    """Exponent p of (a^p + b^p + ...)^(1/p) over products, exponentials and other instructions of a full SM, units that
    read registers: 1 adds them up. Fitted (A100, even half)."""
    overlap_wgmma: float = 1.0
    """The same over products and the longer of exponentials and instructions, wgmma. Fitted (H100, even half)."""
    overlap_tcgen05: float = 1.15
    """The same of tcgen05. Fitted (B200, even half)."""
    step_cycles: float = 250.0
    """Dependent latencies of a step of one warp: two products, two reductions over lanes, exponentials. Assumed."""
    exchange_cycles: float = 500.0
    """More of them where warps lie along keys: three exchanges through shared memory, with barriers. Assumed."""
    start_cycles: float = 1500.0
    """Start of a block: indices, descriptors, queries from memory to matrix units. Assumed."""


ATTENTION = AttentionConstants()
