"""Calibration of this machine's CPU, which measures the numbers of its spec (``anatune hw calibrate``).

The use of each number in the model (`cpu.model.pack`):

=============================== ================================================================================
clock_hz, fma_per_cycle, peak    all cycles to seconds; the multiply-add term
reachable_fraction               the multiply-add term: the share of the peak that the best register tiles reach
fma_latency_cycles               the latency term of a step, the drain of a call
loads_per_cycle                  the load term of a step, reloads of partial sums
vdpbf16ps, vpdpbusd, ..          the multiply-add and latency terms of bfloat16 and int8
tiles                            the same of AMX's products, loads and stores
broadcasts_per_cycle             nothing yet: the load term of a step (see `tiles.predicted_share`)
stores_per_cycle                 stores of a call, spills
l3 size_bytes                    the part that a nest can use: less than detected if other machines share the cache
l2, l3 bandwidth_bytes_per_cycle l2_s and l3_s: fills into L1 and into L2; that of l1 follows from the load ports
dram bandwidths                  dram_s, of one core and shared by all
microkernels                     which microkernels the strategy `structured` draws; nothing of the model's times
parallel_speedup                 speed of all threads of a parallel loop over that of one
launch                           start of a parallel loop, entry of a microkernel call
latency_cycles, latency_s        nothing yet: explanations
=============================== ================================================================================

Clock, multiply-adds a cycle and their latency are solved for together (`calibration.peak`); the peak is their product.
Where the measured rate is less, `reachable_fraction` contains that. All per-cycle numbers are relative to multiply-adds
timed just before and after.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.structs import replace as replace_groups

from anatune.core.hardware.spec import CpuSpec
from anatune.files import temporary_folder
from anatune.measure.cpu.calibration.machine import Machine
from anatune.measure.cpu.calibration.numbers import Numbers, numbers_of
from anatune.measure.cpu.calibration.samples import Samples, sample_quantities
from anatune.measure.cpu.calibration.spec import calibrated_spec
from anatune.measure.cpu.calibration.tiles import (
    MeasuredTile,
    RegisterTile,
    TileAgreement,
    agreement,
    candidate_tiles,
    fits_registers,
    microkernel_table,
    predicted_share,
)
from anatune.measure.cpu.detect import detect_cpu

Progress = Callable[[str, float], None]

_ENOUGH = 25
"""Number of undisturbed samples to take of each quantity."""


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration: the new spec, the measured numbers, all tiles, and the quality of predictions.

    Attributes
    ----------
    tiles : tuple of MeasuredTile
        All tiles that were measured.
    agreement, fitting : TileAgreement
        Quality of the predictions for all tiles, and for tiles that fit into the registers.
    quiet_share : float
        Share of undisturbed samples.
    notes : tuple of str
        Lines about decisions.
    """

    spec: CpuSpec
    numbers: Numbers
    tiles: tuple[MeasuredTile, ...]
    agreement: TileAgreement
    fitting: TileAgreement
    quiet_share: float
    notes: tuple[str, ...]


def calibrate(
    hardware: CpuSpec | None = None,
    *,
    minutes: float = 1.0,
    progress: Progress | None = None,
    machine: Callable[[CpuSpec, Path], Machine] = Machine,
) -> Calibration:
    """Measure this machine without writing a file.

    Parameters
    ----------
    hardware : CpuSpec, optional
        The previous spec; `detect_cpu()` by default.
    minutes : float
        Largest time for sampling, which ends earlier once there are enough undisturbed samples. Building the probes
        takes another quarter of a minute.
    progress
        Called with the name of a phase and the share of it that is done.
    machine
        Makes the object that runs the probes; another one for a board that `hardware` describes.

    Returns
    -------
    Calibration
        The result.

    Raises
    ------
    DeviceError
        The CPU is not detected.
    MissingDependencyError
        TVM is not installed.
    """
    report = progress or (lambda _stage, _share: None)
    hardware = hardware or detect_cpu()
    samples, shared = Samples(), Samples()
    tiles = candidate_tiles(hardware)
    with temporary_folder() as folder:
        here = machine(hardware, folder)
        with here.alone():
            report("building probes", 0.0)
            here.start()
            quantities = here.core_quantities()
            tile_quantities = here.tile_quantities(tiles, lambda share: report("building probes", share))
            for stage, chosen, share in (("one core", quantities, 0.3), ("register tiles", tile_quantities, 0.5)):
                sample_quantities(
                    chosen,
                    here.probes,
                    samples,
                    budget_s=60 * minutes * share,
                    enough=_ENOUGH,
                    progress=lambda done, stage=stage: report(stage, done),  # type: ignore[misc]
                )
        report("cores together", 0.0)
        together = here.together(60 * minutes * 0.05)
        quantities = here.all_core_quantities()
        with here.beside():
            sample_quantities(
                quantities,
                here.probes,
                shared,
                budget_s=60 * minutes * 0.15,
                enough=_ENOUGH,
                progress=lambda done: report("all cores", done),
            )
    fma_s, work = samples.fma_s, here.work
    numbers = numbers_of(hardware, samples, shared, together, work)
    names = dict(zip(tiles, (quantity.name for quantity in tile_quantities), strict=True))
    shares = {tile: work[name] / samples.steady_seconds(name) / (work["fma"] / fma_s) for tile, name in names.items()}
    result = finish_spec(hardware, numbers, shares, here.spill_ops, samples.quiet_share)
    return replace(result, notes=(*result.notes, *here.left_out))


def finish_spec(
    hardware: CpuSpec,
    numbers: Numbers,
    shares: Mapping[RegisterTile, float],
    spill_ops: Mapping[RegisterTile, int],
    quiet_share: float,
    today: str | None = None,
) -> Calibration:
    """Make the calibration from the numbers: the spec, then the prediction of every tile by the model of that spec.

    Parameters
    ----------
    shares : mapping of RegisterTile to float
        Tile -> its rate over that of multiply-adds between registers.
    """
    today = today or datetime.date.today().isoformat()
    spec, notes = calibrated_spec(hardware, numbers, shares, today)
    filled = numbers.fma_flop_per_s / (spec.compute.fp32_peak_flop_per_s / spec.compute.num_cores)
    measured = tuple(
        MeasuredTile(tile, filled * share, predicted_share(tile, spec), spill_ops.get(tile, 0))
        for tile, share in shares.items()
    )
    doubtful = {tile for tile in shares if tile.name in numbers.doubtful}
    spec = replace_groups(spec, microkernels=microkernel_table(measured, doubtful, f"anatune hw calibrate, {today}"))
    fitting = [tile for tile in measured if fits_registers(tile.tile, spec)]
    return Calibration(spec, numbers, measured, agreement(measured), agreement(fitting), quiet_share, notes)
