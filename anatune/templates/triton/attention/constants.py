"""Constants of the model of attention's tiles. Constants of products are in `templates.triton.constants`."""

from __future__ import annotations

import msgspec

from anatune.templates.triton.constants import CONSTANTS, Constants

__all__ = ["ATTENTION", "AttentionConstants"]


class AttentionConstants(msgspec.Struct, frozen=True):
    """Constants that are not in the spec of a device: cycles of an SM, instructions, or shares.

    Constants marked *fitted* were fitted to the even half of recorded library times
    (``bench.replay.tensorcores_attention``). bench/README.md reports the errors on the odd half.
    """

    common: Constants = CONSTANTS
    """Constants that products have, too."""
    exponentials: float = 16.0
    """Exponentials per cycle and SM: 4 lanes of each of 4 special function units. Source: [CUDA-guide] throughput of
    native arithmetic instructions, 16 for all of sm_80 to sm_100. On AMD's CDNA: a quarter of 64 lanes."""
    element_instructions: float = 4.5
    """Instructions per score: subtraction (with the scale), maximum, sum, exponential, half a conversion. Counted in
    PTX."""
    masked_instructions: float = 3.0
    """Further instructions per score if keys are masked: comparison, selection, addition of the index. Counted in
    PTX."""
    row_instructions: float = 2.0
    """Instructions of a warp per row and step: shuffles of the two reductions and the running values. Counted."""
    overlap_mma: float = 1.0
    """Exponent p of the p-norm over products, exponentials and other instructions of a full SM, for units that read
    registers. With p = 1 they add up. Fitted (A100, even half)."""
    overlap_wgmma: float = 1.0
    """The same over products and the longer of exponentials and instructions, for wgmma. Fitted (H100, even half)."""
    overlap_tcgen05: float = 1.15
    """The same for tcgen05. Fitted (B200, even half)."""
    step_cycles: float = 250.0
    """Cycles of dependent latencies in a step of one warp: two products, two reductions, exponentials. Assumed."""
    exchange_cycles: float = 500.0
    """Further cycles if warps lie along keys: three exchanges through shared memory, with barriers. Assumed."""
    start_cycles: float = 1500.0
    """Cycles to start a block: indices, descriptors, queries from memory to matrix units. Assumed."""


ATTENTION = AttentionConstants()
