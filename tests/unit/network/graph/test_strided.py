"""Views after reshapes, permutations and slices have the strides of NumPy's views."""

import numpy as np
import pytest

from anatune.network.graph.building import constant, slice_axes, take_slices
from anatune.network.graph.nodes import Input, Node, Shape, TensorType, select_result
from anatune.network.graph.passes.simplify import permute_value, reshape_value
from anatune.network.graph.strided import view_of
from tests.unit.network.graph import graphs


def through(view, array):
    """Return the elements that a view of the array's memory has."""
    flat = np.ascontiguousarray(array).reshape(-1)
    strides = [stride * flat.itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(flat[view.offset :], view.sizes, strides)


def split(value, axis, *sizes):
    shape = list(value.type.shape)
    kinds = []
    for size in sizes:
        shape[axis] = size
        kinds.append(TensorType(tuple(shape), "float32"))
    return Node("split", (value,), tuple(kinds), {"axis": axis})


@pytest.mark.parametrize(
    ("shape", "sizes", "axes", "last"),
    [
        ((6, 20), (2, 3, 4, 5), (0, 2, 1, 3), (2, 4, 3, 5)),
        ((6, 20), (2, 3, 4, 5), (0, 2, 3, 1), (2, 4, 5, 1, 3)),
        ((6, 20), (1, 6, 4, 5), (0, 2, 1, 3), (4, 6, 5)),
        ((6, 20), (6, 20), (1, 0), (4, 5, 6)),
        ((6, 20), (2, 3, 4, 5), (0, 1, 2, 3), (120,)),
    ],
)
def test_elements_of_a_view_are_those_of_the_value(shape, sizes, axes, last):
    x = graphs.source(*shape)
    value = reshape_value(permute_value(reshape_value(x, sizes), axes), last)
    view = view_of(value)
    array = graphs.array(*shape)
    assert view.base is x
    np.testing.assert_array_equal(through(view, array), array.reshape(sizes).transpose(axes).reshape(last))


def test_what_no_strides_describe_lies_in_itself():
    x = graphs.source(6, 20)
    turned = permute_value(x, (1, 0))
    value = reshape_value(turned, (120,))
    assert view_of(value).base is value
    assert view_of(turned).base is x


def test_parts_begin_further_on():
    x = Input("x", TensorType((2, 3, 12), "float32"))
    parts = split(x, 2, 2, 4, 6)
    array = graphs.array(2, 3, 12)
    for index, (start, end) in enumerate([(0, 2), (2, 6), (6, 12)]):
        view = view_of(permute_value(select_result(parts, index), (2, 0, 1)))
        assert view.base is x
        np.testing.assert_array_equal(through(view, array), array[:, :, start:end].transpose(2, 0, 1))
    middle = view_of(select_result(split(x, 1, 1, 2), 1))
    np.testing.assert_array_equal(through(middle, array), array[:, 1:])


def test_what_is_repeated_lies_once():
    x = graphs.source(6, 20)
    inner = reshape_value(x, (2, 1, 3, 20))
    shape = (5, 2, 4, 3, 20)
    view = view_of(Node("broadcast_to", (inner, Shape(shape)), TensorType(shape, "float32")))
    array = graphs.array(6, 20)
    assert view.base is x
    np.testing.assert_array_equal(through(view, array), np.broadcast_to(array.reshape(2, 1, 3, 20), shape))


def test_slices_begin_further_on_and_step_over_elements():
    x = graphs.source(2, 7, 12)
    value = slice_axes(slice_axes(x, [1, 2], [1, 2], [7, 12], [3, 2]), [0], [-1], [2])
    view = view_of(permute_value(value, (2, 0, 1)))
    array = graphs.array(2, 7, 12)
    assert view.base is x
    np.testing.assert_array_equal(through(view, array), array[-1:, 1::3, 2::2].transpose(2, 0, 1))


def test_known_places_that_are_evenly_apart_are_slices():
    x = graphs.source(4, 6)
    item, some, others = (take_slices(x, constant(places, "int64"), 1) for places in (3, [1, 3, 5], [0, 1, 3]))
    array = graphs.array(4, 6)
    assert (item.type.shape, some.op, others.op) == ((4,), "strided_slice", "take")
    np.testing.assert_array_equal(through(view_of(item), array), array[:, 3])
    np.testing.assert_array_equal(through(view_of(some), array), array[:, 1::2])
