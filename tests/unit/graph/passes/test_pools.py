"""Means of windows that hang over the padding, as PyTorch and ONNX count them."""

import numpy as np
import pytest

from anatune.graph.nodes import Node, TensorType
from anatune.graph.passes.pools import with_partial_means
from tests.unit.graph import graphs as g


def pool(x, outputs, window, stride, padding, **changes):
    rank = len(x.type.shape) - 2
    attributes = {
        "pool_size": (window,) * rank, "strides": (stride,) * rank, "padding": (padding,) * (2 * rank),
        "dilation": (1,) * rank, "ceil_mode": True, "count_include_pad": True, "layout": "NCHW", "out_layout": "NCHW",
    }  # fmt: skip
    kind = TensorType((*x.type.shape[:2], *[outputs] * rank), "float32")
    return Node(f"nn.avg_pool{rank}d", (x,), kind, attributes | changes, f"relax.attrs.Pool{rank}DAttrs")


@pytest.mark.parametrize(
    ("size", "outputs", "window", "stride", "padding", "factors"),
    [(7, 4, 2, 2, 0, [1, 1, 1, 2]), (8, 5, 3, 2, 1, [1, 1, 1, 1, 1.5]), (7, 3, 3, 3, 0, [1, 1, 3])],
)
def test_a_mean_is_of_what_is_left_of_a_window(size, outputs, window, stride, padding, factors):
    x = g.source(2, 3, size, size)
    made = with_partial_means(g.graph(pool(x, outputs, window, stride, padding), inputs=[x])).outputs[0]
    assert made.op == "multiply"
    np.testing.assert_array_equal(made.arguments[1].array, np.multiply.outer(factors, factors)[None, None])
    assert made.type == made.arguments[0].type


@pytest.mark.parametrize(
    ("outputs", "changes"), [(4, {"count_include_pad": False}), (3, {"ceil_mode": False}), (3, {"pool_size": (3, 3)})]
)
def test_whole_windows_stay(outputs, changes):
    x = g.source(2, 3, 7, 7)
    made = with_partial_means(g.graph(pool(x, outputs, 2, 2, 0, **changes), inputs=[x])).outputs[0]
    assert made.op == "nn.avg_pool2d"
