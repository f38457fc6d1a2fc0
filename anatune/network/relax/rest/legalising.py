"""Relax operators whose loops anatune writes instead of TVM, as tensor expressions."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

from anatune.codegen.compat import TvmObject, import_tvm
from anatune.codegen.formulas import call_elementary
from anatune.network.relax.rest.nests import known_value

__all__ = ["LEGALISED", "element_call"]

_NARROW = 1 << 31
"""Elements from which on indices need 64 bits."""


def _take(builder: TvmObject, call: TvmObject) -> TvmObject:
    """Return the elements at given indices; TVM warns about its mode "fast", which is for indices in range."""
    from tvm import te, topi

    data, indices = call.args
    axis, mode = call.attrs.axis, str(call.attrs.mode)
    if mode != "fast" or axis is None:
        return builder.call_te(topi.take, data, indices, axis, mode=mode)
    first = int(axis) % len(data.ty.shape)

    def take(values: TvmObject, places: TvmObject) -> TvmObject:
        rank = len(places.shape)

        def element(*position: TvmObject) -> TvmObject:
            return values(*position[:first], places(*position[first : first + rank]), *position[first + rank :])

        return te.compute((*values.shape[:first], *places.shape, *values.shape[first + 1 :]), element, name="T_take")

    return builder.call_te(take, data, indices)


def _find_extreme(word: str) -> Callable[[TvmObject, TvmObject], TvmObject]:
    """Return a function that writes argmax or argmin: the first index of the extreme element, or of a NaN.

    TVM's own begins with the index -1 and the least finite number, which rows of such numbers do not exceed, and a
    later NaN hides the elements before it. Here the extreme is computed first, then the least index of an equal
    element: all devices split both reductions over lanes and threads.
    """

    def legalise(builder: TvmObject, call: TvmObject) -> TvmObject:
        tvm = import_tvm()
        from tvm import te, topi

        axis = int(call.attrs.axis) % len(call.args[0].ty.shape)

        def find(data: TvmObject) -> TvmObject:
            best = getattr(topi, word)(data, axis, keepdims=True)
            along = te.reduce_axis((0, data.shape[axis]), name="k")
            is_short, is_float = (known_value(data.shape[axis]) or _NARROW) < _NARROW, "float" in str(data.dtype)
            position = along.var.astype("int32" if is_short else "int64")
            none = tvm.tirx.max_value(str(position.ty))

            def first(*indices: TvmObject) -> TvmObject:
                before, behind = indices[:axis], indices[axis + bool(call.attrs.keepdims) :]
                element = data(*before, along, *behind)
                is_best = element == best(*before, 0, *behind)
                is_best = tvm.tirx.any(is_best, tvm.tirx.isnan(element)) if is_float else is_best
                return te.min(tvm.tirx.Select(is_best, position, none), axis=along)

            kept = [1] * bool(call.attrs.keepdims)
            shape = (*data.shape[:axis], *kept, *data.shape[axis + 1 :])
            extreme = te.compute(shape, first, name=f"arg{word}")
            return te.compute(shape, lambda *at: extreme(*at).astype("int64"), name="places")

        return builder.call_te(find, call.args[0], primfunc_name_hint=f"arg{word}")

    return legalise


def _order(word: str) -> Callable[[TvmObject, TvmObject], TvmObject]:
    """Return a function that writes argsort, or topk of indices, with integers in the order of the elements.

    TVM compares with ``<``, which leaves elements around a NaN unsorted, and takes few types. Here a NaN is the largest
    number, as in PyTorch and NumPy, and -0.0 equals 0.0.
    """

    def legalise(builder: TvmObject, call: TvmObject) -> TvmObject:
        tvm = import_tvm()
        from tvm import topi

        tirx, attrs = tvm.tirx, call.attrs
        kind = str(call.args[0].ty.dtype)
        is_float, integer = "float" in kind, "int64" if kind.endswith("64") else "int32"

        def key(element: TvmObject) -> TvmObject:
            if not is_float:
                return element.astype(integer)
            wide = element if kind.endswith("64") else element.astype("float32")
            bits = tirx.Select(wide == 0, tirx.const(0, integer), tirx.reinterpret(integer, wide))
            most = tirx.max_value(integer)
            return tirx.Select(tirx.isnan(wide), most, tirx.Select(bits < 0, bits ^ most, bits))

        def keys(data: TvmObject) -> TvmObject:
            return tvm.te.compute(data.shape, lambda *at: key(data(*at)), name="keys")

        numbers = call.args[0] if kind == integer else builder.emit(builder.call_te(keys, call.args[0]))
        if word == "argsort":
            return builder.call_te(topi.argsort, numbers, None, attrs.axis, not attrs.descending, attrs.dtype)
        return builder.call_te(topi.topk, numbers, attrs.k, attrs.axis, attrs.ret_type, not attrs.largest, attrs.dtype)

    return legalise


def _accumulate(builder: TvmObject, call: TvmObject) -> TvmObject:
    """Return running sums or products; floating-point numbers are accumulated in float64, as in PyTorch."""
    tvm = import_tvm()
    from tvm import te
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as script

    attrs, kind, is_sum = call.attrs, str(call.ty.dtype), "cumsum" in str(call.op.name)
    accumulator, unit = "float64" if "float" in kind else kind, tvm.tirx.const(1, "int64")
    sizes = list(call.args[0].ty.shape)
    axis = int(attrs.axis) % len(sizes)
    size, behind = sizes[axis], functools.reduce(operator.mul, sizes[axis + 1 :], unit)
    rows = functools.reduce(operator.mul, sizes[:axis], unit) * behind

    def write(source: TvmObject, target: TvmObject) -> TvmObject:
        with IRBuilder() as text:
            data, result = script.buffer_proxy(source), script.buffer_proxy(target)
            with script.parallel(0, rows) as row:
                total = script.buffer_proxy(script.decl_buffer((1,), accumulator, scope="local"))
                total[0] = tvm.tirx.const(0 if is_sum else 1, accumulator)
                with script.serial(0, size) as step:
                    index = (row // behind * size + step) * behind + row % behind
                    before, element = total[0], data[index].astype(accumulator)
                    if attrs.exclusive:
                        result[index] = before.astype(kind)
                    total[0] = before + element if is_sum else before * element
                    if not attrs.exclusive:
                        result[index] = total[0].astype(kind)
            return text.get()

    def accumulate(data: TvmObject) -> TvmObject:
        result = tvm.tirx.decl_buffer(sizes, kind)
        return te.extern([sizes], [data], lambda ins, outs: write(ins[0], outs[0]), dtype=kind, out_buffers=[result])

    return builder.call_te(accumulate, call.args[0], primfunc_name_hint="cumsum" if is_sum else "cumprod")


def _activation(name: str) -> Callable[[TvmObject, TvmObject], TvmObject]:
    """Return a function that writes an activation as one elementary function."""
    return lambda builder, call: element_call(builder, name, call.args)


def element_call(builder: TvmObject, name: str, operands: Sequence[TvmObject]) -> TvmObject:
    """Return the call of an elementwise loop of an elementary function, over tensors of one shape."""
    from tvm import te

    def compute(*tensors: TvmObject) -> TvmObject:
        def element(*indices: TvmObject) -> TvmObject:
            return call_elementary(import_tvm(), name, *(tensor(*indices) for tensor in tensors))

        return te.compute(tensors[0].shape, element, name=f"T_{name}")

    return builder.call_te(compute, *operands, primfunc_name_hint=name)


def _calculate(word: str) -> Callable[[TvmObject, TvmObject], TvmObject]:
    """Return a function that writes a binary operator; a constant zero is read, as TVM drops ``x * 0.0``."""

    def legalise(builder: TvmObject, call: TvmObject) -> TvmObject:
        tvm = import_tvm()
        from tvm import topi

        constants = [one.value for one in call.args if isinstance(one, tvm.ir.Constant)]
        if any("float" in str(one.dtype) and not one.numpy().any() for one in constants):
            return builder.call_te(getattr(topi, word), *call.args)
        return tvm.ir.Op.get(f"relax.{word}").get_attr("FLegalize")(builder, call)

    return legalise


LEGALISED: dict[str, Callable[[TvmObject, TvmObject], TvmObject]] = {
    **{f"relax.{word}": _calculate(word) for word in ("add", "divide", "multiply", "subtract")},
    "relax.argmax": _find_extreme("max"),
    "relax.argmin": _find_extreme("min"),
    "relax.argsort": _order("argsort"),
    "relax.cumprod": _accumulate,
    "relax.cumsum": _accumulate,
    "relax.nn.gelu": _activation("gelu"),
    "relax.nn.gelu_tanh": _activation("gelu_tanh"),
    "relax.nn.silu": _activation("silu"),
    "relax.take": _take,
    "relax.topk": _order("topk"),
}
"""Relax operator -> function that writes its code instead of TVM."""
