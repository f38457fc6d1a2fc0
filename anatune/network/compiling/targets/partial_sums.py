"""Products whose sums are computed in parts: the kernel that reads the result adds the parts up."""

from __future__ import annotations

from collections.abc import Mapping

from anatune.network.compiling.targets.base import PlannedModel
from anatune.network.graph.nodes import WRITTEN, Node, TensorType, Value, rewrite_with_originals, tensor_type
from anatune.network.graph.operators import ATTENTION, SCALED_MATMUL
from anatune.network.graph.passes.precision import WIDE
from anatune.network.graph.passes.products import append_steps
from anatune.network.relax.device.stubs import sum_of_parts
from anatune.templates.triton.program.kernel import TritonProgram

__all__ = ["split_partial_sums"]


def split_partial_sums(planned: PlannedModel, programs: Mapping[str, TritonProgram]) -> PlannedModel:
    """Return a model in which a product writes its partial sums, (parts, *sizes) float32, which a node adds up.

    The addition can then be fused with the next nodes, such as a residual sum and a norm, without a separate launch.
    Of the launches of such a kernel only the first one is used. `programs` holds the program of each kernel, by name.
    """
    spaces = {
        node: space.shape
        for kernel in planned.kernels
        if (space := programs[kernel.name].workspace) is not None
        for node in kernel.nodes
        if node.op != ATTENTION
    }
    if not spaces:
        return planned
    new_nodes: dict[Value, Node] = {}

    def replace(node: Node, old: Node) -> Value:
        new_nodes[old] = node
        if old not in spaces:
            return node
        result_type = tensor_type(node)
        parts_type = TensorType((spaces[old][0], *result_type.shape), WIDE)
        operands = node.arguments if node.op == SCALED_MATMUL else node.arguments[:2]
        parts = new_nodes[old] = node.of(operands, parts_type, epilogue=())
        name, function = sum_of_parts(parts_type.shape)
        return append_steps(Node(f"{WRITTEN}{name}", (parts,), result_type, {"function": function}), node)

    graph = rewrite_with_originals(planned.graph, replace)
    kernels = [kernel._replace(nodes=tuple(new_nodes[node] for node in kernel.nodes)) for kernel in planned.kernels]
    return planned._replace(graph=graph, kernels=kernels)
