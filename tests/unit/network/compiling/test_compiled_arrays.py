"""Kinds of arrays and tensors x what they are handed to: each is taken as its elements are, or refused in one line."""

import functools

import numpy as np
import pytest

import anatune
from anatune.errors import AnatuneError

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")

X = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((8, 5)).astype(np.float32)
WIDE = np.zeros((12, 16), np.float32)
WIDE[::2, ::2] = X


class Own(np.ndarray):
    """A subclass."""


def memory_mapped(folder):
    X.tofile(folder / "x.bin")
    return np.memmap(folder / "x.bin", np.float32, "r", shape=X.shape)


def read_only():
    array = X.copy()
    array.flags.writeable = False
    return array


def unaligned():
    return np.frombuffer(b"?" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(X.shape)


TAKEN = {
    "other byte order": lambda _: X.astype(X.dtype.newbyteorder()),
    "column-major": lambda _: np.asfortranarray(X),
    "strided": lambda _: WIDE[::2, ::2],
    "reversed": lambda _: X[::-1, ::-1].copy()[::-1, ::-1],
    "without strides": lambda _: np.broadcast_to(X[:1], X.shape),
    "read-only": lambda _: read_only(),
    "unaligned": lambda _: unaligned(),
    "memory-mapped": memory_mapped,
    "subclass": lambda _: X.view(Own),
    "masked nowhere": lambda _: np.ma.array(X),
}
REFUSED = {
    "masked": lambda: np.ma.array(X, mask=X > 0),
    "objects": lambda: X.astype(object),
    "text": lambda: X.astype(str),
    "bytes": lambda: X.astype(bytes),
    "dates": lambda: np.zeros(X.shape, "M8[s]"),
    "fields": lambda: np.zeros(X.shape, [("a", np.float32)]),
    "complex": lambda: X.astype(np.complex64),
    "scalar": lambda: np.float32(1),
    "without dimensions": lambda: np.array(1, np.float32),
    "ragged": lambda: [[1.0], [2.0, 3.0]],
    "nothing": lambda: None,
}


@functools.cache
def network():
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, X.shape)],
        [helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(W, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@functools.cache
def model():
    return anatune.compile(network(), threads=1)


@functools.cache
def session():
    from anatune.adapters.onnx import InferenceSession

    return InferenceSession(network(), threads=1)


@functools.cache
def kernel():
    return anatune.build(anatune.plan(anatune.matmul(6, 5, 8), "host", threads=1).best)


def prepared(given):
    model().prepared(given)()
    return model()(given)


ENTRIES = {
    "call": lambda given: model()(given),
    "prepared": prepared,
    "example": lambda given: anatune.compile(network(), [given], threads=1, check=False)(given),
    "session": lambda given: session().run(None, {"x": given})[0],
    "kernel": lambda given: kernel()(given, W),
}


@pytest.mark.parametrize("kind", TAKEN)
@pytest.mark.parametrize("entry", ENTRIES)
def test_arrays_of_any_layout_are_taken(entry, kind, tmp_path):
    given = TAKEN[kind](tmp_path)
    want = np.array(given, np.float32).astype(np.float64) @ W
    np.testing.assert_allclose(ENTRIES[entry](given), want, atol=1e-5)


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_no_array_of_numbers_is_refused_in_one_line(entry, kind):
    with pytest.raises(AnatuneError) as caught:
        ENTRIES[entry](REFUSED[kind]())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def tensors():
    """Yield kinds of tensors: each with its elements, or None where it has none that can be taken."""
    torch = pytest.importorskip("torch")
    t = torch.from_numpy(X.copy())
    yield "dense", t, X
    yield "asks for gradients", t.clone().requires_grad_(), X
    yield "negative bit", torch._neg_view(t), -X
    yield "conjugate bit, negative", torch.complex(t, t).conj().imag, -X
    yield "strided", torch.from_numpy(WIDE.copy())[::2, ::2], X
    yield "without strides", t[:1].expand(6, 8), np.broadcast_to(X[:1], X.shape)
    yield "sparse", t.to_sparse(), None
    yield "sparse rows", t.to_sparse_csr(), None
    yield "meta", t.to("meta"), None
    yield "complex with the conjugate bit", torch.complex(t, t).conj(), None
    yield "8-bit floats", t.to(torch.float8_e4m3fn), None
    yield "bfloat16 with the negative bit", torch._neg_view(t.bfloat16()), None


@pytest.mark.parametrize("entry", ["call", "prepared", "example", "session"])
def test_tensors_of_any_kind_are_taken_or_refused_in_one_line(entry):
    for kind, tensor, elements in tensors():
        if elements is None:
            with pytest.raises(AnatuneError) as caught:
                ENTRIES[entry](tensor)
            assert "\n" not in str(caught.value), kind
        else:
            want = np.asarray(elements).astype(np.float64) @ W
            np.testing.assert_allclose(np.asarray(ENTRIES[entry](tensor)), want, atol=1e-5, err_msg=kind)


def test_negative_bits_of_bfloat16_are_resolved():
    torch = pytest.importorskip("torch")
    from anatune.network.graph.torch.arrays import array_of_torch

    t = torch.tensor([1.5, -2.0, 0.0]).bfloat16()
    assert array_of_torch(torch._neg_view(t)).astype(np.float32).tolist() == [-1.5, 2.0, 0.0]


def test_arrays_that_a_module_is_compiled_for_may_be_of_any_layout(tmp_path):
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear(8, 5).eval()
    for kind in ("other byte order", "reversed", "read-only"):
        given = TAKEN[kind](tmp_path)
        found = anatune.compile(linear, given, threads=1, check=False)(given)
        with torch.no_grad():
            np.testing.assert_allclose(found, linear(torch.from_numpy(X)).numpy(), atol=1e-5, err_msg=kind)
