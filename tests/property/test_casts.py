"""Random element-wise chains of comparisons, truth values and numbers of all types, compiled whole, beside NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import anatune

pytest.importorskip("tvm", reason="code generation needs apache-tvm")
onnx = pytest.importorskip("onnx", reason="models are ONNX files")
from onnx import helper, numpy_helper  # noqa: E402

Array = Any
Step = Callable[[Array], Array]
FLOATS = ("float32", "float16")
INTEGERS = ("int8", "uint8", "int32", "int64")
SHAPE = (3, 37)
"""Two vectors and what is left in a row."""


class Chain:
    """Values of one shape, each computed in NumPy and as a node of ONNX."""

    def __init__(self, number: int, random: np.random.Generator, given: Array) -> None:
        self.random, self.prefix = random, f"c{number}"
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.values: list[tuple[str, Array]] = [("x", given)]
        self.text: list[str] = []

    def pick(self, *values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def value(self, *dtypes: str) -> tuple[str, Array]:
        """Return one of the last values, cast to one of some types."""
        name, array = self.pick(*self.values[-3:])
        dtype = self.pick(*dtypes)
        return (name, array) if array.dtype == dtype else self.cast(name, array, dtype)

    def add(self, array: Array, kind: str, *inputs: str, **attributes: Any) -> tuple[str, Array]:
        name = f"{self.prefix}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        self.values.append((name, array))
        self.text.append(f"{kind} {array.dtype}")
        return self.values[-1]

    def cast(self, name: str, array: Array, dtype: str) -> tuple[str, Array]:
        low, high = (0, 100) if "uint8" in (dtype, array.dtype.name) else (-100, 100)
        if array.dtype != bool and dtype in INTEGERS:  # what does not fit is not defined
            limits = [self.known(one, array.dtype.name) for one in (low, high)]
            name, array = self.add(np.clip(array, low, high).astype(array.dtype), "Clip", name, *limits)
        return self.add(array.astype(dtype), "Cast", name, to=int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))

    def known(self, number: float, dtype: str) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(number, dtype), f"{self.prefix}_w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def step(self) -> None:
        self.pick(*STEPS)(self)

    # ---- steps ----

    def compare(self) -> None:
        name, array = self.value("float32", "int32", "int64")
        kind, compute = self.pick(("Greater", np.greater), ("Less", np.less), ("Equal", np.equal))
        number = self.pick(0, 1, 2)
        self.add(compute(array, np.asarray(number, array.dtype)), kind, name, self.known(number, array.dtype.name))

    def logic(self) -> None:
        (one, first), (other, second) = self.value("bool"), self.value("bool")
        kind, compute = self.pick(("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor))
        self.add(compute(first, second), kind, one, other)

    def invert(self) -> None:
        name, array = self.value("bool")
        self.add(~array, "Not", name)

    def extreme(self) -> None:
        one, first = self.value("float32", *FLOATS, "int32", "int64")
        kind, compute = self.pick(("Max", np.maximum), ("Min", np.minimum))
        if self.pick(True, False):
            number = self.pick(0, 1, -1)
            other, second = self.known(number, first.dtype.name), np.asarray(number, first.dtype)
        else:
            other, second = self.value(first.dtype.name)
        self.add(compute(first, second), kind, one, other)

    def alone(self) -> None:
        name, array = self.value(*FLOATS, "float32", "int32")
        kind, compute = self.pick(("Relu", lambda x: np.maximum(x, 0)), ("Abs", np.abs), ("Neg", np.negative))
        self.add(compute(array).astype(array.dtype), kind, name)

    def clip(self) -> None:
        name, array = self.value("float32", "float16", "int32", "int64", "uint8", "int8")
        limits = [self.known(number, array.dtype.name) for number in (0, 3)]
        self.add(np.clip(array, 0, 3), "Clip", name, *limits)

    def combine(self) -> None:
        one, first = self.value("float32", "int32", "int64")
        other, second = self.value(first.dtype.name)
        kind, compute = self.pick(("Add", np.add), ("Sub", np.subtract))
        self.add(compute(first, second), kind, one, other)

    def choose(self) -> None:
        mask, (one, first) = self.value("bool"), self.value("float32", "int32", "uint8", "bool")
        other, second = self.value(first.dtype.name)
        self.add(np.where(mask[1], first, second), "Where", mask[0], one, other)

    def reduce(self) -> None:
        """The extremes of rows, beside each element."""
        name, array = self.value("float32", "int32")
        kind, compute = self.pick(("ReduceMax", np.max), ("ReduceMin", np.min))
        rows = self.add(compute(array, 1, keepdims=True), kind, name, axes=[1], keepdims=1)
        self.values.pop()
        self.add(array - rows[1], "Sub", name, rows[0])


STEPS: list[Callable[[Chain], None]] = [
    Chain.compare, Chain.compare, Chain.logic, Chain.invert, Chain.extreme, Chain.extreme, Chain.alone, Chain.clip,
    Chain.combine, Chain.choose, Chain.reduce,
]  # fmt: skip


def wrong_chains(seed: int, count: int) -> list[str]:
    """Return which of some random chains come out wrong, each as its steps."""
    random = np.random.default_rng(seed)
    given = random.integers(-2, 4, SHAPE).astype(np.float32)
    chains = [Chain(number, random, given) for number in range(count)]
    for chain in chains:
        for _ in range(int(random.integers(2, 7))):
            chain.step()
    nodes = [node for chain in chains for node in chain.nodes]
    outputs = []
    for chain in chains:
        name, array = chain.values[-1]
        nodes.append(helper.make_node("Identity", [name], [f"{chain.prefix}_out"]))
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        outputs.append(helper.make_tensor_value_info(f"{chain.prefix}_out", kind, array.shape))
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, SHAPE)]
    graph = helper.make_graph(nodes, "casts", inputs, outputs, [one for chain in chains for one in chain.weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = anatune.compile(model, threads=1, check=False)(given)
    return [
        "; ".join(chain.text) for chain, one in zip(chains, found, strict=True)
        if one.dtype != chain.values[-1][1].dtype or not np.array_equal(one, chain.values[-1][1])
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_truth_values_and_numbers_are_those_of_numpy(seed: int) -> None:
    assert wrong_chains(seed, 20) == []
