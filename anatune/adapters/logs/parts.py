"""Functions that the readers of other tuners' logs share: workload, measurement and schedule of a line.

Shapes of operands are checked against a workload, or a workload is inferred from them. A matrix product can be inferred
from shapes, unless it is square: then it is not known which operand is transposed. A convolution cannot, because
different strides, paddings and dilations can have the same shapes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome, Trial
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.core.workload.operators.matmul import batch_matmul, matmul
from anatune.errors import WorkloadError
from anatune.records.traces import GPU_LEVELS, GPU_TILING, WRONG_TILES, Factors, Json, UnfitError, axis_factors
from anatune.templates.cuda.pipelined_space import PipelinedSpace, stage_counts
from anatune.templates.cuda.space import MAX_FETCH_BYTES, GpuSpace, staged_tensors

_SENTINEL_S = 1e9
"""The time from which on a time means a failure. Source: TVM's MAX_FLOAT (1e10; 1e9 until 2019), 1e20 in Kernel
Tuner's old caches."""
NO_WORKLOAD = "the log does not say which workload this is; name it on the command line, as for `anatune plan`"
DAMAGED = "damaged or of an unknown version"
UNROLLED = 512
"""The unroll depth for loops of constant extent, which the kernels of other tuners unroll completely."""
_TVM_OUTCOMES = {
    1: Outcome.INVALID, 2: Outcome.BUILD_ERROR, 3: Outcome.BUILD_ERROR, 4: Outcome.RUN_ERROR, 5: Outcome.WRONG_RESULT,
    6: Outcome.BUILD_TIMEOUT, 7: Outcome.RUN_TIMEOUT,
}  # fmt: skip
"""TVM's MeasureErrorNo."""


Shape = tuple[int, ...]


class ForeignTrial(NamedTuple):
    """A trial with its workload; the schedule's hardware is the device in the log, or the one that the user gave."""

    workload: Workload
    trial: Trial


class Foreign(NamedTuple):
    """The content of a log of another tuner.

    Attributes
    ----------
    kind : str
        The tuner that wrote the log, one of `FORMATS`.
    trials : list of ForeignTrial
        The trials that a template can express.
    left_out : dict of str to int
        The number of other entries by reason.
    """

    kind: str
    trials: list[ForeignTrial]
    left_out: dict[str, int]


class LogEntry(NamedTuple):
    """An entry of a log as a schedule and its measurement.

    Attributes
    ----------
    schedule : Schedule
        The schedule with its workload.
    measurement : Measurement
        The times, or the failure.
    threads : int
        The threads of a CPU kernel.
    """

    schedule: Schedule
    measurement: Measurement
    threads: int = 1


def read_times(times_s: Sequence[Json], outcome: Outcome | None) -> Measurement:
    """Return a measurement; it is a failure if a time is not a number or is one that means a failure."""
    times = tuple(map(number_of, times_s))
    if outcome is None and times and all(0.0 < time < _SENTINEL_S and math.isfinite(time) for time in times):
        return Measurement(Outcome.OK, times_s=times)
    return Measurement(outcome or Outcome.RUN_ERROR, "recorded as failed")


def number_of(value: Json) -> float:
    """Convert a number or text to float; NaN if it is not a number."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def read_tvm_result(result: Sequence[Json]) -> Measurement:
    """Return the measurement of a TVM result: [times, error number, ...]."""
    number = int(result[1])
    return read_times(result[0], _TVM_OUTCOMES.get(number, Outcome.RUN_ERROR) if number else None)


def gpu_schedule(
    workload: Workload,
    hardware: HardwareSpec,
    tiles: Mapping[str, Sequence[int]],
    unroll: int,
    vector: Mapping[str, int],
    stages: int = 1,
) -> Schedule:
    """Return a schedule of the template `cuda`, or of `pipelined` if there are several stages.

    Fetch widths that a thread cannot access at once (3 elements, more than 16 bytes) count as 1.

    Raises
    ------
    UnfitError
        The device is a CPU, the product of factors is not the extent, or the device does not have the template.
    """
    if hardware.kind != "gpu":
        raise UnfitError(f"it is a GPU schedule, but {hardware.name} is a CPU")
    complete = {axis.name: tuple(int(factor) for factor in tiles[axis.name]) for axis in workload.axes}
    for axis in workload.axes:
        if len(complete[axis.name]) != GPU_LEVELS[axis.kind] or math.prod(complete[axis.name]) != axis.extent:
            raise UnfitError(WRONG_TILES)
    widest = MAX_FETCH_BYTES // DTYPE_BYTES[workload.dtype]
    widths = {}
    for tensor in staged_tensors(workload):
        width = int(vector.get(tensor, 1))
        widths[tensor] = width if width.bit_count() == 1 and width <= widest else 1
    if stages == 1:
        return Schedule(workload, hardware, GpuSpace.template, complete, int(unroll), widths)
    if not hardware.arch.startswith("sm_"):
        raise UnfitError(f"it has several stages, which are supported on NVIDIA's devices only, not on {hardware.name}")
    counts = stage_counts(workload, hardware)
    if stages not in counts:
        raise UnfitError(f"it has {stages} stages, the template has at most {counts[-1]} for this workload")
    options = {"stages": stages, "pad": 0}
    return Schedule(workload, hardware, PipelinedSpace.template, complete, int(unroll), widths, {**options})


# ---- which workload --------------------------------------------------------------------------------------------


def _shapes_text(shapes: Sequence[Shape]) -> str:
    """Return shapes as text, such as 16x16."""
    return ", ".join("x".join(map(str, shape)) for shape in shapes)


def check_shapes(workload: Workload, shapes: Sequence[Shape], dtypes: Sequence[str] = ()) -> None:
    """Raise UnfitError unless a log's tensors can be those of a workload.

    Parameters
    ----------
    shapes : sequence of shapes
        The shapes of the operands, then of the result, with a bias in between if there is one. A single flat shape is
        all of them joined. Empty if not known.
    dtypes : sequence of str
        The dtypes of the tensors; empty if not known.
    """
    wanted = [access.shape for access in (*workload.reads, workload.write)]
    if shapes:
        joined = [extent for shape in shapes for extent in shape]
        operands, result = sum(wanted[:-1], ()), wanted[-1]
        swapped = sum(wanted[-2::-1], ())
        fits = tuple(joined[: len(operands)]) in (operands, swapped) and tuple(joined[-len(result) :]) == result
        if not fits or len(joined) < len(operands) + len(result):
            raise UnfitError(
                f"another workload: the log's tensors are {_shapes_text(shapes)}, expected {_shapes_text(wanted)}"
            )
    if dtypes and workload.dtype not in dtypes:
        raise UnfitError(f"another workload: the log's tensors are {dtypes[0]}, expected {workload.dtype}")


def product_of(shapes: Sequence[Shape], dtype: str, extents: Sequence[int]) -> Workload:
    """Return the only matrix product that fits these tensors.

    Parameters
    ----------
    shapes : sequence of shapes
        The shapes of the operands, then of the result.
    extents : sequence of int
        The extents of the loops that the log tiles, spatial before reduction. They have to be those of the product.

    Raises
    ------
    UnfitError
        No product fits, or several do.
    """
    products = [product for product in _products(shapes, dtype) if sorted(product.extents.values()) == sorted(extents)]
    if len(products) == 1:
        return products[0]
    raise UnfitError(NO_WORKLOAD + (f" (several products fit the tensors {_shapes_text(shapes)})" if products else ""))


def _products(shapes: Sequence[Shape], dtype: str) -> Iterator[Workload]:
    if len(shapes) == 1 and len(shapes[0]) in (6, 9):  # one flat shape
        third = len(shapes[0]) // 3
        shapes = [shapes[0][at : at + third] for at in range(0, 3 * third, third)]
    if len(shapes) != 3 or any(len(shape) != len(shapes[0]) for shape in shapes) or len(shapes[0]) not in (2, 3):
        return
    batch, (m, n) = shapes[2][:-2], shapes[2][-2:]
    for flip_a in (False, True):
        k = shapes[0][-2 if flip_a else -1]
        for flip_b in (False, True):
            a, b = ((k, m) if flip_a else (m, k)), ((n, k) if flip_b else (k, n))
            if [*shapes[:2]] == [batch + a, batch + b]:
                make = functools.partial(batch_matmul, batch[0]) if batch else matmul
                try:
                    yield make(m, n, k, dtype=dtype, transpose_a=flip_a, transpose_b=flip_b)
                except WorkloadError:
                    return


def _axis_orders(workload: Workload) -> list[tuple[str, ...]]:
    """Return the possible orders of TVM's loops over a workload: spatial axes, then reduction axes.

    The spatial loops are the result's dimensions. The reduction loops are the channels before or after the windows. The
    first order is that of the workload's layout (as in topi's convolutions), the second one the other.
    """
    spatial = workload.output_axes
    names = [axis.name for axis in workload.reduction_axes]
    channels = [name for name in names if name == "rc"]
    windows = [name for name in names if name != "rc"]
    orders = [(*channels, *windows), (*windows, *channels)] if channels and windows else [tuple(names)]
    if str(workload.attribute.get("layout", "")).endswith("C"):
        orders.reverse()
    return [(*spatial, *reduction) for reduction in orders]


def match_loops(
    workload: Workload, spatial: Sequence[Sequence[int]], reduction: Sequence[Sequence[int]]
) -> dict[str, Factors]:
    """Return the factors of each axis in the GPU's tiling, by matching the tiled loops of a block to the workload.

    Parameters
    ----------
    spatial, reduction : sequence of factors
        The factors of each loop, outer to inner, in the block's order. Loops of one iteration may be missing.

    Raises
    ------
    UnfitError
        The extents of the loops are not those of the workload.
    """
    extents = workload.extents
    kinds = (("S", workload.spatial_axes, spatial), ("R", workload.reduction_axes, reduction))
    for order in _axis_orders(workload):
        tiles: dict[str, Factors] = {}
        for kind, axes, loops in kinds:
            own_loops = {axis.name for axis in axes}
            own_tiles = axis_factors(
                {name: extents[name] for name in order if name in own_loops}, loops, GPU_TILING.count(kind)
            )
            if own_tiles is None:
                break
            tiles |= own_tiles
        else:
            return {axis.name: tiles[axis.name] for axis in workload.axes}
    stated = "x".join(str(math.prod(factors)) for factors in (*spatial, *reduction))
    wanted_text = "x".join(str(extents[name]) for name in _axis_orders(workload)[0])
    raise UnfitError(f"another workload: the log tiles loops of {stated}, expected {wanted_text} ({workload.operator})")
