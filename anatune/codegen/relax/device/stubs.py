"""Products and attentions of a graph in the Relax module that everything else is read from."""

from __future__ import annotations

from anatune.codegen.compat import TvmObject, import_tvm
from anatune.codegen.relax.kernels import ModelKernel, kernel_function
from anatune.core.activations import ACTIVATIONS
from anatune.core.workload.nest import Access, Workload
from anatune.emit.buffer import Buffer
from anatune.emit.script import Script, buffer_type, open_function
from anatune.errors import BuildError

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
    """Return a product that no template takes as loops, float32: grouped and depthwise convolutions.

    Raises
    ------
    BuildError
        It has a step that is not known.
    """
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

    def axes_of(places: tuple[TvmObject, ...]) -> dict[str, TvmObject]:
        found: dict[str, TvmObject] = {}
        for terms, place in zip(workload.write.indices, places, strict=True):
            for term in terms:
                found[term.axis] = tvm.tirx.indexmod(tvm.tirx.indexdiv(place, term.coefficient), extents[term.axis])
        return found

    def total(*places: TvmObject) -> TvmObject:
        values = {**axes_of(places), **reduced}
        left, right = (element(access, values) for access in workload.reads)
        return te.sum(left * right, axis=list(reduced.values()))

    result = te.compute(workload.write.shape, total, name="product")

    def finished(*places: TvmObject) -> TvmObject:
        value, values = result(*places), axes_of(places)
        reads = iter(workload.epilogue_reads)
        for step in workload.epilogue:
            if step in ("bias", "add"):
                value = value + element(next(reads), values)
            elif step in ACTIVATIONS:
                value = _activated(tvm, step, value)
            else:
                raise BuildError(f"{workload.operator}: the step {step} of a product without a template has no kernel")
        return value

    if workload.epilogue:
        result = te.compute(workload.write.shape, finished, name="finished")
    made = te.create_prim_func([*operands.values(), result])
    return ModelKernel(name, made.with_attr("global_symbol", name), {})


def _activated(tvm: TvmObject, step: str, x: TvmObject) -> TvmObject:
    """Return an activation of a value, as `core.activations`."""
    op = tvm.tirx
    zero, six = op.const(0.0, _WIDE), op.const(6.0, _WIDE)
    if step == "relu":
        return op.max(x, zero)
    if step == "relu6":
        return op.min(op.max(x, zero), six)
    if step == "silu":
        return x * op.sigmoid(x)
    if step == "gelu":
        return x * op.const(0.5, _WIDE) * (op.const(1.0, _WIDE) + op.erf(x * op.const(0.5**0.5, _WIDE)))
    inner = op.const(0.7978845608028654, _WIDE) * (x + op.const(0.044715, _WIDE) * x * x * x)
    return x * op.const(0.5, _WIDE) * (op.const(1.0, _WIDE) + op.tanh(inner))
