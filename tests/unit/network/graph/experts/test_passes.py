"""Experts that tokens choose: what is found of rows that are sorted and brought back, and what stays as it was."""

import pytest

pytest.importorskip("tvm", reason="models are imported where TVM is")
pytest.importorskip("torch", reason="the models are PyTorch's")

import torch

from anatune.network.compiling.session import compile as compile_model
from anatune.network.graph.experts.passes import expand_groups, unsort_experts
from anatune.network.graph.operators import EXPERTS, GROUPED_MATMUL, ROUTE
from anatune.network.relax.frontends import import_model
from tests.unit.network.compiling.models import difference
from tests.unit.network.compiling.targets.gpu_models import Experts, experts


def ops(graph):
    return [node.op for node in graph.nodes()]


@pytest.mark.parametrize("biased", [False, True])
def test_rows_of_experts_are_not_sorted(biased):
    model, inputs = experts(biased=biased)
    found = unsort_experts(import_model(model, inputs).graph())
    first, second = (node for node in found.nodes() if node.op == EXPERTS)
    assert ops(found).count(ROUTE) == 1
    assert not {GROUPED_MATMUL, "argsort", "cumsum", "scatter_elements"} & {*ops(found)}
    assert (first.attributes["expanded"], second.attributes["expanded"]) == (False, True)
    assert first.arguments[0].type.shape == (24, 64)
    assert first.attributes["top_k"] == second.attributes["top_k"] == 2


def test_many_rows_of_many_experts():
    with torch.device("meta"):
        model, x = Experts(experts=128, top_k=8, inner=8).eval(), torch.zeros(20_000, 64)
    assert ops(unsort_experts(import_model(model, x).graph())).count(EXPERTS) == 2


class Otherwise(Experts):
    """Rows that come back from last to first, or experts of which each has one row more than it says."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        chosen = self.router(x).argmax(-1)
        experts_of, order = chosen.sort()
        ends = torch.histc(experts_of.float(), 4, 0, 3).cumsum(0, dtype=torch.int32)
        ends = (ends + 1).clamp(max=len(x)) if self.kind == "ends" else ends
        made = torch.ops.anatune_tests.grouped_mm_fallback(x[order], self.up.transpose(1, 2), ends)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return made[back.flip(0)] if self.kind == "reversed" else made[back]


@pytest.mark.parametrize("kind", ["reversed", "ends", "plain"])
def test_what_is_sorted_otherwise_stays(kind):
    torch.manual_seed(0)
    found = ops(unsort_experts(import_model(Otherwise(kind).eval(), torch.randn(12, 64)).graph()))
    assert (EXPERTS in found) == (kind == "plain")
    assert (GROUPED_MATMUL in found) == (kind != "plain")


def test_elsewhere_rows_are_multiplied_with_all_matrices():
    model, inputs = experts()
    found = ops(expand_groups(import_model(model, inputs).graph()))
    assert GROUPED_MATMUL not in found
    own = compile_model(model, inputs, hw="host")
    assert difference(own(*inputs), model(*inputs).detach().numpy()) < 1e-5
