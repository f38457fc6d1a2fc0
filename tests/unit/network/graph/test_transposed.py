"""Transposed convolutions as ordinary ones, against their definition: what each element of the input adds."""

import itertools

import numpy as np
import pytest

from anatune.network.graph.nodes import Constant, Graph, Input, TensorType
from anatune.network.graph.transposed import transposed_convolution, transposed_sizes
from tests import naive_graph
from tests.wording import refuses

GEOMETRY = ("strides", "padding", "output_padding", "dilation")
CASES = [
    # sizes, taps, groups, strides, padding, output padding, dilation
    ((5, 4), (3, 3), 1, (1, 1), (1, 1, 1, 1), (0, 0), (1, 1)),
    ((5, 4), (4, 4), 1, (2, 2), (1, 1, 1, 1), (0, 0), (1, 1)),
    ((3, 4), (3, 2), 2, (2, 3), (1, 0, 0, 1), (1, 2), (1, 1)),
    ((4, 3), (3, 3), 1, (2, 2), (0, 1, 2, 1), (0, 1), (2, 3)),  # taps that are as far apart as outputs of a phase
    ((3,), (2,), 2, (3,), (0, 0), (2,), (1,)),  # a phase without taps
    ((2,), (1,), 1, (1,), (-1, -2), (0,), (1,)),  # an output that is wider than what is read
    ((2, 3, 2), (2, 3, 2), 1, (2, 1, 2), (0, 1, 0, 1, 1, 0), (1, 0, 0), (1, 2, 1)),
]


def added_up(x, weight, strides, padding, output_padding, dilation, groups):
    """Add each element times the weights where they belong, then cut the padding away."""
    rank, (attributes, *taps) = x.ndim - 2, weight.shape[1:]
    outputs = transposed_sizes(x.shape[2:], taps, strides, padding, output_padding, dilation)
    room = 8
    whole = [
        (size - 1) * stride + (tap - 1) * step + 1 + 2 * room
        for size, stride, tap, step in zip(x.shape[2:], strides, taps, dilation, strict=True)
    ]
    result = np.zeros((x.shape[0], groups, attributes, *whole))
    split = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    weights = weight.reshape(groups, -1, *weight.shape[1:])
    for tap in itertools.product(*map(range, taps)):
        places = (
            slice(
                room + tap[d] * dilation[d],
                room + tap[d] * dilation[d] + (x.shape[2 + d] - 1) * strides[d] + 1,
                strides[d],
            )
            for d in range(rank)
        )
        result[(..., *places)] += np.einsum("ngc...,gco->ngo...", split, weights[(..., *tap)])
    cut = tuple(slice(room + padding[d], room + padding[d] + outputs[d]) for d in range(rank))
    return result[(..., *cut)].reshape(x.shape[0], groups * attributes, *outputs)


@pytest.mark.parametrize(("sizes", "taps", "groups", "strides", "padding", "more", "dilation"), CASES)
def test_each_element_adds_its_taps(sizes, taps, groups, strides, padding, more, dilation):
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((2, 2 * groups, *sizes))
    weight, bias = numbers.standard_normal((2 * groups, 3, *taps)), numbers.standard_normal(3 * groups)
    source = Input("x", TensorType(x.shape, "float64"))
    geometry = dict(zip(GEOMETRY, (strides, padding, more, dilation), strict=True))
    outcome = transposed_convolution(source, Constant(weight), Constant(bias), groups=groups, **geometry)
    (got,) = naive_graph.run(Graph((source,), (outcome,), is_tuple=False), x)
    want = added_up(x, weight, groups=groups, **geometry) + bias.reshape(-1, *[1] * len(sizes))
    np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize(("taps", "stride", "count"), [(4, 2, 1), (2, 2, 1), (3, 2, 4), (3, 1, 1)])
def test_phases_of_as_many_taps_are_one_product(taps, stride, count):
    source = Input("x", TensorType((1, 4, 8, 8), "float32"))
    weight = Constant(np.ones((4, 6, taps, taps), np.float32))
    geometry = {"strides": (stride,) * 2, "padding": (0,) * 4, "output_padding": (0, 0), "dilation": (1, 1)}
    outcome = transposed_convolution(source, weight, groups=1, **geometry)
    nodes = Graph((source,), (outcome,), is_tuple=False).nodes()
    assert sum(node.op == "nn.conv2d" for node in nodes) == count


def test_what_leaves_nothing_is_refused():
    source = Input("x", TensorType((1, 1, 2), "float32"))
    with refuses(ValueError):
        transposed_convolution(
            source, Constant(np.ones((1, 1, 2), np.float32)),
            strides=(1,), padding=(2, 2), output_padding=(0,), dilation=(1,), groups=1,
        )  # fmt: skip
