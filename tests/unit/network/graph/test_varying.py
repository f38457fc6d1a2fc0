"""Join readings of a network at several sizes into one graph."""

import numpy as np
import pytest

from anatune.core.sizes import Size
from anatune.errors import WorkloadError
from anatune.network.graph.building import cast, elementwise, reshape, slice_axes, take_slices, top_indices
from anatune.network.graph.nodes import LEADING, Constant, Graph, Input, TensorType, Value, tensor_type
from anatune.network.graph.varying import SizedReading, join_readings
from tests.wording import refuses

SIZES = [{"b": 5, "t": 23}, {"b": 7, "t": 23}, {"b": 5, "t": 13}, {"b": 7, "t": 13}, {"b": 32, "t": 64}]


def readings(make):
    """Return readings of what `make` returns for an input of (b, t, 8) and the sizes."""
    result = []
    for sizes in SIZES:
        given = Input("x", TensorType((sizes["b"], sizes["t"], 8), "float32"))
        result.append(SizedReading(sizes, Graph((given,), (make(given, **sizes),), is_tuple=False)))
    return result


def joined(make):
    graph, nodes = join_readings(readings(make), "it")
    return graph.outputs[0], nodes


def shape_at(value, **sizes):
    return tuple(size.at(sizes) if isinstance(size, Size) else size for size in tensor_type(value).shape)


def test_shapes_are_expressions_of_all_sizes():
    result, nodes = joined(lambda x, b, t: reshape(x, (b * t // 1, 8)))
    assert shape_at(result, b=3, t=17) == (51, 8)
    assert list(nodes.values()) == [result]
    result, _ = joined(lambda x, b, t: slice_axes(x, [1], [0], [(t + 1) // 2], [1]))
    assert shape_at(result, b=3, t=17) == (3, 9, 8)


def test_constants_that_grow_are_leading_parts_of_the_largest():
    table = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    result, _ = joined(lambda x, b, t: elementwise("add", x, Constant(table[:t])))
    part = result.arguments[1]
    assert part.op == LEADING
    assert part.arguments[0].array is not None
    np.testing.assert_array_equal(part.arguments[0].array, table)
    assert shape_at(part, b=1, t=9) == (9, 8)
    mask = np.triu(np.ones((64, 64), np.float32))
    result, _ = joined(
        lambda x, b, t: elementwise("add", slice_axes(x, [0, 2], [0, 0], [1, 1]), Constant(mask[:t, :t]))
    )
    assert result.arguments[1].op == "strided_slice"


def test_constants_that_are_the_same_everywhere_stay_small():
    result, _ = joined(lambda x, b, t: elementwise("add", x, Constant(np.broadcast_to(np.float32(2), (b, t, 8)))))
    assert result.arguments[1].op == "broadcast_to"
    assert result.arguments[1].arguments[0].array.shape == (1, 1, 8)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_whole_numbers_that_are_expressions_of_sizes_are_computed_at_run_time(dtype):
    def number(t, b):
        return np.array([[t - 1, 0, 3], [b, 2 * t, t - 1]], dtype)

    result, _ = joined(lambda x, b, t: numbered(x, number(t, b)))
    for t, b in ((1, 1), (9, 2), (64, 32)):
        np.testing.assert_array_equal(value_at(result.arguments[1], t=t, b=b), number(t, b))
    result, _ = joined(lambda x, b, t: numbered(x, np.array(t + 1, dtype)))
    assert value_at(result.arguments[1], t=9, b=2) == 10


def numbered(x, array):
    """Return a node whose second operand is an array of whole numbers."""
    first = cast(slice_axes(x, [0, 1, 2], [0, 0, 0], [1, 1, 1]), array.dtype.name)
    return elementwise("add", first, Constant(array))


def value_at(value, **sizes):
    """Return the array that a table's element and masks are at some sizes."""
    if isinstance(value, Constant):
        return value.array
    array, *others = (value_at(one, **sizes) for one in value.arguments if isinstance(one, Value))
    if value.op == "strided_slice":
        (start,) = value.arguments[2]
        return array[start.value.at(sizes) :][:1]
    return np.where(array, *others) if value.op == "where" else array.reshape(tensor_type(value).shape)


@pytest.mark.parametrize(
    "make",
    [
        lambda x, b, t: numbered(x, np.arange(10) * t),
        lambda x, b, t: numbered(x, np.array(-t)),
        lambda x, b, t: numbered(x, np.array(t * 10**6)),
        lambda x, b, t: elementwise("multiply" if t > 20 else "add", x, x),
        lambda x, b, t: elementwise("add", x, Constant(np.full((1, 1, 8), t, np.float32))),
        lambda x, b, t: take_slices(x, Constant(np.array([t % 7, 0, 3])), 1),
        lambda x, b, t: reshape(x, (b * t, 8)) if t > 20 else reshape(x, (b * t * 8,)),
        lambda x, b, t: slice_axes(x, [1], [0], [1 + t * t % 11]),
    ],
)
def test_a_model_that_differs_is_refused_in_a_line(make):
    with refuses(WorkloadError) as told:
        joined(make)
    assert "b=5, t=23; " in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (lambda x, b, t: slice_axes(x, [1], [-3], [t]), 3),
        (lambda x, b, t: slice_axes(x, [1], [2], [5]), 5),
        (lambda x, b, t: slice_axes(x, [1], [3], [t]), 3),
        (lambda x, b, t: slice_axes(x, [1], [-1], [t]), 1),
        (lambda x, b, t: top_indices(x, 4, 1, largest=True), 4),
    ],
)
def test_elements_that_a_model_takes_are_there_at_all_sizes(make, least):
    most = max(sizes["t"] for sizes in SIZES)
    for begin in range(1, 7):
        ranges = {"b": (1, 64), "t": (begin, most)}
        if begin >= least:
            join_readings(readings(make), "it", ranges)
            continue
        with refuses(WorkloadError):
            join_readings(readings(make), "it", ranges)
