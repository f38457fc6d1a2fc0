"""``anatune prune --for kernel-tuner``: the best predicted configurations in Kernel Tuner's form.

The output is one JSON object. ``tune_params`` and ``restrictions`` are arguments of ``tune_kernel``.
``ConfigurationSpace`` is the same in the format T1 that ``tune_kernel_T1`` reads. ``configurations`` are in predicted
order. Kernel Tuner is not needed.

Parameters have the names of Kernel Tuner's own examples, because Kernel Tuner launches ``block_size_x`` by
``block_size_y`` by ``block_size_z`` threads: x is the contiguous dimension of the result, y the next one. ``names``
gives their meaning in the roles of `kernel_tuner.names`, so that ``anatune.adapters.kernel_tuner.prune`` predicts the
same times.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.adapters.kernel_tuner.names import Names
from anatune.adapters.logs.parts import UNROLLED
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.listing.formats import PruneRequest, write_object_lines
from anatune.model.learned.corrections import NONE, apply_correction, find_correction
from anatune.model.pruning.order import AnalyticalOrder
from anatune.templates import CUDA
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.space import GpuSpace

_LEAST_READ, _MOST_READ = 1 << 12, 1 << 20
"""The fewest and the most schedules of anatune's template that are read. One in about 200 is a configuration here."""
_MOST_TIMED = 10_000
_POOL = 4
"""The number of configurations in analytical order from which a correction chooses one."""
_DIMENSIONS = ("x", "y", "z")
_CHUNK = 3
"""The number of parameters between two restrictions: Kernel Tuner's solver tries all their values in between."""

Row = tuple[int, ...]


def kernel_tuner_lines(request: PruneRequest) -> Iterator[str]:
    """Yield the lines of one JSON object, with one line for each of the ``configurations``, best first.

    Raises
    ------
    SpaceError
        The device is not a GPU, or the template is not `cuda`.
    """
    workload, spec = request.workload, request.gpu("kernel-tuner")
    request.require_cuda_cores("kernel-tuner")
    if request.correction == "auto":  # shipped corrections were learned from TVM's kernels
        request = dataclasses.replace(request, correction=NONE)
    names = parameter_names(workload)
    columns = tuple(source for source in names.values() if isinstance(source, str))
    rows, time_s, num_legal = _rank_configurations(request, names)
    params = {name: sorted({row[at] for row in rows}) for at, name in enumerate(columns)}
    restrictions = membership(columns, rows)
    head = {
        "workload": msgspec.to_builtins(workload),
        "hardware": {"name": spec.name, "model": spec.model, "arch": spec.arch},
        "keep": request.keep,
        "num_legal": num_legal,
        "num_listed": len(rows),
        "names": names,
        "tune_params": params,
        "restrictions": restrictions,
        "ConfigurationSpace": _t1(params, restrictions),
        "predicted_s": time_s,
    }
    yield from write_object_lines(head, "configurations", (dict(zip(columns, row, strict=True)) for row in rows))


def parameter_names(workload: Workload) -> dict[str, str | int]:
    """Return the meaning of the listed parameters: role -> parameter, or 1 if the axis has a single step."""
    names: dict[str, str | int] = {}
    extents = workload.extents
    long = [axis for axis in reversed(workload.output_axes) if extents[axis] > 1]
    far = _far_axes(workload)
    words = dict(zip(long, _DIMENSIONS, strict=False)) | {axis: f"of_{axis}" for axis in far}
    for axis in workload.spatial_axes:
        word = words.get(axis.name)
        for role, prefix in (("threads", "block_size"), ("work", "tile_size"), ("inner", "tile_inner")):
            names[f"{role}_{axis.name}"] = (
                1 if not word or (role == "threads" and axis.name in far) else f"{prefix}_{word}"
            )
    for axis in workload.reduction_axes:
        names[f"block_{axis.name}"] = f"steps_{axis.name}" if axis.extent > 1 else 1
    for access in workload.reads if workload.reduction_axes else ():
        names[f"vector_{access.tensor}"] = f"vector_{access.tensor}"
    return names


def _far_axes(workload: Workload) -> list[str]:
    """Return the result's axes beyond the third: a thread block has three dimensions, so they get no threads."""
    return [axis for axis in reversed(workload.output_axes) if workload.extents[axis] > 1][len(_DIMENSIONS) :]


def membership(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return restrictions (Python expressions) that hold for these rows of values and no others.

    The last restriction is sufficient. Those before it restrict the first 3, 6, ... parameters, so that a solver that
    sets one parameter after the other never tries more than a few values of each.
    """
    ends = [*range(_CHUNK, len(names), _CHUNK), len(names)]
    return [_expression(names[:end], dict.fromkeys(row[:end] for row in rows)) for end in ends]


def _expression(names: Sequence[str], rows: dict[Row, None]) -> str:
    listed = ",".join(f"({','.join(map(str, row))},)" for row in rows)
    return f"({','.join(names)},) in {{{listed}}}"


def _t1(params: dict[str, list[int]], restrictions: list[str]) -> dict[str, object]:
    """Return the part of a T1 file that describes the space of configurations."""
    return {
        "TuningParameters": [
            {"Name": name, "Type": "int", "Values": msgspec.json.encode(values).decode()}
            for name, values in params.items()
        ],
        "Conditions": [
            {"Parameters": list(params)[: _CHUNK * number], "Expression": text}
            for number, text in enumerate(restrictions, 1)
        ],
    }


def _rank_configurations(request: PruneRequest, names: Names) -> tuple[list[Row], list[float], int]:
    """Return configurations (best predicted first), their seconds, and the number of legal schedules of the template.

    A configuration is a schedule with a single level of register tiles and of unrolled steps, as `tile_points` makes
    it. The whole space is read in predicted order until there are enough of them.
    """
    half_s = request.time_limit_s and request.time_limit_s / 2  # two searches
    model = CudaModel(request.workload, request.gpu("kernel-tuner"), plain=True)
    subset = dataclasses.replace(request, time_limit_s=half_s).plain_subset(model)
    share = isinstance(request.keep, float)
    wanted = min(request.most, subset.num_kept)
    most = min(subset.num_kept, _MOST_READ) if share else _MOST_READ
    saved = find_correction(request.hardware, CUDA.name, request.correction)
    corrected_model = apply_correction(model, saved)
    if request.may_choose(subset.num_kept):
        express = functools.partial(_merge_levels, space=model.space)
        chosen_points = request.choose_few(model, corrected_model, wanted, express)
        if chosen_points is not None:
            return (
                _rows(names, chosen_points, model.space),
                corrected_model.times(chosen_points)[0].tolist(),
                subset.num_legal,
            )
    order = AnalyticalOrder(model, half_s, _MOST_TIMED, progress=request.progress)
    pool = wanted if saved is None else _POOL * wanted
    read = min(_LEAST_READ, most) if share else _LEAST_READ
    while True:
        listed = order.first(read)
        points = _select_expressible(listed, model.space)
        times = model.times(points)[0] if len(points) else np.empty(0)
        if request.distinct:
            first = np.sort(np.unique(times, return_index=True)[1])
            points, times = points[first], times[first]
        if len(points) >= pool or len(listed) < read or read >= most:
            break
        read = min(4 * read, most)
    if not len(points):  # the share is too small for any: take the best one
        points = _select_expressible(order.first(_MOST_READ), model.space)[:1]
        if not len(points):
            raise SpaceError(
                f"kernel-tuner: each of the best {_MOST_READ} schedules needs two levels of register tiles, which "
                "this format cannot express; use --for json"
            )
        times = model.times(points)[0]
    if saved is not None:
        points = points[:pool]
        times = corrected_model.times(points)[0]
        best = np.argsort(times, kind="stable")
        points, times = points[best], times[best]
    return _rows(names, points[:wanted], model.space), times[:wanted].tolist(), subset.num_legal


def _rows(names: Names, points: NDArray[np.int64], space: GpuSpace) -> list[Row]:
    return [_values(names, dict(zip(space.columns, point, strict=True))) for point in points.tolist()]


def _merge_levels(points: NDArray[np.int64], space: GpuSpace) -> NDArray[np.int64]:
    """Merge two levels of register tiles and of steps into one, and return the points that are then expressible."""
    points = points.copy()
    column_of = {name: number for number, name in enumerate(space.columns)}
    for axis in space.axes:
        outer, inner = (".reg_outer", ".reg_inner") if f"{axis}.reg_outer" in column_of else (".k2", ".k1")
        points[:, column_of[axis + inner]] *= points[:, column_of[axis + outer]]
        points[:, column_of[axis + outer]] = 1
    points[:, column_of["unroll"]] = UNROLLED
    return _select_expressible(points, space)


def _select_expressible(points: NDArray[np.int64], space: GpuSpace) -> NDArray[np.int64]:
    """Return the points that can be written as configurations."""
    fixed = {"unroll": UNROLLED} | {name: 1 for name in space.columns if name.endswith((".reg_outer", ".k2"))}
    fixed |= {f"{axis}.thread": 1 for axis in _far_axes(space.workload)}
    same = [points[:, at] == fixed[name] for at, name in enumerate(space.columns) if name in fixed]
    return points[np.logical_and.reduce(same)]


def _values(names: Names, point: dict[str, int]) -> Row:
    """Return the values of the parameters at a point, in the order of `names`.

    The results of a thread are adjacent within its register tile, and separate between its vthreads.
    """
    values: list[int] = []
    for role, source in names.items():
        kind, _, name = role.partition("_")
        if not isinstance(source, str):
            continue
        if kind == "vector":
            values.append(point[f"vector.{name}"])
        elif kind == "block":
            values.append(point[f"{name}.k1"])
        else:
            vthreads, threads, inner = (point[f"{name}.{level}"] for level in ("vthread", "thread", "reg_inner"))
            values.append({"threads": threads, "work": vthreads * inner, "inner": inner}[kind])
    return tuple(values)
