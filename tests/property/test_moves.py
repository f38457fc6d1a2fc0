"""Random chains of what moves elements, compiled whole: each element comes from where NumPy takes it from."""

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
MOST = 600
"""Elements of a tensor at most."""


class Chain:
    """A tensor that is moved about, in NumPy and as nodes of ONNX."""

    def __init__(self, number: int, random: np.random.Generator, dtype: str = "float32") -> None:
        self.random, self.prefix, self.count = random, f"c{number}", 0
        shape = tuple(int(size) for size in random.choice([1, 2, 3, 4, 5, 6, 8, 17], size=random.integers(1, 5)))
        while np.prod(shape) > MOST // 4:
            shape = shape[1:]
        self.given = np.arange(1, np.prod(shape) + 1).reshape(shape).astype(dtype)
        self.array, self.name = self.given, f"{self.prefix}_in"
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.text = [str(shape)]

    def pick(self, *values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def below(self, most: int, least: int = 0) -> int:
        return int(self.random.integers(least, most))

    def known(self, values: Any, dtype: str = "int64") -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), f"{self.prefix}_w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        names = [f"{self.prefix}_{self.count + place}" for place in range(outputs)]
        self.count += outputs
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def become(self, array: Array, kind: str, *inputs: str, **attributes: Any) -> None:
        (self.name,) = self.node(kind, *inputs, **attributes)
        self.array = array
        self.text.append(f"{kind} -> {array.shape}")

    def step(self) -> None:
        axis = self.below(self.array.ndim) if self.array.ndim else 0
        if not self.array.ndim:
            self.reshape(0)
        else:
            self.pick(*MOVES)(self, axis)

    # ---- moves ----

    def flip(self, axis: int) -> None:
        size = self.array.shape[axis]
        words = [self.known([one]) for one in (-1, -size - 1, axis, -1)]
        self.become(np.flip(self.array, axis), "Slice", self.name, *words)

    def slice(self, axis: int) -> None:
        size, step = self.array.shape[axis], self.pick(1, 1, 2, 3, -1, -2, -3)
        first, last = sorted((self.below(size), self.below(size)))
        bounds = (first, last + 1) if step > 0 else (last, first - 1 if first else -size - 1)
        where = [slice(None)] * self.array.ndim
        where[axis] = slice(bounds[0], None if bounds[1] == -size - 1 else bounds[1], step)
        words = [self.known([one]) for one in (*bounds, axis, step)]
        self.become(self.array[tuple(where)], "Slice", self.name, *words)

    def reshape(self, _: int) -> None:
        rest, shape = int(self.array.size), []
        while rest > 1 and len(shape) < 3:
            shape.append(self.pick(*[one for one in range(1, rest + 1) if rest % one == 0]))
            rest //= shape[-1]
        shape.append(rest)
        shape = [int(one) for one in self.random.permutation(shape)]
        self.become(self.array.reshape(shape), "Reshape", self.name, self.known(shape))

    def permute(self, _: int) -> None:
        axes = [int(one) for one in self.random.permutation(self.array.ndim)]
        self.become(self.array.transpose(axes), "Transpose", self.name, perm=axes)

    def roll(self, axis: int) -> None:
        size = self.array.shape[axis]
        if size < 2:
            return
        first = self.below(size, 1)
        parts = self.node("Split", self.name, self.known([first, size - first]), outputs=2, axis=axis)
        self.become(np.roll(self.array, -first, axis), "Concat", *reversed(parts), axis=axis)

    def gather(self, axis: int) -> None:
        size = self.array.shape[axis]
        shape = [self.pick((), (1,), (3,), (7,), (2, 3))][0]
        places = self.random.integers(-size, size, shape)
        if self.array.size // size * max(1, places.size) <= MOST:
            self.become(np.take(self.array, places, axis), "Gather", self.name, self.known(places), axis=axis)

    def gather_elements(self, axis: int) -> None:
        shape = list(self.array.shape)
        shape[axis] = self.pick(1, 2, shape[axis])
        places = self.random.integers(-self.array.shape[axis], self.array.shape[axis], shape)
        result = np.take_along_axis(self.array, places, axis)
        self.become(result, "GatherElements", self.name, self.known(places), axis=axis)

    def pad(self, axis: int) -> None:
        size, mode = self.array.shape[axis], self.pick("constant", "reflect", "edge", "wrap")
        most = {"constant": 4, "edge": 4, "reflect": size, "wrap": size + 1}[mode]
        before, after = self.below(most), self.below(most)
        if self.array.size // size * (size + before + after) > MOST:
            return
        pads = np.zeros((self.array.ndim, 2), int)
        pads[axis] = before, after
        words = [self.known(pads.T.reshape(-1))]
        self.become(np.pad(self.array, pads, mode=mode), "Pad", self.name, *words, mode=mode)

    def tile(self, axis: int) -> None:
        times = [1] * self.array.ndim
        times[axis] = self.pick(2, 3)
        if 3 * self.array.size <= MOST:
            self.become(np.tile(self.array, times), "Tile", self.name, self.known(times))

    def repeat(self, axis: int) -> None:
        """Each element several times in a row, as nearest upsampling has it."""
        size, times = self.array.shape[axis], self.pick(2, 3)
        if times * self.array.size <= MOST:
            places = np.arange(size * times) // times
            array = np.take(self.array, places, axis)
            self.become(array, "Gather", self.name, self.known(places), axis=axis)

    def resize(self, _: int) -> None:
        if self.array.ndim != 4 or 6 * self.array.size > MOST:
            return
        times = [self.pick(1, 2, 3), self.pick(1, 2)]
        array = self.array.repeat(times[0], 2).repeat(times[1], 3)
        words = ["", self.known([1, 1, *times], "float32")]
        named = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        self.become(array, "Resize", self.name, *words, **named)

    def shuffle(self, _: int) -> None:
        if self.array.ndim != 4 or self.array.shape[1] % 4:
            return
        n, c, h, w = self.array.shape
        if self.pick(True, False):
            array = self.array.reshape(n, 2, 2, c // 4, h, w).transpose(0, 3, 4, 1, 5, 2)
            self.become(array.reshape(n, c // 4, 2 * h, 2 * w), "DepthToSpace", self.name, blocksize=2)
        else:
            array = self.array.reshape(n, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3)
            self.become(array.reshape(n, c // 4, 2 * h, 2 * w), "DepthToSpace", self.name, blocksize=2, mode="CRD")

    def stack(self, axis: int) -> None:
        """Itself beside itself, turned around."""
        if 2 * self.array.size <= MOST:
            before, name = self.array, self.name
            self.flip(self.below(before.ndim))
            array = np.concatenate([before, self.array], axis)
            self.become(array, "Concat", name, self.name, axis=axis)

    def add_flipped(self, axis: int) -> None:
        """Itself and itself turned around along an axis: one function reads both."""
        before, name = self.array, self.name
        self.flip(axis)
        self.become(before - 2 * self.array, "Sub", name, self.node("Add", self.name, self.name)[0])

    def choose(self, axis: int) -> None:
        mask = self.random.random(self.array.shape[axis:]) < 0.5
        other = self.known([-1], self.array.dtype.name)
        array = np.where(mask, self.array, np.asarray(-1, self.array.dtype))
        self.become(array, "Where", self.known(mask, "bool"), self.name, other)

    def cumulate(self, axis: int) -> None:
        if np.abs(self.array).sum() < 1 << 22:
            where = self.known(axis)
            self.become(np.cumsum(self.array, axis, dtype=self.array.dtype), "CumSum", self.name, where)

    def clip(self, _: int) -> None:
        self.become(np.maximum(self.array, 0), "Relu", self.name)

    def reverse_sequences(self, _: int) -> None:
        if self.array.ndim < 2:
            return
        lengths = self.random.integers(1, self.array.shape[0] + 1, self.array.shape[1])
        array = self.array.copy()
        for column, length in enumerate(lengths):
            array[:length, column] = self.array[:length, column][::-1]
        self.become(array, "ReverseSequence", self.name, self.known(lengths), time_axis=0, batch_axis=1)


MOVES: list[Callable[[Chain, int], None]] = [
    Chain.flip, Chain.flip, Chain.slice, Chain.slice, Chain.reshape, Chain.reshape, Chain.permute, Chain.roll,
    Chain.gather, Chain.gather_elements, Chain.pad, Chain.tile, Chain.repeat, Chain.resize, Chain.shuffle, Chain.stack,
    Chain.add_flipped, Chain.choose, Chain.cumulate, Chain.clip, Chain.reverse_sequences,
]  # fmt: skip


def model_of(chains: list[Chain]) -> Any:
    """Return all chains as one model."""
    nodes = [node for chain in chains for node in chain.nodes]
    nodes += [helper.make_node("Identity", [chain.name], [f"{chain.prefix}_out"]) for chain in chains]
    kind = helper.np_dtype_to_tensor_dtype(chains[0].given.dtype)
    inputs = [helper.make_tensor_value_info(f"{one.prefix}_in", kind, one.given.shape) for one in chains]
    outputs = [helper.make_tensor_value_info(f"{one.prefix}_out", kind, one.array.shape) for one in chains]
    graph = helper.make_graph(nodes, "moves", inputs, outputs, [one for chain in chains for one in chain.weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def wrong_chains(seed: int, count: int, dtype: str, steps: int = 6) -> list[str]:
    """Return which of some random chains come out wrong, each as its steps."""
    random = np.random.default_rng(seed)
    chains = []
    for number in range(count):
        chain = Chain(number, random, dtype)
        for _ in range(int(random.integers(2, steps + 1))):
            chain.step()
        chains.append(chain)
    compiled = anatune.compile(model_of(chains), threads=1, check=False)
    found = compiled(*[chain.given for chain in chains])
    found = found if isinstance(found, list | tuple) else [found]
    return [
        "; ".join(chain.text) for chain, one in zip(chains, found, strict=True)
        if one.shape != chain.array.shape or not np.array_equal(one, chain.array)
    ]  # fmt: skip


@pytest.mark.parametrize(("seed", "dtype"), [(1003, "float32"), (1010, "float32"), (1013, "float32"), (2, "int64")])
def test_elements_come_from_where_they_should(seed: int, dtype: str) -> None:
    assert wrong_chains(seed, 20, dtype) == []
