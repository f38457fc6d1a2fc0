"""Constants of the model of Triton's tiles, together in one place so that a bench can fit and report them."""

from __future__ import annotations

import msgspec

__all__ = ["CONSTANTS", "Constants"]


class Constants(msgspec.Struct, frozen=True):
    """What no device's spec says. Bytes, cycles of an SM, or shares.

    Fitted, where no source is named, to recorded times of Triton 3.0's products on an A100 and an H100
    (``bench.replay.tensorcores FOLDER --fit``); README of bench says how they do on problems and devices left out.
    """

    reach_mma: float = 1.0
    reach_wide: float = 0.95
    """Shares of a unit's rate that a stream of independent instructions reaches."""
    overlap_mma: float = 4.0
    overlap_wide: float = 10.0
    """Exponents p of (a^p + b^p + ...)^(1/p) over products, issue, shared memory and copies of a stage.

    1 adds them up, infinity lets them run side by side. Units that read registers wait for their warps' loads; wgmma
    and tcgen05 do not.
    """
    overlap_memory: float = 2.65
    """The same for DRAM beside everything else."""
    overlap_l2: float = 5.7
    """The same for the SMs and L2, over a whole kernel."""
    wide_step: float = 40.0
    """Cycles of a stage in which wgmma or tcgen05 have nothing to do."""
    overlap_power: float = 12.0
    """The same for the time that power takes: a device at its limit lowers its clock until both are alike."""
    overlap_latency: float = 9.0
    """The same for an SM's throughput and a block's own latency."""
    overlap_converted: float = 1.1
    """The same for kernels whose warps convert an operand between copy and product, in registers."""
    wide_pending: float = 0.8
    """Stages whose products are still at work when the next copy is issued: wgmma."""
    held: float = 0.19
    """Share of a stage in which its buffer is still read: units that take operands from registers."""
    l2_port_bytes: float = 64.0
    """Bytes that an SM takes from L2 in a cycle. Source: [Accel-Sim] L1 fill width."""
    descriptor_gain: float = 1.5
    """What tensor descriptors take from L2 over what asynchronous copies do. Fitted to what they gain on an H100: up to
    13 % of a float16 product of 8192 x 8192 x 4096 (triton-lang/triton #5461)."""
    in_step: float = 1.12
    """What blocks that keep step take from L2 over blocks that have drifted apart: neighbours ask for the same lines at
    the same time, and L2 merges such requests (NVIDIA Nsight Compute, metrics guide: L2 request coalescer)."""
    drift_waves: float = 20.0
    """Waves in which blocks that share an SM lose half of that; a block alone on its SM keeps step with the others."""
    step_instructions: float = 116.0
    """Loop, ring index, barrier and address instructions of a warp and stage."""
    copy_instructions: float = 3.0
    """An asynchronous copy and the additions that move its two addresses."""
    step_cycles: float = 40.0
    """Barrier and drain of a stage, which only other blocks hide."""
    block_cycles: float = 270.0
    """Start of a block, index arithmetic before its loop, last barrier."""
    converted_per_warp: float = 6.0
    """Elements that a quarter of an SM converts in a cycle."""
    pieces: float = 0.6
    """Additional work of DRAM where stages take lines of 128 bytes in pieces, at most."""
    queue: float = 2.5
    """Latency of a load beside others, over that of a load alone."""
    cold_s: float = 3e-06
    """What a launch after others costs beside a repeated one: the code and the arguments come from DRAM."""
    tail_overlap: float = 0.65
    """Length of the last, partly filled wave relative to one that starts after all others ended."""


CONSTANTS = Constants()
