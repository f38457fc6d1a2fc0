"""The same kernel for less work: what Triton's interpreter takes hours for at a model's sizes takes seconds so.

Tile, options, epilogue, strides and remainders stay what they are: two tiles along each axis and what does not fill
one, three steps of each sum and of each of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from anatune import api
from anatune.core.schedule import Schedule
from anatune.core.workload.operators.attention import strided_attention
from anatune.network.graph.products import workload_named

__all__ = ["smaller"]

_TILES, _STEPS = 2, 3


def smaller(schedule: Schedule) -> Schedule:
    """Return a schedule of the template triton for a smaller workload; itself where there is no smaller one."""
    workload, attributes = schedule.workload, schedule.workload.attribute
    sizes = {axis: factors[-1] for axis, factors in schedule.tiles.items()}
    own = {name: value for name, value in attributes.items() if isinstance(value, int)}
    changed = _attention(schedule, own, sizes) if workload.operator == "attention" else _product(schedule, own, sizes)
    if all(own[name] == value for name, value in changed.items()):
        return schedule
    strides, counted = attributes.get("strides"), str(attributes.get("counted"))
    named = {name: value for name, value in attributes.items() if name not in ("strides", "counted", "pool")}
    made = workload_named(workload.operator, **{**named, **changed})
    if strides is not None:
        made = strided_attention(made, strides, counted=counted)  # type: ignore[arg-type]
    space = api.space(made, schedule.hardware, template=schedule.template)
    options = {name: value for name, value in schedule.options.items() if name in space.choices}
    return space.schedule({axis: [size] for axis, size in sizes.items()}, **options)


def _cut(extent: int, tile: int, number: int) -> int:
    """Return a smaller extent of so many tiles that leaves as much behind the last whole one."""
    return min(extent, number * tile + extent % tile)


def _product(schedule: Schedule, own: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return smaller sizes of a product or a convolution."""
    tile = max(sizes["m"], sizes["n"])
    steps = _STEPS * int(str(schedule.options.get("split_k", 1)))
    operator, extents = schedule.workload.operator, schedule.workload.extents
    if operator in ("matmul", "batch_matmul", "scaled_matmul"):  # scaled: by rows, as models have it
        found = {"m": _cut(own["m"], tile, _TILES), "n": _cut(own["n"], tile, _TILES)}
        found["k"] = _cut(own["k"], sizes["k"], steps)
        return found | ({"b": min(own["b"], 2)} if "b" in own else {})
    if operator == "grouped_matmul":  # of an activation two columns of the weights are one of the result
        found = {"n": _cut(own["n"], sizes["n"] // (1 + own["activation"]), _TILES), "tokens": _TILES * sizes["m"]}
        found |= {"k": _cut(own["k"], sizes["k"], steps), "experts": max(2, own["top_k"])}
        return {name: min(own[name], size) for name, size in found.items()}
    if not operator.startswith("conv") or own["groups"] > 1:
        return {}
    taps = math.prod(extent for axis, extent in extents.items() if axis in ("rz", "ry", "rx"))
    channels = -(-steps * sizes["k"] // taps // sizes["k"]) * sizes["k"]
    found = {"n": min(own["n"], 2), "k": _cut(own["k"], tile, _TILES)}
    found["c"] = min(own["c"], channels + own["c"] % sizes["k"])
    if "h" in own and "d" not in own:
        rows = -(-_TILES * tile // extents["x"])
        found["h"] = min(own["h"], rows * -(-own["h"] // extents["y"]) + extents["ry"])  # of as many rows of results
    return found


def _attention(schedule: Schedule, own: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return fewer heads, queries and keys, which lie as far apart."""
    shared = own["heads"] // own["kv_heads"]
    parts = int(str(schedule.options.get("split_kv", 1)))
    found = {"batch": min(own["batch"], 2), "kv_heads": min(own["kv_heads"], 2)}
    found["heads"] = shared * found["kv_heads"]
    found["seq_q"] = _cut(own["seq_q"], max(1, sizes["m"] // shared), _TILES)
    found["seq_kv"] = max(found["seq_q"], _cut(own["seq_kv"], sizes["n"], _STEPS * parts))
    return found
