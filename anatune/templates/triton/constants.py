"""Constants of the model of Triton's tiles, in one place so that a bench can fit and report them."""

from __future__ import annotations

import msgspec

__all__ = ["CONSTANTS", "Constants"]


class Constants(msgspec.Struct, frozen=True):
    """Constants that are not in the spec of a device: bytes, cycles of an SM, or shares.

    Constants without a source were fitted to recorded times of Triton 3.0's products on an A100 and an H100
    (``bench.replay.tensorcores FOLDER --fit``). bench/README.md reports the errors on products and devices that were
    left out.
    """

    reach_mma: float = 1.0
    reach_wide: float = 0.95
    """Shares of a unit's rate that a stream of independent instructions reaches."""
    overlap_mma: float = 4.0
    overlap_wide: float = 10.0
    """Exponents p of the p-norms over products, issue, shared memory and copies of a stage.

    With p = 1 they add up, with p = infinity they overlap completely. Units that read operands from registers wait for
    the loads of their warps; wgmma and tcgen05 do not.
    """
    overlap_memory: float = 2.65
    """Exponent of the p-norm of DRAM and everything else."""
    overlap_l2: float = 5.7
    """Exponent of the p-norm of SMs and L2, over a whole kernel."""
    wide_step: float = 40.0
    """Cycles of a stage in which wgmma or tcgen05 are idle."""
    overlap_power: float = 12.0
    """Exponent of the p-norm with the power limit: a device at its limit lowers its clock until both times are
    equal."""
    overlap_latency: float = 9.0
    """Exponent of the p-norm of an SM's throughput and a block's own latency."""
    overlap_converted: float = 1.1
    """The same for kernels whose warps convert an operand in registers between copy and product."""
    wide_pending: float = 0.8
    """Stages whose products are still running when the next copy is issued, for wgmma."""
    held: float = 0.19
    """Share of a stage in which its buffer is still being read, for units that take operands from registers."""
    l2_port_bytes: float = 64.0
    """Bytes that an SM takes from L2 per cycle. Source: [Accel-Sim] L1 fill width."""
    descriptor_gain: float = 1.5
    """Rate at which tensor descriptors read L2, relative to asynchronous copies. Fitted to their gain on an H100: up to
    13 % of a float16 product of 8192 x 8192 x 4096 (triton-lang/triton #5461)."""
    in_step: float = 1.12
    """Rate at which blocks read L2 while they run in step, relative to blocks that have drifted apart. Neighbours in
    step request the same lines at the same time, and L2 merges such requests (NVIDIA Nsight Compute, metrics guide: L2
    request coalescer)."""
    drift_waves: float = 20.0
    """Waves after which blocks that share an SM have lost half of this gain. A block alone on its SM stays in step."""
    step_instructions: float = 116.0
    """Instructions per warp and stage for the loop, ring index, barrier and addresses."""
    copy_instructions: float = 3.0
    """Instructions of an asynchronous copy and of the additions to its two addresses."""
    guard_instructions: float = 7.0
    """Instructions of a copy for each dimension in which its position may lie outside: position, two comparisons,
    selection of the size, and part of an address that is made anew in each stage. Source: loops of Triton 3.9's code
    for sm_89: convolutions of 3x3 have 14.5 and 15 instructions a copy more than products with the same tile, those of
    24 channels a group 22."""
    step_cycles: float = 40.0
    """Cycles of a stage for barrier and drain, which only other blocks hide."""
    block_cycles: float = 270.0
    """Cycles of a block for its start, the index arithmetic before its loop, and the last barrier."""
    converted_per_warp: float = 6.0
    """Elements that a quarter of an SM converts per cycle."""
    pieces: float = 0.6
    """Largest additional work of DRAM, as a share, if stages read parts of 128-byte lines."""
    queue: float = 2.5
    """Latency of a load among others, relative to that of a single load."""
    cold_s: float = 3e-06
    """Seconds that a launch takes longer than a repeated one, because code and arguments come from DRAM."""
    tail_overlap: float = 0.65
    """Length of the last, partly filled wave relative to a wave that starts after all blocks ended."""


CONSTANTS = Constants()
