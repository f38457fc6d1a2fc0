"""Targets hold what is asked of them; what is decided of a model stands in its plan."""

import numpy as np
import pytest

import anatune
from anatune.network.compiling.request import CompileRequest
from anatune.network.compiling.targets import target_of
from anatune.network.graph.building import matmul
from anatune.network.graph.nodes import Constant, Graph, Input, TensorType
from tests.cases import each

pytest.importorskip("tvm")


def small_graph():
    weight = Constant(np.ones((16, 32), np.float32))
    x = Input("x", TensorType((16, 16), "float32"))
    return Graph((x,), (matmul(x, weight),), is_tuple=False)


@each("hw, precision", [("host", None), ("a100", "float16")])
def test_planning_changes_nothing_of_a_target(hw, precision):
    if hw != "host":
        pytest.importorskip("triton")
    target = target_of(anatune.hardware(hw), CompileRequest(precision=precision))
    before = {name: id(value) for name, value in vars(target).items()}
    first, second = (target.plan(small_graph()) for _ in range(2))
    assert {name: id(value) for name, value in vars(target).items()} == before
    assert [one.schedule for one in first.kernels] == [one.schedule for one in second.kernels]
    assert first.precision == (precision or "float32")
    assert first.target_data is not second.target_data
