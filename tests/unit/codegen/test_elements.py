"""Expressions that are equal for real numbers and differ for those of computers: what NumPy computes, and no other."""

import re

import numpy as np
import pytest

pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")
helper = onnx.helper

NUMBERS = [0.3, -0.3, 0.0, -0.0, 1.0, -7.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, 1e-6, 1e30, 16777217.0, 2.5]
ROUNDING = 12582912.0
"""Sums of it are whole numbers."""
MEANINGS = {
    "Abs": np.abs, "Add": np.add, "And": np.logical_and, "Div": np.divide, "Equal": np.equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "Less": np.less, "LessOrEqual": np.less_equal, "Mul": np.multiply,
    "Neg": np.negative, "Not": np.logical_not, "Or": np.logical_or, "Sub": np.subtract, "Where": np.where,
    "Sum": lambda x: x.sum(keepdims=True), "Wide": lambda x: x.astype(np.int64),
}  # fmt: skip
COMPARED = [
    ("Not", (kind, *pair))
    for kind in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
    for pair in (("x", "y"), ("x", "x"), ("x", 1.0))
]
EXPRESSIONS = [
    ("Sub", ("Add", "x", ROUNDING), ROUNDING), ("Add", ("Add", "x", 1e8), -1e8), ("Add", ("Sub", "x", 1e8), 1e8),
    ("Add", ("Add", "x", 1e8), 1.0), ("Sub", ("Add", "x", np.inf), np.inf), ("Sub", 1.0, ("Sub", 1.0, "x")),
    *((kind, "x", zero) for kind in ("Add", "Sub", "Mul", "Div") for zero in (0.0, -0.0)),
    *((kind, zero, "x") for kind in ("Add", "Sub", "Mul", "Div") for zero in (0.0, -0.0)),
    ("Sub", "x", "x"), ("Div", "x", "x"), ("Add", "x", ("Neg", "x")), ("Add", ("Mul", "x", 0.0), "y"),
    ("Sub", ("Add", "x", "y"), "y"), ("Sub", ("Add", "x", "y"), "x"), ("Sub", "x", ("Add", "x", "y")),
    ("Sub", "y", ("Add", "x", "y")), ("Add", ("Sub", "x", "y"), "y"), ("Sub", ("Sub", "x", "y"), ("Sub", "x", "y")),
    ("Sub", ("Add", "x", "x"), "x"), ("Div", ("Mul", "x", "y"), "y"), ("Mul", ("Div", "x", 1e30), 1e30),
    ("Mul", ("Mul", "x", 1e30), 1e-30), ("Mul", ("Mul", "x", 1e-30), 1e30), ("Equal", ("Add", "x", 0.0), "x"),
    ("Equal", ("Sub", "x", "x"), 0.0), ("Equal", ("Neg", ("Neg", "x")), "x"), ("Equal", ("Abs", "x"), ("Abs", "x")),
    ("Less", "x", ("Add", "x", 1.0)), ("Less", ("Add", "x", 1e-9), 0.0), ("Less", ("Mul", "x", 1e30), 1e38),
    *COMPARED,
    ("Or", ("Less", "x", "y"), ("GreaterOrEqual", "x", "y")), ("Or", ("LessOrEqual", "x", "y"), ("Greater", "x", "y")),
    ("And", ("Less", "x", "y"), ("GreaterOrEqual", "x", "y")),
    ("Or", ("Equal", "x", "y"), ("Not", ("Equal", "x", "y"))),
    *(("Where", condition, "x", "y") for condition in COMPARED), ("Where", ("Less", "x", 0.0), ("Mul", "x", 0.0), "x"),
]  # fmt: skip

WHOLE = [
    ("Wide", ("Add", "x", "x")), ("Wide", ("Mul", "x", "y")), ("Wide", ("Sub", "x", "y")), ("Wide", ("Neg", "x")),
    ("Less", "x", ("Add", "x", 1.0)), ("Greater", ("Add", "x", "y"), "x"), ("Equal", ("Mul", "x", "y"), "y"),
    ("Wide", ("Add", ("Abs", "x"), "y")), ("Sub", ("Mul", "x", 5.0), ("Mul", "x", 3.0)),
    ("Sum", ("Wide", ("Mul", "x", 3.0))), ("Sub", ("Add", "x", "y"), "y"),
    ("Less", ("Sub", "x", "y"), 0.0), ("Less", ("Mul", "x", 2.0), ("Mul", "y", 2.0)), ("Sub", "x", ("Mul", "y", "y")),
]  # fmt: skip
"""Sums and products of elements that leave their dtype; "Wide" is the same number in int64."""


def limits(dtype):
    """Return the numbers of a dtype that are next to its ends and to zero."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([least, least + 1, 0, 1, 2, 3, 7, most // 2, most - 1, most, *([-1, -5] if least else [])], dtype)


class Writer:
    """Writes expressions as a network's nodes, of inputs of their own each: TVM joins no two of them."""

    def __init__(self, dtype):
        self.dtype, self.kind = np.dtype(dtype), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.nodes, self.constants, self.inputs, self.outputs, self.want = [], [], {}, [], []
        numbers = np.array(NUMBERS, dtype) if self.dtype.kind == "f" else limits(self.dtype)
        first, second = np.meshgrid(numbers, numbers)
        self.operands = {"x": first.ravel(), "y": second.ravel()}

    def add(self, expression):
        with np.errstate(all="ignore"):
            name, value = self.write(expression, len(self.outputs))
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.outputs.append(helper.make_tensor_value_info(name, kind, value.shape))
        self.want.append(value)

    def write(self, expression, number):
        if isinstance(expression, str):
            name = f"{expression}{number}"
            self.inputs[name] = self.operands[expression]
            return name, self.inputs[name]
        if isinstance(expression, float):
            self.constants.append(
                onnx.numpy_helper.from_array(np.array(expression, self.dtype), f"c{len(self.constants)}")
            )
            return self.constants[-1].name, self.dtype.type(expression)
        kind, *parts = expression
        names, values = zip(*(self.write(part, number) for part in parts), strict=True)
        own = {"to": onnx.TensorProto.INT64} if kind == "Wide" else {}
        kind = {"Sum": "ReduceSum", "Wide": "Cast"}.get(expression[0], kind)
        self.nodes.append(helper.make_node(kind, names, [f"t{len(self.nodes)}"], **own))
        return self.nodes[-1].output[0], MEANINGS[expression[0]](*values)

    def run(self):
        from anatune.adapters.onnx import InferenceSession

        inputs = [helper.make_tensor_value_info(name, self.kind, one.shape) for name, one in self.inputs.items()]
        graph = helper.make_graph(self.nodes, "network", inputs, self.outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return InferenceSession(model.SerializeToString(), threads=1).run(None, self.inputs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_rule_of_real_numbers_is_applied(dtype):
    writer = Writer(dtype)
    for expression in EXPRESSIONS:
        writer.add(expression)
    wrong = []
    for expression, got, want in zip(EXPRESSIONS, writer.run(), writer.want, strict=True):
        is_same = (got == want) | ((got != got) & (want != want))
        if want.dtype != bool:
            is_same &= (want != 0) | (np.signbit(got) == np.signbit(want))
        if not is_same.all():
            wrong.append((expression, got[~is_same][:3], want[~is_same][:3]))
    assert not wrong


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_whole_numbers_wrap(dtype):
    expressions = [
        one for one in WHOLE if dtype.startswith("int") or not {"Neg", "Abs"} & set(re.findall(r"\w+", str(one)))
    ]
    writer = Writer(dtype)
    for expression in expressions:
        writer.add(expression)
    for expression, got, want in zip(expressions, writer.run(), writer.want, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=str(expression))
