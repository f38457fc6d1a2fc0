"""Graphs lowered to launches, run by Triton's interpreter without being compiled."""

import numpy as np

import anatune
from anatune.codegen.compat import make_bare_target
from anatune.core.compiler_facts import CompilerFacts
from anatune.network.compiling.targets.interpreted import interpret_model
from anatune.network.graph.nodes import Graph, Input, TensorType, rewrite_graph, tensor_type
from anatune.network.graph.operators import PRODUCTS
from anatune.network.graph.passes.products import unfuse
from anatune.network.graph.products import workload_of
from anatune.network.graph.summary import TensorSummary
from anatune.network.relax.device.lowering import lower_graph
from anatune.network.relax.device.program import DeviceKernel, DeviceLaunch, DeviceProgram
from anatune.network.relax.device.stubs import make_product

H100 = anatune.hardware("h100")


def graph_of(make, *kinds):
    """Return the graph of a function of values, for inputs of (shape, dtype)."""
    inputs = tuple(Input(f"x{place}", TensorType(*kind)) for place, kind in enumerate(kinds))
    made = make(*inputs)
    return Graph(inputs, made if isinstance(made, tuple) else (made,), is_tuple=isinstance(made, tuple))


def lower(graph, precision="bfloat16", hardware=H100):
    """Return a graph as launches, its products as loops."""
    graph = rewrite_graph(graph, lambda node: unfuse(node) if node.op in PRODUCTS else node)
    own = {
        node: make_product(f"product_{place}", workload_of(node))
        for place, node in enumerate(graph.nodes())
        if node.op in PRODUCTS
    }
    return lower_graph(graph, own, {}, precision, hardware, make_bare_target("x86_64"))


def run(graph, made, arrays):
    """Return the outputs of launches that nothing was compiled for."""
    weights = np.zeros(made.weight_bytes, np.uint8)
    for form in made.forms:
        array = made.value(form)
        weights[form.offset : form.offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    kernels, launches = [], []
    for number, call in enumerate(made.calls):
        for kernel in call.program.kernels:
            regions = tuple(call.regions[buffer.tensor] for buffer in kernel.parameters)
            launches.append(DeviceLaunch(len(kernels), regions, None, call.name))
            kernels.append(DeviceKernel(number, kernel.name, 0, 0, kernel.grid, 1, 0, 0, CompilerFacts(1)))
    programs = tuple(call.program for call in made.calls)
    program = DeviceProgram(programs, tuple(kernels), tuple(launches), made.arena_bytes, b"")
    kinds = [tensor_type(one) for one in graph.outputs]
    outputs = [TensorSummary("", kind.dtype, kind.shape) for kind in kinds]
    return interpret_model(program, weights, arrays, outputs)
