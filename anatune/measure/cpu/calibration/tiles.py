"""Register tiles: the tiles to measure, their predictions, and the quality of the predictions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from anatune.codegen.cpu.probes import RegisterTile
from anatune.core.hardware.cpu_groups import MicrokernelTable
from anatune.core.hardware.spec import CpuSpec
from anatune.templates.cpu.model.pack import pack_machine
from anatune.templates.cpu.times.microkernel import call_one, step_one
from anatune.templates.cpu.times.nest import CpuCore

__all__ = [
    "LEAST_SHARE",
    "MOST_STEPS",
    "UNROLLS",
    "MeasuredTile",
    "RegisterTile",
    "TileAgreement",
    "agreement",
    "candidate_tiles",
    "fits_registers",
    "microkernel_table",
    "predicted_share",
    "tile_depth",
]

LEAST_SHARE = 0.8
"""Share of the peak above which a tile is good and kept. Source: [TACO22] Sec. 4.1."""
UNROLLS = (1, 8, 16)
"""Unroll factors of the loop body; those between differ by 2 %, 16 of many rows need too many registers."""
MOST_STEPS = 256
"""Largest number of iterations of a tile's reduction."""
MOST_VECTORS = 8
REGISTERS_TRIED = 1.3
"""Tiles that need up to this many times the registers are measured, to see the drop after the last one that fits."""


class MeasuredTile(NamedTuple):
    """A tile with its measured and predicted share of the peak, and the vector operations on the stack in its code."""

    tile: RegisterTile
    share: float
    predicted: float
    spill_ops: int


class TileAgreement(NamedTuple):
    """The quality of predictions of good tiles, those above `least_share`.

    Attributes
    ----------
    precision : float
        Share of the tiles predicted as good that are good; 1 if none is predicted.
    recall : float
        Share of the good tiles that are predicted as good; 1 if there are none.
    num_good, num_predicted : int
    missed, promised : tuple of MeasuredTile
        Good tiles that are not predicted; tiles that are predicted and not good.
    """

    precision: float
    recall: float
    num_good: int
    num_predicted: int
    missed: tuple[MeasuredTile, ...]
    promised: tuple[MeasuredTile, ...]


def candidate_tiles(hardware: CpuSpec) -> list[RegisterTile]:
    """Return all tiles of up to `MOST_VECTORS` vectors that need at most `REGISTERS_TRIED` times the registers.

    rows x vectors accumulators, the vectors of the SIMD operand, and one broadcast. About 300 with 32 registers, 100
    with 16.

    Deviates: [TACO22] Sec. 4.1 tries 3,059 convolutions (2,043 by its constraints as printed). In our code those do the
    same that have as many rows (along one axis or two), vectors, and steps (of channels or taps of the window): 298
    kinds. Of 48 drawn at random those whose tile is good reach 83 to 98 % of the peak
    (`bench.experiments.structured_space`).
    """
    limit = REGISTERS_TRIED * hardware.compute.num_vector_registers
    return [
        RegisterTile(rows, vectors, unroll)
        for vectors in range(1, MOST_VECTORS + 1)
        for rows in range(1, int(limit))
        for unroll in UNROLLS
        if rows * vectors + vectors + 1 <= limit
    ]


def fits_registers(tile: RegisterTile, hardware: CpuSpec) -> bool:
    """Return whether a tile fits into the registers (`cpu.times.microkernel`)."""
    return _step(tile, pack_machine(hardware).core)[1] <= hardware.compute.num_vector_registers


def _step(tile: RegisterTile, core: CpuCore) -> tuple[float, ...]:
    """Return the prediction for one iteration of a tile."""
    rows, vectors = float(tile.rows), float(tile.vectors)
    held = vectors if tile.rows > 1 else 1.0
    answer: tuple[float, ...] = step_one(core, rows * vectors, rows + vectors, held, rows, 0.0, float(tile.unroll), 1.0)
    return answer


def tile_depth(tile: RegisterTile, hardware: CpuSpec) -> int:
    """Return the iterations of a tile's reduction: at most `MOST_STEPS`, with operands in three quarters of L1.

    The table covers registers, ports and latencies only; fills from L2 are another term of the model.
    """
    step_bytes = 4 * (tile.rows + tile.vectors * hardware.fp32_lanes)
    fitting = int(0.75 * hardware.l1.size_bytes / step_bytes)
    longest = max(UNROLLS)
    return max(longest, min(MOST_STEPS, fitting) // longest * longest)


def microkernel_table(
    tiles: Sequence[MeasuredTile], doubtful: Collection[RegisterTile], source: str
) -> MicrokernelTable | None:
    """Return the tiles that reach `LEAST_SHARE`, for a spec; None if no tile does.

    Parameters
    ----------
    doubtful : collection of RegisterTile
        Tiles with too few undisturbed samples; the shares are unverified if any of them is good.
    source : str
        The source of the numbers: program and date.
    """
    good = sorted(entry for entry in tiles if entry.share >= LEAST_SHARE)
    if not good:
        return None
    return MicrokernelTable(
        depth=MOST_STEPS,
        least_share=LEAST_SHARE,
        tiles=tuple((*entry.tile, round(entry.share, 2)) for entry in good),
        source=source,
        unverified=("tiles",) if any(entry.tile in doubtful for entry in good) else (),
    )


def predicted_share(tile: RegisterTile, hardware: CpuSpec) -> float:
    """Return the predicted share of the peak of a tile (`cpu.times.microkernel`)."""
    core = pack_machine(hardware).core
    accumulators = float(tile.rows * tile.vectors)
    depth = tile_depth(tile, hardware)
    cycles = depth * _step(tile, core)[0] + call_one(core, accumulators, accumulators, 1.0, 0.0)
    return float(depth * accumulators / core.fma_per_cycle / cycles)


def agreement(measured: Sequence[MeasuredTile], least_share: float = LEAST_SHARE) -> TileAgreement:
    """Compare predicted with measured tiles."""
    good = [tile for tile in measured if tile.share >= least_share]
    predicted = [tile for tile in measured if tile.predicted >= least_share]
    both = sum(tile.share >= least_share for tile in predicted)
    return TileAgreement(
        precision=both / len(predicted) if predicted else 1.0,
        recall=both / len(good) if good else 1.0,
        num_good=len(good),
        num_predicted=len(predicted),
        missed=tuple(tile for tile in good if tile.predicted < least_share),
        promised=tuple(tile for tile in predicted if tile.share < least_share),
    )
