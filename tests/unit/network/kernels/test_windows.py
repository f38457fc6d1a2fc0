"""Kernels of windows: what NumPy computes of every size, border, stride and step."""

import dataclasses

import numpy as np
import pytest

import anatune
from anatune.core.sizes import Size
from anatune.network.graph.folding import evaluate_node
from anatune.network.graph.nodes import Input, Node, TensorType
from anatune.network.graph.operators import WINDOW
from anatune.network.kernels.window_kernel import WindowKernel, predict_groups
from anatune.network.kernels.windows import window_program
from tests.unit.codegen.cpu.building import built, built_for_sizes

pytest.importorskip("tvm")

CACHES = (32 << 10, 1 << 20)


def kernel(kind, sizes, channels, *, batch=1, blocks=1, window=3, stride=1, dilation=1, padding=1, behind=None, **more):
    behind = padding if behind is None else behind
    outputs = [(size + padding + behind - (window - 1) * dilation - 1) // stride + 1 for size in sizes]
    return WindowKernel(
        kind, batch, blocks, channels, sizes, tuple(outputs), (window,) * 2, (stride,) * 2, (dilation,) * 2,
        (padding,) * 2, **more,
    )  # fmt: skip


def make_grouped(sizes, channels, group, lanes, **more):
    """Return a convolution of groups, whose weights lie together for whole vectors of whole groups."""
    return kernel("grouped", sizes, channels, group=group, unit=max(group, lanes), **more)


def node(window_kernel):
    """Return a kernel as a node, with the values it reads."""
    inputs = [Input(name, TensorType(shape, "float32")) for name, shape in window_kernel.shapes.items()][:-1]
    names = ("kind", "outputs", "window", "strides", "dilation", "before", "counts_padding", "epilogue", "group")
    kind = TensorType(window_kernel.shapes["result"], "float32")
    return Node(WINDOW, tuple(inputs), kind, {name: getattr(window_kernel, name) for name in names})


def check(window_kernel, *, lanes=16, registers=32, threads=1, caches=CACHES):
    """Compare a kernel with NumPy in float64: products and sums within the rounding of their terms."""
    program = window_program(window_kernel, "kernel", threads, lanes=lanes, registers=registers, caches=caches)
    return compared(window_kernel, built(program, window_kernel.shapes["result"], threads))


def compared(window_kernel, call):
    """Compare a kernel, built."""
    random = np.random.default_rng(3)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in list(window_kernel.shapes.values())[:-1]]
    got = call(*arrays)
    built_node = node(window_kernel)
    want = evaluate_node(built_node, dict(zip(built_node.arguments, arrays, strict=True)))
    if window_kernel.kind == "max" and not window_kernel.epilogue:
        np.testing.assert_array_equal(got, want.astype(np.float32))
    else:
        terms = np.prod(window_kernel.window) * window_kernel.group
        assert np.abs(got - want).max() <= 2.0**-24 * (terms + 4) * np.abs(want).max()
    return got


@pytest.mark.parametrize("kind", ["depthwise", "max", "mean"])
@pytest.mark.parametrize(("sizes", "channels"), [((7, 9), 16), ((1, 1), 5), ((12, 31), 37), ((3, 16), 128)])
def test_every_border_and_odd_channels(kind, sizes, channels):
    check(kernel(kind, sizes, channels))


@pytest.mark.parametrize("more", [
    {"stride": 2}, {"stride": 2, "padding": 0, "behind": 1}, {"window": 5, "padding": 2}, {"dilation": 2, "padding": 2},
    {"window": 2, "padding": 0, "stride": 2}, {"window": 1, "padding": 0}, {"padding": 2}, {"window": 3, "stride": 4},
    {"batch": 3}, {"batch": 2, "blocks": 3},
])  # fmt: skip
@pytest.mark.parametrize("kind", ["depthwise", "max", "mean"])
def test_strides_windows_and_paddings(kind, more):
    if kind == "max" and more == {"padding": 2}:
        pytest.skip("a window of nothing but padding has no largest element")
    check(kernel(kind, (11, 13), 24, **more))


@pytest.mark.parametrize(("lanes", "registers"), [(4, 32), (8, 16), (16, 32)])
@pytest.mark.parametrize(("group", "channels"), [(2, 6), (4, 12), (4, 64), (8, 24), (16, 48), (32, 64)])
def test_groups_of_channels(group, channels, lanes, registers):
    if max(group, lanes) % min(group, lanes):
        pytest.skip("vectors hold no whole groups")
    more = {"lanes": lanes, "registers": registers}
    check(make_grouped((7, 9), channels, group, lanes), **more)
    check(make_grouped((12, 31), channels, group, lanes, epilogue=("bias", "add", "relu"), batch=2, stride=2), **more)
    check(make_grouped((1, 5), channels, group, lanes, window=5, padding=2), **more, threads=2)
    if channels % max(group, lanes) == 0:
        check(make_grouped((9, 8), channels, group, lanes, blocks=3, dilation=2, padding=2, epilogue=("bias",)), **more)


def test_the_predicted_time_of_groups_is_that_of_their_products():
    hardware = anatune.hardware("epyc_7763").with_threads(1)
    for group, channels, size in ((4, 128, 56), (8, 256, 28), (16, 512, 14)):
        window_kernel = make_grouped((size, size), channels, group, 8)
        share = 2 * size**2 * channels * group * 9 / hardware.peak_flop_per_s("float32")
        assert 0.8 <= share / predict_groups(window_kernel, hardware) <= 1.0
    assert predict_groups(make_grouped((56, 56), 512, 256, 8), hardware) == np.inf  # the code would be too long


@pytest.mark.parametrize("steps", [("bias",), ("bias", "relu6"), ("relu",), ("bias", "add", "relu"), ("add", "silu")])
def test_steps_behind_a_depthwise_convolution(steps):
    check(kernel("depthwise", (6, 10), 40, epilogue=steps, batch=2))
    check(kernel("depthwise", (6, 10), 16, epilogue=steps, batch=2, blocks=3))


def test_a_mean_may_count_its_padding():
    counted, plain = (check(kernel("mean", (5, 5), 8, counts_padding=flag)) for flag in (True, False))
    np.testing.assert_allclose(counted[0, 0, 0, 0] * 9, plain[0, 0, 0, 0] * 4, rtol=1e-6)
    np.testing.assert_array_equal(counted[0, 0, 1:4, 1:4], plain[0, 0, 1:4, 1:4])


@pytest.mark.parametrize(("lanes", "registers"), [(4, 32), (8, 16), (16, 32)])
def test_vectors_of_every_length(lanes, registers):
    check(kernel("depthwise", (9, 21), 27, epilogue=("bias", "relu6")), lanes=lanes, registers=registers)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("kind", ["depthwise", "max"])
def test_several_threads(kind, threads):
    check(kernel(kind, (17, 23), 70, batch=2), threads=threads)
    check(kernel(kind, (17, 23), 16, batch=2, blocks=2), threads=threads)


@pytest.mark.parametrize("caches", [(1 << 10, 1 << 20), (4 << 10, 8 << 10), (1 << 30, 1 << 31)])
def test_parts_that_caches_hold(caches):
    check(kernel("depthwise", (8, 40), 96, epilogue=("bias",)), caches=caches)


def test_the_largest_element_is_nan_where_there_is_one():
    window_kernel = kernel("max", (4, 4), 3, padding=0, stride=1)
    data = np.zeros((1, 1, 4, 4, 3), np.float32)
    data[0, 0, 0, 0, 1] = np.nan
    data[0, 0, 3, 3, 2] = -np.inf
    program = window_program(window_kernel, "kernel", 1, lanes=16, registers=32, caches=CACHES)
    got = built(program, window_kernel.shapes["result"])(data)
    want = np.zeros((1, 1, 2, 2, 3), np.float32)
    want[0, 0, 0, 0, 1] = np.nan
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["depthwise", "grouped", "max"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("more", [{}, {"blocks": 3, "epilogue": ("bias", "add", "relu")}])
def test_one_kernel_serves_batches_that_are_known_at_run_time(kind, threads, more):
    groups = {"group": 4, "unit": 8} if kind == "grouped" else {}
    channels = 24 if groups else 20
    window_kernel = kernel(kind, (7, 9), channels, batch=2 * Size.symbol("batch", 4), **groups, **more)
    program = window_program(window_kernel, "kernel", threads, lanes=8, registers=16, caches=CACHES)
    call = built_for_sizes(program, threads)
    for batch in (1, 2, 5, 16):
        plain = dataclasses.replace(window_kernel, batch=2 * batch)
        compared(plain, lambda *arrays, plain=plain, batch=batch: call(plain.shapes["result"], *arrays, batch=batch))
