"""Products and attentions of a graph in the Relax module that everything else is read from."""

from __future__ import annotations

from anatune.codegen.compat import TvmObject, import_tvm
from anatune.codegen.relax.kernels import OPAQUE, ModelKernel, kernel_function
from anatune.core.workload.nest import Access, Workload
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script, buffer_type, open_function

__all__ = ["plain_product", "stub"]

_WIDE = "float32"


def stub(name: str, shapes: list[tuple[int, ...]], kind: str) -> ModelKernel:
    """Return a kernel that does nothing: what stands for a planned one where its operands are looked at.

    Parameters
    ----------
    shapes : list of tuple of int
        Of its operands and its result, float32.
    kind : str
        Of the kernel, for people.
    """
    text = Script()
    tensors = [Buffer(f"t{place}", _WIDE, shape) for place, shape in enumerate(shapes)]
    open_function(text, "main", [(one.tensor, buffer_type(one.shape, one.dtype)) for one in tensors])
    text.line("T.evaluate(0)")
    return ModelKernel(name, kernel_function(str(text), "", name, kind), {})


def plain_product(name: str, workload: Workload) -> ModelKernel:
    """Return a product that no template takes, with nothing fused into it, as loops: grouped convolutions, float32."""
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
        for terms, place in zip(workload.write.indices, places, strict=True):
            for term in terms:
                values[term.axis] = tvm.tirx.indexmod(tvm.tirx.indexdiv(place, term.coefficient), extents[term.axis])
        left, right = (element(access, values) for access in workload.reads)
        return te.sum(left * right, axis=list(reduced.values()))

    result = te.compute(workload.write.shape, total, name="product")
    made = te.create_prim_func([*operands.values(), result])
    return ModelKernel(name, made.with_attrs({"global_symbol": name, "op_pattern": OPAQUE}), {})
