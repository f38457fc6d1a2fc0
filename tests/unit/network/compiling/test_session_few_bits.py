"""Whole models with weights of few bits: any number of rows from one packed form of them."""

import numpy as np
import pytest

import anatune
from anatune.templates import SCALED

onnx = pytest.importorskip("onnx")
pytest.importorskip("tvm")

STEP = anatune.scaled_matmul(1, 64, 64, dtype="float32xint4", group=32)
if not SCALED.takes(STEP, anatune.hardware("host")):
    pytest.skip("needs AVX2, whose integers the template multiplies", allow_module_level=True)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A model of two products of 4 and 8 bits, with a bias, a rectifier and a residual, and its matrices."""
    from onnx import TensorProto, helper, numpy_helper

    numbers = np.random.default_rng(0)
    weights, matrices = [], []
    for number, (columns, length, bits) in enumerate(((96, 64, 4), (64, 96, 8))):
        packed = numbers.integers(0, 256, (columns, length // 32, 4 * bits), dtype=np.uint8)
        scales = numbers.uniform(0.01, 0.03, (columns, length // 32)).astype(np.float32) * (1 if bits == 4 else 0.06)
        weights += [numpy_helper.from_array(packed, f"w{number}"), numpy_helper.from_array(scales, f"s{number}")]
        plain = np.stack([packed & 15, packed >> 4], axis=-1) if bits == 4 else packed
        plain = plain.reshape(columns, -1, 32) - float(1 << (bits - 1))
        matrices.append((plain * scales[..., None]).reshape(columns, length).astype(np.float64))
    bias = numbers.standard_normal(96).astype(np.float32)
    weights.append(numpy_helper.from_array(bias, "bias"))
    own = {"domain": "com.microsoft", "block_size": 32}
    nodes = [
        helper.make_node("MatMulNBits", ["x", "w0", "s0", "", "", "bias"], ["h"], K=64, N=96, bits=4, **own),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMulNBits", ["r", "w1", "s1"], ["z"], K=96, N=64, bits=8, **own),
        helper.make_node("Add", ["z", "x"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 64]) for name in "xy"]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "few_bits", ends[:1], ends[1:], weights), opset_imports=sets)
    path = tmp_path_factory.mktemp("few_bits") / "model.onnx"
    onnx.save(model, path)

    def compute(x):
        return np.maximum(x @ matrices[0].T + bias, 0.0) @ matrices[1].T + x

    return path, compute


def test_any_number_of_rows_is_as_exact_as_float32(written):
    path, compute = written
    model = anatune.compile(path, sizes={"rows": "1..40"}, threads=2)
    assert [(one.template, one.epilogue) for one in model.summary.kernels] == [
        ("scaled", ("bias", "relu")),
        ("scaled", ("add",)),
    ]
    assert model.summary.check.error < 1e-6
    assert model.summary.weight_bytes < 2 * 64 * 96 * 1.5  # of 4 and 8 bits, with scales
    for rows in (1, 2, 7, 40):
        x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
        want = compute(x.astype(np.float64))
        assert np.abs(np.from_dlpack(model(x)) - want).max() < 1e-6 * np.abs(want).max()


def test_relaxed_accuracy_rounds_activations(written):
    path, compute = written
    x = np.random.default_rng(3).standard_normal((1, 64)).astype(np.float32)
    model = anatune.compile(path, [x], accuracy="relaxed", threads=1)
    want = compute(x.astype(np.float64))
    error = np.abs(np.from_dlpack(model(x)) - want).max() / np.abs(want).max()
    assert 1e-5 < error < 0.03
