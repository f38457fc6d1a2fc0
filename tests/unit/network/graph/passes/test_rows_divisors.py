"""Divisors that are checked."""

import numpy as np
import pytest

from anatune.network.graph import building as b
from anatune.network.graph.nodes import Graph, Input, TensorType
from anatune.network.graph.operators import DIVISIONS, DIVISOR
from anatune.network.graph.passes.rows import check_divisors


def checks_of(op, divisor, dtype="int32"):
    """Return how many divisors of a graph of one division are looked at."""
    x, y = (Input(name, TensorType((2, 3), dtype)) for name in "xy")
    return sum(
        node.op == DIVISOR
        for node in check_divisors(
            Graph((x, y), (b.elementwise(op, x, y if divisor is None else divisor),), is_tuple=False)
        ).nodes()
    )


@pytest.mark.parametrize("op", DIVISIONS)
def test_divisors_that_may_be_zero_are_looked_at(op):
    assert checks_of(op, None) == 1
    assert checks_of(op, 0) == 1
    assert checks_of(op, b.constant(np.array([1, 0, 2]), "int32")) == 1


@pytest.mark.parametrize("op", DIVISIONS)
def test_others_are_not(op):
    assert checks_of(op, 3) == 0
    assert checks_of(op, b.constant(np.array([1, -1, 2]), "int32")) == 0
    assert checks_of(op, None, "float32") == 0


def test_a_divisor_of_several_divisions_of_a_kind_is_looked_at_once():
    x, y = (Input(name, TensorType((2, 3), "int64")) for name in "xy")
    new_graph = b.elementwise("floor_mod", b.elementwise("floor_mod", x, y), y)
    nodes = check_divisors(Graph((x, y), (new_graph,), is_tuple=False)).nodes()
    assert [node.op for node in nodes].count(DIVISOR) == 1
