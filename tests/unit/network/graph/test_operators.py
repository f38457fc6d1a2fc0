"""The table of operators: entries name what there is, and say of results what NumPy says."""

import numpy as np
import pytest

from anatune.core.activations import ACTIVATIONS
from anatune.core.workload.number_formats import FUNCTION_STEPS
from anatune.network.graph.folding import evaluate_node, fold
from anatune.network.graph.nodes import Constant, Input, Shape, TensorType
from anatune.network.graph.operators import ATTENTION, EXPERTS, OPERATORS, PRODUCTS, ROUTE, WINDOW, apply_operator
from anatune.network.graph.passes import layouts
from anatune.network.relax import kernels

OWN = [operator for operator in OPERATORS.values() if operator.is_own]


def operands_of(operator):
    """Return how many arrays an operator on elements takes."""
    return getattr(operator.compute, "nin", 1)


def test_products_take_the_steps_that_their_kernels_have():
    fused = [operator for operator in OPERATORS.values() if set(PRODUCTS) <= set(operator.fused_into)]
    steps = {operator.name.removeprefix("nn.") for operator in fused}
    assert steps == {"relu", *FUNCTION_STEPS}


def test_entries_name_what_there_is():
    names = {operator.name for operator in OWN}
    for operator in OPERATORS.values():
        assert operator.own in {"", *names}
        assert set(operator.fused_into) <= {*PRODUCTS, WINDOW}
        assert operator.layout in {"", *layouts._FAMILIES}
        assert not operator.commutes or operands_of(operator) == 2


def test_what_has_a_kernel_has_code():
    written = {*kernels._OPERATORS, *PRODUCTS, ATTENTION, EXPERTS, ROUTE} - {"permute_dims", "topk"}
    assert {operator.name for operator in OWN} == written
    for operator in OPERATORS.values():
        if operator.fused_into:
            assert operator.word in ACTIVATIONS


@pytest.mark.parametrize("operator", [one for one in OPERATORS.values() if one.type_of], ids=lambda one: one.name)
def test_types_are_those_of_what_is_computed(operator):
    whole = "bitwise" in operator.name or "shift" in operator.name
    array = np.arange(1, 7).reshape(2, 3) if whole else np.linspace(0.1, 0.9, 6, dtype=np.float32).reshape(2, 3)
    constants = [Constant(array), Constant(array[:1])]
    arguments = {"reshape": (constants[0], Shape((3, 2))), "clip": (constants[0], constants[1], constants[0])}
    attributes = {"permute_dims": {"axes": (1, 0)}, "nn.leakyrelu": {"alpha": 0.1}}
    given = arguments.get(operator.name, tuple(constants[: operands_of(operator)]))
    node = apply_operator(operator.name, *given, **attributes.get(operator.name, {}))
    result = fold(node)
    assert isinstance(result, Constant)
    assert result.type == node.type
    assert evaluate_node(node, {}).shape == node.type.shape


def test_an_operator_without_a_rule_is_a_mistake():
    with pytest.raises(AssertionError, match="matmul"):
        apply_operator("matmul", *(Input(name, TensorType((2, 2), "float32")) for name in "ab"))
