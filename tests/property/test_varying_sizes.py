"""Random small networks whose sizes vary, compiled once, at several sizes and both ends of the ranges, beside NumPy."""

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
Compute = Callable[[Array], Array]
MOST = 1 << 15
"""Elements of a tensor at most, where sizes are largest."""


class Network:
    """A chain of operators of one input, as functions of NumPy and as nodes of ONNX."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.computes: list[Compute] = []
        self.text: list[str] = []
        self.ranges = {"B": self.pick((1, 4), (1, 8), (2, 5)), "T": self.pick((1, 4), (1, 9), (1, 12), (2, 7), (1, 30))}
        self.dims: list[int | str] = list(self.pick(("B", "T", 4), ("B", 17, 3), ("B", "T", 1), ("T", 5), ("B", 19, 1)))
        self.ranges = {name: ends for name, ends in self.ranges.items() if name in self.dims}
        self.name = "x"
        self.some = [self.drawn(sizes) for sizes in self.sizes()]
        """What the chain has come to at several sizes, the largest last."""

    def sizes(self) -> list[dict[str, int]]:
        least, most = ({name: ends[end] for name, ends in self.ranges.items()} for end in (0, 1))
        middle = {name: (ends[0] + ends[1]) // 2 for name, ends in self.ranges.items()}
        return [least, middle, {**middle, **dict(list(most.items())[:1])}, most]

    def drawn(self, sizes: dict[str, int]) -> Array:
        shape = [sizes.get(str(one), one) for one in self.dims]
        return np.random.default_rng(5).standard_normal(shape).astype(np.float32)

    def pick(self, *values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def known(self, values: Any, dtype: str = "int64") -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def part(self, begin: int, end: int, axis: int, step: int = 1) -> str:
        return self.node("Slice", self.name, *(self.known([one]) for one in (begin, end, axis, step)))

    def become(self, name: str, compute: Compute, text: str) -> None:
        self.name = name
        self.some = [compute(one) for one in self.some]
        self.text.append(text)

    @property
    def rank(self) -> int:
        return int(self.some[0].ndim)

    def axis(self) -> int:
        return int(self.random.integers(self.rank))

    def varies(self, axis: int) -> bool:
        return len({one.shape[axis] for one in self.some}) > 1

    def least(self, axis: int) -> int:
        return min(one.shape[axis] for one in self.some)

    def step(self) -> None:
        if self.rank:
            self.pick(*STEPS)(self)

    # ---- steps ----

    def last(self) -> None:
        axis, index = self.axis(), self.pick(-1, -1, 0)
        if self.rank > 1:
            name = self.node("Gather", self.name, self.known(index), axis=axis)
            self.become(name, lambda x: x.take(index, axis), f"[{index}] along {axis}")

    def ends(self) -> None:
        axis = self.axis()
        name = self.node("Gather", self.name, self.known([0, -1]), axis=axis)
        self.become(name, lambda x: x.take([0, -1], axis), f"[0, -1] along {axis}")

    def slice(self) -> None:
        axis, begin, end = self.axis(), *self.pick((-1, 1 << 40), (0, 1), (1, 1 << 40), (0, -1), (-2, -1))
        if self.least(axis) > 1 or begin + end in (1, (1 << 40) - 1):
            where = (*[slice(None)] * axis, slice(begin, end))
            self.become(self.part(begin, end, axis), lambda x: x[where], f"[{begin}:{end}] along {axis}")

    def flip(self) -> None:
        axis = self.axis()
        name = self.part(-1, -(1 << 40), axis, -1)
        self.become(name, lambda x: np.flip(x, axis), f"flip along {axis}")

    def roll(self) -> None:
        axis = self.axis()
        if self.least(axis) > 1 or self.pick(True, False):
            name = self.node("Concat", self.part(1, 1 << 40, axis), self.part(0, 1, axis), axis=axis)
            self.become(name, lambda x: np.roll(x, -1, axis), f"roll along {axis}")

    def twice(self) -> None:
        axis = self.axis()
        if self.some[-1].size * 2 <= MOST:
            name = self.node("Concat", self.name, self.node("Neg", self.name), axis=axis)
            self.become(name, lambda x: np.concatenate([x, -x], axis), f"twice along {axis}")

    def pad(self) -> None:
        axis, before, after = self.axis(), self.pick(0, 1), self.pick(1, 2)
        pads = np.zeros((self.rank, 2), int)
        pads[axis] = before, after
        name = self.node("Pad", self.name, self.known(pads.T.reshape(-1)))
        self.become(name, lambda x: np.pad(x, pads), f"pad {before}, {after} along {axis}")

    def permute(self) -> None:
        axes = [int(one) for one in self.random.permutation(self.rank)]
        self.become(self.node("Transpose", self.name, perm=axes), lambda x: x.transpose(axes), f"permute {axes}")

    def merge(self) -> None:
        if self.rank > 1 and (not self.varies(self.rank - 1) or self.rank == 2):
            last = self.some[0].shape[-1] if self.rank > 2 else 1
            name = self.node("Reshape", self.name, self.known([-1, last]))
            self.become(name, lambda x: x.reshape(-1, last), f"reshape to -1, {last}")

    def spread(self) -> None:
        """Two halves of a last dimension."""
        size = self.some[0].shape[-1]
        if not self.varies(self.rank - 1) and size % 2 == 0 and self.rank < 4:
            shape = [0] * (self.rank - 1) + [2, size // 2]
            name = self.node("Reshape", self.name, self.known(shape))
            self.become(name, lambda x: x.reshape(*x.shape[:-1], 2, size // 2), "halves")

    def activate(self) -> None:
        name = self.node("Tanh", self.name)
        self.become(name, np.tanh, "tanh")

    def softmax(self) -> None:
        axis = self.axis()

        def compute(x: Array) -> Array:
            e = np.exp(x - x.max(axis, keepdims=True))
            return e / e.sum(axis, keepdims=True)

        self.become(self.node("Softmax", self.name, axis=axis), compute, f"softmax along {axis}")

    def multiply(self) -> None:
        """A product with weights."""
        size, columns = self.some[0].shape[-1], self.pick(1, 3, 8, 16, 17)
        if self.rank > 1 and not self.varies(self.rank - 1) and self.some[-1].size // size * columns <= MOST:
            weight = self.random.standard_normal((size, columns)).astype(np.float32) / np.float32(size**0.5)
            name = self.node("MatMul", self.name, self.known(weight, "float32"))
            self.become(name, lambda x: x @ weight, f"product {size}x{columns}")

    def place(self) -> None:
        """A table of exactly as many rows as there may be is added."""
        axis = self.rank - 2
        if self.rank > 1 and not self.varies(self.rank - 1) and self.varies(axis):
            table = self.random.standard_normal((self.some[-1].shape[axis], self.some[0].shape[-1])).astype(np.float32)
            size = self.node("Gather", self.node("Shape", self.name), self.known([axis]), axis=0)
            rows = self.node("Slice", self.known(table, "float32"), self.known([0]), size, self.known([0]))
            name = self.node("Add", self.name, rows)
            self.become(name, lambda x: x + table[: x.shape[axis]], f"table {table.shape}")

    def reduce(self) -> None:
        axis = self.axis()
        kind, compute = self.pick(("ReduceMean", np.mean), ("ReduceMax", np.max), ("ReduceMin", np.min))
        if self.rank > 1:
            name = self.node(kind, self.name, axes=[axis], keepdims=0)
            self.become(name, lambda x: compute(x, axis), f"{kind} along {axis}")

    def accumulate(self) -> None:
        axis = self.axis()
        name = self.node("CumSum", self.name, self.known(axis))
        self.become(name, lambda x: np.cumsum(x, axis, dtype=np.float32), f"running sums along {axis}")

    def compare(self) -> None:
        """Each element of a dimension beside each other one."""
        axis, largest = self.axis(), self.some[-1]
        if largest.size * largest.shape[axis] <= MOST and self.rank < 4:
            one, other = (self.node("Unsqueeze", self.name, self.known([axis + more])) for more in (0, 1))
            name = self.node("Sub", one, other)
            self.become(
                name, lambda x: np.expand_dims(x, axis) - np.expand_dims(x, axis + 1), f"differences along {axis}"
            )


STEPS: list[Callable[[Network], None]] = [
    Network.last, Network.last, Network.ends, Network.slice, Network.slice, Network.flip, Network.roll, Network.twice,
    Network.pad, Network.permute, Network.merge, Network.spread, Network.activate, Network.softmax, Network.multiply,
    Network.multiply, Network.place, Network.reduce, Network.accumulate, Network.compare,
]  # fmt: skip


def wrong_sizes(seed: int) -> list[str]:
    """Return at which sizes a random network comes out wrong."""
    network = Network(seed)
    for _ in range(int(network.random.integers(2, 7))):
        network.step()
    network.activate()
    inputs = [helper.make_tensor_value_info("x", 1, network.dims)]
    outputs = [helper.make_tensor_value_info(network.name, 1, None)]
    graph = helper.make_graph(network.nodes, "varying", inputs, outputs, network.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = anatune.compile(model, threads=1, check=False, sizes=network.ranges)
    wrong = []
    for sizes, expected in zip(network.sizes(), network.some, strict=True):
        found = compiled(network.drawn(sizes))
        if found.shape != expected.shape or not np.allclose(found, expected, atol=1e-4):
            wrong.append(f"{network.dims} {network.ranges} at {sizes}: {'; '.join(network.text)}")
    return wrong


@pytest.mark.parametrize("seed", [0, 3, 15, 23, 29, 35, 53, 134])
def test_networks_are_right_at_all_sizes(seed: int) -> None:
    assert wrong_sizes(seed) == []
