"""What all groups of a spec's numbers have: a source, what is unverified, and plausible values.

Every number has a plausible range, so that a wrong unit is noticed and explained.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from anatune.errors import SpecError

__all__ = ["Group", "value_problem"]


class _Range(NamedTuple):
    """Plausible values of a key; `scales` are the wrong units people write, as (factor, name)."""

    low: float
    high: float
    unit: str
    scales: tuple[tuple[float, str], ...] = ()


_BANDWIDTH = _Range(1e9, 1e14, "bytes/s", ((1e9, "GB/s"), (1e12, "TB/s"), (1e6, "MB/s")))
_KIB = ((1024.0, "KiB"), (1024.0**2, "MiB"))
_CYCLES = _Range(0.5, 5e3, "cycles")
_FRACTION = _Range(0.01, 1.0, "as a share of the nominal value", ((0.01, "per cent"),))
_REGISTERS = _Range(4096, 2**24, "registers of 32 bits", ((1024.0, "units of 1024"),))
_TENSOR_PEAK = _Range(1e11, 1e17, "FLOP/s", ((1e12, "TFLOP/s"), (1e15, "PFLOP/s"), (1e9, "GFLOP/s")))
_RATE = _Range(1 / 128, 64.0, "relative to float32")

# Key -> plausible range: wide enough for every device since 2010, narrow enough to catch a wrong unit.
# "Group.key" goes before "key".
_RANGES: dict[str, _Range] = {
    "clock_hz": _Range(1e8, 1e10, "Hz", ((1e6, "MHz"), (1e9, "GHz"), (1e3, "kHz"))),
    "fp32_peak_flop_per_s": _Range(1e9, 1e16, "FLOP/s", ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"))),
    "float16_flop_per_s": _TENSOR_PEAK,
    "bfloat16_flop_per_s": _TENSOR_PEAK,
    "tf32_flop_per_s": _TENSOR_PEAK,
    "bandwidth_bytes_per_s": _BANDWIDTH,
    "core_bandwidth_bytes_per_s": _BANDWIDTH._replace(low=1e8),
    "bandwidth_bytes_per_cycle": _Range(0.25, 4096, "bytes per cycle and core"),
    "bytes_per_cycle_per_sm": _Range(4, 4096, "bytes per cycle"),
    "latency_cycles": _CYCLES,
    "fma_latency_cycles": _CYCLES,
    "latency_s": _Range(1e-9, 1e-5, "s", ((1e-9, "ns"), (1e-6, "us"))),
    "overhead_s": _Range(1e-7, 1e-2, "s", ((1e-6, "us"), (1e-3, "ms"), (1e-9, "ns"))),
    "parallel_start_s": _Range(1e-8, 1e-2, "s", ((1e-6, "us"), (1e-9, "ns"))),
    "function_call_s": _Range(1e-9, 1e-3, "s", ((1e-6, "us"), (1e-9, "ns"))),
    "microkernel_call_cycles": _Range(0, 1e3, "cycles"),
    "depth": _Range(1, 1e6, "steps"),
    "least_share": _Range(0.01, 1.0, "as a share of the peak", ((0.01, "per cent"),)),
    "size_bytes": _Range(1024, 1e11, "bytes", _KIB),
    "L2Cache.size_bytes": _Range(65536, 1e11, "bytes", _KIB),
    "per_sm_bytes": _Range(8192, 2**24, "bytes", _KIB),
    "per_block_bytes": _Range(8192, 2**24, "bytes", _KIB),
    "reserved_per_block_bytes": _Range(0, 16384, "bytes"),
    "granularity_bytes": _Range(1, 8192, "bytes"),
    "per_sm": _REGISTERS,
    "per_block": _REGISTERS,
    "registers_per_thread": _Range(16, 1024, "registers of 32 bits"),
    "unroll_statements": _Range(1, 1e6, "statements"),
    "per_thread": _Range(16, 1024, "registers of 32 bits"),
    "allocation_unit": _Range(1, 8192, "registers of 32 bits"),
    "num_sub_partitions": _Range(1, 16, "parts"),
    "num_sms": _Range(1, 2048, "SMs"),
    "fp32_lanes_per_sm": _Range(8, 2048, "lanes"),
    "warp_size": _Range(4, 128, "threads"),
    "num_schedulers_per_sm": _Range(1, 16, "schedulers"),
    "issue_per_cycle_per_sm": _Range(0.25, 32, "warp instructions per cycle"),
    "max_threads_per_block": _Range(32, 4096, "threads"),
    "max_warps_per_sm": _Range(1, 256, "warps"),
    "max_blocks_per_sm": _Range(1, 256, "blocks"),
    "fp16_rate": _RATE,
    "int8_rate": _RATE,
    "rate": _RATE,
    "reachable_fraction": _FRACTION,
    "mma_sync_fraction": _FRACTION,
    "num_banks": _Range(1, 256, "banks"),
    "bank_bytes": _Range(1, 64, "bytes"),
    "transaction_bytes": _Range(4, 1024, "bytes"),
    "num_cores": _Range(1, 4096, "cores"),
    "parallel_speedup": _Range(0.5, 4096, "cores"),
    "simd_bits": _Range(32, 4096, "bits", ((8.0, "bytes"),)),
    "fma_per_cycle": _Range(0.0625, 32, "multiply-adds of a whole vector per cycle"),
    "num_vector_registers": _Range(4, 512, "registers"),
    "loads_per_cycle": _Range(0.0625, 16, "whole-vector loads per cycle"),
    "stores_per_cycle": _Range(0.0625, 16, "whole-vector stores per cycle"),
    "broadcasts_per_cycle": _Range(0.0625, 16, "elements per cycle"),
    "issue_width": _Range(1, 32, "instructions per cycle"),
    "ways": _Range(1, 4096, "ways"),
    "line_bytes": _Range(8, 1024, "bytes"),
    "shared_by_cores": _Range(1, 4096, "cores"),
}


def value_problem(group: str, key: str, value: object) -> str | None:
    """Say what is implausible about a number of a spec, None if nothing is.

    Parameters
    ----------
    group
        Class name of the group ("Dram").
    key
        Key of the group ("bandwidth_bytes_per_s").
    value
        What the spec says; only int and float are judged.

    Returns
    -------
    str or None
        What was got, what is expected, and the unit it was probably meant in.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    limits = _RANGES.get(f"{group}.{key}") or _RANGES.get(key)
    if limits is None:
        return None if math.isfinite(value) else f"got {value!r}, expected a finite number"
    if limits.low <= value <= limits.high:
        return None
    text = f"got {value!r}, expected {limits.low:g} to {limits.high:g} {limits.unit}"
    hints = [
        f"{name} (then write {value * factor:.10g})"
        for factor, name in limits.scales
        if limits.low <= value * factor <= limits.high
    ]
    return f"{text}; it looks like {' or '.join(hints)}" if hints else text


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of a spec file: its numbers, where they come from, and which of them are unverified."""

    source: str
    unverified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise SpecError("source is empty; say where the numbers of this group come from")
        wrong = [key for key in self.unverified if key not in self.__struct_fields__]
        if wrong:
            raise SpecError(f"unverified names {wrong}, which are no keys of this group")
        for key in self.__struct_fields__:
            problem = value_problem(type(self).__name__, key, getattr(self, key))
            if problem:
                raise SpecError(f"{key}: {problem}")
