"""What the analytical model says of somebody's configurations, and what it cannot say.

Windows of a thread's results overlap, where loops over a window are unrolled. The template's model counts one load for
each result and step. Compilers load an element once a thread, however many of its windows hold it: in 56 unrolled
convolution kernels that NVRTC 12.9 compiled (15 x 15 filter, 1 to 4 by 1 to 4 results a thread, 1 or 4 rows of threads
apart) the loads were exactly the different elements of all windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.kernel_tuner.names import Names, Values, rounded_workload, tile_points
from anatune.core.hardware.spec import GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.workload.nest import Access, Workload
from anatune.model.learned.corrections import SavedCorrection, corrected
from anatune.records.traces import GPU_LEVELS
from anatune.templates.base.model import Model, Rule
from anatune.templates.cuda.model.model import GpuModel
from anatune.templates.gpu.times.columns import Col

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def shared_by_windows(workload: Workload, points: Integers) -> Floats:
    """Return the share of a thread's loads that is left, (num_points,) float64 in (0, 1]; 1 where nothing overlaps.

    `points` are those of the template `cuda`, (num_points, num_columns); windows are unrolled within a stage.
    """
    spatial = {axis.name: 5 * at for at, axis in enumerate(workload.spatial_axes)}
    first = 5 * len(spatial)
    reduction = {axis.name: first + 3 * at for at, axis in enumerate(workload.reduction_axes)}
    each, left = np.zeros(len(points)), np.zeros(len(points))
    for access in workload.reads:
        loads = np.ones(len(points))
        for name, at in spatial.items():
            if access.uses(name):
                loads *= points[:, at + 1] * points[:, at + 3] * points[:, at + 4]
        each += loads
        left += loads * _different(access, spatial, reduction, points)
    found: Floats = left / each
    return found


def _different(access: Access, spatial: dict[str, int], reduction: dict[str, int], points: Integers) -> Floats:
    """Return different elements over elements of all windows, of one operand."""
    share = np.ones(len(points))
    for terms in access.indices:
        along = [term for term in terms if term.axis in spatial]
        within = [term for term in terms if term.axis in reduction]
        if len(along) != 1 or len(within) != 1:
            continue
        at, step = spatial[along[0].axis], reduction[within[0].axis]
        columns = points[:, [at + 1, at + 2, at + 3, at + 4, step + 1, step + 2]]
        kinds, which = np.unique(columns, axis=0, return_inverse=True)
        shares = [_share(kind, along[0].coefficient, within[0].coefficient) for kind in kinds.tolist()]
        share *= np.array(shares)[which.reshape(-1)]
    return share


def _share(kind: list[int], stride: int, dilation: int) -> float:
    """Return different elements over all of one dimension: results lie `threads` times `inner` apart."""
    apart, threads, outer, inner, steps, innermost = kind
    beside = outer * inner
    results = np.arange(apart)[:, None] * threads * beside + np.arange(beside)[None, :]
    window = np.arange(steps * innermost) * dilation
    held = (results.reshape(-1, 1) * stride + window[None, :]).reshape(-1)
    return len(np.unique(held)) / len(held)


Flags = NDArray[np.bool_]

MISFIT = -1
"""Code of values that do not fit together: threads times results of a thread must be the block, parts divide it."""
_SURE = "threads_per_block"
"""The rule that every kernel of these threads breaks; other code than the template's needs other shared memory."""


class Scores(NamedTuple):
    """Of a list of configurations, (num_configs,) each.

    Attributes
    ----------
    time_s : float64
        Predicted seconds of the whole blocks; those that reach over an edge count whole, because guards cost what work
        costs.
    rule : int64
        0: fine; `MISFIT`; else 1 + index of the model's first rule that it breaks.
    runs : bool
        Whether the device can start such blocks at all.
    overhangs : bool
        Whether blocks reach over the end of an axis.
    points : (num_configs, num_columns) int64
        What they are in the model's template.
    """

    time_s: Floats
    rule: Integers
    runs: Flags
    overhangs: Flags
    points: Integers

    @property
    def known(self) -> Flags:
        """Whether the model can judge it."""
        known: Flags = self.rule == 0
        return known


class Scorer:
    """Scores configurations of one kernel on one device; makes a model for each rounded matrix product.

    Parameters
    ----------
    correction
        A saved correction, or None.
    windows : bool
        Whether elements that windows of a thread share are taken to be loaded once: the kernel is not the template's.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: GpuSpec,
        names: Names,
        parameters: Sequence[str],
        correction: SavedCorrection | None = None,
        *,
        windows: bool = True,
    ) -> None:
        self._workload, self._hardware, self._names = workload, hardware, names
        self._parameters, self._correction = parameters, correction
        self._windows = windows and correction is None
        self._models: dict[Workload, tuple[GpuModel, Model]] = {}
        self._widths = [GPU_LEVELS[axis.kind] for axis in workload.axes]

    def score(self, configs: Sequence[Values]) -> Scores:
        """Score configurations: values in the order of the parameters."""
        points, valid, weight = tile_points(self._names, self._workload, self._parameters, configs)
        time_s, rule = np.full(len(configs), np.inf), np.full(len(configs), MISFIT, dtype=np.int64)
        runs = np.ones(len(configs), dtype=bool)
        extents = self._extents(points)
        shapes, which = np.unique(extents, axis=0, return_inverse=True)
        for number, shape in enumerate(shapes.tolist()):
            rows = np.flatnonzero((which.reshape(-1) == number) & valid)
            if not len(rows):
                continue
            plain, model = self._made(shape)
            times, rule[rows] = model.times(points[rows])
            if self._windows:
                times = _with_shared_windows(plain, points[rows], times)
            time_s[rows] = times * weight[rows]
            sure = 1 + [rule.id for rule in plain.rules].index(_SURE)
            runs[rows] = rule[rows] != sure
        overhangs = (extents != [axis.extent for axis in self._workload.axes]).any(axis=1) & valid
        return Scores(time_s, rule, runs, overhangs, points)

    def prediction(self, point: Integers) -> tuple[Prediction, Sequence[Rule]]:
        """Return what the template's model says of one point, and its rules."""
        _, model = self._made(self._extents(point[None, :])[0].tolist())
        return model.predictions(point[None, :])[0], model.rules

    def _extents(self, points: Integers) -> Integers:
        first = np.cumsum([0, *self._widths])
        return np.column_stack(
            [points[:, at : at + width].prod(axis=1) for at, width in zip(first, self._widths, strict=False)]
        )

    def _made(self, shape: Sequence[int]) -> tuple[GpuModel, Model]:
        """Return the analytical model of blocks of these extents, and the one that is asked: it may be corrected."""
        names: Mapping[str, int] = dict(zip((axis.name for axis in self._workload.axes), shape, strict=True))
        rounded = rounded_workload(self._workload, names)
        if rounded not in self._models:
            plain, saved = GpuModel(rounded, self._hardware, plain=True), self._correction
            self._models[rounded] = plain, corrected(plain, saved)
        return self._models[rounded]


def _with_shared_windows(model: GpuModel, points: Integers, time_s: Floats) -> Floats:
    """Return the times with a thread's loads as few as its windows have different elements.

    Only shared memory gets faster by it, and the time stays above every other part.
    """
    left = shared_by_windows(model.workload, points)
    if np.all(left == 1.0):
        return time_s
    _, _, raw = model.raw_columns(points)
    shared = raw[Col.SHARED_S]
    others = np.max([raw[part] for part in (Col.FMA_S, Col.L2_S, Col.DRAM_S, Col.LATENCY_S)], axis=0)
    saved = np.minimum(shared * (1.0 - left), np.maximum(shared - others, 0.0))
    found: Floats = time_s - saved
    return found
