"""Plain ranking of a CPU space: every point as Python numbers and tuples, for proofs on small shapes."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cpu.model.order import tie_keys
from anatune.templates.cpu.space import CpuSpace


def loop_nest(space: CpuSpace, point: NDArray[np.int64]) -> tuple[object, ...]:
    """Return what a point's program looks like, whatever its levels are called."""
    values = dict(zip(space.columns, point.tolist(), strict=True))
    loops: list[list[object]] = []
    for level in ("outer", "l3", "l2", "l1"):
        names = space.orders[level][values[f"order.{level}"]]
        if level == "l1":
            names = (*names, *space.reduction_order)
        for axis in names:
            trips = values.get(f"{axis}.{level}", 1)
            if level == "l1" and values.get(f"pair.{axis}", 0):
                loops.append([axis, -values[f"pair.{axis}"]])
            elif trips > 1:
                if loops and loops[-1][0] == axis and isinstance(loops[-1][1], int) and loops[-1][1] > 0:
                    loops[-1][1] *= trips
                else:
                    loops.append([axis, trips])
        if level == "outer" and values["parallel"]:
            loops.append(["parallel", 1])
    kernel = tuple(values[f"{axis}.{space.levels[axis][-1]}"] for axis in space.axes)
    packed = tuple(values[f"pack.{tensor}"] for tensor in space.packable)
    return (tuple((axis, trips) for axis, trips in loops), kernel, packed, values["parallel"])


def ranked(model: CpuModel, *, distinct: bool) -> list[tuple[int, ...]]:
    """Return all legal points in order, of each loop nest (and, if `distinct`, of each time) the first."""
    space = model.space
    every = itertools.product(*(range(radix) for radix in space.radices))
    points = space.decode(np.array(list(every), dtype=np.int64))
    times, rules = model.times(points)
    points, times = points[rules == 0], times[rules == 0]
    keys = [tuple(key) for key in tie_keys(model, points, model.raw(points)).tolist()]
    nests, seen, found = set(), set(), []
    for at in sorted(range(len(points)), key=keys.__getitem__):
        nest = loop_nest(space, points[at])
        if nest in nests:
            continue
        nests.add(nest)
        if not distinct or times[at] not in seen:
            found.append(tuple(points[at].tolist()))
        seen.add(times[at])
    return found
