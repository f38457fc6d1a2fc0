"""The results of the GPU probes: medians of their samples as rates, bytes per cycle, latencies and clocks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from anatune.measure.cuda.calibration.machine import LAUNCH, Sample

SUSTAINED = "sustained"
"""Name of the clock after some tenths of a second of multiply-adds."""
_LATENCY_WORK = {"fma": 32.0, "mma": 16.0 * 8 * 16}
"""Multiply-adds in one instruction of a warp; a load counts as one."""


class Median(msgspec.Struct, frozen=True):
    """The median of samples in SI units, half their interquartile range over it, and their number."""

    value: float
    spread: float
    samples: int


class GpuNumbers(msgspec.Struct, frozen=True):
    """The measured numbers of a GPU.

    Attributes
    ----------
    clock_hz : float
        Clock while all SMs compute multiply-adds; 0 if the device's timer does not advance.
    fma_per_cycle : dict of str to Median
        float32 multiply-adds per cycle and SM, by "chains x warps".
    rates : dict of str to Median
        Probe -> FLOP/s ("fma_2_32", "fma_float16", "matrix_bfloat16_4_8") or bytes/s ("l2_read", "shared_16", and
        "dram_copy", which counts reads and writes).
    shared_bytes_cycle : dict of str to Median
        Bytes of a load -> bytes per cycle and SM.
    latency_cycles, latency_s : dict of str to Median
        Latencies of dependent loads by level, "shared" to "dram"; of dependent multiply-adds, "fma", and of the matrix
        units, "mma".
    launch_s : Median or None
        Time of an empty kernel in a row of empty kernels.
    clocks_hz : dict of str to float
        Clock during each probe, and `SUSTAINED`.
    refused : dict of str to str
        Probes that could not be used -> reason.
    """

    clock_hz: float
    fma_per_cycle: dict[str, Median]
    rates: dict[str, Median]
    shared_bytes_cycle: dict[str, Median]
    latency_cycles: dict[str, Median]
    latency_s: dict[str, Median]
    launch_s: Median | None
    clocks_hz: dict[str, float]
    refused: dict[str, str] = {}

    @property
    def best_fma(self) -> tuple[str, Median] | None:
        """Name and FLOP/s of the fastest float32 multiply-adds."""
        return _best(self.rates, "fma_", without=("fma_float16", "fma_int8"))

    def best_matrix(self, dtype: str) -> tuple[str, Median] | None:
        """Name and FLOP/s of the fastest matrix probe of a dtype."""
        return _best(self.rates, f"matrix_{dtype}_")


def numbers_of(samples: Mapping[str, Sequence[Sample]], refused: Mapping[str, str]) -> GpuNumbers:
    """Return the medians; `samples` by the names of `probe_set.probe_set`, and `LAUNCH`."""
    rates: dict[str, Median] = {}
    fma_cycle: dict[str, Median] = {}
    shared: dict[str, Median] = {}
    cycles: dict[str, Median] = {}
    seconds: dict[str, Median] = {}
    clocks: dict[str, float] = {}
    for name, taken in samples.items():
        clocks[name] = statistics.median(sample.clock_hz for sample in taken)
        kind, _, rest = name.partition("_")
        level = name.removesuffix("_latency")
        if level != name:
            steps = _LATENCY_WORK.get(level, 1.0)
            cycles[level] = _median([steps / sample.cycle_rate for sample in taken])
            seconds[level] = _median([steps * sample.block_s / sample.block_work for sample in taken])
        elif kind in ("fma", "matrix"):
            rates[name] = _median([2.0 * sample.rate for sample in taken])
            if rest[0].isdigit() and kind == "fma":
                fma_cycle[rest.replace("_", "x")] = _median([sample.cycle_rate for sample in taken])
        elif name != LAUNCH:
            rates[name] = _median([sample.rate for sample in taken])
            if kind == "shared":
                shared[rest] = _median([sample.cycle_rate for sample in taken])
    numbers = GpuNumbers(
        clock_hz=0.0,
        fma_per_cycle=fma_cycle,
        rates=rates,
        shared_bytes_cycle=shared,
        latency_cycles=cycles,
        latency_s=seconds,
        launch_s=_median([sample.seconds for sample in samples[LAUNCH]]) if samples.get(LAUNCH) else None,
        clocks_hz={name: clock for name, clock in clocks.items() if clock > 0},
        refused=dict(refused),
    )
    best = numbers.best_fma
    return msgspec.structs.replace(numbers, clock_hz=clocks[best[0]] if best is not None else 0.0)


def _median(values: Sequence[float]) -> Median:
    middle = statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (middle, middle, middle)
    return Median(middle, (high - low) / 2 / middle if middle else 0.0, len(values))


def _best(rates: Mapping[str, Median], prefix: str, *, without: Sequence[str] = ()) -> tuple[str, Median] | None:
    matching = [item for item in rates.items() if item[0].startswith(prefix) and item[0] not in without]
    return max(matching, key=lambda item: item[1].value, default=None)
