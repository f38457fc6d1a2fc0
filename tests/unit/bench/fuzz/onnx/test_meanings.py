"""Meanings that the reference evaluator has not, or has otherwise, are those of onnxruntime."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime

from bench.fuzz.onnx.oracle import _is_undefined, evaluated, model_of_step, sampled
from bench.fuzz.oracle import fault
from bench.fuzz.program import Program, Step

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 3, 4)).astype(np.float32)
LARGE = np.array([1e30, -1e30, np.inf, -np.inf, 3e9, 0.0, 0.06, -0.06], np.float32)
STEPS = [
    *(("LRN", 21, [X], {"size": size, "alpha": 0.5, "bias": 1.5}) for size in (1, 3, 5)),
    *(("QuantizeLinear", 21, [LARGE, np.float32(0.02), np.array(7, dtype)], {}) for dtype in ("int8", "uint8")),
    *(("LogSoftmax", 13, [X * factor], {"axis": axis}) for factor in (1, 1e4) for axis in (1, -1)),
    *(("Gelu", 21, [X], {"approximate": word}) for word in ("none", "tanh")),
    ("ReduceSumSquare", 21, [(X * 9).astype(np.int32), np.array([1, 3])], {"keepdims": 0}),
    ("ReduceSumSquare", 21, [(X * 9).astype(np.int32)], {}),
    *(("BatchNormalization", opset, [X, *np.abs(X[0, :, :2, :2].reshape(5, 4).T)], {}) for opset in (9, 13, 21)),
    ("GroupNormalization", 21, [X[:, :4], X[0, :4, 0, 0], X[0, :4, 0, 1]], {"num_groups": 2}),
    ("GroupNormalization", 18, [X[:, :4], X[0, :2, 0, 0], X[0, :2, 0, 1]], {"num_groups": 2}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "opset", "arrays", "own"), STEPS)
def test_a_meaning_is_that_of_onnxruntime(op, opset, arrays, own):
    arrays = [np.asarray(one) for one in arrays]
    step = Step(op, tuple(f"x{place}" for place in range(len(arrays))), ("y",), own)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    model = model_of_step(step, opset, arrays).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    want = session.run(None, dict(zip(step.inputs, arrays, strict=True)))[0]
    wide = [one.astype(np.float64) if one.dtype.kind == "f" else one for one in arrays]
    with np.errstate(all="ignore"):
        got = evaluated(step, opset)(wide)[0]
    assert got.dtype == (np.float64 if want.dtype.kind == "f" else want.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_what_leaves_float32_meanwhile_is_not_compared():
    for op in ("LayerNormalization", "GroupNormalization", "InstanceNormalization"):
        step = Step(op, ("x",), ("y",), {})
        for array, dtype, want in ((X, "float32", False), (X * 1e24, "float32", True), (X * 1e24, "float64", False)):
            assert _is_undefined(step, [array.astype(np.float64)], [dtype], dtype) == want


INFINITE = np.where(np.arange(X.size).reshape(X.shape) % 7, X, np.inf).astype(np.float64)
LAX = [
    ("GatherElements", {"axis": 1}, [X, np.full((2, 1, 3, 4), 5)], [X, np.full((2, 1, 3, 4), -5)]),
    ("GatherElements", {}, [X, np.full((2, 5, 3, 4), -3)], [X, np.full((2, 5, 3, 4), -2)]),
    ("Conv", {"dilations": [2, 1]}, [INFINITE, np.ones((1, 5, 2, 1))], [X, np.ones((1, 5, 2, 1))]),
    ("Attention", {}, [INFINITE, X, X], [np.where(INFINITE > 3, np.nan, X), X, X]),
]


@pytest.mark.parametrize(("op", "own", "open_arrays", "arrays"), LAX)
def test_what_the_reference_has_alone_is_not_compared(op, own, open_arrays, arrays):
    for operands, want in ((open_arrays, True), (arrays, False)):
        step = Step(op, tuple("abc"[: len(operands)]), ("y",), own)
        assert _is_undefined(step, operands, ["float32"] * len(operands), "") == want
    plain = Step("Conv", ("a", "b"), ("y",), {})
    assert not _is_undefined(plain, LAX[2][2], ["float32"] * 2, "")


def sampled_of(x, *steps, **weights):
    """Return the samples of the last value of steps that begin with an input x of float32."""
    program = Program("onnx", 0, steps, {"x": (x.astype("float32"),)}, weights, steps[-1].outputs, {"opset": 23})
    return sampled(program, 0)[steps[-1].outputs[-1]]


def says(values, got):
    samples, dtype, exact, _ = values
    return fault(samples, np.asarray(got, dtype), dtype, exact=exact)


def test_a_zero_of_float32_inside_of_an_operator_goes_through_those_behind_it():
    """The squares of a norm are infinite in float32, so that it has zeros, and the next norm has its term."""
    ones = np.ones(2, "float32")
    norms = Step("RMSNormalization", ("x", "w"), ("y",)), Step("LayerNormalization", ("y", "w", "w"), ("z",))
    for factor, is_right in ((1e29, True), (1.0, False)):
        values = sampled_of(np.array([[3.0, -5.0], [4.0, 2.0]]) * factor, *norms, w=ones)
        assert (not says(values, np.ones((2, 2)))) == is_right
        assert not says(values, values[0][1])


@pytest.mark.parametrize(("op", "most"), [("Tan", 1e5), ("Sin", 1.0), ("Cos", 1.0)])
def test_angles_that_rounding_decides_may_have_all_values(op, most):
    steps = Step("MatMul", ("x", "w"), ("y",)), Step(op, ("y",), ("z",))
    weights = np.array([[1.0], [1.0], [-1.0]], "float32")
    large = sampled_of(np.array([[3e25, 7e25, 2e25]]), *steps, w=weights)
    small = sampled_of(np.array([[0.3, 0.7, 0.2]]), *steps, w=weights)
    for got in (most, -most, most / 3):
        assert not says(large, [[got]])
        assert says(small, [[got]])
    assert says(large, [[np.nan]])
    assert says(sampled_of(np.array([[3e25]]), Step(op, ("x",), ("z",))), [[most * 0.99]])  # its angle is exact


@pytest.mark.parametrize("op", ["TopK", "ArgMax", "ArgMin"])
def test_any_of_the_elements_that_rounding_makes_largest_is_right(op):
    """Twelve angles are open, and each sample chooses another one of them."""
    outputs, own = (("v", "z"), {"axis": 1}) if op == "TopK" else (("z",), {"axis": 1, "keepdims": 1})
    operands = ("s", "k") if op == "TopK" else ("s",)
    steps = Step("MatMul", ("w", "x"), ("y",)), Step("Sin", ("y",), ("s",)), Step(op, operands, outputs, own)
    open_angles = np.concatenate([np.full((3, 12), 3e25), np.full((3, 1), 0.0)], 1)
    rows = {"w": np.array([[1.0, 1.0, -0.5]], "float32"), "k": np.array([1])}
    values = sampled_of(open_angles, *steps, **rows)
    assert all(not says(values, [[place]]) for place in range(12))
    assert says(values, [[13]])
    apart = sampled_of(np.array([[0.1, 0.2, 0.9, 0.4]] * 3), *steps, **rows)
    assert not says(apart, [[{"ArgMin": 0}.get(op, 2)]])
    assert says(apart, [[1]])
