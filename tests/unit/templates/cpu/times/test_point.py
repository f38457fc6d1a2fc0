"""Cache traffic of the CPU model against plain Python on packed matmuls."""

from __future__ import annotations

import numpy as np
import pytest

import anatune
from anatune.numerics.columns import CHUNK_SIZE
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cpu.times.columns import CpuCol


def naive_traffic(model: CpuModel, point: np.ndarray) -> list[float]:
    """Walk the loops outwards; the first that outgrows a cache fixes its traffic (all operands packed, no pairs)."""
    space = model.space
    values = dict(zip(space.columns, point.tolist(), strict=True))
    tile = {axis: values[f"{axis}.{space.levels[axis][-1]}"] for axis in space.axes}

    def moved_and_held() -> tuple[float, float]:
        a, b, c = tile["i"] * tile["k"], tile["k"] * tile["j"], tile["i"] * tile["j"]
        return 4.0 * (a + b + 2 * c), 4.0 * (a + b + c)

    loops = []
    for level in ("l1", "l2", "l3", "outer"):
        names = list(reversed(space.orders[level][values[f"order.{level}"]]))
        if level == "l1":
            names = ["k", *names]
        loops += [(axis, values.get(f"{axis}.{level}", 1)) for axis in names]
    result = []
    for size in model.machine.size_bytes / np.minimum(1.0, model.machine.shared_by):
        for axis in space.axes:
            tile[axis] = values[f"{axis}.{space.levels[axis][-1]}"]
        outside = float(np.prod([trips for _, trips in loops], dtype=float))
        moved, held = moved_and_held()
        for axis, trips in loops:
            if held > size:
                break
            tile[axis] *= trips
            outside /= trips
            moved, held = moved_and_held()
        result.append(moved * outside)
    return result


def test_traffic_equals_a_plain_walk() -> None:
    model = CpuModel(anatune.matmul(96, 512, 640), anatune.hardware("xeon_gold_6230r"))
    points = model.space.sample_points(400, seed=11)
    columns = {name: index for index, name in enumerate(model.space.columns)}
    points = points[(points[:, columns["pair.i"]] == 0) & (points[:, columns["pair.j"]] == 0)]
    points[:, columns["pack.A"]] = points[:, columns["pack.B"]] = 1
    points[:, columns["parallel"]] = 0
    evaluated = model.evaluate(points)
    for number, point in enumerate(points):
        expected = naive_traffic(model, point)
        for level, value in zip(("l1", "l2", "l3"), expected, strict=True):
            # C is never packed here: its rows of partial cache lines may only add
            assert evaluated.columns[f"{level}_bytes"][number] >= value * (1 - 1e-9)
    whole = (points[:, columns["j.register"]] % 16 == 0).nonzero()[0]
    assert len(whole) > 10
    close = [np.isclose(evaluated.columns["l1_bytes"][at], naive_traffic(model, points[at])[0]) for at in whole]
    assert np.mean(close) > 0.9


def test_a_cache_of_just_a_tiles_bytes_holds_it() -> None:
    model = CpuModel(anatune.matmul(96, 512, 640), anatune.hardware("xeon_gold_6230r"))
    points = model.space.sample_points(400, seed=11)
    columns = {name: index for index, name in enumerate(model.space.columns)}
    points[:, columns["pack.A"]] = points[:, columns["pack.B"]] = 1
    points[:, columns["parallel"]] = 0
    fine = (points[:, [columns["pair.i"], columns["pair.j"]]] == 0).all(axis=1)
    points = points[fine & (points[:, columns["j.register"]] % 16 == 0)]
    close = []
    for point in points:
        values = dict(zip(model.space.columns, point.tolist(), strict=True))
        i, j, k = (
            np.prod([values.get(f"{axis}.{level}", 1) for level in ("l1", model.space.levels[axis][-1])])
            for axis in "ijk"
        )
        model.machine.size_bytes[:] = 4.0 * (i * k + k * j + i * j)  # of the tile that the loops of l1 complete
        close.append(np.isclose(model.evaluate(point[None, :]).columns["l1_bytes"][0], naive_traffic(model, point)[0]))
    assert len(close) > 10
    assert np.mean(close) > 0.8


@pytest.mark.parametrize("size", [0, 1, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1])
def test_a_point_does_not_depend_on_its_batch(size: int) -> None:
    model = CpuModel(anatune.conv2d(1, 8, 12, 12, 24, 3, 3, padding=1), anatune.hardware("cortex_a72"))
    points = model.space.sample_points(3 * CHUNK_SIZE, seed=1, legal=False)
    times, rules = model.times(points)
    some, some_rules = model.times(points[-size:] if size else points[:0])
    np.testing.assert_array_equal(some, times[len(times) - size :])
    np.testing.assert_array_equal(some_rules, rules[len(rules) - size :])
    raw = model.raw(points)
    np.testing.assert_array_equal(raw[:, CpuCol.TIME_S.row], times)
    np.testing.assert_array_equal(raw[:, CpuCol.RULE.row], rules)


def test_nest_without_loops() -> None:
    """All extents are 1: no order has a loop."""
    model = CpuModel(anatune.matmul(1, 1, 1), anatune.hardware("xeon_gold_6230r"))
    times, _ = model.times(model.space.decode(np.zeros((2, len(model.space.radices)), dtype=np.int64)))
    assert np.isfinite(times).all()
