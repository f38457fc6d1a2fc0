"""What is left to TVM as loops over access maps: any sizes, axes and dtypes, beside NumPy."""

import functools
import os

import numpy as np
import pytest

from anatune.network.graph import building as b
from anatune.network.graph.integers.scaled import QuantisationScale, dequantize, quantize
from anatune.network.graph.nodes import Graph, Input, TensorType, tensor_type
from anatune.network.graph.operators import OPERATORS
from anatune.network.graph.passes.rows import lower_scatters
from anatune.network.relax.building import build_library, lower_module
from anatune.network.relax.kernels import write_unplanned
from anatune.network.relax.writing import write_model

tvm = pytest.importorskip("tvm")

from anatune.codegen.compat import target_of  # noqa: E402
from anatune.measure.named_hardware import hardware  # noqa: E402
from tests.unit.network.relax.linked import main_of  # noqa: E402


@functools.cache
def host():
    return hardware("host")


def run(make, *arrays, threads=1, passes=lower_scatters, is_scheduled=True):
    """Return what a graph of inputs computes, compiled."""
    inputs = tuple(Input(f"x{n}", TensorType(one.shape, one.dtype.name)) for n, one in enumerate(arrays))
    outputs = make(*inputs)
    graph = passes(Graph(inputs, outputs if isinstance(outputs, tuple) else (outputs,), is_tuple=True))
    model = write_model(
        graph, write_unplanned(graph, host(), threads), lambda weights: [w.constant.array for w in weights]
    )
    made = build_library(model, target_of(host()), threads)
    assert not (is_scheduled and made.unscheduled)
    found = main_of(made)(*(tvm.runtime.tensor(one) for one in arrays))
    found = [one.numpy() for one in found]
    assert [(one.shape, one.dtype.name) for one in found] == [tuple(tensor_type(one)) for one in graph.outputs]
    return found


def data(*shape, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.3
    return (rng.standard_normal(shape) * 4).astype(dtype)


THREADS = [1, *([2] if len(os.sched_getaffinity(0)) > 1 else [])]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_reductions_over_any_axes(dtype, threads):
    x = data(3, 70, 5, 37, dtype=dtype)
    kinds = [("sum", (0,)), ("max", (1,)), ("sum", (3,)), ("max", (1, 3)), ("sum", (0, 2, 3)), ("sum", (0, 1, 2, 3))]
    found = run(
        lambda v: tuple(b.reduce_axes(name, v, axis, keepdims=False) for name, axis in kinds), x, threads=threads
    )
    wide = x.astype(np.float64)
    for own, (name, axis) in zip(found, kinds, strict=True):
        np.testing.assert_allclose(own, getattr(wide, name)(axis=axis), rtol=1e-5, atol=0 if dtype == "int64" else 1e-3)


def test_products_means_and_truth_values_of_odd_lengths():
    x, small = data(5, 133, dtype="bool"), 1 + data(2, 83) / 90
    found = run(
        lambda v, w: (
            b.cast(b.reduce_axes("max", b.cast(v, "int8"), [1], keepdims=True), "bool"),
            b.reduce_axes("prod", w, [1], keepdims=False),
            b.reduce_axes("mean", b.elementwise("multiply", w, w), [1], keepdims=False),
            b.reduce_axes("min", b.slice_axes(w, [1], [0], [5]), None, keepdims=True),
        ),
        x, small,
    )  # fmt: skip
    np.testing.assert_array_equal(found[0], x.any(axis=1, keepdims=True))
    np.testing.assert_allclose(found[1], small.astype(float).prod(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(found[3], small[:, :5].min(keepdims=True))
    np.testing.assert_allclose(found[2], (small.astype(float) ** 2).mean(axis=1), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_nan_stays_nan_and_places_are_the_first_ones(axis):
    x = data(40, 83).round()
    y = x.copy()
    y[17, 20] = np.nan

    def make(v, w):
        return b.arg_extreme("argmax", v, axis, keepdims=False), b.reduce_axes("min", w, [axis], keepdims=False)

    found = run(make, x, y)
    np.testing.assert_array_equal(found[0], x.argmax(axis=axis))
    np.testing.assert_array_equal(found[1], y.min(axis=axis))


@pytest.mark.parametrize("threads", THREADS)
def test_moves_of_elements(threads):
    x = data(6, 12, 35)

    def moved(v):
        return (
            b.pad_tensor(v, [0, 1, 3], [1, 0, 2], 0.5),
            b.slice_axes(v, [1, 2], [1, 30], [12, 2], [3, -4]),
            b.reshape(b.slice_axes(v, [2], [3], [24]), (3, 2, 12, 7, 3)),
            b.elementwise("add", b.permute(v, (2, 0, 1)), b.permute(b.elementwise("multiply", v, 2.0), (2, 0, 1))),
            b.take_constant_slices(
                b.take_constant_slices(v, np.array([2, 1, 0, 1, 2, 11, 10]), 1), np.arange(35)[::-1], 2
            ),
            b.where(b.elementwise("greater", v, 0), v, b.slice_axes(v, [0], [2], [3])),
        )

    found = run(moved, x, threads=threads)
    wanted = [
        np.pad(x, [(0, 1), (1, 0), (3, 2)], constant_values=0.5),
        x[:, 1:12:3, 30:2:-4],
        x[:, :, 3:24].reshape(3, 2, 12, 7, 3),
        (3 * x).transpose(2, 0, 1),
        x[:, [2, 1, 0, 1, 2, 11, 10]][:, :, ::-1],
        np.where(x > 0, x, x[2:3]),
    ]
    for own, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own, want, rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 5, 56, 56), (3, 4, 28, 28), (4, 16, 7, 7)])
def test_images_of_odd_columns_are_whole_vectors(shape):
    """Of 8 bits, with what TVM takes vectors apart for (0.27) unless it is told that LLVM has it of vectors."""
    x, y = (np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8) for seed in (0, 1))
    one, other, of_sums = (
        QuantisationScale(np.float32(scale), np.int32(zero)) for scale, zero in ((0.021, 120), (0.034, 0), (0.041, 3))
    )

    def make(v, w):
        total = b.elementwise("add", dequantize(v, one), dequantize(w, other))
        no_number = b.make_node("isnan", (total,), TensorType(shape, "bool"))
        return quantize(b.where(no_number, dequantize(v, one), total), of_sums, "uint8")

    found = run(make, x, y)[0]
    wide = (x.astype(float) - 120) * one.scale + y * other.scale
    want = np.clip(np.round(wide / of_sums.scale) + 3, 0, 255)
    assert np.abs(found - want).max() <= 1
    assert (found != want).mean() < 1e-3
    inputs = tuple(Input(f"x{n}", TensorType(shape, "uint8")) for n in range(2))
    graph = Graph(inputs, (make(*inputs),), is_tuple=True)
    model = write_model(graph, write_unplanned(graph, host(), 1), lambda weights: [])
    module, _ = lower_module(model.module, target_of(host()), 1)
    (function,) = [one for _, one in module.functions_items() if type(one).__name__ == "PrimFunc"]
    assembly = tvm.compile(tvm.IRModule({"main": function}), target_of(host())).mod.inspect_source("asm")
    assert "pinsrb" not in assembly
    assert "pextrb" not in assembly


def test_reshapes_in_between_keep_neighbours():
    x = data(4, 6, 5, 7)

    def make(v):
        turned = b.reshape(b.elementwise("add", b.reshape(v, (8, 105)), 1.0), (4, 6, 5, 7))
        return b.elementwise("multiply", turned, b.slice_axes(v, [1], [0], [1]))

    np.testing.assert_allclose(run(make, x)[0], (x + 1) * x[:, :1], rtol=1e-6)


def test_dear_functions_and_gathers_are_not_computed_again():
    x, row, places = data(50, 40), data(40), np.random.default_rng(1).integers(0, 50, (9, 3))

    def make(v, w, i):
        powers = b.elementwise("exp", v)
        return (
            b.elementwise("divide", powers, b.reduce_axes("sum", powers, [1], keepdims=True)),
            b.elementwise("multiply", v, b.elementwise("tanh", w)),
            b.elementwise("add", b.take_slices(b.elementwise("log", b.elementwise("abs", v)), i, 0), 1.0),
        )

    found = run(make, x, row, places)
    wide = x.astype(float)
    np.testing.assert_allclose(found[0], np.exp(wide) / np.exp(wide).sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(found[1], wide * np.tanh(row.astype(float)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2], np.log(np.abs(wide))[places] + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", ["exp", "log", "tanh", "sigmoid", "erf"])
def test_functions_have_their_limits(function):
    ends = [-np.inf, -104.5, -100.0, -88.0, -1e-40, -0.0, 0.0, 1e-45, 1e-38, 0.5, 0.93, 1.0, 88.7, 89.5, np.inf, np.nan]
    x = np.array([*ends, *np.linspace(-9, 9, 85)], np.float32)
    node = b.elementwise(function, Input("x", TensorType(x.shape, "float32")))
    (found,) = run(lambda v: b.elementwise(function, v), x)
    with np.errstate(all="ignore"):
        want = OPERATORS[node.op].compute(x.astype(np.float64))
        np.testing.assert_allclose(found, want.astype(np.float32), rtol=5e-7, atol=1e-38)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_updates_at_places(dtype, axis):
    x, updates = data(9, 11, dtype=dtype), data(4, 11, dtype=dtype, seed=2) if axis == 0 else data(9, 4, dtype=dtype)
    index = np.random.default_rng(3).integers(0, 9, updates.shape)
    row = np.random.default_rng(3).integers(0, 9, (4, 1) if axis == 0 else (1, 4))
    names = ("update", "add", "max")

    def make(v, i, u, r):
        rows = b.broadcast(r, updates.shape)
        return tuple(b.scatter(v, at, u, axis, name) for name in names for at in (i, rows))

    found = run(make, x, index, updates, row)
    places = [(name, at) for name in names for at in (index, np.broadcast_to(row, updates.shape))]
    for own, (name, at) in zip(found, places, strict=True):
        want = b.scatter(*(b.constant(one, one.dtype.name) for one in (x, at, updates)), axis, name)
        np.testing.assert_allclose(own, want.array, rtol=1e-6)


def test_functions_of_functions_compile_at_once():
    x = data(3, 70)
    words = ("exp", "sigmoid", "tanh", "log", "erf", "exp")
    (found,) = run(lambda v: functools.reduce(lambda value, word: b.elementwise(word, value), words, v), x)
    want = functools.reduce(lambda value, word: OPERATORS[word].compute(value), words, x.astype(float))
    np.testing.assert_allclose(found, want, rtol=1e-5)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "axis"), [((7, 40), 1), ((40, 3, 2), 0), ((9,), 0)])
def test_the_first_places_of_the_largest(shape, axis, largest):
    x = data(*shape).round()
    (found,) = run(lambda v: b.top_indices(v, 6, axis, largest=largest), x)
    np.testing.assert_array_equal(found, b.top_indices(b.constant(x, "float32"), 6, axis, largest=largest).array)


def test_nan_is_the_largest():
    x = np.array([1, np.nan, 3, 2, np.nan], np.float32)
    (found,) = run(lambda v: b.top_indices(v, 3, 0, largest=True), x)
    np.testing.assert_array_equal(found, [1, 4, 2])
