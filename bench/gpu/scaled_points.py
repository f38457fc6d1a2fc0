"""Random small schedules of products with scales and of experts: every format, scale, group, routing and option."""

from __future__ import annotations

import random

import anatune
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.scaling import SCALED_FORMATS, SCALES
from anatune.errors import SpaceError

__all__ = ["DEVICES", "random_scaled", "scaled_workload"]

DEVICES = ("a100_sxm", "rtx4090", "h100_sxm", "b200", "rtx5090", "mi210", "mi300x", "mi350x")
_ROWS = (1, 2, 9, 16, 17, 33, 64, 70)
_COLUMNS = (8, 16, 24, 31, 40, 72, 129, 136, 200)
_DEPTHS = (16, 20, 32, 48, 64, 100, 128, 160, 192, 256, 272, 288, 320)
_FORMATS = (*SCALED_FORMATS, *6 * ("mxfp8", "mxfp4", "nvfp4"))
"""Few devices have the last ones."""
_GROUPS = (0, 0, 32, 64, 128)
_TILES = {"m": (16, 32, 64, 128), "n": (16, 32, 64, 128, 256), "k": (16, 32, 64, 128)}


def scaled_workload(draw: random.Random) -> Workload:
    """Return a random product with scales, or of experts."""
    while True:
        dtype = draw.choice(_FORMATS)
        found = SCALED_FORMATS[dtype]
        of_experts = draw.random() < 0.5 or not found.scale
        k = draw.choice(_DEPTHS)
        group = draw.choice([size for size in _GROUPS if size == 0 or k % size == 0]) if found.converts else 0
        more: dict[str, object] = {
            "dtype": dtype if draw.random() < 0.8 else f"{dtype}:{draw.choice(('float16', 'bfloat16'))}",
            "scales": draw.choice(SCALES) if found.scale == "float32" else "tensor",
            "group": group,
            "zero_points": found.converts and found.weight_bits == 4 and draw.random() < 0.5,
        }
        if k % max(found.run, 2 if found.weight_bits == 4 else 1):
            continue
        rows, columns = draw.choice(_ROWS), draw.choice(_COLUMNS)
        if not of_experts:
            return anatune.scaled_matmul(rows, columns, k, **more)  # type: ignore[arg-type]
        experts = draw.choice((1, 2, 3, 5, 8))
        top_k = draw.randint(1, min(experts, 3))
        return anatune.grouped_matmul(
            rows, experts, top_k, columns, k, **more, routing=_routing(draw, rows, experts, top_k),  # type: ignore[arg-type]
            expanded=draw.random() < 0.5, activation=draw.random() < 0.5,
        )  # fmt: skip


def _routing(draw: random.Random, tokens: int, experts: int, top_k: int) -> str | tuple[int, ...]:
    word = draw.choice(("uniform", "balanced", "power:1.2", "counts"))
    if word != "counts":
        return word
    chosen = [expert for _ in range(tokens) for expert in draw.sample(range(experts), top_k)]
    return tuple(chosen.count(expert) for expert in range(experts))


def random_scaled(draw: random.Random, device: str | None = None) -> Schedule:
    """Return a random schedule; its tiles are small beside real ones, so that several of them meet."""
    while True:
        hardware = anatune.hardware(device or draw.choice(DEVICES))
        assert isinstance(hardware, GpuSpec)
        workload = scaled_workload(draw)
        try:
            space = anatune.space(workload, hardware, template="triton")
        except SpaceError:
            continue  # the device has no instruction for these operands
        options = {"group_m": draw.choice((1, 2, 8)), "descriptors": draw.choice((0, 1))}
        tiles = {index: draw.choice(sizes) for index, sizes in _TILES.items()}
        options["split_k"] = min(-(-workload.extents["k"] // tiles["k"]), draw.choice((1, 1, 2, 3)))
        try:
            return space.schedule(tiles, **{name: value for name, value in options.items() if name in space.columns})
        except SpaceError:
            continue  # a format needs deeper tiles
