"""Stubs of products and attentions in the Relax module from which everything else is read."""

from __future__ import annotations

from functools import lru_cache

from anatune.codegen.compat import TvmObject, import_tvm, parse_program
from anatune.core.workload.nest import Access, Workload
from anatune.emit.script import Script, buffer_type, open_function
from anatune.network.graph.nodes import Node, Value, tensor_type
from anatune.network.relax.kernels import OPAQUE, ModelKernel, mark_kernel

__all__ = ["make_product", "make_put", "make_stub", "sum_of_parts"]

_WIDE = "float32"
_read_function = lru_cache(maxsize=256)(parse_program)
"""`parse_program`; equal layers, and the devices of a comparison, have the same texts."""


def make_stub(name: str, node: Node, kind: str) -> ModelKernel:
    """Return a kernel that does nothing, so that TVM keeps its call and `steps.read_steps` can read the operands.

    Parameters
    ----------
    kind : str
        Kind of the kernel, for people.
    """
    text = Script()
    open_function(text, "main", _parameters(node))
    text.line("T.evaluate(0)")
    return ModelKernel(name, mark_kernel(_read_function(str(text), ""), name, kind), {})


def _parameters(node: Node) -> list[tuple[str, str]]:
    """Return the parameters of a node's operands and result."""
    kinds = [tensor_type(one) for one in (*(a for a in node.arguments if isinstance(a, Value)), node)]
    return [(f"t{place}", buffer_type(kind.shape, kind.dtype)) for place, kind in enumerate(kinds)]


def make_put(name: str, node: Node) -> ModelKernel:
    """Return loops that put rows into a tensor at listed indices, or from one index on; they write only these rows."""
    axis, rows = node.attributes["axis"], tensor_type(node.arguments[1])
    is_listed = tensor_type(node.arguments[2]).shape == rows.shape[axis : axis + 1]
    text = Script()
    open_function(text, "main", _parameters(node)[:-1])  # the result is the first operand
    variables = [f"v{place}" for place in range(len(rows.shape))]
    row = f'T.Cast("int64", t2[{variables[axis] if is_listed else 0}])'
    indices = [*variables[:axis], row if is_listed else f"{row} + {variables[axis]}", *variables[axis + 1 :]]
    loops = ", ".join(f"i{place}" for place in range(len(variables)))
    text.open(f"for {loops} in T.grid({', '.join(f'T.int64({size})' for size in rows.shape)}):")
    text.open('with T.sblock("put"):')
    text.line(f'{", ".join(variables)} = T.axis.remap("{"S" * len(variables)}", [{loops}])')
    text.line(f"t0[{', '.join(indices)}] = t1[{', '.join(variables)}]")
    return ModelKernel(name, mark_kernel(_read_function(str(text), ""), name, "put"), {})


def sum_of_parts(shape: tuple[int, ...]) -> tuple[str, TvmObject]:
    """Return the name and the function of an elementwise sum of the parts of a tensor, (parts, *sizes) float32."""
    from tvm import te

    sizes = [import_tvm().tirx.const(size, "int64") for size in shape]  # as Relax has them, which joins functions
    parts = te.placeholder(sizes, _WIDE, name="parts")

    def total(*places: TvmObject) -> TvmObject:
        result = parts(0, *places)
        for part in range(1, shape[0]):
            result = result + parts(part, *places)
        return result

    function = te.create_prim_func([parts, te.compute(sizes[1:], total, name="sum_of_parts")])
    return f"sum_of_{shape[0]}_parts", function.without_attr("global_symbol")


def make_product(name: str, workload: Workload) -> ModelKernel:
    """Return a product without epilogue as loops, if no template takes it, such as grouped convolutions in float32."""
    tvm = import_tvm()
    from tvm import te

    operands = {access.tensor: te.placeholder(access.shape, _WIDE, name=access.tensor) for access in workload.operands}
    extents = workload.extents
    reduced = {axis.name: te.reduce_axis((0, axis.extent), axis.name) for axis in workload.reduction_axes}

    def element(access: Access, values: dict[str, TvmObject]) -> TvmObject:
        indices, inside = [], []
        for terms, offset, size in zip(access.indices, access.offsets, access.shape, strict=True):
            index: TvmObject = offset
            for term in terms:
                index = index + values[term.axis] * term.coefficient
            last = offset + sum(term.coefficient * (extents[term.axis] - 1) for term in terms)
            inside += [index >= 0] if offset < 0 else []
            inside += [index < size] if last >= size else []
            indices.append(index)
        loaded = operands[access.tensor](*indices)
        return tvm.tirx.if_then_else(tvm.tirx.all(*inside), loaded, tvm.tirx.const(0.0, _WIDE)) if inside else loaded

    def total(*places: TvmObject) -> TvmObject:
        values = dict(reduced)
        for terms, index in zip(workload.write.indices, places, strict=True):
            for term in terms:
                values[term.axis] = tvm.tirx.indexmod(tvm.tirx.indexdiv(index, term.coefficient), extents[term.axis])
        left, right = (element(access, values) for access in workload.reads)
        return te.sum(left * right, axis=list(reduced.values()))

    result = te.compute(workload.write.shape, total, name="product")
    function = te.create_prim_func([*operands.values(), result])
    return ModelKernel(name, function.with_attrs({"global_symbol": name, "op_pattern": OPAQUE}), {})
