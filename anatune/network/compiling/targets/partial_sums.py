"""Products whose sums are made in parts: whoever reads a result adds the parts up, with what follows, in one kernel."""

from __future__ import annotations

from anatune.network.compiling.targets.base import PlannedModel
from anatune.network.graph.nodes import WRITTEN, Node, TensorType, Value, rewritten_beside, tensor_type
from anatune.network.graph.operators import ATTENTION, SCALED_MATMUL
from anatune.network.graph.passes.precision import WIDE
from anatune.network.graph.passes.products import with_steps
from anatune.network.relax.device.stubs import sum_of_parts
from anatune.templates import TRITON

__all__ = ["with_partial_sums"]


def with_partial_sums(planned: PlannedModel) -> PlannedModel:
    """Return a model in which the parts of a product's sums are a tensor, (parts, *sizes) float32, and then added up.

    So what adds them up is joined with what follows, such as a residual sum and a norm, and is no launch of its own. Of
    kernels with parts nothing but the first launch is needed then.
    """
    spaces = {
        node: space.shape
        for kernel in planned.kernels
        if (space := TRITON.program(kernel.schedule).workspace) is not None
        for node in kernel.nodes
        if node.op != ATTENTION
    }
    if not spaces:
        return planned
    made: dict[Value, Node] = {}

    def replace(own: Node, old: Node) -> Value:
        made[old] = own
        if old not in spaces:
            return own
        kind = tensor_type(own)
        whole = TensorType((spaces[old][0], *kind.shape), WIDE)
        operands = own.arguments if own.op == SCALED_MATMUL else own.arguments[:2]
        parts = made[old] = own.of(operands, whole, epilogue=())
        name, function = sum_of_parts(whole.shape)
        return with_steps(Node(f"{WRITTEN}{name}", (parts,), kind, {"function": function}), own)

    graph = rewritten_beside(planned.graph, replace)
    kernels = [kernel._replace(nodes=tuple(made[node] for node in kernel.nodes)) for kernel in planned.kernels]
    return planned._replace(graph=graph, kernels=kernels)
