"""Predicted seconds of kernels: those of the best schedule among the sizes that usually win."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError, SpecError
from anatune.templates import make_model
from anatune.templates.triton.constants import CONSTANTS
from anatune.templates.triton.grouped.model import GroupedModel
from anatune.templates.triton.grouped.needs import Scaling
from anatune.templates.triton.model import WARM_CONSTANTS, TileModel
from anatune.templates.triton.tiles import Tiles

_WINNERS = {
    "m.tile": (16, 32, 64, 128, 256),
    "n.tile": (32, 64, 128, 256),
    "k.tile": (64, 128),
    "group_m": (8,),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 6),
    "split_k": (1, 2, 4, 8, 16),
    "persistent": (0,),
}
"""Columns of a product's space -> the values that are tried first; all values of other columns, and of a column that
has none of these. Then all points are tried that differ from the best in at most two columns, `_PASSES` times."""
_PASSES = 2
_SMALL = 4000
"""The number of points up to which the whole space is tried."""


class KernelTime(NamedTuple):
    """The predicted seconds of a kernel, and the largest part of them, such as "dram" or "mma"."""

    time_s: float
    bound_by: str


class EngineModel(GroupedModel):
    """The model of engines' kernels whose weights of few bits are converted: fewer instructions, beside the products.

    Weights lie in the order in which matrix units take them. Two instructions convert one: 8 weights of a word are
    extracted by masks and shifts, and multiplied with their scale in pairs. So 16 of 32 lanes convert one per cycle.
    Source: the conversions of vLLM's Marlin kernels (dequant.h) and of Triton's upcast of mxfp4.
    """

    constants = msgspec.structs.replace(
        WARM_CONSTANTS, converted_per_warp=16.0, overlap_converted=CONSTANTS.overlap_latency
    )

    def _scaling_of(self, tiles: Tiles) -> Scaling:
        return replace(super()._scaling_of(tiles), slots=np.zeros(len(tiles)))


class KernelTimes:
    """Predicts the seconds of kernels on one GPU, each once. Not safe to share between threads.

    Parameters
    ----------
    spec : GpuSpec
        The device.
    """

    def __init__(self, spec: GpuSpec) -> None:
        self.spec = spec
        self._times: dict[Workload, KernelTime] = {}
        self._runnable: dict[object, bool] = {}

    def predict(self, workload: Workload) -> KernelTime:
        """Return the seconds of the best schedule of a workload.

        Raises
        ------
        SpaceError, SpecError
            The device cannot run the workload, or its spec lacks the rates of matrix units.
        """
        if workload not in self._times:
            self._times[workload] = self._rank(workload)
        return self._times[workload]

    def can_run(self, workload: Workload) -> bool:
        """Return whether the device has an instruction for a workload's operands."""
        key = (workload.operator, *(value for name, value in workload.attributes if name in ("dtype", "scales")))
        if key not in self._runnable:
            try:
                make_model(workload, self.spec, "triton")
            except (SpaceError, SpecError):
                self._runnable[key] = False
            else:
                self._runnable[key] = True
        return self._runnable[key]

    def _rank(self, workload: Workload) -> KernelTime:
        has_few_bits = "xint" in str(workload.attribute.get("dtype", ""))
        model = (
            EngineModel(workload, self.spec)
            if has_few_bits
            else cast("TileModel", make_model(workload, self.spec, "triton"))
        )
        space = model.space
        if space.size <= _SMALL:
            points = space.points_at(np.arange(space.size))
            best = _best_of(model, points)
        else:
            first = _list_coordinates(model)
            coordinates = first[_best_of(model, space.decode(first))]
            for _ in range(_PASSES):
                near = _list_near(coordinates, space.radices)
                points = space.decode(near)
                best = _best_of(model, points)
                if np.array_equal(near[best], coordinates):
                    break
                coordinates = near[best]
        prediction = model.predictions(points[best : best + 1])[0]
        if not prediction.legal:
            raise SpaceError(f"{workload}: {self.spec.name} can run no schedule of it; choose another device")
        return KernelTime(prediction.time_s, prediction.bound_by)


def _best_of(model: TileModel, points: NDArray[np.int64]) -> int:
    """Return the index of the fastest legal point."""
    times, rules = model.times(points)
    return int(np.argmin(np.where(rules == 0, times, np.inf)))


def _list_coordinates(model: TileModel) -> NDArray[np.int64]:
    """Return the coordinates of the points that are tried first, (num_points, num_parts) int64."""
    space = model.space
    kept = []
    for part, columns in zip(space.parts, space.places, strict=True):
        winners = _WINNERS.get(space.columns[columns[0]], ())
        numbers = np.flatnonzero(np.isin(part.table[:, 0], winners))
        kept.append(numbers if len(numbers) else np.arange(len(part.table)))
    return _product(kept)


def _list_near(best: NDArray[np.int64], radices: Sequence[int]) -> NDArray[np.int64]:
    """Return the coordinates that differ from the best ones in at most two places."""
    near = []
    for i, j in itertools.combinations(range(len(best)), 2):
        coordinates = np.tile(best, (radices[i] * radices[j], 1))
        coordinates[:, i] = np.repeat(np.arange(radices[i]), radices[j])
        coordinates[:, j] = np.tile(np.arange(radices[j]), radices[i])
        near.append(coordinates)
    return np.concatenate(near)


def _product(lists: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.stack(np.meshgrid(*lists, indexing="ij"), axis=-1).reshape(-1, len(lists))
