"""Shrink a kernel's workload: Triton's interpreter takes seconds for it instead of hours at a model's sizes.

Tile, options, epilogue, strides and remainders stay the same. Each spatial axis keeps two tiles and a remainder, each
reduction and each of its parts three steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from anatune import api
from anatune.core.schedule import Schedule
from anatune.core.workload.operators.attention import strided_attention
from anatune.network.graph.products import make_workload

__all__ = ["shrink_schedule"]

_TILES, _STEPS = 2, 3


def shrink_schedule(schedule: Schedule) -> Schedule:
    """Return a Triton schedule for a smaller workload; the schedule itself if its workload cannot shrink."""
    workload, attributes = schedule.workload, schedule.workload.attribute
    sizes = {axis: factors[-1] for axis, factors in schedule.tiles.items()}
    full = {name: value for name, value in attributes.items() if isinstance(value, int)}
    changed = _attention(schedule, full, sizes) if workload.operator == "attention" else _product(schedule, full, sizes)
    if all(full[name] == value for name, value in changed.items()):
        return schedule
    strides, counted = attributes.get("strides"), str(attributes.get("counted"))
    kept_attributes = {name: value for name, value in attributes.items() if name not in ("strides", "counted", "pool")}
    smaller_workload = make_workload(workload.operator, **{**kept_attributes, **changed})
    if strides is not None:
        smaller_workload = strided_attention(smaller_workload, strides, counted=counted)  # type: ignore[arg-type]
    space = api.space(smaller_workload, schedule.hardware, template=schedule.template)
    options = {name: value for name, value in schedule.options.items() if name in space.choices}
    return space.schedule({axis: [size] for axis, size in sizes.items()}, **options)


def _shrink(extent: int, tile: int, number: int) -> int:
    """Return a smaller extent of `number` tiles with the same remainder."""
    return min(extent, number * tile + extent % tile)


def _product(schedule: Schedule, full: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return smaller sizes of a product or a convolution."""
    tile = max(sizes["m"], sizes["n"])
    steps = _STEPS * int(str(schedule.options.get("split_k", 1)))
    operator, extents = schedule.workload.operator, schedule.workload.extents
    if operator in ("matmul", "batch_matmul", "scaled_matmul"):  # scales by rows, which models use
        small = {"m": _shrink(full["m"], tile, _TILES), "n": _shrink(full["n"], tile, _TILES)}
        small["k"] = _shrink(full["k"], sizes["k"], steps)
        return small | ({"b": min(full["b"], 2)} if "b" in full else {})
    if operator == "grouped_matmul":  # with an activation, two columns of the weights give one of the result
        small = {"n": _shrink(full["n"], sizes["n"] // (1 + full["activation"]), _TILES), "tokens": _TILES * sizes["m"]}
        small |= {"k": _shrink(full["k"], sizes["k"], steps), "experts": max(2, full["top_k"])}
        return {name: min(full[name], size) for name, size in small.items()}
    if not operator.startswith("conv") or full["groups"] > 1:
        return {}
    taps = math.prod(extent for axis, extent in extents.items() if axis in ("rz", "ry", "rx"))
    channels = -(-steps * sizes["k"] // taps // sizes["k"]) * sizes["k"]
    small = {"n": min(full["n"], 2), "k": _shrink(full["k"], tile, _TILES)}
    small["c"] = min(full["c"], channels + full["c"] % sizes["k"])
    if "h" in full and "d" not in full:
        rows = -(-_TILES * tile // extents["x"])
        # the rows that give as many rows of results
        small["h"] = min(full["h"], rows * -(-full["h"] // extents["y"]) + extents["ry"])
    return small


def _attention(schedule: Schedule, full: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return smaller sizes of an attention: fewer heads, queries and keys, with the same strides."""
    shared = full["heads"] // full["kv_heads"]
    parts = int(str(schedule.options.get("split_kv", 1)))
    small = {"batch": min(full["batch"], 2), "kv_heads": min(full["kv_heads"], 2)}
    small["heads"] = shared * small["kv_heads"]
    small["seq_q"] = _shrink(full["seq_q"], max(1, sizes["m"] // shared), _TILES)
    small["seq_kv"] = max(small["seq_q"], _shrink(full["seq_kv"], sizes["n"], _STEPS * parts))
    return small
