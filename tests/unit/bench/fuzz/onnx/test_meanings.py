"""Meanings that the reference evaluator has not, or has otherwise, are those of onnxruntime."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime

from bench.fuzz.onnx.oracle import _is_undefined, evaluated, model_of_step
from bench.fuzz.program import Step

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 3, 4)).astype(np.float32)
LARGE = np.array([1e30, -1e30, np.inf, -np.inf, 3e9, 0.0, 0.06, -0.06], np.float32)
STEPS = [
    *(("LRN", 21, [X], {"size": size, "alpha": 0.5, "bias": 1.5}) for size in (1, 3, 5)),
    *(("QuantizeLinear", 21, [LARGE, np.float32(0.02), np.array(7, dtype)], {}) for dtype in ("int8", "uint8")),
    *(("LogSoftmax", 13, [X * factor], {"axis": axis}) for factor in (1, 1e4) for axis in (1, -1)),
    ("Det", 21, [X[0, :, :, :3] * 1e9], {}),
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
