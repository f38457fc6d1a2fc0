"""Quantise float32 models when they are compiled: ranges of activations from data, and the loss of accuracy."""

from __future__ import annotations

import dataclasses
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from anatune.errors import WorkloadError
from anatune.network.compiling.checking import TOLERANCE, error_of
from anatune.network.compiling.sizes.varying import environments
from anatune.network.compiling.targets.base import ModelTarget
from anatune.network.graph.nodes import Array, Graph, Input, Value, is_unknown, tensor_type
from anatune.network.graph.passes.order import WEIGHTS, run_passes
from anatune.network.graph.passes.quantising import QuantisedLayer, choose_scale, find_sites, insert_conversions
from anatune.network.graph.summary import LayerLoss
from anatune.network.graph.torch.arrays import any_array
from anatune.network.relax.frontends import ImportedModel

__all__ = ["QuantisedModel", "output_error", "quantise_model", "read_calibration"]

_LEAST_SIGNAL = 1e-30
"""Power of a signal that is all zeros."""
_MOST_LOSSES = 8
"""Most calls of the data that losses are measured on."""


class QuantisedModel(NamedTuple):
    """A model of 8-bit integers.

    Attributes
    ----------
    source : ImportedModel
    losses : tuple of LayerLoss
        The loss of each product's output.
    calls : list of (inputs, outputs)
        Some calls of the calibration data, and the float32 model's outputs for them.
    """

    source: ImportedModel
    losses: tuple[LayerLoss, ...]
    calls: list[tuple[list[Array], list[Array]]]


def output_error(model: Callable[..., object], calls: Sequence[tuple[list[Array], list[Array]]]) -> float | None:
    """Return the largest error of a model's float outputs, over each output's largest magnitude in its call.

    The result is None if no output is a float. `calls` are those of `QuantisedModel`.
    """
    results = [(model(*inputs), outputs) for inputs, outputs in calls]
    pairs = [
        (own, want)
        for result, outputs in results
        for own, want in zip(result if isinstance(result, tuple) else (result,), outputs, strict=True)
    ]
    return max((error_of(own, want) for own, want in pairs if own.dtype.name in TOLERANCE), default=None)


def quantise_model(
    source: ImportedModel, make_target: Callable[[], ModelTarget], data: object, percentile: float | None
) -> QuantisedModel:
    """Return a model of 8-bit integers, the loss of each product's output, and calls for comparing the models.

    Parameters
    ----------
    make_target : callable
        Returns a new target: the model is built with more outputs, once unchanged and once quantised.
    data, percentile
        As `anatune.compile`.

    Raises
    ------
    WorkloadError
        The data does not fit the model.
    BuildError
        TVM cannot compile an operator.
    """
    graph = run_passes(WEIGHTS, source.graph(environments(source.ranges, source.state)[0]))
    parts = read_calibration(data, graph.inputs, source.name)
    sites = find_sites(graph)
    if not sites.layers:
        raise WorkloadError(f"compile: {source.name} has no products with constant weights, nothing can be quantised")
    inner = [value for value in sites.tensors if not isinstance(value, Input)]
    ends: list[Value] = [layer.end for layer in sites.layers]
    run = _make_run(graph, [*inner, *ends, *graph.outputs], make_target())
    ranges = {value: [0.0, 0.0] for value in sites.tensors}
    wanted: list[list[Array]] = []
    calls: list[tuple[list[Array], list[Array]]] = []
    for number, part in enumerate(parts):
        results = run(part)
        given = [*zip(graph.inputs, part, strict=True), *zip(inner, results, strict=False)]
        for value, array in given:
            if value in ranges:
                low, high = _value_range(array, percentile)
                value_range = ranges[value]
                ranges[value] = [min(value_range[0], low), max(value_range[1], high)]
        if number < _MOST_LOSSES:
            wanted.append(results[len(inner) : len(inner) + len(ends)])
            calls.append((part, results[len(inner) + len(ends) :]))
    new_graph, new_nodes = insert_conversions(graph, {key: choose_scale(*ends_of) for key, ends_of in ranges.items()})
    run = _make_run(new_graph, [new_nodes[value] for value in ends], make_target())
    got = [run(part) for part in parts[:_MOST_LOSSES]]
    losses = tuple(
        LayerLoss(_layer_name(layer, number), _decibels([one[number] for one in wanted], [one[number] for one in got]))
        for number, layer in enumerate(sites.layers)
    )
    return QuantisedModel(dataclasses.replace(source, read=lambda _: new_graph, reference=None), losses, calls)


def _layer_name(layer: QuantisedLayer, number: int) -> str:
    """Return the name of a layer: its number among the products, its operator, and the type of its output."""
    return f"{number + 1} {layer.product.op.removeprefix('nn.')} {tensor_type(layer.end)}"


def _make_run(graph: Graph, values: Sequence[Value], target: ModelTarget) -> Callable[[Sequence[Array]], list[Array]]:
    """Return a function that computes given values of a graph, by compiled code."""
    whole = Graph(graph.inputs, tuple(values), is_tuple=True)
    model = target.build(target.plan(whole), forget=False).compiled
    return lambda part: [np.array(one) for one in model(*part)]


def _value_range(array: Array, percentile: float | None) -> tuple[float, float]:
    """Return the least and the largest number, or those at the percentile."""
    if percentile is None:
        return float(array.min()), float(array.max())
    low, high = np.percentile(array, [100.0 - percentile, percentile])
    return float(low), float(high)


def _decibels(wanted: Sequence[Array], got: Sequence[Array]) -> float | None:
    """Return the ratio of an output's power to its error's in decibels; None if there is no error."""
    pairs = list(zip(wanted, got, strict=True))
    signal = sum(float((one.astype(np.float64) ** 2).sum()) for one, _ in pairs)
    noise = sum(float(((one.astype(np.float64) - other) ** 2).sum()) for one, other in pairs)
    return 10.0 * math.log10(max(signal, _LEAST_SIGNAL) / noise) if noise else None


def read_calibration(data: object, inputs: Sequence[Input], name: str) -> list[list[Array]]:
    """Return the calls in calibration data, each with an array for each input.

    Parameters
    ----------
    data : str, Path, array, sequence of arrays or mapping of str to array
        A file is .npy or .npz. Along the first dimension, arrays may have a multiple of the elements that the model
        takes. They are in the inputs' order, or have their names.

    Raises
    ------
    WorkloadError
        The data is missing, has other shapes or types, or contains NaN or infinity.
    """
    what = "calibrate"
    if isinstance(data, str | Path):
        what = f"calibrate: {data}"
        try:
            data = np.load(data, allow_pickle=False)
            data = dict(data) if isinstance(data, np.lib.npyio.NpzFile) else data
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise WorkloadError(f"{what} cannot be read: {error}; expected a .npy or .npz file of inputs") from None
    names = [value.name for value in inputs]
    if isinstance(data, Mapping):
        if set(names) <= set(data):
            data = [data[word] for word in names]
        elif len(data) == len(names) and all(str(word).startswith("arr_") for word in data):
            data = list(data.values())
        else:
            raise WorkloadError(
                f"{what} has the arrays {', '.join(map(str, data))}, expected the inputs of {name}: {', '.join(names)}"
            )
    if data is None:
        raise WorkloadError("compile: precision int8 needs calibrate, inputs of the model to take ranges from")
    listed = data if isinstance(data, list | tuple) else [data]
    arrays = [any_array(what, one, WorkloadError) for one in listed]
    if any(map(is_unknown, arrays)):
        raise WorkloadError(f"{what} is on the meta device, which stores no values; give arrays with values")
    if len(arrays) != len(names):
        raise WorkloadError(
            f"{what} has {len(arrays)} arrays, expected one for each input of {name}: {', '.join(names)}"
        )
    counts = []
    for value, array in zip(inputs, arrays, strict=True):
        shape, dtype = tensor_type(value)
        if (
            array.ndim != len(shape)
            or array.shape[1:] != shape[1:]
            or not array.size
            or (array.shape[:1] and array.shape[0] % shape[0])
        ):
            raise WorkloadError(
                f"{what}: {value.name} has the shape {'x'.join(map(str, array.shape))}, expected "
                f"{'x'.join(map(str, shape))}, or a multiple of that along the first dimension"
            )
        if array.dtype.kind not in ("fV" if "float" in dtype else np.dtype(dtype).kind):
            raise WorkloadError(f"{what}: {value.name} has the dtype {array.dtype}, expected {dtype}")
        if "float" in dtype and not np.isfinite(array.astype(np.float32)).all():
            raise WorkloadError(f"{what}: {value.name} contains NaN or infinity; leave such samples out")
        counts.append(array.shape[0] // shape[0] if shape else 1)
    if len(set(counts)) > 1:
        raise WorkloadError(
            f"{what} has inputs for {', '.join(map(str, counts))} calls, expected the same number for each input"
        )
    split = [
        np.array_split(array, count) if count > 1 else [array] for array, count in zip(arrays, counts, strict=True)
    ]
    return [
        [np.ascontiguousarray(one[number], tensor_type(value).dtype) for value, one in zip(inputs, split, strict=True)]
        for number in range(counts[0])
    ]
