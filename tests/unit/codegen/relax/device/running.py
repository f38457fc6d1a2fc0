"""Graphs lowered to launches, run by Triton's interpreter without being compiled."""

import numpy as np

import anatune
from anatune.codegen.compat import bare_target
from anatune.codegen.relax.device.lowering import lowered
from anatune.codegen.relax.device.stubs import plain_product
from anatune.graph.nodes import Graph, Input, TensorType, tensor_type
from anatune.graph.operators import PRODUCTS
from anatune.graph.products import workload_of
from anatune.measure.emulate.triton_interpreter import interpret
from anatune.measure.run.correctness import array_dtype

H100 = anatune.hardware("h100")


def graph_of(make, *kinds):
    """Return the graph of a function of values, for inputs of (shape, dtype)."""
    inputs = tuple(Input(f"x{place}", TensorType(*kind)) for place, kind in enumerate(kinds))
    made = make(*inputs)
    return Graph(inputs, made if isinstance(made, tuple) else (made,), is_tuple=isinstance(made, tuple))


def lower(graph, precision="bfloat16", hardware=H100):
    """Return a graph as launches, its products as loops."""
    own = {
        id(node): plain_product(f"product_{place}", workload_of(node))
        for place, node in enumerate(graph.nodes())
        if node.op in PRODUCTS
    }
    return lowered(graph, own, {}, precision, hardware, bare_target("x86_64"))


def run(graph, made, arrays):
    """Return the outputs, memory as it lies on a device; what nobody has written is NaN."""
    kinds = [tensor_type(one) for one in graph.outputs]
    results = [np.zeros(kind.shape, array_dtype(kind.dtype)) for kind in kinds]
    weights = np.zeros(made.weight_bytes, np.uint8)
    for form in made.forms:
        array = made.value(form)
        weights[form.offset : form.offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    memory = {
        "input": [np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in arrays],
        "weight": [weights],
        "arena": [np.full(made.arena_bytes, 0xFF, np.uint8)],
        "output": [one.reshape(-1).view(np.uint8) for one in results],
    }

    def at(region):
        return memory[region.role][region.place][region.offset : region.offset + region.num_bytes]

    for call in made.calls:
        program = call.program
        written = (program.result, *program.further)
        given = {
            name: at(call.regions[name]).view(array_dtype(buffer.dtype))
            for name, buffer in program.tensors.items()
            if name not in written
        }
        for name, array in interpret(program, given).items():
            at(call.regions[name])[:] = array.reshape(-1).view(np.uint8)
    return results
