"""Everything between products as Triton kernels: what they compute, beside NumPy, and how few they are."""

import numpy as np
import pytest

pytest.importorskip("tvm", reason="operators are written as loops by TVM")
pytest.importorskip("triton", reason="kernels run in Triton's interpreter")

from anatune.errors import BuildError
from anatune.network.graph import building
from anatune.network.graph.nodes import Constant, Node, TensorType
from anatune.network.graph.operators import OPERATORS
from tests.unit.network.relax.device.running import graph_of, lower, run
from tests.wording import refuses

RNG = np.random.default_rng(0)
F = "float32"


def drawn(shape, dtype=F):
    if dtype.startswith("u"):
        return RNG.integers(200, 256, shape).astype(dtype)
    if dtype == F:
        return RNG.standard_normal(shape).astype(F)
    return RNG.integers(-9, 9, shape).astype(dtype)


def norm(x, factor, term):
    mean, deviation = x.mean(-1, keepdims=True), x.std(-1, keepdims=True)
    return (x - mean) / np.sqrt(deviation**2 + 1e-5) * factor + term


def softmax(x, axis=-1):
    powers = np.exp(x - x.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def unary(name):
    return lambda x: building.elementwise(name, x)


WEIGHT, BIAS, TABLE = drawn((48,)), drawn((48,)), drawn((20, 6))
CASES = {
    "tanh": (unary("tanh"), np.tanh, [((5, 7), F)]),
    "erf": (unary("erf"), lambda x: OPERATORS["erf"].compute(x), [((33,), F)]),
    "round": (unary("round"), np.round, [((5, 7), F)]),
    "trunc": (unary("trunc"), np.trunc, [((5, 7), F)]),
    "power": (lambda x, y: building.elementwise("power", x, y), np.power, [((40,), F), ((40,), "whole")]),
    "remainders": (
        lambda x: building.elementwise("floor_mod", building.elementwise("floor_divide", x, 3), 4),
        lambda x: x // 3 % 4,
        [((6, 7), "int64")],
    ),
    "quotients": (
        lambda x: building.elementwise("divide", x, -3), lambda x: np.trunc(x / -3).astype(int), [((6, 7), "int64")],
    ),
    "where": (
        lambda x, y: building.where(building.elementwise("greater", x, y), x, y),
        np.maximum,
        [((9, 5), F), ((9, 5), F)],
    ),
    "softmax": (lambda x: building.softmax(x, 1), softmax, [((9, 37), F)]),
    "softmax_across": (lambda x: building.softmax(x, 1), lambda x: softmax(x, 1), [((3, 9, 5), F)]),
    "norm": (
        lambda x: building.layer_norm(x, Constant(WEIGHT), Constant(BIAS), (1,), 1e-5),
        lambda x: norm(x, WEIGHT, BIAS),
        [((9, 48), F)],
    ),
    "mean_of_the_middle": (
        lambda x: building.reduce_axes("mean", x, (1,), keepdims=False), lambda x: x.mean(1), [((3, 50, 40), F)],
    ),
    "sum_of_all": (lambda x: building.reduce_axes("sum", x, None, keepdims=False), np.sum, [((30, 70), F)]),
    "long_rows": (lambda x: building.reduce_axes("max", x, (1,), keepdims=True), lambda x: x.max(1, keepdims=True),
                  [((2, 20000), F)]),
    "places": (
        lambda x: (building.arg_extreme("argmax", x, 1, keepdims=False),
                   building.arg_extreme("argmin", x, 0, keepdims=False)),
        lambda x: (x.argmax(1), x.argmin(0)),
        [((9, 77), F)],
    ),
    "places_of_long_rows": (
        lambda x: building.arg_extreme("argmax", x, 1, keepdims=False), lambda x: x.argmax(1), [((2, 70000), F)],
    ),
    "turned": (
        lambda x, y: building.permute(building.concat([x, y], 1), (0, 2, 1)),
        lambda x, y: np.concatenate([x, y], 1).transpose(0, 2, 1),
        [((3, 4, 5), F), ((3, 6, 5), F)],
    ),
    "padded": (
        lambda x: building.pad_tensor(x, (0, 2, 1), (1, 0, 3)),
        lambda x: np.pad(x, ((0, 1), (2, 0), (1, 3))),
        [((2, 3, 4), F)],
    ),
    "table": (
        lambda i: building.take_slices(Constant(TABLE), i, 0), lambda i: TABLE[i], [((4, 5), "place")],
    ),
    "places_of_integers": (
        lambda x: building.arg_extreme("argmax", x, 1, keepdims=False), lambda x: x.argmax(1), [((5, 11), "int64")],
    ),
    "bytes": (
        lambda x: tuple(building.reduce_axes(name, x, (1,), keepdims=False) for name in ("min", "max")),
        lambda x: (x.min(1), x.max(1)),
        [((7, 37), "uint8")],
    ),
    "scalars": (
        lambda x, y: building.elementwise("multiply", x, building.elementwise("exp", y)),
        lambda x, y: x * np.exp(y),
        [((5, 3), F), ((), F)],
    ),
    "unsigned": (lambda x: building.cast(x, F), lambda x: x.astype(F), [((5, 3), "uint32")]),
    "truth": (
        lambda x: building.cast(building.elementwise("greater", x, 0.0), "int64"),
        lambda x: (x > 0).astype(np.int64),
        [((7, 3), F)],
    ),
}  # fmt: skip


def array_of(shape, dtype):
    if dtype == "whole":
        return RNG.integers(-2, 4, shape).astype(F)
    if dtype == "place":
        return RNG.integers(0, len(TABLE), shape)
    return drawn(shape, dtype)


@pytest.mark.parametrize("name", CASES)
def test_operators_compute_what_numpy_does(name):
    make, want, kinds = CASES[name]
    typed = [(shape, {"whole": F, "place": "int64"}.get(dtype, dtype)) for shape, dtype in kinds]
    graph = graph_of(make, *typed)
    arrays = [array_of(*kind) for kind in kinds]
    got = run(graph, lower(graph), arrays)
    expected = want(*arrays)
    for own, other in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(own, np.asarray(other), rtol=2e-2, atol=8e-3)


@pytest.mark.parametrize("dtype", [F, "int8", "uint8", "int32", "int64"])
def test_extremes_and_their_places_in_rows_of_limits_and_nan(dtype):
    is_float = dtype == F
    ends = [-np.inf, np.inf, np.finfo(F).min] if is_float else [np.iinfo(dtype).min, np.iinfo(dtype).max]
    x = drawn((len(ends) + 3, 37), dtype)
    x[: len(ends)] = np.array(ends, dtype)[:, None]
    x[len(ends), :9] = ends[0]
    if is_float:
        x[-2, 5] = x[-2, 30] = x[-1, 0] = np.nan
    names = ("max", "min")

    def make(v):
        places = [building.arg_extreme(f"arg{name}", v, 1, keepdims=False) for name in names]
        return (*places, *(building.reduce_axes(name, v, (1,), keepdims=False) for name in names))

    graph = graph_of(make, (x.shape, dtype))
    got = run(graph, lower(graph), [x])
    for own, want in zip(got, (x.argmax(1), x.argmin(1), x.max(1), x.min(1)), strict=True):
        np.testing.assert_array_equal(own, want)


@pytest.mark.parametrize(("shape", "axis"), [((1, 300_000), 1), ((15_000, 3), 0)])
def test_long_sums_keep_what_rounding_takes_away(shape, axis):
    x = np.full(shape, 0.1, F)
    graph = graph_of(lambda v: building.reduce_axes("sum", v, (axis,), keepdims=False), (shape, F))
    (got,) = run(graph, lower(graph), [x])
    np.testing.assert_allclose(got, x.sum(axis, np.float64), rtol=1e-6)
    for limit in (np.inf, np.nan):
        x[0, 0] = limit
        (got,) = run(graph, lower(graph), [x])
        np.testing.assert_array_equal(got[0], limit)


def residual_norm(x, y):
    total = building.elementwise("add", x, y)
    return total, building.layer_norm(total, Constant(WEIGHT), Constant(BIAS), (1,), 1e-5)


def test_a_residual_sum_and_the_norm_behind_it_are_one_kernel_with_two_results():
    graph = graph_of(residual_norm, ((10, 48), F), ((10, 48), F))
    made = lower(graph)
    (call,) = made.calls
    assert len(call.rest.writes) == 2
    assert call.program.source.count("tl.sum") == 2  # mean and variance, of values in registers
    x, y = drawn((10, 48)), drawn((10, 48))
    total, normed = run(graph, made, [x, y])
    np.testing.assert_allclose(total, x + y, rtol=1e-6)
    np.testing.assert_allclose(normed, norm(x + y, WEIGHT, BIAS), rtol=1e-3, atol=1e-4)


def test_rows_that_are_alike_beside_others():
    """A load of columns alone under a condition of rows alone, in tiles of several rows."""

    def make(x, row):
        return building.softmax(building.concat([building.broadcast(row, (3, 40)), x], 0), 1)

    graph = graph_of(make, ((700, 40), F), ((1, 40), F))
    (call,) = lower(graph).calls
    assert "tl.arange(0, 4))[:, None]" in call.program.source
    x, row = drawn((700, 40)), drawn((1, 40))
    (got,) = run(graph, lower(graph), [x, row])
    np.testing.assert_allclose(got, softmax(np.concatenate([row, row, row, x])), rtol=1e-4, atol=1e-6)


def test_layers_that_are_alike_are_one_program():
    square = Constant(drawn((48, 48)))

    def make(x):
        for _ in range(3):
            x = residual_norm(building.matmul(x, square), x)[1]
        return x

    names = [(call.name, call.program.source) for call in lower(graph_of(make, ((10, 48), F))).calls]
    norms = [source for name, source in names if "layer_norm" in name]
    assert len(norms) == 3
    assert norms[0] == norms[1]  # the last one writes an output


def test_what_lies_between_kernels_has_16_bits_and_outputs_their_own_dtype():
    def make(x):
        return building.softmax(building.permute(building.softmax(x, 1), (1, 0)), 1)

    made = lower(graph_of(make, ((64, 48), F)))
    dtypes = {
        region.role: buffer.dtype
        for call in made.calls
        for buffer in call.program.tensors.values()
        for region in [call.regions[buffer.tensor]]
    }
    assert dtypes == {"input": "float32", "arena": "bfloat16", "output": "float32"}


def test_masks_of_16_bits_are_finite():
    lowest = Constant(np.full((1 << 16,), np.finfo(np.float32).min, np.float32))
    graph = graph_of(lambda x: building.elementwise("add", x, lowest), ((1 << 16,), F))
    made = lower(graph)
    (form,) = made.forms
    assert form.dtype == "bfloat16"
    assert np.isfinite(made.value(form).astype(np.float32)).all()


def test_grouped_convolutions_are_loops():
    weight = drawn((8, 2, 3, 3))
    attributes = {"strides": (2, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 4, "layout": "NCHW"}
    bias = drawn((8,))

    def make(x):
        kind = TensorType((2, 8, 4, 9), F)
        operands = (x, Constant(weight), Constant(bias))
        return Node("anatune.convolution", operands, kind, {**attributes, "epilogue": ("bias", "relu6")})

    graph = graph_of(make, ((2, 8, 7, 9), F))
    x = drawn((2, 8, 7, 9))
    (got,) = run(graph, lower(graph), [x])
    whole = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = np.zeros((2, 8, 4, 9))
    for channel in range(8):
        for tap in range(18):
            c, r, s = tap // 9, tap // 3 % 3, tap % 3
            plane = whole[:, channel // 2 * 2 + c, r : r + 7 : 2, s : s + 9]
            want[:, channel] += plane * weight[channel, c, r, s]
    np.testing.assert_allclose(got, np.clip(want + bias[:, None, None], 0, 6), rtol=2e-2, atol=2e-2)


def test_sums_between_kernels_are_float32_and_masks_stay_finite():
    """Of rows that are too long for one kernel; of float16, the sum of squares would be infinite."""
    scale = Constant(np.full((1, 20000), 2.0, np.float32))

    def make(x, seen):
        hidden = building.elementwise("multiply", building.elementwise("subtract", seen, 1.0), 3.4e38)
        ones, zeros = Constant(np.ones(20000, np.float32)), Constant(np.zeros(20000, np.float32))
        normed = building.layer_norm(building.elementwise("multiply", x, scale), ones, zeros, (1,), 1e-5)
        total = building.elementwise("add", normed, hidden)
        return normed, building.elementwise("subtract", total, hidden)

    graph = graph_of(make, ((2, 20000), F), ((2, 20000), F))
    x = 50 * drawn((2, 20000))
    seen = (np.arange(40000).reshape(2, 20000) % 3 > 0).astype(F)
    normed, other = run(graph, lower(graph, "float16"), [x, seen])
    np.testing.assert_allclose(normed, norm(2 * x, 1.0, 0.0), rtol=2e-2, atol=2e-2)
    assert np.isfinite(other).all()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda x: building.cumulative("cumsum", x, 1), (3, 9)),
        (lambda x: building.top_indices(x, 3, 1, largest=True), (3, 9)),
        (lambda x: building.argsort(x, 1, descending=False), (3, 9)),
    ],
)
def test_what_has_no_kernel_is_refused_in_one_line(make, kind):
    with refuses(BuildError) as told:
        lower(graph_of(make, (kind, F)))
    assert "\n" not in str(told.value)


def test_an_output_that_is_an_input_is_copied():
    graph = graph_of(lambda x: (x, building.reshape(x, (6,))), ((2, 3), F))
    x = drawn((2, 3))
    first, second = run(graph, lower(graph), [x])
    np.testing.assert_array_equal(first, x)
    np.testing.assert_array_equal(second, x.reshape(6))


def test_numbers_that_stand_in_the_text_are_weights():
    ones = Constant(np.ones((3, 1), np.float32))
    graph = graph_of(lambda x: building.elementwise("multiply", x, ones), ((3, 4), F))
    x = drawn((3, 4))
    np.testing.assert_allclose(run(graph, lower(graph), [x])[0], x)


def test_what_needs_nothing_of_each_other_is_one_launch():
    def make(x, y):
        return (
            building.softmax(x, -1),
            building.elementwise("exp", y),
            building.reduce_axes("sum", x, (0,), keepdims=False),
        )

    graph = graph_of(make, ((70, 33), F), ((41,), F))
    made = lower(graph)
    assert len(made.calls) == 1
    assert made.calls[0].program.source.count("elif program <") == 1
    x, y = drawn((70, 33)), drawn((41,))
    for got, want in zip(run(graph, made, [x, y]), (softmax(x), np.exp(y), x.sum(0)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_what_needs_the_other_is_launched_behind_it():
    def make(x):
        whole = building.reduce_axes("sum", x, (0,), keepdims=False)
        return building.elementwise("multiply", x, whole), building.elementwise("tanh", x)

    graph = graph_of(make, ((9, 7), F))
    made = lower(graph)
    assert len(made.calls) == 2
    x = drawn((9, 7))
    got = run(graph, made, [x])
    np.testing.assert_allclose(got[0], x * x.sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], np.tanh(x), rtol=1e-5, atol=1e-6)
