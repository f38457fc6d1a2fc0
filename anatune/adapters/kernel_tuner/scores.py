"""Predicted times of the configurations of a caller's kernel, and which of them the model can judge.

If loops over a window are unrolled, the windows of a thread's results overlap. The template's model counts one load for
each result and step, but a compiler loads an element once for each thread, however many windows contain it. In 56
unrolled convolution kernels that NVRTC 12.9 compiled (15 x 15 filter, 1 to 4 by 1 to 4 results for each thread, 1 or 4
rows of threads apart), the number of loads was exactly the number of different elements of all windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.kernel_tuner.names import Names, Values, pad_workload, tile_points
from anatune.core.hardware.spec import GpuSpec
from anatune.core.prediction import Prediction
from anatune.core.workload.nest import Access, Workload
from anatune.model.learned.corrections import SavedCorrection, apply_correction
from anatune.records.traces import GPU_LEVELS
from anatune.templates.base.model import Model, Rule
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.gpu.times.columns import Col

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def window_load_share(workload: Workload, points: Integers) -> Floats:
    """Return a thread's loads over the loads without overlap, (num_points,) float64 in (0, 1]; 1 without overlap.

    `points` are points of the template `cuda`, (num_points, num_columns). Windows are unrolled within a stage.
    """
    spatial = {axis.name: 5 * at for at, axis in enumerate(workload.spatial_axes)}
    first = 5 * len(spatial)
    reduction = {axis.name: first + 3 * at for at, axis in enumerate(workload.reduction_axes)}
    all_loads, distinct_loads = np.zeros(len(points)), np.zeros(len(points))
    for access in workload.reads:
        loads = np.ones(len(points))
        for name, column in spatial.items():
            if access.uses(name):
                loads *= points[:, column + 1] * points[:, column + 3] * points[:, column + 4]
        all_loads += loads
        distinct_loads += loads * _operand_load_share(access, spatial, reduction, points)
    load_share: Floats = distinct_loads / all_loads
    return load_share


def _operand_load_share(access: Access, spatial: dict[str, int], reduction: dict[str, int], points: Integers) -> Floats:
    """Return the number of different elements over that of all elements in the windows of one operand."""
    share = np.ones(len(points))
    for terms in access.indices:
        along = [term for term in terms if term.axis in spatial]
        within = [term for term in terms if term.axis in reduction]
        if len(along) != 1 or len(within) != 1:
            continue
        column, step = spatial[along[0].axis], reduction[within[0].axis]
        columns = points[:, [column + 1, column + 2, column + 3, column + 4, step + 1, step + 2]]
        kinds, kind_index = np.unique(columns, axis=0, return_inverse=True)
        shares = [_dimension_load_share(kind, along[0].coefficient, within[0].coefficient) for kind in kinds.tolist()]
        share *= np.array(shares)[kind_index.reshape(-1)]
    return share


def _dimension_load_share(kind: list[int], stride: int, dilation: int) -> float:
    """Return the same ratio along one dimension, where vthreads are `threads` times `inner` results apart."""
    vthreads, threads, outer, inner, steps, innermost = kind
    adjacent = outer * inner
    results = np.arange(vthreads)[:, None] * threads * adjacent + np.arange(adjacent)[None, :]
    window = np.arange(steps * innermost) * dilation
    elements = (results.reshape(-1, 1) * stride + window[None, :]).reshape(-1)
    return len(np.unique(elements)) / len(elements)


Flags = NDArray[np.bool_]

MISFIT = -1
"""The code of inconsistent values: threads times results of a thread must be the block, and parts must divide it."""
_THREAD_RULE = "threads_per_block"
"""The only rule that holds for any kernel: the caller's code may need less shared memory than the template's."""


class Scores(NamedTuple):
    """The scores of a list of configurations, arrays of shape (num_configs,).

    Attributes
    ----------
    time_s : float64
        The predicted seconds. Blocks that reach over the end of an axis count as whole blocks, because a guarded step
        takes as long as a computed one.
    rule : int64
        0 for a legal configuration, `MISFIT`, or 1 + the index of the first rule that it breaks.
    runs : bool
        Whether the device can start blocks with so many threads.
    overhangs : bool
        Whether blocks reach over the end of an axis.
    points : (num_configs, num_columns) int64
        The configurations as points of the model's template.
    """

    time_s: Floats
    rule: Integers
    runs: Flags
    overhangs: Flags
    points: Integers

    @property
    def judged(self) -> Flags:
        """True if the model can judge each configuration, (num_configs,) bool."""
        judged: Flags = self.rule == 0
        return judged


class Scorer:
    """Scores configurations of one kernel on one device, with a model for each padded matrix product.

    Parameters
    ----------
    correction
        A saved correction, or None.
    windows : bool
        Whether a thread loads an element once even if several of its windows contain it. False for the template's code.
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
        self._models: dict[Workload, tuple[CudaModel, Model]] = {}
        self._widths = [GPU_LEVELS[axis.kind] for axis in workload.axes]

    def score(self, configs: Sequence[Values]) -> Scores:
        """Return the scores of configurations, given as values in the order of the parameters."""
        points, valid, weight = tile_points(self._names, self._workload, self._parameters, configs)
        time_s, rule = np.full(len(configs), np.inf), np.full(len(configs), MISFIT, dtype=np.int64)
        runs = np.ones(len(configs), dtype=bool)
        extents = self._extents(points)
        shapes, which = np.unique(extents, axis=0, return_inverse=True)
        for number, shape in enumerate(shapes.tolist()):
            rows = np.flatnonzero((which.reshape(-1) == number) & valid)
            if not len(rows):
                continue
            uncorrected_model, model = self._models_for(shape)
            times, rule[rows] = model.times(points[rows])
            if self._windows:
                times = _apply_window_sharing(uncorrected_model, points[rows], times)
            time_s[rows] = times * weight[rows]
            sure = 1 + [rule.id for rule in uncorrected_model.rules].index(_THREAD_RULE)
            runs[rows] = rule[rows] != sure
        overhangs = (extents != [axis.extent for axis in self._workload.axes]).any(axis=1) & valid
        return Scores(time_s, rule, runs, overhangs, points)

    def prediction(self, point: Integers) -> tuple[Prediction, Sequence[Rule]]:
        """Return the prediction of one point, and the rules of its model."""
        _, model = self._models_for(self._extents(point[None, :])[0].tolist())
        return model.predictions(point[None, :])[0], model.rules

    def _extents(self, points: Integers) -> Integers:
        first = np.cumsum([0, *self._widths])
        return np.column_stack(
            [points[:, at : at + width].prod(axis=1) for at, width in zip(first, self._widths, strict=False)]
        )

    def _models_for(self, shape: Sequence[int]) -> tuple[CudaModel, Model]:
        """Return the analytical model for these padded extents, and the model to ask, which may be corrected."""
        extent_by_axis: Mapping[str, int] = dict(zip((axis.name for axis in self._workload.axes), shape, strict=True))
        rounded = pad_workload(self._workload, extent_by_axis)
        if rounded not in self._models:
            uncorrected_model, saved = CudaModel(rounded, self._hardware, plain=True), self._correction
            self._models[rounded] = uncorrected_model, apply_correction(uncorrected_model, saved)
        return self._models[rounded]


def _apply_window_sharing(model: CudaModel, points: Integers, time_s: Floats) -> Floats:
    """Return the times if a thread loads each different element of its windows once.

    Only the time of shared memory gets shorter, and the result stays above the time of every other resource.
    """
    load_share = window_load_share(model.workload, points)
    if np.all(load_share == 1.0):
        return time_s
    _, _, raw = model.raw_columns(points)
    shared = raw[Col.SHARED_S]
    others = np.max([raw[part] for part in (Col.FMA_S, Col.L2_S, Col.DRAM_S, Col.LATENCY_S)], axis=0)
    saved = np.minimum(shared * (1.0 - load_share), np.maximum(shared - others, 0.0))
    times: Floats = time_s - saved
    return times
