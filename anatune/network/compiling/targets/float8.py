"""Products of 8-bit floats: rows of data are scaled at run time, columns of weights when the model is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

import numpy as np

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.network.graph.building import cast, elementwise, reduce_axes, reshape
from anatune.network.graph.experts.passes import routing_products
from anatune.network.graph.nodes import (
    Array,
    Constant,
    Graph,
    Node,
    TensorType,
    Value,
    is_unknown,
    iterate_values,
    make_unknown,
    rewrite_with_originals,
    tensor_type,
)
from anatune.network.graph.operators import ATTENTION, EXPERTS, MATMUL, PRODUCTS, SCALED_MATMUL
from anatune.network.graph.passes.precision import FP8
from anatune.network.graph.passes.products import append_steps
from anatune.network.graph.passes.simplify import source_of
from anatune.network.graph.products import make_workload
from anatune.templates import TRITON
from anatune.templates.gpu.streaming import streaming_s
from anatune.templates.triton.instructions import instructions_of

__all__ = ["float8_of", "use_float8"]

_LARGEST = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0}
"""Number format with 4 bits of exponent -> its largest number. Source: OCP OFP8; AMD CDNA3 ISA."""
_LEAST_MAGNITUDE = 1e-10
"""Magnitude that stands for that of a row of zeros, as in `quantise_rows`."""
_LEAST_DEPTH = 16
"""Rows of a multiple of this number of 8-bit elements begin at multiples of 16 bytes."""


def float8_of(hardware: GpuSpec) -> str:
    """Return the 8-bit floats that a GPU's matrix units multiply.

    Raises
    ------
    SpaceError
        The GPU has none.
    """
    for dtype in _LARGEST:
        units = instructions_of(hardware.arch, dtype)
        if units is not None and not units[0].emulated and TRITON.takes(_workload(512, 512, 512, dtype), hardware):
            return dtype
    raise SpaceError(
        f"compile: precision is {FP8}, and {hardware.name} ({hardware.arch}) has no matrix instructions for 8-bit "
        "floats; take bfloat16, or a device from sm_89 or gfx942 on"
    )


def _workload(m: int, n: int, k: int, dtype: str) -> Workload:
    return make_workload("scaled_matmul", m=m, n=n, k=k, dtype=f"{dtype}:bfloat16", scales="rows")


def use_float8(
    graph: Graph,
    hardware: GpuSpec,
    workload_for: Callable[[Node], Workload | None],
    seconds: Callable[[Sequence[Workload]], Mapping[Workload, float]],
) -> Graph:
    """Return a graph whose products with constant weights use 8-bit floats where that is predicted to be faster.

    Each row of the data and each column of the weights is scaled so that its largest magnitude becomes the largest
    number of the format; sums are float32. The epilogue of such a product becomes separate nodes. Products that are
    outputs, or that decide the choice of experts, stay.

    Parameters
    ----------
    workload_for : callable
        Returns the workload of a product without a change; None if the product must stay.
    seconds : callable
        Returns the predicted times of the first choices for workloads.

    Raises
    ------
    SpaceError
        The device has no 8-bit floats.
    """
    dtype = float8_of(hardware)
    candidates: dict[Node, tuple[Workload, Workload]] = {}
    written = {source_of(value) for value in graph.outputs} | routing_products(graph)
    users: dict[Value, list[Node]] = {}
    for node in graph.nodes():
        for value in iterate_values(node.arguments):
            users.setdefault(source_of(value), []).append(node)
        if node.op != MATMUL or node in written or not isinstance(node.arguments[1], Constant):
            continue
        if (before := workload_for(node)) is not None:
            (m, k), n = tensor_type(node.arguments[0]).shape, tensor_type(node).shape[1]
            after = _workload(m, n, k, dtype)
            if k % _LEAST_DEPTH == 0 and TRITON.takes(after, hardware):
                candidates[node] = before, after
    times = seconds(list(dict.fromkeys(one for pair in candidates.values() for one in pair)))
    chosen: set[Value] = set()
    for node, (before, after) in candidates.items():  # earlier nodes of the model are decided first
        m, n, k = after.extents["i"], after.extents["j"], after.extents["k"]
        source = source_of(node.arguments[0])
        more_s = 0.0  # time of loops that cannot be fused with others
        if _is_planned(source) and not (source in chosen and _epilogue(source)):
            more_s += streaming_s(hardware, 3 * m * k)
        if _epilogue(node) and any(map(_is_planned, users[node])):
            more_s += streaming_s(hardware, 4 * m * n)
        if times[after] + more_s < times[before]:
            chosen.add(node)
    data: dict[Value, tuple[Value, Value]] = {}
    weights: dict[Value, tuple[Constant, Constant]] = {}

    def replace(node: Node, old: Node) -> Value:
        if old not in chosen:
            return node
        left, right = node.arguments[:2]
        if left not in data:
            data[left] = _scale_rows(left, dtype)
        if right not in weights:
            weights[right] = _scale_columns(right.array, dtype)
        (rows, scales), (columns, factors) = data[left], weights[right]
        attributes = {"dtype": dtype, "scales": "rows", "epilogue": ()}
        return append_steps(Node(SCALED_MATMUL, (rows, columns, factors, scales), tensor_type(node), attributes), node)

    return rewrite_with_originals(graph, replace)


def _is_planned(value: Value) -> bool:
    return isinstance(value, Node) and value.op in (*PRODUCTS, ATTENTION, EXPERTS)


def _epilogue(value: Value) -> tuple[str, ...]:
    return value.attributes.get("epilogue", ()) if isinstance(value, Node) else ()


def _scale_rows(value: Value, dtype: str) -> tuple[Value, Value]:
    """Return rows in 8 bits, and the scale of each."""
    largest = reduce_axes("max", elementwise("abs", value), [1], keepdims=True)
    scales = elementwise("multiply", elementwise("maximum", largest, _LEAST_MAGNITUDE), 1.0 / _LARGEST[dtype])
    return cast(elementwise("divide", value, scales), dtype), reshape(scales, [-1])


def _scale_columns(array: Array, dtype: str) -> tuple[Constant, Constant]:
    """Return weights (k, n) as (n, k) in 8 bits, and the scale of each column."""
    import_module("ml_dtypes")  # it adds the dtype to NumPy
    k, n = array.shape
    if is_unknown(array):
        return Constant(make_unknown(TensorType((n, k), dtype))), Constant(make_unknown(TensorType((n,), "float32")))
    scales = np.maximum(abs(array).max(0), _LEAST_MAGNITUDE) / np.float32(_LARGEST[dtype])
    return Constant(np.ascontiguousarray((array / scales).T).astype(dtype)), Constant(scales.astype(np.float32))
