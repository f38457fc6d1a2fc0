"""Activations that models spell: known by their terms, and by nothing that only comes near."""

import itertools

import numpy as np
import pytest

from anatune.network.graph.nodes import Constant, Node, Scalar
from anatune.network.graph.operators import apply_operator
from anatune.network.graph.passes.activations import _FROM_HALVES, fuse_activations
from tests import naive_graph
from tests.unit.network.graph import graphs

TINY = [1e-3, 9e-5, 1e-5, 1e-6, 1e-8, 1e-12, 1e-30, 1e-44]
SIZES = np.float32([0, 1e-45, 1e-38, 1e-30, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 0.1, 0.7, 1, 2.5, 6, 7, 9, 1e3, 1e9])
EDGES = np.concatenate([SIZES, -SIZES])
ROOT, SLOPE = 2.0**0.5, (2 / np.pi) ** 0.5


def scalar(value):
    return Constant(np.float32(value))


class Term:
    """A value with Python's arithmetic."""

    def __init__(self, value):
        self.value = value

    def _of(self, op, other):
        return Term(apply_operator(op, self.value, other.value if isinstance(other, Term) else scalar(other)))

    def __add__(self, other):
        return self._of("add", other)

    def __sub__(self, other):
        return self._of("subtract", other)

    def __mul__(self, other):
        return self._of("multiply", other)

    def __truediv__(self, other):
        return self._of("divide", other)

    def __pow__(self, other):
        return self._of("power", other)

    def __neg__(self):
        return Term(apply_operator("negative", self.value))

    def under(self, other):
        return Term(apply_operator("divide", scalar(other), self.value))

    def maximum(self, other):
        return self._of("maximum", other)

    def minimum(self, other):
        return self._of("minimum", other)

    def clip(self, low, high):
        bounds = (Scalar(float(low), "float32"), Scalar(float(high), "float32"))
        return Term(Node("clip", (self.value, *bounds), self.value.type))

    def __getattr__(self, name):
        return lambda: Term(apply_operator(name if name != "relu" else "nn.relu", self.value))


# Activation -> ways to spell it, each with the constants that it has.
SPELT = {
    "relu": [(lambda x, low: x.maximum(low), [0]), (lambda x, low: x.clip(low, np.inf), [0])],
    "relu6": [
        (lambda x, low, high: x.clip(low, high), [0, 6]),
        (lambda x, low, high: x.maximum(low).minimum(high), [0, 6]),
        (lambda x, low, high: x.minimum(high).maximum(low), [0, 6]),
        (lambda x, high: x.relu().minimum(high), [6]),
    ],
    "silu": [
        (lambda x, one: x * (x * one).sigmoid(), [1]),
        (lambda x, one: x / ((-x).exp() + one), [1]),
        (lambda x, one, top: x * ((x * -1).exp() + one).under(top), [1, 1]),
    ],
    "gelu": [
        (lambda x, root, one, half: (x / root).erf().__add__(one) * x * half, [ROOT, 1, 0.5]),
        (lambda x, root, one, half: (x * half) * ((x * root).erf() + one), [ROOT / 2, 1, 0.5]),
        (lambda x, root, one, two: x * (((x / root).erf() + one) / two), [ROOT, 1, 2]),
        (lambda x, root, half: x * half + x * half * (x / root).erf(), [ROOT, 0.5]),
    ],
    "gelu_tanh": [
        (lambda x, c, s, one, half: x * half * (((x + x**3 * c) * s).tanh() + one), [0.044715, SLOPE, 1, 0.5]),
        (lambda x, c, s, one, half: x * half * ((x * s * (x * c * x + one)).tanh() + one), [0.044715, SLOPE, 1, 0.5]),
        (lambda x, c, s: x * ((x + x * x * x * c) * s).sigmoid(), [0.044715, 2 * SLOPE]),
    ],
}  # fmt: skip
WAYS = [
    pytest.param(name, *way, id=f"{name}-{place}") for name, ways in SPELT.items() for place, way in enumerate(ways)
]


def passed(spell, constants, outer=lambda value: value):
    """Return a graph of an activation on EDGES before and behind the pass."""
    x = graphs.source(EDGES.size)
    graph = graphs.graph(outer(spell(Term(x), *constants)).value, inputs=[x])
    return graph, fuse_activations(graph)


def check(graph, new_graph):
    """Compare two graphs, each element beside its own size."""
    with np.errstate(all="ignore"):
        (want,), (got,) = naive_graph.run(graph, EDGES), naive_graph.run(new_graph, EDGES)
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=0)


@pytest.mark.parametrize(("name", "spell", "constants"), WAYS)
def test_activations_are_known_however_they_are_spelt(name, spell, constants):
    graph, new_graph = passed(spell, constants)
    assert [node.op for node in new_graph.nodes()] == [f"nn.{name}"]
    with np.errstate(all="ignore"):
        (want,), (got,) = naive_graph.run(graph, EDGES), naive_graph.run(new_graph, EDGES)
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "spell", "constants"), WAYS)
def test_no_constant_of_a_spelt_function_may_be_another_one(name, spell, constants):
    for index, change in itertools.product(range(len(constants)), [*TINY, *(-tiny for tiny in TINY)]):
        attributes = list(constants)
        attributes[index] = np.float32(attributes[index] + change)
        if (
            attributes[index] == np.float32(constants[index])
            or abs(attributes[index] / (constants[index] or 1) - 1) < 2.0**-21
        ):
            continue
        graph, new_graph = passed(spell, attributes)
        assert f"nn.{name}" not in [node.op for node in new_graph.nodes() if node.op not in map(_op, graph.nodes())], (
            attributes
        )


def _op(node):
    return node.op


OUTER = {
    "added": lambda tiny: lambda y: y + tiny,
    "subtracted": lambda tiny: lambda y: y - tiny,
    "bounded below": lambda tiny: lambda y: y.maximum(tiny),
    "bounded around": lambda tiny: lambda y: y.clip(tiny, 6),
    "slope": lambda tiny: lambda y: y * (1 + tiny * 1e3),
}  # fmt: skip


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize(("name", "spell", "constants"), WAYS)
def test_nothing_small_behind_an_activation_vanishes(name, spell, constants, outer):
    for tiny in TINY:
        graph, new_graph = passed(spell, constants, OUTER[outer](tiny))
        ops = [node.op for node in new_graph.nodes()]
        assert ops[-1] == graph.nodes()[-1].op or np.float32(1 + tiny * 1e3) == 1


@pytest.mark.parametrize("tiny", [*TINY, *(-tiny for tiny in TINY)])
def test_bounds_and_slopes_near_zero_stay_what_they_are(tiny):
    for spell in (
        lambda x: x.maximum(tiny), lambda x: x.clip(tiny, 6), lambda x: x.clip(tiny, np.inf), lambda x: x.relu() + tiny,
        lambda x: x.maximum(x * abs(tiny)), lambda x: x.maximum(tiny).minimum(6), lambda x: x.minimum(6).maximum(tiny),
        lambda x: (x + tiny).relu() * (x + tiny).sigmoid(), lambda x: x.relu() + x.minimum(0) * tiny,
        lambda x: ((x.minimum(0).exp() - 1) * tiny) + x.relu(), lambda x: (x + tiny) * x.sigmoid(),
    ):  # fmt: skip
        check(*passed(spell, ()))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_constants_of_models_in_16_bits_are_rounded_to_these(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    for exact in (ROOT, 1 / ROOT, SLOPE, 0.044715):
        assert np.isclose(_FROM_HALVES[float(np.asarray(exact).astype(kind))], exact, rtol=1e-15)


@pytest.mark.parametrize("is_half", [True, False])
def test_a_gelu_of_16_bits_is_one(is_half):
    x = graphs.source(4)
    y = (Term(x) / np.float16(ROOT)).erf().__add__(1) * Term(x) * 0.5
    value = (
        Node("astype", (y.value,), y.value.type._replace(dtype="float16"), {"dtype": "float16"}) if is_half else y.value
    )
    ops = [node.op for node in fuse_activations(graphs.graph(value, inputs=[x])).nodes()]
    assert ("nn.gelu" in ops) == is_half
