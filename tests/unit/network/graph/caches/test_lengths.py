"""Masks that give the number of keys of sequences, and masks that say something else."""

import numpy as np
import pytest

from anatune.network.graph.building import broadcast, constant, elementwise, reshape, where
from anatune.network.graph.caches.lengths import lengths_of
from anatune.network.graph.nodes import Graph, Input, Node, TensorType
from anatune.network.graph.operators import ATTENTION
from tests import naive_graph

BATCH, HEADS, KEYS = 2, 2, 6
LENGTHS = Input("lengths", TensorType((BATCH,), "int32"))
KEY = constant(np.arange(KEYS), "int64")
OTHERS = constant(np.array([[0], [2]]), "int32")
SEEN, HIDDEN = constant(0.0, "float32"), constant(-np.inf, "float32")


def column(value):
    return reshape(value, (*value.type.shape, 1))


BELOW = elementwise("less", elementwise("add", KEY, 1), column(LENGTHS))


def query(numbers):
    """Return which number each query of each sequence has: (batch, queries, 1)."""
    attributes = elementwise("add", column(LENGTHS), constant(np.array(numbers)[None], "int32"))
    return column(attributes)


def found(mask, queries=1):
    rows = mask.type.shape[-2] if len(mask.type.shape) > 2 else 1
    whole = broadcast(mask, (BATCH, *mask.type.shape[1:]))
    kind = TensorType((BATCH * queries, HEADS * 16), "float32")
    attributes = {"batch": BATCH, "heads": HEADS, "queries": queries, "keys": KEYS, "block": HEADS * queries}
    data = (Input("x", kind),) * 3
    return lengths_of(Node(ATTENTION, (*data, reshape(whole, (BATCH * rows, KEYS))), kind, attributes))


def test_a_number_of_keys_for_each_sequence():
    for mask, more in (
        (where(elementwise("less", KEY, column(LENGTHS)), SEEN, HIDDEN), 0),
        (where(elementwise("less_equal", column(LENGTHS), KEY), HIDDEN, SEEN), 0),
        (where(elementwise("greater", elementwise("subtract", column(LENGTHS), 2), KEY), SEEN, HIDDEN), -2),
        (where(elementwise("logical_not", elementwise("greater", KEY, column(LENGTHS))), SEEN, HIDDEN), 1),
        (where(elementwise("less", KEY, elementwise("add", column(LENGTHS), OTHERS)), SEEN, HIDDEN), [0, 2]),
        (where(elementwise("logical_and", BELOW, elementwise("less", KEY, column(LENGTHS))), SEEN, HIDDEN), -1),
    ):
        limit = found(mask)
        assert not limit.is_causal
        assert limit.lengths.type == TensorType((BATCH,), "int32")
        (numbers,) = naive_graph.run(Graph((LENGTHS,), (limit.lengths,), is_tuple=True), np.array([3, 5], np.int32))
        np.testing.assert_array_equal(numbers, np.array([3, 5]) + more)
    assert found(mask, queries=3).is_causal is False


@pytest.mark.parametrize(("numbers", "is_causal"), [((-3, -2, -1), True), ((-1, -1, -1), False)])
def test_the_last_keys_are_those_of_the_queries(numbers, is_causal):
    limit = found(where(elementwise("less_equal", KEY, query(numbers)), SEEN, HIDDEN), 3)
    assert limit.is_causal is is_causal
    assert limit.lengths is LENGTHS


@pytest.mark.parametrize("window", [2, 9])
def test_a_window_of_the_last_keys(window):
    for numbers in ((-2, -1), (-1,)):
        seen = elementwise("less_equal", KEY, query(numbers))
        near = elementwise("greater", KEY, elementwise("subtract", query(numbers), window))
        limit = found(where(elementwise("logical_and", near, seen), SEEN, HIDDEN), len(numbers))
        assert (limit.lengths, limit.window) == (LENGTHS, window if window < KEYS else 0)
        assert limit.is_causal is (len(numbers) > 1)
        far = elementwise("greater", elementwise("multiply", KEY, 2), query(numbers))
        assert found(where(elementwise("logical_and", far, seen), SEEN, HIDDEN), len(numbers)) is None


def test_one_number_for_all_sequences():
    position = Input("position", TensorType((1,), "int64"))
    limit = found(where(elementwise("less_equal", KEY, column(position)), SEEN, HIDDEN))
    (numbers,) = naive_graph.run(Graph((position,), (limit.lengths,), is_tuple=True), np.array([3]))
    np.testing.assert_array_equal(numbers, [4, 4])


@pytest.mark.parametrize(
    ("mask", "queries"),
    [
        (where(elementwise("less", column(LENGTHS), KEY), SEEN, HIDDEN), 1),  # those behind it
        (where(elementwise("less", elementwise("multiply", KEY, 2), column(LENGTHS)), SEEN, HIDDEN), 1),
        (where(elementwise("less", KEY, column(LENGTHS)), SEEN, constant(-1.0, "float32")), 1),
        (where(elementwise("less", KEY, column(LENGTHS)), constant(1.0, "float32"), HIDDEN), 1),
        (where(elementwise("logical_and", BELOW, elementwise("less", KEY, 3)), SEEN, HIDDEN), 1),
        (where(elementwise("not_equal", KEY, column(LENGTHS)), SEEN, HIDDEN), 1),
        (where(elementwise("less_equal", KEY, query((-1, -2, -3))), SEEN, HIDDEN), 3),
        (where(elementwise("less_equal", KEY, query((-5, -3, -1))), SEEN, HIDDEN), 3),
        (where(elementwise("less", KEY, reshape(LENGTHS, (1, BATCH, 1))), SEEN, HIDDEN), 2),  # of queries
        (Input("mask", TensorType((BATCH, KEYS), "float32")), 1),
    ],
)  # fmt: skip
def test_masks_that_say_something_else(mask, queries):
    assert found(mask, queries) is None


@pytest.mark.parametrize("window", [0, 1 << 12])
def test_a_mask_of_constants_may_be_too_large_to_be_folded(window):
    keys = queries = 1 << 15
    key = constant(np.arange(keys)[None], "int64")
    query = constant(np.arange(keys)[:, None], "int64")
    seen = elementwise("less_equal", elementwise("subtract", key, query), 0)
    always = constant(np.broadcast_to(np.ones((1, 1), bool), (queries, keys)), "bool")
    if window:
        always = elementwise("less", elementwise("subtract", query, key), window)
    for condition, is_causal in ((seen, True), (elementwise("less", key, query), None), (always, False)):
        mask = where(elementwise("logical_and", condition, always), SEEN, HIDDEN)
        kind = TensorType((queries, HEADS * 16), "float32")
        attributes = {"batch": 1, "heads": HEADS, "queries": queries, "keys": keys, "block": HEADS * queries}
        limit = lengths_of(Node(ATTENTION, (*(Input("x", kind),) * 3, mask), kind, attributes))
        assert limit == ((None, True, window) if is_causal else None)
