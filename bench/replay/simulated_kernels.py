"""Tables of kernels that anatune's models do not describe: simple physics of others' code, and luck of its variants.

Nothing here uses anatune's models or is fitted to measurements. Two kernels are simulated on made-up and real
devices, over spaces such as Kernel Tuner's users write them: ranges that do not divide the image, guards, variants.

convolution : one image, one filter, a thread computes tile_size_x times tile_size_y results that lie a block apart. All
    loops are unrolled, so a value is loaded once a thread however many windows hold it, and the code is long: counted
    in 56 kernels of that kind that NVRTC 12.9 compiled for sm_80 (loads exactly; instructions roughly).
stencil : some time steps of a 5-point stencil in shared memory, whose borders are computed more than once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["DEVICES", "KERNELS", "Device", "SimulatedTable", "simulate_table"]

Floats = NDArray[np.float64]
Columns = Mapping[str, NDArray[np.int64]]

IMAGE, FILTER = 4096, 15
_LUCK = 0.03
"""Standard deviation of the log of a configuration's own part of its time."""
_VARIANT_LUCK = 0.15
"""The same for a variant of the code, and for a variant at one tile size."""


@dataclass(frozen=True)
class Device:
    """What the simulated kernels need of a GPU; bytes and multiply-adds are those of one SM and cycle."""

    name: str
    num_sms: int
    warps: int
    fma: int
    shared_bytes: int
    dram_bytes: float
    code_bytes: int
    """The size of the instruction cache. Longer code is fetched again and again."""


DEVICES = (
    Device("a100_sxm", 108, 64, 64, 163_840, 10.2, 131_072),
    Device("rtx3090", 82, 48, 128, 102_400, 6.7, 131_072),
    Device("a6000", 84, 48, 128, 102_400, 4.9, 32_768),
    Device("titan_rtx", 72, 32, 64, 65_536, 5.3, 32_768),
    Device("1080ti", 28, 64, 128, 98_304, 11.0, 16_384),
)


@dataclass(frozen=True)
class SimulatedTable:
    """One kernel on one device: names of the parameters, configurations, and seconds (NaN: it does not run)."""

    kernel: str
    device: str
    parameters: tuple[str, ...]
    configs: list[tuple[int, ...]]
    time_s: Floats


def simulate_table(kernel: str, device: Device, seed: int) -> SimulatedTable:
    """Return every allowed configuration of a kernel with its simulated time."""
    space, restriction, physics = KERNELS[kernel]
    rows = np.array(list(itertools.product(*space.values())), dtype=np.int64)
    rows = rows[restriction(dict(zip(space, rows.T, strict=True)))]
    columns = dict(zip(space, rows.T, strict=True))
    rng = np.random.default_rng(seed)
    time_s = physics(columns, device) * np.exp(_luck(columns, rng))
    return SimulatedTable(kernel, device.name, tuple(space), [tuple(row) for row in rows.tolist()], time_s)


def _luck(columns: Columns, rng: np.random.Generator) -> Floats:
    """Return the log of what no physics says: of each configuration, of each variant, of a variant at a tile size."""
    size = len(next(iter(columns.values())))
    log: Floats = np.abs(rng.normal(0.0, _LUCK, size))
    variants = [values for name, values in columns.items() if not name.startswith(("block_size", "tile_size"))]
    tiles = [values for name, values in columns.items() if name.startswith("tile_size")]
    for chosen in (variants, [*variants, *tiles]):
        _, group = np.unique(np.column_stack(chosen), axis=0, return_inverse=True)
        group = group.reshape(-1)
        log += np.abs(rng.normal(0.0, _VARIANT_LUCK, int(group.max()) + 1))[group]
    return log


def _running(
    device: Device, threads: NDArray[np.int64], registers: Floats, shared: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the blocks that an SM runs at once, and whether one can run at all."""
    warps = -(-threads // 32)
    by_registers = np.floor(65_536 / (registers * 32 * warps))
    by_shared = np.floor(device.shared_bytes / np.maximum(shared + 1024, 1))
    resident = np.minimum.reduce([np.floor(device.warps / warps), by_registers, by_shared, np.full(len(warps), 16.0)])
    return np.maximum(resident, 1.0), (resident >= 1) & (shared <= 49_152) & (threads <= 1024)


def _seconds(cycles: Floats, blocks: NDArray[np.int64], resident: Floats, device: Device) -> Floats:
    """Return the time of whole waves of blocks that take so many cycles of an SM each; the last wave is shorter."""
    each = blocks / device.num_sms
    waves: Floats = np.ceil(each / resident)
    last = np.ceil(each - (waves - 1.0) * resident)
    return ((waves - 1.0) * resident + np.maximum(last, 1.0)) * cycles / 1.5e9


def _convolution(c: Columns, device: Device) -> Floats:
    bx, by, tx, ty = (c[name] for name in ("block_size_x", "block_size_y", "tile_size_x", "tile_size_y"))
    threads, results = bx * by, tx * ty
    warps = -(-threads // 32)
    rows = np.minimum(FILTER * ty, FILTER + by * (ty - 1))  # distinct rows of all windows of a thread
    loads, fma = FILTER * rows * tx, FILTER**2 * results
    instructions = 400 + fma + loads * np.where(c["use_shmem"] == 1, 1.1, 1.6)
    registers = np.clip(32.0 + np.where(c["use_shmem"] == 1, 14.0, 22.0) * (results - 9), 32.0, 255.0)
    staged = (by * ty + FILTER - 1) * (bx * tx + FILTER - 1 + c["use_padding"]) * 4
    shared = np.where(c["use_shmem"] == 1, staged, 0)
    resident, runs = _running(device, threads, registers, shared)
    ways = np.where((bx % 32 != 0) & (c["use_padding"] == 0) & (c["use_shmem"] == 1), 1.25, 1.0)
    lines = np.where(c["use_shmem"] == 1, 1.0, np.where(c["read_only"] == 1, 1.6, 2.2)) * ways
    work = np.maximum.reduce([fma * warps * 32.0 / device.fma, loads * warps * lines, instructions * warps / 4.0])
    hidden = np.minimum(1.0, resident * warps * np.minimum(results, 4) / 32.0)  # loads in flight
    work = work / (0.35 + 0.65 * hidden)
    code = instructions * 16.0
    work = work * np.where(code > device.code_bytes, 1.0 + 0.5 * np.minimum(1.0, code / device.code_bytes - 1.0), 1.0)
    fill = staged / 48.0 + np.where(resident > 1, 100.0, 600.0)
    blocks = -(-IMAGE // (bx * tx)) * -(-IMAGE // (by * ty))
    dram = (staged + 4 * threads * results) / device.dram_bytes
    cycles = np.maximum(work + np.where(c["use_shmem"] == 1, fill, 0.3 * fill), dram)
    return np.where(runs, _seconds(cycles, blocks, resident, device), np.nan)


def _stencil(c: Columns, device: Device) -> Floats:
    bx, by, tx, ty = (c[name] for name in ("block_size_x", "block_size_y", "tile_size_x", "tile_size_y"))
    steps = c["temporal_tiling_factor"]
    threads, results = bx * by, tx * ty
    warps = -(-threads // 32)
    wide, high = bx * tx + 2 * steps, by * ty + 2 * steps
    shared = wide * high * 4 * (2 + c["sh_power"])
    registers = np.clip(24.0 + 5.0 * results + 2.0 * steps / c["loop_unroll_factor_t"], 24.0, 255.0)
    resident, runs = _running(device, threads, registers, shared)
    computed = np.zeros(len(bx))
    for step in range(1, 11):
        computed = computed + np.where(step <= steps, (wide - 2 * step) * (high - 2 * step), 0)
    rounds = np.ceil(wide / np.maximum(bx, 1)) * np.ceil(high / np.maximum(by, 1)) / (results + 1e-9)
    lines = np.where(bx >= 32, 1.0, 32.0 / np.maximum(bx, 4))
    work = computed / 32.0 * np.maximum(7.0 * np.sqrt(lines), 14.0 / (device.fma / 64.0)) * np.sqrt(rounds)
    work = work / (0.35 + 0.65 * np.minimum(1.0, resident * warps / 32.0))
    moved = wide * high * 8.0 * np.where(bx * tx >= 32, 1.0, 32.0 / (bx * tx)) + 4.0 * bx * tx * by * ty
    waits = 400.0 + 60.0 * steps
    blocks = -(-IMAGE // (bx * tx)) * -(-IMAGE // (by * ty))
    cycles = np.maximum(work + waits / resident, moved / device.dram_bytes)
    seconds = _seconds(cycles, blocks, resident, device) / steps
    return np.where(runs, seconds, np.nan)


def _allowed_convolution(c: Columns) -> NDArray[np.bool_]:
    staged = (c["block_size_x"] * c["tile_size_x"] + FILTER - 1) * (c["block_size_y"] * c["tile_size_y"] + FILTER - 1)
    allowed: NDArray[np.bool_] = (
        (c["block_size_x"] * c["block_size_y"] <= 1024)
        & ((c["use_padding"] == 0) | ((c["block_size_x"] % 32 != 0) & (c["use_shmem"] == 1)))
        & ((c["use_shmem"] == 0) | (staged < 12 * 1024))
    )
    return allowed


def _allowed_stencil(c: Columns) -> NDArray[np.bool_]:
    threads, steps = c["block_size_x"] * c["block_size_y"], c["temporal_tiling_factor"]
    wide, high = c["block_size_x"] * c["tile_size_x"] + 2 * steps, c["block_size_y"] * c["tile_size_y"] + 2 * steps
    allowed: NDArray[np.bool_] = (
        (threads >= 32)
        & (threads <= 1024)
        & (steps % c["loop_unroll_factor_t"] == 0)
        & (wide * high * 4 * (2 + c["sh_power"]) <= 49_152)
    )
    return allowed


Kernel = tuple[dict[str, Sequence[int]], Callable[[Columns], NDArray[np.bool_]], Callable[[Columns, Device], Floats]]

KERNELS: dict[str, Kernel] = {
    "convolution": (
        {
            "block_size_x": range(16, 257, 16), "block_size_y": (1, 2, 4, 8, 16), "tile_size_x": (1, 2, 3, 4),
            "tile_size_y": (1, 2, 3, 4), "read_only": (0, 1), "use_padding": (0, 1), "use_shmem": (0, 1),
            "use_cmem": (1,),
        },
        _allowed_convolution,
        _convolution,
    ),
    "stencil": (
        {
            "block_size_x": (1, 2, 4, 8, 16, *range(32, 513, 32)), "block_size_y": (1, 2, 4, 8, 16, 32),
            "tile_size_x": (1, 2, 3, 5, 7, 10), "tile_size_y": (1, 2, 3, 5, 7, 10),
            "temporal_tiling_factor": (1, 2, 3, 4, 6, 10), "loop_unroll_factor_t": (1, 2, 3, 6), "sh_power": (0, 1),
        },
        _allowed_stencil,
        _stencil,
    ),
}  # fmt: skip
"""Kernel -> parameters and their values, which configurations its author allows, and its physics."""
