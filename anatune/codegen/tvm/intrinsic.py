"""Tensor intrinsics: the description of a nest that TVM matches, and the kernel that replaces it."""

from __future__ import annotations

from types import ModuleType

from anatune.errors import BuildError
from anatune.untyped import ir, tirx, tvm

__all__ = ["make_plain_kernel", "register_intrinsic"]


def register_intrinsic(
    tvm: ModuleType, name: str, block: tvm.s_tir.SBlock, buffers: list[ir.Var], kernel: tirx.PrimFunc | None
) -> None:
    """Register an intrinsic that replaces `block` (with the tensors `buffers`) by `kernel`, or by nothing.

    TVM counts indices from the first element that the block's region names. For a padded tensor that element lies
    before the tensor: the description counts from there, and a block inside the kernel goes back to the tensor's own
    first element.

    Parameters
    ----------
    block : tvm.s_tir.SBlock
        The whole nest, as one iteration.
    buffers : list
        Its tensors, in the order of the kernel's parameters.
    kernel : PrimFunc or None
        The kernel; None: an empty program.
    """
    s_tir, always = tvm.s_tir, tvm.tirx.const(True, "bool")
    bases = [_base(block, buffer) for buffer in buffers]
    zeros = [item.dom.min for item in block.iter_vars]
    counted = _IndexShifter(tvm, [pair for pair in zip(buffers, bases, strict=True) if any(pair[1])]).statement(block)
    description = tvm.tirx.PrimFunc(buffers, s_tir.SBlockRealize(zeros, always, counted))
    description = tvm.ir.load_json(tvm.ir.save_json(description))  # a copy with new variables
    declared = list((kernel or tvm.ir.load_json(tvm.ir.save_json(description))).params)
    parameters = [
        _move_buffer(tvm, buffer) if any(base) else buffer for buffer, base in zip(declared, bases, strict=True)
    ]
    *reads, write = [
        tvm.ir.expr.TensorRegion(buffer, [tvm.ir.Range(0, extent) for extent in buffer.shape], block.writes[0].ty)
        for buffer in parameters
    ]
    inside = tvm.tirx.Evaluate(0)
    if kernel is not None:
        # TVM drops the buffers that an intrinsic's root allocates: they move into a block below it.
        body = kernel.body.block
        whole = [
            s_tir.MatchBufferRegion(buffer, _whole_region(tvm, parameter, base, block.writes[0].ty))
            for buffer, parameter, base in zip(declared, parameters, bases, strict=True)
            if any(base)
        ]
        inner = s_tir.SBlock(
            [], reads, [write], "anatune", body.body, alloc_buffers=body.alloc_buffers, match_buffers=whole
        )
        inside = s_tir.SBlockRealize([], always, inner)
    root = s_tir.SBlock([], reads, [write], "root", inside)
    implementation = tvm.tirx.PrimFunc(parameters, s_tir.SBlockRealize([], always, root))
    s_tir.TensorIntrin.register(name, description, implementation, override=True)


def make_plain_kernel(tvm: ModuleType, nest: tirx.For, buffers: list[tirx.Buffer]) -> tirx.PrimFunc:
    """Return a nest (its outermost loop) as a kernel that computes the same, slowly.

    Parameters
    ----------
    nest : tvm.tirx.For
        The nest, with initialisation and sum in one block.
    buffers : list
        Its tensors, the result last.
    """
    s_tir, always = tvm.s_tir, tvm.tirx.const(True, "bool")
    block = nest
    while type(block).__name__ != "SBlockRealize":
        block = block.body
    *reads, write = [
        tvm.ir.expr.TensorRegion(buffer, [tvm.ir.Range(0, extent) for extent in buffer.shape], block.block.writes[0].ty)
        for buffer in buffers
    ]
    root = s_tir.SBlock([], reads, [write], "root", nest)
    function = tvm.tirx.PrimFunc(buffers, s_tir.SBlockRealize([], always, root))
    return tvm.ir.load_json(tvm.ir.save_json(function))  # a copy with new variables


def _move_buffer(tvm: ModuleType, buffer: tirx.Buffer) -> tirx.Buffer:
    """Return a buffer of the same shape whose first element may be anywhere."""
    offset = tvm.tirx.Var(f"{buffer.name}_start", "int64")
    return tvm.tirx.decl_buffer(buffer.shape, str(buffer.dtype), f"{buffer.name}_moved", elem_offset=offset)


def _whole_region(tvm: ModuleType, buffer: tirx.Buffer, base: list[int], ty: ir.Type) -> ir.expr.TensorRegion:
    """Return the region of a moved buffer that is the whole tensor, which starts `base` elements before it."""
    ranges = [tvm.ir.Range.from_min_extent(-low, size) for low, size in zip(base, buffer.shape, strict=True)]
    return tvm.ir.expr.TensorRegion(buffer, ranges, ty)


def _base(block: tvm.s_tir.SBlock, buffer: tirx.Buffer) -> list[int]:
    """Return the first element of a tensor that a block's regions name."""
    for region in (*block.writes, *block.reads):
        if region.source.same_as(buffer):
            return [int(item.min) for item in region.region]
    raise BuildError(f"block {block.name_hint}: TVM's regions lack the tensor {buffer.name}")


class _IndexShifter:
    """A copier of statements in which the indices of some tensors count from their bases."""

    def __init__(self, tvm: ModuleType, bases: list[tuple[tirx.Buffer, list[int]]]) -> None:
        self._tvm = tvm
        self._bases = bases

    def _base(self, buffer: tirx.Buffer) -> list[int] | None:
        return next((base for other, base in self._bases if other.same_as(buffer)), None)

    def _region(self, region: ir.expr.TensorRegion) -> ir.expr.TensorRegion:
        base = self._base(region.source)
        if base is None:
            return region
        ranges = [
            self._tvm.ir.Range.from_min_extent(item.min - low, item.extent)
            for item, low in zip(region.region, base, strict=True)
        ]
        return self._tvm.ir.expr.TensorRegion(region.source, ranges, region.ty)

    def statement(self, node: tirx.Stmt) -> tirx.Stmt:
        """Return a copy of a statement: loops, blocks and one store, which `blockize` leaves of a nest."""
        tirx, s_tir = self._tvm.tirx, self._tvm.s_tir
        kind = type(node).__name__
        if not self._bases:
            return node
        if kind == "For":
            return tirx.For(node.loop_var, node.min, node.extent, node.kind, self.statement(node.body))
        if kind == "SBlockRealize":
            return s_tir.SBlockRealize(node.iter_values, node.predicate, self.statement(node.block))
        if kind == "SBlock":
            reads, writes = [self._region(r) for r in node.reads], [self._region(r) for r in node.writes]
            return s_tir.SBlock(node.iter_vars, reads, writes, node.name_hint, self.statement(node.body))
        if kind == "BufferStore":
            return tirx.BufferStore(node.buffer, self._value(node.value), node.indices)
        raise BuildError(f"TVM made a {kind} of a nest, expected loops, blocks and a store")

    def _value(self, node: ir.Expr) -> ir.Expr:
        tirx = self._tvm.tirx
        kind = type(node).__name__
        if kind in ("Add", "Mul"):
            return getattr(tirx, kind)(self._value(node.a), self._value(node.b))
        if kind == "Cast":
            return tirx.Cast(node.ty, self._value(node.value))
        if kind == "Select":
            return tirx.Select(node.condition, self._value(node.true_value), node.false_value)
        if kind == "Call":
            condition, value, other = node.args
            return tirx.if_then_else(condition, self._value(value), other)
        if kind == "TensorLoad" and (base := self._base(node.source)) is not None:
            return node.source[tuple(index - low for index, low in zip(node.indices, base, strict=True))]
        return node
